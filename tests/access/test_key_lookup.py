"""Messages by key: hits of an index are checked against the messages, and no message is hidden."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.access.cached_file_kit import WAIT_S
from tests.access.fetch_kit import Shelf, numbered
from tests.access.tiered_kit import ListIndex, a_config, numbers
from tests.jobs.written_tier import WrittenTier, posix_config
from tieredstore.access.fetcher import Fetcher
from tieredstore.access.reader import TieredReader
from tieredstore.access.store import TieredMessageStore
from tieredstore.codec.message import decode_message
from tieredstore.codec.names import INDEX_TOPIC, index_queue_path
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.codec.record import QUEUE_OFFSET_POSITION, TRANSACTION_PREPARED
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.metrics import NoMetrics
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.index.contract import IndexAnswer, IndexHit
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.model.messages import Message, QueryResult
from tieredstore.model.values import INT64_MAX, PutStatus, QueueKey, QueueRecord, SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_message, a_record


class Blurred(ListIndex):
    """An index that rounds times to seconds, confuses all keys, and returns hits twice."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def query(
        self, topic: str, topic_id: int, key: str, *, count_max: int, begin: int, end: int
    ) -> IndexAnswer:
        self.asked.append(count_max)
        hits = [
            hit._replace(store_timestamp=hit.store_timestamp // 1000 * 1000)
            for _, _, hit in self.entries
            if begin <= hit.store_timestamp // 1000 * 1000 <= end
        ]
        hits.sort(key=lambda hit: -hit.store_timestamp)
        return IndexAnswer(hits=hits[:count_max], complete=self.complete)


def found(result: QueryResult) -> list[int]:
    return [message.queue_offset for message in result.messages]


def ask(shelf: Shelf, key: str, count_max: int = 32, **window: Any) -> QueryResult:
    return shelf.fetcher.query_message(TOPIC, key, count_max=count_max, **window)


@pytest.mark.parametrize("count_max", [32, 100])
def test_so_many_messages_of_a_key_are_given_as_were_asked_for(count_max: int) -> None:
    shelf = Shelf()
    shelf.put([a_record(n, properties={"UNIQ_KEY": "uk"}) for n in range(100, 220)], at=100)
    result = ask(shelf, "uk", count_max)
    assert found(result) == list(range(219, 219 - count_max, -1))
    assert result.complete


@pytest.mark.parametrize("size", [2_000_000, 2**31 - 1])
def test_a_size_in_the_index_that_no_message_has_reads_no_more_than_its_head(size: int) -> None:
    """No checksum covers it, and one flipped bit may name a gigabyte."""
    index = ListIndex()
    shelf, entries = Shelf(index=index), index.entries
    shelf.put([a_record(n, properties={"UNIQ_KEY": "uk"}, body_bytes=600_000) for n in range(6)])
    assert found(ask(shelf, "uk")) == [5, 4, 3, 2, 1, 0]
    topic, key, hit = entries[1]
    entries[1] = topic, key, hit._replace(message_bytes=size)
    shelf.provider.reads.clear()
    result = ask(shelf, "uk")
    assert found(result) == [5, 4, 3, 2, 0]
    assert not result.complete
    assert max(length for _, _, length in shelf.provider.reads) < 700_000


def test_both_kinds_of_keys_are_compared_in_the_message() -> None:
    shelf = Shelf(index=Blurred())
    shelf.put(numbered(0, 50))
    assert found(ask(shelf, "key-7")) == [7]
    assert found(ask(shelf, "UNIQ-00000007")) == [7]
    assert found(ask(shelf, "shared", 3)) == [49, 48, 47]
    assert found(ask(shelf, "key-")) == found(ask(shelf, "")) == found(ask(shelf, "Tag1")) == []


def test_the_time_window_is_that_of_the_messages_not_of_the_index() -> None:
    shelf = Shelf(index=Blurred())
    shelf.put(numbered(0, 300))
    time = STORE_TIMESTAMP + 10 * 150
    assert found(ask(shelf, "shared", begin=time, end=time)) == [150]
    assert found(ask(shelf, "shared", begin=time - 10, end=time + 19)) == [151, 150, 149]
    assert found(ask(shelf, "shared", begin=time + 1, end=time + 9)) == []
    assert found(ask(shelf, "shared", begin=time, end=time - 1)) == []


@pytest.mark.parametrize(("count_max", "count"), [(0, 0), (-1, 0), (1, 1), (INT64_MAX, 200)])
def test_a_count_of_zero_gives_nothing_and_a_huge_one_everything(
    count_max: int, count: int
) -> None:
    shelf = Shelf(index=Blurred())
    shelf.put(numbered(0, 200))
    assert len(ask(shelf, "shared", count_max).messages) == count


def test_a_key_that_others_are_taken_for_is_found_behind_all_of_them() -> None:
    shelf = Shelf(index=Blurred())
    shelf.put(numbered(0, 1500))
    assert found(ask(shelf, "key-0", 1)) == [0]
    assert isinstance(shelf.index, Blurred)
    assert len(shelf.index.asked) > 1


def test_the_newest_come_first_whatever_order_the_index_has() -> None:
    shelf = Shelf(index=Blurred())
    for queue_id in (0, 1):
        times = [STORE_TIMESTAMP + 20 * n + 10 * queue_id for n in range(100)]
        shelf.put(
            [a_record(n, queue_id=queue_id, store_timestamp=time) for n, time in enumerate(times)],
            queue_id=queue_id,
        )
    result = ask(shelf, "shared", 5)
    assert found(result) == [99, 99, 98, 98, 97]


def test_no_more_hits_are_read_than_it_takes() -> None:
    shelf = Shelf()
    shelf.put([a_record(n, store_timestamp=STORE_TIMESTAMP + 1000 * n) for n in range(1000)])
    assert len(ask(shelf, "shared", 10).messages) == 10
    assert len(shelf.provider.reads) <= 100
    assert {kind for kind, _, _ in shelf.provider.reads} == {SegmentType.COMMIT_LOG}


def test_a_message_that_the_index_names_twice_is_shown_once() -> None:
    shelf = Shelf()
    shelf.put(numbered(0, 3))
    assert isinstance(shelf.index, ListIndex)
    shelf.index.entries *= 3
    assert found(ask(shelf, "shared")) == [2, 1, 0]


def test_an_unknown_topic_or_queue_has_no_messages() -> None:
    shelf = Shelf()
    shelf.put(numbered(0, 3))
    assert shelf.fetcher.query_message("other", "shared") == QueryResult()
    assert isinstance(shelf.index, ListIndex)
    file = shelf.queue()
    hits = [
        IndexHit(file.topic_id, 9, 0, 200, STORE_TIMESTAMP),  # no such queue
        IndexHit(file.topic_id + 1, 0, 0, 200, STORE_TIMESTAMP),  # of another topic
        IndexHit(file.topic_id, 0, 1 << 40, 200, STORE_TIMESTAMP),  # expired or not there yet
    ]
    shelf.index.entries = [(TOPIC, "shared", hit) for hit in hits]
    result = ask(shelf, "shared")
    assert (found(result), result.complete) == ([], True)


def test_a_read_that_fails_hides_no_other_message_and_is_told() -> None:
    faults = Faults()
    shelf = Shelf(faults=faults)
    shelf.put(numbered(0, 10))
    for step in range(faults.steps, faults.steps + 10):
        faults._at[step] = Fault.BEFORE if step % 2 else Fault.AFTER
    failed = ask(shelf, "shared")
    assert not failed.complete
    assert found(failed) == []
    faults._at[faults.steps + 3] = Fault.BEFORE
    partly = ask(shelf, "shared")
    assert not partly.complete
    assert len(partly.messages) == 9
    assert found(ask(shelf, "shared")) == list(range(9, -1, -1))
    assert ask(shelf, "shared").complete


def test_a_damaged_message_is_left_out_and_told() -> None:
    shelf = Shelf()
    file = shelf.put(numbered(0, 10))
    log = bytearray(file.log.read(0, file.log.commit_offset))
    place = int(file.units(4, 1).log_offsets[0])
    log[place + 4 : place + 8] = b"oops"
    shelf.tier.damage(SegmentType.COMMIT_LOG, 0, bytes(log))
    result = ask(shelf, "shared")
    assert found(result) == [9, 8, 7, 6, 5, 3, 2, 1, 0]
    assert not result.complete


@pytest.mark.parametrize("wrong", [-200, -1, 1, 200])
def test_a_hit_with_another_size_than_its_message_gives_no_bytes_of_others(wrong: int) -> None:
    shelf = Shelf()
    shelf.put(numbered(0, 10))
    assert isinstance(shelf.index, ListIndex)
    shelf.index.entries = [
        (topic, key, hit._replace(message_bytes=hit.message_bytes + wrong) if at == 4 else hit)
        for at, (topic, key, hit) in enumerate(
            entry for entry in shelf.index.entries if entry[1] == "shared"
        )
    ]
    result = ask(shelf, "shared")
    assert found(result) == [9, 8, 7, 6, 5, 3, 2, 1, 0]
    assert not result.complete


def test_a_hit_with_a_vast_size_reads_little() -> None:
    shelf = Shelf()
    shelf.put(numbered(0, 5000))
    assert isinstance(shelf.index, ListIndex)
    (hit, *_) = (hit for _, key, hit in shelf.index.entries if key == "shared")
    shelf.index.entries = [(TOPIC, "shared", hit._replace(message_bytes=1_100_000))]
    assert not ask(shelf, "shared").complete
    assert sum(length for _, _, length in shelf.provider.reads) < 1000


class Reaching(ListIndex):
    """An index that knows how far it reaches."""

    reach: int | None = None

    def indexed_offset(self, topic: str, topic_id: int, queue_id: int) -> int | None:
        return self.reach


@pytest.mark.parametrize("lost", [SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE])
@pytest.mark.parametrize("kept", [0, 4])
def test_messages_of_a_lost_end_are_not_called_absent(lost: SegmentType, kept: int) -> None:
    shelf = Shelf(index=Reaching())
    file = shelf.put(numbered(0, 10))
    flat = file.log if lost is SegmentType.COMMIT_LOG else file.queue
    end = int(file.units(kept, 1).log_offsets[0]) if flat is file.log else kept * UNIT_BYTES
    shelf.tier.damage(lost, 0, flat.read(0, end))
    again = shelf.tier.open(read_only=True)
    fetcher = Fetcher(again, shelf.index, shelf.tier.config, shelf.runtime, NoMetrics())

    def answer(key: str) -> tuple[list[int], bool]:
        result = fetcher.query_message(TOPIC, key)
        return found(result), result.complete

    assert answer("key-9") == ([], False)
    assert answer("shared") == ([*range(kept - 1, -1, -1)], False)
    assert answer("key-3") == ([3] if kept else [], bool(kept))
    assert answer("absent") == ([], True)
    assert isinstance(shelf.index, Reaching)
    shelf.index.reach = 9  # no index ever had the keys of the last message
    assert answer("absent") == ([], False)


def test_one_that_says_wrongly_that_it_has_expired_is_told_too() -> None:
    shelf = Shelf()
    file = shelf.put(numbered(100, 10), at=100)
    log = bytearray(file.log.read(0, file.log.commit_offset))
    place = int(file.units(104, 1).log_offsets[0]) + QUEUE_OFFSET_POSITION
    log[place : place + 8] = (4).to_bytes(8)
    shelf.tier.damage(SegmentType.COMMIT_LOG, 0, bytes(log))
    result = ask(shelf, "shared")
    assert found(result) == [n for n in range(109, 99, -1) if n != 104]
    assert not result.complete


def test_an_index_that_is_incomplete_or_fails_is_not_hidden() -> None:
    shelf = Shelf()
    shelf.put(numbered(0, 3))
    assert isinstance(shelf.index, ListIndex)
    shelf.index.complete = False
    assert not ask(shelf, "shared").complete
    shelf.index.failure = BackendUnavailableError("index", "read", "gone")
    with pytest.raises(BackendUnavailableError):
        ask(shelf, "shared")


def test_a_destroyed_queue_is_no_missing_answer() -> None:
    shelf = Shelf()
    shelf.put(numbered(0, 3))
    shelf.put([a_record(n, queue_id=1) for n in range(3)], queue_id=1)
    shelf.store.destroy(QueueKey(TOPIC, 0))
    result = ask(shelf, "shared")
    assert len(result.messages) == 3
    assert result.complete


def test_hits_are_read_side_by_side_even_from_within_the_pool() -> None:
    with Runtime.threads(fetch_threads=2) as runtime:
        shelf = Shelf(runtime=runtime)
        shelf.put(numbered(0, 40))
        queries = [runtime.fetch.submit(ask, shelf, "shared", 40) for _ in range(20)]
        for query in queries:
            assert found(query.result(WAIT_S)) == list(range(39, -1, -1))
        both = threading.Barrier(2)
        shelf.provider.before_read = lambda: both.wait(WAIT_S)
        assert len(ask(shelf, "shared", 2).messages) == 2
        shelf.fetcher.close()


@given(
    times=st.lists(st.integers(0, 5000), min_size=1, max_size=60),
    count_max=st.integers(1, 30),
    window=st.tuples(st.integers(0, 5000), st.integers(0, 5000)),
    number=st.integers(0, 4),
)
def test_answers_are_those_of_a_linear_scan(
    times: list[int], count_max: int, window: tuple[int, int], number: int
) -> None:
    times.sort()
    shelf = Shelf(index=Blurred())
    shelf.put(
        [
            a_record(n, store_timestamp=STORE_TIMESTAMP + time, properties={"KEYS": f"k{n % 5} x"})
            for n, time in enumerate(times)
        ]
    )
    begin, end = (STORE_TIMESTAMP + edge for edge in window)
    result = ask(shelf, f"k{number}", count_max, begin=begin, end=end)
    scanned = [
        n
        for n, time in enumerate(times)
        if n % 5 == number and begin <= STORE_TIMESTAMP + time <= end
    ]
    assert found(result) == scanned[::-1][:count_max]
    assert result.complete


# Keys of a broker's store with a tier: found while local, once uploaded, and by readers elsewhere


class KeyBroker:
    """A tiered store with the index of the settings; its disk and backend outlive it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        self.provider = MemoryProvider(self.runtime)
        self.local = ListMessageStore(self.runtime)
        sizes = {"index_slot_count": 100, "index_item_count": 50}
        self.config = a_config(folder, **{**sizes, **settings})
        self.catalogue = self._opened()
        self.store = self.open()

    def _opened(self) -> MetadataStore:
        path = self.config.catalogue_path
        return JsonMetadataStore.open(path, clock_ms=self.runtime.clock.now_ms)

    def open(self) -> TieredMessageStore:
        self.store = TieredMessageStore(
            self.local,
            self.config,
            runtime=self.runtime,
            provider=self.provider,
            metadata=self.catalogue,
        )
        self.store.load()
        self.store.start()
        return self.store

    def put(self, first: int, count: int) -> None:
        clock = self.runtime.clock
        assert isinstance(clock, ManualClock)
        for number in range(first, first + count):
            message: Message = a_message(number)
            self.store.put_message(message)
            clock.advance(1000)

    def forget_locally(self, kept_from: int) -> None:
        self.local.kept_from = self.local.cached_from = kept_from

    def found(self, key: str, **how: Any) -> list[int]:
        result = self.store.query_message(TOPIC, key, **how)
        assert result.complete
        return numbers(result)


def test_keys_are_found_when_only_the_tier_has_the_messages(tmp_path: Path) -> None:
    broker = KeyBroker(tmp_path)
    broker.put(0, 100)
    assert broker.store.flush()
    broker.forget_locally(100)
    for number in range(0, 100, 9):
        assert broker.found(f"key-{number}") == [number]
        assert broker.found(f"UNIQ-{number:08d}") == [number]
    assert broker.found("shared", count_max=1000) == list(range(99, -1, -1))
    assert broker.found("shared", count_max=3) == [99, 98, 97]
    broker.store.shutdown()


def test_keys_are_found_after_a_restart_and_after_an_unclean_end(tmp_path: Path) -> None:
    broker = KeyBroker(tmp_path)
    broker.put(0, 60)
    assert broker.store.flush()
    broker.forget_locally(60)
    broker.store.shutdown()
    broker.open()
    assert broker.found("shared", count_max=1000) == list(range(59, -1, -1))
    broker.local.kept_from = broker.local.cached_from = 0
    broker.put(60, 5)
    assert broker.store.flush()
    # The process dies: no shutdown, nothing synced.
    broker.open()
    assert broker.store.flush()
    broker.forget_locally(65)
    assert broker.found("shared", count_max=1000) == list(range(64, -1, -1))
    for number in (0, 30, 60, 64):
        assert broker.found(f"key-{number}") == [number]
    broker.store.shutdown()


def test_a_flush_that_seals_shows_the_keys_to_a_reader_elsewhere(tmp_path: Path) -> None:
    broker = KeyBroker(tmp_path, index_item_count=5000)
    broker.put(0, 30)
    assert broker.store.flush()
    reader = TieredReader(
        broker.config, runtime=broker.runtime, provider=broker.provider, metadata=broker.catalogue
    )
    with reader:
        assert not reader.query_message(TOPIC, "key-7").messages
        assert broker.store.flush(seal=True)
        assert numbers(reader.query_message(TOPIC, "key-7")) == [7]
        found = reader.query_message(TOPIC, "shared", count_max=100)
        assert numbers(found) == list(range(29, -1, -1))
    broker.store.shutdown()


def test_an_index_that_was_off_is_made_when_it_is_turned_on(tmp_path: Path) -> None:
    broker = KeyBroker(tmp_path, index_enabled=False)
    broker.put(0, 20)
    assert broker.store.flush()
    broker.forget_locally(20)
    assert not broker.store.query_message(TOPIC, "key-7").messages
    broker.store.shutdown()
    broker.config = a_config(tmp_path, index_slot_count=100, index_item_count=50)
    broker.open()
    assert broker.store.flush()
    assert broker.found("key-7") == [7]
    broker.store.shutdown()


def test_a_destroyed_store_leaves_no_index(tmp_path: Path) -> None:
    broker = KeyBroker(tmp_path)
    broker.put(0, 60)
    assert broker.store.flush(seal=True)
    broker.store.destroy()
    assert not list(broker.provider.list())
    assert not [path for path in (tmp_path / "store").rglob("*") if path.name.isdigit()]


def test_the_parts_of_the_settings_work_together(tmp_path: Path) -> None:
    settings = {"provider": "posix", "path": str(tmp_path / "tier"), "index_slot_count": 100}
    config = a_config(tmp_path, index_item_count=70, **settings)
    runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
    local = ListMessageStore(runtime)
    with TieredMessageStore(local, config) as store:  # real threads, real time
        for number in range(100):
            store.put_message(a_message(number))
        assert store.flush(seal=True)
        local.kept_from = local.cached_from = 100
        for number in range(0, 100, 7):
            assert numbers(store.query_message(TOPIC, f"key-{number}")) == [number]
        assert len(store.query_message(TOPIC, "shared", count_max=200).messages) == 100
        assert store.health().index_error is None
    with TieredReader.open(config) as reader:
        assert numbers(reader.query_message(TOPIC, "key-99")) == [99]
        assert len(reader.query_message(TOPIC, "shared", count_max=200).messages) == 100


def test_without_an_index_an_answer_by_key_is_not_called_complete(tmp_path: Path) -> None:
    broker = KeyBroker(tmp_path, index_enabled=False)
    broker.put(0, 20)
    assert broker.store.query_message("Nobody", "key-7").complete  # not a topic of the tier
    assert broker.store.flush()
    result = broker.store.query_message(TOPIC, "key-7")
    assert (numbers(result), result.complete) == ([7], False)
    broker.forget_locally(20)
    result = broker.store.query_message(TOPIC, "key-7")
    assert (numbers(result), result.complete) == ([], False)
    broker.store.shutdown()


def test_an_answer_from_a_tier_without_an_index_is_not_called_complete(tmp_path: Path) -> None:
    config = posix_config(tmp_path)
    WrittenTier(config=replace(config, index_enabled=False)).add("Orders", 0, 20)
    with TieredReader(config, is_brokers_host=False) as reader:
        found = reader.query_message("Orders", "order-3")
        assert (numbers(found), found.complete, found.lags) == ([], False, True)
        assert reader.indexed_offset("Orders", 0) == 0
    with TieredReader(config, is_brokers_host=True) as reader:  # here it scans the messages
        found = reader.query_message("Orders", "order-3")
        assert ([one.queue_offset for one in found.messages], found.complete) == ([3], True)


def test_a_row_that_takes_the_key_index_for_a_queue_does_it_no_harm(tmp_path: Path) -> None:
    broker = KeyBroker(tmp_path)
    broker.put(0, 60)
    assert broker.store.flush(seal=True)
    broker.forget_locally(60)
    index = set(broker.provider.list(index_queue_path("broker-a")))
    assert index
    broker.store.shutdown()
    broker.catalogue.add_topic(INDEX_TOPIC)
    broker.catalogue.put(QueueRecord(broker_name="broker-a", topic=INDEX_TOPIC, queue_id=0))
    broker.open()
    assert broker.store.flush()
    assert broker.store.delete_topics([INDEX_TOPIC]) <= 1
    assert INDEX_TOPIC not in {key.topic for key in broker.store.queues()}
    assert set(broker.provider.list(index_queue_path("broker-a"))) == index
    assert broker.found("key-7") == [7]
    broker.store.shutdown()


# Keys of a local store and its tier: truncated answers, messages without an offset


ORDERS = "Orders"
LIMIT = 20  # messages in an answer of the local store


class Keyed:
    """A tiered store over a local one with a low query limit; messages are a step apart."""

    def __init__(self, folder: Path, *, step_ms: int = 1000, **settings: Any) -> None:
        self.runtime = Runtime.inline()
        self.step_ms = step_ms
        local = LocalConfig(
            store_path=str(folder / "local"),
            commit_log_file_bytes=1 << 16,
            queue_file_bytes=2000,
            index_slot_count=101,
            index_item_count=4000,
            dispatch_interval_ms=0,
            flush_disk_type="SYNC_FLUSH",
            query_count_max=LIMIT,
        )
        sizes = {"index_slot_count": 64, "index_item_count": 3000}
        self.local = LocalMessageStore(local, self.runtime)
        self.store = TieredMessageStore(
            self.local,
            a_config(folder, **{**sizes, **settings}),
            runtime=self.runtime,
            provider=MemoryProvider(self.runtime),
        )
        self.store.load()
        self.store.start()

    def put(self, count: int, *, first: int = 0, sys_flag: int = 0) -> None:
        clock = self.runtime.clock
        assert isinstance(clock, ManualClock)
        for number in range(first, first + count):
            properties = {"KEYS": "k", "UNIQ_KEY": f"u{number}"}
            message = Message(
                topic=ORDERS,
                queue_id=0,
                body=str(number).encode(),
                properties=properties,
                sys_flag=sys_flag,
            )
            assert self.store.put_message(message).status is PutStatus.PUT_OK
            clock.advance(self.step_ms)


def bodies(result: QueryResult) -> list[int]:
    return [int(decode_message(one.record).body) for one in result.messages]


def test_a_local_store_that_gives_fewer_than_it_has_says_so(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path)
    keyed.put(LIMIT)
    assert keyed.local.query_message(ORDERS, "k", count_max=1000) == keyed.local.query_message(
        ORDERS, "k", count_max=LIMIT
    )
    assert keyed.local.query_message(ORDERS, "k", count_max=1000).complete
    keyed.put(1, first=LIMIT)
    cut = keyed.local.query_message(ORDERS, "k", count_max=1000)
    assert (len(cut.messages), cut.complete, cut.is_cut) == (LIMIT, False, True)
    asked = keyed.local.query_message(ORDERS, "k", count_max=LIMIT)
    assert (len(asked.messages), asked.complete, asked.is_cut) == (LIMIT, True, False)
    keyed.store.shutdown()


@pytest.mark.parametrize("is_uploaded", [True, False])
def test_a_limit_of_the_next_store_cuts_no_answer_of_both(
    tmp_path: Path, is_uploaded: bool
) -> None:
    keyed = Keyed(tmp_path)
    keyed.put(70)
    if is_uploaded:
        assert keyed.store.flush()
    result = keyed.store.query_message(ORDERS, "k", count_max=1000)
    assert bodies(result) == list(range(69, -1, -1))
    assert result.complete
    result = keyed.store.query_message(ORDERS, "k", count_max=33)
    assert bodies(result) == list(range(69, 36, -1))
    assert result.complete
    keyed.store.shutdown(drain=False)


@pytest.mark.parametrize("is_uploaded", [True, False])
def test_a_cut_through_one_millisecond_is_filled_from_the_tier_or_owned_up_to(
    tmp_path: Path, is_uploaded: bool
) -> None:
    keyed = Keyed(tmp_path, step_ms=0)
    keyed.put(50)
    if is_uploaded:
        assert keyed.store.flush()
    result = keyed.store.query_message(ORDERS, "k", count_max=1000)
    assert sorted(bodies(result)) == list(range(0 if is_uploaded else 50 - LIMIT, 50))
    assert not result.complete
    keyed.store.shutdown(drain=False)


@pytest.mark.parametrize(
    ("at", "damage"),
    [(0, b"\x7f"), (4, b"\x7f"), (28, b"\x7f"), (0, bytes(100))],
    ids=["size", "magic", "place", "zeros"],
)
@pytest.mark.parametrize("count", [1, 2])
def test_a_damaged_message_that_the_next_store_begins_with_is_owned_up_to(
    tmp_path: Path, count: int, at: int, damage: bytes
) -> None:
    keyed = Keyed(tmp_path, step_ms=3_600_000)
    begin = keyed.runtime.clock.now_ms()
    keyed.put(count)
    (log,) = (tmp_path / "local" / "commitlog").iterdir()
    with log.open("r+b") as file:
        file.seek(at)
        file.write(damage)
    window = {"begin": begin, "end": begin}
    assert not keyed.local.query_message(ORDERS, "u0", **window).complete
    assert not keyed.store.query_message(ORDERS, "u0", **window).complete
    assert keyed.store.query_message(ORDERS, "other", **window).complete
    before = {"end": begin - 24 * 3_600_000}
    assert keyed.store.query_message(ORDERS, "u0", **before).complete
    assert bodies(keyed.store.query_message(ORDERS, "k")) == [1][: count - 1]
    keyed.store.shutdown(drain=False)


def test_half_messages_hide_neither_each_other_nor_a_message(tmp_path: Path) -> None:
    """All of them have queue offset 0, like the first message."""
    keyed = Keyed(tmp_path)
    keyed.put(1)
    keyed.put(2, first=1, sys_flag=TRANSACTION_PREPARED)
    for _ in range(2):
        result = keyed.store.query_message(ORDERS, "k")
        assert bodies(result) == bodies(keyed.local.query_message(ORDERS, "k")) == [2, 1, 0]
        assert keyed.store.flush()  # now the message is also in the tier
    keyed.store.shutdown()


@pytest.mark.parametrize(
    "changed", [{"topic": "Other"}, {"queue_id": 1}, {"queue_offset": 8}], ids=str
)
def test_a_record_of_another_queue_at_the_place_of_a_hit_makes_the_answer_incomplete(
    changed: dict[str, Any],
) -> None:
    shelf = Shelf()
    record = a_record(0, properties={"UNIQ_KEY": "uk"}, **changed)
    shelf.put([record])
    result = ask(shelf, "uk")
    assert not result.messages
    assert not result.complete
