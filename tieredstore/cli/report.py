"""A tier at a glance: one self-contained HTML page about it, and what it costs in a month.

No script is in the page, and nothing is fetched from elsewhere. Every name comes from a stranger
and is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tieredstore.cli.options import (
    Json,
    Out,
    SizeOptions,
    TierOptions,
    config_of,
    given,
    option,
    verb,
)
from tieredstore.cli.output import (
    CommandError,
    ExitCode,
    OutputFile,
    note,
    printable,
    shown_time,
    write_json,
    write_line,
    write_table,
)

if TYPE_CHECKING:  # help must be fast
    from tieredstore.access.cost import CostLine, Load, MonthlyCost
    from tieredstore.access.survey import DrawnSegment, QueuePicture, TierPicture
    from tieredstore.model.config import StoreConfig
    from tieredstore.model.values import QueueKey

app = typer.Typer(rich_markup_mode=None)

QUEUES_SHOWN_MAX: Final = 200
"""The largest; a page with more of them is read by nobody. The tables of `queues` show all."""

_NAMES_MAX: Final = 20
# Nobody who opens the page can be made to fetch anything by a name in it.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_HOUR_MS: Final = 3_600_000
_DAY_SECONDS: Final = 86_400.0
_UNKNOWN: Final = "?"
# Of a bar, in the units of its picture:
_WIDTH: Final = 400
_HEIGHT: Final = 18
_LEAST: Final = 1.5  # a bar that is there can be seen
_BARS_MAX: Final = 200  # of one queue: more could not be seen apart
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #566575; --line: #d8dfe6;
  --paper: #fff; --tier: #2f6fb2; --local: #c9a227; --index: #6fcf97; --bad: #b3392f;
  --shade: #eef2f6; }
* { box-sizing: border-box; }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 0 auto; padding: 1rem; max-width: 64rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; break-after: avoid; }
p { margin: .3rem 0; } .soft { color: var(--soft); } .bad { color: var(--bad); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .6rem;
  margin: 1rem 0; }
.facts div { background: var(--shade); border-radius: .4rem; padding: .5rem .7rem; }
.facts b { display: block; font-size: 1.25rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: middle; }
th { font-weight: 600; color: var(--soft); white-space: nowrap; overflow-wrap: normal; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.when { white-space: nowrap; }
th.name { width: 34%; } th.bar { width: 30%; }
th:last-child, td:last-child { padding-right: 0; }
svg { display: block; width: 100%; height: .8rem; border-radius: .12rem; }
.key span { display: inline-block; margin-right: 1rem; }
.key i { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem;
  margin-right: .3rem; vertical-align: -.05rem; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e3e9ef; --soft: #9fb0c0;
  --line: #33404d; --paper: #12181f; --tier: #4d8fd6; --local: #d9b64a; --index: #8ee3b0;
  --bad: #ff8a7d; --shade: #1f2832; } }
@media screen and (max-width: 40rem) {
  table, thead, tbody { display: block; }
  tr { display: grid; grid-template-columns: repeat(var(--n), minmax(0, 1fr));
    column-gap: .4rem; padding: .3rem 0; border-bottom: 1px solid var(--line); }
  th, td, td.n, td.when { border: 0; padding: .05rem 0; font-size: .85rem; white-space: normal; }
  th.name, th.bar { width: auto; }
  th.name, td.name, td.bar { grid-column: 1 / -1; } td.name { font-size: 1rem; }
  th.bar, th.name:empty { display: none; } }
@media print { :root { color-scheme: light; }
  body { max-width: none; padding: 0; font-size: 11px; }
  .facts { grid-template-columns: repeat(6, 1fr); } tr, .facts div { break-inside: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""


def _amount(text: str) -> float:
    """A finite one: an amount of anything. typer's own takes inf and nan."""
    from tieredstore.access.cost import NUMBER_MAX

    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= NUMBER_MAX:  # nor nan, which is not more and not less than anything
        raise typer.BadParameter(f"{text!r:.40} is no number from 0 to {NUMBER_MAX:.0e}")
    return value


def _at_least_one(text: str) -> float:
    value = _amount(text)
    if value < 1:
        raise typer.BadParameter(f"{text!r:.40}: a message has at least one byte")
    return value


