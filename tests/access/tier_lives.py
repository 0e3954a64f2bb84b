"""A broker with a tier that dies and comes back: what outlives a process, and what is checked.

What lives here: `Lives`: the backend, the catalogue, the index and the local store, and the tiered
store of the process that runs now. No tests.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from tests.access.dispatch_kit import bare
from tests.access.tier_audit import (
    HOUR_MS,
    Contents,
    DurableIndex,
    Ledger,
    audit,
    check_nothing_is_left_over,
)
from tests.access.tiered_kit import a_config
from tests.flat.tiers import FaultyCatalogue
from tieredstore.access.store import TieredMessageStore
from tieredstore.codec.record import peek_store_timestamp
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.metadata.tables import Tables
from tieredstore.model.values import GetStatus, QueueKey
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Faults, FaultyProvider
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import STORE_TIMESTAMP, a_message

RESERVE_HOURS = 2
SETTINGS: dict[str, Any] = {
    "commit_log_segment_bytes": 1_400,
    "consume_queue_segment_bytes": 100,
    "commit_log_rolling_hours": 1,
    "commit_log_rolling_min_bytes": 1,
    "group_commit_count": 4,
    "reserve_hours": RESERVE_HOURS,
}
ENDS = {
    GetStatus.OFFSET_OVERFLOW_ONE,
    GetStatus.NO_MESSAGE_IN_QUEUE,
    GetStatus.NO_MATCHED_LOGIC_QUEUE,
}
Processes = Callable[[Runtime, Faults], SegmentProvider]
Catalogues = Callable[[Faults], MetadataStore]


class Lives:
    """One process after the other over the same bytes; faults strike backend and catalogue.

    `inner` outlives the processes; `processes` makes each its own, with faults of its requests.
    """

    def __init__(
        self,
        folder: Path,
        *,
        inner: Callable[[Runtime], SegmentProvider] | None = None,
        processes: Processes | None = None,
        catalogues: Catalogues | None = None,
        **settings: Any,
    ) -> None:
        self.runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        self._processes = processes
        if processes is not None:
            self.inner = processes(self.runtime, Faults())
        else:
            self.inner = (inner or MemoryProvider)(self.runtime)
        self.local = ListMessageStore(self.runtime)
        self.index = DurableIndex()
        self.ledger = Ledger(reserve_hours=RESERVE_HOURS)
        self.config = a_config(folder, **{**SETTINGS, **settings})
        self.faults = Faults()
        tables = Tables()
        self._catalogues = catalogues or (lambda faults: FaultyCatalogue(tables, faults))
        self._metadata: MetadataStore | None = None
        self._store: TieredMessageStore | None = None
        self._number = 0

    @property
    def clock(self) -> ManualClock:
        clock = self.runtime.clock
        assert isinstance(clock, ManualClock)
        return clock

    @property
    def store(self) -> TieredMessageStore:
        assert self._store is not None
        return self._store

    @property
    def metadata(self) -> MetadataStore:
        assert self._metadata is not None
        return self._metadata

    # Life and death

    def open(self, faults: Faults | None = None) -> TieredMessageStore:
        """A new process; the one before is dead, whether it ended or not."""
        self.local.restart()
        self.faults = faults or Faults()
        self._metadata = self._catalogues(self.faults)
        self._store = TieredMessageStore(
            self.local,
            self.config,
            runtime=self.runtime,
            provider=self._backend(),
            metadata=self._metadata,
            index=self.index,
        )
        self._store.load()
        self._store.start()
        return self._store

    def _backend(self) -> SegmentProvider:
        if self._processes is None:
            return FaultyProvider(self.inner, self.faults, self.runtime)
        return self._processes(self.runtime, self.faults)

    # What a broker does

    def put(self, topic: str, queue_id: int = 0, *, body_bytes: int = 100) -> None:
        """A message of its own time."""
        self.clock.advance(1)
        message = a_message(self._number, topic=topic, queue_id=queue_id, body_bytes=body_bytes)
        self._number += 1
        put = self.store.put_message(message)
        found = self.local.message_at(put.log_offset)
        assert found is not None
        self.ledger.put(QueueKey(topic, queue_id), found)

    def upload(self) -> None:
        self.store.flush()

    def expire(self) -> None:
        self.store._loaded().retention.step()

    def delete_topic(self, topic: str) -> None:
        self.ledger.deleting.add(topic)
        self.store.delete_topics([topic])
        self.ledger.forget(topic)

    # What must be so

    def promises(self) -> None:
        """The tier never takes back how far it has come."""
        for key in self.store.queues():
            if key.topic not in self.ledger.deleting:
                self.ledger.promise(key, self.store.committed_offset(*key))

    def check(self) -> Contents:
        """The bytes and the catalogue, past everybody's back."""
        if self._processes is not None:  # whoever looks is a process of its own
            self.inner = self._processes(self.runtime, Faults())
        contents = audit(self.inner, self.metadata)
        self.ledger.follow(contents, self.clock.now_ms())
        return contents

    def check_reopened(self) -> None:
        """Right after a start without faults: what was promised before is there."""
        self.promises()
        contents = self.check()
        too_old = self.clock.now_ms() - RESERVE_HOURS * HOUR_MS
        stopped = {(q.topic, q.queue_id) for q in self.store.health().queues if q.problem}
        for key, committed in self.ledger.promised.items():
            if key in stopped:
                continue  # the local queue is another one
            for one in self.local.kept(key):
                is_old = peek_store_timestamp(one.record) < too_old
                is_there = is_old or one.queue_offset in contents[key]
                assert is_there or one.queue_offset >= committed, (key, one.queue_offset)

    def check_whole(self, but: Callable[[], Container[QueueKey]] = tuple) -> Contents:
        """Everything is uploaded; each message is found once, wherever it is, and by its key.

        `but` tells, after the upload, of queues that take none any more.
        """
        is_complete = self.store.flush()
        self.expire()
        left_out = but()
        for each in self.store.health().queues:
            if (each.topic, each.queue_id) not in left_out:
                assert each.problem is None
                assert each.last_error is None
        contents = self.check()
        check_nothing_is_left_over(self.inner, self.metadata)
        self.index.check(contents, self.metadata)
        for key in self.store.queues():
            if key not in left_out:
                self._check_whole_queue(key, contents)
            else:
                is_complete = True
        assert is_complete
        return contents

    def _check_whole_queue(self, key: QueueKey, contents: Contents) -> None:
        tiered = {n: held.record for n, held in contents.get(key, {}).items()}
        local = {one.queue_offset: bare(one.record) for one in self.local.kept(key)}
        local_end = self.local.max_offset(*key)
        if local and local_end is not None:
            assert self.store.committed_offset(*key) == local_end
        assert all(tiered[n] == local[n] for n in tiered.keys() & local.keys())
        assert self.consumed(key) == tiered | local

    def consumed(self, key: QueueKey, *, first: int = 0) -> dict[int, bytes]:
        """What a consumer gets who goes where it is sent, from an offset to the end."""
        found: dict[int, bytes] = {}
        at = first
        for _ in range(1_000):
            result = self.store.get_message(*key, at, count_max=7)
            if result.status in ENDS:
                return found
            for one in result.messages:
                assert one.queue_offset >= at
                at = one.queue_offset + 1
                found[one.queue_offset] = bare(one.record)
            assert result.status is GetStatus.FOUND or not result.messages, result.status
            assert result.next_offset >= at, result
            assert result.next_offset > at or result.messages, result
            at = result.next_offset
        raise AssertionError(f"{key}: no end")
