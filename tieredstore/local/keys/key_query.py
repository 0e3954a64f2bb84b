"""Messages by key: what the index suggests, and what the messages themselves say.

What lives here: `query_message`. The index knows hashes and whole seconds; a hit counts only if its
message has the topic, the key and the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tieredstore.codec.java import index_key, local_key_hash
from tieredstore.codec.message import decode_message
from tieredstore.codec.record_fields import peek_store_timestamp
from tieredstore.local.keys.index_batch import key_texts
from tieredstore.local.keys.index_service import IndexService
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.messages import QueryResult, SelectedMessage
from tieredstore.model.printable import log_of

log = log_of(__name__)


def query_message(
    index: IndexService,
    commit_log: CommitLog,
    topic: str,
    key: str,
    *,
    count_max: int,
    count_limit: int,
    begin: int,
    end: int,
    tags_code: Callable[[bytes], int],
    is_named: Callable[[bytes, int], bool],
    log_offset_min: int = 0,
) -> QueryResult:
    """Newest first, each once, none below `log_offset_min`; `tags_code` is what its queue holds.

    A damaged or missing message hides no other; the answer is then incomplete. So it is where a
    record does not carry what its entry in the index says, or is not where it says in its queue
    (`is_named`): no checksum covers either. And so it is where the store's own `count_limit` cuts
    what the caller's `count_max` has room for.
    """
    found: list[SelectedMessage] = []
    complete, is_cut = True, False
    if count_max <= 0 or not key:
        return QueryResult()
    damaged: list[SegmentCorruptError] = []
    for log_offset in _candidates(index, topic, key, begin, end, damaged):
        if log_offset < log_offset_min:
            continue
        try:
            record = commit_log.message_bytes(log_offset)
        except SegmentCorruptError as error:
            log.warning("a message that may have the key %r is passed over: %s", key, error)
            complete = False
            continue
        if record is None and log_offset >= (commit_log.min_offset or 0):
            log.warning("a message that may have the key %r is not at %d", key, log_offset)
            complete = False
        if record is None or not begin <= peek_store_timestamp(record) <= end:
            continue
        message = decode_message(record, check_crc=False)
        keys = key_texts(message.topic, unique_key=message.unique_key, keys=message.keys)
        text = index_key(topic, key)
        has_key = message.topic == topic and text in keys
        hashed = local_key_hash(text)
        fits = has_key or any(local_key_hash(other) == hashed for other in keys)
        if not fits or not is_named(record, log_offset):
            log.warning("the message at %d that may have the key %r is damaged", log_offset, key)
            complete = False
            continue
        if not has_key:
            continue
        if len(found) == count_limit:
            is_cut = True
            break
        found.append(
            SelectedMessage(
                queue_offset=message.queue_offset,
                log_offset=log_offset,
                tags_code=tags_code(record),
                record=record,
            )
        )
        if len(found) == count_max:
            break
    complete = complete and not damaged
    return QueryResult(messages=found, complete=complete and not is_cut, is_cut=complete and is_cut)


def _candidates(
    index: IndexService,
    topic: str,
    key: str,
    begin: int,
    end: int,
    damaged: list[SegmentCorruptError],
) -> Iterator[int]:
    """What the index suggests; what keeps it from suggesting more goes into `damaged`."""
    try:
        yield from index.candidates(topic, key, begin=begin, end=end)
    except SegmentCorruptError as error:
        log.warning("not every message that may have the key %r can be found: %s", key, error)
        damaged.append(error)