@verb(app, "report --out tier.html --config broker.conf")
def report(
    out: Out = "tier.html",
    local: Annotated[
        Path | None, option("--local DIR", "The broker's local store, to compare with.")
    ] = None,
    *,
    tier: TierOptions,
    json: Json = False,
) -> None:
    """Write one page that needs nothing else: topics, queues, segments, index and cost.

    It is drawn from the catalogue, and needs no network to be looked at. A page that is there is
    replaced.
    """
    from tieredstore.access.survey import picture_of
    from tieredstore.cli.tier import opened_tier
    from tieredstore.driver.runtime import SystemClock

    target = OutputFile("--out", out or "tier.html")
    target.check(json=json)
    with opened_tier(tier) as opened:
        picture = picture_of(
            opened.reader,
            opened.metadata,
            now_ms=SystemClock().now_ms(),
            local_offsets=None if local is None else _ends(local, tier.config),
        )
    text = "\n".join(page(picture)) + "\n"
    target.write(text.encode("utf-8", "backslashreplace"))
    if json:
        write_json({"file": out, "queues": len(picture.queues), "bytes": len(text)})
    elif not target.is_stdout:
        write_line(printable(f"{out}: {len(picture.queues)} queues; open it in any browser"))


@verb(app, "cost --messages-per-second 2000 --message-bytes 1000 --queues 64")
def cost(
    messages_per_second: Annotated[
        float | None,
        option("--messages-per-second RATE", "Without a tier: of all queues.", parser=_amount),
    ] = None,
    message_bytes: Annotated[
        float, option("--message-bytes BYTES", "Of one stored message.", parser=_at_least_one)
    ] = 1024,
    queues: Annotated[int, option("--queues", "That messages come to.", min=1)] = 8,
    keys: Annotated[float, option("--keys COUNT", "Of one message.", parser=_amount)] = 2,
    read_bytes: Annotated[
        float, option("--read-bytes-per-second RATE", "Read from the tier.", parser=_amount)
    ] = 0,
    reserve_hours: Annotated[
        float | None, option("--reserve-hours HOURS", "Else as the settings say.", parser=_amount)
    ] = None,
    storage_price: Annotated[
        float | None, option("--storage-price DOLLARS", "For a GB-month.", parser=_amount)
    ] = None,
    *,
    tier: TierOptions,
    json: Json = False,
) -> None:
    """Estimate what a tier costs in an object store: this one, or one of given rates and settings.

    Prices of requests are S3's list prices, or the setting request_prices. What leaves the cloud is
    not counted.
    """
    from tieredstore.access.cost import STORAGE_DOLLARS, Load, monthly_cost
    from tieredstore.model.config import StoreConfig

    if messages_per_second is None:
        config, load = _load_of_tier(tier, read_bytes)
    else:
        named = tier.config is not None
        config = config_of(tier) if named else StoreConfig(**given(tier))
        load = Load(
            queue_count=queues,
            messages_per_second=messages_per_second,
            message_bytes=message_bytes,
            keys_per_message=keys,
            read_bytes_per_second=read_bytes,
            reserve_hours=reserve_hours,
        )
    dollars = STORAGE_DOLLARS if storage_price is None else storage_price
    _print_cost(load, monthly_cost(load, config, storage_dollars=dollars), json=json)


def _ends(directory: Path, config: Path | None) -> dict[QueueKey, int]:
    from tieredstore.cli.local import opened_store

    with opened_store(directory, SizeOptions(config=config)) as reader:
        return {key: reader.max_offset(*key) or 0 for key in reader.queues()}


def page(picture: TierPicture) -> Iterator[str]:
    """The lines of the page."""
    title = escape(f"Tier of {picture.broker_name}")
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title><style>{_STYLE}</style></head><body>"
    yield f"<h1>{title}</h1>"
    yield (
        f'<p class="soft">cluster {escape(picture.cluster_name)}, {escape(picture.place)}, '
        f"as of {_moment_text(picture.taken_at)} UTC, as are all times here</p>"
    )
    yield from _facts(picture)
    yield from _problems(picture)
    shown = _largest(picture.queues)
    yield from _topics(picture)
    yield from _offsets(picture, shown)
    yield from _segments(shown)
    yield from _index(picture)
    yield from _cost(picture)
    yield "</body></html>"


