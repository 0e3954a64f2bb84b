"""What a verification reads: the slices of all queues and the parts of all index files.

What lives here: `TierPicture`, the catalogue of a tier as it is at one moment, and the pieces of
work that follow from it. No byte of a segment is read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from tieredstore.access.wiring import GivenParts, open_tier
from tieredstore.codec.names import index_queue_path
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.metadata import MetadataStore
from tieredstore.index.watermarks import QueueId, Watermarks
from tieredstore.jobs.reading.slices import QueueRows, Slice, plan_slices, queue_rows
from tieredstore.jobs.reading.topic_patterns import TopicPatterns
from tieredstore.jobs.verification.verify_index import IndexItem, index_parts
from tieredstore.jobs.verification.verify_keys import IndexedQueue, QueueNumber
from tieredstore.jobs.verification.verify_local_index import is_seen
from tieredstore.jobs.verification.verify_slice import SliceItem
from tieredstore.jobs.verification.verify_sums import stretch_shift
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError
from tieredstore.model.values import SegmentType

VerifyItem: TypeAlias = SliceItem | IndexItem


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPicture:
    """Queues, topic numbers and index files.

    Index files are read from the catalogue before the queues: whatever they name was committed.
    """

    queues: tuple[QueueRows, ...]
    topic_ids: Mapping[str, int]
    index: tuple[SegmentRecord, ...]
    slot_count: int
    index_has_expired: bool
    sure_below: Mapping[QueueNumber, int]
    shift: int

    @classmethod
    def take(cls, config: StoreConfig, *, topics: tuple[str, ...] = ()) -> TierPicture:
        """Raises UnknownNameError for a topic that is not there, MetadataError without a
        catalogue."""
        plain = replace(config, index_enabled=False, read_ahead_enabled=False)
        parts = open_tier(plain, GivenParts(), read_only=True)
        try:
            metadata = parts.metadata
            path = index_queue_path(config.broker_name)
            index = tuple(row for row in metadata.segments(path, SegmentType.INDEX) if row.size)
            parts.load()
            rows = _rows(metadata, config.broker_name)
            for file in parts.files.files():  # the last segments may be longer than was noted
                for each in (*file.log.segments, *file.queue.segments):
                    known = rows.get(each.record.key)
                    if known is None or known.size < each.record.size:
                        rows[each.record.key] = each.record
            if not rows:
                reason = f"it names no segment of the broker {config.broker_name!r}"
                raise MetadataError(config.catalogue_path, reason)
            found = queue_rows(rows.values())
            wanted = TopicPatterns(topics)
            wanted.refuse_unknown(queue.key.topic for queue in found)
            marks = Watermarks(metadata, config.broker_name)
            topic_ids = {record.topic: record.topic_id for record in metadata.topics()}
            return cls(
                queues=tuple(queue for queue in found if wanted.match(queue.key.topic)),
                topic_ids=topic_ids,
                index=index,
                slot_count=marks.slot_count() or config.index_slot_count,
                index_has_expired=(index[0].base_offset if index else marks.end()) > 0,
                sure_below=dict(_sure_below(config, found, topic_ids, marks)),
                shift=stretch_shift(sum(queue.log_bytes for queue in found)),
            )
        finally:
            parts.close()

    def byte_count(self, *, with_index: bool) -> int:
        """Of all segments that are to be read."""
        rows = [row for queue in self.queues for row in (*queue.log, *queue.queue)]
        return sum(row.size for row in (*rows, *(self.index if with_index else ())))

    def slice_items(self, split_bytes: int) -> Iterator[tuple[SliceItem, int]]:
        """Each slice with what is read of it; it has the log up to where the next one begins."""
        for queue in self.queues:
            slices = plan_slices([queue], split_bytes=split_bytes)
            for each, following in zip(slices, [*slices[1:], None], strict=True):
                yield self._item(queue, each, following, is_first=each is slices[0])

    def _item(
        self, queue: QueueRows, each: Slice, following: Slice | None, *, is_first: bool
    ) -> tuple[SliceItem, int]:
        topic_id = self.topic_ids.get(queue.key.topic, -1)
        more: tuple[SegmentRecord, ...] = ()
        next_offset = -1
        if following is not None:
            next_offset = following.first_offset
            at = next_offset * UNIT_BYTES
            more = tuple(row for row in queue.queue if row.base_offset <= at < row.end_offset)
        item = SliceItem(
            slice=each,
            topic_id=topic_id,
            shift=self.shift,
            next_offset=next_offset,
            is_first=is_first,
            sure_below=self.sure_below.get((topic_id, queue.key.queue_id), 0),
            more_rows=more,
        )
        return item, each.approximate_bytes + len(each) * UNIT_BYTES

    def index_items(self) -> Iterator[tuple[IndexItem, int]]:
        for row in self.index:
            items = index_parts(row, slot_count=self.slot_count, shift=self.shift)
            for item in items:
                yield item, row.size // len(items)


def indexed_queues(items: Iterable[VerifyItem]) -> dict[QueueNumber, IndexedQueue]:
    """The queues of these slices, as they were when it was planned."""
    slices: dict[QueueNumber, list[SliceItem]] = {}
    for item in items:
        if isinstance(item, SliceItem) and item.topic_id >= 0:
            slices.setdefault((item.topic_id, item.slice.key.queue_id), []).append(item)
    found = {}
    for number, mine in slices.items():
        rows = {row.key: row for item in mine for row in item.slice.rows}
        log = [row for row in rows.values() if row.type is SegmentType.COMMIT_LOG]
        if log:
            found[number] = IndexedQueue(
                key=mine[0].slice.key,
                path=mine[0].slice.path,
                rows=tuple(rows.values()),
                log_start=min(row.base_offset for row in log),
                log_end=max(row.end_offset for row in log),
                sure_below=mine[0].sure_below,
            )
    return found


def _rows(
    metadata: MetadataStore, broker: str
) -> dict[tuple[str, SegmentType, int], SegmentRecord]:
    below = f"{broker}/"
    return {
        row.key: row
        for row in metadata.segments()
        if row.path.startswith(below) and row.type is not SegmentType.INDEX
    }


def _sure_below(
    config: StoreConfig, queues: list[QueueRows], topic_ids: Mapping[str, int], marks: Watermarks
) -> Iterator[tuple[QueueNumber, int]]:
    """Up to where our own notes say that an index file which can be seen here has all keys."""
    seen = is_seen(config)
    unseen: dict[QueueId, int] = {}
    if not seen:
        for (_, queue), start in marks.starts().items():
            unseen[queue] = min(start, unseen.get(queue, start))
    for rows in queues:
        topic_id = topic_ids.get(rows.key.topic)
        if topic_id is not None:
            queue = QueueId(topic_id, rows.key.queue_id)
            below = marks.of_queue(rows.key.topic, queue)
            yield (topic_id, queue.queue_id), min(below, unseen.get(queue, below))
