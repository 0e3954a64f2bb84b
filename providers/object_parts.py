"""The parts that open segments are made of, as far as they count.

What lives here: `SegmentParts` and how a listing becomes them, under a boundary. Who lists, and
when, is for `broker_parts` to say.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tieredstore.driver.object_client import ListedKey, ObjectFacts, Range
from tieredstore.providers.object_calls import CHECKSUM, EPOCH
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
        "deleting",
        "doubtful_at",
        "ends",
        "gone",
        "guard",
        "in_doubt",
        "key",
        "key_in_doubt",
        "marks",
        "parts",
        "seal_begun",
        "sealed",
        "sealed_marks",
        "strays",
    )

    def __init__(self, key: str) -> None:
        self.key = key
        self.guard = threading.RLock()
        self.parts: tuple[Part, ...] = ()
        self.ends: tuple[int, ...] = ()
        self.marks: tuple[str, ...] = ()  # that a sealed object may be there
        self.strays: tuple[str, ...] = ()  # parts that do not count
        self.sealed_marks: tuple[str, ...] = ()  # that it is sealed, whatever parts there are
        self.gone = 0  # nothing of an older epoch counts
        self.seal_begun = False  # by this process, which writes no more then
        self.sealed: SealedObject | None = None
        self.absent_known = False  # that there is no sealed object
        self.doubtful_at: int | None = None  # where a put of ours may have landed
        self.delete_wanted = False
        self.deleting: str | None = None  # our note that we delete it, while that is there
        # Whether a request of ours may land at any later time: any; one for the sealed object.
        self.in_doubt = False
        self.key_in_doubt = False

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
        parts = (part.key for part in reversed(self.parts))
        return [*self.strays, *parts, *self.marks, *self.sealed_marks]

    def take(self, parts: Iterable[Part]) -> None:
        self.parts = tuple(parts)
        self.ends = tuple(part.end for part in self.parts)

    def doom(self) -> None:
        """Nothing of it counts, and what is there goes when it is deleted or sealed again."""
        self.strays += tuple(part.key for part in self.parts)
        self.take(())
        self.marks = ()

    def forget(self) -> None:
        """There is nothing any more."""
        self.take(())
        self.marks = self.strays = self.sealed_marks = ()
        self.sealed = None
        self.seal_begun = False
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
    deleting: Mapping[str, int]  # deletes that may be under way: key to the newest epoch that did


def sealed_of(facts: ObjectFacts, boundary: Boundary, gone: int) -> SealedObject | None:
    """The sealed object, if it counts: what an older writer made late does not."""
    epoch = _number(facts.metadata.get(EPOCH), 10)
    if epoch is not None and epoch < gone:
        return None
    if not boundary.counts_sealed(facts.key, epoch):
        return None
    checksum = _number(facts.metadata.get(CHECKSUM), 16)
    return SealedObject(size=facts.size, epoch=epoch, checksum=checksum)


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
    deleting: dict[str, int] = {}
    for key, names in found.items():
        for name, _ in names:
            if name.mark is Mark.GONE:
                gone[key] = max(gone.get(key, 0), name.epoch)
            elif name.mark is Mark.DELETING:
                deleting[key] = max(deleting.get(key, 0), name.epoch)
        segments[key] = _segment(key, names, boundary, gone.get(key, 0))
    return Listing(segments=segments, gone=gone, deleting=deleting)


def _segment(
    key: str, names: list[tuple[PartName, ListedKey]], boundary: Boundary, gone: int
) -> SegmentParts:
    segment = SegmentParts(key)
    segment.gone = gone
    # One of an epoch before the boundary came late: what was open then is open still. So did one
    # of what was deleted.
    first = max(boundary.epoch, gone)
    sealed = [n for n, _ in names if n.mark is Mark.SEALED and n.epoch >= first]
    if sealed:
        gone = max(gone, max(name.epoch for name in sealed) + 1)
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
    segment.sealed_marks = tuple(
        listed.key for name, listed in names if name.mark is Mark.SEALED and name in sealed
    )
    segment.strays = tuple(
        listed.key for name, listed in names if name.mark is Mark.PART and listed.key not in counted
    )
    return segment


def _number(text: str | None, radix: int) -> int | None:
    try:
        return None if text is None else int(text, radix)
    except ValueError:
        return None
