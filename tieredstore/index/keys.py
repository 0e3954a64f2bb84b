"""Keys of messages as columns of index items, the times they cover, and their hashes in a file next
to an index file.

The hashes are written while the index file fills; the filter of its footer is made from them.

    | offset | width | field                                                  |
    | ------ | ----- | ------------------------------------------------------ |
    |      0 |     8 | magic `TSKEYS01`                                       |
    |      8 | i64   | begin timestamp of the index file                      |
    |     16 | i64   | smallest store timestamp                               |
    |     24 | i64   | largest store timestamp                                |
    |     32 | u64   | hash of item 1, and so on; little-endian               |

An entry proves itself: its lower half is the hash of its item. So an entry that a crash left out,
or an item that another program put, is detected when the entries are used; then no filter is made.
If this file is missing, only the filter is lost.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.columns import HashedKeys, Records, keys_behind
from tieredstore.codec.java import INT32_MIN
from tieredstore.driver.durable import NO_LINK, read_all, write_all
from tieredstore.index.contract import CommittedRun
from tieredstore.model.errors import StoreClosedError
from tieredstore.model.printable import log_of
from tieredstore.model.values import INT32_MAX

log = log_of(__name__)

SECOND_SLACK_MS: Final = 999
"""An item stores whole seconds from the beginning of its file, rounded towards it."""
_REACH_MS: Final = 1000 * INT32_MAX
DAY_MS: Final = 86_400_000
LATE_MS: Final = 31 * DAY_MS
"""The greatest age of a message when it is indexed: brokers upload within days."""
_BLOCK_ITEMS: Final = 1 << 19
MAGIC: Final = b"TSKEYS01"
SUFFIX: Final = ".keys"
_HEADER: Final = Struct("<8sqqq")
_ENTRY_BYTES: Final = 8
_READ_ENTRIES: Final = 1 << 19
_NO_TIMES: Final = (0, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexColumns:
    """Keys to be put, oldest first: one entry per key. A plain number stands for every entry.

    `key_hashes` are the results of `key_hashes.key_hashes` for the `topic#key` texts.
    """

    key_hashes: NDArray[np.uint64]
    topic_ids: NDArray[np.int64] | int
    queue_ids: NDArray[np.int64] | int
    log_offsets: NDArray[np.int64]
    message_bytes: NDArray[np.int64]
    store_timestamps: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.key_hashes)

    def times(self, begin_timestamp: int) -> TimeRange:
        """The times of all rows; not exact if one is too far from the file's begin for an item."""
        stamps = self.store_timestamps
        first, last = int(stamps.min()), int(stamps.max())
        times = TimeRange(first=first, last=last)
        return replace(times, exact=False) if times.outruns_seconds(begin_timestamp) else times

    @classmethod
    def joined(cls, parts: Sequence[IndexColumns]) -> IndexColumns:
        """The keys of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            **{
                name: np.concatenate([_column(getattr(part, name), len(part)) for part in parts])
                for name in cls.__dataclass_fields__
            }
        )

    def part(self, start: int, stop: int | None = None) -> IndexColumns:
        where = slice(start, stop)
        topics, queues = self.topic_ids, self.queue_ids
        return IndexColumns(
            key_hashes=self.key_hashes[where],
            topic_ids=topics if isinstance(topics, int) else topics[where],
            queue_ids=queues if isinstance(queues, int) else queues[where],
            log_offsets=self.log_offsets[where],
            message_bytes=self.message_bytes[where],
            store_timestamps=self.store_timestamps[where],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """The smallest and the largest store timestamp; `exact` unless they come from whole seconds."""

    first: int
    last: int
    exact: bool = True

    def overlaps(self, begin: int, end: int) -> bool:
        """Whether any may lie within begin to end."""
        slack = 0 if self.exact else SECOND_SLACK_MS
        return self.first - slack <= end and begin <= self.last + slack

    def outruns_seconds(self, begin_timestamp: int) -> bool:
        """Whether any is too far from the begin of a file for the 32 bits that an item has.

        Then no item's time can be trusted.
        """
        return max(begin_timestamp - self.first, self.last - begin_timestamp) >= _REACH_MS

    def joined(self, other: TimeRange) -> TimeRange:
        return TimeRange(
            first=min(self.first, other.first),
            last=max(self.last, other.last),
            exact=self.exact and other.exact,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeDisorder:
    """None of the first `item_count` items is more than `max_seconds` older than one put before."""

    item_count: int = 0
    newest: int = INT32_MIN
    max_seconds: int = 0

    def with_items(self, items: NDArray[Any]) -> TimeDisorder:
        """The disorder of all these items, the first of which are counted already."""
        found = self
        for start in range(self.item_count, len(items), _BLOCK_ITEMS):
            found = found.with_seconds(items["seconds"][start : start + _BLOCK_ITEMS])
        return found

    def with_seconds(self, seconds: NDArray[np.int32]) -> TimeDisorder:
        """The disorder with items of these seconds put next."""
        if not len(seconds):
            return self
        wide = seconds.astype(np.int64)
        before = np.maximum.accumulate(np.maximum(wide, self.newest))
        return TimeDisorder(
            item_count=self.item_count + len(wide),
            newest=int(before[-1]),
            max_seconds=max(self.max_seconds, int((before - wide).max())),
        )


class Match(NamedTuple):
    """An item with the hash of the key: the place of its message, and its time in whole seconds."""

    topic_id: int
    queue_id: int
    log_offset: int
    message_bytes: int
    store_timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKeys:
    """The keys of some messages, and how many each message has; messages without keys are left
    out."""

    columns: IndexColumns
    key_counts: NDArray[np.int64]


def keys_of_run(topic: str, topic_id: int, queue_id: int, run: CommittedRun) -> RunKeys:
    """Each key once for each message, in the order of the messages.

    A record that is not sound is skipped: a look-up that found it could not read it.
    """
    log_offsets = np.asarray(run.log_offsets, np.int64)
    if run.keys is None:
        records = Records(run.run.records, run.run.starts, run.run.message_bytes)
        return keys_of_records(topic, topic_id, queue_id, records, log_offsets)
    columns = run.run.message_bytes.astype(np.int64), run.keys.store_timestamps
    rows = np.arange(len(run))
    return _placed_keys(topic_id, queue_id, log_offsets, run.keys.keys, rows, *columns)


def keys_of_records(
    topic: str, topic_id: int, queue_id: int, records: Records, log_offsets: NDArray[np.int64]
) -> RunKeys:
    """The same for decoded records and their places in the log."""
    rows = np.flatnonzero(records.sound)
    if len(rows) < len(records):
        log.error("%d messages without a sound record are not indexed", len(records) - len(rows))
    keys = keys_behind(f"{topic}#", records.properties(rows))
    columns = records.sizes(), records.store_times()
    return _placed_keys(topic_id, queue_id, log_offsets, keys, rows, *columns)


def _placed_keys(
    topic_id: int,
    queue_id: int,
    log_offsets: NDArray[np.int64],
    keys: HashedKeys,
    rows: NDArray[np.int64],
    sizes: NDArray[np.int64],
    store_timestamps: NDArray[np.int64],
) -> RunKeys:
    """Each key with the place of its message; message i of the keys is `rows[i]` of the run."""
    owners = np.repeat(rows, keys.counts)
    return RunKeys(
        columns=IndexColumns(
            key_hashes=keys.hashes,
            topic_ids=topic_id,
            queue_ids=queue_id,
            log_offsets=log_offsets[owners],
            message_bytes=sizes[owners],
            store_timestamps=store_timestamps[owners],
        ),
        key_counts=keys.counts[keys.counts > 0],
    )


class SyncedFile:
    """An open file. Once a sync has failed, all later ones fail: the kernel drops the pages that it
    could not write. `close` is idempotent, and does not disturb a sync or a read under way."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._closing = threading.Lock()
        self._failure: OSError | None = None

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def sync(self) -> None:
        """Make everything written so far durable, without blocking other threads."""
        if self._failure is not None:
            raise OSError(*self._failure.args) from self._failure
        descriptor = self._duplicate()
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            self._failure = error
            raise
        finally:
            os.close(descriptor)

    def close(self) -> None:
        with self._closing:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _duplicate(self) -> int:
        """A descriptor that outlives a `close`."""
        with self._closing:
            if self._descriptor < 0:
                raise StoreClosedError(f"{self.path}: the index file is closed")
            return os.dup(self._descriptor)


