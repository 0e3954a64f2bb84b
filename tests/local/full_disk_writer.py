"""A process that fills a small disk with a store's files and tells how far it got.

No tests. `test_mapped_file` runs it on a separate disk of half a mebibyte.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from tieredstore.local.index_file import IndexFile, IndexSize, ItemColumns
from tieredstore.local.mapped_file import MappedFiles
from tieredstore.local.mapped_file_queue import MappedFileQueue
from tieredstore.model.errors import BackendRefusedError

SIZE = IndexSize(1_000, 100_000)
CALLS_MAX = 1_000_000


def fill_queue(folder: Path) -> int:
    """Append units of 20 bytes until the disk is full; return how many bytes the queue holds."""
    queue = MappedFileQueue(folder / "queue", file_bytes=6_000_000, files=MappedFiles())
    try:
        for number in range(CALLS_MAX):
            queue.append(number.to_bytes(20, "big"))
    except BackendRefusedError:
        pass
    held = queue.read(0, queue.max_offset) or b""
    numbers = [int.from_bytes(held[at : at + 20], "big") for at in range(0, len(held), 20)]
    assert numbers == list(range(len(numbers)))
    return len(held)


def fill_index(folder: Path) -> int:
    """Add keys one by one until the disk is full; return how many the file holds."""
    path = folder / "20250101000000000"
    index = IndexFile.create(path, SIZE)
    assert path.stat().st_size == SIZE.file_bytes
    try:
        for number in range(CALLS_MAX):
            one = np.array([number])
            index.put(
                ItemColumns(key_hashes=one.astype(np.int32), log_offsets=one, store_timestamps=one)
            )
    except BackendRefusedError:
        pass
    count = index.header.item_count
    assert index.log_offset_at(count) == count - 1
    return count


def main(what: str, root: str) -> None:
    room = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
    assert room < 2_000_000, "not the small disk"
    print(fill_queue(Path(root)) if what == "queue" else fill_index(Path(root)))


if __name__ == "__main__":
    main(*sys.argv[1:])
