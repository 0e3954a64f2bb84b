"""Rows that were found out and are in no catalogue yet, in the place of one.

What lives here: `FoundRows`, just enough of a catalogue for a queue to be recovered from its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tieredstore.driver.metadata import Change, Json, MetadataStore
from tieredstore.model.catalogue import QueueRecord, SegmentRecord, TopicRecord
from tieredstore.model.errors import MetadataError
from tieredstore.model.values import SegmentType


class FoundRows(MetadataStore):
    """Segments only; nothing can be changed."""

    def __init__(self, rows: Iterable[SegmentRecord]) -> None:
        self._rows = sorted(rows, key=lambda row: (row.path, row.type, row.base_offset))

    def segment(self, path: str, type: SegmentType, base_offset: int) -> SegmentRecord | None:
        found = (row for row in self.segments(path, type) if row.base_offset == base_offset)
        return next(found, None)

    def segments(
        self, path: str | None = None, type: SegmentType | None = None
    ) -> Sequence[SegmentRecord]:
        return [row for row in self._rows if path in (None, row.path) and type in (None, row.type)]

    def topic(self, topic: str) -> TopicRecord | None:
        return None

    def topics(self) -> Sequence[TopicRecord]:
        return ()

    def queue(self, topic: str, queue_id: int) -> QueueRecord | None:
        return None

    def queues(self, topic: str | None = None) -> Sequence[QueueRecord]:
        return ()

    def note(self, kind: str, key: str) -> Json:
        return None

    def notes(self, kind: str) -> Mapping[str, Json]:
        return {}

    def apply(self, changes: Iterable[Change]) -> None:
        raise MetadataError("", "these rows are in no catalogue yet")

    def add_topic(self, topic: str, *, reserve_hours: int | None = None) -> TopicRecord:
        raise MetadataError("", "these rows are in no catalogue yet")

    def refresh(self) -> None:
        """Nobody else changes them."""

    def close(self) -> None:
        """There is nothing to release."""
