"""One self-contained HTML page about a tier: no script, nothing that is fetched from elsewhere.

What lives here: the page and its tables. What is drawn is in `report_charts`. Every name comes
from a stranger and is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from tieredstore.access.tier_picture import QueuePicture, TierPicture
from tieredstore.cli.report_charts import bar, offsets_bar, timeline
from tieredstore.cli.times import shown_time

QUEUES_SHOWN_MAX: Final = 200
"""The largest; a page with more of them is read by nobody. The tables of `queues` show all."""

_STYLE: Final = """
:root { --ink: #1d2733; --soft: #5b6b7b; --line: #d8dfe6; --paper: #fff;
  --tier: #2f6fb2; --local: #c9a227; --index: #3f8f5f; --bad: #b3392f; --shade: #eef2f6; }
* { box-sizing: border-box; }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 0 auto; padding: 1rem; max-width: 64rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); } .bad { color: var(--bad); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .6rem;
  margin: 1rem 0; }
.facts div { background: var(--shade); border-radius: .4rem; padding: .5rem .7rem; }
.facts b { display: block; font-size: 1.25rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: middle; }
th { font-weight: 600; color: var(--soft); white-space: nowrap; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.name { overflow-wrap: anywhere; min-width: 8rem; }
svg { display: block; width: 100%; height: auto; } svg.cell { min-width: 9rem; }
.key span { display: inline-block; margin-right: 1rem; }
.key i { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem;
  margin-right: .3rem; vertical-align: -.05rem; }
@media print { body { max-width: none; padding: 0; font-size: 11px; }
  .wide { overflow: visible; } tr, .facts div { break-inside: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
@media (max-width: 40rem) { .rare { display: none; } }
"""
# Whoever opens the page cannot be made to fetch anything by a name in it.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


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
        f"as of {shown_time(picture.taken_at)}</p>"
    )
    yield from _facts(picture)
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
    problems = sum(queue.problem is not None for queue in picture.queues)
    facts = (
        ("topics", f"{len(picture.topics):,}"),
        ("queues", f"{len(picture.queues):,}"),
        ("messages", f"{messages:,}"),
        ("bytes", size_text(picture.total_bytes)),
        ("index files", f"{len(picture.index_files):,}"),
        ("queues with a problem", f"{problems:,}"),
    )
    yield '<section class="facts">'
    for what, value in facts:
        mark = ' class="bad"' if what.endswith("problem") and problems else ""
        yield f"<div><b{mark}>{value}</b>{what}</div>"
    yield "</section>"


def _topics(picture: TierPicture) -> Iterator[str]:
    yield "<h2>Topics by bytes and age</h2>"
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
            ("", ""),
            ("oldest", ""),
            ("kept", "n"),
        ),
        (
            (
                escape(name),
                f"{len(queues):,}",
                size_text(size),
                bar(size, largest),
                _age(min(_begins(queues), default=None), picture.taken_at),
                f"{picture.reserve_hours.get(name, 0):,} h",
            )
            for name, queues, size in rows[:QUEUES_SHOWN_MAX]
        ),
    )
    yield from _more(len(rows), "topics")


def _offsets(picture: TierPicture, shown: Sequence[QueuePicture]) -> Iterator[str]:
    yield "<h2>Where each queue stands</h2>"
    yield (
        '<p class="key"><span><i style="background:var(--tier)"></i>in the tier</span>'
        '<span><i style="background:var(--index)"></i>of these found by key</span>'
        '<span><i style="background:var(--local)"></i>only in the local store</span></p>'
    )
    yield from _table(
        (
            ("queue", "name"),
            ("first", "n"),
            ("tier", "n"),
            ("indexed", "n"),
            ("local", "n"),
            ("", ""),
        ),
        (
            (
                _name(queue),
                _number(queue.min_offset),
                _number(queue.max_offset),
                _number(queue.indexed_offset),
                _number(queue.local_offset),
                offsets_bar(queue),
            )
            for queue in shown
        ),
    )
    yield from _more(len(picture.queues), "queues")


def _segments(shown: Sequence[QueuePicture]) -> Iterator[str]:
    yield "<h2>Segments over time</h2>"
    begins = list(_begins(shown))
    if not begins:
        yield '<p class="soft">No segment has times that can be believed.</p>'
        return
    first, last = min(begins), max(queue.end_timestamp or 0 for queue in shown)
    yield (
        f'<p class="soft">{shown_time(first)} to {shown_time(last)}; each bar is a segment of the '
        "commit log</p>"
    )
    yield from _table(
        (("queue", "name"), ("segments", "n"), ("bytes", "n"), ("", "")),
        (
            (
                _name(queue),
                f"{len(queue.segments):,}",
                size_text(queue.log_bytes),
                timeline(queue.segments, first, last),
            )
            for queue in shown
        ),
    )


def _index(picture: TierPicture) -> Iterator[str]:
    yield "<h2>Key index</h2>"
    if not picture.index_files:
        yield '<p class="soft">Nothing of it has been uploaded yet.</p>'
        return
    latest = sorted(picture.index_files, key=lambda each: -each.base_offset)
    yield from _table(
        (("file", "n"), ("bytes", "n"), ("first message", ""), ("last message", "")),
        (
            (
                f"{each.base_offset:,}",
                size_text(each.size),
                _time(each.begin_timestamp),
                _time(each.end_timestamp),
            )
            for each in latest[:QUEUES_SHOWN_MAX]
        ),
    )
    yield from _more(len(latest), "index files")


def _cost(picture: TierPicture) -> Iterator[str]:
    yield "<h2>Requests and cost</h2>"
    load = picture.load
    yield (
        f'<p class="soft">Thirty days in an object store at list prices, estimated from '
        f"{load.messages_per_second:,.1f} messages/s in {load.queue_count:,} queues</p>"
    )
    yield from _table(
        (("", "name"), ("requests", ""), ("how many", "n"), ("dollars", "n")),
        (
            (
                escape(line.what),
                escape(line.operation),
                f"{line.amount:,.1f} GB" if line.operation == "store" else f"{line.amount:,.0f}",
                f"{line.dollars:,.2f}",
            )
            for line in picture.cost.lines
        ),
    )
    yield f"<p><b>{picture.cost.dollars:,.2f} dollars a month</b></p>"


def _table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    kinds = [kind for _, kind in columns]
    yield '<div class="wide"><table><thead><tr>'
    for name, kind in columns:
        yield f'<th class="{kind}">{name}</th>'
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = "".join(
            f'<td class="{kind}">{cell}</td>' for cell, kind in zip(row, kinds, strict=True)
        )
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table></div>"


def _more(count: int, what: str) -> Iterator[str]:
    if count > QUEUES_SHOWN_MAX:
        yield f'<p class="soft">The largest {QUEUES_SHOWN_MAX} of {count:,} {what}.</p>'


def _largest(queues: Sequence[QueuePicture]) -> list[QueuePicture]:
    """Those with a problem first, then by size; shown by name."""
    ranked = sorted(queues, key=lambda queue: (queue.problem is None, -queue.log_bytes))
    return sorted(ranked[:QUEUES_SHOWN_MAX], key=lambda queue: queue.key)


def _name(queue: QueuePicture) -> str:
    name = escape(f"{queue.key.topic}/{queue.key.queue_id}")
    if queue.problem is None:
        return name
    return f'{name}<br><span class="bad">{escape(queue.problem)}</span>'


def _bytes_of(queues: Iterable[QueuePicture]) -> int:
    return sum(queue.log_bytes + queue.queue_bytes for queue in queues)


def _begins(queues: Iterable[QueuePicture]) -> Iterator[int]:
    return (queue.begin_timestamp for queue in queues if queue.begin_timestamp is not None)


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _time(timestamp: int | None) -> str:
    return "?" if timestamp is None else shown_time(timestamp)


def _age(timestamp: int | None, now_ms: int) -> str:
    if timestamp is None:
        return "?"
    hours = max(0, now_ms - timestamp) / 3_600_000
    return f"{hours:,.1f} h" if hours < 48 else f"{hours / 24:,.1f} days"


def size_text(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")
