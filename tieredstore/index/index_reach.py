"""How far the uploaded index files reach: what a reader who has nothing else can rely on.

What lives here: `indexed_offset` by the notes of our own index, and `indexed_time` where nobody
wrote notes, such as in a tier of the Java broker.
"""

from __future__ import annotations

from tieredstore.codec.names import index_queue_path
from tieredstore.driver.metadata import MetadataStore
from tieredstore.index.watermarks import QueueId, Watermarks
from tieredstore.model.values import SegmentType


def indexed_offset(
    metadata: MetadataStore, broker_name: str, topic: str, queue: QueueId
) -> int | None:
    """Below this queue offset the uploaded files have every message; None where no note says."""
    marks = Watermarks(metadata, broker_name)
    if marks.slot_count() is None:
        return None
    starts = [at for (_, held), at in marks.starts().items() if held == queue]
    return min([marks.of_queue(topic, queue), *starts])


def indexed_time(metadata: MetadataStore, broker_name: str) -> int | None:
    """When the newest message of the uploaded files was stored, as the catalogue has it."""
    rows = metadata.segments(index_queue_path(broker_name), SegmentType.INDEX)
    return max((row.end_timestamp for row in rows if row.end_timestamp is not None), default=None)
