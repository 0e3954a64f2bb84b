"""All consume queues of a store, as directories. Also the deleted topics and the restarted queues,
for as long as the log has records of them.

    consumequeue/<topic>/<queue number>/<position in 20 digits>

Java's extended queues and batch queues have directories next to `consumequeue`, which are never
touched.

The file of deleted topics has, for each topic, the end of the log when the topic was deleted:

    {"version": 1, "topics": {"TopicTest": 73400}, "crc32": "…"}

The file of begun queues has, for each queue, the queue offset of its first message, the end of the
log at that moment, and the earliest store time that new messages may have:

    {"version": 1, "queues": {"TopicTest": {"0": [15, 73400, 1700000000000]}}, "crc32": "…"}
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from tieredstore.codec.names import parse_local_file_name
from tieredstore.codec.queue_unit import QueueUnit
from tieredstore.driver.durable import fsync_directory
from tieredstore.local.consume_queue import ConsumeQueue, QueueEnd
from tieredstore.local.mapped_file import MappedFiles
from tieredstore.local.side_file import (
    MALFORMED,
    VERSION,
    read_document,
    whole,
    write_document,
)
from tieredstore.model.errors import (
    BackendRefusedError,
    MetadataError,
    SegmentError,
    TieredStoreError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.topics import why_no_directory
from tieredstore.model.values import INT32_MAX, QueueKey

log = log_of(__name__)

DELETED_FILE: Final = "tieredstore-deleted.json"
BEGUN_FILE: Final = "tieredstore-begun.json"
_NAMES: Final = ("version", "topics")
_BEGUN_NAMES: Final = ("version", "queues")


def queue_directory(root: Path, topic: str, queue_id: int) -> Path:
    """Where a queue is. Raises BackendRefusedError for a topic or number that leads elsewhere."""
    if not is_topic(topic):
        raise BackendRefusedError(str(root), "open the queue", f"{topic!r:.80} is no topic")
    if not 0 <= queue_id <= INT32_MAX:
        raise BackendRefusedError(str(root), "open the queue", f"{queue_id} is no queue number")
    return root / topic / str(queue_id)


def is_topic(name: str) -> bool:
    """Whether the name can be the name of a directory. Java used to accept topics with a backslash:
    they can be read, but no put accepts a new one (`model.topics`)."""
    return why_no_directory(name.replace("\\", "_")) is None


def queue_number(name: str) -> int | None:
    """The queue number that a directory name is, as RocketMQ writes it; None for other names."""
    if not (name.isascii() and name.isdigit()) or len(name) > 10:
        return None
    number = int(name)
    return number if str(number) == name and number <= INT32_MAX else None


def remove_topic_directory(directory: Path) -> None:
    """Durably delete the files of a topic's queues, and then the empty directories.

    Anything else stays, with the directories that lead to it, and is logged. Links are not
    followed. Does nothing if the directory does not exist.
    """
    if not directory.is_dir() or directory.is_symlink():
        return
    for path in _entries(directory):
        if queue_number(path.name) is not None and path.is_dir() and not path.is_symlink():
            _remove_queue_directory(path)
    _remove_if_empty(directory)


def _remove_queue_directory(directory: Path) -> None:
    files = [path for path in _entries(directory) if _is_queue_file(path)]
    for path in files:  # oldest first: a crash leaves a valid queue
        path.unlink(missing_ok=True)
    if files:
        fsync_directory(directory)
    _remove_if_empty(directory)


def _is_queue_file(path: Path) -> bool:
    try:
        parse_local_file_name(path.name)
    except ValueError:
        return False
    return path.is_file() and not path.is_symlink()


def _remove_if_empty(directory: Path) -> None:
    left = _entries(directory)
    if not left:
        directory.rmdir()
        fsync_directory(directory.parent)
        return
    for path in left:
        if not path.is_dir():
            log.warning("%s is no file of a queue and stays", path)
        elif path.is_symlink() or queue_number(path.name) is None:
            log.warning("%s is no directory of a queue and stays", path)


def _entries(directory: Path) -> list[Path]:
    return sorted(Path(entry) for entry in os.scandir(directory))


class ConsumeQueues:
    """Every queue under one root, by topic and number.

    * `load` finds the end of each queue and leaves nothing open; files are mapped on use, at most
      as many as `files` allows.
    * The first message of a queue creates it. A missing queue is None.
    * One thread at a time may call `put_batch`; any thread may call the rest.
    """

    def __init__(self, root: Path, *, file_bytes: int, files: MappedFiles) -> None:
        self.root = root
        self.file_bytes = file_bytes
        self.is_kept: Callable[[QueueKey, int, QueueUnit], bool] = lambda *_: False
        """Each queue calls this before it drops its oldest messages; set it before `load`."""
        self._open_files = files
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self._dirty: set[QueueKey] = set()
        self._grown: set[QueueKey] = set()  # put to since the minima were corrected
        self._guard = threading.Lock()
        self._flushing = threading.Lock()

    def load(self) -> None:
        """Find all queues. Writes nothing; leaves everything else alone."""
        for key in _keys_under(self.root):
            if key not in self._queues:
                self._queues[key] = self._open(key)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get(QueueKey(topic, queue_id))

    def queues(self) -> list[QueueKey]:
        return sorted(self._queues)

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        queue = self._queues.get(QueueKey(topic, queue_id))
        return None if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int | None:
        queue = self._queues.get(QueueKey(topic, queue_id))
        return None if queue is None else queue.max_offset

    def next_offsets(self) -> dict[QueueKey, int]:
        """The number of each queue's next message."""
        return {key: queue.max_offset for key, queue in list(self._queues.items())}

    @property
    def max_log_end(self) -> int:
        """Where the newest message of all queues ends in the log; 0 without messages."""
        return max((queue.last_log_end for queue in list(self._queues.values())), default=0)

    def ends(self) -> dict[QueueKey, QueueEnd]:
        return {key: queue.end() for key, queue in list(self._queues.items())}

    def with_gaps(self) -> list[QueueKey]:
        """The queues that lack a file between others."""
        return [key for key, queue in list(self._queues.items()) if queue.has_gap]

    def at(self, directory: str) -> tuple[QueueKey, ConsumeQueue]:
        """The queue whose files are in this directory."""
        key = QueueKey(os.path.basename(os.path.dirname(directory)), int(Path(directory).name))
        return key, self._queues[key]

    def opened_again(self, queue: ConsumeQueue) -> ConsumeQueue:
        """The queue as another process has filled it by now; the same one if it has gone."""
        try:
            return self._open(self.at(queue.directory)[0])
        except (SegmentError, OSError):
            return queue

    def put_batch(
        self,
        topics: Sequence[str],
        queue_ids: Sequence[int],
        queue_offsets: Sequence[int],
        log_offsets: Sequence[int],
        message_bytes: Sequence[int],
        tags_codes: Sequence[int],
    ) -> int:
        """Put messages of many queues, given in log order; returns how many were new.

        Each queue gets its messages in that order. A queue that fails does not stop the others: the
        first error is raised after all of them. Repeating the batch is harmless.
        """
        groups: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for row, key in enumerate(zip(topics, queue_ids, strict=True)):
            groups[key].append(row)
        count = 0
        failure: Exception | None = None
        for (topic, queue_id), rows in groups.items():
            try:
                for run in _runs(rows, queue_offsets):
                    count += self.put(
                        topic,
                        queue_id,
                        queue_offsets[run[0]],
                        [log_offsets[row] for row in run],
                        [message_bytes[row] for row in run],
                        [tags_codes[row] for row in run],
                    )
            except (TieredStoreError, OSError, ValueError) as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return count

    def put(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        log_offsets: Sequence[int],
        message_bytes: Sequence[int],
        tags_codes: Sequence[int],
    ) -> int:
        """Put consecutive messages of one queue, created if needed; returns how many were new.

        Raises BackendRefusedError for a topic that cannot name a directory.
        """
        key = QueueKey(topic, queue_id)
        queue = self._queues.get(key)
        if queue is None:
            opened = self._open(key)
            with self._guard:
                queue = self._queues.setdefault(key, opened)
        try:
            return queue.put(queue_offset, log_offsets, message_bytes, tags_codes)
        finally:
            with self._guard:
                self._dirty.add(key)
                self._grown.add(key)

    def flush(self) -> int:
        """Make everything put so far durable; returns how many queues had changes."""
        with self._flushing:  # what another thread is syncing is not durable yet
            return self._flush()

    def _flush(self) -> int:
        with self._guard:
            dirty = self._dirty
            self._dirty = set()
        waiting = set(dirty)
        try:
            for key in sorted(dirty):
                queue = self._queues.get(key)
                if queue is not None:
                    queue.flush()
                waiting.discard(key)
        finally:
            with self._guard:
                self._dirty |= waiting
        return len(dirty)

    def correct_min_offsets(self, min_log_offset: int) -> None:
        """Skip the messages whose records have gone from the log."""
        for queue in list(self._queues.values()):
            queue.correct_min_offset(min_log_offset)

    def correct_grown(self, min_log_offset: int) -> None:
        """`correct_min_offsets` for queues put to since: records dispatched late may have gone."""
        with self._guard:
            grown, self._grown = self._grown, set()
        for key in grown:
            queue = self._queues.get(key)
            if queue is not None:
                queue.correct_min_offset(min_log_offset)

    def pass_deleted(self, deleted: DeletedTopics) -> None:
        """Skip the messages of deleted topics that a deletion which failed has left."""
        for key, queue in list(self._queues.items()):
            if key.topic in deleted:
                queue.correct_min_offset(deleted.end_of(key.topic))

    def delete_before(self, min_log_offset: int) -> int:
        """Delete files whose messages have all gone from the log; returns how many."""
        return sum(queue.delete_before(min_log_offset) for queue in list(self._queues.values()))

    def truncate(self, log_offset: int) -> int:
        """Drop every message whose record starts at or after `log_offset`; returns how many."""
        return sum(queue.truncate(log_offset) for queue in list(self._queues.values()))

    def tidy(self) -> None:
        """Durably remove the units that a recovery cut off and did not write again."""
        for queue in list(self._queues.values()):
            queue.tidy()

    def delete_topics(self, topics: Iterable[str]) -> list[QueueKey]:
        """Durably delete all queues of these topics and their directories; returns the queues."""
        gone: list[QueueKey] = []
        for topic in sorted(set(topics)):
            keys = [key for key in self.queues() if key.topic == topic]
            for key in keys:
                with self._guard:
                    queue = self._queues.pop(key)
                try:
                    queue.delete()
                except BaseException:  # take back what is left, so that the next call deletes it
                    with self._guard:
                        self._queues[key] = self._open(key)
                    raise
            gone.extend(keys)
            if is_topic(topic):
                remove_topic_directory(self.root / topic)
        return gone

    def remove(self, key: QueueKey) -> None:
        """Durably delete one queue, which is then rebuilt from the log."""
        with self._guard:
            queue = self._queues.pop(key)
        queue.destroy()

    def begin(self, key: QueueKey, first: int) -> None:
        """Durably empty a queue; its next message gets the number `first`."""
        queue = self._queues.get(key) or self._open(key)
        queue.begin_at(first)
        with self._guard:
            self._queues[key] = queue

    def destroy(self) -> None:
        """Delete all queues: the log is empty, or they are rebuilt from it."""
        self.delete_topics({key.topic for key in self.queues()})

    def close(self) -> None:
        """Release all files without a sync. Idempotent."""
        for queue in list(self._queues.values()):
            queue.close()

    def _open(self, key: QueueKey) -> ConsumeQueue:
        directory = queue_directory(self.root, *key)
        queue = ConsumeQueue.open(directory, file_bytes=self.file_bytes, files=self._open_files)
        queue.is_kept = partial(self.is_kept, key)
        return queue


