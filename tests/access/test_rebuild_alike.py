"""What a rebuild says of any tier is what its lost catalogue said, as far as bytes can tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.access.tiered_kit import a_config
from tieredstore.access.reader import TieredReader
from tieredstore.access.rebuild import RebuildReport, rebuild
from tieredstore.access.store import TieredMessageStore
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import QueueKey, SegmentRecord, SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import STORE_TIMESTAMP, a_message

QUEUE = SegmentType.CONSUME_QUEUE
HOUR_MS = 3_600_000
TOPICS = ("TopicA", "TopicB")
SETTINGS: dict[str, Any] = {
    "commit_log_segment_bytes": 1_400,
    "consume_queue_segment_bytes": 7 * UNIT_BYTES,
    "reserve_hours": 2,
    "index_slot_count": 16,
    "index_item_count": 12,
    "index_rolling_hours": 1_000,
}


class Written:
    """A broker's tier that is written, expires, and loses its catalogue."""

    def __init__(self, folder: Path) -> None:
        self.runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        self.provider = MemoryProvider(self.runtime)
        self.local = ListMessageStore(self.runtime)
        self.config = a_config(folder, **SETTINGS)
        self.metadata: MetadataStore = JsonMetadataStore.open(folder / "catalogue.json")
        self.folder = folder
        self.times: dict[tuple[QueueKey, int], int] = {}
        self.store = TieredMessageStore(
            self.local,
            self.config,
            runtime=self.runtime,
            provider=self.provider,
            metadata=self.metadata,
        )
        self.store.load()
        self.store.start()
        self._number = 0

    @property
    def clock(self) -> ManualClock:
        clock = self.runtime.clock
        assert isinstance(clock, ManualClock)
        return clock

    def put(self, topic: str, queue_id: int, count: int, body_bytes: int = 100) -> None:
        for _ in range(count):
            self.clock.advance(1_000)
            message = a_message(self._number, topic=topic, queue_id=queue_id, body_bytes=body_bytes)
            put = self.store.put_message(message)
            assert put.stored
            self.times[QueueKey(topic, queue_id), put.queue_offset] = put.store_timestamp
            self._number += 1

    def wait(self, hours: float) -> None:
        self.clock.advance(int(hours * HOUR_MS))

    def expire(self) -> None:
        self.store._loaded().retention.step()

    def end(self) -> None:
        assert self.store.flush(seal=True)
        self.store.shutdown()

    def queues(self) -> dict[QueueKey, tuple[int, int]]:
        """Where each queue with bytes begins and ends, as a reader of the catalogue has it."""
        with self.reader() as reader:
            found = {
                key: (reader.min_offset(*key) or 0, reader.max_offset(*key) or 0)
                for key in reader.queues()
            }
        return {key: ends for key, ends in found.items() if ends[0] != ends[1]}

    def messages(self) -> dict[QueueKey, list[bytes]]:
        with self.reader() as reader:
            return {key: [one.record for one in reader.messages(*key)] for key in self.queues()}

    def reader(self) -> TieredReader:
        return TieredReader(
            self.config, runtime=self.runtime, provider=self.provider, metadata=self.metadata
        )

    def rebuild(self) -> RebuildReport:
        """From the bytes alone."""
        self.metadata.close()
        self.metadata = JsonMetadataStore.open(self.folder / "rebuilt.json")
        return rebuild(self.metadata, self.provider, self.config, self.runtime)

    def told(self, *, rebuilt: bool) -> list[SegmentRecord]:
        """Rows, but for what no byte tells: rows of nothing, when a segment was made, and the
        time of a first message that has expired."""
        queues = self.queues()
        rows = []
        for row in self.metadata.segments():
            known: dict[str, Any] = {"create_timestamp": 0}
            if row.size and row.type is QUEUE:
                _, topic, number = row.path.split("/")
                key = QueueKey(topic, int(number))
                first = max(row.base_offset // UNIT_BYTES, queues[key][0])
                known["begin_timestamp"] = self.times[key, first]
                if rebuilt:
                    assert row.begin_timestamp == self.times[key, first]
            rows += [replace(row, **known)] if row.size else []
        return sorted(rows, key=lambda row: (row.path, row.type, row.base_offset))


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.sampled_from(TOPICS),
            st.integers(0, 1),
            st.integers(1, 9),
            st.sampled_from([20, 100, 700]),
        ),
        st.tuples(st.just("wait"), st.sampled_from([0.4, 1.1, 3.0])),
        st.tuples(st.just("flush"), st.booleans()),
        st.just(("expire",)),
        st.just(("lose",)),
    ),
    max_size=14,
)


