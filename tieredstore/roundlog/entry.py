"""An entry of a broker's log: what one round changed, where its bytes lie, and the bytes themselves
if they are few.

Changes are small, and readable as JSON. Extents are columns, as a round may have thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Final, Self, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from tieredstore.driver.metadata import Change
from tieredstore.driver.segment import Buffer, check_queue_path
from tieredstore.metadata import journal
from tieredstore.metadata.tables import describe
from tieredstore.model.errors import BackendRefusedError, MetadataError
from tieredstore.model.values import INT64_MAX, SegmentType
from tieredstore.roundlog.frames import Frame, FrameKind, decode, encode

SegmentKey: TypeAlias = tuple[str, SegmentType, int]
"""Queue path, type and base offset."""

UNKNOWN_TIME: Final = -1
NO_ROW: Final = -2
"""Stands for times where the bytes change nothing in the catalogue."""

Whole: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]


@dataclass(frozen=True, slots=True)
class Extents:
    """Where bytes of segments lie, one row for each extent.

    `object` counts in a list of names kept beside these columns; 0 is the entry itself. `begin` and
    `end` are the new times of the segment's row in the catalogue, or UNKNOWN_TIME, or NO_ROW.
    """

    number: NDArray[np.int64]
    position: NDArray[np.int64]
    length: NDArray[np.int64]
    object: NDArray[np.int64]
    offset: NDArray[np.int64]
    crc: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]

    @classmethod
    def none(cls) -> Self:
        return cls(*(np.empty(0, np.int64) for _ in COLUMNS))

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int, int, int, int, int, int]]) -> Self:
        """From rows in the order of the columns."""
        table = np.array(rows, np.int64).reshape(len(rows), len(COLUMNS))
        return cls(*(np.ascontiguousarray(column) for column in table.T))

    def __len__(self) -> int:
        return len(self.number)

    def columns(self) -> dict[str, NDArray[np.int64]]:
        return {name: getattr(self, name) for name in COLUMNS}

    def taken(self, which: NDArray[Any]) -> Self:
        """These rows, by a mask or by their indexes, in that order."""
        return type(self)(*(getattr(self, name)[which] for name in COLUMNS))

    def without_times(self) -> Self:
        """The same extents without times, which then take no memory."""
        none = np.broadcast_to(np.int64(NO_ROW), len(self))
        return replace(self, begin=none, end=none)

    def is_in_order(self) -> bool:
        """Whether they are sorted by segment and position, and do not overlap."""
        same = self.number[1:] == self.number[:-1]
        ends = self.position[:-1] + self.length[:-1]
        return bool(
            np.where(same, self.position[1:] >= ends, self.number[1:] > self.number[:-1]).all()
        )

    def in_order(self) -> Self:
        """Sorted by segment, then by position."""
        return self.taken(np.lexsort((self.position, self.number)))

    def of_segment(self, number: int) -> Self:
        """The rows of one segment. The columns must be in order."""
        low, high = np.searchsorted(self.number, [number, number + 1])
        return type(self)(*(getattr(self, name)[low:high] for name in COLUMNS))

    def rows(self) -> list[tuple[int, ...]]:
        return list(zip(*(column.tolist() for column in self.columns().values()), strict=True))


COLUMNS: Final = tuple(each.name for each in fields(Extents))


@dataclass(frozen=True, slots=True)
class Begun:
    """A new segment, with a number that no other ever had."""

    number: int
    path: str
    type: SegmentType
    base: int

    @property
    def key(self) -> SegmentKey:
        return self.path, self.type, self.base


@dataclass(frozen=True, slots=True)
class Sealed:
    """A segment that is one object from now on, valid only with this size and checksum.

    `crc` is None if nobody computed it: the object is older than the log.
    """

    number: int
    key: str
    size: int
    crc: int | None


class EntryHead(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The JSON of an entry. Rows of segments begin with the segment's number."""

    sequence: Whole
    epoch: Whole
    nonce: str
    time: Whole
    begins_epoch: bool = False
    begun: list[tuple[Whole, str, int, Whole]] = []
    sealed: list[tuple[Whole, str, Whole, Whole | None]] = []
    deleted: list[Whole] = []
    changes: list[dict[str, Any]] = []
    merged: list[Whole] = []
    dropped: list[str] = []
    objects: list[str] = []


