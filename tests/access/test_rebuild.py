"""A lost catalogue is rebuilt from the bytes of the tier, and from what was published."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.access.care_kit import HOUR_S, Elsewhere, GoldenTier, offsets
from tests.access.tiered_kit import a_config
from tests.codec.golden_files import BROKER, expected
from tests.flat.store_kit import append
from tieredstore.access import queue_upload
from tieredstore.access.audit import audit
from tieredstore.access.queue_upload import TRUST_LOCAL
from tieredstore.access.reader import TieredReader
from tieredstore.access.rebuild import (
    NewerCatalogueError,
    RebuildReport,
    rebuild,
    rebuild_beside_published,
)
from tieredstore.access.store import TieredMessageStore
from tieredstore.access.tables import copied
from tieredstore.access.upkeep import PublishChore
from tieredstore.access.wiring import published_catalogue, publisher_of
from tieredstore.codec.broker_tables import CONSUMER_OFFSETS
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.metadata import (
    Change,
    DeleteQueue,
    DeleteSegment,
    DeleteTopic,
    MetadataStore,
    Put,
)
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.index.watermarks import QueueId, Watermarks
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.errors import InvalidConfigError, SegmentCorruptError
from tieredstore.model.values import GetStatus, QueueKey, SegmentRecord, SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_message, a_record

LOG, QUEUE, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX
Place = tuple[str, SegmentType, int]


@pytest.fixture
def tier(tmp_path: Path) -> GoldenTier:
    return GoldenTier(tmp_path)


def sizes(tier: GoldenTier) -> dict[Place, int]:
    return {(r.path, r.type, r.base_offset): r.size for r in tier.metadata.segments()}


def true_times(row: SegmentRecord) -> tuple[int, int]:
    """The first and last store time of a segment, as Java read them from the records."""
    messages = [
        each
        for each in expected("tier-posix.expect-messages.json")
        if f"{BROKER}/{each['topic']}/{each['queueId']}" == row.path
        and row.base_offset
        <= (each["tieredCommitLogOffset"] if row.type is LOG else each["queueOffset"] * UNIT_BYTES)
        < row.end_offset
    ]
    messages.sort(key=lambda each: each["queueOffset"])
    begin, end = messages[0]["storeTimestamp"], messages[-1]["storeTimestamp"]
    return begin, max(begin, end)


def test_a_lost_catalogue_is_found_out(tier: GoldenTier) -> None:
    before = sizes(tier)
    topics = {record.topic: record.topic_id for record in tier.metadata.topics()}
    queues = {record.key for record in tier.metadata.queues()}
    index = tier.metadata.segments(f"{BROKER}/rmq_sys_INDEX/0", INDEX)
    tier.lose_the_catalogue()
    report = tier.rebuild()
    assert sizes(tier) == before
    assert {record.topic: record.topic_id for record in tier.metadata.topics()} == topics
    assert {record.key for record in tier.metadata.queues()} == queues
    assert (dict(report.topics), report.new_ids, report.problems) == (topics, (), ())
    assert (report.queue_count, report.segment_count, report.size) == (9, 57, 346_788)
    assert report.is_index_whole
    for row in index:
        found = tier.row("rmq_sys_INDEX/0", INDEX, row.base_offset)
        assert replace(found, create_timestamp=row.create_timestamp) == row
    for row in tier.metadata.segments():
        if row.type is not INDEX:
            assert (row.begin_timestamp, row.end_timestamp) == true_times(row)
    assert tier.audit().findings == ()


@pytest.mark.parametrize("lost", [DeleteQueue("GoldAa", 0), DeleteTopic("GoldAa")])
def test_a_queue_or_topic_that_the_catalogue_lost_is_added(tier: GoldenTier, lost: Change) -> None:
    before = sizes(tier)
    ids = {record.topic: record.topic_id for record in tier.metadata.topics()}
    tier.metadata.apply([lost])
    assert tier.audit().findings
    tier.rebuild()
    assert sizes(tier) == before
    assert {record.topic: record.topic_id for record in tier.metadata.topics()} == ids
    assert tier.audit().findings == ()


def test_what_was_rebuilt_is_on_the_disk(tier: GoldenTier) -> None:
    before = sizes(tier)
    tier.lose_the_catalogue()
    tier.rebuild()
    tier.metadata.close()
    tier.metadata = JsonMetadataStore.open(tier.catalogue)
    assert sizes(tier) == before
    assert tier.metadata.add_topic("new").topic_id == 4


def test_keys_that_no_uploaded_file_has_are_put_again(tier: GoldenTier) -> None:
    tier.lose_the_catalogue()
    report = tier.rebuild()
    marks = Watermarks(tier.metadata, BROKER)
    assert marks.check_sizes(slot_count=64, item_capacity=300)
    ends = {each.key: marks.committed(*each.key) for each in tier.metadata.queues()}
    held = {key: marks.held(QueueId(report.topics[key.topic], key.queue_id)) for key in ends}
    assert all(0 < held[key] <= ends[key] for key in ends)
    assert sum(held.values()) < sum(ends.values())  # the last file was never uploaded


def test_without_index_files_topics_get_new_numbers(tier: GoldenTier) -> None:
    for each in tier.provider.list(f"{BROKER}/rmq_sys_INDEX"):
        tier.file("rmq_sys_INDEX/0", INDEX, each.base).unlink()
    tier.lose_the_catalogue()
    report = tier.rebuild()
    assert sorted(report.topics.values()) == [0, 1, 2, 3]
    assert set(report.new_ids) == set(report.topics)
    assert not report.is_index_whole
    marks = Watermarks(tier.metadata, BROKER)
    assert not any(marks.held(QueueId(number, 0)) for number in range(4))


def test_a_number_that_a_deleted_topic_had_is_not_given_again(tier: GoldenTier) -> None:
    for each in list(tier.provider.list(f"{BROKER}/%RETRY%gold_group")):
        tier.file(each.path.removeprefix(f"{BROKER}/"), each.type, each.base).unlink()
    tier.lose_the_catalogue()
    assert "%RETRY%gold_group" not in tier.rebuild().topics
    assert [record.topic for record in tier.metadata.topics() if record.topic_id == 3] == []
    assert tier.metadata.add_topic("new").topic_id == 4


def test_other_sizes_of_the_index_are_refused(tier: GoldenTier) -> None:
    tier.lose_the_catalogue()
    tier.config = replace(tier.config, index_slot_count=65)
    with pytest.raises(InvalidConfigError, match="64"):
        tier.rebuild()
    assert not sizes(tier)


def test_an_index_file_that_is_cut_is_a_problem_and_no_other_setting(tier: GoldenTier) -> None:
    """How many slots it has is known only from its length."""
    file = tier.file("rmq_sys_INDEX/0", INDEX, 8884)
    file.write_bytes(file.read_bytes()[:-80])
    before = sizes(tier)
    tier.lose_the_catalogue()
    report = tier.rebuild()
    assert len(report.problems) == 1
    assert "an index file cannot be read" in report.problems[0]
    assert not report.is_index_whole
    del before[f"{BROKER}/rmq_sys_INDEX/0", INDEX, 8884]
    assert sizes(tier) == before


def test_a_catalogue_that_knows_as_much_is_refused(tier: GoldenTier) -> None:
    before = sizes(tier)
    with pytest.raises(NewerCatalogueError, match="everything that"):
        tier.rebuild()
    assert sizes(tier) == before


def test_a_catalogue_that_knows_more_is_refused(tier: GoldenTier) -> None:
    tier.file("GoldAa/0", LOG, 41521).unlink()
    tier.metadata.delete_segment(f"{BROKER}/GoldBB/0", LOG, 31625)
    before = sizes(tier)
    with pytest.raises(NewerCatalogueError, match="only to 41521"):
        tier.rebuild()
    assert sizes(tier) == before


def test_an_older_catalogue_is_brought_up_to_date_and_keeps_what_it_knows(
    tier: GoldenTier,
) -> None:
    before = sizes(tier)
    topic = tier.metadata.topic("GoldAa")
    assert topic is not None
    tier.metadata.put(replace(topic, reserve_hours=7, topic_id=9))
    tier.metadata.delete_topic("GoldBB")
    tier.metadata.delete_queue("GoldBB", 1)
    tier.metadata.delete_segment(f"{BROKER}/GoldAa/0", LOG, 41521)
    row = tier.row("GoldAa/0", QUEUE, 1600)
    tier.metadata.put(replace(row, size=20))
    tier.metadata.put(replace(row, path=f"{BROKER}/GoldAa/1", base_offset=0, size=400))
    report = tier.rebuild()
    assert sizes(tier) == before
    assert (report.topics["GoldAa"], report.topics["GoldBB"]) == (9, 0)
    again = tier.metadata.topic("GoldAa")
    assert again is not None
    assert again.reserve_hours == 7
    assert tier.audit().findings == ()


@pytest.mark.parametrize(
    ("queue", "kind", "base"),
    [("GoldAa/0", LOG, 13167), ("GoldAa/0", QUEUE, 400), ("rmq_sys_INDEX/0", INDEX, 8884)],
)
def test_a_segment_between_others_that_the_catalogue_lost_is_added(
    tier: GoldenTier, queue: str, kind: SegmentType, base: int
) -> None:
    before = sizes(tier)
    tier.metadata.delete_segment(f"{BROKER}/{queue}", kind, base)
    assert "a rebuild would add it" in tier.audit().left[0].detail
    tier.rebuild()
    assert sizes(tier) == before
    assert tier.audit().findings == ()


def test_two_segments_in_a_row_that_the_catalogue_lost_are_added(tier: GoldenTier) -> None:
    before = sizes(tier)
    for base in (400, 800):
        tier.metadata.delete_segment(f"{BROKER}/GoldAa/0", QUEUE, base)
    details = [found.detail for found in tier.audit().left]
    assert ["a rebuild would add it" in detail for detail in details] == [True, True]
    tier.rebuild()
    assert sizes(tier) == before
    assert tier.audit().findings == ()


def test_what_is_not_sound_is_told(tier: GoldenTier) -> None:
    file = tier.file("GoldAa/0", LOG, 41521)
    file.write_bytes(file.read_bytes()[:-10])
    tier.file("rmq_sys_INDEX/0", INDEX, 0).write_bytes(bytes(100))
    tier.lose_the_catalogue()
    report = tier.rebuild()
    assert len(report.problems) == 2
    assert "GoldAa/0: 1 queue units name bytes" in report.problems[0]
    assert "an index file cannot be read" in report.problems[1]
    assert not report.is_index_whole
    last = tier.row("GoldAa/0", QUEUE, 1600)
    assert last.size == 40


# A rebuilt catalogue says the same as the lost one, as far as bytes can tell


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
    """A broker's tier that is written to, expires, and loses its catalogue."""

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
        """Begin and end of each queue with bytes, according to a reader of the catalogue."""
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
        """Rebuild from the bytes alone."""
        self.metadata.close()
        self.metadata = JsonMetadataStore.open(self.folder / "rebuilt.json")
        return rebuild(self.metadata, self.provider, self.config, self.runtime)

    def told(self, *, rebuilt: bool) -> list[SegmentRecord]:
        """The rows, without what bytes cannot tell: rows of empty segments, creation times, and the
        times of first messages that have expired.
        """
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


