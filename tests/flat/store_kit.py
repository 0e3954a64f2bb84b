"""A tier of many queues for tests: reopened as by a new process, and made to fail anywhere.

`Tier` has a backend and a catalogue that outlive the stores opened on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.codec.encoders import patch_log_offset
from tests.flat.tiers import FaultyCatalogue, run_of
from tieredstore.codec.record import peek_log_offset
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.metadata.tables import Tables
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import QueueKey, SegmentRecord, SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Faults, FaultyProvider
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC

KEY = QueueKey(TOPIC, 0)
PATH = f"broker-a/{TOPIC}/0"
LOG, QUEUE = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE


class Tier:
    """The bytes and the catalogue of a tier; `open` acts as a new process."""

    def __init__(
        self,
        *,
        log_bytes: int = 1 << 20,
        queue_units: int = 1 << 10,
        provider: SegmentProvider | None = None,
        **settings: Any,
    ) -> None:
        self.runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        self.inner = provider or MemoryProvider(self.runtime)
        self.tables = Tables()
        self.publish: Callable[[], bool] = lambda: True
        self.config = StoreConfig(
            broker_name="broker-a",
            commit_log_segment_bytes=log_bytes,
            consume_queue_segment_bytes=20 * queue_units,
            **settings,
        )

    @property
    def clock(self) -> ManualClock:
        clock = self.runtime.clock
        assert isinstance(clock, ManualClock)
        return clock

    def open(self, faults: Faults | None = None, *, read_only: bool = False) -> FlatFileStore:
        faults = faults or Faults()
        store = FlatFileStore(
            self.config,
            provider=self.backend(faults),
            metadata=FaultyCatalogue(self.tables, faults),
            runtime=self.runtime,
            read_only=read_only,
            publish=self.publish,
        )
        store.load()
        return store

    def backend(self, faults: Faults) -> SegmentProvider:
        """The backend of a process that these faults strike."""
        return FaultyProvider(self.inner, faults, self.runtime)

    def file(self, faults: Faults | None = None, *, start: int = 0) -> FlatMessageFile:
        """Queue 0, opened by a new process."""
        file = self.open(faults).create(*KEY)
        if file.problem is None:
            file.start_at(start)
        return file

    def catalogue(self) -> FaultyCatalogue:
        return FaultyCatalogue(self.tables, Faults())

    def rows(self, type: SegmentType, path: str = PATH) -> Sequence[SegmentRecord]:
        return self.catalogue().segments(path, type)

    def held(self, type: SegmentType, path: str = PATH) -> dict[int, bytes]:
        """The bytes of one file in the backend, by base offset."""
        found = {}
        for each in self.inner.list(path):
            if each.type is type:
                with self.inner.open(path, type, each.base) as segment:
                    found[each.base] = segment.read(0, each.size)
        return dict(sorted(found.items()))

    def damage(self, type: SegmentType, base: int, data: bytes, path: str = PATH) -> None:
        """Replace the bytes of a segment in the backend."""
        with self.inner.open(path, type, base) as segment:
            segment.delete()
            segment.write(0, data)


def append(file: FlatMessageFile, records: Sequence[bytes], *, at: int | None = None) -> None:
    """Append and commit all records, in as many segments as needed."""
    while records:
        taken = file.append(run_of(file.append_offset if at is None else at, records)).count
        assert file.commit()
        records, at = records[taken:], None


def unplaced(record: bytes) -> bytes:
    """A record without its log offset, which each store sets anew."""
    data = bytearray(record)
    patch_log_offset(data, 0)
    return bytes(data)


def content(file: FlatMessageFile) -> dict[int, bytes]:
    """Every message that can be read, by queue offset. Each record must have its log offset."""
    found = {}
    offset = file.min_offset
    while (offset := file.queue.first_unit_from(offset)) < file.commit_offset:
        units = file.units(offset, file.queue.units_in_a_row(offset))
        for log_offset, size in zip(units.log_offsets, units.message_bytes, strict=True):
            record = file.log.read(int(log_offset), int(size))
            assert peek_log_offset(record) == log_offset
            found[offset] = unplaced(record)
            offset += 1
    return found
