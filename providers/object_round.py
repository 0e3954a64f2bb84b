"""A round of commits: many puts, few looks.

What lives here: `ObjectRound`: which step of each pair follows which, without a thread that waits.
A pair's log counts before its queue is put.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from tieredstore.driver.provider import WritePair
from tieredstore.driver.runtime import Pool
from tieredstore.providers.object_parts import Part
from tieredstore.providers.object_segment import ObjectFileSegment, bare


class ObjectRound:
    """Writes pairs; one future a pair, each done as its own pair is."""

    def __init__(self, pool: Pool, pairs: Sequence[WritePair]) -> None:
        self._pool = pool
        self._works = [_Work(pair) for pair in pairs]

    def send(self) -> list[Future[None]]:
        """Begin. Nothing is waited for, but in a pool that runs calls at once."""
        for work in self._works:
            work.expect()
        for work in self._works:
            self._submit(work)
        return [work.done for work in self._works]

    def _submit(self, work: _Work) -> None:
        """The next write of this pair, or its end."""
        if not work.left:
            work.done.set_result(None)
            return
        try:
            self._pool.submit(self._put, work)
        except BaseException as error:  # noqa: BLE001 - the pair's own future tells
            work.fail(error)

    def _put(self, work: _Work) -> None:
        segment, write = work.left[0]
        try:
            part = segment.put(write.position, memoryview(write.data).cast("B"))
        except BaseException as error:  # noqa: BLE001
            work.fail(error)
            return
        if part is None:
            work.expected_no_more()
            self._next(work)
            return
        future = work.join()
        future.add_done_callback(partial(self._looked, work, segment, part))
        segment.looks.run()

    def _looked(
        self, work: _Work, segment: ObjectFileSegment, part: Part, future: Future[None]
    ) -> None:
        try:
            future.result()
            segment.acknowledge(part)
        except BaseException as error:  # noqa: BLE001
            segment.doubt(part)
            work.fail(error)
            return
        self._next(work)

    def _next(self, work: _Work) -> None:
        del work.left[0]
        work.expect()
        self._submit(work)


class _Work:
    """What is left to do for one pair."""

    def __init__(self, pair: WritePair) -> None:
        writes = [write for write in (pair.log, pair.queue) if write is not None]
        self.left = [(bare(write.segment), write) for write in writes]
        self.done: Future[None] = Future()
        self._expecting = False

    def expect(self) -> None:
        """The next write will join a look."""
        if self.left:
            self._expecting = True
            self.left[0][0].looks.expect(1)

    def join(self) -> Future[None]:
        self._expecting = False
        return self.left[0][0].looks.join(expected=True)

    def expected_no_more(self) -> None:
        if self._expecting:
            self._expecting = False
            looks = self.left[0][0].looks
            looks.expect(-1)
            looks.run()

    def fail(self, error: BaseException) -> None:
        self.expected_no_more()
        self.done.set_exception(error)
