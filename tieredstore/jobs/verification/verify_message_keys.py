"""The keys of messages as an index has them, one row for each key.

What lives here: `MessageKeys` and `keys_of_messages`. What keys a text has is told in
`index.property_keys`; adding them up in `verify_sums`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.properties import KEYS, decode_properties
from tieredstore.codec.record_fields import HOSTS_IPV6
from tieredstore.index.key_hashes import key_hash
from tieredstore.index.property_keys import keys_of_texts
from tieredstore.jobs.reading.record_fields import RecordFields
from tieredstore.jobs.verification.verify_records import Named, Rows
from tieredstore.jobs.verification.verify_sums import key_entry_hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageKeys:
    """One row for each key of each message; `is_empty` rows are of the empty key, which only
    RocketMQ puts. `ipv6`: whether RocketMQ takes part of an address for the store time."""

    log_offsets: Rows
    sizes: Rows
    hashes: Rows
    times: Rows
    queue_offsets: Rows
    ipv6: NDArray[np.bool_]
    is_empty: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.log_offsets)

    def chosen(self, rows: NDArray[np.bool_]) -> MessageKeys:
        return MessageKeys(
            log_offsets=self.log_offsets[rows],
            sizes=self.sizes[rows],
            hashes=self.hashes[rows],
            times=self.times[rows],
            queue_offsets=self.queue_offsets[rows],
            ipv6=self.ipv6[rows],
            is_empty=self.is_empty[rows],
        )


def keys_of_messages(topic: str, named: Named, fields: RecordFields, rows: Rows) -> MessageKeys:
    """Of these rows, whose records are whole."""
    data = bytes(fields.records)  # no copy: it is what was read
    starts = fields.property_starts[rows]
    ends = starts + fields.property_bytes[rows]
    places = zip(starts.tolist(), ends.tolist(), strict=True)
    texts = [data[start:end] for start, end in places]
    keys = keys_of_texts(texts, prefix=f"{topic}#")
    empties = rows[_with_empty_key(texts, keys.gaps)]
    owners = np.concatenate((np.repeat(rows, keys.counts), empties))
    empty_hash = key_entry_hashes(np.array([key_hash(f"{topic}#")], np.uint64))
    count = len(owners) - len(empties)
    return MessageKeys(
        log_offsets=named.places[owners],
        sizes=named.sizes[owners],
        hashes=np.concatenate((key_entry_hashes(keys.hashes), np.repeat(empty_hash, len(empties)))),
        times=fields.store_times()[owners],
        queue_offsets=named.queue_offsets[owners],
        ipv6=of_ipv6(fields)[owners],
        is_empty=np.arange(len(owners)) >= count,
    )


def _with_empty_key(texts: list[bytes], gaps: Rows) -> Rows:
    """Texts whose KEYS Java splits so that an empty piece is among them: not one at the end."""
    found: list[int] = []
    for number in gaps.tolist():
        keys = decode_properties(texts[number]).get(KEYS, "").rstrip(" ")
        if keys.startswith(" ") or "  " in keys:
            found.append(number)
    return np.array(found, np.int64)


def of_ipv6(fields: RecordFields) -> NDArray[np.bool_]:
    """Messages with an address of IPv6: RocketMQ takes part of it for their store time."""
    found: NDArray[np.bool_] = (fields.sys_flags & HOSTS_IPV6) != 0
    return found
