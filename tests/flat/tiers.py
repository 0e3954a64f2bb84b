"""A tier of one queue in memory, for tests: it can be reopened, counted, made to fail, and put
together byte by byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tieredstore.codec.queue_unit import UNIT_BYTES, encode_unit
from tieredstore.driver.metadata import Change, Put
from tieredstore.driver.provider import ListedSegment, SegmentProvider
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.driver.segment import Buffer, FileSegment, check_range
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.metadata.memory_store import MemoryReads
from tieredstore.metadata.tables import Tables
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendUnavailableError,
    MetadataError,
    PositionMismatchError,
    SegmentNotFoundError,
    StoreClosedError,
)
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import QueueRecord, SegmentRecord, SegmentType, TopicRecord
from tieredstore.testing.faults import Fault, Faults, SimulatedCrash
from tieredstore.testing.samples import STORE_TIMESTAMP, a_record

PATH = "broker-a/TopicTest/0"
TOPIC = TopicRecord(topic="TopicTest", topic_id=7)
QUEUE = QueueRecord(broker_name="broker-a", topic="TopicTest", queue_id=0)
Key = tuple[SegmentType, int]


class DictSegment(FileSegment):
    """A segment whose bytes are in its provider's dictionary."""

    def __init__(self, owner: DictProvider, path: str, type: SegmentType, base: int) -> None:
        super().__init__(path, type, base)
        self._owner = owner
        self._key = type, base
        self._closed = False

    @property
    def path(self) -> str:
        return f"{self.queue_path}/{self.type.name}/{self.base}"

    def size(self) -> int:
        return len(self._bytes())

    def read(self, position: int, length: int) -> bytes:
        data = self._bytes()
        check_range(self.path, position, length, len(data))
        self._owner.reads.append((self.type, self.base + position, length))
        return bytes(data[position : position + length])

    def write(self, position: int, data: Buffer) -> None:
        held = self._owner.held.setdefault(self._key, bytearray())
        if position != len(held):
            raise PositionMismatchError(self.path, expected=position, actual=len(held))
        held += data

    def seal(self) -> None:
        """Nothing to do."""

    def delete(self) -> None:
        if self._closed:
            raise StoreClosedError(self.path)
        if (fault := self._owner.faults.next()) is not None:
            if fault is Fault.CRASH_AFTER:
                self._owner.held.pop(self._key, None)
            if fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
                raise SimulatedCrash
            raise BackendUnavailableError(self.path, "delete", fault.value)
        self._owner.held.pop(self._key, None)

    def close(self) -> None:
        self._closed = True

    def _bytes(self) -> bytearray:
        if self._closed:
            raise StoreClosedError(self.path)
        if self._key not in self._owner.held:
            raise SegmentNotFoundError(self.path)
        return self._owner.held[self._key]


class DictProvider(SegmentProvider):
    """Segments of one queue; it records reads, and faults strike its deletes."""

    def __init__(self) -> None:
        super().__init__(Runtime.inline())
        self.held: dict[Key, bytearray] = {}
        self.reads: list[tuple[SegmentType, int, int]] = []
        self.faults = Faults()

    def open(self, path: str, type: SegmentType, base: int) -> DictSegment:
        return DictSegment(self, path, type, base)

    def list(self, prefix: str = "") -> Iterator[ListedSegment]:
        for (kind, base), data in self.held.items():
            yield ListedSegment(PATH, kind, base, len(data))


class FaultyCatalogue(MemoryReads):
    """One process's view of tables that outlive it; faults strike its changes."""

    def __init__(self, tables: Tables, faults: Faults) -> None:
        super().__init__(tables, name="catalogue")
        self.faults = faults

    def apply(self, changes: Iterable[Change]) -> None:
        wanted = list(changes)
        if not wanted:
            return
        fault = self.faults.next()
        if fault in (Fault.CRASH_BEFORE, Fault.CRASH_HALF):
            raise SimulatedCrash
        if fault is not None and fault is not Fault.CRASH_AFTER:
            raise MetadataError("catalogue", fault.value)
        self._tables.apply(wanted)
        if fault is Fault.CRASH_AFTER:
            raise SimulatedCrash

    def add_topic(self, topic: str, *, reserve_hours: int | None = None) -> TopicRecord:
        known = self.topic(topic)
        if known is None:
            number = self._tables.topic_serial + 1
            known = TopicRecord(topic=topic, topic_id=number, reserve_hours=reserve_hours)
            self.apply([Put(known)])
        return known

    def refresh(self) -> None:
        """Nothing to do: the tables are the writer's own."""

    def close(self) -> None:
        self._closed = True


