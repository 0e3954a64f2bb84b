"""The tier's files: append-only files made of segments, and the message queues kept in them.

Layer: container. It knows drivers and bytes, not brokers: who asks and when lives in `access`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.flat.message_file import FlatCommitLogFile, FlatConsumeQueueFile

__all__ = ["FlatCommitLogFile", "FlatConsumeQueueFile"]

_HOMES = {
    "FlatCommitLogFile": "message_file",
    "FlatConsumeQueueFile": "message_file",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
