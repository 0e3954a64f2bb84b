"""Where the reads of the tier get their bytes: the cache, the backend, or the cache alone.

What lives here: the three kinds of `ByteSource`. How the cache works is in `read_ahead`.
"""

from __future__ import annotations

from tieredstore.access.reads.read_ahead import (
    COMMIT_LOG_AHEAD,
    CONSUME_QUEUE_AHEAD,
    ReadAhead,
    ReadCache,
)
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import SegmentType


class ColdError(Exception):
    """Bytes that are wanted at once are not in the cache. Never leaves the access layer."""


class CachedSource:
    """Reads through the cache, and ahead of what is asked for."""

    def __init__(self, cache: ReadCache, config: StoreConfig) -> None:
        self._cache = cache
        most = config.read_ahead_bytes
        self._log_ahead = ReadAhead(
            floor_bytes=min(COMMIT_LOG_AHEAD.floor_bytes, most), cap_bytes=most
        )

    def read(self, file: FlatAppendFile, offset: int, length: int) -> bytes:
        ahead = self._log_ahead if file.type is SegmentType.COMMIT_LOG else CONSUME_QUEUE_AHEAD
        return self._cache.read(file, offset, length, ahead=ahead)


class ExactSource:
    """What is cached comes from there; the rest is read as it is asked for, and not kept.

    For reads out of the blue, that nobody goes on from.
    """

    def __init__(self, cache: ReadCache) -> None:
        self._cache = cache

    def read(self, file: FlatAppendFile, offset: int, length: int) -> bytes:
        data = self._cache.peek(file, offset, length)
        return file.read(offset, length) if data is None else data


class HotSource:
    """What is cached, and nothing else: nobody waits here. Without a cache nothing is."""

    def __init__(self, cache: ReadCache | None) -> None:
        self._cache = cache

    def read(self, file: FlatAppendFile, offset: int, length: int) -> bytes:
        data = None if self._cache is None else self._cache.peek(file, offset, length)
        if data is None:
            raise ColdError
        return data