def test_an_older_row_of_a_segment_before_all_others_is_forgotten(tmp_path: Path) -> None:
    """It was without bytes when the copy of the catalogue was made, and has expired since."""
    tier = Written(tmp_path)
    tier.put("TopicA", 0, 9)
    assert tier.store.flush(seal=True)
    tier.wait(3)
    tier.put("TopicA", 0, 9)
    tier.expire()
    tier.end()
    rows = [row for row in tier.metadata.segments() if row.path.endswith("/TopicA/0")]
    older = [replace(row, base_offset=0, size=0) for row in rows if row.type is QUEUE][:1]
    assert older
    tier.metadata.apply([*(DeleteSegment(*row.key) for row in rows), *map(Put, older)])
    rebuild(tier.metadata, tier.provider, tier.config, tier.runtime)
    again = [row for row in tier.metadata.segments() if row.path.endswith("/TopicA/0")]
    assert [row.key for row in again] == [row.key for row in rows]


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
            tier.local.kept_from += 2  # messages that are lost before their upload


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


@pytest.mark.parametrize("left", [0, 1])
def test_index_files_that_expired_are_missed(tmp_path: Path, left: int) -> None:
    """A message may outlive the index file with its keys. If only a catalogue from before the
    file's expiry is left, the index must not count as complete, and no other file may get its
    place.
    """
    tier = Written(tmp_path)
    tier.put("TopicA", 0, 12)
    tier.end()
    rows = tier.metadata.segments(type=INDEX)
    gone = rows[: len(rows) - left]
    for row in gone:
        with tier.provider.open(row.path, INDEX, row.base_offset) as segment:
            segment.delete()
    known, tier.metadata = tier.metadata, JsonMetadataStore.open(tmp_path / "new.json")
    report = rebuild(tier.metadata, tier.provider, tier.config, tier.runtime, known=known)
    assert report.problems == ()
    marks = Watermarks(tier.metadata, tier.config.broker_name)
    assert marks.end() == gone[-1].end_offset
    assert marks.dropped_before() == (gone[-1].end_timestamp or 0) + 1
    with tier.reader() as reader:
        assert [len(messages) for messages in tier.messages().values()] == [12]
        covered = reader.indexed_times()
        assert (covered and covered.begin) == (marks.dropped_before() if left else None)


