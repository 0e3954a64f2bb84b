"""`MemoryMetadataStore`: a catalogue that is gone when it is closed.

What lives here: the one that a reader finds out from the bytes of a tier, where nothing better is
left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tieredstore.driver.metadata import Change, DeleteSegment, Put
from tieredstore.driver.published import CatalogueFacts
from tieredstore.metadata import changes as codec
from tieredstore.metadata.memory_reads import MemoryReads
from tieredstore.metadata.tables import Tables
from tieredstore.model.catalogue import SegmentRecord, TopicRecord
from tieredstore.model.errors import MetadataError


class MemoryMetadataStore(MemoryReads):
    """Empty at first; changes last as long as the store. Any thread may call anything."""

    def __init__(self, *, place: str, clock_ms: Callable[[], int]) -> None:
        super().__init__(Tables(), name=place)
        self._clock_ms = clock_ms

    @property
    def facts(self) -> CatalogueFacts:
        return CatalogueFacts(source="rebuild", place=self._name, copy=True)

    def apply(self, changes: Iterable[Change]) -> None:
        try:
            seen = [codec.encode(change)[0] for change in changes]
        except ValueError as error:
            raise MetadataError(self._name, f"refused: {error}") from error
        with self._tables_lock:
            self._open_tables().apply(seen)

    def add_topic(self, topic: str, *, reserve_hours: int | None = None) -> TopicRecord:
        with self._tables_lock:
            tables = self._open_tables()
            if topic not in tables.topics:
                record = TopicRecord(
                    topic=topic,
                    topic_id=tables.topic_serial + 1,
                    reserve_hours=reserve_hours,
                    update_timestamp=self._clock_ms(),
                )
                tables.apply([Put(record)])
            return tables.topics[topic]

    def amend(self, *, gone: Sequence[SegmentRecord], come: Sequence[SegmentRecord]) -> None:
        deleted = [DeleteSegment(row.path, row.type, row.base_offset) for row in gone]
        self.apply([*deleted, *map(Put, come)])

    def refresh(self) -> None:
        """Nobody else changes it."""
        self._require_open()

    def close(self) -> None:
        self._closed = True
