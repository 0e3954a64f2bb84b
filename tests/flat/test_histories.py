"""Random histories of one queue, compared with a dictionary; faults and crashes at any step."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.flat.store_kit import KEY, LOG, QUEUE, Tier, content, unplaced
from tests.flat.tiers import run_of
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.recovery import recover
from tieredstore.model.errors import TieredStoreError
from tieredstore.testing.faults import Fault, Faults, SimulatedCrash
from tieredstore.testing.samples import a_record

FIRST = 3
failures = st.sampled_from([Fault.BEFORE, Fault.AFTER, Fault.HALF])
crashes = st.sampled_from([Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_HALF])
steps = st.integers(0, 4)  # a commit takes three, and two more if the ends are not known


class QueueMachine(RuleBasedStateMachine):
    """One queue, its writer and its reader.

    `local` is the broker's own store, from which messages are uploaded; it may lose unacknowledged
    ones. `tiered` has the acknowledged messages that were not dropped since.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tier = Tier(log_bytes=1200, queue_units=6)
        self.local: dict[int, bytes] = {}
        self.losses = 0
        self.tiered: dict[int, bytes] = {}
        self.reopen()

    def reopen(self) -> None:
        self.faults = Faults()
        self.file: FlatMessageFile = self.tier.open(self.faults).create(*KEY)
        assert self.file.problem is None, self.file.problem
        self.file.start_at(FIRST)
        self.acknowledge_what_is_there()

    def acknowledge_what_is_there(self) -> None:
        """More may be durable than was acknowledged, but only messages that were sent."""
        found = content(self.file)
        for offset, record in found.items():
            assert record == self.tiered.get(offset, self.local.get(offset)), offset
        assert self.tiered.keys() <= found.keys()
        self.tiered = found

    def message(self, offset: int) -> bytes:
        size = (offset * 37 + self.losses * 11) % 150
        record = a_record(offset, body_bytes=size, store_timestamp=1_700_000_000_000 + offset)
        self.local[offset] = unplaced(record)
        return record

    @rule(count=st.integers(1, 9))
    def append(self, count: int) -> None:
        first = self.file.append_offset
        self.file.append(run_of(first, [self.message(first + n) for n in range(count)]))

    @rule()
    def commit(self) -> None:
        """The pair predicts the rows, whatever happened before."""
        attempt = self.file.begin_commit()
        if attempt is not None:
            pair = attempt.pair
            for future in self.tier.inner.write_many([pair]):
                future.result()
            assert self.file.end_commit(attempt) == list(pair.rows)
            self.tier.catalogue().put(*pair.rows)
            for part in (self.file.log, self.file.queue):
                last = part.segments[-1]
                assert last.record.size == last.backend_bytes()
        self.acknowledge_what_is_there()

    @rule(fault=failures, after=steps)
    def commit_with_a_failure(self, fault: Fault, after: int) -> None:
        if not self.file.waiting_bytes:
            self.append(2)
        self.faults.strike(fault, after=after)
        with suppress(TieredStoreError):
            self.file.commit()
        self.faults.forgive()
        self.acknowledge_what_is_there()

    @rule(fault=crashes, after=steps)
    def crash_in_a_commit(self, fault: Fault, after: int) -> None:
        if not self.file.waiting_bytes:
            self.append(2)
        self.faults.strike(fault, after=after)
        with suppress(SimulatedCrash):
            self.file.commit()
        self.reopen()

    @rule(fault=crashes, after=steps)
    def crash_in_recovery(self, fault: Fault, after: int) -> None:
        with suppress(SimulatedCrash):
            self.tier.open(Faults({after: fault}))
        self.reopen()

    @rule()
    def crash(self) -> None:
        self.reopen()

    @rule()
    def lose_what_is_not_acknowledged(self) -> None:
        """After a power cut of the whole machine, other messages get the lost ones' offsets."""
        self.reopen()
        self.losses += 1
        self.append(3)

    @precondition(lambda self: not self.file.waiting_bytes)
    @rule()
    def find_out_what_has_landed(self) -> None:
        """Recover in the same life, as before a roll: then nothing is in doubt any more."""
        recover(self.file, self.tier.catalogue(), self.tier.clock)
        assert self.file.problem is None, self.file.problem
        assert not self.file.is_in_doubt
        self.acknowledge_what_is_there()

    @precondition(lambda self: not (self.file.waiting_bytes or self.file.is_in_doubt))
    @rule(by=st.integers(1, 5))
    def skip(self, by: int) -> None:
        self.file.skip_to(self.file.append_offset + by)

    @precondition(lambda self: not (self.file.waiting_bytes or self.file.is_in_doubt))
    @rule()
    def roll(self) -> None:
        self.file.log.roll()

    @rule()
    def discard(self) -> None:
        assert self.file.discard()

    @precondition(lambda self: len(self.file.queue.segments) > 1)
    @rule()
    def drop_the_oldest(self) -> None:
        queue, log = self.file.queue, self.file.log
        queue.drop(queue.segments[:1])
        first = queue.first_unit_from(queue.min_unit)
        if first < queue.commit_unit:
            needed = int(self.file.units(first, 1).log_offsets[0])
            log.drop([each for each in log.segments[:-1] if each.end <= needed])
        self.tiered = {n: record for n, record in self.tiered.items() if n >= queue.min_unit}

    @invariant()
    def a_reader_sees_what_is_acknowledged(self) -> None:
        assert content(self.file) == self.tiered

    @invariant()
    def the_catalogue_claims_no_more_than_there_is(self) -> None:
        for kind in (LOG, QUEUE):
            held = self.tier.held(kind)
            for row in self.tier.rows(kind):
                assert row.size <= len(held.get(row.base_offset, b""))

    def teardown(self) -> None:
        """A reader in another process finds everything too."""
        file = self.tier.open(read_only=True).get(KEY)
        assert file is not None
        assert file.problem is None
        found = content(file)
        assert {n: found.get(n) for n in self.tiered} == self.tiered


TestQueueHistories = QueueMachine.TestCase
TestQueueHistories.settings = settings(max_examples=60, stateful_step_count=40)


@pytest.mark.torture
def test_long_histories() -> None:
    """As many histories, and as long, as the profile says."""
    run_state_machine_as_test(QueueMachine, settings=settings())
