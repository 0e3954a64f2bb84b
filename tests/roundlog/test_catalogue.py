"""A log's catalogue keeps all promises of a catalogue, and reads only what is new in the bucket."""

from __future__ import annotations

import pytest

from tests.providers.object_kit import Bucket, Process
from tieredstore.driver.metadata import DeleteQueue, DeleteTopic, MetadataStore, Put
from tieredstore.driver.provider import SegmentWrite, WritePair
from tieredstore.model.errors import BackendUnavailableError, FencedError, MetadataError
from tieredstore.model.values import QueueRecord, SegmentRecord, SegmentType, TopicRecord
from tieredstore.testing.faults import Fault
from tieredstore.testing.metadata_contract import MetadataStoreContract

BROKER = "broker-a"
PATH = "broker-a/TopicTest/0"
LOG = SegmentType.COMMIT_LOG
TOPIC = TopicRecord(topic="TopicTest", topic_id=3)


def row(size: int) -> SegmentRecord:
    return SegmentRecord(path=PATH, type=LOG, base_offset=0, size=size)


def opened(process: Process, *, read_only: bool = False) -> MetadataStore:
    found = process.provider.catalogue(BROKER, read_only=read_only)
    assert found is not None
    return found


class TestLogCatalogue(MetadataStoreContract):
    @pytest.fixture(autouse=True)
    def bucket(self) -> None:
        self._bucket = Bucket()

    def open_store(self) -> MetadataStore:
        return opened(self._bucket.process())

    def open_reader(self) -> MetadataStore:
        return opened(self._bucket.process(), read_only=True)


def test_what_changes_nothing_costs_no_request() -> None:
    process = Bucket().process()
    store = opened(process)
    store.put(TOPIC, row(5))
    store.put_note("kind", "key", {"a": [1]})
    process.forget_requests()
    store.put(TOPIC, row(5))
    store.put_note("kind", "key", {"a": [1]})
    store.delete_topic("Other")
    store.delete_segment(PATH, LOG, 9)
    store.apply([])
    assert process.requests == {}
    store.apply([Put(TOPIC), Put(row(6)), DeleteTopic("Other")])
    assert process.requests == {"put": 1, "head": 1}


def test_what_is_put_back_in_one_batch_counts() -> None:
    bucket = Bucket()
    store = opened(bucket.process())
    store.put(TOPIC)
    other = TopicRecord(topic="TopicTest", topic_id=3, reserve_hours=9)
    store.apply([Put(other), Put(TOPIC)])
    store.apply([DeleteTopic("TopicTest"), Put(TOPIC), DeleteTopic("TopicTest")])
    assert list(opened(bucket.process(), read_only=True).topics()) == []


def test_what_is_staged_goes_with_the_next_bytes() -> None:
    bucket = Bucket()
    process = bucket.process()
    store = opened(process)
    process.forget_requests()
    assert store.add_topic("TopicTest").topic_id == 0
    store.stage([Put(row(0))])
    assert (len(store.topics()), len(store.segments())) == (1, 1)
    assert bool(store.has_staged)
    assert process.requests == {}
    assert list(opened(bucket.process(), read_only=True).topics()) == []
    pair = WritePair(SegmentWrite(process.open(PATH, LOG, 0), 0, b"12345"), None, (row(5),))
    (future,) = process.provider.write_many([pair])
    future.result()
    assert not store.has_staged
    assert process.requests == {"put": 1, "head": 1}
    store.put(row(5))  # as its caller does
    assert process.requests == {"put": 1, "head": 1}
    reader = opened(bucket.process(), read_only=True)
    assert list(reader.segments()) == list(store.segments()) == [row(5)]
    assert [each.topic for each in reader.topics()] == ["TopicTest"]


def test_what_is_staged_goes_with_the_next_change_or_at_the_end() -> None:
    bucket = Bucket()
    store = opened(bucket.process())
    store.add_topic("A")
    store.apply([])
    store.add_topic("B")
    store.close()
    reader = opened(bucket.process(), read_only=True)
    assert [each.topic for each in reader.topics()] == ["A", "B"]


def test_a_change_that_may_have_landed_does_not_outlive_a_later_one() -> None:
    """A change that undoes it seems to change nothing, but counts all the same."""
    bucket = Bucket()
    process = bucket.process()
    store = opened(process)
    store.put(row(1))
    process.client.faults.strike(Fault.AFTER)
    with pytest.raises(BackendUnavailableError):
        store.put(row(2))
    assert list(store.segments()) == [row(1)]
    store.put(row(1))
    assert list(store.segments()) == [row(1)]
    assert list(opened(bucket.process(), read_only=True).segments()) == [row(1)]


def test_a_deletion_that_may_have_landed_does_not_outlive_what_is_staged_later() -> None:
    """The rows seem to be there still, so staging them seems to change nothing."""
    bucket = Bucket()
    process = bucket.process()
    store = opened(process)
    queue = QueueRecord(broker_name=BROKER, topic="TopicTest", queue_id=0)
    store.put(TOPIC, queue)
    process.client.faults.strike(Fault.AFTER)
    with pytest.raises(BackendUnavailableError):
        store.apply([DeleteQueue("TopicTest", 0), DeleteTopic("TopicTest")])
    assert store.add_topic("TopicTest") == TOPIC
    store.stage([Put(queue)])
    store.apply([])
    for each in (store, opened(bucket.process(), read_only=True)):
        assert (list(each.topics()), list(each.queues())) == ([TOPIC], [queue])


def test_a_fenced_writer_changes_nothing_and_closes() -> None:
    bucket = Bucket()
    old = opened(bucket.process())
    new = opened(bucket.process())
    with pytest.raises(FencedError):
        old.put(TOPIC)
    new.put(row(7))
    old.add_topic("Late")
    old.close()
    reader = opened(bucket.process(), read_only=True)
    assert (list(reader.topics()), list(reader.segments())) == ([], [row(7)])


def test_a_copy_is_amended_until_it_is_newer() -> None:
    bucket = Bucket()
    store = opened(bucket.process())
    store.put(row(5))
    reader = opened(bucket.process(), read_only=True)
    assert reader.facts.copy
    assert not store.facts.copy
    reader.amend(gone=[row(5)], come=[])
    assert list(reader.segments()) == []
    reader.refresh()
    assert list(reader.segments()) == []  # nothing is newer
    store.put(TOPIC)
    reader.refresh()
    assert list(reader.segments()) == [row(5)]
    with pytest.raises(MetadataError):
        store.amend(gone=[row(5)], come=[])


def test_a_bucket_without_a_log_has_no_catalogue_for_a_reader() -> None:
    assert Bucket().process().provider.catalogue(BROKER, read_only=True) is None


def test_a_readers_catalogue_stays_as_it_is_while_its_log_goes_on() -> None:
    bucket = Bucket(listing_ms=0)
    store = opened(bucket.process())
    store.put(row(5))
    process = bucket.process()
    reader = opened(process, read_only=True)
    store.put(row(6))
    assert list(process.provider.list()) == []  # follows the log
    assert list(reader.segments()) == [row(5)]
    reader.refresh()
    assert list(reader.segments()) == [row(6)]
