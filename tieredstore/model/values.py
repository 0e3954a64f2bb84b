"""The small closed sets of words: kinds of segments, levels, statuses, boundaries."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final, NamedTuple

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1


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
    """What became of a read by queue offset; the next offset to ask for comes with it."""

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
