"""The page about a tier: what is wrong in words, then where, then the whole tier in pictures.

It is one file that loads nothing else. The page's policy allows its one script by hash, so that no
other ever runs. No name is trusted: all are escaped.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Final

from tieredstore.access.cost import CostLine
from tieredstore.access.survey import DrawnSegment, QueuePicture, TierPicture, Trouble
from tieredstore.cli.output import shown_time
from tieredstore.cli.progress import span_text
from tieredstore.model.amounts import counted, shown_size
from tieredstore.model.values import QueueKey

QUEUES_SHOWN_MAX: Final = 200
"""So many have cards and rows in the table. Every queue has a small picture; `queues` shows all."""

_NAMES_MAX: Final = 20
_FILES_MAX: Final = 10
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_DAYS: Final = 14
_UNKNOWN: Final = "?"
# Sizes of a bar, in the units of its picture:
_WIDTH: Final = 400
_HEIGHT: Final = 18
_LEAST: Final = 1.5  # so that the smallest bar can be seen
_BARS_MAX: Final = 200  # for one queue: more could not be told apart
_BINS: Final = 16  # in the small picture of a queue
_STEPS: Final = 9  # the height of that picture
_SPANS: Final = 48  # in the picture of the log

# What is wrong with some queues, and the consequences.
_WORDS: Final = {
    Trouble.DAMAGED: (
        "cannot be read as a whole",
        "What is sound is still served. <code>tieredstore audit</code> names the segments; "
        "restore them from a copy.",
    ),
    Trouble.STOPPED: (
        "take no more uploads",
        "Nothing in the tier is overwritten and the other queues go on, but the broker keeps what "
        "it may not upload. Fix the cause, then <code>tieredstore resume TOPIC QUEUE</code>"
        ".",
    ),
    Trouble.GAP: (
        "lack messages",
        "The broker lost them before they were uploaded. The queue continues after the gap, and "
        "readers step over it; nothing brings them back.",
    ),
    Trouble.OVERDUE: (
        "keep what should have expired",
        "The broker expires segments by itself while it runs; <code>tieredstore expire --dry-run"
        "</code> says what would go.",
    ),
    Trouble.BEHIND: (
        "are behind the broker",
        "More than a full batch waits: the upload is too slow, or it fails. The broker's health "
        "says which.",
    ),
}

_SHORT: Final = {Trouble.GAP: "with a gap"}
_KEY: Final = (
    '<p class="key"><span><i style="background:var(--tier)"></i>in the tier</span>'
    '<span><i style="background:var(--index)"></i>of these found by key</span>'
    '<span><i style="background:var(--local)"></i>only in the local store</span>'
    f'<span class="soft">{_UNKNOWN}: not known; --local names the local store</span></p>'
)
_OF_ONE: Final = {"are": "is", "cannot": "cannot"}


def page(picture: TierPicture) -> str:
    """The whole page."""
    here = files("tieredstore.cli")
    script = here.joinpath("report.js").read_text("utf-8")
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(here.joinpath("report.html").read_text("utf-8")).substitute(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        title=escape(f"Tier of {picture.broker_name}"),
        script=script,
        body="\n".join(_Drawing(picture).body()),
    )


class _Drawing:
    """Draws one picture of a tier; it looks for troubles only once."""

    def __init__(self, picture: TierPicture) -> None:
        self._picture = picture
        found = {queue.key: picture.troubles(queue) for queue in picture.queues}
        self._troubles = {key: troubles for key, troubles in found.items() if troubles}
        self._begin = min(_begins(picture.queues), default=None)
        ends = [queue.end_timestamp for queue in picture.queues]
        self._end = max((end for end in ends if end is not None), default=None)

    def body(self) -> Iterator[str]:
        picture = self._picture
        yield f"<h1>{escape(f'Tier of {picture.broker_name}')}</h1>"
        yield (
            f'<p class="soft">cluster {escape(picture.cluster_name)}, {escape(picture.place)}, '
            f"as of {_moment_text(picture.taken_at)} UTC, as are all times here</p>"
        )
        yield from self._verdict()
        yield from self._facts()
        yield from self._wrong()
        yield from self._topics()
        yield from self._cost()
        yield from self._index()
        yield from self._numbers()

    def _verdict(self) -> Iterator[str]:
        wrong, total = len(self._troubles), len(self._picture.queues)
        if not wrong:
            what = "Nothing is wrong with " + (counted(total, "queue") if total else "this tier")
            yield f'<p class="verdict fine">{what}.</p>'
            return
        counts = Counter(next(iter(troubles)) for troubles in self._troubles.values())
        said = ", ".join(
            f"{counts[trouble]:,} {_SHORT.get(trouble, trouble.value)}"
            for trouble in Trouble
            if counts[trouble]
        )
        need = "needs" if wrong == 1 else "need"
        yield (
            f'<p class="verdict wrong">{wrong:,} of {counted(total, "queue")} {need} a look: '
            f"{said}.</p>"
        )

    def _facts(self) -> Iterator[str]:
        picture = self._picture
        messages = sum(
            queue.max_offset - queue.min_offset
            for queue in picture.queues
            if queue.min_offset is not None
        )
        waiting = list(picture.only_local.values()) + [
            queue.waiting_count for queue in picture.queues if queue.local_offset is not None
        ]
        yield '<section class="facts">'
        for what, value in (
            ("topics", f"{len(picture.topics):,}"),
            ("queues", f"{len(picture.queues):,}"),
            ("messages", f"{messages:,}"),
            ("in the tier", shown_size(picture.total_bytes)),
            ("not uploaded yet", f"{sum(waiting):,}" if waiting else _UNKNOWN),
            ("a month, about", f"${picture.cost.dollars:,.2f}"),
        ):
            yield f"<div><b>{value}</b>{what}</div>"
        yield "</section>"

    # What is wrong

    def _wrong(self) -> Iterator[str]:
        if self._troubles:
            yield "<h2>What is wrong</h2>"
            yield _KEY
        room = QUEUES_SHOWN_MAX
        for trouble in Trouble:
            queues = [
                queue
                for queue in self._picture.queues
                if next(iter(self._troubles.get(queue.key, ())), None) is trouble
            ]
            if not queues:
                continue
            what, then = _WORDS[trouble]
            verb = what if len(queues) > 1 else _singular(what)
            yield f'<section class="kind"><div><h3>{counted(len(queues), "queue")} {verb}</h3>'
            yield f"<p>{then}</p></div>"
            queues.sort(key=lambda queue: (-queue.waiting_count, -queue.log_bytes))
            shown, room = queues[:room], room - len(queues[:room])
            yield '<div class="cards">'
            for queue in shown:
                yield from self._card(queue)
            yield "</div></section>"
            if len(shown) < len(queues):
                names = ", ".join(_path(queue.key) for queue in queues[len(shown) :][:_NAMES_MAX])
                left = len(queues) - len(shown)
                yield f'<p class="soft">and {left:,} more: {escape(names)}, …</p>'
        yield from self._only_local()

    def _card(self, queue: QueuePicture) -> Iterator[str]:
        yield f'<div class="card" data-name="{_search_name(queue.key)}">'
        yield f'<b class="bad">{escape(_path(queue.key))}</b>'
        for text in self._troubles[queue.key].values():
            yield f"<p>{escape(text)}</p>"
        yield (
            f'<p class="soft">{_number_text(queue.min_offset)} to {queue.max_offset:,}, '
            f"{counted(len(queue.segments), 'segment')}, {shown_size(queue.log_bytes)}, last "
            f"message {_moment_text(queue.end_timestamp)}</p>"
        )
        yield _offsets_bar(queue)
        if self._begin is not None and self._end is not None and queue.segments:
            yield _timeline(queue.segments, self._begin, self._end)
        yield "</div>"

    def _only_local(self) -> Iterator[str]:
        only_local = self._picture.only_local
        if only_local:
            names = ", ".join(_path(key) for key in list(only_local)[:_NAMES_MAX])
            more = ", …" if len(only_local) > _NAMES_MAX else ""
            yield (
                f"<p>Queues of the local store of which the tier has nothing yet "
                f"({len(only_local):,}): {escape(names)}{more}</p>"
            )

    # The whole tier

    def _topics(self) -> Iterator[str]:
        if not self._picture.queues:
            yield '<h2>Topics</h2><p class="soft">Nothing has been uploaded yet.</p>'
            return
        yield (
            '<p class="search"><input id="search" type="search" placeholder="Search: a topic, or '
            'a queue such as orders/3" aria-label="Search topics and queues"> '
            '<span id="found" class="soft" role="status"></span></p>'
        )
        yield "<h2>Topics by trouble and bytes</h2>"
        yield from self._time_axis()
        rows = [
            (sum(queue.key in self._troubles for queue in queues), _bytes_of(queues), name, queues)
            for name, queues in self._picture.topics.items()
        ]
        largest = max(size for _, size, _, _ in rows)
        for wrong, size, name, queues in sorted(rows, key=lambda row: (-row[0], -row[1], row[2])):
            yield from self._topic(name, queues, size, largest, wrong)

    def _time_axis(self) -> Iterator[str]:
        if self._begin is None or self._end is None:
            yield '<p class="soft">There is no segment with times that can be believed.</p>'
            return
        yield (
            '<p class="soft">Below each topic its queues: how many bytes came when, from '
            f"{_moment_text(self._begin)} to {_moment_text(self._end)}, each beside the largest of "
            "its topic. Those with a trouble are large and red.</p>"
        )

    def _topic(
        self, name: str, queues: Sequence[QueuePicture], size: int, largest: int, wrong: int
    ) -> Iterator[str]:
        hours = self._picture.reserve_hours.get(name, 0)
        kept = span_text(hours * 3600) if self._picture.is_expiring and hours else "for ever"
        oldest = _age_text(min(_begins(queues), default=None), self._picture.taken_at)
        bold = f'<b class="bad">{escape(name)}</b>' if wrong else f"<b>{escape(name)}</b>"
        yield (
            f'<div class="topic" data-name="{escape(name.lower())}"><div class="line">'
            f"<span>{bold}</span>{_bar(size, largest)}"
            f'<span class="n">{shown_size(size)}</span>'
            f'<span class="n">{counted(len(queues), "queue")}</span>'
            f'<span class="n soft">oldest {oldest}, kept {kept}</span></div>'
            '<div class="strip">'
        )
        bins = [self._bins(queue) for queue in queues]
        peak = max((max(each) for each in bins), default=0.0)
        ordered = sorted(
            zip(queues, bins, strict=True), key=lambda pair: pair[0].key not in self._troubles
        )
        for queue, heights in ordered:
            yield self._small(queue, heights, peak)
        yield "</div></div>"

    def _small(self, queue: QueuePicture, heights: Sequence[float], peak: float) -> str:
        odd = " odd" if queue.key in self._troubles else ""
        said = f"{shown_size(queue.log_bytes)}, to {queue.max_offset:,}"
        return (
            f'<span class="q{odd}" title="{said}">'
            f'<svg viewBox="0 0 {_BINS} {_STEPS}" preserveAspectRatio="none">'
            f'<path d="{_outline(heights, peak)}"/></svg>{queue.key.queue_id}</span>'
        )

    def _bins(self, queue: QueuePicture) -> list[float]:
        """Bytes of the queue, by the time at which their messages came."""
        if self._begin is None or self._end is None:
            return [0.0] * _BINS
        width = max(1, self._end - self._begin + 1) / _BINS
        return spread(queue.segments, self._begin, width, _BINS)

    def _numbers(self) -> Iterator[str]:
        queues = self._picture.queues
        yield "<h2>Queues in numbers</h2>"
        if not queues:
            yield '<p class="soft">The tier has no queue yet.</p>'
            return
        yield _KEY
        ranked = sorted(
            queues, key=lambda queue: (queue.key not in self._troubles, -queue.log_bytes)
        )[:QUEUES_SHOWN_MAX]
        yield from _table(
            (("queue", "name"), ("first", "n"), ("tier", "n"), ("indexed", "n"), ("local", "n"),
             ("bytes", "n"), ("", "bar")),
            (
                (
                    self._name(queue),
                    _number_text(queue.min_offset),
                    _number_text(queue.max_offset),
                    _number_text(queue.indexed_offset),
                    _number_text(queue.local_offset),
                    shown_size(queue.log_bytes),
                    _offsets_bar(queue),
                )
                for queue in ranked
            ),
            names=[_search_name(queue.key) for queue in ranked],
        )  # fmt: skip
        if len(queues) > len(ranked):
            yield f'<p class="soft">The largest {len(ranked)} of {len(queues):,} queues.</p>'

    def _name(self, queue: QueuePicture) -> str:
        name = escape(_path(queue.key))
        return f'<b class="bad">{name}</b>' if queue.key in self._troubles else name

    def _index(self) -> Iterator[str]:
        yield "<h2>Key index</h2>"
        found = sorted(self._picture.index_files, key=lambda file: -file.base_offset)
        if not found:
            yield (
                '<p class="soft">Nothing of it has been uploaded yet: an index file is uploaded '
                "when it is full or a day old.</p>"
            )
            return
        size = sum(file.size for file in found)
        yield f"<p>{counted(len(found), 'file')}, {shown_size(size)}</p>"
        yield from _table(
            (("begun", "name"), ("last message", "n"), ("bytes", "n"), ("file at", "n")),
            (
                (
                    _moment_text(file.begin_timestamp),
                    _moment_text(file.end_timestamp),
                    shown_size(file.size),
                    f"{file.base_offset:,}",
                )
                for file in found[:_FILES_MAX]
            ),
        )
        if len(found) > _FILES_MAX:
            yield f'<p class="soft">The newest {_FILES_MAX} of {len(found):,} files.</p>'

    # Requests and cost

    def _cost(self) -> Iterator[str]:
        picture, load = self._picture, self._picture.load
        yield '<h2>Requests and cost</h2><div class="charts">'
        yield from self._days()
        yield from self._log()
        yield "</div>"
        yield (
            f'<p class="soft">Thirty days in an object store at list prices, estimated from '
            f"{load.messages_per_second:,.1f} messages/s in {counted(load.queue_count, 'queue')}: "
            "the average over the time that the tier goes back</p>"
        )
        yield from _table(
            (("", "name"), ("requests", "n"), ("how many", "n"), ("dollars", "n")),
            ([escape(cell) for cell in cost_cells(line)] for line in picture.cost.lines),
        )
        yield f"<p><b>{picture.cost.dollars:,.2f} dollars a month</b></p>"

    def _days(self) -> Iterator[str]:
        """Bytes that are still in the tier, by the day on which their messages came."""
        now = self._picture.taken_at
        first = now - now % _DAY_MS - (_DAYS - 1) * _DAY_MS
        heights = [0.0] * _DAYS
        for queue in self._picture.queues:
            for day, size in enumerate(spread(queue.segments, first, _DAY_MS, _DAYS)):
                heights[day] += size
        yield from _chart(
            "Messages that came, by day",
            heights,
            shown_size,
            _moment_text(first).partition(" ")[0],
            "today",
        )

    def _log(self) -> Iterator[str]:
        appended = self._picture.appended
        if not appended:
            yield (
                "<figure><figcaption>Requests of late</figcaption>"
                '<p class="soft">A folder takes no requests. In a bucket, the broker\'s log tells '
                "how many there were.</p></figure>"
            )
            return
        begin, end = appended[0].begin_ms, appended[-1].end_ms
        width = max(1, end - begin + 1) / _SPANS
        heights = [0.0] * _SPANS
        for span in appended:
            _spread_one(heights, span.entry_count, span.begin_ms, span.end_ms, begin, width)
        count = sum(span.entry_count for span in appended)
        size = sum(span.size for span in appended)
        yield from _chart(
            f"Rounds and other entries of the log: {count:,} with {shown_size(size)}; a PUT and a "
            f"HEAD each, {count * self._picture.entry_dollars:,.4f} dollars",
            heights,
            lambda each: f"{each:,.0f}",
            _moment_text(begin),
            _moment_text(end),
        )


def spread(segments: Iterable[DrawnSegment], begin: float, width: float, count: int) -> list[float]:
    """Bytes by time, as if those of a segment had come evenly. Bytes before `begin` or after the
    last bin are in no bin."""
    bins = [0.0] * count
    for segment in segments:
        if segment.begin_timestamp is not None and segment.end_timestamp is not None:
            _spread_one(
                bins, segment.size, segment.begin_timestamp, segment.end_timestamp, begin, width
            )
    return bins


def _spread_one(
    bins: list[float], amount: float, first: int, last: int, begin: float, width: float
) -> None:
    last = max(first, last) + 1
    share = amount / (last - first)
    low = max(0, int((first - begin) // width))
    high = min(len(bins) - 1, int((last - begin) // width))
    for number in range(low, high + 1):
        left = begin + number * width
        bins[number] += share * max(0.0, min(last, left + width) - max(first, left))


def _outline(heights: Sequence[float], peak: float) -> str:
    """A step for each height, as the path of a picture that is `_STEPS` high."""
    words, level = [f"M0 {_STEPS}"], _STEPS
    for number, height in enumerate(heights):
        wanted = _STEPS - (max(1, round(_STEPS * height / peak)) if height and peak else 0)
        if wanted != level:
            words.append(f"H{number}V{wanted}")
            level = wanted
    words.append(f"H{len(heights)}V{_STEPS}z")
    return "".join(words)


def _chart(
    caption: str, heights: Sequence[float], text: Callable[[float], str], first: str, last: str
) -> Iterator[str]:
    peak = max(heights, default=0.0)
    bars = []
    for number, height in enumerate(heights):
        tall = 0.0 if peak <= 0 else 100 * height / peak
        if tall:
            tall = max(_LEAST, tall)
            bars.append(
                f'<rect x="{10 * number + 1}" y="{100 - tall:.1f}" width="8" height="{tall:.1f}" '
                f'fill="var(--tier)"><title>{text(height)}</title></rect>'
            )
    yield (
        f"<figure><figcaption>{escape(caption)}; at most {text(peak)} a bar</figcaption>"
        f'<svg class="chart" viewBox="0 0 {10 * len(heights)} 100" preserveAspectRatio="none" '
        f'role="img"><rect y="99" width="{10 * len(heights)}" height="1" fill="var(--line)"/>'
        f"{''.join(bars)}</svg>"
        f'<div class="ends"><span>{first}</span><span>{last}</span></div></figure>'
    )


def _table(
    columns: Sequence[tuple[str, str]],
    rows: Iterable[Sequence[str]],
    *,
    names: Sequence[str] = (),
) -> Iterator[str]:
    """A table of cells that are already HTML; a search finds rows by `names`."""
    kinds = [kind for _, kind in columns]
    beside = sum(kind not in ("name", "bar") for kind in kinds)  # on a phone, side by side
    yield f'<table style="--n:{max(1, beside)}"><thead><tr>'
    for name, kind in columns:
        yield f'<th class="{kind}">{name}</th>'
    yield "</tr></thead><tbody>"
    for number, row in enumerate(rows):
        found_by = f' data-name="{names[number]}"' if names else ""
        cells = "".join(
            f'<td class="{kind}">{cell}</td>' for cell, kind in zip(row, kinds, strict=True)
        )
        yield f"<tr{found_by}>{cells}</tr>"
    yield "</tbody></table>"


def cost_cells(line: CostLine) -> tuple[str, str, str, str]:
    amount = f"{line.amount:,.1f} GB" if line.operation == "store" else f"{line.amount:,.0f}"
    return line.what, line.operation, amount, f"{line.dollars:,.2f}"


def _path(key: QueueKey) -> str:
    return f"{key.topic}/{key.queue_id}"


def _search_name(key: QueueKey) -> str:
    return escape(_path(key).lower())


def _singular(what: str) -> str:
    """The words for one queue: `take` becomes `takes`."""
    verb, _, rest = what.partition(" ")
    return f"{_OF_ONE.get(verb, verb + 's')} {rest}"


def _bytes_of(queues: Iterable[QueuePicture]) -> int:
    return sum(queue.log_bytes + queue.queue_bytes for queue in queues)


def _begins(queues: Iterable[QueuePicture]) -> Iterator[int]:
    return (queue.begin_timestamp for queue in queues if queue.begin_timestamp is not None)


def _number_text(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def _moment_text(timestamp: int | None) -> str:
    """The time to the second: milliseconds do not matter in a picture."""
    if timestamp is None:
        return _UNKNOWN
    return shown_time(timestamp).partition(".")[0].replace("T", " ")


def _age_text(timestamp: int | None, now_ms: int) -> str:
    return _UNKNOWN if timestamp is None else span_text(max(0, now_ms - timestamp) / 1000)


def _bar(value: float, largest: float) -> str:
    """A bar for a value, relative to the largest."""
    width = 0.0 if largest <= 0 else max(_LEAST, _WIDTH * value / largest)
    return _svg(shown_size(value), _rect(0, width, "tier"))


def _offsets_bar(queue: QueuePicture) -> str:
    """A bar from the first offset of the queue to its end: what the tier has, what the index has,
    and the rest."""
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
    """The segments of one queue between two times, drawn with gaps between neighbours."""
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
    return _svg(f"{counted(len(segments), 'segment')}, by time", *shapes)


def _rect(x: float, width: float, colour: str, *, y: float = 0.0, height: float = _HEIGHT) -> str:
    if width <= 0:
        return ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1.5" '
        f'fill="var(--{colour})"/>'
    )


def _svg(title: str, *shapes: str) -> str:
    return (
        f'<svg class="bar" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img">'
        f'<title>{title}</title><rect width="{_WIDTH}" height="{_HEIGHT}" rx="1.5" '
        f'fill="var(--shade)"/>{"".join(shapes)}</svg>'
    )