def _facts(picture: TierPicture) -> Iterator[str]:
    messages = sum(
        queue.max_offset - queue.min_offset
        for queue in picture.queues
        if queue.min_offset is not None
    )
    behind = list(picture.only_local.values()) + [
        max(0, queue.local_offset - queue.max_offset)
        for queue in picture.queues
        if queue.local_offset is not None
    ]
    problems = len(_with_a_problem(picture))
    facts = [
        ("topics", f"{len(picture.topics):,}"),
        ("queues", f"{len(picture.queues):,}"),
        ("messages", f"{messages:,}"),
        ("bytes", _size_text(picture.total_bytes)),
        ("not uploaded yet", f"{sum(behind):,}" if behind else "?"),
        ("queues with a problem", f"{problems:,}"),
    ]
    yield '<section class="facts">'
    for what, value in facts:
        mark = ' class="bad"' if what.endswith("problem") and problems else ""
        yield f"<div><b{mark}>{value}</b>{what}</div>"
    yield "</section>"


def _problems(picture: TierPicture) -> Iterator[str]:
    found = _with_a_problem(picture)
    if not found:
        return
    yield "<h2>What is wrong</h2>"
    yield from _table(
        (("queue", "name"), ("problem", "name")),
        (
            (escape(_path(queue.key)), f'<span class="bad">{escape(queue.problem or "")}</span>')
            for queue in found[:QUEUES_SHOWN_MAX]
        ),
    )
    yield from _more(len(found), "queues with a problem", "first")


def _topics(picture: TierPicture) -> Iterator[str]:
    yield "<h2>Topics by bytes and age</h2>"
    if not picture.queues:
        yield '<p class="soft">Nothing has been uploaded yet.</p>'
        return
    rows = sorted(
        ((name, queues, _bytes_of(queues)) for name, queues in picture.topics.items()),
        key=lambda row: (-row[2], row[0]),
    )
    largest = max((size for _, _, size in rows), default=0)
    yield from _table(
        (
            ("topic", "name"),
            ("queues", "n"),
            ("bytes", "n"),
            ("oldest", "n"),
            ("kept", "n"),
            ("", "bar"),
        ),
        (
            (
                escape(name),
                f"{len(queues):,}",
                _size_text(size),
                _age_text(min(_begins(queues), default=None), picture.taken_at),
                _span_text(picture.reserve_hours.get(name, 0) * _HOUR_MS),
                _bar(size, largest),
            )
            for name, queues, size in rows[:QUEUES_SHOWN_MAX]
        ),
    )
    yield from _more(len(rows), "topics")


def _offsets(picture: TierPicture, shown: Sequence[QueuePicture]) -> Iterator[str]:
    yield "<h2>Where each queue stands</h2>"
    if picture.only_local:
        names = ", ".join(_path(key) for key in list(picture.only_local)[:_NAMES_MAX])
        more = ", …" if len(picture.only_local) > _NAMES_MAX else ""
        yield (
            f"<p>Queues of the local store of which the tier has nothing yet "
            f"({len(picture.only_local):,}): {escape(names)}{more}</p>"
        )
    if not shown:
        yield '<p class="soft">The tier has no queue yet.</p>'
        return
    yield (
        '<p class="key"><span><i style="background:var(--tier)"></i>in the tier</span>'
        '<span><i style="background:var(--index)"></i>of these found by key</span>'
        '<span><i style="background:var(--local)"></i>only in the local store</span>'
        '<span class="soft">?: not known; --local names the local store</span></p>'
    )
    yield from _table(
        (
            ("queue", "name"),
            ("first", "n"),
            ("tier", "n"),
            ("indexed", "n"),
            ("local", "n"),
            ("", "bar"),
        ),
        (
            (
                _name(queue),
                _number_text(queue.min_offset),
                _number_text(queue.max_offset),
                _number_text(queue.indexed_offset),
                _number_text(queue.local_offset),
                _offsets_bar(queue),
            )
            for queue in shown
        ),
    )
    yield from _more(len(picture.queues), "queues")


def _segments(shown: Sequence[QueuePicture]) -> Iterator[str]:
    yield "<h2>Segments over time</h2>"
    begins = list(_begins(shown))
    if not begins:
        yield '<p class="soft">There is no segment with times that can be believed.</p>'
        return
    first, last = min(begins), max(queue.end_timestamp or 0 for queue in shown)
    yield (
        f'<p class="soft">From {_moment_text(first)} to {_moment_text(last)}; each bar is a '
        "segment of the commit log, from its first message to its last</p>"
    )
    yield from _table(
        (("queue", "name"), ("segments", "n"), ("bytes", "n"), ("", "bar")),
        (
            (
                _name(queue),
                f"{len(queue.segments):,}",
                _size_text(queue.log_bytes),
                _timeline(queue.segments, first, last),
            )
            for queue in shown
        ),
    )