class OneQueue:
    """One queue of a tier; each `open` gives a new handle on the same bytes, as after a restart."""

    def __init__(self, *, log_bytes: int = 1 << 30, queue_units: int = 1 << 20) -> None:
        self.config = StoreConfig(
            commit_log_segment_bytes=log_bytes, consume_queue_segment_bytes=20 * queue_units
        )
        self.clock = ManualClock(STORE_TIMESTAMP)
        self.provider = DictProvider()
        self.metadata = FaultyCatalogue(Tables(), self.provider.faults)
        self.metadata.apply([Put(TOPIC), Put(QUEUE)])

    def open(self) -> FlatMessageFile:
        file = FlatMessageFile(
            QUEUE,
            TOPIC,
            self.config,
            path=PATH,
            provider=self.provider,
            metadata=self.metadata,
            clock=self.clock,
        )
        file.log.load()
        file.queue.load()
        return file

    def fail(self, faults: Faults) -> None:
        """Count the steps of backend and catalogue together from now on, and let them fail."""
        self.provider.faults = self.metadata.faults = faults


def run_of(first_offset: int, records: Sequence[bytes], tags: Sequence[int] = ()) -> MessageRun:
    """A run of records as a broker's store returns it."""
    sizes = np.array([len(record) for record in records], np.int32)
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    return MessageRun(
        first_offset=first_offset,
        log_offsets=starts,
        message_bytes=sizes,
        tags_codes=np.array(tags or range(first_offset, first_offset + len(records)), np.int64),
        starts=starts,
        records=b"".join(records),
    )


def numbered(first: int, count: int, *, body_bytes: int = 20) -> list[bytes]:
    return [a_record(number, body_bytes=body_bytes) for number in range(first, first + count)]


def fill(file: FlatMessageFile, records: Sequence[bytes], *, at: int | None = None) -> None:
    """Append and commit all records, in as many segments as needed; a new queue begins at `at`."""
    if not file.is_started:
        file.start_at(at or 0)
    while records:
        taken = file.append(run_of(file.append_offset, records)).count
        assert file.commit()
        records = records[taken:]


class CountingSource:
    """Reads from the file, and records each read."""

    def __init__(self) -> None:
        self.reads: list[tuple[SegmentType, int, int]] = []

    def read(self, file: FlatAppendFile, offset: int, length: int) -> bytes:
        self.reads.append((file.type, offset, length))
        return file.read(offset, length)


def crafted(pieces: list[bytes], places: list[tuple[int, int]], *, first: int = 0) -> OneQueue:
    """A tier with log segments of these bytes, and with units for these places and sizes."""
    tier = OneQueue()
    base = 0
    rows = []
    for piece in pieces:
        tier.provider.held[SegmentType.COMMIT_LOG, base] = bytearray(piece)
        rows.append(
            SegmentRecord(path=PATH, type=SegmentType.COMMIT_LOG, base_offset=base, size=len(piece))
        )
        base += len(piece)
    units = b"".join(
        encode_unit(log_offset=place, message_bytes=size, tags_code=number)
        for number, (place, size) in enumerate(places)
    )
    tier.provider.held[SegmentType.CONSUME_QUEUE, first * UNIT_BYTES] = bytearray(units)
    rows.append(
        SegmentRecord(
            path=PATH,
            type=SegmentType.CONSUME_QUEUE,
            base_offset=first * UNIT_BYTES,
            size=len(units),
        )
    )
    tier.metadata.apply([Put(row) for row in rows])
    return tier


def laid_out(records: list[bytes]) -> list[tuple[int, int]]:
    places, at = [], 0
    for record in records:
        places.append((at, len(record)))
        at += len(record)
    return places


def digests(run: MessageRun) -> list[str]:
    return [hashlib.sha256(run.record(row)).hexdigest() for row in range(len(run))]


def same_but_for_log_offset(run: MessageRun, records: list[bytes]) -> bool:
    return [
        bytes(run.record(row)[:28]) + bytes(run.record(row)[36:]) for row in range(len(run))
    ] == [record[:28] + record[36:] for record in records]
