"""Topics and queues as directories: which names are one, and how those of a topic go.

What lives here: `queue_directory`, `is_topic`, `queue_number`, and `remove_topic_directory`. Only
files that a store makes are deleted; somebody may have put others beside them, and they are not
ours to lose.

    consumequeue/<topic>/<queue number>/<position in 20 digits>
"""

from __future__ import annotations

import os
from pathlib import Path

from tieredstore.codec.names import parse_local_file_name
from tieredstore.driver.durable import fsync_directory
from tieredstore.model.errors import BackendRefusedError
from tieredstore.model.printable import log_of
from tieredstore.model.topics import why_no_directory
from tieredstore.model.values import INT32_MAX

log = log_of(__name__)


def queue_directory(root: Path, topic: str, queue_id: int) -> Path:
    """Where a queue is. BackendRefusedError for a topic or number that would lead elsewhere."""
    if not is_topic(topic):
        raise BackendRefusedError(str(root), "open the queue", f"{topic!r:.80} is no topic")
    if not 0 <= queue_id <= INT32_MAX:
        raise BackendRefusedError(str(root), "open the queue", f"{queue_id} is no queue number")
    return root / topic / str(queue_id)


def is_topic(name: str) -> bool:
    """Whether the name is one directory here. Java has taken topics with a backslash: they are
    read, and no put takes another (`model.topics`)."""
    return why_no_directory(name.replace("\\", "_")) is None


def queue_number(name: str) -> int | None:
    """The number that a directory is named by, written as RocketMQ writes it; None if it is not."""
    if not (name.isascii() and name.isdigit()) or len(name) > 10:
        return None
    number = int(name)
    return number if str(number) == name and number <= INT32_MAX else None


def remove_topic_directory(directory: Path) -> None:
    """Delete its queues' files and the directories that are empty then, durably.

    What is no file of a queue stays, with the directories that lead to it, and is logged. Links
    are not followed. Nothing happens where there is no directory.
    """
    if not directory.is_dir() or directory.is_symlink():
        return
    for path in _entries(directory):
        if queue_number(path.name) is not None and path.is_dir() and not path.is_symlink():
            _remove_queue_directory(path)
    _remove_if_empty(directory)


def _remove_queue_directory(directory: Path) -> None:
    files = [path for path in _entries(directory) if _is_queue_file(path)]
    for path in files:  # oldest first: a crash leaves a valid queue
        path.unlink(missing_ok=True)
    if files:
        fsync_directory(directory)
    _remove_if_empty(directory)


def _is_queue_file(path: Path) -> bool:
    try:
        parse_local_file_name(path.name)
    except ValueError:
        return False
    return path.is_file() and not path.is_symlink()


def _remove_if_empty(directory: Path) -> None:
    left = _entries(directory)
    if not left:
        directory.rmdir()
        fsync_directory(directory.parent)
        return
    for path in left:
        if not path.is_dir():
            log.warning("%s is no file of a queue and stays", path)
        elif path.is_symlink() or queue_number(path.name) is None:
            log.warning("%s is no directory of a queue and stays", path)


def _entries(directory: Path) -> list[Path]:
    return sorted(Path(entry) for entry in os.scandir(directory))
