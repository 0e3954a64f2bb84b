"""Enumerations, queue keys, and the rows of the catalogue: topics, queues and segments.

Unset times are None here and 9223372036854775807 only in RocketMQ's JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeAlias

from tieredstore.model.errors import InvalidArgumentError

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class SegmentType(IntEnum):
    """What a segment holds; the numbers are RocketMQ's codes, the names its directories."""

    COMMIT_LOG = 0
    CONSUME_QUEUE = 1
    INDEX = 2


class StorageLevel(IntEnum):
    """When a read is served by the tier; comparison is by `>=`."""

    DISABLE = 0
    NOT_IN_DISK = 1
    NOT_IN_MEM = 2
    FORCE = 3


class Boundary(Enum):
    """Which end of a run of equal timestamps a search by time returns."""

    LOWER = "lower"
    UPPER = "upper"


class AppendStatus(Enum):
    """What became of an append to memory."""

    SUCCESS = "success"
    FILE_FULL = "file_full"


class PutStatus(Enum):
    """What became of a message that was put."""

    PUT_OK = "put_ok"
    FLUSH_DISK_TIMEOUT = "flush_disk_timeout"
    MESSAGE_ILLEGAL = "message_illegal"
    PROPERTIES_SIZE_EXCEEDED = "properties_size_exceeded"
    SERVICE_NOT_AVAILABLE = "service_not_available"
    UNKNOWN_ERROR = "unknown_error"


class GetStatus(Enum):
    """What became of a read by queue offset; the answer also has the next offset to ask for."""

    FOUND = "found"
    NO_MATCHED_MESSAGE = "no_matched_message"
    MESSAGE_WAS_REMOVING = "message_was_removing"
    OFFSET_FOUND_NULL = "offset_found_null"
    OFFSET_OVERFLOW_BADLY = "offset_overflow_badly"
    OFFSET_OVERFLOW_ONE = "offset_overflow_one"
    OFFSET_TOO_SMALL = "offset_too_small"
    NO_MATCHED_LOGIC_QUEUE = "no_matched_logic_queue"
    NO_MESSAGE_IN_QUEUE = "no_message_in_queue"
    OFFSET_RESET = "offset_reset"


class QueueKey(NamedTuple):
    """One queue of one topic."""

    topic: str
    queue_id: int


class Host(NamedTuple):
    """A network address as a record stores it: 4 or 16 raw bytes and a port."""

    address: bytes
    port: int

    @property
    def is_ipv6(self) -> bool:
        return len(self.address) == 16


def require_place(topic: object, queue_id: object, *numbers: object) -> None:
    """Raises InvalidArgumentError unless these are a topic, a queue id and whole numbers.

    True is no queue id: it would be a second name for queue 1. NaN is neither above nor below
    anything, so a loop over offsets would never end.
    """
    require_text("topic", topic)
    require_whole(queue_id, *numbers)


def require_text(name: str, *texts: object) -> None:
    """Raises InvalidArgumentError unless each is text."""
    for text in texts:
        if not isinstance(text, str):
            raise InvalidArgumentError(f"{name}: want text, not {text!r:.80}")


def texts_of(name: str, texts: object) -> list[str]:
    """Several texts as a list. Raises InvalidArgumentError unless it is a collection of texts. A
    single text is refused too, as its letters would be taken for names."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise InvalidArgumentError(f"{name}: want a collection of texts, not {texts!r:.80}")
    found = list(texts)
    require_text(name, *found)
    return found


def require_callable(name: str, given: object) -> None:
    """Raises InvalidArgumentError unless it can be called."""
    if not callable(given):
        raise InvalidArgumentError(f"{name}: want something to call, not {given!r:.80}")


def require_whole(*numbers: object) -> None:
    """Raises InvalidArgumentError unless each is a whole number, of Python's or of NumPy's."""
    for number in numbers:
        if type(number) is not int and (
            isinstance(number, bool) or not hasattr(number, "__index__")
        ):
            raise InvalidArgumentError(f"want a whole number, not {number!r:.80}")


def require_seconds(name: str, given: object) -> None:
    """Raises InvalidArgumentError unless it is a number or None. NaN is refused: no wait would
    end."""
    if given is not None and (not hasattr(given, "__float__") or given != given):
        raise InvalidArgumentError(f"{name}: want seconds or None, not {given!r:.80}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic and its number in the key index. `reserve_hours` None means the store's default."""

    topic: str
    topic_id: int
    reserve_hours: int | None = None
    status: int = 0
    update_timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRecord:
    """A queue as RocketMQ's catalogue has it; RocketMQ leaves both offsets at -1."""

    broker_name: str
    topic: str
    queue_id: int
    min_offset: int = -1
    max_offset: int = -1
    update_timestamp: int = 0

    @property
    def key(self) -> QueueKey:
        return QueueKey(self.topic, self.queue_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord:
    """One segment: `size` bytes from byte `base_offset` of its file on.

    `path` is the queue path `<broker>/<topic>/<queue id>`. RocketMQ 5.3.3 never sets `status` and
    `seal_timestamp`: we keep what we read, and write zeros for new segments.
    """

    path: str
    type: SegmentType
    base_offset: int
    size: int = 0
    create_timestamp: int = 0
    begin_timestamp: int | None = None
    end_timestamp: int | None = None
    status: int = 0
    seal_timestamp: int = 0

    @property
    def key(self) -> tuple[str, SegmentType, int]:
        return self.path, self.type, self.base_offset

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size
