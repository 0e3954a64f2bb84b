"""One self-contained HTML page about a tier: no script, nothing that is fetched from elsewhere.

What lives here: the page and its tables. What is drawn is in `report_charts`, how it looks in
`report_style`, its words in `report_words`. Every name comes from a stranger and is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from tieredstore.access.survey import QueuePicture, TierPicture
from tieredstore.cli.report_charts import bar, offsets_bar, timeline
from tieredstore.cli.report_style import STYLE
from tieredstore.cli.report_words import (
    HOUR_MS,
    age_text,
    moment_text,
    number_text,
    size_text,
    span_text,
)
from tieredstore.model.values import QueueKey

QUEUES_SHOWN_MAX: Final = 200
"""The largest; a page with more of them is read by nobody. The tables of `queues` show all."""

_NAMES_MAX: Final = 20
# Whoever opens the page cannot be made to fetch anything by a name in it.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page(picture: TierPicture) -> Iterator[str]:
    """The lines of the page."""
    title = escape(f"Tier of {picture.broker_name}")
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title><style>{STYLE}</style></head><body>"
    yield f"<h1>{title}</h1>"
    yield (
        f'<p class="soft">cluster {escape(picture.cluster_name)}, {escape(picture.place)}, '
        f"as of {moment_text(picture.taken_at)} UTC, as are all times here</p>"
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
        ("bytes", size_text(picture.total_bytes)),
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
                size_text(size),
                age_text(min(_begins(queues), default=None), picture.taken_at),
                span_text(picture.reserve_hours.get(name, 0) * HOUR_MS),
                bar(size, largest),
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
                number_text(queue.min_offset),
                number_text(queue.max_offset),
                number_text(queue.indexed_offset),
                number_text(queue.local_offset),
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
        yield '<p class="soft">There is no segment with times that can be believed.</p>'
        return
    first, last = min(begins), max(queue.end_timestamp or 0 for queue in shown)
    yield (
        f'<p class="soft">From {moment_text(first)} to {moment_text(last)}; each bar is a segment '
        "of the commit log, from its first message to its last</p>"
    )
    yield from _table(
        (("queue", "name"), ("segments", "n"), ("bytes", "n"), ("", "bar")),
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
        yield (
            '<p class="soft">Nothing of it has been uploaded yet: an index file is uploaded when '
            "it is full or a day old.</p>"
        )
        return
    latest = sorted(picture.index_files, key=lambda each: -each.base_offset)
    yield from _table(
        (("file at", "n"), ("bytes", "n"), ("begun", "when n"), ("last message", "when n")),
        (
            (
                f"{each.base_offset:,}",
                size_text(each.size),
                moment_text(each.begin_timestamp),
                moment_text(each.end_timestamp),
            )
            for each in latest[:QUEUES_SHOWN_MAX]
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
