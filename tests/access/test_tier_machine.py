"""The whole tier compared with lists: random puts, uploads, expiry, reads, deaths and faults.

`make torture` runs 2 000 long histories of it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.access.dispatch_kit import bare
from tests.access.tier_lives import Contents, Lives
from tieredstore.codec.record import peek_store_timestamp
from tieredstore.model.errors import BackendUnavailableError, MetadataError
from tieredstore.model.values import Boundary, GetStatus, QueueKey, StorageLevel
from tieredstore.testing.faults import Fault, Faults, SimulatedCrash

KEYS = [QueueKey("A", 0), QueueKey("A", 1), QueueKey("B", 7)]
EXPECTED = (BackendUnavailableError, MetadataError)  # errors of a call that a fault strikes
LEVELS = [StorageLevel.NOT_IN_DISK, StorageLevel.NOT_IN_MEM, StorageLevel.FORCE]
HUGE_BYTES = 3_000  # more than fits into a segment

keys = st.sampled_from(KEYS)
shares = st.floats(0, 1)


class TierBesideLists(RuleBasedStateMachine):
    """Checks answers against the local store's list and against all that the tier has shown so far
    and that has not expired.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tier-machine"))

    @initialize(
        level=st.sampled_from(LEVELS),
        cache_bytes=st.sampled_from([0, 600, 100_000]),
        buffer_bytes=st.sampled_from([500, 1 << 20]),
        confirms_late=st.booleans(),
    )
    def begin(
        self, level: StorageLevel, cache_bytes: int, buffer_bytes: int, confirms_late: bool
    ) -> None:
        self.lives = Lives(
            self.folder,
            storage_level=level.name,
            read_ahead_enabled=cache_bytes > 0,
            read_cache_bytes=cache_bytes,
            dispatch_buffer_bytes=buffer_bytes,
        )
        self.local, self.ledger = self.lives.local, self.lives.ledger
        if confirms_late:
            self.local.confirmed = 0
        self.contents: Contents = {}
        self.lives.open()

    # What happens

    @rule(
        key=keys, count=st.integers(1, 9), body_bytes=st.sampled_from([0, 30, 100, 100, HUGE_BYTES])
    )
    def put(self, key: QueueKey, count: int, body_bytes: int) -> None:
        for _ in range(count if body_bytes < HUGE_BYTES else 1):
            self.lives.put(*key, body_bytes=body_bytes)

    @rule()
    def confirm(self) -> None:
        if self.local.confirmed is not None:
            self.local.confirmed = self.local.end

    @rule(ms=st.sampled_from([1, 600, 31_000, 20 * 60_000, 70 * 60_000]))
    def let_time_pass(self, ms: int) -> None:
        self.lives.clock.advance(ms)

    @rule(force=st.booleans())
    def dispatch(self, force: bool) -> None:
        self._do(lambda: self.lives.store._loaded().dispatcher.dispatch_once(force=force))

    @rule()
    def expire(self) -> None:
        self._do(self.lives.expire)

    @rule(topic=st.sampled_from(["A", "B", "unknown"]))
    def delete_topic(self, topic: str) -> None:
        self._do(lambda: self.lives.delete_topic(topic))

    @rule(share=shares)
    def trim_the_local_log(self, share: float) -> None:
        """Run the local retention, which deletes nothing that the tier still needs."""
        before = {key: self.local.min_offset(*key) for key in KEYS}
        self._do(lambda: self.local.trim(self._place(share)))
        stopped = self._stopped()
        for key in KEYS:
            first = self.local.min_offset(*key)
            if first is not None and first != before[key] and key not in stopped:
                assert (self.lives.store.committed_offset(*key) or 0) >= first, key

    @rule(share=shares)
    def lose_the_head_of_the_local_log(self, share: float) -> None:
        self.local.lose_below(self._place(share))

    @rule(drain=st.booleans())
    def restart(self, drain: bool) -> None:
        self._do(lambda: self.lives.store.shutdown(drain=drain))
        self._reopen()

    @rule()
    def die(self) -> None:
        self._reopen()

    @rule(share=shares)
    def lose_power(self, share: float) -> None:
        """Lose the last messages of the local store, even confirmed ones."""
        self.local.lose_from(self._place(share))
        self._reopen()
        self.dispatch(False)  # a start looks at all queues before anything is put

    @rule(fault=st.sampled_from(list(Fault)), after=st.integers(0, 9))
    def plan_a_fault(self, fault: Fault, after: int) -> None:
        self.lives.faults.strike(fault, after=after)

    @rule(fault=st.sampled_from(list(Fault)), after=st.integers(0, 5))
    def die_and_start_with_a_fault(self, fault: Fault, after: int) -> None:
        self._reopen(Faults({after: fault}))

    @rule()
    def forgive(self) -> None:
        self.lives.faults.forgive()

    @rule(fails=st.booleans())
    def let_the_index_fail(self, fails: bool) -> None:
        self.lives.index.fails = fails

    # What is asked

    @rule(key=keys, offset=st.integers(-1, 40), count=st.integers(1, 12))
    def read(self, key: QueueKey, offset: int, count: int) -> None:
        there = self._there(key)
        result = self._do(lambda: self.lives.store.get_message(*key, offset, count_max=count))
        if result is None:
            return
        if result.status is GetStatus.FOUND:
            assert [one.queue_offset for one in result.messages] == list(
                range(offset, offset + len(result.messages))
            )
            for one in result.messages:
                self._check_record(key, one.queue_offset, bare(one.record))
        assert not (offset in there and result.status is not GetStatus.FOUND), result.status

    @rule(key=keys, offset=st.integers(-1, 40), count=st.integers(1, 12))
    def read_run(self, key: QueueKey, offset: int, count: int) -> None:
        there = self._there(key)
        run = self._do(
            lambda: self.lives.store.read_range(*key, offset, count_max=count, bytes_max=9_999)
        )
        if run is None:
            return
        assert run.first_offset == offset
        for row in range(len(run)):
            self._check_record(key, offset + row, bare(bytes(run.record(row))))
        assert not (offset in there and not len(run))

    @rule(key=keys)
    def consume(self, key: QueueKey) -> None:
        if self._is_quiet(key):
            found = self.lives.consumed(key)
            assert self._there(key) <= found.keys()
            for offset, record in found.items():
                self._check_record(key, offset, record)

    @rule(key=keys, number=st.integers(0, 100), shift=st.integers(-1, 1))
    def search_by_time(self, key: QueueKey, number: int, shift: int) -> None:
        if not self._is_quiet(key) or not (times := self._times(key)):
            return
        asked = sorted(times.values())[number % len(times)] + shift
        found = self._do(lambda: self.lives.store.offset_by_time(*key, asked, Boundary.LOWER))
        assert found is not None
        wanted = min((offset for offset, time in times.items() if time >= asked), default=None)
        assert min((offset for offset in times if offset >= found), default=None) == wanted

    @rule(number=st.integers(0, 60), topic=st.sampled_from(["A", "B"]))
    def query(self, number: int, topic: str) -> None:
        result = self._do(lambda: self.lives.store.query_message(topic, f"UNIQ-{number:08d}"))
        if result is None:
            return
        assert len({(one.queue_offset, bare(one.record)) for one in result.messages}) <= 1
        assert len(result.messages) <= 1
        if result.complete:  # then it has all messages of the tier with this key
            found = {bare(one.record) for one in result.messages}
            assert self._with_key(topic, f"UNIQ-{number:08d}") <= found

    def _with_key(self, topic: str, key: str) -> set[bytes]:
        """The tier's records with this unique key."""
        return {
            held.record
            for queue, messages in self.contents.items()
            for held in messages.values()
            if queue.topic == topic and key.encode() in held.record
        }

    # What must be so

    @invariant()
    def nothing_is_lost_and_nothing_dangles(self) -> None:
        if hasattr(self, "contents"):
            assert not self.lives.faults.crashed, "a death that nobody noticed"
            self.contents = self.lives.check()
            self.ledger.deleting.clear()
            problems = self._problems()
            for key in KEYS:
                if not problems.get(key, "").startswith("not recovered"):
                    self.ledger.promise(key, self.lives.store.committed_offset(*key))

    def teardown(self) -> None:
        try:
            if hasattr(self, "contents") and not self.lives.faults.crashed:
                self._settle()
        finally:
            shutil.rmtree(self.folder)

    def _settle(self) -> None:
        self.lives.faults.forgive()
        self.lives.index.fails = False
        if self.local.confirmed is not None:
            self.local.confirmed = self.local.end
        self.lives.check_whole(but=self._stopped)
        self._reopen()
        self.dispatch(False)  # finds the stopped queues again
        self.lives.check_reopened()
        self.lives.check_whole(but=self._stopped)

    def _do(self, call: Callable[[], Any]) -> Any:
        """Call; return None if a fault struck, and start a new process if this one died."""
        try:
            return call()
        except EXPECTED:
            return None
        except SimulatedCrash:
            self._reopen()
            return None

    def _reopen(self, faults: Faults | None = None) -> None:
        with suppress(*EXPECTED, SimulatedCrash):
            self.lives.open(faults)
            return
        self.lives.open()

    def _place(self, share: float) -> int:
        """A position in the local log where a record begins, or its end."""
        places = [one.log_offset for one in self.local._log] + [self.local.end]
        return places[int(share * (len(places) - 1))]

    def _problems(self) -> dict[QueueKey, str]:
        health = self.lives.store.health()
        return {QueueKey(q.topic, q.queue_id): q.problem for q in health.queues if q.problem}

    def _stopped(self) -> set[QueueKey]:
        """Queues that are stopped because tier and local store do not agree."""
        return {key for key, why in self._problems().items() if not why.startswith("not recovered")}

    def _is_quiet(self, key: QueueKey) -> bool:
        """Whether no fault is planned, and tier and local store agree about the queue."""
        tiered = self.contents.get(key, {})
        local = self.local.kept(key)
        end, committed = self.local.max_offset(*key), self.lives.store.committed_offset(*key)
        return (
            not self.lives.faults._at
            and key not in self._problems()
            and (end is None or committed is None or committed <= end)
            and all(
                one.queue_offset not in tiered
                or tiered[one.queue_offset].record == bare(one.record)
                for one in local
            )
        )

    def _times(self, key: QueueKey) -> dict[int, int]:
        local = {one.queue_offset: one.record for one in self.local.kept(key)}
        times = {offset: peek_store_timestamp(record) for offset, record in local.items()}
        times |= {offset: held.time for offset, held in self.contents.get(key, {}).items()}
        there = self._there(key)
        times = {offset: time for offset, time in sorted(times.items()) if offset in there}
        assert all(before < after for before, after in pairwise(times.values()))
        return times

    def _there(self, key: QueueKey) -> set[int]:
        """What a reader must find; with FORCE, local messages past the tier's end do not count."""
        tiered = set(self.contents.get(key, {}))
        committed = self.lives.store.committed_offset(*key) or 0
        local = {one.queue_offset for one in self.local.kept(key)}
        if self.lives.store.level is StorageLevel.FORCE:
            local = {offset for offset in local if offset < committed}
        return tiered | local

    def _check_record(self, key: QueueKey, offset: int, record: bytes) -> None:
        known = [bare(one.record) for one in self.local.kept(key) if one.queue_offset == offset]
        if (held := self.contents.get(key, {}).get(offset)) is not None:
            known.append(held.record)
        assert record in known, f"{key}: who wrote {offset}?"


TestTierBesideLists = TierBesideLists.TestCase
TestTierBesideLists.settings = settings(max_examples=60, stateful_step_count=30)


@pytest.mark.torture
def test_long_histories() -> None:
    """As many as the profile says."""
    run_state_machine_as_test(TierBesideLists, settings=settings(stateful_step_count=50))
