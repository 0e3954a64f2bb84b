"""Everything into the tier, now: what a flush does, and how long whoever asked waits for it.

What lives here: `TierFlush`, and asking a broker's store to make durable what it took. Uploading
is the dispatcher's.
"""

from __future__ import annotations

import threading

from tieredstore.access.care.publish_chore import PublishChore
from tieredstore.access.care.seal_chore import SealChore
from tieredstore.access.index_protocol import Index
from tieredstore.access.upload.dispatcher import Dispatcher
from tieredstore.driver.in_time import in_time
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.runtime import Deadline, Runtime
from tieredstore.model.printable import log_of

log = log_of(__name__)


class TierFlush:
    """Uploads everything, and seals and publishes it where that is asked for.

    * Nobody waits longer than they said. What is still under way then is left behind, one flush
      at most: who comes next waits for that one first.
    * Nothing is held while bytes travel but the place of the one flush.
    """

    def __init__(
        self,
        next_store: MessageStore,
        dispatcher: Dispatcher,
        index: Index,
        sealing: SealChore,
        publishing: PublishChore,
        runtime: Runtime,
    ) -> None:
        self._next = next_store
        self._dispatcher = dispatcher
        self._index = index
        self._sealing = sealing
        self._publishing = publishing
        self._runtime = runtime
        self._alone = threading.Lock()  # given back by the thread that does the work

    def flush(self, timeout: float | None, *, seal: bool) -> bool:
        """Whether all that the store had is in the tier, and sealed; False too when it is late."""
        deadline = Deadline(self._runtime.clock, timeout)
        if not self._alone.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            return False

        def flush() -> bool:
            try:
                done = self._flush(deadline, seal=seal)
                if seal:
                    self._publishing.step()
                return done
            finally:
                self._alone.release()

        flushing = in_time(self._runtime, "tier-flush", flush, deadline.left())
        if not flushing.done():
            log.warning("a flush is late: the backend or the broker's store does not answer")
            return False
        return flushing.result()

    def make_durable(self, timeout: float | None) -> bool:
        """Only have the broker's store confirm what it took; whether it did, in time."""
        flushing = in_time(
            self._runtime, "local-flush", lambda: ask_to_confirm(self._next), timeout
        )
        return flushing.done() and flushing.result()

    def _flush(self, deadline: Deadline, *, seal: bool) -> bool:
        is_durable = ask_to_confirm(self._next)
        confirmed = self._next.confirmed_offset()
        if not self._dispatcher.dispatch_once(force=True, timeout=deadline.left()):
            return False
        if seal:
            self._index.seal()
        sealed = not seal or self._sealing.seal_all(deadline.left())
        needed = self._dispatcher.needed_from()
        done = needed is None or needed >= confirmed
        health = self._dispatcher.health()
        has_stopped = not health.stopped.keys() <= set(health.refused)
        return is_durable and sealed and done and not has_stopped


def ask_to_confirm(store: MessageStore) -> bool:
    """Have a store that can do so make durable what it took; False where that failed.

    One without `flush` confirms by itself, when it likes: nothing is asked of it.
    """
    flush = getattr(store, "flush", None)
    if flush is None:
        return True
    try:
        flush()
    except Exception as error:  # noqa: BLE001 - its class, and so what it raises, is not ours
        log.warning("the broker's store could not make durable what it took: %s", error)
        return False
    return True