def damaged_units(tier: Written, damage: Callable[[bytearray], None]) -> None:
    """Damage the newest queue segment of TopicA/0 in the backend."""
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


# A rebuild with a published catalogue: it starts from it, or refuses to undo it


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Elsewhere]:
    made = Elsewhere(tmp_path, "posix")
    yield made
    made.broker.store.shutdown()


class Rebuilding:
    """Holds a catalogue's file, and rebuilds it over the same backend."""

    def __init__(self, there: Elsewhere, path: Path) -> None:
        self.runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        self.provider = there.opened(self.runtime)
        self.config = dataclasses.replace(there.broker.config, metadata_path=str(path))
        self.metadata = JsonMetadataStore.open(path)
        publisher = publisher_of(self.config, self.provider, self.metadata)
        assert publisher is not None
        self.publisher = publisher

    def rebuild(self) -> RebuildReport:
        return rebuild_beside_published(
            self.metadata,
            self.provider,
            self.config,
            self.runtime,
            publisher=self.publisher,
            published=lambda: published_catalogue(self.config, self.provider),
        )

    def close(self) -> None:
        self.metadata.close()


def test_an_empty_catalogue_starts_from_what_is_published(there: Elsewhere, tmp_path: Path) -> None:
    broker = there.broker
    broker.fill(12)
    broker.put(3, topic="Gone")
    broker.store.consumer_offsets.commit("group-a", TOPIC, 0, 9)
    assert broker.store.flush()
    metadata = broker.tier.metadata
    topic = metadata.topic(TOPIC)
    assert topic is not None
    metadata.put(dataclasses.replace(topic, reserve_hours=7, topic_id=41))
    there.publish()
    there.silence()
    broker.store.delete_topics(["Gone"])
    broker.put(9, first=12)
    assert broker.store.flush()
    broker.store.shutdown()
    lost = Rebuilding(there, tmp_path / "new.json")
    report = lost.rebuild()
    assert report.problems == ()
    found = lost.metadata.topic(TOPIC)
    assert found is not None
    assert (found.topic_id, found.reserve_hours) == (41, 7)
    groups = copied(CONSUMER_OFFSETS, lost.metadata)
    assert groups is not None
    assert groups.rows == {f"{TOPIC}@group-a": {0: 9}}
    findings = audit(lost.metadata, lost.provider, lost.config, lost.runtime).findings
    assert [each.kind for each in findings if each.severity.value == "damage"] == []
    lost.publisher.check()
    assert lost.publisher.publish() == 2
    lost.close()
    with TieredReader(lost.config, runtime=lost.runtime, provider=lost.provider) as reader:
        assert offsets(reader) == list(range(21))
    with there.reader() as reader:
        assert reader.catalogue.generation == 2
        assert offsets(reader) == list(range(21))