def _index(picture: TierPicture) -> Iterator[str]:
    yield "<h2>Key index</h2>"
    if not picture.index_files:
        yield (
            '<p class="soft">Nothing of it has been uploaded yet: an index file is uploaded when '
            "it is full or a day old.</p>"
        )
        return
    latest = sorted(picture.index_files, key=lambda file: -file.base_offset)
    yield from _table(
        (("file at", "n"), ("bytes", "n"), ("begun", "when n"), ("last message", "when n")),
        (
            (
                f"{file.base_offset:,}",
                _size_text(file.size),
                _moment_text(file.begin_timestamp),
                _moment_text(file.end_timestamp),
            )
            for file in latest[:QUEUES_SHOWN_MAX]
        ),
    )
    yield from _more(len(latest), "index files", "newest")


def _cost(picture: TierPicture) -> Iterator[str]:
    yield "<h2>Requests and cost</h2>"
    load = picture.load
    yield (
        f'<p class="soft">Thirty days in an object store at list prices, estimated from '
        f"{load.messages_per_second:,.1f} messages/s in {load.queue_count:,} queues: the average "
        "over the time that the tier goes back</p>"
    )
    yield from _table(
        (("", "name"), ("requests", "n"), ("how many", "n"), ("dollars", "n")),
        ([escape(cell) for cell in _cost_cells(line)] for line in picture.cost.lines),
    )
    yield f"<p><b>{picture.cost.dollars:,.2f} dollars a month</b></p>"


def _table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    kinds = [kind for _, kind in columns]
    beside = sum(kind not in ("name", "bar") for kind in kinds)  # on a phone, below the name
    yield f'<table style="--n:{max(1, beside)}"><thead><tr>'
    for name, kind in columns:
        yield f'<th class="{kind}">{name}</th>'
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = "".join(
            f'<td class="{kind}">{cell}</td>' for cell, kind in zip(row, kinds, strict=True)
        )
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table>"


def _more(count: int, what: str, which: str = "largest") -> Iterator[str]:
    if count > QUEUES_SHOWN_MAX:
        yield f'<p class="soft">The {which} {QUEUES_SHOWN_MAX} of {count:,} {what}.</p>'


def _largest(queues: Sequence[QueuePicture]) -> list[QueuePicture]:
    """Those with a problem first, then by size; shown by name."""
    ranked = sorted(queues, key=lambda queue: (queue.problem is None, -queue.log_bytes))
    return sorted(ranked[:QUEUES_SHOWN_MAX], key=lambda queue: queue.key)


def _with_a_problem(picture: TierPicture) -> list[QueuePicture]:
    return [queue for queue in picture.queues if queue.problem is not None]


def _path(key: QueueKey) -> str:
    return f"{key.topic}/{key.queue_id}"


def _name(queue: QueuePicture) -> str:
    name = escape(_path(queue.key))
    return name if queue.problem is None else f'<b class="bad">{name}</b>'


def _bytes_of(queues: Iterable[QueuePicture]) -> int:
    return sum(queue.log_bytes + queue.queue_bytes for queue in queues)


def _begins(queues: Iterable[QueuePicture]) -> Iterator[int]:
    return (queue.begin_timestamp for queue in queues if queue.begin_timestamp is not None)


