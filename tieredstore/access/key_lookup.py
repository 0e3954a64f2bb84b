"""Messages by key: the index suggests them, and the messages themselves decide."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from tieredstore.access.pages import check_body
from tieredstore.codec.java import index_key
from tieredstore.codec.key_hashes import key_hash
from tieredstore.codec.message import CODA_BYTES, decode_message, is_coda
from tieredstore.codec.queue_unit import UNIT_BYTES, decode_units
from tieredstore.codec.record import peek_message_bytes
from tieredstore.codec.selected import SelectedRecord
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.append_file import FlatSegment
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import FlatMessageFile, is_believed
from tieredstore.flat.reading import ByteSource, damage_at, read_run, record_place
from tieredstore.index.contract import NOTHING, CommittedRun, Index, IndexAnswer, IndexHit
from tieredstore.index.keys import keys_of_run
from tieredstore.model.errors import SegmentCorruptError, TieredStoreError
from tieredstore.model.messages import MessageRun, QueryResult, SelectedMessage
from tieredstore.model.printable import log_of
from tieredstore.model.values import INT64_MAX, QueueKey

log = log_of(__name__)

READERS_MAX: Final = 8  # requests under way for one query
HITS_AT_ONCE: Final = 64  # read at a time, until there are enough
HITS_MORE: Final = 32  # requested beyond `count_max`: some hits are messages of other keys
INDEX_STEP_MS: Final = 1000  # the index keeps times to the second
LONG_BYTES: Final = 1 << 20  # so much is read because the index says so
SCAN_QUEUES_MAX: Final = 16  # of one topic that are read if the index lags behind them
SCAN_BYTES_MAX: Final = 4 << 20  # of all their logs together: about what one round commits
SCAN_STEP_BYTES: Final = 512 * 1024  # of one read
SCAN_STEP_COUNT: Final = 4096


class KeyLookup:
    """Answers queries by key from one index and the queues it names.

    * Every returned message has the topic, the key (UNIQ_KEY, or one of KEYS) and a store time
      within [begin, end]. Each is returned once, the newest first.
    * Only as many hits are read as needed: the index has them newest first, to the second.
    * A message that cannot be read hides no other message, but the answer is not complete. If its
      queue or record was deleted, it no longer counts as a message.
    * Committed messages that are not in the index yet are read, within bounds; if there are more,
      the answer is not complete. So an answer that may lack a hit is never called complete.
    """

    def __init__(
        self,
        files: FlatFileStore,
        index: Index,
        runtime: Runtime,
        *,
        source: ByteSource,
        scan_bytes_max: int = SCAN_BYTES_MAX,
        checks_crc: bool,
    ) -> None:
        self._files = files
        self._index = index
        self._runtime = runtime
        self._source = source
        self._scan_bytes_max = scan_bytes_max
        self._checks_crc = checks_crc

    def query(self, topic: str, key: str, *, count_max: int, begin: int, end: int) -> QueryResult:
        """At most `count_max` messages; none for a count of zero or less, or an unknown topic."""
        files = {file.key: file for file in self._files.of_topic(topic)}
        if not files or count_max <= 0 or not key or begin > end:
            return QueryResult()
        topic_id = next(iter(files.values())).topic_id
        wanted = _Wanted(topic, topic_id, key, begin, end)
        search = _Search(wanted, files, self._files, self._runtime, self._checks_crc)
        # Before the index is asked: otherwise messages that it takes meanwhile would be missed.
        reach = {file: self._reach(file) for file in files.values() if file.is_started}
        scan = _Scan(
            wanted,
            self._files,
            self._source,
            bytes_max=self._scan_bytes_max,
            now_ms=self._runtime.clock.now_ms(),
        )
        search.read(scan.hits(list(_tails(reach))), count_max)
        was_read = True
        asked = min(count_max + HITS_MORE, INT64_MAX)
        while True:
            answer = self._ask(wanted, asked)
            was_read &= answer.complete
            is_cut = asked < INT64_MAX and len(answer.hits) >= asked
            if search.read(answer.hits, count_max) or not is_cut:
                break
            asked = min(4 * asked, INT64_MAX)
        messages = [found.message for found in search.newest_first()[:count_max]]
        was_read &= search.complete and scan.was_read
        was_read &= not any(held < _lost_to(file) for file, held in reach.items())
        lags = scan.lags or any(self._reach(file) < held for file, held in reach.items())
        return QueryResult(
            messages=messages,
            complete=was_read and not lags,
            lags=was_read and lags,
            tier_indexed_timestamp=answer.newest_timestamp,
        )

    def hits(self, topic: str, key: str, *, count_max: int, begin: int, end: int) -> IndexAnswer:
        """The index's own answer, without reading messages: hits may be messages of other keys, or
        deleted ones. Each place appears once; not `complete` if there may be more.
        """
        files = self._files.of_topic(topic)
        if not files or count_max <= 0 or not key or begin > end:
            return NOTHING
        wanted = _Wanted(topic, files[0].topic_id, key, begin, end)
        answer = self._ask(wanted, count_max)
        places = {
            (hit.queue_id, hit.log_offset): hit
            for hit in answer.hits
            if hit.topic_id == wanted.topic_id
        }
        is_cut = len(answer.hits) >= count_max
        return IndexAnswer(hits=[*places.values()], complete=answer.complete and not is_cut)

    def _reach(self, file: FlatMessageFile) -> int:
        """The queue offset below which the index has every message; an index that does not know is
        assumed to have all.
        """
        reach = self._index.indexed_offset(file.key.topic, file.topic_id, file.key.queue_id)
        return INT64_MAX if reach is None else reach

    def _ask(self, wanted: _Wanted, count_max: int) -> IndexAnswer:
        return self._index.query(
            wanted.topic,
            wanted.topic_id,
            wanted.key,
            count_max=count_max,
            begin=max(wanted.begin - INDEX_STEP_MS, -INT64_MAX),
            end=min(wanted.end + INDEX_STEP_MS, INT64_MAX),
        )


class _Wanted(NamedTuple):
    topic: str
    topic_id: int
    key: str
    begin: int
    end: int


class _Found(NamedTuple):
    store_timestamp: int
    message: SelectedMessage


class _Tail(NamedTuple):
    """Messages of a queue that are committed but not in the index."""

    file: FlatMessageFile
    start: int
    end: int


def _tails(reach: Mapping[FlatMessageFile, int]) -> Iterator[_Tail]:
    for file, known in reach.items():
        end = file.commit_offset
        start = max(known, file.queue.min_unit)
        if start < end:
            yield _Tail(file, start, end)


class _Scan:
    """Reads, for one query, the messages of its topic that the index lacks: all of them, or none if
    there are too many.
    """

    def __init__(
        self,
        wanted: _Wanted,
        store: FlatFileStore,
        source: ByteSource,
        *,
        bytes_max: int,
        now_ms: int,
    ) -> None:
        self.lags = False  # there is more than may be read
        self.was_read = True
        self._wanted = wanted
        self._hash = key_hash(index_key(wanted.topic, wanted.key))
        self._store = store
        self._source = source
        self._bytes_left = bytes_max
        self._now_ms = now_ms

    def hits(self, tails: Sequence[_Tail]) -> list[IndexHit]:
        """The places of messages in these tails that may have the key."""
        late = [tail for tail in tails if not self._is_newer(_queue_segments(tail))]
        if len(late) > SCAN_QUEUES_MAX or (late and self._bytes_left <= 0):
            self.lags = True
            return []
        found: list[IndexHit] = []
        for tail in late:
            found += self._hits_or_less(tail)
        return found

    def _hits_or_less(self, tail: _Tail) -> list[IndexHit]:
        file = tail.file
        while self._store.get(file.key) is file:  # else it was destroyed meanwhile
            begins = file.queue.min_offset, file.log.min_offset
            try:
                return self._hits_of(tail)
            except (TieredStoreError, OSError, ValueError) as error:
                if begins == (file.queue.min_offset, file.log.min_offset):
                    self.was_read = False
                    log.warning("%s is not searched to its end: %s", file.path, error)
                    break  # otherwise segments expired during the read: try again
        return []

    def _hits_of(self, tail: _Tail) -> list[IndexHit]:
        file, end = tail.file, tail.end
        at = max(tail.start, file.min_offset)
        found: list[IndexHit] = []
        if at >= end:
            return found
        if self._is_newer(self._log_segments(file, at)):
            self._run(file, at, 1)  # raises if the unit is damaged: it may name wrong segments
            return found
        while at < end and not self.lags:
            run = self._run(file, at, min(SCAN_STEP_COUNT, end - at))
            if len(run):
                found += self._hits_in(file, CommittedRun(run=run, log_offsets=run.log_offsets))
                at = run.end_offset
            else:  # a gap, or it has expired meanwhile
                at = max(at + 1, file.queue.first_unit_from(at), file.min_offset)
        return found

    def _run(self, file: FlatMessageFile, at: int, count_max: int) -> MessageRun:
        return read_run(
            file, at, count_max=count_max, bytes_max=SCAN_STEP_BYTES, source=self._source
        )

    def _log_segments(self, file: FlatMessageFile, at: int) -> list[FlatSegment]:
        """The log segments that hold the messages from `at` on; counts their bytes against the
        limit, unless they need not be read.
        """
        at = file.queue.first_unit_from(at)
        if at >= file.commit_offset:
            return []
        unit = self._source.read(file.queue, at * UNIT_BYTES, UNIT_BYTES)
        place = int(decode_units(unit, path=file.path).log_offsets[0])
        segments = [segment for segment in file.log.segments if segment.end > place]
        if not self._is_newer(segments):
            self._bytes_left -= file.log.commit_offset - place
            self.lags |= self._bytes_left < 0
        return segments

    def _hits_in(self, file: FlatMessageFile, run: CommittedRun) -> list[IndexHit]:
        topic_id, queue_id = self._wanted.topic_id, file.key.queue_id
        columns = keys_of_run(self._wanted.topic, topic_id, queue_id, run).columns
        times = columns.store_timestamps
        is_hit = columns.key_hashes == np.uint64(self._hash)
        is_hit &= (self._wanted.begin <= times) & (times <= self._wanted.end)
        rows = np.flatnonzero(is_hit).tolist()
        return [
            IndexHit(
                topic_id,
                queue_id,
                int(columns.log_offsets[row]),
                int(columns.message_bytes[row]),
                int(times[row]),
            )
            for row in rows
        ]

    def _is_newer(self, segments: Sequence[FlatSegment]) -> bool:
        """Whether all messages in these segments were stored after the requested times."""
        begins = [segment.record.begin_timestamp for segment in segments if segment.record.size]
        return all(
            begin is not None and begin > self._wanted.end and is_believed(begin, self._now_ms)
            for begin in begins
        )


def _lost_to(file: FlatMessageFile) -> int:
    """Where a queue ended that has lost its end in the backend; 0 if it has lost nothing there."""
    end = 0 if file.problem is None else file.named_offset
    return end if file.commit_offset < end else 0


def _queue_segments(tail: _Tail) -> list[FlatSegment]:
    return [
        segment for segment in tail.file.queue.segments if segment.end > UNIT_BYTES * tail.start
    ]


class _Search:
    """Reads the hits of one query in parallel, each once, and keeps the messages found."""

    def __init__(
        self,
        wanted: _Wanted,
        files: Mapping[QueueKey, FlatMessageFile],
        store: FlatFileStore,
        runtime: Runtime,
        checks_crc: bool,
    ) -> None:
        self.complete = True
        self._wanted = wanted
        self._files = files
        self._store = store
        self._runtime = runtime
        self._checks_crc = checks_crc
        self._seen: set[tuple[int, int]] = set()
        self._found: dict[tuple[int, int], _Found] = {}

    def read(self, hits: Sequence[IndexHit], count_max: int) -> bool:
        """Read the hits that were not read yet; True if further hits cannot matter."""
        new = [hit for hit in hits if self._is_new(hit)]
        new.sort(key=lambda hit: -hit.store_timestamp)
        for start in range(0, len(new), HITS_AT_ONCE):
            if self._is_enough(count_max, new[start].store_timestamp):
                return True
            self._read_side_by_side(new[start : start + HITS_AT_ONCE])
        oldest = min((hit.store_timestamp for hit in hits), default=0)
        return self._is_enough(count_max, oldest)

    def newest_first(self) -> list[_Found]:
        """The messages found, the newest first; of equal times, the higher queue offset first."""
        return sorted(
            self._found.values(),
            key=lambda found: (found.store_timestamp, found.message.queue_offset),
            reverse=True,
        )

    def _is_new(self, hit: IndexHit) -> bool:
        place = hit.queue_id, hit.log_offset
        if hit.topic_id != self._wanted.topic_id or place in self._seen:
            return False
        self._seen.add(place)
        return True

    def _is_enough(self, count_max: int, below: int) -> bool:
        """Whether no index entry at or below this time can be among the newest messages."""
        if len(self._found) < count_max:
            return False
        return self.newest_first()[count_max - 1].store_timestamp >= below + INDEX_STEP_MS

    def _read_side_by_side(self, hits: Sequence[IndexHit]) -> None:
        """Read hits in parallel. The caller's thread reads too, and never waits for a place in the
        pool: the query itself may run there.
        """
        left = deque(hits)
        others = [
            self._runtime.fetch.submit(self._read_some, left)
            for _ in range(min(READERS_MAX, len(hits)) - 1)
        ]
        self._read_some(left)
        for other in others:
            if not other.cancel():
                other.result()

    def _read_some(self, left: deque[IndexHit]) -> None:
        """Read hits until none is left; a hit that fails does not stop the others."""
        while True:
            try:
                hit = left.popleft()
            except IndexError:
                return
            file = self._files.get(QueueKey(self._wanted.topic, hit.queue_id))
            if file is None:
                continue
            try:
                found = self._message_of(file, hit)
            except (TieredStoreError, OSError) as error:
                is_damage = isinstance(error, SegmentCorruptError)
                if not self._has_gone(file, hit) and not (is_damage and _is_stale(file, hit)):
                    self.complete = False
                    log.warning("%s may have the key %r: %s", hit, self._wanted.key, error)
                continue
            if found is not None:
                self._found[hit.queue_id, found.message.queue_offset] = found

    def _message_of(self, file: FlatMessageFile, hit: IndexHit) -> _Found | None:
        """The message of a hit, if it matches the query."""
        wanted, place = self._wanted, record_place(file, hit.log_offset)
        if place >= file.log.commit_offset and _lost_to(file):
            raise damage_at(file.log, place, "the end of the log is lost")
        if not file.log.min_offset <= place < file.log.commit_offset:
            return None
        record = _bytes_at(file, place, hit.message_bytes)
        if is_coda(record):  # old stores may name the end marker before the record
            place += CODA_BYTES
            record = _bytes_at(file, place, hit.message_bytes)
        if peek_message_bytes(record) != hit.message_bytes:
            raise damage_at(file.log, place, f"no message of {hit.message_bytes} bytes is here")
        stored = decode_message(record, path=f"{file.path}/{file.log.type.name}", check_crc=False)
        if (stored.topic, stored.queue_id) != file.key or stored.queue_offset >= file.commit_offset:
            raise damage_at(file.log, place, "this is no message of the queue")
        is_wanted = (
            stored.unique_key == wanted.key or wanted.key in stored.keys
        ) and wanted.begin <= stored.store_timestamp <= wanted.end
        if not is_wanted or _has_no_unit(file, place, stored.queue_offset):
            return None
        message = SelectedRecord(
            queue_offset=stored.queue_offset,
            log_offset=place,
            tags_code=stored.tags_code,  # computed from its tags: its unit is not read
            record=record,
        )
        if self._checks_crc:
            check_body(file, message)
        return _Found(stored.store_timestamp, message)

    def _has_gone(self, file: FlatMessageFile, hit: IndexHit) -> bool:
        """Whether the message expired during the read, or its queue was destroyed."""
        is_current = self._store.get(file.key) is file
        return not is_current or record_place(file, hit.log_offset) < file.log.min_offset


def _bytes_at(file: FlatMessageFile, place: int, size: int) -> bytes:
    """So many bytes of the log; of a long record only the head, if it has another size itself."""
    if size > LONG_BYTES:
        head = file.log.read(place, CODA_BYTES)
        if peek_message_bytes(head) != size:
            return head
    return file.log.read(place, size)


def _has_no_unit(file: FlatMessageFile, place: int, queue_offset: int) -> bool:
    """Whether the message has expired: units are dropped before their records.

    Raises SegmentCorruptError if its offset says so, but it lies after a message that still exists.
    """
    if queue_offset >= file.min_offset:
        return False
    first = file.queue.first_unit_from(file.min_offset)
    if first < file.commit_offset and place >= int(file.units(first, 1).log_offsets[0]):
        raise damage_at(file.log, place, f"message {queue_offset} does not lie here")
    return True


def _is_stale(file: FlatMessageFile, hit: IndexHit) -> bool:
    """Whether the hit is of a queue destroyed since, so that its place may have no message:
    it is older than the segment there, or than all messages of that segment.
    """
    segment = file.log.segment_at(record_place(file, hit.log_offset))
    if segment is None:
        return True
    begin = segment.record.begin_timestamp
    return hit.put_before < segment.record.create_timestamp or (
        begin is not None and hit.store_timestamp + INDEX_STEP_MS <= begin
    )
