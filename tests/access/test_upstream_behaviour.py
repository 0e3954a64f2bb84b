"""What RocketMQ's own tests of the dispatcher ask for in words that we do not have.

Here is our answer to the same situation; what has a counterpart by name is tested elsewhere.

    FileSegmentTest, BUFFER_FULL            a full buffer holds a queue back, and refuses nothing
    GroupCommitContextTest.release          a batch is given back whole, and twice does no harm
    dispatchFailedGroupCommitMapReleaseTest nothing is kept of a queue that is gone
"""

from __future__ import annotations

from pathlib import Path

from tests.access.dispatch_kit import KEY, RecordingIndex, Tier
from tieredstore.access.rounds import BatchOutcome
from tieredstore.driver.runtime import Runtime
from tieredstore.model.values import AppendStatus, QueueKey
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Fault, Faults, FaultyProvider
from tieredstore.testing.message_store_contract import ListMessageStore

OTHER = QueueKey("Other", 0)


class Failing:
    """A queue with ten messages whose upload fails until it is let."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.faults = Faults()
        runtime = Runtime.inline()
        self.store, self.index = ListMessageStore.opened(runtime), RecordingIndex()
        self.store.fill(1)
        provider = FaultyProvider(MemoryProvider(runtime), self.faults, runtime)
        self.tier = Tier(
            root,
            self.store,
            runtime=runtime,
            provider=provider,
            index=self.index,
            **settings,  # type: ignore[arg-type]
        )
        assert self.tier.flush()
        self.faults.always = Fault.BEFORE
        self.store.fill(9)
        assert not self.tier.flush()
        self.parts = self.tier.dispatcher._walk
        self.work = self.parts.work_of(KEY)
        assert [len(batch) for batch in self.work.batches] == [9]
        assert self.tier.dispatcher.budget.used_bytes == self.work.buffered_bytes > 0


def test_a_full_buffer_holds_a_queue_back_and_nothing_is_refused(tmp_path: Path) -> None:
    """RocketMQ's segment answers BUFFER_FULL; here the queue is not even read."""
    assert "BUFFER_FULL" not in AppendStatus.__members__
    failing = Failing(tmp_path, dispatch_buffer_bytes=8_000)
    tier, budget = failing.tier, failing.tier.dispatcher.budget
    assert budget.take(8_000 - budget.used_bytes)  # by other queues
    failing.store.fill(5, key=OTHER)
    tier.flush()
    other = failing.parts.work_of(OTHER)
    assert other.file is not None
    assert failing.parts._batches.take(other, other.file) is BatchOutcome.NO_ROOM
    assert (other.file.waiting_bytes, other.failure, other.batches) == (0, None, [])
    failing.faults.always = None
    budget.give(budget.used_bytes - failing.work.buffered_bytes)
    assert tier.flush()
    assert (tier.span(KEY), tier.span(OTHER)) == ((0, 10), (0, 5))
    assert budget.used_bytes == 0
    tier.check()


def test_what_a_batch_holds_is_given_back_whole_and_again_without_harm(tmp_path: Path) -> None:
    failing = Failing(tmp_path)
    work, budget = failing.work, failing.tier.dispatcher.budget
    assert work.file is not None
    for _ in range(2):  # the second time there is nothing
        assert failing.parts._batches.drop(work, work.file)
        assert (work.batches, work.buffered_bytes, work.file.waiting_bytes) == ([], 0, 0)
        assert budget.used_bytes == 0
    failing.faults.always = None
    assert failing.tier.flush()
    assert failing.index.offsets() == list(range(10))
    failing.tier.check()


def test_nothing_is_kept_of_a_queue_that_was_destroyed_while_its_upload_failed(
    tmp_path: Path,
) -> None:
    failing = Failing(tmp_path)
    failing.faults.always = None
    failing.store.delete_topics([KEY.topic])
    failing.tier.files.destroy(KEY)
    failing.tier.flush()
    assert failing.parts.works == {}
    assert failing.tier.dispatcher.budget.used_bytes == 0
