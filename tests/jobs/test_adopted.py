"""A broker runs on beside the queues that it adopted: they can be read, and nothing is added."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.jobs.faulty_tiers import BUCKETS, in_struck_bucket
from tests.jobs.growing_tier import tier_at
from tests.jobs.job_kit import copy_of_golden, kinds, moved, verified
from tests.jobs.written_tier import WrittenTier, posix_config
from tieredstore.access.queue_upload import forget_stops
from tieredstore.access.reader import TieredReader
from tieredstore.access.store import TieredMessageStore
from tieredstore.codec.names import queue_path
from tieredstore.driver.runtime import Runtime
from tieredstore.index.watermarks import QueueId, Watermarks
from tieredstore.jobs.migrate_copy import MigrationJournal, journal_path
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.messages import Message
from tieredstore.model.values import PutStatus, QueueKey

ORDERS, OTHER = QueueKey("Orders", 0), QueueKey("Other", 0)


def local_store(config: StoreConfig, runtime: Runtime) -> LocalMessageStore:
    small = LocalConfig(store_path=config.store_path, commit_log_file_bytes=1 << 16)
    return LocalMessageStore(small, runtime)


@contextmanager
def store_on(config: StoreConfig) -> Iterator[TieredMessageStore]:
    with (
        Runtime.threads() as runtime,
        TieredMessageStore(local_store(config, runtime), config, runtime=runtime) as store,
    ):
        yield store


def a_message(key: QueueKey, body: bytes) -> Message:
    return Message(topic=key.topic, queue_id=key.queue_id, body=body)


@pytest.fixture
def brokers(tmp_path: Path) -> tuple[StoreConfig, StoreConfig]:
    """A broker that has ended, with two messages in a queue, and one that goes on."""
    gone, target = tier_at(tmp_path / "gone", broker="broker-b"), tier_at(tmp_path / "tier")
    for config, key in ((gone, ORDERS), (target, OTHER)):
        with store_on(config) as store:
            for body in (b"first", b"second"):
                store.put_message(a_message(key, body))
            assert store.flush(seal=True)
    return gone, target


def test_adopted_queues_take_no_puts_and_no_flush_waits_for_them(
    brokers: tuple[StoreConfig, StoreConfig],
) -> None:
    gone, target = brokers
    moved(gone, target, adopt=True, cut_over=True)
    for life in range(2):
        with store_on(target) as store:
            refused = store.put_message(a_message(ORDERS, b"another first"))
            assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
            assert "history of broker broker-b" in refused.reason
            assert store.put_message(a_message(OTHER, b"more")).queue_offset == 2 + life
            page = store.get_message(*ORDERS, 0, count_max=8)
            assert [one.body for one in page.messages] == [b"first", b"second"]
            assert (store.min_offset(*ORDERS), store.max_offset(*ORDERS)) == (0, 2)
            assert store.flush(seal=True)
            health = {QueueKey(each.topic, each.queue_id): each for each in store.health().queues}
            assert health[OTHER].problem is None
            assert "history of broker broker-b" in (health[ORDERS].problem or "")
            assert not health[ORDERS].takes_puts


def test_adopted_messages_are_found_by_key_however_new_they_are(tmp_path: Path) -> None:
    """The broker's own store has messages, but none of the adopted queue."""
    gone, target = posix_config(tmp_path / "gone", broker_name="broker-b"), posix_config(tmp_path)
    runtime = Runtime.inline()
    for config, key in ((target, OTHER), (gone, ORDERS)):
        with TieredMessageStore(local_store(config, runtime), config, runtime=runtime) as store:
            store.put_message(replace(a_message(key, b"one"), properties={"KEYS": "it"}))
            assert store.flush(seal=True)
        runtime.clock.sleep(3_600)
    moved(gone, target, adopt=True, cut_over=True)
    with TieredMessageStore(local_store(target, runtime), target, runtime=runtime) as store:
        answer = store.query_message(ORDERS.topic, "it")
        assert ([one.body for one in answer.messages], answer.complete) == ([b"one"], True)


