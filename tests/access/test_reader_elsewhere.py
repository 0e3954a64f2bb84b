"""A reader that has no files of the broker, only the bucket or folder and what is published."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.access.care_kit import HOUR_S, Elsewhere, offsets
from tests.access.tiered_kit import numbers
from tieredstore.access.reader import TieredReader, reconcile
from tieredstore.access.wiring import NoCatalogueError
from tieredstore.codec.names import segment_name
from tieredstore.driver.provider import ListedSegment, generation_name
from tieredstore.driver.runtime import Runtime
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.errors import (
    BackendUnavailableError,
    InvalidConfigError,
    MetadataError,
    SegmentCorruptError,
    SegmentNotFoundError,
)
from tieredstore.model.values import GetStatus, QueueKey
from tieredstore.providers.posix import PosixFileSegment, PosixProvider
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Elsewhere]:
    """A folder with a published catalogue; see test_reader_of_a_log for buckets."""
    made = Elsewhere(tmp_path, "posix")
    yield made
    made.broker.store.shutdown()


@pytest.fixture(params=["posix", "objects"])
def anywhere(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Elsewhere]:
    made = Elsewhere(tmp_path, request.param)
    yield made
    made.broker.store.shutdown()


def test_all_that_was_committed_is_read_and_later_commits_to_known_segments(
    there: Elsewhere,
) -> None:
    there.broker.fill(3)
    there.publish()
    with there.reader() as reader:
        assert reader.catalogue.source == "published"
        assert reader.catalogue.generation == 1
        assert reader.queues() == [QueueKey(TOPIC, 0)]
        assert offsets(reader) == [0, 1, 2]
        assert numbers(reader.get_message(TOPIC, 0, 1)) == [1, 2]
        there.broker.put(1, first=3)  # not published
        assert there.broker.store.flush()
        reader.refresh()
        assert offsets(reader) == [0, 1, 2, 3]  # message 3 is in a log segment that is new
        summary = reader.summary(TOPIC, 0)
        assert summary is not None
        assert summary.problem is None
        there.broker.put(22, first=4)
        assert there.broker.store.flush()
        there.publish()
        reader.refresh()
        assert offsets(reader) == list(range(26))
        assert reader.catalogue.generation == 2
    with there.reader() as reader:
        assert offsets(reader) == list(range(26))


def test_a_topic_that_came_later_is_seen_when_it_is_published(there: Elsewhere) -> None:
    there.broker.fill(3)
    there.publish()
    there.broker.put(2, topic="Other")
    assert there.broker.store.flush()
    with there.reader() as reader:
        assert reader.queues() == [QueueKey(TOPIC, 0)]
        there.publish()
        reader.refresh()
        assert reader.queues() == [QueueKey("Other", 0), QueueKey(TOPIC, 0)]
        assert offsets(reader, "Other") == [0, 1]


def test_what_has_expired_since_is_no_damage(there: Elsewhere) -> None:
    there.broker.fill(10)
    there.publish()
    there.silence()
    with there.reader() as before:
        there.expire(10)
        first = there.broker.tier.files.files()[0].min_offset
        assert 0 < first < 10
        for reader in (before, there.reader()):
            with reader:
                assert (reader.min_offset(TOPIC, 0) or 0) in (0, first)
                found = offsets(reader)
                assert found == list(range(first, found[-1] + 1))
                assert found[-1] >= 9
                assert reader.min_offset(TOPIC, 0) == first
                assert numbers(reader.get_message(TOPIC, 0, first))[: len(found)] == found
                assert reader.earliest_time(TOPIC, 0) is not None


def test_bytes_that_expire_go_when_readers_elsewhere_were_told(there: Elsewhere) -> None:
    there.broker.fill(10)
    there.publish()
    parts = there.broker.tier
    sizes: list[int] = []

    def segments() -> int:
        return len(list(parts.provider.list("broker-a")))

    def publish() -> bool | None:
        sizes.append(segments())
        return is_answered and parts.publishing.step()

    parts.files._announcement._publish = publish
    is_answered = False
    with there.reader() as reader:
        there.expire(10)
        first = parts.files.files()[0].min_offset
        assert first > 0
        assert segments() == sizes[-1]
        assert offsets(reader)[:1] == [0]  # the reader knows them still, and the bytes are there
        is_answered = True
        parts.publish()  # as the chore soon does
        assert segments() < sizes[-1]
        reader.refresh()
        assert offsets(reader)[:1] == [first]


def test_a_catalogue_that_comes_while_it_is_compared_is_compared_too(
    there: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.broker.fill(10)
    there.publish()
    there.broker.put(1, first=10)
    assert there.broker.store.flush()
    there.publish()
    (late,) = tmp_path.rglob(generation_name(2))
    on_its_way = late.rename(tmp_path / "on its way")
    compared: list[int | None] = []

    def comparing(*arguments: Any) -> int:
        """The late generation dates from before the expiry; its writer was slow to publish it."""
        compared.append(reader.catalogue.generation)
        if on_its_way.exists():
            on_its_way.rename(late)
        return reconcile(*arguments)

    there.silence()
    with there.reader() as reader:
        there.expire(11)
        first = there.broker.tier.files.files()[0].min_offset
        monkeypatch.setattr("tieredstore.access.reader.reconcile", comparing)
        assert reader.get_message(TOPIC, 0, 0).status is GetStatus.OFFSET_TOO_SMALL
        assert compared == [1, 2]
        assert reader.min_offset(TOPIC, 0) == first


def test_where_all_that_it_names_has_expired_what_came_since_is_found(anywhere: Elsewhere) -> None:
    anywhere.broker.fill(12)
    anywhere.publish()
    with anywhere.reader() as before:
        anywhere.expire(12)
        assert anywhere.broker.tier.files.files()[0].min_offset == 12
        for reader in (before, anywhere.reader()):
            with reader:
                reader.refresh()
                assert offsets(reader) == [12, 13, 14]
                assert numbers(reader.get_message(TOPIC, 0, 12)) == [12, 13, 14]


def test_what_was_deleted_since_is_no_damage(there: Elsewhere) -> None:
    there.broker.fill(12)
    there.broker.put(3, topic="Gone")
    assert there.broker.store.flush()
    there.publish()
    with there.reader() as before:
        there.broker.store.delete_topics(["Gone"])
        for reader in (before, there.reader()):
            with reader:
                assert offsets(reader, "Gone") == []
                assert not reader.get_message("Gone", 0, 0).messages
                summary = reader.summary("Gone", 0)
                assert summary is None or summary.problem is None
                assert offsets(reader) == list(range(12))


def test_a_topic_is_no_damage_at_any_step_of_its_deletion(
    there: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.broker.put(12, topic="Gone")
    assert there.broker.store.flush()
    there.publish()
    readers = [there.reader() for _ in there.broker.provider.list("broker-a/Gone")]
    steps = len(readers)
    for reader in readers:
        reader.load()
    delete = PosixFileSegment.delete

    def watched(segment: PosixFileSegment) -> None:
        delete(segment)
        with readers.pop() as before, there.reader() as after:
            assert numbers(before.get_message("Gone", 0, 5)) in ([], list(range(5, 12)))
            assert set(offsets(before, "Gone")) <= set(range(12))
            assert offsets(after, "Gone") == []

    monkeypatch.setattr(PosixFileSegment, "delete", watched)
    there.broker.store.delete_topics(["Gone"])
    assert steps > 5
    assert not readers


def test_what_came_after_the_copy_and_was_deleted_since_is_no_damage(there: Elsewhere) -> None:
    there.broker.fill(6)
    there.publish()
    there.expire(6)
    there.broker.put(12, first=9)
    assert there.broker.store.flush()
    with there.reader() as reader:
        assert offsets(reader)[-1] == 20
        there.broker.store.delete_topics([TOPIC])
        assert not reader.get_message(TOPIC, 0, 20).messages
        assert offsets(reader) == []


@pytest.mark.parametrize("has_expired", [True, False])
def test_a_queue_that_began_anew_is_shown_anew(there: Elsewhere, has_expired: bool) -> None:
    there.broker.fill(3)
    if has_expired:
        there.expire(3)
    there.publish()
    with there.reader() as reader:
        first = 3 if has_expired else 0
        assert offsets(reader) == list(range(first, first + 3))
        there.broker.store.delete_topics([TOPIC])
        there.broker.put(2)
        assert there.broker.store.flush()
        there.publish()
        assert offsets(reader) == [0, 1]
        assert numbers(reader.get_message(TOPIC, 0, 0)) == [0, 1]


@pytest.mark.parametrize("is_read_before", [True, False])
def test_a_queue_that_began_anew_is_no_damage_before_it_is_published(
    there: Elsewhere, is_read_before: bool
) -> None:
    there.broker.fill(12)
    there.publish()
    with there.reader() as reader:
        if is_read_before:
            assert offsets(reader) == list(range(12))
        there.broker.store.delete_topics([TOPIC])
        there.broker.put(2)
        assert there.broker.store.flush()  # the publishing chore is not due yet
        assert offsets(reader) in ([], [0, 1])
        assert numbers(reader.get_message(TOPIC, 0, 0)) in ([], [0, 1])
        assert not reader.get_message(TOPIC, 0, 7).messages
    with there.reader() as reader:
        assert offsets(reader) in ([], [0, 1])


def test_a_hole_is_damage_here_too(anywhere: Elsewhere) -> None:
    anywhere.broker.fill(12)
    anywhere.publish()
    logs = anywhere.broker.tier.files.files()[0].log.segments
    assert len(logs) > 3
    logs[2].segment.delete()
    with anywhere.reader() as reader, pytest.raises((SegmentCorruptError, SegmentNotFoundError)):
        offsets(reader)


def test_with_nothing_published_the_error_says_what_to_do(there: Elsewhere) -> None:
    there.broker.fill(3)
    with pytest.raises(NoCatalogueError, match=r"no such file.*rebuild"):
        there.reader().load()
    with pytest.raises(NoCatalogueError, match="rebuild"):
        there.reader(catalogue="published").load()
    with pytest.raises(NoCatalogueError, match="no such file"):
        there.reader(catalogue="file").load()


@pytest.mark.parametrize("is_published", [False, True])
def test_a_catalogue_whose_disk_goes_while_it_is_opened_is_not_an_empty_one(
    there: Elsewhere, monkeypatch: pytest.MonkeyPatch, is_published: bool
) -> None:
    there.broker.fill(3)
    if is_published:
        there.publish()
    config, opened = there.broker.config, JsonMetadataStore.open

    def as_it_goes(*arguments: Any, **named: Any) -> JsonMetadataStore:
        shutil.rmtree(Path(config.catalogue_path).parent)
        return opened(*arguments, **named)

    monkeypatch.setattr(JsonMetadataStore, "open", as_it_goes)
    reader = TieredReader(config, provider=there.opened(Runtime.inline()))
    if is_published:
        with reader:
            assert offsets(reader) == [0, 1, 2]
    else:
        with pytest.raises(NoCatalogueError, match="no such file"):
            reader.load()


@pytest.mark.parametrize("choice", ["published", "rebuild"])
def test_a_folder_that_goes_with_its_disk_has_not_expired(
    there: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    there.broker.fill(12)
    there.publish()
    place, away, listed = tmp_path / "tier", tmp_path / "away", PosixProvider.list

    def as_it_goes(*arguments: Any) -> Iterator[ListedSegment]:
        if place.exists():  # the catalogue was there when it was read again
            place.rename(away)
        return listed(*arguments)

    with there.reader(catalogue=choice) as reader, monkeypatch.context() as patch:
        assert offsets(reader) == list(range(12))
        patch.setattr(PosixProvider, "list", as_it_goes)
        last = next(place.rglob("CONSUME_QUEUE")).joinpath(segment_name(160))
        units = last.read_bytes()
        last.unlink()
        for ask in (lambda: reader.get_message(TOPIC, 0, 9), lambda: offsets(reader)):
            with pytest.raises(MetadataError, match="was there|is there any more"):
                ask()
        assert not place.exists()
        away.rename(place)
        last.write_bytes(units)
        patch.undo()
        reader.refresh()
        assert offsets(reader) == list(range(12))


@pytest.mark.parametrize("is_restored", [True, False])
def test_a_place_that_is_gone_or_restored_is_not_taken_for_the_one_that_was_read(
    there: Elsewhere, tmp_path: Path, is_restored: bool
) -> None:
    there.broker.fill(12)
    there.publish()
    place = tmp_path / "tier"
    shutil.copytree(place, tmp_path / "older")
    there.broker.put(2, topic="Later")
    there.broker.put(9, first=12)
    assert there.broker.store.flush()
    there.publish()
    with there.reader() as reader:
        assert reader.catalogue.generation == 2
        place.rename(tmp_path / "away")
        if is_restored:
            shutil.copytree(tmp_path / "older", place)
        for ask in (
            lambda: offsets(reader),
            lambda: offsets(reader, "Later"),
            lambda: reader.get_message(TOPIC, 0, 20),
            reader.refresh,
        ):
            with pytest.raises(MetadataError, match="generation 2 was there"):
                ask()
    if is_restored:
        with there.reader() as reader:
            assert offsets(reader) == list(range(12))


def test_a_topic_on_a_disk_that_is_not_there_cannot_be_reached(
    there: Elsewhere, tmp_path: Path
) -> None:
    there.broker.fill(12)
    there.broker.put(2, topic="Other")
    assert there.broker.store.flush()
    there.publish()
    (topic,) = (tmp_path / "tier").rglob(TOPIC)
    disk = tmp_path / "disk"
    topic.symlink_to(topic.rename(disk))
    with there.reader() as before, there.reader(catalogue="rebuild") as rebuilt:
        away = disk.rename(tmp_path / "away")
        for reader in (before, rebuilt, there.reader()):
            with reader:
                with pytest.raises(BackendUnavailableError, match="is a link"):
                    reader.get_message(TOPIC, 0, 3)
                with pytest.raises(BackendUnavailableError, match="is a link"):
                    offsets(reader)
                assert offsets(reader, "Other") == [0, 1]
        with pytest.raises(BackendUnavailableError, match="is a link"):
            there.reader(catalogue="rebuild").load()
        away.rename(disk)
        with there.reader() as reader:
            assert offsets(reader) == list(range(12))


@pytest.mark.parametrize("queue_count", [1, 9])
@pytest.mark.parametrize("choice", ["published", "rebuild"])
def test_beside_a_topic_that_cannot_be_reached_others_may_expire(
    there: Elsewhere, tmp_path: Path, queue_count: int, choice: str
) -> None:
    there.broker.put(2, topic="Away")  # it is listed before the others
    for number in range(queue_count):
        there.broker.put(12, queue_id=number)
    assert there.broker.store.flush()
    there.publish()
    there.silence()
    (topic,) = (tmp_path / "tier").rglob("Away")
    with there.reader(catalogue=choice) as reader:
        there.broker.runtime.clock.sleep(3 * HOUR_S)
        for number in range(queue_count):
            there.broker.put(3, queue_id=number, first=12)
        assert there.broker.store.flush()
        there.broker.retention.step()
        topic.rename(tmp_path / "disk")
        topic.symlink_to(tmp_path / "gone")
        assert reader.get_message(TOPIC, 0, 0).next_offset == 12
        assert offsets(reader) == [12, 13, 14]
        with pytest.raises(BackendUnavailableError, match="is a link"):
            offsets(reader, "Away")
    if choice == "published":
        with there.reader() as reader:
            assert offsets(reader) == [12, 13, 14]


def test_where_nothing_is_published_the_error_names_the_tiers_that_are_there(
    anywhere: Elsewhere,
) -> None:
    anywhere.broker.fill(3)
    anywhere.publish()
    broker = anywhere.config().broker_name
    named = {"cluster_name": "cluster-a"}
    with pytest.raises(NoCatalogueError, match=f"no broker 'nobody' there; it has {broker}"):
        anywhere.reader(**named, broker_name="nobody").load()
    with pytest.raises(NoCatalogueError, match=r"no cluster 'other' .*; there is cluster-a"):
        anywhere.reader(cluster_name="other", broker_name="nobody").load()
    with pytest.raises(NoCatalogueError, match=f"not one segment.*it has {broker}"):
        anywhere.reader(**named, broker_name="nobody", catalogue="rebuild").load()


def test_a_catalogue_can_be_found_out_in_memory(there: Elsewhere) -> None:
    there.broker.fill(10)
    with there.reader(catalogue="rebuild") as reader:
        assert reader.catalogue.source == "rebuild"
        assert offsets(reader) == list(range(10))
        there.expire(10)
        found = offsets(reader)
        assert found[0] > 0
        assert found[-1] >= 9
    assert not Path(there.config().store_path).exists()
    with pytest.raises(NoCatalogueError, match="not one segment"):
        there.reader(catalogue="rebuild", broker_name="nobody").load()


@pytest.mark.parametrize("step", [0, 1, 4])
def test_what_expires_while_it_is_found_out_hides_nothing_that_is_left(
    there: Elsewhere, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    there.broker.fill(12)
    asked, steps = PosixFileSegment.size, iter(range(100))

    def as_it_expires(segment: PosixFileSegment) -> int:
        if next(steps) == step:
            there.expire(12)
        return asked(segment)

    with there.reader(catalogue="rebuild") as reader, monkeypatch.context() as patch:
        reader.close()
        patch.setattr(PosixFileSegment, "size", as_it_expires)
        reader.load()
        assert offsets(reader) == [12, 13, 14]
        assert reader.max_offset(TOPIC, 0) == 15


def test_the_file_comes_first_and_what_is_published_on_demand(there: Elsewhere) -> None:
    there.broker.fill(3)
    there.publish()
    there.broker.put(30, first=3)
    assert there.broker.store.flush()
    runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
    for choice, source in (("auto", "file"), ("file", "file"), ("published", "published")):
        config = dataclasses.replace(there.broker.config, catalogue=choice)
        with TieredReader(config, runtime=runtime, provider=there.opened(runtime)) as reader:
            assert reader.catalogue.source == source
            assert offsets(reader)[:4] == [0, 1, 2, 3]
    with pytest.raises(InvalidConfigError, match="auto, file, published, rebuild"):
        dataclasses.replace(there.broker.config, catalogue="newest")


def test_a_damaged_one_is_told_and_a_rebuild_still_works(there: Elsewhere) -> None:
    there.broker.fill(3)
    there.publish()
    generations = there.opened(Runtime.inline()).generations("broker-a")
    assert generations is not None
    generations.create(2, b'{"crc":"00000000","format":1}\n')
    with pytest.raises(MetadataError, match="generation 2: it is damaged"):
        there.reader().load()
    with there.reader(catalogue="rebuild") as reader:
        assert offsets(reader) == [0, 1, 2]