def _keys_under(root: Path) -> Iterator[QueueKey]:
    if not root.is_dir():
        return
    with os.scandir(root) as topics:
        for topic in topics:
            if not topic.is_dir() or not is_topic(topic.name):
                continue
            with os.scandir(topic.path) as queues:
                for queue in queues:
                    number = queue_number(queue.name)
                    if number is not None and queue.is_dir():
                        yield QueueKey(topic.name, number)


def _runs(rows: list[int], queue_offsets: Sequence[int]) -> Iterator[list[int]]:
    """The rows, split where their queue offsets are not consecutive; usually they all are."""
    first = queue_offsets[rows[0]]
    if [queue_offsets[row] for row in rows] == list(range(first, first + len(rows))):
        yield rows
        return
    start = 0
    for number in range(1, len(rows) + 1):
        if (
            number == len(rows)
            or queue_offsets[rows[number]] != queue_offsets[rows[number - 1]] + 1
        ):
            yield rows[start:number]
            start = number


class DeletedTopics:
    """For each deleted topic, the log offset below which its records do not count.

    * An entry is durable before the first directory is deleted, so no crash can bring the topic
      back.
    * Entries are removed when the log begins after them. They never exceed the end of the log: a
      power cut may have taken the records they stand for, and new records will take that place.
    * Any thread may call anything.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ends: dict[str, int] = {}  # replaced, never changed
        self._known: tuple[int, int] | None = None  # which file `load` has read
        self._guard = threading.Lock()  # of changes

    def load(self) -> None:
        """Read the file. Raises MetadataError if damaged: topics must not come back unnoticed."""
        known = self._now()  # first: it may be replaced while it is read
        try:
            topics = read_document(self._path, names=_NAMES)["topics"]
            self._ends = {topic: whole(end) for topic, end in topics.items()}
        except FileNotFoundError:
            self._ends = {}
        except MALFORMED as error:
            reason = "damaged; without it deleted topics would come back"
            raise MetadataError(str(self._path), reason) from error
        self._known = known

    def load_again(self) -> bool:
        """Read the file if another process has replaced it since; returns whether it has."""
        is_new = self._now() != self._known
        if is_new:
            self.load()
        return is_new

    def _now(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def mark(self, topics: Iterable[str], log_end: int) -> None:
        """Durably note that these topics end here."""
        with self._guard:
            self._store(self._ends | dict.fromkeys(topics, log_end))

    def settle(self, *, log_min: int, log_end: int) -> None:
        """Forget topics of which the log has no more records."""
        with self._guard:
            ends = {topic: min(end, log_end) for topic, end in self._ends.items()}
            self._store({topic: end for topic, end in ends.items() if end > log_min})

    def forget_before(self, log_min: int) -> None:
        """`settle` while the store runs, when no entry can exceed the end of the log."""
        with self._guard:
            self._store({topic: end for topic, end in self._ends.items() if end > log_min})

    def end_of(self, topic: str) -> int:
        """The log offset below which records of the topic do not count; 0 if it was not deleted."""
        return self._ends.get(topic, 0)

    def __contains__(self, topic: object) -> bool:
        return topic in self._ends

    def _store(self, ends: dict[str, int]) -> None:
        if ends == self._ends:
            return
        write_document(self._path, {"version": VERSION, "topics": dict(sorted(ends.items()))})
        self._ends = ends


class Begin(NamedTuple):
    """The number of a queue's first message, where the log ended when the queue was begun, and a
    time that all later messages are stored at or after."""

    first: int
    log_end: int
    store_timestamp: int = 0

    def has_messages(self, queue: ConsumeQueue | None) -> bool:
        """Whether the queue has messages since. Both conditions are needed: a power cut may leave
        fill units in its first file that look like messages."""
        return (
            queue is not None
            and queue.last_log_end > self.log_end
            and queue.max_offset > self.first
        )


class BegunQueues:
    """Queues that were restarted at an offset, and the log offset below which their records do not
    count.

    * An entry is durable before the queue's old files are deleted, so no crash brings old messages
      back.
    * It is removed when the log begins after it, also in time, and the queue has messages, which
      then show its numbers. Until then some messages of that time may be in the tier alone: if the
      clock is far behind them, new messages are stored before them.
    * Like a deleted topic's entry it never exceeds the end of the log. A topic that was deleted
      since has no begun queues, even if a crash left an entry here.
    * One thread at a time may change entries; any thread may read them.
    """

    def __init__(self, path: Path, deleted: DeletedTopics) -> None:
        self._path = path
        self._deleted = deleted
        self._begins: dict[QueueKey, Begin] = {}
        self._topics: frozenset[str] = frozenset()

    def load(self) -> None:
        """Read the file. Raises MetadataError if damaged: numbers would be given twice."""
        try:
            topics = read_document(self._path, names=_BEGUN_NAMES)["queues"]
            begins = {
                QueueKey(topic, int(number)): Begin(*map(whole, values))
                for topic, numbers in topics.items()
                for number, values in numbers.items()
            }
        except FileNotFoundError:
            begins = {}
        except MALFORMED as error:
            reason = "damaged; without it numbers of messages would be given twice"
            raise MetadataError(str(self._path), reason) from error
        self._take(begins)

    def items(self) -> list[tuple[QueueKey, Begin]]:
        """The begun queues whose topic was not deleted since."""
        return [
            (key, begin)
            for key, begin in self._begins.items()
            if self._deleted.end_of(key.topic) <= begin.log_end
        ]

    def time_min(self, records_end: int) -> int:
        """The earliest store time that the next message may have, if the newest one ends here in
        the log. Later ones follow it, since the log's own times never decrease."""
        begins = self._begins.values()
        return max((one.store_timestamp for one in begins if one.log_end >= records_end), default=0)

    def time_of(self, topic: str) -> int:
        """`store_timestamp` for the queues of one topic; 0 if none was begun."""
        if topic not in self._topics:
            return 0
        times = (one.store_timestamp for key, one in self.items() if key.topic == topic)
        return max(times, default=0)

    def mark(self, firsts: Mapping[QueueKey, int], log_end: int, store_timestamp: int) -> None:
        """Durably note that these queues begin with these numbers from `log_end` on."""
        begins = {key: Begin(one, log_end, store_timestamp) for key, one in firsts.items()}
        self._store(self._begins | begins)

    def forget(self, topics: Collection[str]) -> None:
        """Drop the entries of deleted topics."""
        self._store({key: one for key, one in self._begins.items() if key.topic not in topics})

    def settle(
        self, queues: ConsumeQueues, *, log_min: int, log_end: int, log_time: int | None
    ) -> None:
        """Forget queues whose messages show their numbers, once the log has no older records."""
        kept = {}
        time = log_time or 0  # an empty log has no message of such a queue
        for key, begin in self.items():
            is_passed = begin.log_end <= log_min and begin.store_timestamp <= time
            if not is_passed or not begin.has_messages(queues.queue(*key)):
                kept[key] = begin._replace(log_end=min(begin.log_end, log_end))
        self._store(kept)

    def concerns(self, topics: Iterable[str]) -> bool:
        """Whether any records of these topics may not count."""
        return any(topic in self._topics or topic in self._deleted for topic in topics)

    def counts_from(self, topic: str, queue_id: int) -> int:
        """The log offset below which records of the queue do not count, because its topic was
        deleted or the queue was begun there."""
        deleted = self._deleted.end_of(topic)
        if topic not in self._topics:
            return deleted
        begin = self._begins.get(QueueKey(topic, queue_id))
        return deleted if begin is None else max(deleted, begin.log_end)

    def _take(self, begins: dict[QueueKey, Begin]) -> None:
        self._begins = begins
        self._topics = frozenset(key.topic for key in begins)

    def _store(self, begins: dict[QueueKey, Begin]) -> None:
        if begins == self._begins:
            return
        topics: dict[str, dict[str, list[int]]] = {}
        for (topic, queue_id), begin in sorted(begins.items()):
            topics.setdefault(topic, {})[str(queue_id)] = list(begin)
        write_document(self._path, {"version": VERSION, "queues": topics})
        self._take(begins)
