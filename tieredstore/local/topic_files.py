"""What a deleted topic leaves on the disk: its directory, emptied of what is a store's.

What lives here: `remove_topic_directory`. Only files that a store makes are deleted; somebody may
have put others beside them, and they are not ours to lose.

    consumequeue/<topic>/<queue number>/<position in 20 digits>
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from tieredstore.codec.names import parse_local_file_name
from tieredstore.driver.durable import fsync_directory
from tieredstore.local.topic_names import queue_number

log = logging.getLogger(__name__)


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
