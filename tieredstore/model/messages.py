"""Messages going in, messages coming out, and the answers of a message store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, overload

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from tieredstore.model.errors import InvalidArgumentError
from tieredstore.model.message_body import PLAIN_BYTES_MAX, plain_body
from tieredstore.model.property_text import TextProperties
from tieredstore.model.values import GetStatus, Host, PutStatus

LOOPBACK = Host(b"\x7f\x00\x00\x01", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message from a producer; the store adds offsets and the store time.

    `properties_text` is for brokers: the properties as they came over the wire, or as the
    `property_bytes` of a stored message. It is stored unchanged, with its order, duplicates and
    empty entries, but for a checksum of the record it came in (`__CRC32#`); and `properties` is
    what a reader finds in it. Only one of the two may be given, else InvalidArgumentError: to
    change the properties of such a message, use
    `replace(message, properties=…, properties_text=None)`.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: Host = LOOPBACK
    store_host: Host = LOOPBACK
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    properties_text: str | bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        text = self.properties_text
        if text is None:
            return
        if not isinstance(text, str | bytes):
            raise InvalidArgumentError(f"properties_text: want text or bytes, not {text!r:.80}")
        if self.properties and not isinstance(self.properties, TextProperties):
            raise InvalidArgumentError("properties and properties_text: want only one of them")
        object.__setattr__(self, "properties", TextProperties(text))

    def body_decompressed(self, limit: int = PLAIN_BYTES_MAX) -> bytes:
        """The body before its producer compressed it; `message_body.plain_body` explains limit and
        errors."""
        return plain_body(self.body, self.sys_flag, limit=limit)


class PutResult(Struct, frozen=True, kw_only=True, gc=False):
    """Where a message was put. The offsets are -1 unless the status says that it is stored.

    A struct, not a dataclass: one is made for every put, and that takes a tenth of the time.
    """

    status: PutStatus
    queue_offset: int = -1
    log_offset: int = -1
    size: int = 0
    store_timestamp: int = 0
    message_id: str = ""
    reason: str = ""

    @property
    def stored(self) -> bool:
        """Whether the message is in the store."""
        return self.status in (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedMessage(ABC):
    """One stored record, its place in the queue, and the most used fields.

    A store makes `codec.selected.SelectedRecord`, which decodes the record when one of the fields
    below is first accessed. Each of them raises SegmentCorruptError if the record is damaged.
    """

    queue_offset: int
    log_offset: int
    tags_code: int
    record: bytes

    @property
    @abstractmethod
    def body(self) -> bytes:
        """The body as it is stored; still compressed if the producer compressed it."""

    @property
    @abstractmethod
    def properties(self) -> Mapping[str, str]:
        """All properties by name."""

    @property
    @abstractmethod
    def tags(self) -> str | None:
        """The tags; None if there are none."""

    @property
    @abstractmethod
    def keys(self) -> tuple[str, ...]:
        """The keys by which a query finds the message."""

    @property
    @abstractmethod
    def store_timestamp(self) -> int:
        """When the broker stored the message, in ms since 1970."""


class FoundRecords(Protocol):
    """Records that a read has found, before messages are made from them."""

    def __len__(self) -> int: ...

    def messages(self) -> list[SelectedMessage]: ...

    def records(self) -> bytes:
        """The records one after another."""


class LazyMessages(Sequence[SelectedMessage]):
    """Messages of one read, all made when one of them is first accessed. Equal to a list or tuple
    of the same messages."""

    __slots__ = ("_count", "_found", "_made")

    def __init__(self, found: FoundRecords) -> None:
        self._count = len(found)
        self._found: FoundRecords | None = found
        self._made: list[SelectedMessage] = []

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> SelectedMessage: ...

    @overload
    def __getitem__(self, index: slice) -> list[SelectedMessage]: ...

    def __getitem__(self, index: int | slice) -> SelectedMessage | list[SelectedMessage]:
        return self._all()[index]

    def __iter__(self) -> Iterator[SelectedMessage]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | tuple | LazyMessages):
            return NotImplemented
        return len(self) == len(other) and self._all() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._all())

    def __reduce__(self) -> tuple[type[list[SelectedMessage]], tuple[list[SelectedMessage]]]:
        return list, (self._all(),)

    def records(self) -> bytes:
        """The records one after another; no message is made for them."""
        found = self._found
        return joined_records(self._made) if found is None else found.records()

    def _all(self) -> list[SelectedMessage]:
        found = self._found
        if found is not None:
            self._made = found.messages()
            self._found = None  # after `_made`, as another thread may read both
        return self._made


def joined_records(messages: Sequence[SelectedMessage]) -> bytes:
    """The records one after another, as in RocketMQ's answer to a pull."""
    if isinstance(messages, LazyMessages):
        return messages.records()
    return b"".join([message.record for message in messages])


@dataclass(frozen=True, slots=True, kw_only=True)
class GetResult:
    """The answer to a read by queue offset; `next_offset` always says where to go on.

    Messages from the tier are made when one of them is first accessed. A broker that only passes
    them on uses `records`.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: Sequence[SelectedMessage] = ()

    def records(self) -> bytes:
        """The records one after another, as in RocketMQ's answer to a pull."""
        return joined_records(self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """The answer to a query by key, newest first.

    * `complete` is False if something that may hold more could not be read, or if a store returned
      fewer than it was asked for and has more.
    * `is_cut` says that only the latter is true: nothing but older messages is missing.
    * `lags` says that everything was read, and only messages that the key index has not taken yet
      may be missing. Then `complete` is False.
    * The rest says how far each key index that was asked has come: its newest message. For the
      broker's own store these are the log offset and the store time that RocketMQ's clients get as
      `indexLastUpdatePhyoffset` and `indexLastUpdateTimestamp`. The tier counts log offsets by
      queue, so for its index there is only the time. -1 and 0: not asked, or the index is empty.
    """

    messages: Sequence[SelectedMessage] = ()
    complete: bool = True
    is_cut: bool = False
    lags: bool = False
    indexed_log_offset: int = -1
    indexed_timestamp: int = 0
    tier_indexed_timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRun:
    """Consecutive messages of one queue as columns, without an object per message.

    Row i is the message with queue offset `first_offset + i`. Its record is
    `records[starts[i] : starts[i] + message_bytes[i]]`.

    Records in a bytearray belong only to the holder of the run, who may change them. Records in
    bytes or a view are shared.
    """

    first_offset: int
    log_offsets: npt.NDArray[np.int64]
    message_bytes: npt.NDArray[np.int32]
    tags_codes: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    records: bytes | bytearray | memoryview

    def __len__(self) -> int:
        return len(self.message_bytes)

    @property
    def end_offset(self) -> int:
        """Where to go on: one more than the last queue offset."""
        return self.first_offset + len(self)

    def head(self, count: int) -> MessageRun:
        """The first rows; the records stay as they are."""
        if count >= len(self):
            return self
        return replace(
            self,
            log_offsets=self.log_offsets[:count],
            message_bytes=self.message_bytes[:count],
            tags_codes=self.tags_codes[:count],
            starts=self.starts[:count],
        )

    def record(self, index: int) -> memoryview:
        """The record of one row, without a copy."""
        start = int(self.starts[index])
        return memoryview(self.records)[start : start + int(self.message_bytes[index])]


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchRequest:
    """One message in the log, as a store passes it to its dispatchers."""

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    sys_flag: int = 0
    unique_key: str | None = None
    keys: tuple[str, ...] = ()