class KeyNotes(SyncedFile):
    """One entry for each item, written before the item is."""

    def __init__(self, path: Path, descriptor: int, times: tuple[int, int]) -> None:
        super().__init__(path, descriptor)
        self._times = times

    @classmethod
    def create(cls, path: Path, *, begin_timestamp: int) -> KeyNotes:
        """A new file in place of any old one."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | NO_LINK
        descriptor = os.open(path, flags, 0o666)
        notes = cls(path, descriptor, _NO_TIMES)
        try:
            write_all(descriptor, _HEADER.pack(MAGIC, begin_timestamp, *_NO_TIMES), 0)
        except BaseException:
            notes.close()
            raise
        return notes

    @classmethod
    def open(cls, path: Path, *, begin_timestamp: int, read_only: bool = False) -> KeyNotes | None:
        """The file beside an index file; None if there is none, or it belongs to another file."""
        flags = os.O_RDONLY if read_only else os.O_RDWR
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            head = read_all(descriptor, _HEADER.size, 0)
        except BaseException:
            os.close(descriptor)
            raise
        if len(head) == _HEADER.size:
            magic, begin, first, last = _HEADER.unpack(head)
            if magic == MAGIC and begin == begin_timestamp:
                return cls(path, descriptor, (first, last))
        os.close(descriptor)
        return None

    @property
    def times(self) -> TimeRange | None:
        """The times of all puts that were begun; None before the first."""
        first, last = self._times
        return TimeRange(first=first, last=last) if first <= last else None

    def put(self, hashes: NDArray[np.uint64], times: TimeRange, *, first_item: int) -> None:
        """Note the hashes of items that are about to be written, and widen the times."""
        held = self.times
        first = times.first if held is None else min(held.first, times.first)
        last = times.last if held is None else max(held.last, times.last)
        position = _HEADER.size + _ENTRY_BYTES * (first_item - 1)
        entries = np.ascontiguousarray(hashes, "<u8")
        write_all(self._descriptor, entries.data, position)
        if (first, last) != self._times:
            write_all(self._descriptor, _HEADER.pack(MAGIC, 0, first, last)[16:], 16)
            self._times = (first, last)

    def forget_times(self) -> None:
        """Forget the times: those puts were cut off."""
        write_all(self._descriptor, _HEADER.pack(MAGIC, 0, *_NO_TIMES)[16:], 16)
        self._times = _NO_TIMES

    def blocks(self, item_count: int, *, after: int = 0) -> Iterator[NDArray[np.uint64]]:
        """The hashes of the items after the first `after`, up to `item_count`, in order; fewer if
        the file is too short."""
        position = _HEADER.size + _ENTRY_BYTES * after
        end = _HEADER.size + _ENTRY_BYTES * item_count
        descriptor = self._duplicate()
        try:
            while position < end:
                wanted = min(_ENTRY_BYTES * _READ_ENTRIES, end - position)
                data = read_all(descriptor, wanted, position)
                whole = len(data) // _ENTRY_BYTES
                if not whole:
                    return
                yield np.frombuffer(data, "<u8", whole).astype(np.uint64, copy=False)
                position += _ENTRY_BYTES * whole
        finally:
            os.close(descriptor)


def notes_path(path: Path) -> Path:
    """The path of the notes of the index file at `path`."""
    return path.with_name(path.name + SUFFIX)


def seconds_window(begin: int, end: int, *, begin_timestamp: int) -> tuple[int, int]:
    """The least and the greatest seconds of an item whose message may lie within begin to end.

    No message is missed, but messages up to 999 ms outside are found too: the caller reads the
    message and compares its time.
    """
    first = -((SECOND_SLACK_MS - (begin - begin_timestamp)) // 1000)
    last = (end - begin_timestamp + SECOND_SLACK_MS) // 1000
    return max(first, -INT32_MAX - 1), min(last, INT32_MAX)


def times_of_seconds(least: int, greatest: int, *, begin_timestamp: int) -> TimeRange:
    """The times of messages whose items have seconds from `least` to `greatest`."""
    first = begin_timestamp + 1000 * least - (SECOND_SLACK_MS if least <= 0 else 0)
    last = begin_timestamp + 1000 * greatest + (SECOND_SLACK_MS if greatest >= 0 else 0)
    return TimeRange(first=first, last=last, exact=False)


def foreign_times(*, begin: int, end: int) -> TimeRange:
    """The times that messages of a file may have, given the begin and the end in its header."""
    return TimeRange(first=begin - LATE_MS, last=max(begin, end) + DAY_MS, exact=False)


def undated(items: Iterable[Match], *, last: int) -> Iterator[Match]:
    """Items whose times cannot be trusted: all count as the newest of their file."""
    return (item._replace(store_timestamp=last) for item in items)


def with_true_times(
    items: Iterable[Match], times: TimeRange, *, begin: int, end: int
) -> Iterator[Match]:
    """Items within begin to end; an item with an impossible time counts as the newest."""
    for item in items:
        if not times.first <= item.store_timestamp <= times.last:
            yield item._replace(store_timestamp=times.last)
        elif begin - 999 <= item.store_timestamp <= end + 999:
            yield item


def _column(values: NDArray[Any] | int, count: int) -> NDArray[Any]:
    return np.full(count, values, np.int64) if isinstance(values, int) else values