describe(EntryHead)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The contents of one entry.

    `merged` are the sequences of entries whose extents this entry's replace. `dropped` are released
    objects that were deleted. `objects` are the names that the extents' `object` counts, from 1.
    """

    sequence: int
    epoch: int
    nonce: str
    time_ms: int
    begins_epoch: bool = False
    begun: tuple[Begun, ...] = ()
    sealed: tuple[Sealed, ...] = ()
    deleted: tuple[int, ...] = ()
    changes: tuple[Change, ...] = ()
    merged: tuple[int, ...] = ()
    dropped: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    extents: Extents = field(default_factory=Extents.none)
    payload_start: int = 0
    payload_bytes: int = 0

    def encoded(self, payload: Sequence[Buffer] = ()) -> bytes:
        """The object's bytes. Offsets of its inline extents count from the payload's beginning."""
        head = EntryHead(
            sequence=self.sequence,
            epoch=self.epoch,
            nonce=self.nonce,
            time=self.time_ms,
            begins_epoch=self.begins_epoch,
            begun=[(each.number, each.path, each.type.value, each.base) for each in self.begun],
            sealed=[(each.number, each.key, each.size, each.crc) for each in self.sealed],
            deleted=list(self.deleted),
            changes=[journal.to_json(change) for change in self.changes],  # type: ignore[misc]
            merged=list(self.merged),
            dropped=list(self.dropped),
            objects=list(self.objects),
        )
        columns = self.extents.columns() if len(self.extents) else {}
        return encode(FrameKind.ENTRY, msgspec.to_builtins(head), columns, payload)

    def placed_at(self, object_bytes: int) -> Entry:
        """The same entry, as if read back from an object of that many bytes."""
        return replace(self, payload_start=object_bytes - self.payload_bytes)

    @classmethod
    def decoded(cls, data: Buffer, name: str, *, object_bytes: int | None = None) -> Entry:
        """The entry at an object's beginning. Raises MetadataError; NeedMore if `data` is too
        short."""
        frame = decode(data, kind=FrameKind.ENTRY, name=name, object_bytes=object_bytes)
        with no_change(name):
            head = msgspec.convert(frame.head, EntryHead)
            check_names(head.objects)
            return cls(
                sequence=head.sequence,
                epoch=head.epoch,
                nonce=head.nonce,
                time_ms=head.time,
                begins_epoch=head.begins_epoch,
                begun=tuple(begun_of(row) for row in head.begun),
                sealed=tuple(sealed_of(row) for row in head.sealed),
                deleted=tuple(head.deleted),
                changes=tuple(journal.from_json(row) for row in head.changes),
                merged=tuple(head.merged),
                dropped=tuple(head.dropped),
                objects=tuple(head.objects),
                extents=extents_in(frame, len(head.objects)),
                payload_start=frame.payload_start,
                payload_bytes=frame.payload_bytes,
            )


def begun_of(row: tuple[int, str, int, int]) -> Begun:
    """A segment's number and key. Raises ValueError for an impossible key."""
    number, path, kind, base = row
    try:
        check_queue_path(path, base)
    except BackendRefusedError as error:
        raise ValueError(str(error)) from error
    return Begun(number, path, SegmentType(kind), base)


def sealed_of(row: tuple[int, str, int, int | None]) -> Sealed:
    """The sealed segment of a row. Raises ValueError for a key that no sealed segment can have."""
    sealed = Sealed(*row)
    if not sealed.key or sealed.key.startswith(("log/", "state/", "epoch/", ".")):
        raise ValueError(f"{sealed.key!r:.80} is no key of a sealed segment")
    return sealed


def check_names(names: Sequence[str]) -> None:
    """Raises ValueError for a name of an object that cannot hold bytes of open segments."""
    for name in names:
        if not name.startswith(("log/", "data/")):
            raise ValueError(f"{name!r:.80} is no object of a log")


def extents_in(frame: Frame, objects: int) -> Extents:
    """The extents of an entry, some of which may lie in its payload. ValueError if they make no
    sense."""
    extents = extents_of(frame, objects)
    inline = extents.object == 0
    ends = extents.offset[inline].astype(float) + extents.length[inline]
    if len(ends) and float(ends.max()) > frame.payload_bytes:
        raise ValueError("an extent ends behind its payload")
    return extents


def extents_of(frame: Frame, objects: int, *, prefix: str = "") -> Extents:
    """The extents of a frame that names `objects` objects. ValueError if they make no sense."""
    found = [frame.columns.get(prefix + name) for name in COLUMNS]
    columns = [column.astype(np.int64, copy=False) for column in found if column is not None]
    if not columns:
        return Extents.none()
    if len(columns) != len(found) or len({len(column) for column in columns}) > 1:
        raise ValueError("the columns of its extents do not belong together")
    extents = Extents(*columns)
    if not len(extents):
        return extents
    if min(int(column.min()) for column in columns[:6]) < 0 or int(extents.length.min()) < 1:
        raise ValueError("an extent has a negative number, or no bytes")
    if min(int(extents.begin.min()), int(extents.end.min())) < NO_ROW:
        raise ValueError("an extent has a time before all times")
    if int(extents.object.max()) > objects:
        raise ValueError("an extent lies in an object that is not named")
    if float((extents.position.astype(float) + extents.length).max()) > INT64_MAX:
        raise ValueError("an extent ends where no segment does")
    return extents


@contextmanager
def no_change(name: str) -> Iterator[None]:
    """Raise errors of decoding as a MetadataError about this object."""
    try:
        yield
    except MetadataError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise MetadataError(name, f"it says something impossible: {error}") from error
