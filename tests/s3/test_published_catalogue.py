"""A reader with a bucket and nothing else, over moto, with each client."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.s3.moto_server import Door
from tests.s3.s3_clients import CLIENTS
from tests.s3.test_tier_on_s3 import COUNT, Machine, all_of
from tieredstore.access.reader import TieredReader
from tieredstore.access.store import TieredMessageStore
from tieredstore.access.wiring import NoCatalogueError
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import MetadataError
from tieredstore.providers.object_provider import open_client


@pytest.fixture(params=CLIENTS)
def machine(tmp_path: Path, moto: tuple[str, Door], request: pytest.FixtureRequest) -> Machine:
    return Machine(tmp_path, moto[0], request.param)


def elsewhere(machine: Machine, **settings: object) -> TieredReader:
    """As another machine has it: the same bucket, none of the files."""
    nowhere = str(machine.folder / "nowhere")
    config = dataclasses.replace(machine.config(**settings), store_path=nowhere)
    return TieredReader(config, runtime=Runtime.inline())


def publish(store: TieredMessageStore) -> None:
    store._loaded().tier.publishing.step()


def test_the_bucket_alone_is_enough(machine: Machine) -> None:
    store = machine.open()
    with pytest.raises(NoCatalogueError, match="rebuild"):
        elsewhere(machine).load()
    machine.put(store, range(COUNT))
    assert store.flush(seal=True)
    bodies = all_of(store)
    with elsewhere(machine) as reader:
        assert reader.catalogue.source == "published"
        assert all_of(reader) == bodies
        assert [
            one.queue_offset for one in reader.query_message("TopicTest", "key-23").messages
        ] == [23]
        machine.put(store, range(COUNT, COUNT + 5))
        assert store.flush()
        publish(store)
        reader.refresh()
        assert list(all_of(reader)) == list(range(COUNT + 5))
        machine.put(store, range(COUNT + 5, COUNT + 6))  # and nothing is published
        assert store.flush()
        reader.refresh()
        assert list(all_of(reader)) == list(range(COUNT + 6))
    store.shutdown()
    with elsewhere(machine, catalogue="rebuild") as reader:
        assert list(all_of(reader)) == list(range(COUNT + 6))


def test_publishing_is_counted_in_requests(machine: Machine, moto: tuple[str, Door]) -> None:
    store = machine.open()
    machine.put(store, range(5))
    assert store.flush()
    publish(store)
    moto[1].requests()
    for _ in range(20):
        publish(store)
    assert not moto[1].requests()
    for number in range(5, 10):
        machine.put(store, [number])
        assert store.flush()
    moto[1].requests()
    publish(store)
    publish(store)
    assert dict(moto[1].requests()) == {"LIST": 1, "PUT": 1, "HEAD": 1}  # the look for a new epoch
    store.shutdown()


def test_of_two_machines_one_publishes_and_the_other_learns(
    machine: Machine, tmp_path: Path
) -> None:
    first = machine.open()
    machine.put(first, range(5))
    assert first.flush()
    publish(first)
    other = Machine(tmp_path / "other", machine.settings.endpoint, machine.settings.client)
    other.settings = machine.settings
    second = other.open()
    other.put(second, range(3), topic="Mine")
    second.flush()
    publish(second)
    health = second.health()
    assert "rebuild" in (health.catalogue.error or "")
    assert not health.ok
    with elsewhere(machine) as reader:
        assert {key.topic for key in reader.queues()} == {"TopicTest"}
    second.shutdown()
    first.shutdown()


def test_a_damaged_and_a_truncated_one_are_told(machine: Machine) -> None:
    store = machine.open()
    machine.put(store, range(5))
    assert store.flush(seal=True)
    store.shutdown()
    with open_client(machine.settings) as client:
        *_, newest = client.list(".catalog/")
        data = client.get_range(newest.key, 0, newest.size)
        for broken in (data[:-20], data[:50] + b"?" + data[51:], b""):
            client.put(newest.key, broken, if_absent=False)
            with pytest.raises(MetadataError, match="damaged"):
                elsewhere(machine).load()
        client.put(newest.key, data, if_absent=False)
    with elsewhere(machine) as reader:
        assert list(all_of(reader)) == list(range(5))


def test_with_faults_all_around_it_is_published_in_the_end(
    machine: Machine, moto: tuple[str, Door]
) -> None:
    store = machine.open()
    machine.put(store, range(5))
    assert store.flush()
    with moto[1].breaking("503", "lost-reply", "429", rate=0.3):
        for _ in range(10):
            publish(store)
    publish(store)
    assert store.health().catalogue.error is None
    with elsewhere(machine) as reader:
        assert list(all_of(reader)) == list(range(5))
    store.shutdown()


def test_a_bucket_copied_to_a_folder_is_read_without_the_brokers_file(
    machine: Machine, tmp_path: Path
) -> None:
    store = machine.open()
    machine.put(store, range(COUNT))
    assert store.flush(seal=True)
    bodies = all_of(store)
    store.shutdown()
    config = dataclasses.replace(
        machine.copied_to(tmp_path / "copied"), store_path=str(tmp_path / "nowhere")
    )
    with TieredReader(config, runtime=Runtime.inline()) as reader:
        assert reader.catalogue.source == "published"
        assert all_of(reader) == bodies
