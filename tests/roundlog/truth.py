"""A slow fold of a log into plain dicts, written from the rules, not from the real fold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import msgspec

from tieredstore.driver.metadata import (
    DeleteNote,
    DeleteQueue,
    DeleteSegment,
    DeleteTopic,
    Put,
    PutNote,
)
from tieredstore.model.values import QueueRecord, SegmentRecord, TopicRecord
from tieredstore.roundlog.entry import NO_ROW, UNKNOWN_TIME, Entry, SegmentKey
from tieredstore.roundlog.layout import number_of
from tieredstore.roundlog.state import LogState

Rows: TypeAlias = dict[tuple[object, ...], object]


@dataclass
class TrueSegment:
    key: SegmentKey
    data: bytearray = field(default_factory=bytearray)
    sealed: str | None = None
    sealed_size: int = 0

    @property
    def size(self) -> int:
        return len(self.data) or self.sealed_size


@dataclass(frozen=True)
class Picture:
    """Everything visible of a state: segments with number, size and sealed key, and rows."""

    epoch: int
    segments: dict[SegmentKey, tuple[int, int, str | None]]
    rows: Rows

    @classmethod
    def of(cls, state: LogState) -> Picture:
        tables = state.tables
        rows: Rows = {("topic", name): row for name, row in tables.topics.items()}
        for topic, queues in tables.queues.items():
            rows |= {("queue", topic, number): row for number, row in queues.items()}
        for kind, paths in tables.segments.items():
            for path, found in paths.items():
                rows |= {("segment", path, kind, base): row for base, row in found.items()}
        for note, values in tables.notes.items():
            rows |= {("note", note, key): text for key, text in values.items()}
        segments = {
            each.key: (each.number, each.size, None if each.sealed is None else each.sealed.key)
            for path in sorted({path for path, _, _ in state.numbers})
            for each in state.of_path(path)
        }
        assert len(segments) == len(state.segments)
        return cls(state.epoch, segments, rows)


@dataclass
class Truth:
    """An entry counts if its epoch is that of the last one that counted, or if it begins a later
    epoch."""

    sequence: int = 0
    epoch: int = 0
    segments: dict[int, TrueSegment] = field(default_factory=dict)  # deleted ones too
    live: dict[SegmentKey, int] = field(default_factory=dict)
    rows: Rows = field(default_factory=dict)

    def fold(self, entry: Entry, bytes_of: Callable[[str], bytes]) -> bool:
        """Apply an entry; `bytes_of` returns the bytes of an object, for "" the entry's own."""
        assert entry.sequence == self.sequence + 1
        self.sequence += 1
        if entry.epoch < self.epoch:
            return False
        if entry.epoch > self.epoch:
            if not entry.begins_epoch:
                return False
            self.epoch = entry.epoch
        for change in entry.changes:
            self._change(change)
        for begun in entry.begun:
            assert begun.number not in self.segments
            self.segments[begun.number] = TrueSegment(begun.key)
            self.live[begun.key] = begun.number
        for row in entry.extents.rows():
            self._extent(entry, row, bytes_of)
        for number in entry.deleted:
            segment = self.segments.get(number)
            if segment is not None and self.live.get(segment.key) == number:
                del self.live[segment.key]
        for sealed in entry.sealed:
            segment = self.segments[sealed.number]
            if self.live.get(segment.key) == sealed.number and segment.sealed is None:
                assert not segment.data or len(segment.data) == sealed.size
                segment.sealed, segment.sealed_size = sealed.key, sealed.size
        return True

    def picture(self) -> Picture:
        segments = {
            key: (number, self.segments[number].size, self.segments[number].sealed)
            for key, number in self.live.items()
        }
        return Picture(self.epoch, segments, dict(self.rows))

    def _extent(self, entry: Entry, row: tuple[int, ...], bytes_of: Callable[[str], bytes]) -> None:
        number, position, length, index, offset, _, begin, end = row
        name = entry.objects[index - 1] if index else ""
        at = offset if index else entry.payload_start + offset
        data = bytes_of(name)[at : at + length]
        assert len(data) == length
        segment = self.segments[number]
        if entry.merged:  # the same bytes at another place
            assert bytes(segment.data[position : position + length]) == data
            return
        assert position == len(segment.data)
        assert segment.sealed is None
        segment.data += data
        place = ("segment", *segment.key)
        known = self.rows.get(place)
        is_told = begin != NO_ROW and self.live.get(segment.key) == number
        if is_told and isinstance(known, SegmentRecord):
            self.rows[place] = replace(
                known,
                size=len(segment.data),
                begin_timestamp=None if begin == UNKNOWN_TIME else begin,
                end_timestamp=None if end == UNKNOWN_TIME else end,
            )

    def _change(self, change: object) -> None:
        match change:
            case Put(TopicRecord() as row):
                self.rows["topic", row.topic] = row
            case Put(QueueRecord() as row):
                self.rows["queue", row.topic, row.queue_id] = row
            case Put(SegmentRecord() as row):
                self.rows["segment", row.path, row.type, row.base_offset] = row
            case DeleteTopic(topic):
                self.rows.pop(("topic", topic), None)
            case DeleteQueue(topic, queue_id):
                self.rows.pop(("queue", topic, queue_id), None)
            case DeleteSegment(path, kind, base):
                self.rows.pop(("segment", path, kind, base), None)
            case PutNote(kind, key, value):
                self.rows["note", kind, key] = msgspec.json.encode(value)
            case DeleteNote(kind, key):
                self.rows.pop(("note", kind, key), None)


class Witness:
    """Sees what lands in the bucket of one log, and compares each state with the entries.

    `pictures` has the log after each entry, beginning with none.
    """

    def __init__(self, prefix: str) -> None:
        self.truth = Truth()
        self.pictures = [self.truth.picture()]
        self._prefix = prefix
        self._ever: dict[str, bytes] = {}  # data objects

    def landed(self, key: str, data: bytes) -> str:
        """A line about an entry; "" for anything else. Raises AssertionError."""
        name = key.removeprefix(self._prefix)
        number = number_of(name)
        if name.startswith("log/") and number is not None:
            if number <= self.truth.sequence:
                return f"entry {number} is too late"
            entry = Entry.decoded(data, key, object_bytes=len(data))
            counts = self.truth.fold(entry, lambda name: self._ever[name] if name else data)
            self.pictures.append(self.truth.picture())
            return f"entry {number} of epoch {entry.epoch} {'counts' * counts}"
        if name.startswith("data/"):
            assert self._ever.setdefault(name, data) == data
        elif name.startswith("state/") and number is not None:
            found = Picture.of(LogState.decoded(data, key))
            assert found == self.pictures[number], f"state {number} is not what the entries say"
        return ""
