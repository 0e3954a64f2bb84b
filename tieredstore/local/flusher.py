"""When the log reaches the disk: every so often, or before a put is acknowledged.

What lives here: `Flusher`. What a sync is, and how far the last one came, is the log's to say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tieredstore.driver.runtime import Runtime, Service
from tieredstore.model.errors import BackendError, BackendRefusedError


class Flusher:
    """Syncs a log for all who wait.

    * Whoever waits first syncs, in its own thread; who comes meanwhile waits, and the next one of
      them syncs for all of those. A lone waiter so never waits for another thread, and sixteen
      share one sync.
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
        self._changed = threading.Condition()
        self._syncing = False
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
        with self._changed:
            while self._syncing:
                self._changed.wait()
            self._begin()
        return self._sync()

    def wait_until_flushed(self, offset: int, timeout_ms: int) -> bool:
        """Whether everything below the offset is on disk before the time is up.

        Raises BackendRefusedError where the disk has failed: it is not known what it holds.
        """
        clock = self._runtime.clock
        deadline: float | None = None
        while True:
            with self._changed:
                while True:
                    if self._flushed_offset() >= offset:
                        return True
                    if not self._syncing:
                        self._begin()
                        break
                    if deadline is None:
                        deadline = clock.monotonic() + timeout_ms / 1000
                    rest = deadline - clock.monotonic()
                    if rest <= 0 or (not self._changed.wait(rest) and self._syncing):
                        return self._flushed_offset() >= offset
            self._sync()

    def _begin(self) -> None:
        """Take the turn to sync; the condition is held."""
        if self._failure is not None:
            raise BackendRefusedError(
                self._path, "flush", f"a sync failed before: {self._failure}"
            ) from self._failure
        self._syncing = True

    def _sync(self) -> int:
        try:
            return self._flush()
        except BackendError as error:
            self._failure = error
            raise
        finally:
            with self._changed:
                self._syncing = False
                self._changed.notify_all()

    def _periodic(self) -> None:
        if self._failure is None:  # it was logged once; whoever puts is told each time
            self.flush()
