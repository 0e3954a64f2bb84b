"""Which log files go, and when: by age, by the room on the disk, never what a tier still needs.

What lives here: `Retention`. Queues and index follow the log: they lose what names nothing more.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable

from tieredstore.driver.message_store import RetentionGuard
from tieredstore.driver.runtime import Clock
from tieredstore.local.commit_log import CommitLog
from tieredstore.local.config import LocalConfig
from tieredstore.local.consume_queues import ConsumeQueues
from tieredstore.local.index_service import IndexService

log = logging.getLogger(__name__)

HOUR_MS = 3_600_000


def disk_used_percent(path: str | os.PathLike[str]) -> int:
    """How full the disk is, as `df` counts it: what only root may use is not there."""
    usage = shutil.disk_usage(path)
    return -(-usage.used * 100 // max(1, usage.used + usage.free))


class Retention:
    """Deletes old log files, oldest first, never the last.

    * A file goes when it was last written more than `reserve_hours` ago, or before its time while
      the disk is fuller than `disk_clean_percent`.
    * A guard says from which log offset on a tier still needs the log: files that reach there
      stay, however old. Only where the disk is over `disk_full_percent` and the settings say
      `delete_before_offload` do they go too.
    * While the disk is over `disk_full_percent`, `disk_is_full` is True and puts are refused.
    """

    def __init__(
        self,
        config: LocalConfig,
        clock: Clock,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: IndexService | None,
        *,
        used_percent: Callable[[str], int] = disk_used_percent,
    ) -> None:
        self._config = config
        self._clock = clock
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._used_percent = used_percent
        self._guards: list[RetentionGuard] = []
        self.disk_is_full = False

    def add_guard(self, guard: RetentionGuard) -> None:
        self._guards.append(guard)

    def step(self) -> int:
        """One look; how many log files went."""
        used = self._used_percent(self._config.store_path)
        count = self._delete(used)
        if count and used > self._config.disk_clean_percent:
            used = self._used_percent(self._config.store_path)
        self.disk_is_full = used >= self._config.disk_full_percent
        return count

    def _delete(self, used: int) -> int:
        config = self._config
        files = self._log.queue.files[:-1]
        if used >= config.disk_full_percent and config.delete_before_offload:
            needed = self._log.max_offset
        else:
            needed = self._needed_from()
        oldest_kept = self._clock.now_ms() - config.reserve_hours * HOUR_MS
        end = 0
        for file in files[: config.delete_count_max]:
            expired = os.stat(file.path).st_mtime_ns // 1_000_000 < oldest_kept
            if file.end_offset > needed or not (expired or used > config.disk_clean_percent):
                break
            end = file.end_offset
        if not end:
            return 0
        gone = self._log.delete_before(end, count_max=config.delete_count_max)
        minimum = self._log.min_offset or 0
        self._queues.delete_before(minimum)
        if self._index is not None:
            self._index.delete_expired(minimum)
        log.info("%s: deleted %d files below %d", self._log.queue.directory, len(gone), minimum)
        return len(gone)

    def _needed_from(self) -> int:
        """The smallest log offset that somebody still needs."""
        needed = self._log.max_offset
        for guard in self._guards:
            offset = guard()
            if offset is not None:
                needed = min(needed, offset)
        return needed
