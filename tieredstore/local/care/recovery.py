"""Bringing log, queues and index together when a store opens.

What lives here: the order of the steps. The log is the truth: what is behind its last sound record
is cut off, and what queues and index lack of it is dispatched again.

After a clean end the log is checked from its last file on; after a crash from the file that the
checkpoint vouches for. Units and keys are written again from where the queues or the index end,
whichever is earlier; both know what they have, so nothing is there twice. A queue that lost files
is noticed by the table of `queue_ends` and gets what it lacks, however long ago that was put.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tieredstore.codec.names import local_file_name
from tieredstore.codec.record_fields import peek_store_timestamp
from tieredstore.local.care.checkpoint import StoreCheckpoint
from tieredstore.local.care.queue_ends import Lacking, QueueEnds
from tieredstore.local.dispatching.redispatch import Redispatch
from tieredstore.local.files.mapped_file import MappedFile
from tieredstore.local.keys.index_service import IndexService
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.queues.consume_queue import QueueEnd
from tieredstore.local.queues.consume_queues import ConsumeQueues
from tieredstore.local.queues.deleted_topics import DeletedTopics
from tieredstore.local.records.record_check import RecordState, check_record
from tieredstore.local.records.record_scan import Damage
from tieredstore.model.values import QueueKey

log = logging.getLogger(__name__)

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
        known = self._further_of(self.ends.queues if self.ends is not None else {})
        lacking = self._lacking(minimum)
        start = self._checked_from(min(index_from, lacking.replay_from))
        scan = commit_log.scan_from(start, doubt_times=True)
        for _ in scan:
            pass
        end = scan.end
        commit_log.truncate(end)
        commit_log.sync_from(start)
        commit_log.last_store_timestamp = scan.last_store_timestamp
        queues.truncate(end)
        known = self._further_of({key: at for key, at in known.items() if at.last_log_end <= end})
        if self.index is not None:
            index_from = self.index.truncate(end)
        wanted = min(self._queues_from(start, end), lacking.replay_from, index_from, end)
        count = self.redispatch.replay(max(minimum, wanted))
        self.redispatch.keep_numbers(known, end)
        queues.correct_min_offsets(minimum)
        if self.abnormal or scan.torn is not None:
            self.checkpoint.rewind(scan.last_store_timestamp)
        self.deleted.settle(log_min=minimum, log_end=end)
        found = [*missing_files(commit_log), *scan.damages, *self.redispatch.damages]
        damages = dict.fromkeys(found)
        for damage in damages:
            log.warning("%s", damage.error())
        return RecoveryReport(
            abnormal=self.abnormal,
            checked_from=start,
            log_end=end,
            redispatched_count=count,
            damages=tuple(sorted(damages, key=lambda damage: damage.log_offset)),
            torn=scan.torn,
            rebuilt=tuple(lacking.broken),
        )

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

    def _further_of(self, known: Mapping[QueueKey, QueueEnd]) -> dict[QueueKey, QueueEnd]:
        """The furthest that each queue is known to have come: as told, or as it is now."""
        ends = dict(known)
        for key, end in self.queues.ends().items():
            if key not in ends or ends[key].last_log_end < end.last_log_end:
                ends[key] = end
        return ends

    def _lacking(self, minimum: int) -> Lacking:
        """What the queues lack that no later record tells of; broken ones go here."""
        table = self.ends if self.ends is not None else QueueEnds()
        lacking = table.lacking(self.queues, self.deleted, log_min=minimum)
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