def follow(tier: Written, steps: Sequence[tuple[Any, ...]]) -> None:
    for what, *more in steps:
        if what == "put":
            tier.put(more[0], more[1], more[2], more[3])
        elif what == "wait":
            tier.wait(more[0])
        elif what == "flush":
            assert tier.store.flush(seal=more[0])
        elif what == "expire":
            tier.expire()
        else:
            tier.local.kept_from += 2  # messages that the tier never gets


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_a_rebuilt_catalogue_says_what_the_lost_one_said(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    tier = Written(tmp_path_factory.mktemp("tier"))
    follow(tier, steps)
    tier.end()
    queues, rows = tier.queues(), tier.told(rebuilt=False)
    known = {record.topic: record.topic_id for record in tier.metadata.topics()}
    messages = tier.messages()
    report = tier.rebuild()
    assert report.problems == ()
    assert tier.queues() == queues
    assert tier.told(rebuilt=True) == rows
    assert tier.messages() == messages
    old = {topic: known[topic] for topic in report.topics if topic not in report.new_ids}
    assert old.items() <= report.topics.items()


def test_expired_units_are_a_note(tmp_path: Path) -> None:
    tier = Written(tmp_path)
    tier.put("TopicA", 0, 11)
    assert tier.store.flush()
    tier.wait(3)
    tier.put("TopicA", 0, 3)
    assert tier.store.flush()
    tier.expire()
    tier.end()
    report = tier.rebuild()
    assert report.problems == ()
    assert report.notes == ("broker-a/TopicA/0: begins with 3 units of messages that have expired",)
    assert tier.queues() == {QueueKey("TopicA", 0): (10, 14)}


def damaged_units(tier: Written, damage: Callable[[bytearray], None]) -> None:
    """The newest queue segment of TopicA/0, past everybody's back."""
    row = tier.metadata.segments("broker-a/TopicA/0", QUEUE)[-1]
    with tier.provider.open(row.path, row.type, row.base_offset) as segment:
        units = bytearray(segment.read(0, row.size))
        damage(units)
        segment.delete()
        segment.write(0, bytes(units))


@settings(max_examples=20, deadline=None)
@given(st.integers(8, 22), st.integers(0, 12 * 8 - 1))
def test_a_message_whose_unit_is_damaged_is_found_in_the_log(
    tmp_path_factory: pytest.TempPathFactory, count: int, bit: int
) -> None:
    tier = Written(tmp_path_factory.mktemp("tier"))
    tier.put("TopicA", 0, count)
    tier.end()
    queues, rows = tier.queues(), tier.told(rebuilt=False)

    def flip(units: bytearray) -> None:
        units[len(units) - UNIT_BYTES + bit // 8] ^= 1 << bit % 8

    damaged_units(tier, flip)
    report = tier.rebuild()
    assert len(report.problems) == 1
    assert f"messages {count - 1} to {count - 1} are in the log" in report.problems[0]
    assert tier.queues() == queues
    assert tier.told(rebuilt=True) == rows
    with tier.reader() as reader:
        assert len(reader.get_message("TopicA", 0, count - 2, count_max=1).messages) == 1
        with pytest.raises(SegmentCorruptError):
            reader.get_message("TopicA", 0, count - 1, count_max=1)
