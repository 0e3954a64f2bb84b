"""tieredstore: the second tier of RocketMQ's message store, for Python brokers.

What lives here: the names that a user needs, and nothing else.
"""

from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.model.catalogue import QueueRecord, SegmentRecord, TopicRecord
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    InvalidConfigError,
    MetadataError,
    OffsetOutOfRangeError,
    PositionMismatchError,
    SegmentCorruptError,
    SegmentError,
    SegmentNotFoundError,
    SegmentSealedError,
    StoreClosedError,
    TieredStoreError,
)
from tieredstore.model.messages import GetResult, Message, MessageRun, PutResult, QueryResult
from tieredstore.model.values import Boundary, GetStatus, PutStatus, SegmentType, StorageLevel

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "BackendRefusedError",
    "BackendUnavailableError",
    "Boundary",
    "FileSegment",
    "GetResult",
    "GetStatus",
    "InvalidConfigError",
    "Message",
    "MessageRun",
    "MessageStore",
    "MetadataError",
    "MetadataStore",
    "OffsetOutOfRangeError",
    "PositionMismatchError",
    "PutResult",
    "PutStatus",
    "QueryResult",
    "QueueRecord",
    "Runtime",
    "SegmentCorruptError",
    "SegmentError",
    "SegmentNotFoundError",
    "SegmentProvider",
    "SegmentRecord",
    "SegmentSealedError",
    "SegmentType",
    "StorageLevel",
    "StoreClosedError",
    "StoreConfig",
    "TieredStoreError",
    "TopicRecord",
    "__version__",
]
