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

from tieredstore.codec.checks import Buffer, crc32, fill_property_crc, reserve_property_crc
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
# By the lengths of both addresses: host bits and the fixed part of the record.
LAYOUTS: Final = {
    (4, 4): (0, FIXED_LAYOUTS[0]),
    (16, 4): (BORN_HOST_IPV6, FIXED_LAYOUTS[BORN_HOST_IPV6]),
    (4, 16): (STORE_HOST_IPV6, FIXED_LAYOUTS[STORE_HOST_IPV6]),
    (16, 16): (HOSTS_IPV6, FIXED_LAYOUTS[HOSTS_IPV6]),
}
# What no producer may send: the store would have to write it, and rebuilding queues believes it.
NEVER_SENT: Final = {
    INNER_COUNT: "inner batches are not stored here",
    LIGHT_QUEUES: "light queues are not written here",
    LIGHT_OFFSETS: "only a store can give it",
}
UNUSUAL: Final = frozenset({DELAY_LEVEL, *NEVER_SENT})
code_of_tags = lru_cache(maxsize=4096)(tags_code)

_OFFSETS: Final = Layout(">qq")  # queue offset and log offset lie side by side
_TIME: Final = Layout(">q")
_TIME_AFTER_IPV6: Final = STORE_TIMESTAMP_POSITION + IPV6_BYTES
_length: Final = INT16.pack
_VECTOR_RECORDS_MIN: Final = 12
_COLUMN_MESSAGES_MIN: Final = 16  # for fewer the calls of numpy cost more than they save
_STRING_END: Final = "\0"  # where properties hold one themselves, they are unusual
_WORDS: Final = {"h": ">i2", "i": ">i4", "q": ">i8"}  # an array's codes in a record
# What a message of an odd kind makes of code that is written for the usual ones.
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
    log has refused can go to another. Such a struct is created in a tenth of the time of a
    dataclass.
    """

    topic: str
    queue_id: int
    sys_flag: int
    in_queue: bool  # False if prepared or rolled back: no place in a queue
    tags_code: int  # for delayed messages the delivery time, once they have a place
    unique_key: str | None
    keys: str | None  # the text of KEYS: single keys with spaces between them
    waits_for_disk: bool
    has_property_crc: bool
    delay_ms: int | None  # of delayed messages only
    store_host: Host
    data: bytearray
    size: int
    queue_offset: int = 0  # as the store counts them; in the bytes it is 0 without a place
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
        """The answer to its put, when it is in the log."""
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
    """Records one after the other, and a row for each in every column.

    The columns have the names of a record's fields, and `placed` does the same for some rows. All
    else never changes.
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
    is_of_one_queue: bool  # all have a place in the same queue, as a producer's batch has
    waits_for_disk: bool  # one of them does, so all of them do
    has_property_crc: bool

    def __len__(self) -> int:
        return len(self.sizes)

    @classmethod
    def joined(cls, records: Sequence[Record]) -> RecordBatch:
        """One batch of records that have no place yet, in this order."""
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
        """What the queues store beside them: for delayed messages the delivery time."""
        if not self.delays_ms:
            return self.tags_hashes
        codes = list(self.tags_hashes)
        for row, delay in self.delays_ms.items():
            codes[row] = store_timestamp + delay
        return codes

    def placed(
        self, rows: range, queue_offsets: Sequence[int], log_offset: int, store_timestamp: int
    ) -> tuple[Buffer, list[int]]:
        """The bytes of these rows as the log holds them from this offset on, and where each is.

        The bytes are the batch's own: good until it is placed again.
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
    """A number for each byte, overlapping: numpy then writes words that are not aligned."""
    width = np.dtype(layout).itemsize
    return np.ndarray((len(data) - width + 1,), layout, data, strides=(1,))


def _write(words: NDArray[Any], places: NDArray[np.int64], values: NDArray[np.int64]) -> None:
    """An assignment that has to cast gives the interpreter away twice, for however few numbers."""
    words[places] = values.astype(words.dtype)


class PutRefusedError(TieredStoreError):
    """The message was not stored: nothing was written. `status` and `reason` say why."""

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class RecordEncoder:
    """Makes records of messages, or refuses them before anything is written.

    Many usual messages are encoded as columns. If one of them is unusual, or cannot be encoded,
    each is encoded alone: the bytes are the same.
    """

    def __init__(self, config: LocalConfig, *, batch_topics: frozenset[str] = frozenset()) -> None:
        """`batch_topics` have queues of Java's batch kind: a plain queue beside them is no use."""
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
        """Raises PutRefusedError with the status that RocketMQ would answer."""
        try:
            return self._encoded(message)
        except (AttributeError, TypeError, ValueError) as error:
            raise _wrong_kind(message, error) from error

    def encode_all(
        self, messages: Sequence[Message]
    ) -> tuple[RecordBatch | None, dict[int, PutResult]]:
        """The batch, None if it is empty; and the refusals by the places of their messages."""
        if len(messages) >= _COLUMN_MESSAGES_MIN and not self._property_crc:
            try:
                return self._encode_columns(messages), {}
            except (PutRefusedError, *_UNUSUAL_ERRORS):
                pass  # one of them is unusual, or can be no record: find out which
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
            properties = decode_properties(property_bytes)  # halves of characters became "?"
        if self._property_crc:
            property_bytes = reserve_property_crc(property_bytes)
        if len(property_bytes) > PROPERTY_BYTES_MAX:
            raise PutRefusedError(
                PutStatus.PROPERTIES_SIZE_EXCEEDED,
                f"properties: {len(property_bytes)} bytes are more than {PROPERTY_BYTES_MAX}",
            )
        topic = message.topic
        if topic in self.batch_topics:
            raise _illegal(f"topic: {topic!r:.80} has batch queues, which are not written here")
        queue_id = message.queue_id
        if type(queue_id) is not int:  # NumPy's would travel on, into files that cannot hold it
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
        # In the order of the fields: names would double the time.
        return Record(
            topic,
            queue_id,
            sys_flag,
            not sys_flag & TRANSACTION_PREPARED,  # rolled back has this bit too
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
        """The bytes, and the flag in them; the layout wants its values in a row."""
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
        """Raises some error or other unless each message is a usual one."""
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
        if any(flag & TRANSACTION_PREPARED for flag in flags):  # rolled back has this bit too
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
        """The bytes and the sizes: each record is joined of header, body, topic and properties."""
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
        _require(len(batch.data) == ends[-1])  # else the length of a body counts no bytes
        starts = ends - sizes
        words = {code: every_word(batch.data, layout) for code, layout in _WORDS.items()}
        checksums = _numbers(map(crc32, bodies), bodies) & INT32_MAX
        _write(words["i"], starts, sizes)
        _write(words["i"], starts + BODY_CRC_POSITION, checksums)
        _write(words["i"], starts + (len(header) - 4), body_bytes)
        _write(words["h"], ends - property_bytes - 2, property_bytes)
        for position, code, column in others:
            words[code][starts + position] = array(code, column)  # which refuses what does not fit


def waits_for_disk(wait: str | None) -> bool:
    """What the property WAIT says: only another word than true does not wait."""
    return not wait or wait.lower() == "true"


def _property_string(properties: Mapping[str, str]) -> tuple[bytes, bool]:
    """The bytes of `encode_properties`, without a look at each name and value if that can be.

    And whether they certainly come back as the same properties.
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
    """Property texts are there if all messages have one, else none."""
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
    """The bytes of properties that came as text: whatever they are, a reader takes them."""
    string = text if isinstance(text, bytes) else encode_utf8(text)
    if string.endswith(b"\0"):
        raise _illegal("properties: the text ends in 0, as what was never written whole")
    return string


@lru_cache(maxsize=4096)
def topic_field(topic: str) -> tuple[int, bytes]:
    """The magic and the bytes of a topic, its length before it."""
    if reason := why_no_topic(topic):
        raise _illegal(f"topic: {topic!r:.80}: {reason}")
    raw = topic.encode()
    if len(raw) <= TOPIC_BYTES_MAX_V1:
        return MESSAGE_MAGIC_V1, INT8.pack(len(raw)) + raw
    return MESSAGE_MAGIC_V2, INT16.pack(len(raw)) + raw


def _illegal(reason: str) -> PutRefusedError:
    return PutRefusedError(PutStatus.MESSAGE_ILLEGAL, reason)


def _wrong_kind(message: Message, error: Exception) -> PutRefusedError:
    """The refusal of what is no message, or has something in it that no message has."""
    try:
        require_place(message.topic, message.queue_id)
    except (AttributeError, InvalidArgumentError) as reason:
        return _illegal(str(reason))
    return _illegal(f"something in it is of the wrong kind: {error}")


def _bytes_of(body: object) -> bytes:
    """What a view or an array holds: its length may count other things than bytes."""
    try:
        return memoryview(body).tobytes()  # type: ignore[arg-type]
    except TypeError as reason:
        raise _illegal(f"body: {reason}") from reason


def _explained(message: Message) -> PutRefusedError:
    """The refusal that names the field which does not fit."""
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
    """The header of the first message, and where the others have something else: the columns."""
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

    Raises ValueError unless all come back from the bytes as they are.
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
