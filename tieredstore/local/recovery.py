"""Bringing log, queues and index together when a store opens.

What lives here: the order of the steps. The log is the truth: what is behind its last sound record
is cut off, and what queues and index lack of it is dispatched again.

After a clean end the log is checked from its last file on; after a crash from the file that the
checkpoint vouches for. Units and keys are written again from where the queues or the index end,
whichever is earlier; both know what they have, so nothing is there twice.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tieredstore.codec.record_fields import peek_store_timestamp
from tieredstore.local.checkpoint import StoreCheckpoint
from tieredstore.local.commit_log import CommitLog
from tieredstore.local.consume_queues import ConsumeQueues
from tieredstore.local.delay_levels import DelayLevels
from tieredstore.local.dispatch import Dispatch, run_of_scan
from tieredstore.local.index_service import IndexService
from tieredstore.local.mapped_file import MappedFile
from tieredstore.local.record_check import RecordState, check_record
from tieredstore.local.record_scan import Damage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What opening the store had to deal with."""

    abnormal: bool
    checked_from: int
    log_end: int
    redispatched_count: int
    damages: tuple[Damage, ...] = ()
    torn: Damage | None = None


def recover(
    commit_log: CommitLog,
    queues: ConsumeQueues,
    index: IndexService | None,
    dispatch: Dispatch,
    checkpoint: StoreCheckpoint,
    delays: DelayLevels,
    *,
    abnormal: bool,
) -> RecoveryReport:
    """Everything is loaded before; afterwards everything agrees and is ready for puts."""
    minimum = commit_log.min_offset or 0
    replay_from = _index_start(index, checkpoint, minimum, abnormal=abnormal)
    start = _checked_from(commit_log, queues, checkpoint, replay_from, abnormal=abnormal)
    scan = commit_log.scan_from(start)
    for _ in scan:
        pass
    end = scan.end
    commit_log.truncate(end)
    commit_log.sync_from(start)
    commit_log.last_store_timestamp = scan.last_store_timestamp
    queues.truncate(end)
    if index is not None:
        replay_from = index.truncate(end)
    queue_end = start if abnormal else max(minimum, min(queues.max_log_end, end))
    count = 0
    for columns in commit_log.scan_from(max(minimum, min(queue_end, replay_from, end))):
        dispatch.put(run_of_scan(columns, delays))
        count += len(columns)
    queues.correct_min_offsets(minimum)
    if abnormal or scan.torn is not None:
        checkpoint.rewind(scan.last_store_timestamp)
    for damage in scan.damages:
        log.warning("%s", damage.error())
    return RecoveryReport(
        abnormal=abnormal,
        checked_from=start,
        log_end=end,
        redispatched_count=count,
        damages=tuple(scan.damages),
        torn=scan.torn,
    )


def _index_start(
    index: IndexService | None, checkpoint: StoreCheckpoint, minimum: int, *, abnormal: bool
) -> int:
    """From where on the log has to be indexed again."""
    if index is None:
        return 1 << 62
    return index.load(
        abnormal=abnormal,
        min_log_offset=minimum,
        durable_timestamp=checkpoint.values.index_timestamp,
    )


def _checked_from(
    commit_log: CommitLog,
    queues: ConsumeQueues,
    checkpoint: StoreCheckpoint,
    replay_from: int,
    *,
    abnormal: bool,
) -> int:
    """The start of the file from which on nothing is taken on trust."""
    files = commit_log.queue.files
    if not files:
        return 0
    wanted = min(replay_from, queues.max_log_end)
    for file in reversed(files):
        if abnormal and not _is_vouched_for(file, checkpoint.min_timestamp):
            continue
        if file.start_offset <= wanted:
            return file.start_offset
    return files[0].start_offset


def _is_vouched_for(file: MappedFile, timestamp: int) -> bool:
    """Whether the file begins with a sound record that was durable everywhere."""
    data = file.view(0, file.wrote)
    if check_record(data, log_offset=file.start_offset).state is not RecordState.MESSAGE:
        return False
    return 0 < peek_store_timestamp(data) <= timestamp
