"""Asking an index file that is still on the broker's disk.

What lives here: `ask_local`: whether the file may have answers, and what is believed of it; and
`LocalFiles`, through which somebody asks who only reads, while the broker may fill the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final

from tieredstore.index.foreign_times import foreign_times, undated, with_true_times
from tieredstore.index.hits import IndexHit
from tieredstore.index.items_checksum import ItemsChecksum
from tieredstore.index.key_search import Asked
from tieredstore.index.local_folder import LocalFolder
from tieredstore.index.store_file import IndexStoreFile
from tieredstore.index.watermarks import Durable, QueueId, Watermarks
from tieredstore.model.errors import (
    InvalidConfigError,
    SegmentCorruptError,
    SegmentNotFoundError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import INT64_MAX

log = log_of(__name__)

FILES_MAX: Final = 64  # that are not uploaded: a broker has one or two


def ask_local(file: IndexStoreFile, asked: Asked) -> list[IndexHit]:
    """A file that RocketMQ began is asked for all times: see `foreign_times`."""
    if file.notes is None:
        begin = file.begin_timestamp
        items = file.matches(asked.text, begin=-INT64_MAX, end=INT64_MAX)
        times = foreign_times(begin=begin, end=max(begin, file.end_timestamp))
        return asked.newest(with_true_times(items, times, begin=asked.begin, end=asked.end))
    held = file.times
    if held is not None:
        slack = 0 if held.exact else 999
        if not held.overlaps(asked.begin - slack, asked.end + slack):
            return []
        if held.outruns_seconds(file.begin_timestamp):
            items = file.matches(asked.text, begin=-INT64_MAX, end=INT64_MAX)
            return asked.newest(undated(items, last=held.last))
    items = file.matches(asked.text, begin=asked.begin, end=asked.end)
    return asked.newest(items, file.lateness)


class LocalFiles:
    """Files that another process may be filling, or that nobody is: read, and never changed.

    What the catalogue calls durable is compared with its checksum once; what came later is asked
    too. Any thread may call anything.
    """

    def __init__(self, folder: LocalFolder, watermarks: Watermarks) -> None:
        self._folder = folder
        self._watermarks = watermarks
        self._checked: dict[int, ItemsChecksum] = {}

    def missing(self) -> set[int]:
        """Files that the catalogue knows as local ones, and that are not here."""
        noted = self._watermarks.begins()
        return set(noted).difference(self._folder.begins()) if noted else set()

    def indexed_offset(self, topic: str, queue: QueueId) -> int:
        """Below this queue offset the uploaded files and these have every message."""
        gone, starts = self.missing(), self._watermarks.starts()
        lost = [at for (begin, held), at in starts.items() if held == queue and begin in gone]
        return min([self._watermarks.of_queue(topic, queue), *lost])

    @contextmanager
    def opened(self) -> Iterator[Sequence[IndexStoreFile]]:
        """All that can be asked, as long as the context lasts: one that the broker deletes too.

        Raises what a file raises that is here and cannot be believed.
        """
        with ExitStack() as held:
            files = []
            begins = self._folder.begins()
            if len(begins) > FILES_MAX:
                raise InvalidConfigError(f"{self._folder.path}: {len(begins)} index files")
            for begin in begins:
                file = self._open(begin)
                if file is not None:
                    held.callback(file.close)
                    files.append(file)
            yield files

    def _open(self, begin: int) -> IndexStoreFile | None:
        """None where it is gone, or just being made: nothing in it counts yet."""
        durable = self._watermarks.durable(begin)
        try:
            file = self._folder.open_to_read(begin)
        except SegmentNotFoundError:
            return None
        except SegmentCorruptError:
            if durable is None and self._watermarks.slot_count() is not None:
                return None
            raise
        try:
            if durable is not None:
                self._check(file, durable)
        except BaseException:
            file.close()
            raise
        times = None if file.notes is None else file.notes.times
        if times is not None and times.outruns_seconds(begin):
            file.state = replace(file.state, times=times)
        return file

    def _check(self, file: IndexStoreFile, durable: Durable) -> None:
        path, count = str(file.path), durable.item_count
        if file.item_count < count:
            reason = f"{file.item_count} items, but {count} were durable"
            raise SegmentCorruptError(path, reason, position=0)
        if durable.items is None:
            return
        known = self._checked.get(file.begin_timestamp, ItemsChecksum())
        known = known if known.item_count <= count else ItemsChecksum()
        found = known.with_more(file, count)
        if found.items != durable.items:
            raise SegmentCorruptError(path, "items with another checksum", position=0)
        self._checked[file.begin_timestamp] = found
