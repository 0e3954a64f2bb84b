"""The keys of messages: of a run as columns, and of an index file as hashes noted beside it.

The notes are written while the file fills; the filter of its footer is made of them.

    | offset | width | field                                                  |
    | ------ | ----- | ------------------------------------------------------ |
    |      0 |     8 | magic `TSKEYS01`                                       |
    |      8 | i64   | begin timestamp of the index file                      |
    |     16 | i64   | smallest store timestamp                               |
    |     24 | i64   | largest store timestamp                                |
    |     32 | u64   | hash of item 1, and so on; little-endian               |

An entry proves itself: its lower half is the hash of its item. So an entry that a crash left out,
or an item that another program put, is noticed when the entries are used; then there is no filter.
Without this file nothing is lost but the filter.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.columns import Records, keys_of_texts
from tieredstore.driver.durable import NO_LINK, write_all
from tieredstore.index.contract import CommittedRun
from tieredstore.index.rows import IndexColumns, TimeRange
from tieredstore.model.errors import StoreClosedError
from tieredstore.model.printable import log_of

log = log_of(__name__)

MAGIC: Final = b"TSKEYS01"
SUFFIX: Final = ".keys"
_HEADER: Final = Struct("<8sqqq")
_ENTRY_BYTES: Final = 8
_READ_ENTRIES: Final = 1 << 19
_NO_TIMES: Final = (0, -1)


class SyncedFile:
    """An open file. Once a sync has failed all do: the kernel drops the pages that it could not
    write. `close` is idempotent, and takes no descriptor from a sync or a read under way."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._closing = threading.Lock()
        self._failure: OSError | None = None

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def sync(self) -> None:
        """Make everything written so far durable; other threads go on meanwhile."""
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
        """The file beside an index file; None where there is none or it is another's."""
        flags = os.O_RDONLY if read_only else os.O_RDWR
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            head = os.pread(descriptor, _HEADER.size, 0)
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
        """Of all puts that were begun; None before the first."""
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
        """Begin anew: the times are of puts that were cut off."""
        write_all(self._descriptor, _HEADER.pack(MAGIC, 0, *_NO_TIMES)[16:], 16)
        self._times = _NO_TIMES

    def blocks(self, item_count: int, *, after: int = 0) -> Iterator[NDArray[np.uint64]]:
        """The hashes of the items behind `after` up to `item_count`, in order; fewer where the file
        is too short."""
        position = _HEADER.size + _ENTRY_BYTES * after
        end = _HEADER.size + _ENTRY_BYTES * item_count
        descriptor = self._duplicate()
        try:
            while position < end:
                wanted = min(_ENTRY_BYTES * _READ_ENTRIES, end - position)
                data = os.pread(descriptor, wanted, position)
                whole = len(data) // _ENTRY_BYTES
                if not whole:
                    return
                yield np.frombuffer(data, "<u8", whole).astype(np.uint64, copy=False)
                position += _ENTRY_BYTES * whole
        finally:
            os.close(descriptor)


def notes_path(path: Path) -> Path:
    """Where the notes of the index file at `path` are."""
    return path.with_name(path.name + SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKeys:
    """The keys of some messages, and how many each of them has; those without any do not count."""

    columns: IndexColumns
    key_counts: NDArray[np.int64]


def keys_of_run(topic: str, topic_id: int, queue_id: int, run: CommittedRun) -> RunKeys:
    """Each key once for each message, in the order of the messages.

    A record that is not sound is passed over: no look-up that found it could read it.
    """
    records = Records(run.run.records, run.run.starts, run.run.message_bytes)
    rows = np.flatnonzero(records.sound)
    if len(rows) < len(records):
        log.error("%d messages without a sound record are not indexed", len(records) - len(rows))
    keys = keys_of_texts(records.property_texts(rows), prefix=f"{topic}#")
    owners = np.repeat(rows, keys.counts)
    return RunKeys(
        columns=IndexColumns(
            key_hashes=keys.hashes,
            topic_ids=topic_id,
            queue_ids=queue_id,
            log_offsets=np.asarray(run.log_offsets, np.int64)[owners],
            message_bytes=records.sizes()[owners],
            store_timestamps=records.store_times()[owners],
        ),
        key_counts=keys.counts[keys.counts > 0],
    )
