"""Recovery: makes log, queues and index agree when a store opens, with the help of two files that
say what was on disk.

After a clean shutdown the log is checked from its last file on; after a crash from the file that
the checkpoint vouches for. It ends after its last sound record, but never before data that was on
disk: an unreadable record there is damaged, not torn, and keeps its place.

A queue that ends where the table of queue ends says is accepted. Any other queue is compared with
the log, unit by unit from its end, and cut where the log disagrees. Units that a queue lacks,
because they were damaged or files are missing, are written again, however old they are. Units and
keys are written again from the end of the queues or of the index, whichever is earlier; both know
what they hold, so nothing is added twice. No queue ends before its furthest known end, unless the
log disproves that end.

The checkpoint file says up to which store times the parts of a store are durable:

    | offset | width | field                                                            |
    | ------ | ----- | ---------------------------------------------------------------- |
    |      0 | i64   | store time up to which the commit log is durable                 |
    |      8 | i64   | the same for the consume queues                                  |
    |     16 | i64   | the same for the key index                                       |
    |     24 | i64   | log offset up to which the master of a replica has flushed       |
    |     32 | i64   | log offset of the last message that recovery found good          |
    |     40 | i64   | from RocketMQ 5.5 on: log offset up to which queues are durable  |

The file has 4096 bytes; the rest stays unchanged. The last field is written as 0, which means
unknown: later versions then use the times, as 5.3.3 does.

The table of queue ends records the contents of each queue at a moment when all of them were on
disk:

    {"version": 1, "logEnd": .., "logMin": .., "queues": {topic: {number: [first, end, last]}},
     "crc32": ".."}

`first` is the queue offset where the first file starts, `end` the next queue offset, `last` the log
offset where the newest message ends.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

from tieredstore.codec.checks import pack_fields
from tieredstore.codec.names import local_file_name
from tieredstore.codec.record import RECORD_BYTES_MIN, peek_store_timestamp
from tieredstore.driver.durable import NO_LINK, write_all, write_atomically
from tieredstore.local.commit_log import CommitLog, LogScan
from tieredstore.local.consume_queue import QueueEnd
from tieredstore.local.consume_queues import BegunQueues, ConsumeQueues, DeletedTopics
from tieredstore.local.index_service import IndexService
from tieredstore.local.mapped_file import MappedFile
from tieredstore.local.mapped_file_queue import MappedFileQueue
from tieredstore.local.record_scan import Damage, RecordState, check_record
from tieredstore.local.redispatch import Redispatch
from tieredstore.local.side_file import (
    MALFORMED,
    VERSION,
    read_document,
    whole,
    write_document,
)
from tieredstore.local.unit_truth import UnitTruth
from tieredstore.model.errors import BackendRefusedError
from tieredstore.model.printable import log_of
from tieredstore.model.values import QueueKey

log = log_of(__name__)

CHECKPOINT_BYTES: Final = 4096
ENDS_FILE: Final = "tieredstore-queues.json"
MARGIN_MS: Final = 3_000
NEVER: Final = 1 << 62

_ENDS_NAMES: Final = ("version", "logEnd", "logMin", "queues")
_FIELDS: Final = Struct(">qqqqq")
_NO_QUEUE_OFFSET: Final = bytes(8)
_WRITTEN_BYTES: Final = _FIELDS.size + len(_NO_QUEUE_OFFSET)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointValues:
    """The values of a checkpoint; 0 means that nothing is known to be durable."""

    log_timestamp: int = 0
    queue_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed_offset: int = 0
    confirmed_offset: int = 0

    @property
    def min_timestamp(self) -> int:
        """Messages stored before this are in the log and in their queues, whatever happened.

        The margin is Java's: its times within one moment may be out of order.
        """
        return max(0, min(self.log_timestamp, self.queue_timestamp) - MARGIN_MS)


_NAMES: Final = tuple(CheckpointValues.__dataclass_fields__)


def encode_checkpoint(values: CheckpointValues) -> bytes:
    """The first 40 bytes of the file."""
    return pack_fields(_FIELDS, _NAMES, *astuple(values))


def decode_checkpoint(data: bytes) -> CheckpointValues:
    """Decode a checkpoint of any length.

    A checkpoint only saves work in a recovery. So a missing or impossible value becomes 0, which
    means unknown: the recovery then reads more and finds the same. Java reads a short file like
    this too.
    """
    whole = data[: _FIELDS.size].ljust(_FIELDS.size, b"\x00")
    known = (max(0, value) for value in _FIELDS.unpack(whole))
    return CheckpointValues(**dict(zip(_NAMES, known, strict=True)))


class StoreCheckpoint:
    """The checkpoint of one store, in memory and in its file.

    The store sets a value in memory only after the part that it describes is durable; `flush`
    writes the values to the file. A crash in between leaves older values, which are also true.
    Only `rewind` moves times back. Any thread may call anything.
    """

    def __init__(self, path: Path, values: CheckpointValues, *, written: bytes | None) -> None:
        self._path = path
        self._values = values
        self._written = written
        self._guard = threading.Lock()
        self._file_guard = threading.Lock()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> StoreCheckpoint:
        """Read the file; a missing, short or damaged file only says less. Writes nothing."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                data = file.read(CHECKPOINT_BYTES)
        except FileNotFoundError:
            return cls(path, CheckpointValues(), written=None)
        whole = len(data) == CHECKPOINT_BYTES
        return cls(path, decode_checkpoint(data), written=data[:_WRITTEN_BYTES] if whole else None)

    @property
    def values(self) -> CheckpointValues:
        return self._values

    @property
    def is_whole(self) -> bool:
        """Whether the file exists, with its full length."""
        return self._written is not None

    def advance(
        self,
        *,
        log_timestamp: int = 0,
        queue_timestamp: int = 0,
        index_timestamp: int = 0,
    ) -> None:
        """Messages stored up to these times have become durable. Older times change nothing."""
        with self._guard:
            old = self._values
            self._values = replace(
                old,
                log_timestamp=max(old.log_timestamp, log_timestamp),
                queue_timestamp=max(old.queue_timestamp, queue_timestamp),
                index_timestamp=max(old.index_timestamp, index_timestamp),
            )

    def rewind(self, timestamp: int) -> None:
        """Lower all times to `timestamp`: recovery cut the log, or a part was rebuilt."""
        with self._guard:
            old = self._values
            self._values = replace(
                old,
                log_timestamp=min(old.log_timestamp, max(0, timestamp)),
                queue_timestamp=min(old.queue_timestamp, max(0, timestamp)),
                index_timestamp=min(old.index_timestamp, max(0, timestamp)),
            )

    def confirm(self, confirmed_offset: int) -> None:
        """Everything below this log offset is on disk; the value may rise or fall."""
        with self._guard:
            self._values = replace(self._values, confirmed_offset=confirmed_offset)

    def flush(self) -> bool:
        """Make the values durable; False if the file had them already."""
        with self._file_guard:
            data = encode_checkpoint(self._values) + _NO_QUEUE_OFFSET
            if data == self._written:
                return False
            if self._written is None or not self._overwrite(data):
                write_atomically(self._path, [data, bytes(CHECKPOINT_BYTES - len(data))])
            self._written = data
            return True

    def _overwrite(self, data: bytes) -> bool:
        """Overwrite in place, which is cheap enough for every second and safe: the bytes lie in
        one sector, which is written whole.

        False if the file is gone or is a link: the target of a link is not touched.
        """
        try:
            descriptor = os.open(self._path, os.O_WRONLY | NO_LINK)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
            return False
        try:
            write_all(descriptor, data, 0)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        return True


