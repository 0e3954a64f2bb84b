"""Topics and queue numbers as directories.

What lives here: which names may be one, and which directories are one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tieredstore.model.errors import BackendRefusedError
from tieredstore.model.values import INT32_MAX

_NAME_BYTES_MAX: Final = 255


def queue_directory(root: Path, topic: str, queue_id: int) -> Path:
    """Where a queue is. BackendRefusedError for a topic or number that would lead elsewhere."""
    if not is_topic(topic):
        raise BackendRefusedError(str(root), "open the queue", f"{topic!r:.80} is no topic")
    if not 0 <= queue_id <= INT32_MAX:
        raise BackendRefusedError(str(root), "open the queue", f"{queue_id} is no queue number")
    return root / topic / str(queue_id)


def is_topic(name: str) -> bool:
    """Whether the name is one directory: any text will do that is neither a path nor too long."""
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        return False
    return 0 < size <= _NAME_BYTES_MAX and not {"/", "\x00"} & set(name) and name not in (".", "..")


def queue_number(name: str) -> int | None:
    """The number that a directory is named by, written as RocketMQ writes it; None if it is not."""
    if not (name.isascii() and name.isdigit()) or len(name) > 10:
        return None
    number = int(name)
    return number if str(number) == name and number <= INT32_MAX else None
