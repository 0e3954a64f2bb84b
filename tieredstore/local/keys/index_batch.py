"""What the dispatch hands to the key index: the keys of a run of messages, as columns.

What lives here: `IndexBatch`, the keys of messages hashed, and which keys of a batch are new. Where
they go is `index_service`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.java import KEY_CHARACTERS_MAX, joined_key_hashes, local_key_hashes
from tieredstore.codec.properties import VALUE_END, split_keys
from tieredstore.codec.record_fields import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from tieredstore.local.keys.index_chain import ItemColumns

_VECTOR_MESSAGES_MIN: Final = 8
_KEYS_SEPARATOR: Final = " "


def key_texts(topic: str, *, unique_key: str | None, keys: Iterable[str]) -> list[str]:
    """What is hashed for one message, in Java's order: UNIQ_KEY first, then each of KEYS."""
    texts = [] if unique_key is None else [f"{topic}#{unique_key}"]
    texts += [f"{topic}#{key}" for key in keys]
    return texts


def hashes_of_messages(
    topics: Sequence[str], unique_keys: Sequence[str | None], keys: Sequence[str | None]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The hashes of `key_texts` of many messages one after another, and how many each has.

    KEYS is given as it stands in the properties: the single keys with spaces between them.
    """
    count = len(topics)
    if count >= _VECTOR_MESSAGES_MIN:
        rows = [text or "" for text in keys]
        all_topics = topics
        unique = [text or "" for text in unique_keys] if any(unique_keys) else []
        if unique:
            rows = list(chain.from_iterable(zip(unique, rows, strict=True)))
            all_topics = list(chain.from_iterable(zip(topics, topics, strict=True)))
        joined = VALUE_END.join(rows)
        if len(joined) > KEY_CHARACTERS_MAX:
            half = count // 2
            parts = [
                hashes_of_messages(topics[part], unique_keys[part], keys[part])
                for part in (slice(half), slice(half, None))
            ]
            return (
                np.concatenate([hashes for hashes, _ in parts]),
                np.concatenate([counts for _, counts in parts]),
            )
        # No value of a property holds its end; but a unique key may hold a space, which parts none.
        if joined.count(VALUE_END) == len(rows) - 1 and not any(" " in text for text in unique):
            hashes, counts = joined_key_hashes(joined, VALUE_END, _KEYS_SEPARATOR, all_topics)
            return hashes, counts.reshape(count, -1).sum(axis=1)
    texts = [
        key_texts(topic, unique_key=unique_key, keys=split_keys(text))
        for topic, unique_key, text in zip(topics, unique_keys, keys, strict=True)
    ]
    return (
        local_key_hashes(list(chain.from_iterable(texts))),
        np.fromiter(map(len, texts), np.int64, count),
    )


@dataclass(slots=True, kw_only=True)
class IndexBatch:
    """Messages in the order of the log: one entry a message, and the hashes of all their keys.

    `key_counts` says how many of `key_hashes` belong to each message; 0 is fine, and needed: it
    tells the index how far the log has been looked at.
    """

    log_offsets: Sequence[int]
    store_timestamps: Sequence[int]
    sys_flags: Sequence[int]
    key_counts: NDArray[np.int64]
    key_hashes: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.log_offsets)


def new_items(batch: IndexBatch, *, end: int, count_at_end: Callable[[int], int]) -> ItemColumns:
    """The keys of a batch that are not indexed yet, when `end` is the last indexed message.

    Messages that were rolled back and messages below the end are left out, and of the message at
    the end as many keys as are already there, which `count_at_end` tells.
    """
    log_offsets = np.array(batch.log_offsets, np.int64)
    timestamps = np.array(batch.store_timestamps, np.int64)
    items = ItemColumns(
        key_hashes=batch.key_hashes,
        log_offsets=log_offsets.repeat(batch.key_counts),
        store_timestamps=timestamps.repeat(batch.key_counts),
    )
    all_kept = all(flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK for flag in set(batch.sys_flags))
    in_order = log_offsets[0] > end and bool((log_offsets[1:] > log_offsets[:-1]).all())
    if in_order and all_kept:
        return items
    kept = (np.array(batch.sys_flags, np.int64) & TRANSACTION_MASK) != TRANSACTION_ROLLBACK
    chosen = _chosen(log_offsets, batch.key_counts, kept, end, count_at_end)
    return ItemColumns(
        key_hashes=items.key_hashes[chosen],
        log_offsets=items.log_offsets[chosen],
        store_timestamps=items.store_timestamps[chosen],
    )


def _chosen(
    log_offsets: NDArray[np.int64],
    key_counts: NDArray[np.int64],
    kept: NDArray[np.bool_],
    end: int,
    count_at_end: Callable[[int], int],
) -> NDArray[np.bool_]:
    """Which of all keys are new."""
    before = np.empty_like(log_offsets)  # the greatest log offset up to then
    before[0] = end
    before[1:] = np.maximum(np.maximum.accumulate(log_offsets[:-1]), end)
    wanted = kept & (log_offsets > before)
    [again] = np.nonzero(kept & (log_offsets == end))
    known = first = 0
    if len(again) and end >= 0:
        message = int(again[0])
        wanted[message] = True
        known = min(count_at_end(end), int(key_counts[message]))
        first = int(key_counts[:message].sum())
    chosen = np.repeat(wanted, key_counts)
    chosen[first : first + known] = False
    return chosen
