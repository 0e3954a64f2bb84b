"""One look at the writer's epoch for all who wait for one.

What lives here: `SharedLooks`. What a look is, is for `writer_epoch` to say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future


class SharedLooks:
    """Whoever joins is told the outcome of a look that began after it joined.

    * One look at a time: those who join meanwhile share the next one.
    * While many are expected, a look waits until at least as many have joined as are still to
      come: a round of many writes costs few looks, and a slow write delays nobody for long.
    """

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._guard = threading.Lock()
        self._waiting: list[Future[None]] = []
        self._expected = 0
        self._looking = False

    def now(self) -> None:
        """Wait for a look that begins after this call. Raises what the look raises."""
        future = self.join()
        self.run(at_once=True)
        future.result()

    def expect(self, count: int) -> None:
        """So many more will join; a negative number for those that will not after all."""
        with self._guard:
            self._expected += count

    def join(self, *, expected: bool = False) -> Future[None]:
        """Done when a look has ended that `run` begins from now on."""
        future: Future[None] = Future()
        with self._guard:
            self._expected -= expected
            self._waiting.append(future)
        return future

    def run(self, *, at_once: bool = False) -> None:
        """Look, until nobody waits or more are to be waited for; `at_once` waits for no more."""
        while True:
            with self._guard:
                waiting = len(self._waiting)
                if self._looking or not waiting or (waiting < self._expected and not at_once):
                    return
                taken, self._waiting = self._waiting, []
                self._looking = True
            try:
                self._tell(taken)
            finally:
                with self._guard:
                    self._looking = False

    def _tell(self, taken: list[Future[None]]) -> None:
        try:
            self._look()
        except BaseException as error:  # noqa: BLE001 - whoever joined gets it
            for future in taken:
                future.set_exception(error)
        else:
            for future in taken:
                future.set_result(None)
