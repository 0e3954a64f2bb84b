"""Many messages as one batch of records, column by column.

What lives here: `BatchEncoder`. An interpreter spends its time on the steps between bytes, so a
batch is made in few steps over all messages: each field is gathered into a column, the property
strings are one text, numpy writes the header words. That is for messages as producers send them;
where a batch holds anything else `record_encoder` makes each record by itself. The bytes are the
same.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence, Sized
from itertools import chain
from struct import error
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.crc32 import crc32
from tieredstore.codec.message import PROPERTY_BYTES_MAX
from tieredstore.codec.properties import (
    KEYS,
    NAME_END,
    TAGS,
    UNIQUE_KEY,
    VALUE_END,
    WAIT_STORE_OK,
)
from tieredstore.codec.record_fields import (
    BORN_TIMESTAMP_POSITION,
    HOSTS_IPV6,
    INNER_BATCH,
    QUEUE_ID_POSITION,
    SYS_FLAG_POSITION,
    TRANSACTION_PREPARED,
)
from tieredstore.local.config import LocalConfig
from tieredstore.local.records.record_batch import RecordBatch, every_word
from tieredstore.local.records.record_encoder import (
    LAYOUTS,
    UNUSUAL,
    PutRefusedError,
    RecordEncoder,
    code_of_tags,
    topic_field,
    waits_for_disk,
)
from tieredstore.model.messages import Message, PutResult
from tieredstore.model.values import INT32_MAX

_COLUMN_MESSAGES_MIN: Final = 16  # for fewer the calls of numpy cost more than they save
_CRC_POSITION: Final = 8
_FLAG_POSITION: Final = 16
_LAYOUTS: Final = {"h": ">i2", "i": ">i4", "q": ">i8"}  # an array's codes in a record


# What a message of an odd kind makes of code that is written for the usual ones.
_UNUSUAL_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    error,
)


class BatchEncoder:
    """Makes records of messages, and results for those that can be none."""

    def __init__(self, config: LocalConfig, *, batch_topics: frozenset[str] = frozenset()) -> None:
        self._one = RecordEncoder(config, batch_topics=batch_topics)
        self._property_crc = config.property_crc_enabled

    def encode(
        self, messages: Sequence[Message]
    ) -> tuple[RecordBatch | None, dict[int, PutResult]]:
        """The batch, None if it is empty; and the refusals by the places of their messages."""
        if len(messages) >= _COLUMN_MESSAGES_MIN and not self._property_crc:
            try:
                return self._encode_columns(messages), {}
            except (PutRefusedError, *_UNUSUAL_ERRORS):
                pass  # one of them is unusual, or can be no record: find out which
        records: list[RecordBatch] = []
        refused: dict[int, PutResult] = {}
        for place, message in enumerate(messages):
            try:
                records.append(self._one.encode(message))
            except PutRefusedError as refusal:
                refused[place] = PutResult(status=refusal.status, reason=refusal.reason)
        return RecordBatch.joined(records) if records else None, refused

    def _encode_columns(self, messages: Sequence[Message]) -> RecordBatch:
        """Raises some error or other unless each message is a usual one."""
        properties = [message.properties for message in messages]
        strings, names = _property_strings(properties)
        batch = RecordBatch()
        batch.topics = [message.topic for message in messages]
        batch.queue_ids = [message.queue_id for message in messages]
        batch.sys_flags = [message.sys_flag for message in messages]
        flags = set(batch.sys_flags)
        _require(min(batch.queue_ids) >= 0 and bool not in map(type, batch.queue_ids))
        _require(not any(flag & (INNER_BATCH | HOSTS_IPV6) for flag in flags))
        batch.in_queue = [True] * len(messages)
        if any(flag & TRANSACTION_PREPARED for flag in flags):  # rolled back has this bit too
            batch.in_queue = [not flag & TRANSACTION_PREPARED for flag in batch.sys_flags]
        batch.is_of_one_queue = all(batch.in_queue) and (
            len(set(batch.topics)) == len(set(batch.queue_ids)) == 1
        )
        self._fill_records(batch, messages, strings)

        nothing = [None] * len(messages)
        tags = [each.get(TAGS) for each in properties] if TAGS in names else nothing
        codes = {text: code_of_tags(text) if text else 0 for text in set(tags)}
        batch.tags_hashes = [codes[text] for text in tags]
        batch.keys = [each.get(KEYS) for each in properties] if KEYS in names else nothing
        batch.unique_keys = nothing
        if UNIQUE_KEY in names:
            batch.unique_keys = [each.get(UNIQUE_KEY) or None for each in properties]
        batch.waits_for_disk = WAIT_STORE_OK not in names or any(
            waits_for_disk(each.get(WAIT_STORE_OK)) for each in properties
        )
        batch.delays_ms = {}
        batch.has_property_crc = False
        return batch

    def _fill_records(
        self, batch: RecordBatch, messages: Sequence[Message], strings: list[bytes]
    ) -> None:
        """The bytes and the sizes: each record is joined of header, body, topic and properties."""
        fields = {topic: topic_field(topic) for topic in set(batch.topics)}
        magic, _ = fields[batch.topics[0]]
        _require(all(magic == each for each, _ in fields.values()))
        _require(self._one.batch_topics.isdisjoint(fields))
        topics = {topic: field + bytes(2) for topic, (_, field) in fields.items()}
        header, columns = _headers(batch, messages, magic)
        pieces = [header] * (4 * len(messages))
        pieces[1::4] = bodies = [message.body for message in messages]
        pieces[2::4] = [topics[topic] for topic in batch.topics]
        pieces[3::4] = strings
        body_bytes, property_bytes = _lengths(bodies), _lengths(strings)
        sizes = len(header) + body_bytes + property_bytes
        sizes += _lengths(pieces[2::4]) if len(topics) > 1 else len(pieces[2])
        _require(
            body_bytes.max() <= self._one.body_bytes_max
            and property_bytes.max() <= PROPERTY_BYTES_MAX
            and sizes.max() <= self._one.total_bytes_max
        )
        batch.data = bytearray().join(pieces)
        batch.sizes = sizes.tolist()
        ends = sizes.cumsum()
        _require(len(batch.data) == ends[-1])  # else the length of a body counts no bytes
        starts = ends - sizes
        words = {code: every_word(batch.data, layout) for code, layout in _LAYOUTS.items()}
        words["i"][starts] = sizes
        words["i"][starts + _CRC_POSITION] = _numbers(map(crc32, bodies), bodies) & INT32_MAX
        words["i"][starts + (len(header) - 4)] = body_bytes
        words["h"][ends - property_bytes - 2] = property_bytes
        for position, code, column in columns:
            words[code][starts + position] = array(code, column)  # which refuses what does not fit


def _headers(
    batch: RecordBatch, messages: Sequence[Message], magic: int
) -> tuple[bytes, list[tuple[int, str, Sequence[int]]]]:
    """The header of the first message, and where the others have something else: the columns."""
    first = messages[0]
    for hosts in (
        [message.born_host for message in messages],
        [message.store_host for message in messages],
    ):
        _require(hosts.count(hosts[0]) == len(hosts))
    bits, layout = LAYOUTS[len(first.born_host[0]), len(first.store_host[0])]
    if bits:
        batch.sys_flags = [flag | bits for flag in batch.sys_flags]
    # fmt: off
    header = layout.pack(
        0, magic, 0, first.queue_id, first.flag, 0, 0, batch.sys_flags[0], first.born_timestamp,
        *first.born_host, 0, *first.store_host, first.reconsume_times,
        first.prepared_transaction_offset, 0,
    )
    columns: list[tuple[int, str, Sequence[int]]] = [
        (QUEUE_ID_POSITION, "i", batch.queue_ids),
        (_FLAG_POSITION, "i", [message.flag for message in messages]),
        (SYS_FLAG_POSITION, "i", batch.sys_flags),
        (BORN_TIMESTAMP_POSITION, "q", [message.born_timestamp for message in messages]),
        (layout.size - 16, "i", [message.reconsume_times for message in messages]),
        (layout.size - 12, "q", [message.prepared_transaction_offset for message in messages]),
    ]
    # fmt: on
    return header, [each for each in columns if each[2].count(each[2][0]) < len(messages)]


def _property_strings(properties: Sequence[Mapping[str, str]]) -> tuple[list[bytes], set[str]]:
    """The property string of each message, and the names in them.

    Raises ValueError unless all come back from the bytes as they are.
    """
    names = list(chain.from_iterable(properties))
    texts = [""] * (2 * len(names) + 1)
    texts[:-1:2] = names
    texts[1::2] = chain.from_iterable([each.values() for each in properties])
    text = NAME_END.join(texts)
    _require(text.count(NAME_END) == 2 * len(names) and VALUE_END not in text)
    known = set(names)
    _require("" not in known and UNUSUAL.isdisjoint(known))
    # Behind each text stands the end of a name: every other one shall be the end of a value.
    data = bytearray(text.encode())
    units: NDArray[np.uint8] = np.frombuffer(data, np.uint8)
    text_ends = np.flatnonzero(units == ord(NAME_END))
    units[text_ends[1::2]] = ord(VALUE_END)
    starts = np.concatenate(([0], text_ends + 1))[::2]
    ends = starts[_lengths(properties).cumsum()].tolist()
    raw = bytes(data)
    return [raw[start:end] for start, end in zip([0, *ends], ends, strict=False)], known


def _lengths(column: Sequence[Sized]) -> NDArray[np.int64]:
    return _numbers(map(len, column), column)


def _numbers(values: Iterable[int], column: Sequence[object]) -> NDArray[np.int64]:
    """One value for each in the column."""
    return np.fromiter(values, np.int64, len(column))


def _require(usual: object) -> None:
    if not usual:
        raise ValueError("unusual")
