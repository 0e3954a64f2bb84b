"""A reader beside a store that keeps writing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.access.tiered_kit import Broker, numbers, time_of
from tieredstore.access.reader import TieredReader
from tieredstore.access.wiring import catalogue_to_read
from tieredstore.model.errors import MetadataError, SegmentCorruptError, SegmentNotFoundError
from tieredstore.model.messages import GetResult
from tieredstore.model.values import GetStatus, QueueKey, SegmentType
from tieredstore.testing.samples import TOPIC


def test_refresh_shows_what_a_running_writer_has_done(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.open()
    broker.fill(3)
    with TieredReader(broker.config, runtime=broker.runtime, provider=broker.provider) as reader:
        assert reader.max_offset(TOPIC, 0) == 3
        broker.put(4, first=3)
        broker.put(2, topic="Other")
        assert broker.store.flush()
        assert reader.max_offset(TOPIC, 0) == 3
        reader.refresh()
        assert numbers(reader.get_message(TOPIC, 0, 0)) == list(range(7))
        assert reader.queues() == [QueueKey("Other", 0), QueueKey(TOPIC, 0)]
        broker.store.delete_topics(["Other"])
        reader.refresh()
        assert reader.queues() == [QueueKey(TOPIC, 0)]
    assert broker.store.flush()
    broker.store.shutdown()


def test_a_gap_is_stepped_over(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.open()
    broker.fill(3)
    broker.put(5, first=3)
    broker.local.kept_from = 6
    assert broker.store.flush()
    with TieredReader(broker.config, runtime=broker.runtime, provider=broker.provider) as reader:
        assert [one.queue_offset for one in reader.messages(TOPIC, 0)] == [0, 1, 2, 6, 7]
        assert [one.queue_offset for one in reader.messages(TOPIC, 0, start=4)] == [6, 7]
    broker.store.shutdown()


def test_messages_that_expire_while_they_are_read_are_stepped_over(tmp_path: Path) -> None:
    broker = Broker(tmp_path, commit_log_segment_bytes=1000, read_ahead_count=2, reserve_hours=2)
    broker.open()
    broker.fill(12, kept_from=12)
    with TieredReader(broker.config, runtime=broker.runtime, provider=broker.provider) as reader:
        messages = iter(reader.messages(TOPIC, 0))
        found = [next(messages).queue_offset for _ in range(2)]
        broker.runtime.clock.sleep(3 * 3600)
        broker.put(3, first=12)
        assert broker.store.flush()
        broker.retention.step()
        assert (broker.store.min_offset(TOPIC, 0) or 0) > 2
        reader.refresh()
        found += [one.queue_offset for one in messages]
    assert found == sorted(set(found))
    broker.store.shutdown()


@pytest.fixture
def expiring(tmp_path: Path) -> Iterator[tuple[Broker, TieredReader]]:
    """A reader whose catalogue is older than an expiry and the deletion of a topic."""
    sizes = {"commit_log_segment_bytes": 1000, "consume_queue_segment_bytes": 80}
    broker = Broker(tmp_path, read_ahead_count=2, reserve_hours=2, **sizes)
    broker.open()
    broker.fill(12)
    broker.put(3, topic="Gone")
    assert broker.store.flush()
    with TieredReader(broker.config, runtime=broker.runtime, provider=broker.provider) as reader:
        broker.runtime.clock.sleep(3 * 3600)
        broker.put(3, first=12)
        assert broker.store.flush()
        yield broker, reader
    broker.faults.always = None
    broker.store.shutdown()


def expire(broker: Broker) -> int:
    broker.retention.step()
    minimum = broker.tier.fetcher.min_offset(TOPIC, 0)
    assert minimum is not None
    assert minimum > 6
    return minimum


QUESTIONS: list[Callable[[TieredReader], object]] = [
    lambda reader: [one.queue_offset for one in reader.messages(TOPIC, 0)],
    lambda reader: reader.get_message(TOPIC, 0, 3),
    lambda reader: reader.min_offset(TOPIC, 0),
    lambda reader: reader.earliest_time(TOPIC, 0),
    lambda reader: reader.store_time(TOPIC, 0, 3),
    lambda reader: reader.offset_by_time(TOPIC, 0, time_of(3)),
]


def test_what_expires_while_a_reader_is_opened_is_no_problem_of_its_queue(tmp_path: Path) -> None:
    sizes = {"commit_log_segment_bytes": 1000, "consume_queue_segment_bytes": 80}
    broker = Broker(tmp_path, reserve_hours=2, **sizes)
    broker.open()
    broker.fill(12)
    given: dict[str, Any] = {"runtime": broker.runtime, "provider": broker.provider}
    with closing(catalogue_to_read(broker.config, **given)) as metadata:
        broker.runtime.clock.sleep(3 * 3600)
        broker.put(3, first=12)
        assert broker.store.flush()
        minimum = expire(broker)
        with TieredReader(broker.config, metadata=metadata, **given) as reader:
            summary = reader.summary(TOPIC, 0)
    assert summary is not None
    assert (summary.problem, summary.min_offset) == (None, minimum)
    broker.store.shutdown()


@pytest.mark.parametrize("ask", QUESTIONS)
def test_what_has_expired_since_the_reader_looked_is_no_damage(
    expiring: tuple[Broker, TieredReader], ask: Callable[[TieredReader], object]
) -> None:
    broker, reader = expiring
    expire(broker)
    answer = ask(reader)
    with TieredReader(broker.config, runtime=broker.runtime, provider=broker.provider) as fresh:
        if isinstance(answer, list):
            assert answer == [n for n in ask(fresh) if n < 12]  # type: ignore[attr-defined]
        elif isinstance(answer, GetResult):
            assert answer == ask(fresh)
            assert answer.status is GetStatus.OFFSET_TOO_SMALL
        else:
            assert answer in (ask(fresh), 0, time_of(0))  # or what its older catalogue says


def test_a_topic_that_was_deleted_since_the_reader_looked_is_absent(
    expiring: tuple[Broker, TieredReader],
) -> None:
    broker, reader = expiring
    everything = reader.messages("Gone")
    next(everything)
    broker.store.delete_topics(["Gone"])
    assert [one.queue_offset for one in everything] == [1]  # from the run that it had read before
    assert reader.get_message("Gone", 0, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert reader.store_time("Gone", 0, 0) is None
    assert list(reader.messages("Gone")) == []


def test_damage_is_damage_after_another_look_too(expiring: tuple[Broker, TieredReader]) -> None:
    broker, reader = expiring
    segments = reader.segments(TOPIC, 0)
    logs = [each for each in segments if each.type is SegmentType.COMMIT_LOG]
    is_copy = reader.catalogue.copy
    lost = logs[1 if is_copy else 0]  # a copy would take the loss of the oldest one for expiry
    broker.provider.inner.open(lost.path, lost.type, lost.base_offset).delete()  # its row stays
    reader.refresh()
    for _ in range(2):
        if not is_copy:
            with pytest.raises((SegmentCorruptError, SegmentNotFoundError)):
                reader.get_message(TOPIC, 0, 0)
        with pytest.raises((SegmentCorruptError, SegmentNotFoundError)):
            list(reader.messages(TOPIC, 0))


def test_nothing_is_called_damage_by_a_catalogue_that_cannot_be_read_again(
    expiring: tuple[Broker, TieredReader],
) -> None:
    """What seems lost may only have expired, or its topic may be deleted."""
    broker, reader = expiring
    broker.store.delete_topics(["Gone"])
    broker.store.shutdown()
    for path in Path(broker.config.catalogue_path).parent.glob("tieredStoreMetadata.json*"):
        path.unlink()  # with the disk of the broker
    if reader.catalogue.copy:  # it does not lie on that disk
        assert reader.get_message("Gone", 0, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
        return
    with pytest.raises(MetadataError):
        reader.get_message("Gone", 0, 0)
