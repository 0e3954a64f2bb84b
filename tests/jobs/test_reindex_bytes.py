"""All index files made anew: byte for byte those of the index itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flat.tiers import FaultyCatalogue
from tests.jobs.test_reindex import index_files, run
from tests.jobs.written_tier import posix_config
from tieredstore.access.wiring import open_tier
from tieredstore.codec.names import index_queue_path
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.index.contract import CommittedRun
from tieredstore.index.store import IndexStore
from tieredstore.jobs.job import JobState
from tieredstore.jobs.reindex import begin_timestamps
from tieredstore.metadata.tables import Tables
from tieredstore.model.config import StoreConfig
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import QueueKey, SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Faults
from tieredstore.testing.samples import STORE_TIMESTAMP, a_record


@dataclass(frozen=True, slots=True)
class Stored:
    key: QueueKey
    queue_offset: int
    time: int
    record: bytes


MESSAGE = st.tuples(st.integers(0, 4), st.integers(0, 5))  # seconds since the one before, keys
QUEUES = st.lists(st.lists(MESSAGE, max_size=12), min_size=1, max_size=3)


def stored_messages(queues: list[list[tuple[int, int]]]) -> list[Stored]:
    found = []
    for number, messages in enumerate(queues):
        key, time = QueueKey(f"t{number % 2}", number), STORE_TIMESTAMP
        for offset, (seconds, count) in enumerate(messages):
            time += 500 * seconds
            keys = " ".join(f"{number}-{offset}-{each}" for each in range(count))
            record = a_record(
                offset,
                topic=key.topic,
                queue_id=key.queue_id,
                store_timestamp=time,
                properties={"KEYS": keys} if count else {},
            )
            found.append(Stored(key, offset, time, record))
    return found


def one_run(message: Stored, log_offset: int) -> MessageRun:
    return MessageRun(
        first_offset=message.queue_offset,
        log_offsets=np.array([log_offset]),
        message_bytes=np.array([len(message.record)], np.int32),
        tags_codes=np.zeros(1, np.int64),
        starts=np.zeros(1, np.int64),
        records=message.record,
    )


def write_tier(config: StoreConfig, messages: list[Stored]) -> dict[tuple[QueueKey, int], int]:
    """The messages, without an index; where each of them is."""
    places = {}
    without = replace(config, index_enabled=False)
    parts = open_tier(without, runtime=Runtime.inline(now_ms=STORE_TIMESTAMP))
    try:
        parts.load()
        for message in messages:
            file = parts.files.create(*message.key)
            file.start_at(0)
            while not (appended := file.append(one_run(message, 0))).count:
                assert file.commit()
            places[message.key, message.queue_offset] = int(appended.log_offsets[0])
            assert file.commit()
    finally:
        parts.close()
    return places


def index_itself(
    config: StoreConfig,
    messages: list[Stored],
    places: dict[tuple[QueueKey, int], int],
    at: Path,
    begins: list[int],
) -> list[bytes]:
    """What the index uploads that takes the messages one by one when they are stored.

    Its files begin at `begins`: of several that begin with one millisecond a reindex, which knows
    them all, puts the later ones later, and the index, which does not, puts them earlier.
    """
    runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
    clock = runtime.clock
    assert isinstance(clock, ManualClock)
    provider = MemoryProvider(runtime)
    catalogue = FaultyCatalogue(Tables(), Faults())
    ids = {}
    for message in messages:
        ids[message.key.topic] = catalogue.add_topic(message.key.topic).topic_id
    index = IndexStore(
        replace(config, store_path=str(at), index_rolling_hours=1_000, expiry_enabled=False),
        provider=provider,
        metadata=catalogue,
        runtime=runtime,
    )
    index.load()
    wanted = iter(begins)
    index._writer._free_begin = lambda latest: next(wanted)  # type: ignore[method-assign]
    for message in sorted(
        messages, key=lambda each: (each.time, ids[each.key.topic], each.key.queue_id)
    ):
        clock.advance(message.time - clock.now_ms())
        offset = places[message.key, message.queue_offset]
        committed = CommittedRun(
            run=one_run(message, offset), log_offsets=np.array([offset], np.int64)
        )
        topic, queue_id = message.key
        index.put(topic, ids[topic], queue_id, committed)
        index.step()
    index.seal()
    path = index_queue_path(config.broker_name)
    rows = catalogue.segments(path, SegmentType.INDEX)
    found = [provider.open(path, row.type, row.base_offset).read(0, row.size) for row in rows]
    index.shutdown()
    assert list(wanted) == []
    return found


@given(queues=QUEUES, items=st.sampled_from([3, 9, 40]))
@settings(max_examples=12)
def test_files_are_byte_for_byte_those_of_the_index_itself(
    tmp_path_factory: pytest.TempPathFactory, queues: list[list[tuple[int, int]]], items: int
) -> None:
    place = tmp_path_factory.mktemp("tier")
    config = posix_config(place, index_slot_count=17, index_item_count=items)
    messages = stored_messages(queues)
    if not messages:
        return
    places = write_tier(config, messages)
    assert run(config).state is JobState.DONE
    made = index_files(config)
    begins = [int.from_bytes(data[4:12], "big") for data in made]
    assert made == index_itself(config, messages, places, place / "index", begins)


@given(
    times=st.lists(st.integers(1_000, 1_020), max_size=12).map(sorted),
    used=st.sets(st.integers(990, 1_020)),
)
def test_files_begin_in_order_alone_and_never_after_their_first_message(
    times: list[int], used: set[int]
) -> None:
    begins = begin_timestamps(times, used)
    assert begins == sorted(set(begins))
    assert used.isdisjoint(begins)
    assert all(begin <= first for begin, first in zip(begins, times, strict=True))
