"""Bringing log, queues and index together when a store opens.

What lives here: the order of the steps. The log is the truth: what is behind its end is cut off,
and what queues and index lack of it is dispatched again.

After a clean end the log is checked from its last file on; after a crash from the file that the
checkpoint vouches for. It ends behind its last sound record, but never before what was on disk: a
record there that cannot be read is damaged and not torn, and its place stays taken.

A queue that ends where the table of `queue_ends` says is believed. Any other is held against the
log, unit by unit from its end, and cut where the log says otherwise. What queues lack, because
units were damaged or files have gone, is written again, however long ago it was put. Units and keys
are written again from where the queues or the index end, whichever is earlier; both know what they
have, so nothing is there twice. No queue ends before the furthest end that is known of it, unless
the log proves that wrong.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from tieredstore.codec.message import MESSAGE_BYTES_MIN
from tieredstore.codec.names import local_file_name
from tieredstore.codec.record_fields import peek_store_timestamp
from tieredstore.local.care.checkpoint import StoreCheckpoint
from tieredstore.local.care.queue_ends import Lacking, QueueEnds
from tieredstore.local.dispatching.redispatch import Redispatch
from tieredstore.local.dispatching.unit_truth import UnitTruth
from tieredstore.local.files.mapped_file import MappedFile
from tieredstore.local.files.mapped_file_queue import MappedFileQueue
from tieredstore.local.keys.index_service import IndexService
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.log.log_scan import LogScan
from tieredstore.local.queues.consume_queue import QueueEnd
from tieredstore.local.queues.consume_queues import ConsumeQueues
from tieredstore.local.queues.deleted_topics import DeletedTopics
from tieredstore.local.records.record_check import RecordState, check_record
from tieredstore.local.records.record_scan import Damage
from tieredstore.model.printable import log_of
from tieredstore.model.values import QueueKey

log = log_of(__name__)

NEVER = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What opening the store had to deal with."""

    abnormal: bool
    checked_from: int
    log_end: int
    redispatched_count: int
    damages: tuple[Damage, ...] = ()
    torn: Damage | None = None
    rebuilt: tuple[QueueKey, ...] = ()


class LogClaims(NamedTuple):
    """Log offsets below which the log is said to have been on disk; `sure` is said twice."""

    ends: Collection[int]
    sure: int = 0


class LogEnd(NamedTuple):
    """Where a log ends, what stands behind its end, and what could not be read just before it."""

    log_end: int
    torn: Damage | None
    damages: tuple[Damage, ...]


@dataclass(slots=True)
class Doubted:
    """Queues whose end was not what the log says: from where on, and how far they went in truth."""

    places: dict[QueueKey, int] = field(default_factory=dict)
    borne_out: dict[QueueKey, QueueEnd] = field(default_factory=dict)
    replay_from: int = NEVER