def _number_text(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def _moment_text(timestamp: int | None) -> str:
    """To the second: nobody looks for a millisecond in a picture."""
    if timestamp is None:
        return _UNKNOWN
    return shown_time(timestamp).partition(".")[0].replace("T", " ")


def _age_text(timestamp: int | None, now_ms: int) -> str:
    return _UNKNOWN if timestamp is None else _span_text(max(0, now_ms - timestamp))


def _span_text(span_ms: int) -> str:
    if span_ms < 2 * _HOUR_MS:
        return f"{span_ms / 60_000:,.0f} min"
    if span_ms < 48 * _HOUR_MS:
        return f"{span_ms / _HOUR_MS:,.1f} h"
    return f"{span_ms / (24 * _HOUR_MS):,.1f} days"


def _size_text(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def _bar(value: float, largest: float) -> str:
    """How large a value is beside the largest."""
    width = 0.0 if largest <= 0 else max(_LEAST, _WIDTH * value / largest)
    return _svg(f"{value:,.0f}", _rect(0, width, "tier"))


def _offsets_bar(queue: QueuePicture) -> str:
    """From the first offset of the queue to its end: what the tier has, the index, and the rest."""
    first = queue.min_offset or 0
    end = max(queue.max_offset, queue.local_offset or 0)
    span = max(1, end - first)

    def at(offset: int) -> float:
        return _WIDTH * (min(max(offset, first), end) - first) / span

    shapes = [_rect(at(queue.max_offset), at(end) - at(queue.max_offset), "local")]
    shapes.append(_rect(0, at(queue.max_offset), "tier"))
    if queue.indexed_offset is not None:
        indexed = at(min(queue.indexed_offset, queue.max_offset))
        shapes.append(_rect(0, indexed, "index", y=_HEIGHT * 0.65, height=_HEIGHT * 0.35))
    return _svg(f"{first:,} to {end:,}", *shapes)


def _timeline(segments: Sequence[DrawnSegment], first: int, last: int) -> str:
    """The segments of one queue between two times; neighbours are drawn apart."""
    span = max(1, last - first)
    shapes = []
    known = [segment for segment in segments if segment.begin_timestamp is not None]
    step = -(-len(known) // _BARS_MAX) or 1
    for at in range(0, len(known), step):
        group = known[at : at + step]
        begin, end = group[0].begin_timestamp or first, group[-1].end_timestamp or last
        left = _WIDTH * (begin - first) / span
        width = max(_LEAST, _WIDTH * (end - begin) / span - 0.5)
        shapes.append(_rect(min(left, _WIDTH - _LEAST), width, "tier"))
    return _svg(f"{len(segments)} segments", *shapes)


def _rect(x: float, width: float, colour: str, *, y: float = 0.0, height: float = _HEIGHT) -> str:
    if width <= 0:
        return ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1.5" '
        f'fill="var(--{colour})"/>'
    )


def _svg(title: str, *shapes: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img">'
        f'<title>{title}</title><rect width="{_WIDTH}" height="{_HEIGHT}" rx="1.5" '
        f'fill="var(--shade)"/>{"".join(shapes)}</svg>'
    )


def _load_of_tier(tier: TierOptions, read_bytes: float) -> tuple[StoreConfig, Load]:
    from tieredstore.access.survey import load_of
    from tieredstore.cli.tier import opened_tier
    from tieredstore.driver.runtime import SystemClock

    if tier.config is None and tier.provider is None:
        raise CommandError("name a tier, or give rates with --messages-per-second", ExitCode.USAGE)
    with opened_tier(tier) as opened:
        load = load_of(opened.reader, SystemClock().now_ms())
        if not load.messages_per_second:
            note("the catalogue does not tell how fast messages came: only bytes are counted")
        return opened.config, replace(load, read_bytes_per_second=read_bytes)


def how_long(seconds: float) -> str:
    for name, unit in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= unit:
            return f"{seconds / unit:,.1f} {name}"
    return "a second" if seconds <= 1 else f"{seconds:,.1f} seconds"


def _print_cost(load: Load, found: MonthlyCost, *, json: bool) -> None:
    if json:
        for line in found.lines:
            write_json(
                {
                    "what": line.what,
                    "operation": line.operation,
                    "amount": round(line.amount, 3),
                    "dollars": round(line.dollars, 4),
                }
            )
        covered = load.seconds_covered
        write_json(
            {"what": "total", "dollars": round(found.dollars, 4), "seconds_covered": covered}
        )
        return
    write_line(
        f"{load.queue_count} queues, {load.messages_per_second:,.1f} messages/s of "
        f"{load.message_bytes:,.0f} bytes"
    )
    if load.seconds_covered is not None and load.seconds_covered < _DAY_SECONDS:
        write_line(
            f"reckoned from {how_long(load.seconds_covered)}: all messages of this tier came "
            "within that time; --messages-per-second gives another rate"
        )
    title = "in 30 days, estimated"
    write_table(title, ("", "requests", "how many", "dollars"), map(_cost_cells, found.lines))
    write_line(f"total: {found.dollars:,.2f} dollars")


def _cost_cells(line: CostLine) -> tuple[str, str, str, str]:
    amount = f"{line.amount:,.1f} GB" if line.operation == "store" else f"{line.amount:,.0f}"
    return line.what, line.operation, amount, f"{line.dollars:,.2f}"
