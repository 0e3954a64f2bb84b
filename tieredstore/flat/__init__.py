"""The tier's files: append-only files made of segments, and the message queues kept in them.

Layer: container. It knows drivers and bytes, not brokers: `access` decides when to call it.
"""

from typing import TYPE_CHECKING

from tieredstore.model.lazy_names import lazy_names

if TYPE_CHECKING:
    from tieredstore.flat.message_file import FlatCommitLogFile, FlatConsumeQueueFile

__all__ = ["FlatCommitLogFile", "FlatConsumeQueueFile"]

_HOMES = {
    "FlatCommitLogFile": "message_file.FlatCommitLogFile",
    "FlatConsumeQueueFile": "message_file.FlatConsumeQueueFile",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
