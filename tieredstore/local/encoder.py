"""Encodes messages as records, one or many at a time, and refuses those that it cannot encode."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from struct import Struct as Layout
from struct import error
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tieredstore.codec.checks import (
    PROPERTY_CRC_NAME,
    Buffer,
    crc32,
    fill_property_crc,
    reserve_property_crc,
    without_property_crc,
)
from tieredstore.codec.java import encode_utf8
from tieredstore.codec.message import (
    BLANK_BYTES,
    FIXED_LAYOUTS,
    PROPERTY_BYTES_MAX,
    TOPIC_BYTES_MAX_V1,
    encode_message,
)
from tieredstore.codec.names import encode_offset_id
from tieredstore.codec.record import (
    BODY_CRC_POSITION,
    BORN_HOST_IPV6,
    BORN_TIMESTAMP_POSITION,
    DELAY_LEVEL,
    FLAG_POSITION,
    HOSTS_IPV6,
    INNER_BATCH,
    INNER_COUNT,
    INT8,
    INT16,
    IPV6_BYTES,
    KEYS,
    LIGHT_OFFSETS,
    LIGHT_QUEUES,
    LOG_OFFSET_POSITION,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    QUEUE_ID_POSITION,
    QUEUE_OFFSET_POSITION,
    STORE_HOST_IPV6,
    STORE_TIMESTAMP_POSITION,
    SYS_FLAG_POSITION,
    TAGS,
    TRANSACTION_PREPARED,
    UNIQUE_KEY,
    WAIT_STORE_OK,
    decode_properties,
    encode_properties,
    tags_code,
)
from tieredstore.local.config import DelayLevels, LocalConfig
from tieredstore.model.errors import InvalidArgumentError, TieredStoreError
from tieredstore.model.message_columns import MessageColumns
from tieredstore.model.messages import Message, PutResult
from tieredstore.model.property_text import NAME_END, VALUE_END
from tieredstore.model.topics import why_no_topic
from tieredstore.model.values import INT32_MAX, Host, PutStatus, require_place, require_whole

RECORD_EXTRA_BYTES: Final = 64 * 1024
# Host bits and layout of the fixed part, by the lengths of the born and store addresses.
LAYOUTS: Final = {
    (4, 4): (0, FIXED_LAYOUTS[0]),
    (16, 4): (BORN_HOST_IPV6, FIXED_LAYOUTS[BORN_HOST_IPV6]),
    (4, 16): (STORE_HOST_IPV6, FIXED_LAYOUTS[STORE_HOST_IPV6]),
    (16, 16): (HOSTS_IPV6, FIXED_LAYOUTS[HOSTS_IPV6]),
}
# Properties that no producer may send: the store would have to write them, and a rebuild of
# queues believes them.
NEVER_SENT: Final = {
    INNER_COUNT: "inner batches are not stored here",
    LIGHT_QUEUES: "light queues are not written here",
    LIGHT_OFFSETS: "only a store can give it",
}
UNUSUAL: Final = frozenset({DELAY_LEVEL, PROPERTY_CRC_NAME, *NEVER_SENT})
code_of_tags = lru_cache(maxsize=4096)(tags_code)

_OFFSETS: Final = Layout(">qq")  # queue offset and log offset lie side by side
_TIME: Final = Layout(">q")
_TIME_AFTER_IPV6: Final = STORE_TIMESTAMP_POSITION + IPV6_BYTES
_length: Final = INT16.pack
_VECTOR_RECORDS_MIN: Final = 12
_COLUMN_MESSAGES_MIN: Final = 16  # for fewer, numpy's calls cost more than they save
_STRING_END: Final = "\0"  # properties that contain one are unusual
_WORDS: Final = {"h": ">i2", "i": ">i4", "q": ">i8"}  # array type codes, as stored in a record
# The errors that an unusual message causes in code written for usual ones.
_UNUSUAL_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    error,
)


class Record(Struct, gc=False):
    """One record and its fields, as a reader of its bytes would find them.

    The bytes lack two offsets, the store time and a CRC. `placed` writes them, so a record that one
    log refused can go to another. A msgspec struct is created in a tenth of the time of a
    dataclass.
    """

    topic: str
    queue_id: int
    sys_flag: int
    in_queue: bool  # False if prepared or rolled back: such a record has no place in a queue
    tags_code: int  # of a delayed message its delivery time, once it is placed
    unique_key: str | None
    keys: str | None  # the value of KEYS: single keys separated by spaces
    waits_for_disk: bool
    has_property_crc: bool
    delay_ms: int | None  # of delayed messages only
    store_host: Host
    data: bytearray
    size: int
    queue_offset: int = 0  # as the store counts; in the bytes 0 if the record is not in a queue
    log_offset: int = 0
    store_timestamp: int = 0

    @property
    def end_offset(self) -> int:
        return self.log_offset + self.size

    def placed(self, log_offset: int, store_timestamp: int) -> bytearray:
        """The bytes as the log holds them at this offset."""
        self.log_offset = log_offset
        self.store_timestamp = store_timestamp
        if self.delay_ms is not None:
            self.tags_code = store_timestamp + self.delay_ms
        data = self.data
        queue_offset = self.queue_offset if self.in_queue else 0
        _OFFSETS.pack_into(data, QUEUE_OFFSET_POSITION, queue_offset, log_offset)
        _TIME.pack_into(data, _time_position(self.sys_flag), store_timestamp)
        if self.has_property_crc:
            fill_property_crc(memoryview(data))
        return data

    def result(self, status: PutStatus) -> PutResult:
        """The answer to the put of this record, once it is in the log."""
        return PutResult(
            status=status,
            queue_offset=self.queue_offset,
            log_offset=self.log_offset,
            size=self.size,
            store_timestamp=self.store_timestamp,
            message_id=encode_offset_id(self.store_host, log_offset=self.log_offset),
        )


@dataclass(slots=True, init=False, eq=False)
class RecordBatch:
    """Records one after another, with one row for each in every column.

    The columns are named like the fields of `Record`. `placed` does for some rows what it does
    there; nothing else changes a batch.
    """

    data: bytearray
    sizes: Sequence[int]
    topics: Sequence[str]
    queue_ids: Sequence[int]
    sys_flags: Sequence[int]
    in_queue: Sequence[bool]
    tags_hashes: Sequence[int]
    unique_keys: Sequence[str | None]
    keys: Sequence[str | None]
    delays_ms: Mapping[int, int]  # by row, of delayed messages only
    is_of_one_queue: bool  # all have a place in the same queue, as in a producer's batch
    waits_for_disk: bool  # at least one does, so all do
    has_property_crc: bool

    def __len__(self) -> int:
        return len(self.sizes)

    @classmethod
    def joined(cls, records: Sequence[Record]) -> RecordBatch:
        """One batch of records, in this order, that have no place yet."""
        batch = cls()
        batch.data = bytearray().join([record.data for record in records])
        batch.sizes = [record.size for record in records]
        batch.topics = [record.topic for record in records]
        batch.queue_ids = [record.queue_id for record in records]
        batch.sys_flags = [record.sys_flag for record in records]
        batch.in_queue = [record.in_queue for record in records]
        batch.tags_hashes = [record.tags_code for record in records]
        batch.unique_keys = [record.unique_key for record in records]
        batch.keys = [record.keys for record in records]
        batch.delays_ms = {
            row: record.delay_ms
            for row, record in enumerate(records)
            if record.delay_ms is not None
        }
        batch.is_of_one_queue = all(batch.in_queue) and (
            len(set(batch.topics)) == len(set(batch.queue_ids)) == 1
        )
        batch.waits_for_disk = any(record.waits_for_disk for record in records)
        batch.has_property_crc = any(record.has_property_crc for record in records)
        return batch

    def tags_codes(self, store_timestamp: int) -> Sequence[int]:
        """The tags codes that the queues store; of a delayed message its delivery time."""
        if not self.delays_ms:
            return self.tags_hashes
        codes = list(self.tags_hashes)
        for row, delay in self.delays_ms.items():
            codes[row] = store_timestamp + delay
        return codes

    def placed(
        self, rows: range, queue_offsets: Sequence[int], log_offset: int, store_timestamp: int
    ) -> tuple[Buffer, list[int]]:
        """The bytes of these rows as the log holds them from this offset on, and the log offset
        of each.

        The bytes belong to the batch and are valid until it is placed again.
        """
        sizes = self.sizes[rows.start : rows.stop]
        start = sum(self.sizes[: rows.start])
        log_offsets = list(accumulate(sizes[:-1], initial=log_offset))
        place = self._place_few if len(rows) < _VECTOR_RECORDS_MIN else self._place_many
        place(rows, queue_offsets, log_offsets, start - log_offset, store_timestamp)
        if len(rows) == len(self) and not self.has_property_crc:
            return self.data, log_offsets
        view = memoryview(self.data)[start : start + sum(sizes)]
        if self.has_property_crc:
            for size, at in zip(sizes, log_offsets, strict=True):
                fill_property_crc(view[at - log_offset : at - log_offset + size])
        return view, log_offsets

    def _place_few(
        self,
        rows: range,
        queue_offsets: Sequence[int],
        log_offsets: list[int],
        move: int,
        store_timestamp: int,
    ) -> None:
        for row, log_offset in zip(rows, log_offsets, strict=True):
            queue_offset = queue_offsets[row] if self.in_queue[row] else 0
            start = log_offset + move
            time_at = start + _time_position(self.sys_flags[row])
            _OFFSETS.pack_into(self.data, start + QUEUE_OFFSET_POSITION, queue_offset, log_offset)
            _TIME.pack_into(self.data, time_at, store_timestamp)

    def _place_many(
        self,
        rows: range,
        queue_offsets: Sequence[int],
        log_offsets: list[int],
        move: int,
        store_timestamp: int,
    ) -> None:
        chosen = slice(rows.start, rows.stop)
        offsets = queue_offsets[chosen]
        if not all(self.in_queue[chosen]):
            offsets = [
                offset if in_queue else 0
                for offset, in_queue in zip(offsets, self.in_queue[chosen], strict=True)
            ]
        flags = self.sys_flags[chosen]
        one_flag = flags.count(flags[0]) == len(flags)
        time_positions = [_time_position(flag) for flag in (flags[:1] if one_flag else flags)]
        at = np.array(log_offsets, np.int64)
        words = every_word(self.data, ">i8")
        starts = at + move
        words[starts + QUEUE_OFFSET_POSITION] = offsets
        _write(words, starts + LOG_OFFSET_POSITION, at)
        words[starts + np.array(time_positions)] = store_timestamp


def _time_position(sys_flag: int) -> int:
    return _TIME_AFTER_IPV6 if sys_flag & BORN_HOST_IPV6 else STORE_TIMESTAMP_POSITION


def every_word(data: bytearray, layout: str) -> NDArray[Any]:
    """Overlapping numbers, one per byte, which let numpy write unaligned words."""
    width = np.dtype(layout).itemsize
    return np.ndarray((len(data) - width + 1,), layout, data, strides=(1,))


def _write(words: NDArray[Any], places: NDArray[np.int64], values: NDArray[np.int64]) -> None:
    """Casts first: a casting assignment releases the interpreter's lock twice, even for few
    numbers."""
    words[places] = values.astype(words.dtype)


class PutRefusedError(TieredStoreError):
    """The message was not stored: nothing was written. `status` and `reason` say why."""

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class RecordEncoder:
    """Makes records of messages, or refuses them before anything is written.

    Many usual messages are encoded as columns. If one of them is unusual or cannot be encoded, each
    is encoded alone; the bytes are the same.
    """

    def __init__(self, config: LocalConfig, *, batch_topics: frozenset[str] = frozenset()) -> None:
        """`batch_topics` have Java's batch queues; messages for them are refused, because a plain
        queue beside those is of no use."""
        self.batch_topics = batch_topics
        self.body_bytes_max = config.message_bytes_max
        self.total_bytes_max = min(
            config.message_bytes_max + RECORD_EXTRA_BYTES,
            config.commit_log_file_bytes - BLANK_BYTES,
        )
        self.never_sent: Mapping[str, str] = NEVER_SENT
        self._property_crc = config.property_crc_enabled
        self._delays = DelayLevels(config.message_delay_levels)

    def encode(self, message: Message) -> Record:
        """The record of a message. Raises PutRefusedError with the status that RocketMQ would
        answer."""
        try:
            return self._encoded(message)
        except (AttributeError, TypeError, ValueError) as error:
            raise _wrong_kind(message, error) from error

    def encode_all(
        self, messages: Sequence[Message]
    ) -> tuple[RecordBatch | None, dict[int, PutResult]]:
        """The batch, None if empty; and the refusals by the places of their messages."""
        if len(messages) >= _COLUMN_MESSAGES_MIN and not self._property_crc:
            try:
                return self._encode_columns(messages), {}
            except (PutRefusedError, *_UNUSUAL_ERRORS):
                pass  # at least one is unusual or cannot be encoded: find out which
        records: list[Record] = []
        refused: dict[int, PutResult] = {}
        for place, message in enumerate(messages):
            try:
                records.append(self.encode(message))
            except PutRefusedError as refusal:
                refused[place] = PutResult(status=refusal.status, reason=refusal.reason)
        return RecordBatch.joined(records) if records else None, refused

    def _encoded(self, message: Message) -> Record:
        properties = message.properties
        if message.properties_text is None:
            property_bytes, plain = _property_string(properties)
        else:
            property_bytes, plain = _sent_string(message.properties_text), False
        if not plain:
            properties = decode_properties(property_bytes)  # lone surrogates became "?"
        if self._property_crc:
            property_bytes = reserve_property_crc(property_bytes)
        elif PROPERTY_CRC_NAME in properties:  # of another record, from which it was read
            property_bytes = without_property_crc(property_bytes)
        if len(property_bytes) > PROPERTY_BYTES_MAX:
            raise PutRefusedError(
                PutStatus.PROPERTIES_SIZE_EXCEEDED,
                f"properties: {len(property_bytes)} bytes are more than {PROPERTY_BYTES_MAX}",
            )
        topic = message.topic
        if topic in self.batch_topics:
            raise _illegal(f"topic: {topic!r:.80} has batch queues, which are not written here")
        queue_id = message.queue_id
        if type(queue_id) is not int:  # a NumPy integer would reach files that cannot hold it
            require_whole(queue_id)
            queue_id = int(queue_id)
        data, sys_flag = self._record(message, queue_id, property_bytes)
        delay_ms = None
        if not UNUSUAL.isdisjoint(properties):
            delay_ms = self._delay_of(topic, properties)
            for name, reason in self.never_sent.items():
                if name in properties:
                    raise _illegal(f"property {name}: {reason}")
        find = properties.get
        tags = find(TAGS)
        # Positional, in the order of the fields: keyword arguments would double the time.
        return Record(
            topic,
            queue_id,
            sys_flag,
            not sys_flag & TRANSACTION_PREPARED,  # rolled-back messages have this bit too
            code_of_tags(tags) if tags else 0,
            find(UNIQUE_KEY) or None,
            find(KEYS),
            waits_for_disk(find(WAIT_STORE_OK)),
            self._property_crc,
            delay_ms,
            message.store_host,
            data,
            len(data),
        )

    def _record(
        self, message: Message, queue_id: int, property_bytes: bytes
    ) -> tuple[bytearray, int]:
        """The bytes of the record, and the flag in them."""
        body = message.body
        if type(body) is not bytes:
            body = _bytes_of(body)
        body_bytes = len(body)
        if body_bytes > self.body_bytes_max:
            raise _illegal(f"body: {body_bytes} bytes are more than {self.body_bytes_max}")
        magic, topic_bytes = topic_field(message.topic)
        sys_flag = message.sys_flag
        if queue_id < 0 or sys_flag & INNER_BATCH:
            raise _illegal("a queue id below 0, or an inner batch: not stored here")
        born, born_port = message.born_host
        store, store_port = message.store_host
        property_count = len(property_bytes)
        # fmt: off
        try:
            bits, layout = LAYOUTS[len(born), len(store)]
            sys_flag = sys_flag & ~HOSTS_IPV6 | bits
            total_bytes = layout.size + body_bytes + len(topic_bytes) + 2 + property_count
            if total_bytes > self.total_bytes_max:
                raise _illegal(f"a record of {total_bytes} bytes is more than the "
                               f"{self.total_bytes_max} that a message and a file allow")
            return bytearray().join((
                layout.pack(
                    total_bytes, magic, crc32(body) & INT32_MAX, queue_id, message.flag, 0, 0,
                    sys_flag, message.born_timestamp, born, born_port, 0, store, store_port,
                    message.reconsume_times, message.prepared_transaction_offset, body_bytes,
                ),
                body, topic_bytes, _length(property_count), property_bytes,
            )), sys_flag
        except (KeyError, error) as misfit:
            raise _explained(message) from misfit
        # fmt: on

    def _delay_of(self, topic: str, properties: Mapping[str, str]) -> int | None:
        try:
            return self._delays.delay_ms(topic, properties)
        except ValueError as reason:
            raise _illegal(str(reason)) from reason

    def _encode_columns(self, messages: Sequence[Message]) -> RecordBatch:
        """Raises PutRefusedError or one of `_UNUSUAL_ERRORS` unless every message is usual."""
        properties: list[Mapping[str, str]]
        columns = messages if isinstance(messages, MessageColumns) else _columns_of(messages)
        if columns is not messages and messages[0].properties_text is None:
            properties = [message.properties for message in messages]
            strings, names = _property_strings(properties)
        else:
            strings = [_sent_string(text) for text in columns.properties_texts]
            properties = [decode_properties(string) for string in strings]
            names = set(chain.from_iterable(properties))
            _require(UNUSUAL.isdisjoint(names))
        batch = RecordBatch()
        batch.topics, batch.queue_ids = columns.topics, columns.queue_ids
        batch.sys_flags = columns.sys_flags
        flags = set(batch.sys_flags)
        _require(min(batch.queue_ids) >= 0 and set(map(type, batch.queue_ids)) == {int})
        _require(not any(flag & (INNER_BATCH | HOSTS_IPV6) for flag in flags))
        batch.in_queue = [True] * len(messages)
        if any(flag & TRANSACTION_PREPARED for flag in flags):  # rolled-back ones have it too
            batch.in_queue = [not flag & TRANSACTION_PREPARED for flag in batch.sys_flags]
        batch.is_of_one_queue = all(batch.in_queue) and (
            len(set(batch.topics)) == len(set(batch.queue_ids)) == 1
        )
        self._fill_records(batch, columns, strings)

        nothing = [None] * len(messages)
        tags = [named.get(TAGS) for named in properties] if TAGS in names else nothing
        codes = {text: code_of_tags(text) if text else 0 for text in set(tags)}
        batch.tags_hashes = [codes[text] for text in tags]
        batch.keys = [named.get(KEYS) for named in properties] if KEYS in names else nothing
        batch.unique_keys = nothing
        if UNIQUE_KEY in names:
            batch.unique_keys = [named.get(UNIQUE_KEY) or None for named in properties]
        batch.waits_for_disk = WAIT_STORE_OK not in names or any(
            waits_for_disk(named.get(WAIT_STORE_OK)) for named in properties
        )
        batch.delays_ms = {}
        batch.has_property_crc = False
        return batch

    def _fill_records(
        self, batch: RecordBatch, columns: MessageColumns, strings: list[bytes]
    ) -> None:
        """Fill in bytes and sizes: each record is a header, a body, a topic and properties."""
        fields = {topic: topic_field(topic) for topic in set(batch.topics)}
        magic, _ = fields[batch.topics[0]]
        _require(all(magic == other for other, _ in fields.values()))
        _require(self.batch_topics.isdisjoint(fields))
        topics = {topic: field + bytes(2) for topic, (_, field) in fields.items()}
        header, others = _headers(batch, columns, magic)
        bodies = columns.bodies
        pieces = [header] * (4 * len(bodies))
        pieces[1::4] = bodies
        pieces[2::4] = [topics[topic] for topic in batch.topics]
        pieces[3::4] = strings
        body_bytes, property_bytes = _lengths(bodies), _lengths(strings)
        sizes = len(header) + body_bytes + property_bytes
        sizes += _lengths(pieces[2::4]) if len(topics) > 1 else len(pieces[2])
        _require(
            body_bytes.max() <= self.body_bytes_max
            and property_bytes.max() <= PROPERTY_BYTES_MAX
            and sizes.max() <= self.total_bytes_max
        )
        batch.data = bytearray().join(pieces)
        batch.sizes = sizes.tolist()
        ends = sizes.cumsum()
        _require(len(batch.data) == ends[-1])  # a body's length may count other things than bytes
        starts = ends - sizes
        words = {code: every_word(batch.data, layout) for code, layout in _WORDS.items()}
        checksums = _numbers(map(crc32, bodies), bodies) & INT32_MAX
        _write(words["i"], starts, sizes)
        _write(words["i"], starts + BODY_CRC_POSITION, checksums)
        _write(words["i"], starts + (len(header) - 4), body_bytes)
        _write(words["h"], ends - property_bytes - 2, property_bytes)
        for position, code, column in others:
            words[code][starts + position] = array(code, column)  # refuses a value that is too big


def waits_for_disk(wait: str | None) -> bool:
    """Whether the property WAIT asks to wait: yes, unless it is a word other than true."""
    return not wait or wait.lower() == "true"


def _property_string(properties: Mapping[str, str]) -> tuple[bytes, bool]:
    """The bytes of `encode_properties`, and whether they surely decode to the same properties.

    Usual properties are encoded without looking at each name and value.
    """
    count = len(properties)
    if not count:
        return b"", True
    text = VALUE_END.join(map(NAME_END.join, properties.items())) + VALUE_END
    if text.count("\x02") != count or text.count("\x01") != count or "" in properties:
        try:
            return encode_properties(properties), False
        except ValueError as reason:
            raise _illegal(str(reason)) from reason
    return (text.encode(), True) if text.isascii() else (encode_utf8(text), False)


def _columns_of(messages: Sequence[Message]) -> MessageColumns:
    """The columns of messages. Raises InvalidArgumentError if only some have a property text."""
    texts = [message.properties_text for message in messages]
    return MessageColumns(
        topics=[message.topic for message in messages],
        queue_ids=[message.queue_id for message in messages],
        bodies=[message.body for message in messages],
        properties_texts=[text for text in texts if text is not None] or None,
        flags=[message.flag for message in messages],
        sys_flags=[message.sys_flag for message in messages],
        born_timestamps=[message.born_timestamp for message in messages],
        born_hosts=[message.born_host for message in messages],
        store_hosts=[message.store_host for message in messages],
        reconsume_times=[message.reconsume_times for message in messages],
        prepared_transaction_offsets=[message.prepared_transaction_offset for message in messages],
    )


def _sent_string(text: str | bytes) -> bytes:
    """The bytes of properties that came as text; a reader accepts any."""
    string = text if isinstance(text, bytes) else encode_utf8(text)
    if string.endswith(b"\0"):
        raise _illegal("properties: the text ends in 0, as what was never written whole")
    return string


@lru_cache(maxsize=4096)
def topic_field(topic: str) -> tuple[int, bytes]:
    """The magic of a record with this topic, and the bytes of the topic after its length."""
    if reason := why_no_topic(topic):
        raise _illegal(f"topic: {topic!r:.80}: {reason}")
    raw = topic.encode()
    if len(raw) <= TOPIC_BYTES_MAX_V1:
        return MESSAGE_MAGIC_V1, INT8.pack(len(raw)) + raw
    return MESSAGE_MAGIC_V2, INT16.pack(len(raw)) + raw


def _illegal(reason: str) -> PutRefusedError:
    return PutRefusedError(PutStatus.MESSAGE_ILLEGAL, reason)


def _wrong_kind(message: Message, error: Exception) -> PutRefusedError:
    """The refusal of something that is not a message, or has a field of the wrong kind."""
    try:
        require_place(message.topic, message.queue_id)
    except (AttributeError, InvalidArgumentError) as reason:
        return _illegal(str(reason))
    return _illegal(f"something in it is of the wrong kind: {error}")


def _bytes_of(body: object) -> bytes:
    """The bytes of a view or an array, whose length may count other things than bytes."""
    try:
        return memoryview(body).tobytes()  # type: ignore[arg-type]
    except TypeError as reason:
        raise _illegal(f"body: {reason}") from reason


def _explained(message: Message) -> PutRefusedError:
    """The refusal that names the field that does not fit."""
    try:
        encode_message(
            topic=message.topic,
            queue_id=message.queue_id,
            queue_offset=0,
            log_offset=0,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_timestamp=0,
            store_host=message.store_host,
            flag=message.flag,
            sys_flag=message.sys_flag,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
        )
    except ValueError as reason:
        return _illegal(str(reason))
    return _illegal("the message does not fit a record")


def _headers(
    batch: RecordBatch, columns: MessageColumns, magic: int
) -> tuple[bytes, list[tuple[int, str, Sequence[int]]]]:
    """The header of the first message, and the columns in which other messages differ from it."""
    born_host, store_host = columns.born_hosts[0], columns.store_hosts[0]
    _require(columns.born_hosts.count(born_host) == len(columns))
    _require(columns.store_hosts.count(store_host) == len(columns))
    bits, layout = LAYOUTS[len(born_host[0]), len(store_host[0])]
    if bits:
        batch.sys_flags = [flag | bits for flag in batch.sys_flags]
    # fmt: off
    header = layout.pack(
        0, magic, 0, columns.queue_ids[0], columns.flags[0], 0, 0, batch.sys_flags[0],
        columns.born_timestamps[0], *born_host, 0, *store_host, columns.reconsume_times[0],
        columns.prepared_transaction_offsets[0], 0,
    )
    # fmt: on
    places: list[tuple[int, str, Sequence[int]]] = [
        (QUEUE_ID_POSITION, "i", batch.queue_ids),
        (FLAG_POSITION, "i", columns.flags),
        (SYS_FLAG_POSITION, "i", batch.sys_flags),
        (BORN_TIMESTAMP_POSITION, "q", columns.born_timestamps),
        (layout.size - 16, "i", columns.reconsume_times),
        (layout.size - 12, "q", columns.prepared_transaction_offsets),
    ]
    return header, [place for place in places if place[2].count(place[2][0]) < len(columns)]


def _property_strings(properties: Sequence[Mapping[str, str]]) -> tuple[list[bytes], set[str]]:
    """The property string of each message, and the names in them.

    Raises ValueError unless the bytes decode to the same properties.
    """
    names = list(chain.from_iterable(properties))
    texts = [NAME_END] * (4 * len(names) + 1)
    texts[0] = ""
    texts[1::4] = names
    texts[3::4] = chain.from_iterable([named.values() for named in properties])
    texts[4::4] = [VALUE_END] * len(names)
    for count in accumulate(map(len, properties)):
        texts[4 * count] += _STRING_END
    text = "".join(texts)
    _require(text.count(NAME_END) == text.count(VALUE_END) == len(names))
    _require(text.count(_STRING_END) == len(properties))
    known = set(names)
    _require("" not in known and UNUSUAL.isdisjoint(known))
    return text.encode().split(_STRING_END.encode())[:-1], known


def _lengths(column: Sequence[Sized]) -> NDArray[np.int64]:
    return _numbers(map(len, column), column)


def _numbers(values: Iterable[int], column: Sequence[object]) -> NDArray[np.int64]:
    """One value for each in the column."""
    return np.fromiter(values, np.int64, len(column))


def _require(usual: object) -> None:
    if not usual:
        raise ValueError("unusual")