def test_nobody_resumes_an_adopted_queue(brokers: tuple[StoreConfig, StoreConfig]) -> None:
    gone, target = brokers
    moved(gone, target, adopt=True, cut_over=True)
    for _ in range(2):
        with store_on(target) as store:
            assert "history of broker broker-b" in (store.resume_queue(*ORDERS) or "")
            assert not store.put_message(a_message(ORDERS, b"another first")).stored
            assert store.flush(seal=True)


def test_a_queue_that_the_brokers_own_store_has_is_not_adopted(
    brokers: tuple[StoreConfig, StoreConfig],
) -> None:
    gone, target = brokers
    with Runtime.threads() as runtime:
        local = local_store(target, runtime)
        local.load()
        local.start()
        local.put_message(a_message(ORDERS, b"not uploaded yet"))
        local.shutdown()
    with pytest.raises(InvalidConfigError, match="Orders/0"):
        moved(gone, target, adopt=True, cut_over=True)
    with store_on(target) as store:
        page = store.get_message(*ORDERS, 0, count_max=8)
        assert [one.body for one in page.messages] == [b"not uploaded yet"]
        assert store.flush()


def test_the_tier_says_so_of_a_local_store_that_has_an_adopted_queue_all_the_same(
    brokers: tuple[StoreConfig, StoreConfig],
) -> None:
    gone, target = brokers
    moved(gone, target, adopt=True, cut_over=True)
    with Runtime.threads() as runtime:
        local = local_store(target, runtime)
        local.load()
        local.start()
        local.put_message(a_message(ORDERS, b"put behind the tier's back"))
        local.shutdown()
    with store_on(target) as store:
        assert not store.flush()
        assert not store.put_message(a_message(ORDERS, b"more")).stored


def test_a_tier_that_moves_knows_what_it_has_adopted(
    brokers: tuple[StoreConfig, StoreConfig], tmp_path: Path
) -> None:
    gone, target = brokers
    moved(gone, target, adopt=True, cut_over=True)
    other = tier_at(tmp_path / "other")
    moved(target, other, cut_over=True)
    again = moved(gone, other, adopt=True, cut_over=True)
    assert again.facts["cut_over"] == "done before"


def test_the_index_of_rocketmq_has_no_keys_of_what_its_tier_adopts(tmp_path: Path) -> None:
    source = posix_config(tmp_path / "old")
    WrittenTier(config=source).add("Orders", 0, 200, body_bytes=50_000, seal=True)
    target = copy_of_golden(tmp_path / "java")
    moved(source, target, adopt=True, cut_over=True)
    for has_begun in (False, True):
        with TieredReader(target) as reader:
            found = reader.query_message("Orders", "order-3")
            assert (found.messages, found.complete, found.lags) == ([], False, True)
            assert reader.query_message("GoldAa", "no such key").complete
        assert kinds(verified(target)) <= {"keys-not-uploaded", "adopted-history"}
        if not has_begun:
            with WrittenTier(config=target).open() as parts:
                parts.index.start()


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_damaged_file_of_rocketmq_s_index_does_not_say_how_many_slots_there_are(
    tmp_path: Path, is_cut: bool
) -> None:
    source = posix_config(tmp_path / "old")
    WrittenTier(config=source).add("Orders", 0, 20)
    target = copy_of_golden(tmp_path / "java")
    *_, newest = sorted(Path(target.path).rglob("rmq_sys_INDEX/0/INDEX/*"), key=base_of)
    data = newest.read_bytes()
    newest.write_bytes(data[:-80] if is_cut else bytes(len(data)))
    moved(source, target, adopt=True, cut_over=True)
    with WrittenTier(config=target).open() as parts:
        assert Watermarks(parts.metadata, target.broker_name).slot_count() == 64


