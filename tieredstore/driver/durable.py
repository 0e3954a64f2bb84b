"""What makes a file, a name or a replacement survive a power cut.

What lives here: fsync of directories, durable creation of directories, atomic replacement.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def fsync_directory(path: str | os.PathLike[str]) -> None:
    """Make the names in a directory durable: created, renamed and removed ones."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: str | os.PathLike[str]) -> None:
    """Create a directory and its missing parents, each name durable when this returns."""
    directory = Path(path)
    missing: list[Path] = []
    while not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    for child in reversed(missing):
        child.mkdir(exist_ok=True)
        fsync_directory(child.parent)


def write_all(descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
    """`pwrite` until every byte is written: the system may take fewer than asked."""
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(descriptor, view, position)
        view = view[written:]
        position += written


def write_atomically(
    path: str | os.PathLike[str], blocks: Iterable[bytes | bytearray | memoryview]
) -> None:
    """Replace the file at `path`: after a crash there is the old content or the new, whole.

    One writer a path at a time; what a crashed one left behind is written over.
    """
    target = Path(path)
    temporary = target.with_name(target.name + ".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        position = 0
        for block in blocks:
            write_all(descriptor, block, position)
            position += len(memoryview(block).cast("B"))
        os.fsync(descriptor)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    os.replace(temporary, target)
    fsync_directory(target.parent)
