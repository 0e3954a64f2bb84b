"""What the dispatch hands to the key index: the keys of a run of messages, as columns.

What lives here: `IndexBatch`, the keys of one message, and which keys of a batch are new. Where
they go is `index_service`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.java import local_key_hashes
from tieredstore.codec.properties import VALUE_END, split_keys
from tieredstore.codec.record_fields import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from tieredstore.local.index_chain import ItemColumns


def key_texts(topic: str, *, unique_key: str | None, keys: Iterable[str]) -> list[str]:
    """What is hashed for one message, in Java's order: UNIQ_KEY first, then each of KEYS."""
    texts = [] if unique_key is None else [f"{topic}#{unique_key}"]
    texts += [f"{topic}#{key}" for key in keys]
    return texts


def texts_of_messages(
    topics: Sequence[str], unique_keys: Sequence[str | None], keys_texts: Sequence[str | None]
) -> tuple[list[str], list[int]]:
    """`key_texts` of many messages one after another, and how many each has.

    KEYS is given as it stands in the properties: the single keys with spaces between them.
    """
    if topics and topics.count(topics[0]) == len(topics):
        found = _texts_of_topic(topics[0], unique_keys, keys_texts)
        if found is not None:
            return found
    texts: list[str] = []
    counts: list[int] = []
    for topic, unique_key, keys in zip(topics, unique_keys, keys_texts, strict=True):
        more = key_texts(topic, unique_key=unique_key, keys=split_keys(keys))
        texts += more
        counts.append(len(more))
    return texts, counts


def _texts_of_topic(
    topic: str, unique_keys: Sequence[str | None], keys_texts: Sequence[str | None]
) -> tuple[list[str], list[int]] | None:
    """The same by one replacement for all, if every message has keys, each of one letter or more.

    VALUE_END can be in no key, since it ends a property, but it can be in a topic.
    """
    rows: list[str] = []
    if all(keys_texts):
        rows = cast("list[str]", keys_texts)
    elif any(keys_texts):
        return None
    if all(unique_keys):
        unique = cast("list[str]", unique_keys)
        if " " in "".join(unique):
            return None
        rows = [f"{one} {keys}" for one, keys in zip(unique, rows, strict=True)] if rows else unique
    elif unique_keys.count(None) != len(unique_keys):
        return None
    if not rows or VALUE_END in topic:
        return None
    prefix = f"{topic}#"
    between = VALUE_END + prefix
    texts = (prefix + " ".join(rows).replace(" ", between)).split(VALUE_END)
    if prefix in texts:  # an empty piece is no key
        return None
    return texts, [row.count(" ") + 1 for row in rows]


@dataclass(slots=True, kw_only=True)
class IndexBatch:
    """Messages in the order of the log: one entry a message, and all their keys one after another.

    `key_counts` says how many of `texts` belong to each message; 0 is fine, and needed: it tells
    the index how far the log has been looked at.
    """

    log_offsets: list[int] = field(default_factory=list)
    store_timestamps: list[int] = field(default_factory=list)
    sys_flags: list[int] = field(default_factory=list)
    key_counts: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.log_offsets)

    def add(
        self, *, log_offset: int, store_timestamp: int, sys_flag: int, texts: list[str]
    ) -> None:
        """One more message; `texts` as `key_texts` makes them."""
        self.log_offsets.append(log_offset)
        self.store_timestamps.append(store_timestamp)
        self.sys_flags.append(sys_flag)
        self.key_counts.append(len(texts))
        self.texts += texts


def new_items(batch: IndexBatch, *, end: int, count_at_end: Callable[[int], int]) -> ItemColumns:
    """The keys of a batch that are not indexed yet, when `end` is the last indexed message.

    Messages that were rolled back and messages below the end are left out, and of the message at
    the end as many keys as are already there, which `count_at_end` tells.
    """
    log_offsets = np.array(batch.log_offsets, np.int64)
    timestamps = np.array(batch.store_timestamps, np.int64)
    key_counts = np.array(batch.key_counts, np.int64)
    all_kept = all(flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK for flag in set(batch.sys_flags))
    items = np.repeat(np.arange(len(log_offsets)), key_counts)
    texts = batch.texts
    in_order = log_offsets[0] > end and bool((log_offsets[1:] > log_offsets[:-1]).all())
    if not in_order or not all_kept:
        kept = (np.array(batch.sys_flags, np.int64) & TRANSACTION_MASK) != TRANSACTION_ROLLBACK
        chosen = _chosen(log_offsets, key_counts, kept, end, count_at_end)
        texts = [text for text, take in zip(texts, chosen.tolist(), strict=True) if take]
        items = items[chosen]
    return ItemColumns(
        key_hashes=local_key_hashes(texts),
        log_offsets=log_offsets[items],
        store_timestamps=timestamps[items],
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
