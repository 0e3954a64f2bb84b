"""What makes full segments of an object store one object each: a chore beside the uploads.

What lives here: the round over all queues. Which segments of a queue are meant is in
`flat.sealing`.
"""

from __future__ import annotations

from collections.abc import Collection

from tieredstore.access.upload.dispatcher import Dispatcher
from tieredstore.driver.runtime import Clock
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.sealing import roll_unsealed, seal_full
from tieredstore.model.errors import BackendUnavailableError, TieredStoreError
from tieredstore.model.printable import log_of
from tieredstore.model.values import QueueKey

log = log_of(__name__)


class SealChore:
    """Seals, round by round, what the queues have left behind.

    A segment that fails is tried again in the next round, in which the queues that failed come
    last; a backend that cannot be reached ends the round. `errors` says what failed, by path.
    """

    def __init__(self, files: FlatFileStore, dispatcher: Dispatcher, clock: Clock) -> None:
        self._files = files
        self._dispatcher = dispatcher
        self._clock = clock
        self._is_stopped = False
        self._failed: Collection[QueueKey] = ()
        self.errors: dict[str, str] = {}  # replaced, never changed

    def step(self) -> None:
        """One round."""
        errors: dict[str, str] = {}
        failed: list[QueueKey] = []
        last = set(self._failed)
        for file in sorted(self._files.files(), key=lambda file: file.key in last):
            if self._is_stopped:
                break
            failures = seal_full(file)
            if failures:
                failed.append(file.key)
                errors.update((path, str(error)) for path, error in failures.items())
            if any(isinstance(each, BackendUnavailableError) for each in failures.values()):
                break
        self._failed, self.errors = failed, errors

    def seal_all(self, timeout: float | None = None) -> bool:
        """Roll what is written, and seal everything; whether all of it is sealed now."""
        clock = self._clock
        deadline = None if timeout is None else clock.monotonic() + timeout
        rolled = True
        for file in self._files.files():
            left = None if deadline is None else max(0.0, deadline - clock.monotonic())
            with self._dispatcher.alone_with(file.key, timeout=left) as alone:
                try:
                    rolled = bool(alone) and roll_unsealed(file) and rolled
                except TieredStoreError as error:
                    log.warning("%s: could not roll: %s", file.path, error)
                    rolled = False
        self.step()
        return rolled and not self.errors

    def stop(self) -> None:
        """Look after no further queue."""
        self._is_stopped = True
