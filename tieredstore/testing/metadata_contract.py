"""Every promise of `MetadataStore` as a test suite.

class TestMyStore(MetadataStoreContract):
    def open_store(self) -> MetadataStore:
        return MyStore.open(self.path)  # which a fixture of yours sets for each test
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

import pytest

from tieredstore.driver.metadata import (
    Change,
    DeleteSegment,
    DeleteTopic,
    MetadataStore,
    Put,
    PutNote,
)
from tieredstore.driver.runtime import ThreadPool
from tieredstore.model.errors import MetadataError, StoreClosedError
from tieredstore.model.values import Json, QueueRecord, SegmentRecord, SegmentType, TopicRecord

PATH: Final = "broker-a/Orders/0"
TOPIC: Final = TopicRecord(topic="Orders", topic_id=3, reserve_hours=72, update_timestamp=17)
QUEUE: Final = QueueRecord(broker_name="broker-a", topic="Orders", queue_id=0, update_timestamp=9)
T = TypeVar("T")

THREADS: Final = 8
ROUNDS: Final = 25


def log_segment(base_offset: int, size: int = 10, path: str = PATH) -> SegmentRecord:
    return SegmentRecord(path=path, type=SegmentType.COMMIT_LOG, base_offset=base_offset, size=size)


SEGMENT: Final = replace(
    log_segment(0, 4096), begin_timestamp=2, end_timestamp=3, status=1, seal_timestamp=5
)


class MetadataStoreContract(ABC):
    """One test per promise of `MetadataStore`. Each test begins with an empty store."""

    @abstractmethod
    def open_store(self) -> MetadataStore:
        """Open the store of this test for writing: the same one at each call."""

    def open_reader(self) -> MetadataStore:
        """Open the same store read only, beside its writer."""
        pytest.skip("this store cannot be opened read only")

    def test_an_empty_store_has_nothing(self) -> None:
        with self.open_store() as store:
            assert store.topic("Orders") is None
            assert store.queue("Orders", 0) is None
            assert store.segment(PATH, SegmentType.COMMIT_LOG, 0) is None
            assert store.note("kind", "key") is None
            assert not store.notes("kind")
            assert not [*store.topics(), *store.queues(), *store.segments()]
            assert not [*store.queues("Orders"), *store.segments(PATH)]

    def test_rows_are_read_back_as_they_were_put_and_outlive_the_process(self) -> None:
        bare = log_segment(4096)  # unset times stay unset
        with self.open_store() as store:
            store.put(TOPIC, QUEUE, SEGMENT, bare)
            assert store.topic("Orders") == TOPIC
            assert store.queue("Orders", 0) == QUEUE
            assert store.segment(PATH, SegmentType.COMMIT_LOG, 0) == SEGMENT
        with self.open_store() as store:
            assert list(store.topics()) == [TOPIC]
            assert list(store.queues()) == [QUEUE]
            assert list(store.segments()) == [SEGMENT, bare]

    def test_names_may_hold_any_character(self) -> None:
        name = '主题 "a\\b"\n\t{0:1,"x":2}\x7f\u2028😀'
        with self.open_store() as store:
            store.put(TopicRecord(topic=name, topic_id=0), log_segment(0, path=name))
            store.put_note(name, name, name)
        with self.open_store() as store:
            assert [row.topic for row in store.topics()] == [name]
            assert [row.path for row in store.segments(name)] == [name]
            assert store.note(name, name) == name

    def test_a_row_replaces_the_one_with_its_key(self) -> None:
        with self.open_store() as store:
            store.put(log_segment(0, 10), QUEUE, TOPIC)
            grown, moved = log_segment(0, 20), replace(QUEUE, broker_name="b", max_offset=7)
            renewed = replace(TOPIC, reserve_hours=None)
            store.put(grown, moved, renewed)
            assert list(store.segments()) == [grown]
            assert list(store.queues()) == [moved]
            assert list(store.topics()) == [renewed]

    def test_what_is_deleted_is_gone_for_good_and_may_be_deleted_again(self) -> None:
        with self.open_store() as store:
            store.put(TOPIC, QUEUE, SEGMENT)
            store.put_note("kind", "key", 1)
            for _ in range(2):
                store.delete_topic("Orders")
                store.delete_queue("Orders", 0)
                store.delete_segment(PATH, SegmentType.COMMIT_LOG, 0)
                store.delete_note("kind", "key")
        with self.open_store() as store:
            assert not [*store.topics(), *store.queues(), *store.segments()]
            assert not store.notes("kind")

    def test_what_was_staged_is_seen_at_once_and_durable_with_a_change_of_nothing(self) -> None:
        with self.open_store() as store:
            store.stage([Put(TOPIC), PutNote("kind", "key", 1)])
            assert list(store.topics()) == [TOPIC]
            assert store.note("kind", "key") == 1
            store.apply([])
            assert not store.has_staged
        with self.open_store() as store:
            assert list(store.topics()) == [TOPIC]
            assert store.note("kind", "key") == 1

    def test_deleting_one_row_deletes_nothing_else(self) -> None:
        queue_log = SegmentRecord(path=PATH, type=SegmentType.CONSUME_QUEUE, base_offset=0)
        with self.open_store() as store:
            store.put(TOPIC, QUEUE, SEGMENT, queue_log)
            store.put_note(PATH, "0", 1)
            store.delete_topic("Orders")
            assert list(store.queues()) == [QUEUE]
            store.delete_queue("Orders", 0)
            assert list(store.segments()) == [SEGMENT, queue_log]
            store.delete_segment(PATH, SegmentType.COMMIT_LOG, 0)
            assert list(store.segments()) == [queue_log]
            assert store.note(PATH, "0") == 1

    def test_queues_come_by_ascending_id_within_a_topic(self) -> None:
        with self.open_store() as store:
            for topic, queue_id in (("B", 10), ("A", 2), ("B", 9), ("A", 11), ("B", 1)):
                store.put(QueueRecord(broker_name="b", topic=topic, queue_id=queue_id))
            assert [row.queue_id for row in store.queues("B")] == [1, 9, 10]
            assert [row.queue_id for row in store.queues() if row.topic == "A"] == [2, 11]
            assert len(store.queues()) == 5

    def test_segments_come_by_ascending_offset_within_a_path_and_type(self) -> None:
        with self.open_store() as store:
            for kind in (SegmentType.INDEX, SegmentType.COMMIT_LOG):
                for base in (30, 0, 100, 9):
                    store.put(SegmentRecord(path=PATH, type=kind, base_offset=base))
            store.put(log_segment(5, path="elsewhere"))
            of_log = store.segments(PATH, SegmentType.COMMIT_LOG)
            assert [row.base_offset for row in of_log] == [0, 9, 30, 100]
            of_index = [row for row in store.segments(PATH) if row.type is SegmentType.INDEX]
            assert [row.base_offset for row in of_index] == [0, 9, 30, 100]
            assert len(store.segments(type=SegmentType.COMMIT_LOG)) == 5
            assert len(store.segments()) == 9

    def test_notes_hold_json_and_are_kept_apart_by_kind(self) -> None:
        values: list[Json] = [None, True, -1, 1.5, "", "ü", [], {}, {"a": [1, {"b": None}]}]
        with self.open_store() as store:
            for number, value in enumerate(values):
                store.put_note("kind", str(number), value)
            store.put_note("other", "0", "x")
        with self.open_store() as store:
            expected = {str(number): value for number, value in enumerate(values)}
            assert dict(store.notes("kind")) == expected
            assert dict(store.notes("other")) == {"0": "x"}

    def test_a_note_does_not_change_with_the_value_it_was_given(self) -> None:
        value: dict[str, Json] = {"list": [1]}
        with self.open_store() as store:
            store.put_note("kind", "key", value)
            value["list"] = 2
            read = store.note("kind", "key")
            assert read == {"list": [1]}
            assert isinstance(read, dict)
            read["list"] = 3
            assert store.note("kind", "key") == {"list": [1]}

    def test_what_was_read_does_not_change_with_later_writes(self) -> None:
        with self.open_store() as store:
            store.put(TOPIC, QUEUE, SEGMENT)
            store.put_note("kind", "key", 1)
            rows = [store.topics(), store.queues(), store.segments(), store.segments(PATH)]
            notes = store.notes("kind")
            before = [list(found) for found in rows]
            store.delete_topic("Orders")
            store.delete_segment(PATH, SegmentType.COMMIT_LOG, 0)
            store.put(log_segment(7), QueueRecord(broker_name="b", topic="T", queue_id=1))
            store.delete_note("kind", "key")
            assert [list(found) for found in rows] == before
            assert dict(notes) == {"key": 1}

    def test_a_batch_acts_in_order(self) -> None:
        with self.open_store() as store:
            gone = DeleteSegment(PATH, SegmentType.COMMIT_LOG, 0)
            store.apply([Put(SEGMENT), gone, Put(TOPIC), DeleteTopic("Orders"), Put(TOPIC)])
            assert store.segment(PATH, SegmentType.COMMIT_LOG, 0) is None
            assert store.topic("Orders") == TOPIC

    def test_a_batch_that_fails_leaves_nothing(self) -> None:
        def broken() -> Iterator[Change]:
            yield Put(TOPIC)
            raise LookupError

        with self.open_store() as store:
            with pytest.raises(LookupError):
                store.apply(broken())
            with pytest.raises(MetadataError):
                store.apply([Put(TOPIC), Put(log_segment(0, -1))])
            with pytest.raises(MetadataError):
                store.apply([Put(TOPIC), PutNote("kind", "key", float("nan"))])
            assert not [*store.topics(), *store.segments()]
            store.put(QUEUE)  # the refused ones did no harm
        with self.open_store() as store:
            assert not store.topics()
            assert list(store.queues()) == [QUEUE]

    def test_new_topics_are_numbered_from_zero_and_known_ones_stay_as_they_are(self) -> None:
        with self.open_store() as store:
            assert [store.add_topic(name).topic_id for name in ("A", "B", "C")] == [0, 1, 2]
            assert store.topic("B") == store.add_topic("B", reserve_hours=5)
            assert store.add_topic("B").reserve_hours is None
            assert store.add_topic("D", reserve_hours=5).reserve_hours == 5

    def test_a_topic_id_is_never_given_twice(self) -> None:
        with self.open_store() as store:
            store.add_topic("A")
            store.put(TopicRecord(topic="B", topic_id=7))
            store.delete_topic("B")
            assert store.add_topic("C").topic_id == 8
            store.delete_topic("C")
        with self.open_store() as store:
            assert store.add_topic("C").topic_id == 9

    def test_closing_twice_is_fine_and_nothing_else_works_afterwards(self) -> None:
        store = self.open_store()
        store.close()
        store.close()
        reads = (store.topics, store.queues, store.segments, partial(store.notes, "kind"))
        writes = (partial(store.put, TOPIC), partial(store.add_topic, "A"), store.refresh)
        for call in (*reads, partial(store.topic, "A"), partial(store.apply, []), *writes):
            with pytest.raises(StoreClosedError):
                call()

    def test_threads_lose_nothing(self) -> None:
        def put(store: MetadataStore, thread: int) -> None:
            for number in range(ROUNDS):
                store.put(log_segment(number, path=f"path-{thread}"))

        with self.open_store() as store:
            in_threads(lambda thread: put(store, thread))
            assert len(store.segments()) == THREADS * ROUNDS
        with self.open_store() as store:
            assert len(store.segments()) == THREADS * ROUNDS

    def test_threads_that_add_one_topic_get_one_row(self) -> None:
        def add(store: MetadataStore) -> list[TopicRecord]:
            return [store.add_topic(f"T{number}") for number in range(ROUNDS)]

        with self.open_store() as store:
            first, *others = in_threads(lambda _: add(store))
            assert [row.topic_id for row in first] == list(range(ROUNDS))
            assert all(rows == first for rows in others)

    def test_a_reading_thread_sees_whole_batches(self) -> None:
        def work(store: MetadataStore, thread: int) -> None:
            for number in range(1, 2 * ROUNDS):
                if thread == 0:
                    store.put(log_segment(0, number), log_segment(1, number))
                else:
                    assert len({row.size for row in store.segments(PATH)}) <= 1

        with self.open_store() as store:
            in_threads(lambda thread: work(store, thread))

    def test_a_reader_changes_nothing(self) -> None:
        with self.open_store() as store:
            store.put(TOPIC)
        with self.open_reader() as reader:
            assert list(reader.topics()) == [TOPIC]
            new, known = partial(reader.add_topic, "A"), partial(reader.add_topic, "Orders")
            for call in (partial(reader.apply, []), partial(reader.put, QUEUE), new, known):
                with pytest.raises(MetadataError):
                    call()

    def test_a_reader_sees_a_writer_after_refresh(self) -> None:
        with self.open_store() as store, self.open_reader() as reader:
            store.refresh()  # a writer has nothing to catch up with
            store.put(TOPIC)
            store.put_note("kind", "key", 1)
            assert not reader.topics()
            reader.refresh()
            assert list(reader.topics()) == [TOPIC]
            assert reader.note("kind", "key") == 1
            store.close()
            reader.refresh()
            assert list(reader.topics()) == [TOPIC]


def in_threads(call: Callable[[int], T]) -> list[T]:
    """Call `call` with the numbers 0 to 7 at the same time; returns the results in that order."""
    pool = ThreadPool("contract", threads=THREADS, pending_max=THREADS)
    try:
        futures = [pool.submit(call, number) for number in range(THREADS)]
        return [future.result() for future in futures]
    finally:
        pool.close()
