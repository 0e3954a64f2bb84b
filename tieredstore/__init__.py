"""tieredstore: the second tier of RocketMQ's message store, for Python brokers.

The names that a user needs, and nothing else. Each is imported on first use, because
`tieredstore --help` needs none of them.
"""

from typing import TYPE_CHECKING

from tieredstore.model.lazy_names import find_moved_modules, lazy_names

if TYPE_CHECKING:
    from tieredstore.access.health import TierHealth
    from tieredstore.access.reader import TieredReader
    from tieredstore.access.store import TieredMessageStore
    from tieredstore.access.tables import ConsumerOffsets, TopicTable
    from tieredstore.access.wiring import load_plugins
    from tieredstore.codec.broker_tables import TopicConfig
    from tieredstore.codec.message import decode_message
    from tieredstore.codec.record import decode_properties, tags_code
    from tieredstore.codec.selected import SelectedRecord
    from tieredstore.codec.sql_filter import SqlFilter, filter_of
    from tieredstore.codec.tags_filter import TagsFilter
    from tieredstore.driver.message_store import (
        AbstractPluginMessageStore,
        MessageFilter,
        MessageStore,
    )
    from tieredstore.driver.metadata import MetadataStore
    from tieredstore.driver.provider import SegmentProvider
    from tieredstore.driver.runtime import Runtime
    from tieredstore.driver.segment import FileSegment
    from tieredstore.model.config import StoreConfig
    from tieredstore.model.errors import (
        BackendError,
        BackendRefusedError,
        BackendUnavailableError,
        InvalidArgumentError,
        InvalidConfigError,
        MetadataError,
        OffsetOutOfRangeError,
        OtherProcessError,
        PositionMismatchError,
        SegmentCorruptError,
        SegmentError,
        SegmentNotFoundError,
        SegmentSealedError,
        StoreClosedError,
        TieredStoreError,
    )
    from tieredstore.model.message_columns import MessageColumns
    from tieredstore.model.messages import (
        GetResult,
        Message,
        MessageRun,
        PutResult,
        QueryResult,
        SelectedMessage,
    )
    from tieredstore.model.values import (
        Boundary,
        GetStatus,
        Host,
        PutStatus,
        QueueKey,
        QueueRecord,
        SegmentRecord,
        SegmentType,
        StorageLevel,
        TopicRecord,
    )
    from tieredstore.model.version import __version__

__all__ = [
    "AbstractPluginMessageStore",
    "BackendError",
    "BackendRefusedError",
    "BackendUnavailableError",
    "Boundary",
    "ConsumerOffsets",
    "FileSegment",
    "GetResult",
    "GetStatus",
    "Host",
    "InvalidArgumentError",
    "InvalidConfigError",
    "Message",
    "MessageColumns",
    "MessageFilter",
    "MessageRun",
    "MessageStore",
    "MetadataError",
    "MetadataStore",
    "OffsetOutOfRangeError",
    "OtherProcessError",
    "PositionMismatchError",
    "PutResult",
    "PutStatus",
    "QueryResult",
    "QueueKey",
    "QueueRecord",
    "Runtime",
    "SegmentCorruptError",
    "SegmentError",
    "SegmentNotFoundError",
    "SegmentProvider",
    "SegmentRecord",
    "SegmentSealedError",
    "SegmentType",
    "SelectedMessage",
    "SelectedRecord",
    "SqlFilter",
    "StorageLevel",
    "StoreClosedError",
    "StoreConfig",
    "TagsFilter",
    "TierHealth",
    "TieredMessageStore",
    "TieredReader",
    "TieredStoreError",
    "TopicConfig",
    "TopicRecord",
    "TopicTable",
    "__version__",
    "decode_message",
    "decode_properties",
    "filter_of",
    "load_plugins",
    "tags_code",
]

_NAMES = {
    "access.health": "TierHealth",
    "access.reader": "TieredReader",
    "access.store": "TieredMessageStore",
    "access.tables": "ConsumerOffsets TopicTable",
    "access.wiring": "load_plugins",
    "codec.broker_tables": "TopicConfig",
    "codec.message": "decode_message",
    "codec.record": "decode_properties tags_code",
    "codec.selected": "SelectedRecord",
    "codec.sql_filter": "SqlFilter filter_of",
    "codec.tags_filter": "TagsFilter",
    "driver.message_store": "AbstractPluginMessageStore MessageFilter MessageStore",
    "driver.metadata": "MetadataStore",
    "driver.provider": "SegmentProvider",
    "driver.runtime": "Runtime",
    "driver.segment": "FileSegment",
    "model.config": "StoreConfig",
    "model.errors": (
        "BackendError BackendRefusedError BackendUnavailableError "
        "InvalidArgumentError InvalidConfigError "
        "MetadataError OffsetOutOfRangeError OtherProcessError PositionMismatchError "
        "SegmentCorruptError SegmentError SegmentNotFoundError SegmentSealedError "
        "StoreClosedError TieredStoreError"
    ),
    "model.message_columns": "MessageColumns",
    "model.messages": "GetResult Message MessageRun PutResult QueryResult SelectedMessage",
    "model.values": (
        "Boundary GetStatus Host PutStatus QueueKey QueueRecord SegmentRecord SegmentType "
        "StorageLevel TopicRecord"
    ),
    "model.version": "__version__",
}
_HOMES = {name: f"{home}.{name}" for home, names in _NAMES.items() for name in names.split()}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)

find_moved_modules()