def test_an_index_of_ours_without_notes_is_not_taken_for_whole_by_an_adoption(
    tmp_path: Path,
) -> None:
    """As after RocketMQ has written the catalogue. All keys are put again at the next start."""
    source, target = posix_config(tmp_path / "old"), posix_config(tmp_path / "new")
    WrittenTier(config=source).add("Orders", 0, 20)
    tier = WrittenTier(config=target)
    tier.add("Mine", 0, 20, seal=True)
    with tier.open() as parts:
        parts.metadata.apply(Watermarks(parts.metadata, target.broker_name).everything())
    moved(source, target, adopt=True, cut_over=True)
    with tier.open() as parts:
        marks = Watermarks(parts.metadata, target.broker_name)
        (topic,) = (each for each in parts.metadata.topics() if each.topic == "Mine")
        assert marks.of_queue("Mine", QueueId(topic.topic_id, 0)) == 0


def old_and_new(place: Path) -> tuple[WrittenTier, WrittenTier]:
    """A tier with the topics a and b, to be adopted, and one with c, which adopts them."""
    gone = WrittenTier(config=posix_config(place / "old"))
    mine = WrittenTier(config=posix_config(place / "new"))
    gone.add("a", 0, 5)
    gone.add("b", 0, 5)
    mine.add("c", 0, 5)
    return gone, mine


@pytest.mark.parametrize("topics", [(), ("a", "b")])
def test_what_an_adopting_tier_has_under_the_name_of_an_old_copy_stays(
    tmp_path: Path, topics: tuple[str, ...]
) -> None:
    """The source has deleted the topic since it was copied, and the target has made its own."""
    gone, mine = old_and_new(tmp_path)
    source, target = gone.config, mine.config
    moved(source, target, adopt=True, topics=topics)
    gone.delete("a")
    gone.add("a", 1, 5)  # so that the name is still one of the source
    for copy in [*Path(target.path).rglob("a/0/*/*")]:
        copy.unlink()
    mine.add("a", 0, 7)
    assert moved(source, target, adopt=True, topics=topics, cut_over=True).facts["cut_over"]
    with TieredReader(target) as reader:
        assert len(list(reader.messages("a", 0))) == 7
        assert len(list(reader.messages("b", 0))) == 5


