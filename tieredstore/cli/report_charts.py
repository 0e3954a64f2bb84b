"""The small pictures of the report, as SVG within the page.

What lives here: one function a picture; numbers in, text out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tieredstore.access.survey import DrawnSegment, QueuePicture

_WIDTH: Final = 400
_HEIGHT: Final = 18
_BARS_MAX: Final = 200  # of one queue: more would not be told apart
_LEAST: Final = 1.5  # a bar that is there can be seen


def bar(value: float, largest: float) -> str:
    """How large a value is beside the largest."""
    width = 0.0 if largest <= 0 else max(_LEAST, _WIDTH * value / largest)
    return _svg(f"{value:,.0f}", _rect(0, width, "tier"))


def offsets_bar(queue: QueuePicture) -> str:
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


def timeline(segments: Sequence[DrawnSegment], first: int, last: int) -> str:
    """The segments of one queue between two times; neighbours are drawn apart."""
    span = max(1, last - first)
    shapes = []
    known = [each for each in segments if each.begin_timestamp is not None]
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
