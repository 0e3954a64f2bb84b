"""When the log reaches the disk: every so often, or before a put is acknowledged.

What lives here: `Flusher`. What a sync is, and how far the last one came, is the log's to say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tieredstore.driver.runtime import Runtime, Service
from tieredstore.model.errors import BackendError, BackendRefusedError


class _Group:
    """Those who share one sync; whoever gets the lock first leads it, the others find it ended."""

    __slots__ = ("ended", "lock")

    def __init__(self, *, must_wait: bool) -> None:
        self.ended = False
        self.lock = threading.Lock()
        if must_wait:
            self.lock.acquire()


class Flusher:
    """Syncs a log for all who wait.

    * Whoever waits first syncs, in its own thread; who comes meanwhile forms the next group, one of
      which syncs for all of it. A lone waiter so never waits for another thread, sixteen share
      one sync, and each of them is woken once.
    * Nobody is told that an offset is on disk before a sync that covers it has returned.
    * After a sync has failed every wait fails, for ever.
    """

    def __init__(
        self,
        flush: Callable[[], int],
        flushed_offset: Callable[[], int],
        runtime: Runtime,
        *,
        interval_ms: int,
        path: str = "",
    ) -> None:
        self._flush = flush
        self._flushed_offset = flushed_offset
        self._runtime = runtime
        self._interval_ms = interval_ms
        self._path = path
        self._coming = _Group(must_wait=False)  # a sync that begins from now on is theirs
        self._failure: BackendError | None = None
        self._service: Service | None = None

    def start(self) -> None:
        """Sync after each interval from now on, and when woken."""
        if self._service is None:
            self._service = self._runtime.service(
                "flush", self._periodic, interval_ms=self._interval_ms
            )

    def stop(self) -> None:
        """End the service; nothing is synced. Idempotent."""
        if self._service is not None:
            self._service.stop()
            self._service = None

    def wake(self) -> None:
        """Sync soon, without waiting for it."""
        if self._service is not None:
            self._service.wake()

    def flush(self) -> int:
        """Sync now what was appended before this call; the offset below which all is on disk."""
        group = self._coming
        with group.lock:
            if not group.ended:
                self._lead(group)
        self._refuse_after_failure()
        return self._flushed_offset()

    def wait_until_flushed(self, offset: int, timeout_ms: int) -> bool:
        """Whether everything below the offset is on disk before the time is up.

        Raises BackendRefusedError where the disk has failed: it is not known what it holds.
        """
        clock = self._runtime.clock
        deadline: float | None = None
        while self._flushed_offset() < offset:
            group = self._coming
            if not group.lock.acquire(blocking=False):
                if deadline is None:
                    deadline = clock.monotonic() + timeout_ms / 1000
                rest = deadline - clock.monotonic()
                if rest <= 0 or not group.lock.acquire(timeout=rest):
                    return self._flushed_offset() >= offset
            try:
                if not group.ended:
                    self._lead(group)
            finally:
                group.lock.release()
            if self._flushed_offset() < offset:
                self._refuse_after_failure()
        return True

    def _lead(self, group: _Group) -> None:
        """Sync for the group, whose lock is held. What its members appended is there by now."""
        following = self._coming = _Group(must_wait=True)
        try:
            self._refuse_after_failure()
            self._flush()
        except BackendError as error:
            self._failure = self._failure or error
            raise
        finally:
            group.ended = True
            following.lock.release()  # before the group's: the next sync begins at once

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise BackendRefusedError(
                self._path, "flush", f"a sync failed before: {self._failure}"
            ) from self._failure

    def _periodic(self) -> None:
        if self._failure is None:  # it was logged once; whoever puts is told each time
            self.flush()