def test_queues_that_have_grown_since_they_were_copied_are_adopted_into_a_bucket(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = posix_config(tmp_path / "old", broker_name="broker-b")
    target = in_struck_bucket(posix_config(tmp_path / "new"), tmp_path.name)
    gone = WrittenTier(config=source)
    gone.add("a", 0, 5)
    WrittenTier(config=target).add("c", 0, 5)
    moved(source, target, adopt=True)
    gone.add("a", 0, 3)
    assert moved(source, target, adopt=True, cut_over=True).facts["cut_over"] == "done"
    assert "it has lost bytes" not in caplog.text
    with TieredReader(target) as reader:
        assert len(list(reader.messages("a", 0))) == 8
    del BUCKETS[target.bucket]


@pytest.mark.parametrize("topics", [("a",), ()], ids=["again", "with others"])
@pytest.mark.parametrize("count", [0, 3])
def test_a_queue_that_a_tier_has_made_in_place_of_an_adopted_one_is_its_own(
    tmp_path: Path, topics: tuple[str, ...], count: int
) -> None:
    gone, mine = old_and_new(tmp_path)
    source, target = gone.config, mine.config
    moved(source, target, adopt=True, topics=["a"], cut_over=True)
    with mine.open() as parts:
        path = queue_path(target.broker_name, "a", 0)
        parts.files.delete_topics(["a"])
        forget_stops([path], parts.metadata)
        parts.files.create("a", 0).start_at(0)
    mine.add("a", 0, count, body_bytes=33)
    with pytest.raises(InvalidConfigError, match="both brokers have: a/0; nothing was adopted"):
        moved(source, target, adopt=True, topics=topics, cut_over=True)
    with TieredReader(target) as reader:
        assert len(list(reader.messages("a", 0))) == count


@pytest.mark.parametrize("runs", [1, 2])
def test_an_adoption_of_some_topics_keeps_what_is_noted_of_the_copies_of_others(
    tmp_path: Path, runs: int
) -> None:
    source, target = posix_config(tmp_path / "old"), posix_config(tmp_path / "new")
    gone = WrittenTier(config=source)
    gone.add("a", 0, 5)
    gone.add("b", 0, 5)
    WrittenTier(config=target).add("c", 0, 5)
    moved(source, target, adopt=True, topics=["b"])
    for _ in range(runs):  # the second one finds that it was done before
        moved(source, target, adopt=True, topics=["a"], cut_over=True)
    gone.delete("b")
    gone.add("b", 1, 5)  # so that the name is still one of the source
    moved(source, target, adopt=True, topics=["b"], cut_over=True)
    assert [*Path(target.path).rglob("b/1/*/*")]
    assert not [*Path(target.path).rglob("b/0/*/*")]
    assert not journal_path(target).exists()


def with_copies_of_a_deleted_topic(source: StoreConfig, target: StoreConfig) -> WrittenTier:
    """Adopt `a` beside `c`, and copy `b`, which the source deletes before it is adopted; returns
    the target."""
    gone, mine = WrittenTier(config=source), WrittenTier(config=target)
    gone.add("a", 0, 5)
    mine.add("c", 0, 5)
    moved(source, target, adopt=True, topics=["a"], cut_over=True)
    gone.add("b", 0, 5)
    moved(source, target, adopt=True)
    gone.delete("b")
    return mine


@pytest.mark.parametrize("is_bucket", [False, True])
def test_copies_of_a_topic_that_went_before_it_was_adopted_do_not_stay(
    tmp_path: Path, is_bucket: bool
) -> None:
    source, target = posix_config(tmp_path / "old"), posix_config(tmp_path / "new")
    if is_bucket:
        target = in_struck_bucket(target, tmp_path.name)
    mine = with_copies_of_a_deleted_topic(source, target)
    report = moved(source, target, adopt=True, cut_over=True)
    assert report.facts["cut_over"] == "done before"
    assert not journal_path(target).exists()
    with mine.open() as parts:
        assert not [*parts.provider.list(f"{target.broker_name}/b")]
    mine.add("b", 0, 7, body_bytes=33)
    with TieredReader(target) as reader:
        assert [len(list(reader.messages(topic, 0))) for topic in "abc"] == [5, 7, 5]
    BUCKETS.pop(target.bucket, None)


def test_a_run_that_finds_everything_adopted_does_not_fence_the_broker_that_runs_elsewhere(
    tmp_path: Path,
) -> None:
    source = posix_config(tmp_path / "old")
    target = in_struck_bucket(posix_config(tmp_path / "new"), tmp_path.name)
    elsewhere = replace(target, store_path=str(tmp_path / "elsewhere"))
    mine = with_copies_of_a_deleted_topic(source, target)
    with WrittenTier(config=elsewhere).open() as parts:
        report = moved(source, target, adopt=True, cut_over=True)
        assert report.facts["cut_over"] == "done before"
        parts.metadata.add_topic("d")
    assert not journal_path(target).exists()
    with mine.open() as parts:
        assert parts.metadata.topic("d") is not None
        assert not [*parts.provider.list(f"{target.broker_name}/b")]
    with TieredReader(target) as reader:
        assert [len(list(reader.messages(topic, 0))) for topic in "ac"] == [5, 5]
    del BUCKETS[target.bucket]


def test_a_run_that_has_nothing_to_do_leaves_the_journal_of_one_at_work(tmp_path: Path) -> None:
    source, target = posix_config(tmp_path / "old"), posix_config(tmp_path / "new")
    gone = WrittenTier(config=source)
    gone.add("a", 0, 5)
    gone.add("b", 0, 5)
    WrittenTier(config=target).add("c", 0, 5)
    moved(source, target, adopt=True, topics=["a"], cut_over=True)
    with MigrationJournal.open(source, target, planned_with={}):
        report = moved(source, target, adopt=True, topics=["a"], cut_over=True)
        assert report.facts["cut_over"] == "done before"
        assert journal_path(target).exists()


def base_of(file: Path) -> int:
    return int(file.name[8:])
