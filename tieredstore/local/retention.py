"""Which log files are deleted, and when: by age, by free space, never before the tier has them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from tieredstore.driver.message_store import RetentionGuard
from tieredstore.driver.runtime import Clock
from tieredstore.local.commit_log import CommitLog
from tieredstore.local.config import LocalConfig
from tieredstore.local.consume_queues import ConsumeQueues
from tieredstore.local.index_service import IndexService
from tieredstore.model.errors import refused_by_system
from tieredstore.model.printable import log_of

log = log_of(__name__)

HOUR_MS = 3_600_000


def disk_used_percent(path: str | os.PathLike[str]) -> int:
    """How full the disk is, as `df` counts it: what only root may use is not there."""
    usage = shutil.disk_usage(path)
    return -(-usage.used * 100 // max(1, usage.used + usage.free))


class Retention:
    """Deletes old log files, oldest first, never the last.

    * A file goes when it was last written more than `reserve_hours` ago, or before its time while
      the disk is fuller than `disk_clean_percent`: then no more go than it takes.
    * What is not on disk yet or not dispatched yet stays, whatever the settings say.
    * A guard says from which log offset on a tier still needs the log: files that reach there
      stay, however old. A guard that fails may need all of it: nothing goes. Only where the disk
      is over `disk_full_percent` and the settings say `delete_before_offload` is none asked.
    * While the disk is over `disk_full_percent`, `disk_is_full` is True and puts are refused:
      from the first `look` on, when the store opens.
    * Queues and index follow the log; what a failure or a crash kept them from is made up for.
    """

    def __init__(
        self,
        config: LocalConfig,
        clock: Clock,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: IndexService | None,
        *,
        used_percent: Callable[[str], int] | None = None,
        undispatched_from: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._undispatched_from = undispatched_from
        self._used_percent = used_percent or disk_used_percent
        self._guards: list[RetentionGuard] = []
        self._followed_to = 0  # the start of the log when queues and index last followed it
        self.disk_is_full = False

    def add_guard(self, guard: RetentionGuard) -> None:
        self._guards.append(guard)

    def look(self) -> None:
        """See whether there is room for puts, and delete nothing: guards may come later."""
        used = self._used_percent(self._config.store_path)
        self.disk_is_full = used > self._config.disk_full_percent
        if self.disk_is_full:
            log.warning("%s: the disk is full to %d %%", self._config.store_path, used)

    def step(self) -> int:
        """One look; how many log files went."""
        with refused_by_system(self._config.store_path, "expire"):
            used = self._used_percent(self._config.store_path)
            try:
                count, used = self._delete(used)
            finally:
                self.disk_is_full = used > self._config.disk_full_percent
            self._follow()
            return count

    def _delete(self, used: int) -> tuple[int, int]:
        """How many files went, and how full the disk is now."""
        config = self._config
        needed = self._unfinished_from()
        if not (used > config.disk_full_percent and config.delete_before_offload):
            needed = min(needed, self._needed_from())
        candidates = [
            file
            for file in self._log.queue.files[:-1][: config.delete_count_max]
            if file.end_offset <= needed
        ]
        expired_before = self._clock.now_ms() - config.reserve_hours * HOUR_MS
        count = 0
        for file in candidates:
            if os.stat(file.path).st_mtime_ns // 1_000_000 >= expired_before:
                if used <= config.disk_clean_percent:
                    break
                log.warning("%s goes before its time: the disk is full to %d %%", file.path, used)
            count += len(self._log.queue.delete_before(file.end_offset, count_max=1))
            if used > config.disk_clean_percent:
                used = self._used_percent(config.store_path)
        return count, used

    def _follow(self) -> None:
        """Let queues and index begin where the log begins."""
        minimum = self._log.min_offset
        if minimum is None:
            return
        if minimum == self._followed_to:
            self._queues.correct_grown(minimum)
            return
        self._queues.delete_before(minimum)
        if self._index is not None:
            self._index.delete_expired(minimum)
        self._followed_to = minimum
        log.info("%s: begins at %d now", self._log.queue.directory, minimum)

    def _unfinished_from(self) -> int:
        """From where on the log is not on disk yet, or queues and index have still to get it."""
        finished = self._log.flushed_offset
        waiting = self._undispatched_from()
        return finished if waiting is None else min(finished, waiting)

    def _needed_from(self) -> int:
        """The smallest log offset that somebody still needs; 0 where that cannot be known."""
        needed = self._log.max_offset
        for guard in self._guards:
            try:
                offset = guard()
            except Exception:
                log.exception("a retention guard failed: nothing is deleted this time")
                return 0
            if offset is not None:
                needed = min(needed, offset)
        return needed