@dataclass(slots=True, kw_only=True)
class Recovery:
    """One opening: everything is loaded before, and agrees and is ready for puts afterwards.

    * `ends` is the table of what the queues held. Without one a store of ours is compared with its
      whole log; one that Java made has none, and there the rule is Java's: what came furthest
      tells for all.
    * After a crash the units behind what was surely on disk are made anew, not believed: of one
      that lies across two pages half may be lost, and what is left can look sound.
    * `begin_repair` is called before anything is repaired that a second crash could leave half
      done, so that the next opening does not take the store for whole.
    """

    commit_log: CommitLog
    queues: ConsumeQueues
    index: IndexService | None
    redispatch: Redispatch
    checkpoint: StoreCheckpoint
    deleted: DeletedTopics
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
        if self.index is not None and self.index.has_lost:
            self.begin_repair()
        table = self.ends.queues if self.ends is not None else {}
        claims = log_claims(queues, self.ends, self.checkpoint, abnormal=self.abnormal)
        told = [table, queues.ends()]
        doubted = self._distrust(table, minimum)
        told.append(doubted.borne_out)
        lacking = self._lacking(minimum, doubted.replay_from)
        start = self._checked_from(min(index_from, lacking.replay_from))
        scan = commit_log.scan_from(start, doubt_times=True)
        for _ in scan:
            pass
        end = settled_end(commit_log, scan, claims)
        commit_log.truncate(end.log_end)
        commit_log.sync_from(start)
        commit_log.last_store_timestamp = scan.last_store_timestamp
        queues.truncate(end.log_end)
        known = self._furthest([*told, queues.ends()], end.log_end)
        if self.index is not None:
            index_from = self.index.truncate(end.log_end)
        if self.ends is not None and not self.abnormal:
            self.redispatch.dispatched = self.ends.log_end, self.ends.queues
        from_queues = self._queues_from(start, end.log_end)
        wanted = min(from_queues, lacking.replay_from, index_from, end.log_end)
        count = self.redispatch.replay(max(minimum, wanted))
        self.redispatch.keep_numbers(known, end.damages)
        queues.correct_min_offsets(minimum)
        if self.abnormal or end.torn is not None:
            self.checkpoint.rewind(scan.last_store_timestamp)
        self.deleted.settle(log_min=minimum, log_end=end.log_end)
        in_log = [*missing_files(commit_log), *scan.damages, *end.damages]
        damages = dict.fromkeys([*in_log, *self.redispatch.damages, *self._mended(doubted)])
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
        )

    def _distrust(self, table: Mapping[QueueKey, QueueEnd], minimum: int) -> Doubted:
        """Hold the ends of the queues against the log, but where the table says the same: one bit
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
        """What a crash left of deleted topics goes: their directories, or some of the files."""
        left: dict[str, int] = {}
        for key, end in self.queues.ends().items():
            if key.topic in self.deleted:
                left[key.topic] = max(end.last_log_end, left.get(key.topic, 0))
        self.queues.delete_topics(
            topic for topic, end in left.items() if end <= self.deleted.end_of(topic)
        )

    def _index_start(self, minimum: int) -> int:
        """From where on the log has to be indexed again."""
        if self.index is None:
            return NEVER
        return self.index.load(
            abnormal=self.abnormal,
            min_log_offset=minimum,
            durable_timestamp=self.checkpoint.values.index_timestamp,
        )

    def _furthest(
        self, told: Iterable[Mapping[QueueKey, QueueEnd]], log_end: int
    ) -> dict[QueueKey, QueueEnd]:
        """The furthest that each queue is known to have come, as far as the log goes: what lay
        behind its end is lost, and what was there when a topic was deleted counts no more."""
        furthest: dict[QueueKey, QueueEnd] = {}
        for ends in told:
            for key, end in ends.items():
                if not self.deleted.end_of(key.topic) < end.last_log_end <= log_end:
                    continue
                if key not in furthest or furthest[key][1:] < end[1:]:
                    furthest[key] = end
        return furthest

    def _mended(self, doubted: Doubted) -> Iterator[Damage]:
        """The units that were wrong and are right now. After a crash only those that had been on
        disk: what came later may be torn, and that is no damage."""
        for key, offset in doubted.places.items():
            queue = self.queues.queue(*key)
            if queue is None or not queue.min_offset <= offset < queue.max_offset:
                continue
            if self.abnormal and not self._was_on_disk(key, offset):
                continue
            unit = queue.unit(offset)
            if self.truth.agrees(key, offset, unit):
                reason = f"the unit of message {offset} does not fit the log: it is made again"
                yield Damage(*queue.place_of(offset), unit.log_offset, reason, mended=True)

    def _was_on_disk(self, key: QueueKey, offset: int) -> bool:
        return (
            self.ends is not None
            and key in self.ends.queues
            and (offset < self.ends.queues[key].end)
        )

    def _lacking(self, minimum: int, replay_from: int) -> Lacking:
        """What the queues lack that no later record tells of; broken ones go here."""
        table = self.ends if self.ends is not None else QueueEnds()
        lacking = table.lacking(self.queues, self.deleted, log_min=minimum)
        lacking = lacking._replace(replay_from=min(replay_from, lacking.replay_from))
        if self.ends is None and self.ours:
            lacking = lacking._replace(replay_from=minimum)
        if lacking.replay_from < NEVER:
            self.begin_repair()
        for key in lacking.broken:
            self.queues.remove(key)
        return lacking

    def _queues_from(self, start: int, end: int) -> int:
        """From where on the queues need the log; after a crash what they have behind it goes."""
        minimum = self.commit_log.min_offset or 0
        if not self.abnormal:
            return max(minimum, min(self.queues.max_log_end, end))
        if self.ends is None:
            return start
        durable = max(start, min(self.ends.log_end, end))
        self.queues.truncate(durable)
        return durable

    def _checked_from(self, replay_from: int) -> int:
        """The start of the file from which on nothing is taken on trust."""
        files = self.commit_log.queue.files
        if not files:
            return 0
        wanted = min(replay_from, self.queues.max_log_end)
        for file in reversed(files):
            if self.abnormal and not _is_vouched_for(file, self.checkpoint.min_timestamp):
                continue
            if file.start_offset <= wanted:
                return file.start_offset
        return files[0].start_offset


def log_claims(
    queues: ConsumeQueues, table: QueueEnds | None, checkpoint: StoreCheckpoint, *, abnormal: bool
) -> LogClaims:
    """How far the log was on disk, by all that says so.

    After a clean end these are the queues, their table and the checkpoint; after a crash the table
    alone: nothing in it was written before the log.
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

    Below what was on disk nothing can be torn: what the scan could not read there is damage, and
    keeps its place. A claim counts where bytes are in front of it, so that a wrong one leaves no
    hole in a sound log.
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
    """Whether the bytes just below `end`, as many as the shortest record has, are not all zeros."""
    file = files.find(end - 1)
    if file is None:
        return False
    first = max(start, end - MESSAGE_BYTES_MIN, file.start_offset) - file.start_offset
    return any(file.view(first, end - file.start_offset))


def missing_files(commit_log: CommitLog) -> list[Damage]:
    """The parts of the log that no file holds, though files before and behind them are there."""
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
