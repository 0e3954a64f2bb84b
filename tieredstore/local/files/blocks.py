"""Room on the disk for what is about to be written through a map.

What lives here: `Blocks` and `IndexBlocks`. The files of queues and index are sparse: full in size
from the first moment on, but without blocks. A write through a map into such a hole cannot fail
like a write: where the disk is full, the system kills the process. So the blocks are asked for
before, and a full disk is an error that the next try may not meet.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from tieredstore.codec.local_index import file_bytes, item_position
from tieredstore.model.errors import BackendRefusedError

_PAGE_BYTES: Final = 4_096
_STEP_BYTES_MAX: Final = 1 << 20
_CANNOT: Final = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


class Blocks:
    """How far a region has blocks that is filled from its start to its limit.

    * It grows by as much as there is: thousands of queues with a few messages take a page each,
      and a long file asks seldom.
    * What lies before the first position that is asked for was written before, so it has blocks.
    * A file system that cannot promise room is believed to have it.
    """

    __slots__ = ("_limit", "_start", "end")

    def __init__(self, limit: int, *, start: int = 0) -> None:
        self._start = start
        self._limit = limit
        self.end = start

    def reserve(self, descriptor: int, position: int, end: int, path: str) -> None:
        """Have blocks for these bytes. BackendRefusedError without room: nothing may be written."""
        if end <= self.end:
            return
        first = max(position, self.end)
        more = end + min(end - self._start, _STEP_BYTES_MAX)
        wanted = max(end, min(-(-more // _PAGE_BYTES) * _PAGE_BYTES, self._limit))
        try:
            self.end = _allocate(descriptor, first, wanted)
        except OSError:
            try:
                self.end = _allocate(descriptor, first, end)
            except OSError as error:
                raise BackendRefusedError(path, "make room for an append", str(error)) from error

    def forget(self) -> None:
        """The region was cut: ask again."""
        self.end = self._start


class IndexBlocks:
    """The same for an index file: its slots all at once, since they come in any order; items."""

    def __init__(self, *, slot_count: int, item_capacity: int) -> None:
        self._head_bytes = item_position(0, slot_count=slot_count)
        size = file_bytes(slot_count=slot_count, item_capacity=item_capacity)
        self._head = Blocks(self._head_bytes)
        self._items = Blocks(size, start=self._head_bytes)

    def reserve(self, descriptor: int, position: int, end: int, path: str) -> None:
        """Have blocks for these items, for the header and for all slots."""
        self._head.reserve(descriptor, 0, self._head_bytes, path)
        self._items.reserve(descriptor, position, end, path)


def _allocate(descriptor: int, start: int, end: int) -> int:
    try:
        os.posix_fallocate(descriptor, start, end - start)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    return end
