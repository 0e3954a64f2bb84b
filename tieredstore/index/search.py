"""Searches many index files for one key in parallel, newest first, and merges the hits. For a
reader, `LocalFiles` opens the files on a broker's disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from heapq import heappush, heapreplace
from itertools import chain
from typing import Final

from tieredstore.codec.java import index_key, wrap_int32
from tieredstore.driver.runtime import Runtime
from tieredstore.index.contract import IndexAnswer, IndexHit
from tieredstore.index.keys import (
    Match,
    foreign_times,
    undated,
    with_true_times,
)
from tieredstore.index.local_file import IndexStoreFile, ItemsChecksum
from tieredstore.index.watermarks import Durable, QueueId, Watermarks
from tieredstore.index.writer import LocalFolder
from tieredstore.model.errors import (
    InvalidConfigError,
    SegmentCorruptError,
    SegmentNotFoundError,
    StoreClosedError,
    TieredStoreError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import INT64_MAX

log = log_of(__name__)
FILES_AT_ONCE: Final = 8
ASKED_AGAIN_MAX: Final = 16  # when files go away while they are read
Source = Callable[["KeyQuery"], list[IndexHit]]
FILES_MAX: Final = 64  # not uploaded yet: a broker has one or two


class KeyQuery:
    """One query: messages of a topic with a key, stored about within begin to end.

    Its numbers are clamped, so that any file can compare them with its own.
    """

    def __init__(
        self, topic: str, topic_id: int, key: str, count_max: int, begin: int, end: int
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.key = key
        self.count_max = min(count_max, INT64_MAX)
        self.begin = max(begin, -INT64_MAX - 1)
        self.end = min(end, INT64_MAX)

    @property
    def can_have_answers(self) -> bool:
        return bool(
            self.count_max > 0 and self.begin <= self.end and self.key and self.topic.strip()
        )

    @property
    def text(self) -> str:
        return index_key(self.topic, self.key)

    def newest(
        self, items: Iterable[Match], disorder_seconds: Callable[[], int | None] | None = None
    ) -> list[IndexHit]:
        """The newest items of one file, each message once; `items` come last put first.

        All are examined, unless it is known how many seconds an item may be older than one put
        before it.
        """
        wanted = wrap_int32(self.topic_id)
        late_ms: int | None = None
        kept: list[tuple[int, int, IndexHit]] = []  # a heap, the oldest first
        places: set[tuple[int, int]] = set()
        for number, item in enumerate(items):
            if item.topic_id != wanted:  # another topic's key with the same hash
                continue
            hit = IndexHit(self.topic_id, *item[1:])
            place = hit.queue_id, hit.log_offset
            if place in places:
                continue
            entry = hit.store_timestamp, -number, hit
            if len(kept) < self.count_max:
                heappush(kept, entry)
            elif kept[0] < entry:
                gone = heapreplace(kept, entry)[2]
                places.discard((gone.queue_id, gone.log_offset))
            else:
                if late_ms is None and disorder_seconds is not None:
                    seconds = disorder_seconds()
                    late_ms = None if seconds is None else 1000 * seconds
                if late_ms is not None and kept[0][0] >= hit.store_timestamp + late_ms:
                    break
                continue
            places.add(place)
        return newest_first([[hit for _, _, hit in sorted(kept, reverse=True)]], self.count_max)


def ask(
    query: KeyQuery, files: Sequence[IndexStoreFile], uploaded: Sequence[Source], runtime: Runtime
) -> IndexAnswer:
    """The hits in local and uploaded files: the caller's thread reads the local ones, the others
    are read in parallel.

    A file that fails does not hide the others, but then the answer is not complete. A
    StoreClosedError is raised: a file that was uploaded meanwhile has to be read where it is now.
    """
    near = [partial(ask_local, file) for file in files if file.item_count]
    answers: deque[list[IndexHit] | None] = deque()
    left = deque(uploaded)
    helpers = min(FILES_AT_ONCE, len(uploaded)) - 1
    others = [runtime.fetch.submit(_work, query, left, answers) for _ in range(max(0, helpers))]
    # The caller may itself be a thread of the pool. So it works too, and never waits for a place.
    _work(query, deque(near), answers)
    _work(query, left, answers)
    for other in others:
        if not other.cancel():
            other.result()
    hits = [answer for answer in answers if answer is not None]
    return IndexAnswer(
        hits=newest_first(hits, query.count_max), complete=len(hits) == len(near) + len(uploaded)
    )


def newest_first(answers: Sequence[Sequence[IndexHit]], count_max: int) -> list[IndexHit]:
    """The newest of all, newest first, each message once."""
    found: dict[tuple[int, int], IndexHit] = {}
    for hit in chain.from_iterable(answers):
        place = hit.queue_id, hit.log_offset
        held = found.get(place, hit)
        newer = hit if held.store_timestamp < hit.store_timestamp else held
        put_before = max(held.put_before, hit.put_before)
        found[place] = (
            newer if newer.put_before == put_before else newer._replace(put_before=put_before)
        )
    hits = sorted(found.values(), key=lambda hit: hit.store_timestamp, reverse=True)
    return hits[:count_max]


def ask_local(file: IndexStoreFile, query: KeyQuery) -> list[IndexHit]:
    """In a file that RocketMQ began, all items are examined: see `foreign_times`."""
    if file.notes is None:
        begin = file.begin_timestamp
        items = file.matches(query.text, begin=-INT64_MAX, end=INT64_MAX)
        times = foreign_times(begin=begin, end=max(begin, file.end_timestamp))
        return query.newest(with_true_times(items, times, begin=query.begin, end=query.end))
    held = file.times
    if held is not None:
        if not held.overlaps(query.begin, query.end):
            return []
        if held.outruns_seconds(file.begin_timestamp):
            items = file.matches(query.text, begin=-INT64_MAX, end=INT64_MAX)
            return query.newest(undated(items, last=held.last))
    items = file.matches(query.text, begin=query.begin, end=query.end)
    return query.newest(items, file.disorder_seconds)


def _work(query: KeyQuery, left: deque[Source], answers: deque[list[IndexHit] | None]) -> None:
    while True:
        try:
            source = left.popleft()
        except IndexError:
            return
        try:
            answers.append(source(query))
        except StoreClosedError:
            raise
        except (TieredStoreError, OSError) as error:
            log.warning("the key %r is not searched for in every file: %s", query.key, error)
            answers.append(None)


class LocalFiles:
    """Files that another process may be filling: they are read, never changed.

    Items that the catalogue calls durable are compared with their checksum once. Later items are
    searched too. Any thread may call anything.
    """

    def __init__(self, folder: LocalFolder, watermarks: Watermarks) -> None:
        self._folder = folder
        self._watermarks = watermarks
        self._checked: dict[int, ItemsChecksum] = {}
        self._whole: set[int] = set()  # no power cut can tear them while this process lives

    def missing(self) -> set[int]:
        """Files that are local according to the catalogue, but are not here."""
        noted = self._watermarks.begins()
        return set(noted).difference(self._folder.begins()) if noted else set()

    @property
    def has_files(self) -> bool:
        return bool(self._folder.begins())

    def indexed_offset(self, topic: str, queue: QueueId) -> int:
        """The uploaded files and these have every message below this queue offset."""
        gone, starts = self.missing(), self._watermarks.starts()
        lost = [at for (begin, held), at in starts.items() if held == queue and begin in gone]
        return min([self._watermarks.of_queue(topic, queue), *lost])

    @contextmanager
    def opened(self) -> Iterator[Sequence[IndexStoreFile]]:
        """All files that can be read. They can be until the context ends, even if the broker
        deletes one.

        Raises the error of a file that is here but is not sound.
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
        """None if the file is gone, or is just being made: then nothing in it counts yet."""
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
            if begin not in self._whole:
                self._leave_out_torn(file, durable)
        except BaseException:
            file.close()
            raise
        times = None if file.notes is None else file.notes.times
        if times is not None and times.outruns_seconds(begin):
            file.state = replace(file.state, times=times)
        return file

    def _leave_out_torn(self, file: IndexStoreFile, durable: Durable | None) -> None:
        begin = file.begin_timestamp
        counted = self._folder.counted(begin, durable)
        if counted is None or file.leave_out_torn(counted.item_count):
            self._whole.add(begin)

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
        if found.items != durable.items:  # the file may have been made again
            found = ItemsChecksum().with_more(file, count)
        if found.items != durable.items:
            raise SegmentCorruptError(path, "items with another checksum", position=0)
        self._checked[file.begin_timestamp] = found