class Lacking(NamedTuple):
    """What queues lack: remove the `broken` ones, then dispatch from `replay_from` on."""

    replay_from: int
    broken: list[QueueKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEnds:
    """Every queue had every message below `log_end`, and this table says where each one ended."""

    log_end: int = 0
    log_min: int = 0
    queues: dict[QueueKey, QueueEnd] = field(default_factory=dict)

    @classmethod
    def of(cls, queues: ConsumeQueues, *, log_min: int) -> QueueEnds:
        """The ends as they are now. True on disk once a dispatch and then a flush have ended."""
        ends = queues.ends()
        log_end = max((end.last_log_end for end in ends.values()), default=0)
        return cls(log_end=log_end, log_min=log_min, queues=ends)

    def save(self, path: Path) -> None:
        topics: dict[str, dict[str, list[int]]] = {}
        for (topic, queue_id), end in sorted(self.queues.items()):
            topics.setdefault(topic, {})[str(queue_id)] = list(end)
        document = {
            "version": VERSION,
            "logEnd": self.log_end,
            "logMin": self.log_min,
            "queues": topics,
        }
        write_document(path, document)

    @classmethod
    def load(cls, path: Path) -> QueueEnds | None:
        """Read the table; None if it is missing, or damaged and so proves nothing."""
        try:
            return _decode(read_document(path, names=_ENDS_NAMES))
        except FileNotFoundError:
            return None
        except MALFORMED as error:
            log.warning("%s: damaged, all queues are compared with the log: %s", path, error)
            return None

    def lacking(self, queues: ConsumeQueues, begun: BegunQueues, *, log_min: int) -> Lacking:
        """Compare the table with the queues that are there.

        The first files of a queue are deleted when the log's are. So their absence means something
        only while the log begins where it did when all queues had followed it (`log_min`).
        """
        replay_from = NEVER
        broken = queues.with_gaps()
        for key, known in self.queues.items():
            needed = max(log_min, begun.counts_from(*key))
            if known.last_log_end <= needed:
                continue
            queue = queues.queue(*key)
            if queue is None:
                replay_from = log_min
                log.warning("queue %s: its files are missing, it is rebuilt", key)
            elif log_min == self.log_min and queue.first_kept > known.first:
                broken.append(key)
            elif queue.last_log_end < known.last_log_end:
                replay_from = min(replay_from, max(needed, queue.last_log_end))
        if broken:
            log.warning("queues %s: files are missing, the queues are rebuilt", sorted(set(broken)))
            replay_from = log_min
        return Lacking(replay_from, sorted(set(broken)))


def _decode(document: Any) -> QueueEnds:
    queues: dict[QueueKey, QueueEnd] = {}
    for topic, numbers in document["queues"].items():
        for number, values in numbers.items():
            queues[QueueKey(topic, int(number))] = QueueEnd(*map(whole, values))
    return QueueEnds(
        log_end=whole(document["logEnd"]), log_min=whole(document["logMin"]), queues=queues
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What the store found and did when it opened."""

    abnormal: bool
    checked_from: int
    log_end: int
    redispatched_count: int
    damages: tuple[Damage, ...] = ()
    torn: Damage | None = None
    rebuilt: tuple[QueueKey, ...] = ()
    lost_ends: Mapping[QueueKey, int] = field(default_factory=dict)
    """The earlier end of each queue that now ends before it."""


class LogClaims(NamedTuple):
    """Log offsets below which the log is said to have been on disk; two sources agree on `sure`."""

    ends: Collection[int]
    sure: int = 0


class LogEnd(NamedTuple):
    """Where a log ends, the bytes after its end, and the unreadable part just before it."""

    log_end: int
    torn: Damage | None
    damages: tuple[Damage, ...]


@dataclass(slots=True)
class Doubted:
    """Queues whose end disagrees with the log: from which offset, and how far they really went."""

    places: dict[QueueKey, int] = field(default_factory=dict)
    borne_out: dict[QueueKey, QueueEnd] = field(default_factory=dict)
    replay_from: int = NEVER


@dataclass(slots=True, kw_only=True)
class Recovery:
    """One recovery: all parts are loaded before it; after it they agree and are ready for puts.

    * `ends` is the table of what the queues held. If it is missing, a store of ours is compared
      with its whole log. A store that Java made has no table; there Java's rule holds: the furthest
      end of a queue decides for all queues.
    * After a crash, units beyond what was surely on disk are made again, not believed: half of a
      unit that spans two pages may be lost, and the rest can look sound.
    * After a crash, the part of the log that nothing vouches for is written again before it is
      believed: if a sync failed before, it is in memory alone, and no later sync would write it.
    * `begin_repair` is called before any repair that a second crash could leave half done, so that
      the next opening does not take the store for clean.
    """

    commit_log: CommitLog
    queues: ConsumeQueues
    index: IndexService | None
    redispatch: Redispatch
    checkpoint: StoreCheckpoint
    deleted: DeletedTopics
    begun: BegunQueues
    truth: UnitTruth
    ends: QueueEnds | None
    ours: bool
    abnormal: bool
    begin_repair: Callable[[], None]

    def run(self) -> RecoveryReport:
        commit_log, queues = self.commit_log, self.queues
        minimum = commit_log.min_offset or 0
        self._finish_deletions()
        index_from = self._index_start(minimum)
        table = self.ends.queues if self.ends is not None else {}
        claims = log_claims(queues, self.ends, self.checkpoint, abnormal=self.abnormal)
        told = [table, queues.ends()]
        doubted = self._distrust(table, minimum)
        told.append(doubted.borne_out)
        self._finish_begins()
        lacking = self._lacking(minimum, doubted.replay_from)
        start = self._checked_from(min(index_from, lacking.replay_from))
        vouched = vouched_end(self.checkpoint, self.ends, abnormal=self.abnormal, ours=self.ours)
        if vouched < NEVER:  # before the scan: what it reads must not leave the memory meanwhile
            commit_log.queue.write_again(max(start, vouched))
        scan = commit_log.scan_from(start, doubt_times=True, killed_from=vouched)
        for _ in scan:
            pass
        end = settled_end(commit_log, scan, claims)
        commit_log.queue.truncate_dirty(end.log_end)
        commit_log.queue.sync_from(start)  # a killed process may have left it in the page cache
        commit_log.last_store_timestamp = scan.last_store_timestamp
        queues.truncate(end.log_end)
        known = self._furthest([*told, queues.ends()], end.log_end)
        if self.index is not None:
            index_from = self.index.truncate(end.log_end)
            if not self.abnormal and self._lacks_keys(self.index, minimum):
                self.begin_repair()
        if self.ends is not None and not self.abnormal:
            self.redispatch.dispatched = self.ends.log_end, self.ends.queues
        in_log = [*missing_files(commit_log), *scan.damages, *end.damages]
        in_log = [*self._note_lost(in_log, minimum, end.log_end, vouched), *scan.doubted]
        from_queues = self._queues_from(start, end.log_end)
        wanted = min(from_queues, lacking.replay_from, index_from, end.log_end)
        count = self.redispatch.replay(max(minimum, wanted))
        self.redispatch.keep_numbers(known, end.damages)
        self._make_room()
        queues.tidy()
        queues.correct_min_offsets(minimum)
        queues.pass_deleted(self.deleted)
        if self.abnormal or end.torn is not None:
            self.checkpoint.rewind(scan.last_store_timestamp)
        self.begun.settle(
            queues,
            log_min=minimum,
            log_end=end.log_end,
            log_time=commit_log.earliest_time(),
        )
        commit_log.time_min = self.begun.time_min(scan.records_end)
        self.deleted.settle(log_min=minimum, log_end=end.log_end)
        in_replay = (
            one for one in self.redispatch.damages if not commit_log.lost.has(one.log_offset)
        )
        damages = dict.fromkeys([*in_log, *in_replay, *self._mended(doubted)])
        for damage in damages:
            log.warning("%s", damage.error())
        return RecoveryReport(
            abnormal=self.abnormal,
            checked_from=start,
            log_end=end.log_end,
            redispatched_count=count,
            damages=tuple(sorted(damages, key=lambda damage: damage.log_offset)),
            torn=end.torn,
            rebuilt=tuple(lacking.broken),
            lost_ends=self._lost_ends(told[:1] if self.abnormal else told[:2]),
        )

    def _make_room(self) -> None:
        """Let the log go on where all numbers before each queue's next one could have been, as
        they were before a power cut that took the log and left the queues their numbers: the next
        recovery would not believe a greater number. So if the log cannot go on there, on a full
        disk for instance, it takes no puts. A number that is too far away is damage itself."""
        commit_log = self.commit_log
        needed = 0
        for key, number in self.queues.next_offsets().items():
            if commit_log.can_skip_to(number * RECORD_BYTES_MIN):
                needed = max(needed, number * RECORD_BYTES_MIN)
            else:
                log.warning("queue %s: it goes on at %d, too far for its log", key, number)
        if needed <= commit_log.max_offset:
            return
        self.begin_repair()
        try:
            commit_log.skip_to(needed)
        except BackendRefusedError as error:
            log.warning("no puts are taken: %s", error)
            commit_log.refuse(error)

    def _note_lost(
        self, in_log: Iterable[Damage], log_min: int, log_end: int, vouched: int
    ) -> list[Damage]:
        """Note as lost what a power cut took and nothing vouched for, and report it this once: its
        bytes were never on the disk, so they cannot come back. All else is damage.
        """
        lost = self.commit_log.lost
        told: list[Damage] = []
        found: list[tuple[int, int]] = []
        for damage in in_log:
            if lost.has(damage.log_offset):
                continue
            if damage.log_offset >= vouched and damage.resumed_at is not None:
                found.append((damage.log_offset, damage.resumed_at))
                reason = f"{damage.reason}: the records here were not on the disk yet, and are lost"
                told.append(damage._replace(reason=reason))
            else:
                told.append(damage)
        lost.settle(found, log_min=log_min, log_end=log_end)
        return told

    def _lost_ends(self, told: Iterable[Mapping[QueueKey, QueueEnd]]) -> dict[QueueKey, int]:
        """Where queues once ended that now end earlier. `told` has only what can be believed:
        after a crash the ends of the queues may be torn."""
        lost: dict[QueueKey, int] = {}
        for ends in told:
            for key, end in ends.items():
                held = max(self.queues.max_offset(*key) or 0, lost.get(key, 0))
                if end.end > held and end.last_log_end > self.begun.counts_from(*key):
                    lost[key] = end.end
        return lost

    def _distrust(self, table: Mapping[QueueKey, QueueEnd], minimum: int) -> Doubted:
        """Compare the ends of the queues with the log, except where they match the table: one bit
        of the newest unit cannot change its queue and leave the end of its record as it was."""
        doubted = Doubted()
        for key in self.queues.queues():
            queue = self.queues.queue(*key)
            if queue is None or (key in table and table[key][1:] == queue.end()[1:]):
                continue
            doubt = queue.distrust(partial(self.truth.agrees, key), minimum)
            if doubt is None:
                continue
            doubted.places[key] = doubt.offset
            if doubt.borne_out is not None:
                doubted.borne_out[key] = doubt.borne_out
            doubted.replay_from = min(doubted.replay_from, queue.last_log_end)
        return doubted

    def _finish_deletions(self) -> None:
        """Delete what a crash left of deleted topics: their directories, or some of the files."""
        left: dict[str, int] = {}
        for key, end in self.queues.ends().items():
            if key.topic in self.deleted:
                left[key.topic] = max(end.last_log_end, left.get(key.topic, 0))
        self.queues.delete_topics(
            topic for topic, end in left.items() if end <= self.deleted.end_of(topic)
        )

    def _finish_begins(self) -> None:
        """Set the begin of queues that were begun and have no message yet: their files do not show
        it."""
        for key, begin in self.begun.items():
            if not begin.has_messages(self.queues.queue(*key)):
                self.queues.begin(key, begin.first)

    def _index_start(self, minimum: int) -> int:
        """The log offset from which on the log must be indexed again."""
        if self.index is None:
            return NEVER
        return self.index.load(
            abnormal=self.abnormal,
            min_log_offset=minimum,
            durable_timestamp=self.checkpoint.values.index_timestamp,
        )

    def _lacks_keys(self, index: IndexService, log_min: int) -> bool:
        """Whether the index has not seen all of the log: its newest message, which is put again,
        is known."""
        known = max(index.replay_from - 1, index.end_log_offset) >= log_min
        scan = self.commit_log.scan_from(max(log_min, index.replay_from), check_crc=False)
        records = chain.from_iterable(columns.log_offsets for columns in scan)
        return len(list(islice(records, 2))) > known

    def _furthest(
        self, told: Iterable[Mapping[QueueKey, QueueEnd]], log_end: int
    ) -> dict[QueueKey, QueueEnd]:
        """The furthest known end of each queue within the log. What lay after the log's end is
        lost; what a queue held before its topic was deleted, or before it was begun, no longer
        counts."""
        furthest: dict[QueueKey, QueueEnd] = {}
        for ends in told:
            for key, end in ends.items():
                if not self.begun.counts_from(*key) < end.last_log_end <= log_end:
                    continue
                if key not in furthest or furthest[key][1:] < end[1:]:
                    furthest[key] = end
        return furthest

    def _mended(self, doubted: Doubted) -> Iterator[Damage]:
        """The units that were wrong and are now repaired. After a crash, only those that had been
        on disk: later units may be torn, and that is not damage."""
        for key, offset in doubted.places.items():
            queue = self.queues.queue(*key)
            if queue is None or not queue.min_offset <= offset < queue.max_offset:
                continue
            if self.abnormal and not self._was_on_disk(key, offset):
                continue
            unit = queue.unit(offset)
            if self.truth.agrees(key, offset, unit):
                reason = f"the unit of message {offset} does not fit the log: it is rebuilt"
                yield Damage(*queue.place_of(offset), unit.log_offset, reason, mended=True)

    def _was_on_disk(self, key: QueueKey, offset: int) -> bool:
        return (
            self.ends is not None
            and key in self.ends.queues
            and (offset < self.ends.queues[key].end)
        )

    def _lacking(self, minimum: int, replay_from: int) -> Lacking:
        """What the queues lack and no later record would reveal; removes the broken queues."""
        table = self.ends if self.ends is not None else QueueEnds()
        lacking = table.lacking(self.queues, self.begun, log_min=minimum)
        lacking = lacking._replace(replay_from=min(replay_from, lacking.replay_from))
        if self.ends is None and self.ours:
            lacking = lacking._replace(replay_from=minimum)
        if lacking.replay_from < NEVER:
            self.begin_repair()
        for key in lacking.broken:
            self.queues.remove(key)
        return lacking

    def _queues_from(self, start: int, end: int) -> int:
        """The log offset from which on the queues need the log; after a crash also drops what
        the queues hold from there on."""
        minimum = self.commit_log.min_offset or 0
        if not self.abnormal:
            return max(minimum, min(self.queues.max_log_end, end))
        if self.ends is None:
            return start
        durable = max(start, min(self.ends.log_end, end))
        self.queues.truncate(durable)
        if start <= self.ends.log_end:
            self._cut_to(self.ends.queues)
        return durable

    def _cut_to(self, table: Mapping[QueueKey, QueueEnd]) -> None:
        """End the queues where the table says; all later messages are put again. A torn unit may
        name an older place in the log than its own, and so look like one that has expired."""
        begins = {key: begin.first for key, begin in self.begun.items()}
        for key in self.queues.queues():
            queue, known = self.queues.queue(*key), table.get(key, QueueEnd(0, 0, 0))
            if queue is None or queue.end()[1:] == known[1:]:
                continue  # so a deletion that failed leaves its number
            since = self.begun.counts_from(*key)
            is_known = known.last_log_end > since or not since
            queue.cut(known.end if is_known else begins.get(key, 0))

    def _checked_from(self, replay_from: int) -> int:
        """The start of the file from which on everything is checked."""
        files = self.commit_log.queue.files
        if not files:
            return 0
        wanted = min(replay_from, self.queues.max_log_end)
        for file in reversed(files):
            if self.abnormal and not _is_vouched_for(file, self.checkpoint.values.min_timestamp):
                continue
            if file.start_offset <= wanted:
                return file.start_offset
        return files[0].start_offset


def vouched_end(
    checkpoint: StoreCheckpoint, table: QueueEnds | None, *, abnormal: bool, ours: bool
) -> int:
    """The log offset from which on nothing vouches that the log was on disk; NEVER if unknown."""
    if not (abnormal and ours and checkpoint.is_whole):
        return NEVER
    return max(checkpoint.values.confirmed_offset, table.log_end if table is not None else 0)


def log_claims(
    queues: ConsumeQueues, table: QueueEnds | None, checkpoint: StoreCheckpoint, *, abnormal: bool
) -> LogClaims:
    """How far the log was on disk, according to all sources.

    After a clean end these are the queues, their table and the checkpoint. After a crash only the
    table counts: it never names a message that was not in the log on disk.
    """
    entries = table.queues if table is not None else {}
    ends = {end.last_log_end for end in entries.values()}
    if abnormal:
        return LogClaims(ends)
    now = queues.ends()
    ends |= {end.last_log_end for end in now.values()}
    ends.add(checkpoint.values.confirmed_offset)
    sure = [end.last_log_end for key, end in now.items() if entries.get(key, end)[1:] == end[1:]]
    return LogClaims(ends, max(sure, default=0) if table is not None else 0)


def settled_end(commit_log: CommitLog, scan: LogScan, claims: LogClaims) -> LogEnd:
    """Where the log ends, after a scan of its end.

    Nothing that was on disk can be torn: what the scan could not read below a claim is damage, and
    keeps its place. A claim counts only if bytes lie just before it, so that a wrong claim leaves
    no hole in a sound log.
    """
    files = commit_log.queue
    believed = [end for end in claims.ends if end > scan.end and _is_written(files, scan.end, end)]
    if claims.sure > scan.end and files.find(claims.sure - 1) is not None:
        believed.append(claims.sure)
    if not believed:
        return LogEnd(scan.end, scan.torn, ())
    end = max(believed)
    file = files.find(scan.end)
    path, start = (file.path, file.start_offset) if file else (files.directory, 0)
    what = scan.torn or Damage(path, scan.end - start, scan.end, "zeros where records have been")
    return LogEnd(end, None, (what._replace(resumed_at=end),))


def _is_written(files: MappedFileQueue, start: int, end: int) -> bool:
    """Whether any of the bytes just below `end` is not zero, as far back as the shortest record."""
    file = files.find(end - 1)
    if file is None:
        return False
    first = max(start, end - RECORD_BYTES_MIN, file.start_offset) - file.start_offset
    return any(file.view(first, end - file.start_offset))


def missing_files(commit_log: CommitLog) -> list[Damage]:
    """The parts of the log that no file holds, although files before and after them exist."""
    directory, size = commit_log.queue.directory, commit_log.queue.file_bytes
    return [
        Damage(
            *(os.path.join(directory, local_file_name(gap.start)), 0, gap.start),
            f"{(gap.end - gap.start) // size} files are missing",
            resumed_at=gap.end,
        )
        for gap in commit_log.queue.gaps
    ]


def _is_vouched_for(file: MappedFile, timestamp: int) -> bool:
    """Whether the file begins with a sound record that was durable everywhere."""
    data = file.view(0, file.wrote)
    if check_record(data, log_offset=file.start_offset).state is not RecordState.MESSAGE:
        return False
    return 0 < peek_store_timestamp(data) <= timestamp
