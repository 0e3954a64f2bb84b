"""Which topic an id of the index stands for: an item leads to a message, and that has its topic.

What lives here: `topic_ids_of`, and up to where the index has each queue. Ids are written nowhere
but in the catalogue and in the items of the index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tieredstore.access.care.rebuild_index import FoundIndex
from tieredstore.access.care.rebuild_queues import FoundQueue
from tieredstore.codec.java import tiered_probes
from tieredstore.codec.properties import KEYS, UNIQUE_KEY, decode_properties, split_keys
from tieredstore.codec.record_fields import (
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    peek_magic,
    peek_message_bytes,
    peek_property_bytes,
    peek_queue_offset,
    peek_topic,
)
from tieredstore.codec.tiered_index import CompactedItem
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.index.watermarks import QueueId
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentError

_HEAD_BYTES = 28  # up to and with the queue offset


def topic_ids_of(
    queues: Sequence[FoundQueue], index: FoundIndex, *, slot_count: int
) -> dict[str, int]:
    """The id of each topic that an item was found for: its record is there, and has its key."""
    by_number: dict[int, list[FoundQueue]] = {}
    for queue in queues:
        by_number.setdefault(queue.record.queue_id, []).append(queue)
    found: dict[str, int] = {}
    # Where an id was given twice, which cannot be by rights, the newer one counts.
    for queue_id in sorted(index.samples, reverse=True):
        if queue_id.topic_id in found.values():
            continue
        for queue in by_number.get(queue_id.queue_id, []):
            if queue.topic in found:
                continue
            items = index.samples[queue_id]
            if any(_is_of(queue, item, slot_count) for item in reversed(items)):
                found[queue.topic] = queue_id.topic_id
                break
    return found


def indexed_offsets(
    queues: Sequence[FoundQueue], index: FoundIndex, ids: Mapping[str, int]
) -> dict[QueueId, int]:
    """Below which queue offset the uploaded files have everything; queues go in in their order."""
    found: dict[QueueId, int] = {}
    for queue in queues:
        topic_id = ids.get(queue.topic)
        if topic_id is None:
            continue
        number = QueueId(topic_id, queue.record.queue_id)
        log_offset = index.newest.get(number)
        if log_offset is None:
            continue
        head = _read(queue.file, log_offset, _HEAD_BYTES)
        if head is not None:
            found[number] = min(peek_queue_offset(head) + 1, queue.file.commit_offset)
    return found


def _is_of(queue: FoundQueue, item: CompactedItem, slot_count: int) -> bool:
    record = _read(queue.file, item.log_offset, item.message_bytes)
    if record is None or peek_message_bytes(record) != item.message_bytes:
        return False
    try:
        if peek_topic(record) != queue.topic:
            return False
        properties = decode_properties(peek_property_bytes(record))
    except SegmentError:
        return False
    keys = {properties.get(UNIQUE_KEY, ""), *split_keys(properties.get(KEYS, ""))} - {""}
    texts = [f"{queue.topic}#{key}" for key in keys]
    return any(
        item.key_hash == hash_ for text in texts for hash_, _ in tiered_probes(text, slot_count)
    )


def _read(file: FlatMessageFile, log_offset: int, length: int) -> bytes | None:
    """A record's bytes; None where none begins there."""
    try:
        data = file.log.read(log_offset, length)
        is_message = peek_magic(data) in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2)
    except (SegmentError, OffsetOutOfRangeError):
        return None
    return data if is_message else None