def test_a_decision_that_was_published_is_not_taken_over(there: Elsewhere, tmp_path: Path) -> None:
    """The decision was about a disk that is now lost, and the broker may have carried it out."""
    broker = there.broker
    broker.fill(3)
    path = f"{broker.config.broker_name}/{TOPIC}/0"
    queue_upload.trust(path, TRUST_LOCAL, broker.tier.metadata)
    there.publish()
    broker.store.shutdown()
    lost = Rebuilding(there, tmp_path / "new.json")
    lost.rebuild()
    assert lost.metadata.queues()
    assert queue_upload.trusted_side(path, lost.metadata) is None
    lost.close()


def test_a_topic_made_anew_is_not_taken_for_the_one_that_was_published_as_doomed(
    there: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = there.broker
    broker.put(3, topic="Gone")
    assert broker.store.flush()
    there.publish()
    publish, answers = PublishChore.step, iter([True])

    def only_once(chore: PublishChore) -> bool | None:
        return next(answers, False) and publish(chore)

    with monkeypatch.context() as patched:
        patched.setattr(PublishChore, "step", only_once)
        broker.tier.files._announcement._publish = broker.tier.publishing.step
        broker.store.delete_topics(["Gone"])
        broker.put(2, topic="Gone")
        assert not broker.store.flush()
        assert list(broker.provider.list("broker-a/Gone")) == []
    broker.tier.files._announcement._publish = broker.tier.publishing.step
    assert broker.store.flush()
    there.silence()  # the disk is lost before the next publication
    broker.store.shutdown()
    lost = Rebuilding(there, tmp_path / "new.json")
    assert lost.rebuild().problems == ()
    lost.close()
    with TieredReader(lost.config, runtime=lost.runtime, provider=lost.provider) as reader:
        assert offsets(reader, "Gone") == [0, 1]


def test_a_queue_whose_messages_had_all_expired_goes_on_behind_them(
    there: Elsewhere, tmp_path: Path
) -> None:
    """Otherwise new segments would get names under which the published catalogue lists old ones."""
    broker = there.broker
    broker.fill(12)
    there.publish()
    there.silence()  # the disk is lost before the next publication
    broker.runtime.clock.sleep(3 * HOUR_S)
    broker.retention.step()
    assert list(broker.provider.list("broker-a")) == []
    broker.store.shutdown()
    lost = Rebuilding(there, tmp_path / "new.json")
    assert lost.rebuild().problems == ()
    files = FlatFileStore(
        lost.config, provider=lost.provider, metadata=lost.metadata, runtime=lost.runtime
    )
    files.load()
    file = files.create(TOPIC, 0)
    assert (file.append_offset, file.problem) == (12, None)
    with there.reader() as before:
        append(file, [a_record(number) for number in (12, 13)])
        assert not before.get_message(TOPIC, 0, 2).messages
        assert offsets(before) in ([], [12, 13])
    with there.reader() as after:
        assert after.get_message(TOPIC, 0, 2).status is GetStatus.OFFSET_TOO_SMALL
        assert offsets(after) == [12, 13]
    lost.close()


def test_the_index_takes_a_queue_that_was_made_again_since_it_was_published(
    there: Elsewhere, tmp_path: Path
) -> None:
    """The published mark is about the earlier queue, and the bytes do not say when one began."""
    broker, key = there.broker, QueueKey(TOPIC, 0)
    broker.fill(12)
    topic = broker.tier.metadata.topic(TOPIC)
    assert topic is not None
    number = QueueId(topic.topic_id, 0)
    now_ms = broker.runtime.clock.now_ms()
    broker.tier.metadata.apply(
        [
            Watermarks.sizes(slot_count=16, item_capacity=40),
            *Watermarks.moved({number: 12}, {number: now_ms}),
        ]
    )
    there.publish()
    there.silence()  # the disk is lost before the next publication
    files = broker.tier.files
    files.destroy(key)
    file = files.create(*key)
    file.start_at(5)
    append(file, [a_record(number) for number in range(5, 15)])
    broker.store.shutdown()
    lost = Rebuilding(there, tmp_path / "new.json")
    assert lost.rebuild().problems == ()
    assert Watermarks(lost.metadata, "broker-a").of_queue(TOPIC, number) == 0
    lost.close()


def test_an_older_file_is_not_written_over_what_is_published(
    there: Elsewhere, tmp_path: Path
) -> None:
    old = Rebuilding(there, tmp_path / "old.json")
    old.metadata.add_topic("anything")
    there.broker.fill(12)
    there.publish()
    before = old.metadata.snapshot_bytes()
    with pytest.raises(NewerCatalogueError, match="move the file away"):
        old.rebuild()
    assert old.metadata.snapshot_bytes() == before
    old.close()


def test_with_a_damaged_one_the_bytes_alone_are_asked(there: Elsewhere, tmp_path: Path) -> None:
    there.broker.fill(12)
    there.publish()
    generations = there.opened(Runtime.inline()).generations("broker-a")
    assert generations is not None
    generations.create(2, b"nothing")
    lost = Rebuilding(there, tmp_path / "new.json")
    report = lost.rebuild()
    assert len(report.problems) == 1
    assert "generation 2: it is damaged" in report.problems[0]
    assert report.queue_count == 1
    assert lost.publisher.publish() == 3
    lost.close()
    with there.reader() as reader:
        assert reader.catalogue.generation == 3


def test_with_nothing_published_it_is_the_rebuild_of_old(there: Elsewhere, tmp_path: Path) -> None:
    there.broker.fill(12)
    lost = Rebuilding(there, tmp_path / "new.json")
    report = lost.rebuild()
    assert (report.queue_count, report.problems) == (1, ())
    assert lost.publisher.publish() == 1
    lost.close()


def test_bytes_that_are_missing_since_are_a_problem(there: Elsewhere, tmp_path: Path) -> None:
    there.broker.fill(12)
    there.publish()
    there.broker.tier.files.files()[0].log.segments[-1].segment.delete()
    lost = Rebuilding(there, tmp_path / "new.json")
    report = lost.rebuild()
    assert any("the backend only to" in each for each in report.problems)
    lost.close()
