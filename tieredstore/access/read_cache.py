"""The read cache: byte ranges already read and ranges fetched ahead, within a budget."""

from __future__ import annotations

import copy
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Final, Protocol

from tieredstore.driver.runtime import Clock
from tieredstore.model.config import KIB, MIB, QUEUE_UNIT_BYTES
from tieredstore.model.errors import (
    BackendUnavailableError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    TieredStoreError,
)


class CachedFile(Protocol):
    """A file that only grows at its end and only shrinks at its beginning."""

    @property
    def cache_key(self) -> Hashable:
        """Identifies the file among all that share a cache; never reused for other bytes."""

    @property
    def min_offset(self) -> int:
        """The first byte that may be read."""

    @property
    def commit_offset(self) -> int:
        """The first byte that may not be read yet."""

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes, or an error."""


@dataclass(slots=True, eq=False, kw_only=True)
class Extent:
    """One range of a file: being fetched while `flight` is set, complete afterwards.

    `data` never changes once it is set, so a reader that has found an extent may read it without
    the lock, even after it was evicted.
    """

    key: Hashable  # of the file
    start: int
    end: int
    window: int  # bytes; the window of a read that continues this one grows from it
    read_to: int  # the end of the bytes requested so far: a read that continues begins there
    kept: bool = False  # True while others can find it
    reserved_bytes: int = 0
    used_at: float = 0.0
    data: bytes = b""
    flight: Future[bytes] | None = field(default_factory=Future)


class Extents:
    """The extents of one file. Not thread-safe: the cache's lock guards it."""

    __slots__ = ("_items", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._items: list[Extent] = []

    def __len__(self) -> int:
        return len(self._items)

    def at(self, offset: int) -> Extent | None:
        """The extent that holds this byte; None if none does."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            return None
        extent = self._items[index]
        return extent if offset < extent.end else None

    def around(self, offset: int) -> tuple[Extent | None, Extent | None]:
        """For a byte in no extent: the extent that ends right before it, and the next one."""
        index = bisect_right(self._starts, offset)
        before = self._items[index - 1] if index else None
        behind = self._items[index] if index < len(self._items) else None
        return (before if before is not None and before.end == offset else None), behind

    def before(self, offset: int | None) -> list[Extent]:
        """A copy of the extents that begin before an offset; all of them without an offset."""
        return self._items[: None if offset is None else bisect_left(self._starts, offset)]

    def add(self, extent: Extent) -> None:
        index = bisect_right(self._starts, extent.start)
        self._starts.insert(index, extent.start)
        self._items.insert(index, extent)

    def remove(self, extent: Extent) -> None:
        index = bisect_left(self._starts, extent.start)
        del self._starts[index], self._items[index]


class ExtentTable:
    """Extents by file, the complete ones also by last use.

    * `held_bytes` counts complete bytes and bytes reserved for fetches under way. It is never more
      than `bytes_max`.
    * Only complete extents are evicted, the least recently used first, each as a whole.
    * Not thread-safe: the cache's lock guards it.
    """

    def __init__(self, *, bytes_max: int, idle_ms: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.sweep_at = float("inf")  # no extent is idle before this time
        self._idle = idle_ms / 1000
        self._in_flight_bytes = 0
        self._files: dict[Hashable, Extents] = {}
        self._complete: OrderedDict[Extent, None] = OrderedDict()  # least recently used first

    @property
    def complete_count(self) -> int:
        return len(self._complete)

    def find(self, key: Hashable, offset: int) -> Extent | None:
        """The extent that holds this byte, complete or being fetched."""
        extents = self._files.get(key)
        return extents.at(offset) if extents is not None else None

    def around(self, key: Hashable, offset: int) -> tuple[Extent | None, Extent | None]:
        """For a byte in no extent: the extent that ends right before it, and the next one."""
        extents = self._files.get(key)
        return extents.around(offset) if extents is not None else (None, None)

    def touch(self, extent: Extent, end: int, now: float) -> None:
        """Note that a reader reads the extent now, up to `end`."""
        extent.read_to = max(extent.read_to, min(end, extent.end))
        if extent.flight is None:
            extent.used_at = now
            self._complete.move_to_end(extent)

    # The life of an extent

    def add(self, extent: Extent) -> bool:
        """Add an extent that will be fetched; False if it does not fit beside other fetches."""
        size = extent.end - extent.start
        if self._in_flight_bytes + size > self.bytes_max:
            return False
        while self.held_bytes + size > self.bytes_max:
            self._evict(next(iter(self._complete)))
        self.held_bytes += size
        self._in_flight_bytes += size
        extent.reserved_bytes = size
        extent.kept = True
        self._files.setdefault(extent.key, Extents()).add(extent)
        return True

    def shrink(self, extent: Extent, end: int) -> None:
        """Shorten an extent of which less will be fetched."""
        spared = extent.end - end if extent.reserved_bytes else 0
        self.held_bytes -= spared
        self._in_flight_bytes -= spared
        extent.reserved_bytes -= spared
        extent.end = extent.read_to = end

    def settle(self, extent: Extent, data: bytes, now: float) -> None:
        """Complete an extent with its bytes; it stays unless it was forgotten meanwhile."""
        extent.data = data  # before the flight ends: other threads look without the lock
        extent.flight = None
        self._in_flight_bytes -= extent.reserved_bytes
        if not extent.kept:
            self.held_bytes -= extent.reserved_bytes
            return
        extent.used_at = now
        self._complete[extent] = None
        self.sweep_at = min(self.sweep_at, now + self._idle)

    def fail(self, extent: Extent) -> None:
        """Drop an extent whose fetch failed."""
        self._in_flight_bytes -= extent.reserved_bytes
        self.held_bytes -= extent.reserved_bytes
        if extent.kept:
            self._remove(extent)

    def drop_idle(self, now: float, count_max: int) -> None:
        self.sweep_at = now  # unless every idle extent is dropped below
        for _ in range(count_max):
            oldest = next(iter(self._complete), None)
            if oldest is None or oldest.used_at + self._idle > now:
                self.sweep_at = oldest.used_at + self._idle if oldest else float("inf")
                return
            self._evict(oldest)

    def forget(self, key: Hashable, before: int | None) -> None:
        """Drop a file's extents that begin before an offset, or all; also those being fetched."""
        extents = self._files.get(key)
        for extent in extents.before(before) if extents is not None else ():
            if extent.flight is None:
                self._evict(extent)
            else:
                self._remove(extent)

    def clear(self) -> None:
        for key in list(self._files):
            self.forget(key, None)

    def _evict(self, extent: Extent) -> None:
        del self._complete[extent]
        self._remove(extent)
        self.held_bytes -= extent.reserved_bytes

    def _remove(self, extent: Extent) -> None:
        extent.kept = False
        extents = self._files[extent.key]
        extents.remove(extent)
        if not extents:
            del self._files[extent.key]


WINDOW_SHARE: Final = 4  # one request fetches ahead at most a quarter of the cache
SWEEP_STEP: Final = 64  # the most idle extents that one read drops


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAhead:
    """How many bytes one request to the backend fetches if a read needs fewer.

    A read that continues no other fetches `floor_bytes`. A read that continues another fetches
    `growth` times as much as that one, at most `cap_bytes`. All requested bytes are fetched,
    however many they are.
    """

    floor_bytes: int = 64 * KIB
    growth: int = 8
    cap_bytes: int = 16 * MIB

    def __post_init__(self) -> None:
        if not 0 <= self.floor_bytes <= self.cap_bytes or self.growth < 1:
            raise InvalidConfigError(f"{self}: 0 <= floor_bytes <= cap_bytes and growth >= 1")

    def next(self, window: int) -> int:
        """The window of a read that continues one with this window."""
        return min(max(window * self.growth, self.floor_bytes), self.cap_bytes)


COMMIT_LOG_AHEAD: Final = ReadAhead()
# The units of 65 536 messages take two requests.
CONSUME_QUEUE_AHEAD: Final = ReadAhead(floor_bytes=8192 * QUEUE_UNIT_BYTES, cap_bytes=4 * MIB)


class ReadCache:
    """Extents of files, bounded in bytes and in time.

    * Bytes that several readers want at once are fetched once: an extent is registered before it is
      fetched, and other readers of its bytes wait. A failure reaches all waiting readers, unless it
      may concern bytes that only others want; the next reader tries again.
    * A reader first does its own fetches and only then waits for others, so no two ever wait for
      each other. All work is done in the threads of the readers.
    * Cached bytes and bytes being fetched are never more than `bytes_max`: an extent reserves its
      bytes before it is fetched. Bytes that do not fit are read but not kept.
    * A read is a continuation if an extent ends right before its gap and was read to its end; any
      other read is a jump. So any number of readers may share a file, and windows stop growing if
      the cache is too small to hold them until they are used.
    * Answers are copies: none keeps an extent in memory.
    * The lock is never held during I/O, nor during a call of a file.
    """

    def __init__(self, *, bytes_max: int, idle_ms: int, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._table = ExtentTable(bytes_max=bytes_max, idle_ms=idle_ms)
        self._access_count = 0
        self._hit_count = 0

    # What is measured

    @property
    def held_bytes(self) -> int:
        """Cached bytes, and bytes reserved for fetches under way."""
        return self._table.held_bytes

    @property
    def extent_count(self) -> int:
        """Cached extents, without those being fetched."""
        return self._table.complete_count

    @property
    def access_count(self) -> int:
        """Reads within range, however they ended."""
        return self._access_count

    @property
    def hit_count(self) -> int:
        """Reads without a request of their own: all bytes were cached or being fetched."""
        return self._hit_count

    # Reading

    def read(
        self, file: CachedFile, start: int, length: int, *, ahead: ReadAhead = COMMIT_LOG_AHEAD
    ) -> bytes:
        """Exactly these bytes. Raises what the file raises, and OffsetOutOfRangeError."""
        end = start + length
        key = file.cache_key
        table = self._table
        with self._lock:
            now = self._clock.monotonic()
            if now >= table.sweep_at:
                table.drop_idle(now, SWEEP_STEP)
            found = table.find(key, start)
            # An extent never reaches beyond committed bytes, so the file need not be asked.
            if found is not None and start <= end <= found.end and found.flight is None:
                self._access_count += 1
                self._hit_count += 1
                table.touch(found, end, now)
            else:
                found = None
        if found is not None:
            return found.data[start - found.start : end - found.start]
        return self._read_in_pieces(file, key, start, end, ahead)

    def peek(self, file: CachedFile, start: int, length: int) -> bytes | None:
        """These bytes if all of them are cached, else None: nothing is fetched or waited for."""
        key, at, end = file.cache_key, start, start + length
        pieces: list[bytes] = []
        with self._lock:
            while at < end:
                found = self._table.find(key, at)
                if found is None or found.flight is not None:
                    return None
                pieces.append(found.data[at - found.start : end - found.start])
                self._table.touch(found, end, self._clock.monotonic())
                at = found.end
            self._access_count += 1
            self._hit_count += 1
        return b"".join(pieces)

    def sweep(self) -> None:
        """Drop extents unread for `idle_ms`. Reads do so too, but an idle store has none."""
        with self._lock:
            self._table.drop_idle(self._clock.monotonic(), self._table.complete_count + 1)

    def forget(self, key: Hashable, *, before: int | None = None) -> None:
        """Drop a file's extents, or those that begin before an offset.

        Bytes being fetched still reach the readers that wait for them, but are not kept.
        """
        with self._lock:
            self._table.forget(key, before)

    def clear(self) -> None:
        with self._lock:
            self._table.clear()

    def _read_in_pieces(
        self, file: CachedFile, key: Hashable, start: int, end: int, ahead: ReadAhead
    ) -> bytes:
        first, limit = file.min_offset, file.commit_offset
        if not first <= start <= end <= limit:
            what = f"{end - start} bytes of {key}"
            raise OffsetOutOfRangeError(what, offset=start, minimum=first, maximum=limit)
        pieces: list[memoryview] = []
        parts, own = self._plan(key, start, end, limit, ahead)
        with self._lock:
            self._access_count += 1
            self._hit_count += not own
        at = start
        while True:
            self._fetch(file, own, end)
            for part in parts:
                if part.start > at:
                    break
                piece = memoryview(_data_of(part, start, end))[at - part.start : end - part.start]
                pieces.append(piece)
                at += len(piece)
            if at == end:
                return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
            # A fetch was cancelled, was shortened or failed at other bytes: plan the rest again.
            parts, own = self._plan(key, at, end, limit, ahead)

    def _plan(
        self, key: Hashable, at: int, end: int, limit: int, ahead: ReadAhead
    ) -> tuple[list[Extent], list[Extent]]:
        """The extents that make up a range, and those of them that the caller must fetch."""
        parts: list[Extent] = []
        own: list[Extent] = []
        with self._lock:
            now = self._clock.monotonic()
            while at < end:
                part = self._table.find(key, at)
                if part is None:
                    part = self._register(key, at, end, limit, ahead)
                    own.append(part)
                self._table.touch(part, end, now)
                parts.append(part)
                at = part.end
        return parts, own

    def _register(self, key: Hashable, at: int, end: int, limit: int, ahead: ReadAhead) -> Extent:
        """A new extent for the gap at `at`: the requested bytes, and those ahead if they fit."""
        before, behind = self._table.around(key, at)
        gap_end = behind.start if behind is not None else limit
        need = min(end, gap_end)
        window = ahead.floor_bytes
        if before is not None and before.read_to >= at:
            window = ahead.next(before.window)
            if behind is not None and at + window >= gap_end:
                behind.window = max(behind.window, window)  # the reader keeps its pace
        window = max(min(window, self._table.bytes_max // WINDOW_SHARE), need - at)
        extent = Extent(
            key=key, start=at, end=min(at + window, gap_end), window=window, read_to=need
        )
        if not self._table.add(extent):
            extent.end = need
            self._table.add(extent)  # if this does not fit either, other readers do not find it
        return extent

    # Fetching

    def _fetch(self, file: CachedFile, own: list[Extent], end: int) -> None:
        for done, extent in enumerate(own, start=1):
            try:
                data = self._read_extent(file, extent, min(end, extent.end))
            except BaseException as error:
                self._fail(extent, error)
                for left in own[done:]:
                    self._fail(left, None)
                raise
            flight = extent.flight
            with self._lock:
                self._table.settle(extent, data, self._clock.monotonic())
            if flight is not None:
                flight.set_result(data)

    def _read_extent(self, file: CachedFile, extent: Extent, need: int) -> bytes:
        try:
            return _exactly(file, extent)
        except BackendUnavailableError:
            raise
        except TieredStoreError:
            # A gap or a damaged segment ahead must not hide the bytes before it.
            if extent.end <= need:
                raise
        with self._lock:
            self._table.shrink(extent, need)
            extent.window = 0  # reading ahead starts small again
        return _exactly(file, extent)

    def _fail(self, extent: Extent, error: BaseException | None) -> None:
        """Give the error to the waiters; if the fetch was cancelled, they fetch for themselves."""
        with self._lock:
            self._table.fail(extent)
        if extent.flight is None:
            return
        if isinstance(error, Exception):
            extent.flight.set_exception(error)
        else:
            extent.flight.cancel()


def _exactly(file: CachedFile, extent: Extent) -> bytes:
    length = extent.end - extent.start
    data = file.read(extent.start, length)
    if len(data) != length:
        reason = f"{len(data)} bytes came where {length} were asked for"
        raise SegmentCorruptError(str(extent.key), reason, position=extent.start)
    return data


def _data_of(extent: Extent, start: int, end: int) -> bytes:
    """Wait for the bytes of an extent; none if its fetch was cancelled, or failed perhaps outside
    [start, end).
    """
    flight = extent.flight
    if flight is None:
        return extent.data
    try:
        error = flight.exception()
    except CancelledError:
        return b""
    if error is None:
        return flight.result()
    is_about_these = start <= extent.start and extent.end <= end
    if not is_about_these and not isinstance(error, BackendUnavailableError):
        return b""
    own = _own(error)
    if own is error:
        raise error
    raise own from error


def _own(error: BaseException) -> BaseException:
    """A copy for one waiter: threads that raise one error object would mix their tracebacks."""
    try:
        return copy.copy(error)
    except Exception:  # noqa: BLE001 - what cannot be copied is shared: it still says why
        return error
