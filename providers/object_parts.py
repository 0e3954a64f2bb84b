"""The parts that open segments are made of, as far as they count.

What lives here: `SegmentParts` and how a listing becomes them, under a boundary. Who lists, and
when, is for `broker_parts` to say.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tieredstore.driver.object_client import ListedKey, Range
from tieredstore.providers.object_layout import Mark, PartName, part_of
from tieredstore.providers.writer_epoch import Boundary


@dataclass(frozen=True, slots=True)
class Part:
    """One commit's bytes; `checksum` is None until somebody asks for it."""

    key: str
    position: int
    size: int
    epoch: int
    checksum: int | None = None

    @property
    def end(self) -> int:
        return self.position + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedObject:
    size: int
    epoch: int | None
    checksum: int | None


class SegmentParts:
    """One segment as a process knows it: parts without a gap from 0, or one sealed object.

    `parts` is replaced, never changed: who reads holds a tuple of its own. The rest is changed
    under `guard`, which whoever writes, seals or deletes holds for as long as that takes.
    """

    __slots__ = (
        "absent_known",
        "delete_wanted",
        "doubtful_at",
        "ends",
        "guard",
        "key",
        "marks",
        "parts",
        "sealed",
        "strays",
    )

    def __init__(self, key: str) -> None:
        self.key = key
        self.guard = threading.RLock()
        self.parts: tuple[Part, ...] = ()
        self.ends: tuple[int, ...] = ()
        self.marks: tuple[str, ...] = ()  # that a sealed object may be there
        self.strays: tuple[str, ...] = ()  # parts that do not count
        self.sealed: SealedObject | None = None
        self.absent_known = False  # that there is no sealed object
        self.doubtful_at: int | None = None  # where a put of ours may have landed
        self.delete_wanted = False

    @property
    def end(self) -> int:
        """Of the parts."""
        ends = self.ends
        return ends[-1] if ends else 0

    @property
    def may_be_sealed(self) -> bool:
        """Whether only the store knows if there is a sealed object."""
        if self.sealed is not None or self.absent_known:
            return False
        return not self.parts or bool(self.marks)

    def keys(self) -> list[str]:
        """All that lies below the parts of this segment, the first part and marks last."""
        return [*self.strays, *(part.key for part in reversed(self.parts)), *self.marks]

    def take(self, parts: Iterable[Part]) -> None:
        self.parts = tuple(parts)
        self.ends = tuple(part.end for part in self.parts)

    def forget(self) -> None:
        """There is nothing any more."""
        self.take(())
        self.marks = self.strays = ()
        self.sealed = None
        self.doubtful_at = None
        self.absent_known = True

    def ranges(self, position: int, length: int) -> list[tuple[Part, Range]]:
        """Which bytes of which parts."""
        parts, found = self.parts, []
        number = bisect_right(self.ends, position)
        end = position + length
        while position < end:
            part = parts[number]
            count = min(end, part.end) - position
            found.append((part, Range(part.key, position - part.position, count)))
            position += count
            number += 1
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What lies below the parts of many segments."""

    segments: Mapping[str, SegmentParts]
    gone: Mapping[str, int]  # deletions that the next boundary takes over: key to epoch


def segments_of(listed: Iterable[ListedKey], boundary: Boundary) -> Listing:
    """The segments of a listing, each with the parts that count.

    At one position the highest epoch counts: what an older writer put there came too late.
    """
    found: dict[str, list[tuple[PartName, ListedKey]]] = {}
    for each in listed:
        name = part_of(each.key)
        if name is not None:
            found.setdefault(name.segment_key, []).append((name, each))
    segments: dict[str, SegmentParts] = {}
    gone: dict[str, int] = {}
    for key, names in found.items():
        epochs = [name.epoch for name, _ in names if name.mark is Mark.GONE]
        if epochs:
            gone[key] = max(epochs)
        segments[key] = _segment(key, names, boundary, gone.get(key, 0))
    return Listing(segments=segments, gone=gone)


def _segment(
    key: str, names: list[tuple[PartName, ListedKey]], boundary: Boundary, gone: int
) -> SegmentParts:
    segment = SegmentParts(key)
    best: dict[int, Part] = {}
    for name, listed in names:
        end = name.position + listed.size
        if name.mark is not Mark.PART or name.epoch < gone or not listed.size:
            continue
        known = best.get(name.position)
        newer = known is None or known.epoch < name.epoch
        if newer and boundary.counts_part(key, end, name.epoch):
            best[name.position] = Part(listed.key, name.position, listed.size, name.epoch)
    chain: list[Part] = []
    end = 0
    while (part := best.get(end)) is not None:
        chain.append(part)
        end = part.end
    segment.take(chain)
    counted = {part.key for part in chain}
    marks = [listed.key for name, listed in names if name.mark is Mark.SEALING]
    segment.marks = tuple(marks)
    segment.strays = tuple(
        listed.key for name, listed in names if name.mark is Mark.PART and listed.key not in counted
    )
    return segment
