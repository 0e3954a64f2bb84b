"""Dispatches the log again when a store opens, into all queues that a record belongs to.

A message whose record is damaged cannot be dispatched. A unit that points at the damage keeps its
place in the queue: a read of that offset says what is wrong and where, every other message keeps
its number, and no new message gets a number that consumers have passed. A sound record with an
impossible queue or number is treated the same way.

Light message queues are additional queues of a record. Two properties name them:

    INNER_MULTI_DISPATCH      %LMQ%a,%LMQ%b     the additional queues; each has the number 0
    INNER_MULTI_QUEUE_OFFSET  7,0               the record's place in each, in the same order

Java writes the second property when it puts the message. Its clients can send any text under both
names, so an invalid value is ignored and never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Final, NamedTuple

from tieredstore.codec.columns import RecordColumns
from tieredstore.codec.java import encode_utf8
from tieredstore.codec.queue_unit import UNKNOWN_TAGS
from tieredstore.codec.record import (
    INNER_BATCH,
    KEYS,
    LIGHT_OFFSETS,
    LIGHT_QUEUES,
    RECORD_BYTES_MIN,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    UNIQUE_KEY,
)
from tieredstore.local.commit_log import CommitLog, LogScan
from tieredstore.local.config import DelayLevels
from tieredstore.local.consume_queue import ConsumeQueue, QueueEnd
from tieredstore.local.consume_queues import BegunQueues, ConsumeQueues, is_topic
from tieredstore.local.dispatch import Dispatch, DispatchRun
from tieredstore.local.record_scan import Damage
from tieredstore.model.errors import PositionMismatchError
from tieredstore.model.printable import log_of
from tieredstore.model.topics import LIGHT_QUEUE_PREFIX, SCHEDULE_TOPIC
from tieredstore.model.values import QueueKey

log = log_of(__name__)

LIGHT_QUEUE_ID: Final = 0

_NEVER_LIGHT: Final = ("%RETRY%", "rmq_sys_")
_OFFSET_DIGITS_MAX: Final = 18
_Key = tuple[str, int]


def light_places(
    topic: str, properties: Mapping[str, str], *, log_offset: int
) -> list[tuple[str, int]]:
    """The light queues that a record of this topic belongs to, and its queue offset in each.

    A queue that is named twice gets the record once. Trailing commas are ignored, as in Java, which
    writes no offsets for them. A queue cannot have had more messages than fit into the log below
    this one: a greater offset is invalid.
    """
    names = properties.get(LIGHT_QUEUES, "").rstrip(",").split(",")
    offsets = properties.get(LIGHT_OFFSETS, "").rstrip(",").split(",")
    if len(names) != len(offsets) or topic.startswith(_NEVER_LIGHT) or topic == SCHEDULE_TOPIC:
        return []
    places: dict[str, int] = {}
    for name, text in zip(names, offsets, strict=True):
        offset = _queue_offset(text)
        if offset is None or offset * RECORD_BYTES_MIN > log_offset:
            continue
        if name.startswith(LIGHT_QUEUE_PREFIX) and is_topic(name):
            places.setdefault(name, offset)
    return list(places.items())


def add_light_queues(run: DispatchRun, columns: RecordColumns) -> None:
    """After each message that belongs to light queues, add a row without keys for each of them.

    The rows stay in the order of the log, because a light queue may also get messages that have its
    name as their topic.
    """
    places: dict[int, list[tuple[str, int]]] = {}
    for row in columns.rows_with(LIGHT_QUEUES.encode("ascii")):
        if run.in_queue[row]:
            at = run.log_offsets[row]
            places[row] = light_places(run.topics[row], columns.properties(row), log_offset=at)
    if not any(places.values()):
        return
    sources: list[int] = []
    added: dict[int, tuple[str, int]] = {}
    for row in range(len(run)):
        sources.append(row)
        for place in places.get(row, ()):
            added[len(sources)] = place
            sources.append(row)
    for field in fields(run):
        column = getattr(run, field.name)
        setattr(run, field.name, [column[row] for row in sources])
    for row, (topic, queue_offset) in added.items():
        run.topics[row] = topic
        run.queue_ids[row] = LIGHT_QUEUE_ID
        run.queue_offsets[row] = queue_offset
        run.unique_keys[row] = run.keys[row] = None


def _queue_offset(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()) or len(text) > _OFFSET_DIGITS_MAX:
        return None
    return int(text)


class _Place(NamedTuple):
    """A claim to a place in one queue; `row` is -1 if the claim is from the following run."""

    queue_offset: int
    row: int


def run_of_scan(columns: RecordColumns, delays: DelayLevels) -> DispatchRun:
    """The records that a scan of the log found, as rows to be dispatched."""
    run = DispatchRun(
        topics=columns.topics(),
        queue_ids=columns.queue_ids.tolist(),
        queue_offsets=columns.queue_offsets.tolist(),
        log_offsets=columns.log_offsets.tolist(),
        sizes=columns.sizes.tolist(),
        store_timestamps=columns.store_timestamps.tolist(),
        sys_flags=columns.sys_flags.tolist(),
    )
    for row, flag in enumerate(run.sys_flags):
        properties = columns.properties(row)
        code = delays.tags_code(run.topics[row], properties, run.store_timestamps[row])
        run.tags_codes.append(code)
        run.unique_keys.append(properties.get(UNIQUE_KEY))
        run.keys.append(properties.get(KEYS))
        # Both transaction states without a unit, prepared and rolled back, have this bit.
        run.in_queue.append(
            not flag & TRANSACTION_MASK & TRANSACTION_PREPARED and not flag & INNER_BATCH
        )
    return run


def impossible_rows(run: DispatchRun) -> Iterator[tuple[int, str]]:
    """The rows whose own fields are impossible, and why."""
    wrong_topics = {topic for topic in set(run.topics) if not is_topic(topic)}
    columns = zip(run.queue_ids, run.queue_offsets, run.log_offsets, run.topics, strict=True)
    for row, (queue_id, queue_offset, log_offset, topic) in enumerate(columns):
        if not run.in_queue[row]:
            continue
        if queue_id < 0:
            yield row, f"{queue_id} is no queue number"
        elif not 0 <= queue_offset * RECORD_BYTES_MIN <= log_offset:
            yield row, f"{queue_offset} is no queue offset: the log has no room for so many before"
        elif topic in wrong_topics:
            yield row, f"{topic!r:.80} is no topic"


def rows_without_text(columns: RecordColumns, topics: Sequence[str]) -> Iterator[int]:
    """The rows whose topic is not UTF-8. Decoded and encoded again, it would be another topic, and
    every read of such a queue would find a record that does not belong to it."""
    for row, topic in enumerate(topics):
        if "\ufffd" in topic:
            start = int(columns.topic_starts[row])
            if columns.data[start : start + int(columns.topic_bytes[row])] != encode_utf8(topic):
                yield row


def misplaced_rows(
    run: DispatchRun,
    following: DispatchRun | None,
    queue_of: Callable[[str, int], ConsumeQueue | None],
) -> list[tuple[int, str]]:
    """The rows whose queue offset contradicts the rows before and after them in their queue.

    If two rows claim one place, the one whose neighbours fit has it. A row without a neighbour on
    each side is not judged: a hole may come from a damaged record.
    """
    ends: dict[_Key, tuple[int | None, int]] = {}
    doubtful = _doubtful_queues(run, queue_of, ends)
    if not doubtful:
        return []
    claims: dict[_Key, list[_Place]] = {key: [] for key in doubtful}
    for some in (run, following):
        if some is None:
            continue
        for row, key in enumerate(zip(some.topics, some.queue_ids, strict=True)):
            if key not in claims or not some.in_queue[row]:
                continue
            if some.log_offsets[row] + some.sizes[row] > ends[key][1]:
                claims[key].append(_Place(some.queue_offsets[row], row if some is run else -1))
    return [
        (place.row, f"queue offset {place.queue_offset} does not fit between its neighbours")
        for key, places in claims.items()
        for place in _misplaced(places, ends[key][0])
        if place.row >= 0
    ]


def _doubtful_queues(
    run: DispatchRun,
    queue_of: Callable[[str, int], ConsumeQueue | None],
    ends: dict[_Key, tuple[int | None, int]],
) -> set[_Key]:
    """The queues whose rows are not consecutive; usually none. Fills `ends` for each queue: its
    last queue offset, if it has messages, and where its last message ends in the log."""
    expected: dict[_Key, int] = {}
    doubtful: set[_Key] = set()
    for row, key in enumerate(zip(run.topics, run.queue_ids, strict=True)):
        if not run.in_queue[row]:
            continue
        queue_offset = run.queue_offsets[row]
        if key not in ends:
            queue = queue_of(*key)
            known = queue is not None and queue.last_log_end > 0
            ends[key] = (queue.max_offset - 1, queue.last_log_end) if known and queue else (None, 0)
        last, last_log_end = ends[key]
        if run.log_offsets[row] + run.sizes[row] <= last_log_end:
            continue  # the queue has this message
        if queue_offset != expected.get(key, queue_offset if last is None else last + 1):
            doubtful.add(key)
        expected[key] = queue_offset + 1
    return doubtful


def _misplaced(places: list[_Place], last: int | None) -> Iterator[_Place]:
    """The claims to one queue, given in the order of the log, that cannot be true."""
    for number, place in enumerate(places):
        behind = [other.queue_offset for other in places[number + 1 : number + 3]]
        here = place.queue_offset
        if last is None:  # the first claim: believe the next two if they agree with each other
            if len(behind) == 2 and behind[1] == behind[0] + 1 and behind[0] <= here:
                yield place
                continue
        elif here != last + 1 and behind:
            if behind[0] == last + 2:  # this record must be the one in between
                last += 1
                yield place
                continue
            if behind[0] == last + 1 < here:  # this record belongs to another queue
                yield place
                continue
        last = here if last is None else max(last, here)


class _Row(NamedTuple):
    queue_offset: int
    log_offset: int
    size: int
    tags_code: int


class Redispatch:
    """Puts records into queues and index again; both skip the records they know.

    Records of deleted topics and of queues restarted since are left out. A light queue is a topic
    of its own: it keeps its messages when their own topic was deleted, as without a rebuild.

    No record of `batch_topics` goes into a plain queue, because Java refuses to load a topic that
    has plain and batch queues. Not every record of these topics is marked as an inner batch. A
    topic that has only plain queues is not among them.

    `dispatched` says up to which log offset every record was in its queue, and where each queue
    ended then. A record below that offset that claims a place after the end of its queue belongs to
    another queue.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        dispatch: Dispatch,
        delays: DelayLevels,
        begun: BegunQueues,
        *,
        batch_topics: Collection[str] = (),
    ) -> None:
        self.dispatched: tuple[int, Mapping[QueueKey, QueueEnd]] | None = None
        self._log = commit_log
        self._queues = queues
        self._dispatch = dispatch
        self._delays = delays
        self._begun = begun
        self._batch_topics = batch_topics
        self._in_log: list[Damage] = []
        self._untrue: list[tuple[QueueKey, Damage]] = []

    @property
    def damages(self) -> list[Damage]:
        """The damage found during the replay."""
        return [*self._in_log, *(damage for _, damage in self._untrue)]

    def replay(self, start: int) -> int:
        """Dispatch everything from this log offset on; returns how many records."""
        count = 0
        scan = self._log.scan_from(start)
        waiting: DispatchRun | None = None
        for columns in scan:
            count += len(columns)
            run = self._run_of(columns)
            if waiting is not None:
                self._put(waiting, run)
            waiting = run
        if waiting is not None:
            self._put(waiting, None)
        self._in_log = scan.damages
        return count

    def _put(self, run: DispatchRun, following: DispatchRun | None) -> None:
        for row, reason in misplaced_rows(run, following, self._queues.queue):
            self._take_out(run, row, reason)
        while True:
            try:
                self._dispatch.put(run)
                return
            except PositionMismatchError as hole:
                self._close(hole, run)

    def _take_out(self, run: DispatchRun, row: int, reason: str) -> None:
        """Note damage that no CRC shows: the row goes into no queue and not into the index."""
        run.in_queue[row] = False
        run.unique_keys[row] = run.keys[row] = None
        at = run.log_offsets[row]
        file = self._log.queue.find(at)
        path = file.path if file is not None else self._log.queue.directory
        damage = Damage(
            *(path, at % self._log.queue.file_bytes, at, reason), resumed_at=at + run.sizes[row]
        )
        place = QueueKey(run.topics[row], run.queue_ids[row]), damage
        if place not in self._untrue:  # a part of the log may be scanned twice
            self._untrue.append(place)

    def keep_numbers(
        self, known: Mapping[QueueKey, QueueEnd], at_end: Collection[Damage] = ()
    ) -> None:
        """Let no queue end before its former end, even if its last records are damaged or gone.

        `at_end` is damage at the end of the log. What the log still has of such a queue is put
        first. If a sound record spans the log offset where the queue's newest record is said to
        end, the log was written again since: the former end is wrong and is ignored.
        """
        for key, end in known.items():
            queue = self._queues.queue(*key)
            held = 0 if queue is None else queue.max_offset
            last = queue.last_log_end if queue is not None else 0
            if end.end <= held or last >= end.last_log_end:
                continue
            rows, damages, is_crossed = self._between(key, last, end.last_log_end)
            if is_crossed:
                log.warning("queue %s: it ended at %d once, but the log was cut", key, end.end)
                continue
            self._put_rows(key, rows)
            queue = self._queues.queue(*key)
            held = 0 if queue is None else queue.max_offset
            if end.end <= held:
                continue
            log.warning("queue %s: messages %d to %d are lost", key, held, end.end - 1)
            if queue is not None and queue.last_log_end:
                damages += at_end
                self._fill(key, held, end.end, queue.last_log_end, end.last_log_end, damages)
            else:
                place = [end.last_log_end - 1]
                self._queues.put(*key, end.end - 1, place, [1], [UNKNOWN_TAGS])

    def _between(
        self, key: QueueKey, start: int, end: int
    ) -> tuple[list[_Row], list[Damage], bool]:
        """The records of a queue between two places of the log, the damage there, and whether a
        sound record spans the second place."""
        untrue = {damage.log_offset for claimed, damage in self._untrue if claimed == key}
        scan = self._scan_before(start, end)
        rows: list[_Row] = []
        is_crossed = False
        for columns in scan:
            ends = columns.log_offsets + columns.sizes
            is_crossed = is_crossed or bool(((columns.log_offsets < end) & (ends > end)).any())
            rows += [
                row
                for row in _rows(self._run_of(columns), key)
                if start <= row.log_offset < end and row.log_offset not in untrue
            ]
        return rows, scan.damages, is_crossed

    def _put_rows(self, key: QueueKey, rows: Iterable[_Row]) -> None:
        """Put records found in the log after the end of a queue, and fill the missing places."""
        for row in rows:
            queue = self._queues.queue(*key)
            if queue is not None and queue.last_log_end:
                last = queue.last_log_end
                missing = row.queue_offset - queue.max_offset
                if self._is_no_number(missing, last, row.log_offset):
                    continue
                self._fill(key, queue.max_offset, row.queue_offset, last, row.log_offset)
            self._queues.put(*key, row.queue_offset, [row.log_offset], [row.size], [row.tags_code])

    def _run_of(self, columns: RecordColumns) -> DispatchRun:
        run = run_of_scan(columns, self._delays)
        if self._batch_topics:
            places = zip(run.in_queue, run.topics, strict=True)
            run.in_queue = [there and topic not in self._batch_topics for there, topic in places]
        for row, reason in impossible_rows(run):
            self._take_out(run, row, reason)
        for row in rows_without_text(columns, run.topics):
            self._take_out(run, row, "its topic is no UTF-8")
        for row in list(self._never_dispatched(run)):
            self._take_out(run, row, "its queue ended before it when all of the log was in queues")
        add_light_queues(run, columns)
        if self._begun.concerns(set(run.topics)):
            for row, topic in enumerate(run.topics):
                if run.log_offsets[row] < self._begun.counts_from(topic, run.queue_ids[row]):
                    run.in_queue[row] = False
                    run.unique_keys[row] = None
                    run.keys[row] = None
        return run

    def _never_dispatched(self, run: DispatchRun) -> Iterator[int]:
        """The rows that claim a queue that never had them. Only rows after the end of their queue
        are examined, usually none."""
        if self.dispatched is None:
            return
        log_end, ends = self.dispatched
        for row, topic in enumerate(run.topics):
            end = run.log_offsets[row] + run.sizes[row]
            if end > log_end or not run.in_queue[row]:
                continue
            known = ends.get(QueueKey(topic, run.queue_ids[row]))
            if end <= (known.last_log_end if known is not None else 0):
                continue
            if run.log_offsets[row] >= self._begun.counts_from(topic, run.queue_ids[row]):
                yield row

    def _close(self, hole: PositionMismatchError, run: DispatchRun) -> None:
        """Put the messages that a queue lacks before the one that left a hole.

        They are searched in the log after the queue's last message; places whose message is not
        found there are filled.
        """
        key, queue = self._queues.at(hole.path)
        at = next(row.log_offset for row in _rows(run, key) if row.queue_offset == hole.expected)
        last = queue.last_log_end
        if self._is_no_number(hole.expected - queue.max_offset, last, at):
            self._leave_out(run, key, hole.expected)
            return
        log.warning("queue %s: messages are missing before %d", key, hole.expected)
        rows, damages, _ = self._between(key, last, at)
        self._put_rows(key, rows)
        last = queue.last_log_end
        if self._is_no_number(hole.expected - queue.max_offset, last, at):
            self._leave_out(run, key, hole.expected)
            return
        self._fill(key, queue.max_offset, hole.expected, last, at, damages)

    def _scan_before(self, start: int, end: int) -> LogScan:
        files = [file for file in self._log.queue.files_from(start) if file.start_offset < end]
        return LogScan(files, start_offset=max(start, self._log.min_offset or 0))

    def _fill(
        self,
        key: QueueKey,
        first: int,
        end: int,
        log_start: int,
        log_end: int,
        damages: list[Damage] | None = None,
    ) -> None:
        """Put units for [first, end), whose records are damaged within [log_start, log_end)."""
        if first >= end:
            return
        if damages is None:
            scan = self._scan_before(log_start, log_end)
            for _ in scan:
                pass
            damages = scan.damages
        count = end - first
        start, stop = self._place_of_lost(key, count, log_start, log_end, damages)
        width = (stop - start) // count
        places = range(start, start + count * width, width)
        self._queues.put(*key, first, [*places], [width] * count, [UNKNOWN_TAGS] * count)

    def _place_of_lost(
        self, key: QueueKey, count: int, log_start: int, log_end: int, damages: Iterable[Damage]
    ) -> tuple[int, int]:
        """A part of the log where `count` messages were lost, with at least one byte for each."""
        # An untrue record is sound at its first byte; after that byte no record starts that a read
        # could serve by mistake.
        own = sorted(self._untrue, key=lambda place: place[0] != key)
        untrue = [damage._replace(log_offset=damage.log_offset + 1) for _, damage in own]
        # Damage that is not lost comes first: such a record may come back, so its place must not
        # be called lost.
        damages = sorted(damages, key=lambda damage: self._log.lost.has(damage.log_offset))
        places = [
            (damage.log_offset, min(log_end, damage.resumed_at or log_end))
            for damage in [*damages, *untrue]
            if log_start <= damage.log_offset < log_end
        ]
        lost = self._log.lost.first_between(log_start, log_end)
        if lost is not None:
            places.append(lost)
        if self._has_gone(log_start):
            places.append((log_start, self._log.min_offset or 0))  # expired messages
        # Not at log_start, where a record starts that a read could serve by mistake.
        places.append((log_start + 1, log_end))
        for place in places:
            for start, end in self._by_files(*place):
                if end - start >= count:
                    return start, end
        return log_end - count, log_end

    def _by_files(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        while start < end:
            file = self._log.queue.find(start)
            stop = end if file is None else min(end, file.end_offset)
            yield start, stop
            start = stop

    def _has_gone(self, log_end: int) -> bool:
        """Whether a message that ends at this log offset is no longer in the log."""
        return 0 < log_end < (self._log.min_offset or 0)

    def _is_no_number(self, missing: int, last: int, at: int) -> bool:
        """Whether more messages would be missing than fit into the log in between, so that the
        number cannot be true. If the last message has expired, all of the log below `at` counts."""
        room = at if self._has_gone(last) else at - last
        return missing > min(room // RECORD_BYTES_MIN, at - last)

    def _leave_out(self, run: DispatchRun, key: QueueKey, queue_offset: int) -> None:
        for row, found in enumerate(run.queue_offsets):
            if found == queue_offset and (run.topics[row], run.queue_ids[row]) == key:
                self._take_out(run, row, f"{found} is no queue offset: so many are not missing")


def _rows(run: DispatchRun, key: QueueKey) -> Iterator[_Row]:
    for row, topic in enumerate(run.topics):
        if run.in_queue[row] and (topic, run.queue_ids[row]) == key:
            yield _Row(
                run.queue_offsets[row],
                run.log_offsets[row],
                run.sizes[row],
                run.tags_codes[row],
            )
