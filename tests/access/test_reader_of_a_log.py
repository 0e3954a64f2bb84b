"""A reader that has only the bucket, and no files of the broker: it follows the log."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.access.care_kit import Elsewhere, offsets
from tests.access.tiered_kit import numbers
from tieredstore.access.reader import TieredReader
from tieredstore.access.wiring import NoCatalogueError
from tieredstore.codec.queue_unit import encode_unit
from tieredstore.driver.runtime import Runtime
from tieredstore.flat import file_store
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.errors import (
    BackendUnavailableError,
    MetadataError,
    SegmentCorruptError,
)
from tieredstore.model.values import QueueKey
from tieredstore.roundlog import upkeep
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC

STEPS_MAX = 1_000


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Elsewhere]:
    """A bucket in which every entry is merged and deleted as soon as possible."""
    monkeypatch.setattr(upkeep, "ROUNDS_MERGED", 2)
    monkeypatch.setattr(upkeep, "STATE_EVERY", 1)
    monkeypatch.setattr(upkeep, "STATES_KEPT", 1)
    made = Elsewhere(tmp_path, "objects")
    yield made
    made.broker.store.shutdown()


def let_go(there: Elsewhere) -> None:
    """Delete the objects that hold nothing any more, after the grace time for readers."""
    before = set(there.objects.held)
    for _ in range(3):
        there.broker.runtime.clock.sleep(upkeep.GRACE_MS / 1000 + 1)
        for _ in range(STEPS_MAX):
            if not there.broker.tier.provider.tend(there.broker.config.broker_name):
                break
        else:
            raise AssertionError("it never ends")
    assert before - set(there.objects.held)


def test_a_reader_follows_the_log(there: Elsewhere) -> None:
    there.broker.fill(3)
    with there.reader() as reader:
        assert reader.catalogue.source == "log"
        assert reader.queues() == [QueueKey(TOPIC, 0)]
        assert offsets(reader) == [0, 1, 2]
        assert numbers(reader.get_message(TOPIC, 0, 1)) == [1, 2]
        there.broker.put(23, first=3)
        there.broker.put(2, topic="Other")
        assert there.broker.store.flush()
        reader.refresh()
        assert reader.queues() == [QueueKey("Other", 0), QueueKey(TOPIC, 0)]
        assert offsets(reader) == list(range(26))
        assert offsets(reader, "Other") == [0, 1]


def test_a_queue_that_a_refresh_could_not_reach_has_no_older_end(
    there: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: FlatMessageFile, *_: object, **__: object) -> None:
        raise BackendUnavailableError(file.path, "read", "reply lost")

    there.broker.fill(3)
    with there.reader() as reader:
        there.broker.put(20, first=3)
        assert there.broker.store.flush()
        with monkeypatch.context() as patched:
            patched.setattr(file_store, "recover", fail)
            reader.refresh()
            for ask in (reader.max_offset, reader.summary):
                with pytest.raises(BackendUnavailableError):
                    ask(TOPIC, 0)
            with pytest.raises(BackendUnavailableError):
                reader.get_message(TOPIC, 0, 22)
            with pytest.raises(BackendUnavailableError):
                offsets(reader)
        assert numbers(reader.get_message(TOPIC, 0, 22)) == [22]
        assert reader.max_offset(TOPIC, 0) == 23


@pytest.mark.parametrize("is_gone", [False, True])
def test_what_has_expired_since_is_no_damage(there: Elsewhere, is_gone: bool) -> None:
    there.broker.fill(10)
    with there.reader() as before:
        assert offsets(before) == list(range(10))
        there.expire(10)
        if is_gone:
            let_go(there)
        first = there.broker.tier.files.files()[0].min_offset
        assert 0 < first < 10
        for reader in (before, there.reader()):
            with reader:
                found = offsets(reader)
                assert found == list(range(found[0], found[-1] + 1))
                assert found[0] in (0, first)
                assert found[-1] >= 9
                assert numbers(reader.get_message(TOPIC, 0, first))[:1] == [first]
                reader.refresh()
                assert reader.min_offset(TOPIC, 0) == first
                assert offsets(reader) == list(range(first, 13))
                assert reader.earliest_time(TOPIC, 0) is not None


@pytest.mark.parametrize("is_gone", [False, True])
def test_what_was_deleted_since_is_no_damage(there: Elsewhere, is_gone: bool) -> None:
    there.broker.fill(12)
    there.broker.put(3, topic="Gone")
    assert there.broker.store.flush()
    with there.reader() as before:
        there.broker.store.delete_topics(["Gone"])
        if is_gone:
            let_go(there)
        assert offsets(before, "Gone") in ([], [0, 1, 2])
        before.refresh()
        for reader in (before, there.reader()):
            with reader:
                assert offsets(reader, "Gone") == []
                assert not reader.get_message("Gone", 0, 0).messages
                summary = reader.summary("Gone", 0)
                assert summary is None or summary.problem is None
                assert offsets(reader) == list(range(12))


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_queue_that_began_anew_is_never_mixed_with_the_old_one(
    there: Elsewhere, is_gone: bool
) -> None:
    there.broker.fill(12)
    with there.reader() as reader:
        assert offsets(reader) == list(range(12))
        there.broker.store.delete_topics([TOPIC])
        there.broker.put(2)
        assert there.broker.store.flush()
        if is_gone:
            let_go(there)
        assert offsets(reader) in (list(range(12)), [], [0, 1])
        reader.refresh()
        assert offsets(reader) == [0, 1]
        assert numbers(reader.get_message(TOPIC, 0, 0)) == [0, 1]
        assert not reader.get_message(TOPIC, 0, 7).messages
    with there.reader() as reader:
        assert offsets(reader) == [0, 1]


def test_a_bucket_that_has_nothing_says_what_to_do(there: Elsewhere) -> None:
    there.broker.fill(3)
    for choice in ("auto", "published", "rebuild"):
        with pytest.raises(NoCatalogueError):
            there.reader(broker_name="nobody", catalogue=choice).load()
    with pytest.raises(NoCatalogueError, match="no such file"):
        there.reader(catalogue="file").load()


def test_a_catalogue_can_be_found_out_in_memory(there: Elsewhere) -> None:
    there.broker.fill(10)
    held = dict(there.objects.held)
    with there.reader(catalogue="rebuild") as reader:
        assert reader.catalogue.source == "rebuild"
        assert offsets(reader) == list(range(10))
    assert not Path(there.config().store_path).exists()
    assert there.objects.held == held


def test_the_log_comes_first_and_the_brokers_file_on_demand(there: Elsewhere) -> None:
    there.broker.fill(3)
    there.broker.put(30, first=3)
    assert there.broker.store.flush()
    there.broker.store.shutdown()
    runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
    for choice, source in (("auto", "log"), ("published", "log")):
        config = dataclasses.replace(there.broker.config, catalogue=choice)
        with TieredReader(config, runtime=runtime, provider=there.opened(runtime)) as reader:
            assert reader.catalogue.source == source
            assert offsets(reader) == list(range(33))


def test_damage_of_the_log_is_told(there: Elsewhere) -> None:
    there.broker.fill(3)
    newest = max(key for key in there.objects.held if "/log/" in key)
    data, facts = there.objects.held[newest]
    there.objects.held[newest] = bytes([*data[:70], data[70] ^ 1, *data[71:]]), facts
    with pytest.raises(MetadataError, match="damaged"):
        there.reader().load()


@pytest.mark.parametrize("what", ["record", "unit"])
def test_a_page_ends_before_what_a_round_wrote_that_is_damaged(there: Elsewhere, what: str) -> None:
    """The checksum covers all bytes of the queue in the round."""
    there.broker.fill(3)
    there.broker.put(3, first=3)
    assert there.broker.store.flush()
    with there.reader() as reader:
        found = reader.get_message(TOPIC, 0, 5).messages[0]
        place = {"log_offset": found.log_offset, "message_bytes": len(found.record)}
        unit = encode_unit(**place, tags_code=found.tags_code)
    wanted = found.record if what == "record" else unit
    for key, (data, facts) in there.objects.held.items():
        changed = wanted[:-1] + bytes([wanted[-1] ^ 1])
        there.objects.held[key] = data.replace(wanted, changed), facts
    with there.reader() as reader:
        assert numbers(reader.get_message(TOPIC, 0, 0)) == [0, 1, 2, 3]
        assert numbers(reader.get_message(TOPIC, 0, 3)) == [3]
        with pytest.raises(SegmentCorruptError, match="checksum"):
            reader.get_message(TOPIC, 0, 4)


@pytest.mark.parametrize("what", ["gone", "cut short"])
def test_a_page_ends_before_what_lies_in_an_object_that_is_lost(
    there: Elsewhere, what: str
) -> None:
    there.broker.fill(3)
    there.broker.put(3, first=3)
    assert there.broker.store.flush()
    with there.reader() as reader:
        record = reader.get_message(TOPIC, 0, 5).messages[0].record
    held = there.objects.held
    with there.reader() as reader:
        (key,) = (key for key, (data, _) in held.items() if record in data)
        data, facts = held.pop(key)
        if what == "cut short":
            held[key] = data[:70], dataclasses.replace(facts, size=70)
        assert numbers(reader.get_message(TOPIC, 0, 0)) == [0, 1, 2, 3]
        assert numbers(reader.get_message(TOPIC, 0, 3)) == [3]
        with pytest.raises(SegmentCorruptError, match=what):
            reader.get_message(TOPIC, 0, 4)
