"""How far the uploaded index files reach: what a reader who has nothing else can rely on.

What lives here: `indexed_offset` by the notes of our own index, and `indexed_times`, for
where nobody wrote notes and for what was dropped.
"""

from __future__ import annotations

from typing import NamedTuple

from tieredstore.codec.names import index_queue_path
from tieredstore.driver.metadata import MetadataStore
from tieredstore.flat.believed_times import is_believed
from tieredstore.index.watermarks import QueueId, Watermarks
from tieredstore.model.values import SegmentType


def indexed_offset(
    metadata: MetadataStore, broker_name: str, topic: str, queue: QueueId
) -> int | None:
    """Below this queue offset the uploaded files alone have every message; None where no note
    says."""
    marks = Watermarks(metadata, broker_name)
    if marks.slot_count() is None:
        return None
    starts = [at for (_, held), at in marks.starts().items() if held == queue]
    return min([marks.of_queue(topic, queue), *starts])


class IndexTimes(NamedTuple):
    """Store times that the uploaded files reach from and to; `begin` None: no file was dropped."""

    begin: int | None
    end: int


def indexed_times(metadata: MetadataStore, broker_name: str, now_ms: int) -> IndexTimes | None:
    """As the catalogue has it; None where there is no file, or its times cannot be believed.

    Old files are dropped by their age, and a message may outlive its file.
    """
    rows = metadata.segments(index_queue_path(broker_name), SegmentType.INDEX)
    ends = [row.end_timestamp for row in rows if row.end_timestamp is not None]
    if not rows or len(ends) < len(rows) or not is_believed(max(ends), now_ms):
        return None
    if not rows[0].base_offset:
        return IndexTimes(None, max(ends))
    # Files overlap: what the first one begins with says less than up to where others were dropped.
    dropped = Watermarks(metadata, broker_name).dropped_before()
    begin = rows[0].begin_timestamp if dropped is None else dropped
    return IndexTimes(begin, max(ends)) if begin and is_believed(begin, now_ms) else None
