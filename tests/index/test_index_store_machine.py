"""Random puts, times and questions, with files in all states: answers equal a linear scan."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.index.store_kit import ALL, Shop, check_like_scan
from tieredstore.codec.java import string_hash
from tieredstore.index.keys import SECOND_SLACK_MS
from tieredstore.model.values import INT64_MAX
from tieredstore.testing.faults import Fault
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC

KEYS = ["a", "b", "c", "主题", "Aa", "BB"]
MINUTE = 60_000
times = st.integers(-90 * MINUTE, 90 * MINUTE).map(lambda ms: STORE_TIMESTAMP + ms)
edges = st.one_of(times, st.sampled_from([0, INT64_MAX, STORE_TIMESTAMP]))
messages = st.lists(
    st.tuples(st.lists(st.sampled_from(KEYS), max_size=3).map(" ".join), times),
    min_size=1,
    max_size=12,
)


class IndexMachine(RuleBasedStateMachine):
    """Everything that was put is found, whatever file it is in."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.sent: dict[int, list[tuple[str, int]]] = {}

    @initialize(items=st.integers(4, 30), slots=st.sampled_from([1, 5, 64]))
    def begin(self, items: int, slots: int) -> None:
        self.shop = Shop(Path(self._folder.name), slots=slots, items=items, expiry_enabled=False)

    @rule(queue_id=st.integers(0, 2), batch=messages)
    def put(self, queue_id: int, batch: list[tuple[str, int]]) -> None:
        keys, stamps = zip(*batch, strict=True)
        self.sent.setdefault(queue_id, []).extend(batch)
        self.shop.put(keys, queue_id=queue_id, times=stamps)

    @rule()
    def sync(self) -> None:
        self.shop.index._writer.sync()

    @rule()
    def crash(self) -> None:
        """Lose what was not synced, and put it again from the index's offset on. Below that offset
        the index never lacks anything: answers by key rely on this.
        """
        self.shop.crash()
        self.shop.open()
        self._check_below_what_the_index_says()
        rows = list(self.shop.rows)
        for queue_id, batch in self.sent.items():
            start = self.shop.index.indexed_offset(TOPIC, self.shop.topic_id, queue_id)
            assert start is not None
            if start < len(batch):
                keys, stamps = zip(*batch[start:], strict=True)
                self.shop.ends[queue_id] = start
                self.shop.put(keys, queue_id=queue_id, times=stamps)
        self.shop.rows = rows

    def _check_below_what_the_index_says(self) -> None:
        reach = {
            queue_id: self.shop.index.indexed_offset(TOPIC, self.shop.topic_id, queue_id) or 0
            for queue_id in self.sent
        }
        for key in KEYS:
            answer = self.shop.ask(key)
            assert answer.complete
            wanted = {place for place in self.shop.scan(key) if place[1] < 1000 * reach[place[0]]}
            assert wanted <= {(hit.queue_id, hit.log_offset) for hit in answer.hits}

    @invariant()
    def no_file_begins_after_a_message_in_it(self) -> None:
        if hasattr(self, "shop"):
            for file in self.shop.index._writer.files:
                # Times from whole seconds are bounds, up to a second before the messages.
                slack = SECOND_SLACK_MS if file.times and not file.times.exact else 0
                assert file.times is None or file.begin_timestamp <= file.times.first + slack
            begins = [row.begin_timestamp or 0 for row in self.shop.segments() if row.size]
            assert len(set(begins)) == len(begins)
            assert begins[:1] == sorted(begins)[:1]

    @rule(key=st.sampled_from(KEYS))
    def ask_elsewhere(self, key: str) -> None:
        """A reader without a disk finds all that is uploaded."""
        self.shop.index.seal()
        reader = self.shop.reader()
        answer = reader.query(TOPIC, self.shop.topic_id, key, **ALL)
        assert answer.complete
        found = {(hit.queue_id, hit.log_offset) for hit in answer.hits}
        same = {name for name in KEYS if string_hash(name) == string_hash(key)}
        assert self.shop.scan(key).keys() <= found
        assert found <= {place for name in same for place in self.shop.scan(name)}

    @rule(hours=st.integers(0, 30))
    def time_passes(self, hours: int) -> None:
        self.shop.clock.advance(hours * 3_600_000)

    @rule()
    def step(self) -> None:
        self.shop.index.step()

    @rule()
    def seal(self) -> None:
        self.shop.index.seal()

    @rule()
    def reopen(self) -> None:
        self.shop.reopen()

    @rule()
    def lose_the_cache(self) -> None:
        self.shop.index._cache.clear()

    @rule(at=st.integers(0, 8), fault=st.sampled_from([Fault.BEFORE, Fault.AFTER]))
    def fail_in_the_background(self, at: int, fault: Fault) -> None:
        self.shop.faults.strike(fault, after=at)
        self.shop.index.step()
        self.shop.faults.forgive()

    @rule(key=st.sampled_from(KEYS), count=st.integers(-1, 40), begin=edges, end=edges)
    def ask(self, key: str, count: int, begin: int, end: int) -> None:
        check_like_scan(self.shop, key, count_max=count, begin=begin, end=end)

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "shop"):
            for key in KEYS[:2]:
                check_like_scan(self.shop, key, count_max=10_000, begin=0, end=INT64_MAX)

    def teardown(self) -> None:
        if hasattr(self, "shop"):
            self.shop.index.shutdown()
        self._folder.cleanup()


TestIndexMachine: Any = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_a_file_that_is_noted_after_a_crash_lowers_the_first_row() -> None:
    """RocketMQ forgets files that begin before the first one. The state machine found this case."""
    machine = IndexMachine()
    machine.begin(items=4, slots=1)
    stamp = 1_700_000_000_000
    machine.put(batch=[("a", stamp), ("a", stamp), ("", stamp)], queue_id=0)
    machine.fail_in_the_background(at=7, fault=Fault.AFTER)
    machine.crash()
    machine.no_file_begins_after_a_message_in_it()
    machine.nothing_is_lost()
    machine.teardown()


@given(batch=messages, begin=edges, end=edges, count=st.integers(0, 8))
@settings(max_examples=40, deadline=None)
def test_one_uploaded_file_is_as_a_linear_scan(
    batch: list[tuple[str, int]], begin: int, end: int, count: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop(Path(folder), items=100)
        keys, stamps = zip(*batch, strict=True)
        shop.put(keys, times=stamps)
        shop.index.seal()
        for key in KEYS:
            check_like_scan(shop, key, count_max=count, begin=begin, end=end)
        shop.index.shutdown()
