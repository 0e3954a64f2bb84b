"""A reader that has a bucket and nothing else, on moto, with each client."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from tests.s3.moto_server import Door
from tests.s3.s3_clients import CLIENTS
from tests.s3.test_tier_on_s3 import COUNT, Machine, all_of
from tieredstore.access.reader import TieredReader
from tieredstore.access.wiring import NoCatalogueError
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import MetadataError
from tieredstore.providers.object_provider import open_client


@pytest.fixture(params=CLIENTS)
def machine(tmp_path: Path, moto: tuple[str, Door], request: pytest.FixtureRequest) -> Machine:
    return Machine(tmp_path, moto[0], request.param)


def elsewhere(machine: Machine, **settings: object) -> TieredReader:
    """A reader on another machine: with the same bucket, without the files."""
    nowhere = str(machine.folder / "nowhere")
    config = dataclasses.replace(machine.config(**settings), store_path=nowhere)
    return TieredReader(config, runtime=Runtime.inline())


def test_the_bucket_alone_is_enough(machine: Machine) -> None:
    with pytest.raises(NoCatalogueError, match="no log was written"):
        elsewhere(machine).load()
    store = machine.open()
    machine.put(store, range(COUNT))
    assert store.flush(seal=True)
    bodies = all_of(store)
    with elsewhere(machine) as reader:
        assert reader.catalogue.source == "log"
        assert all_of(reader) == bodies
        assert [
            one.queue_offset for one in reader.query_message("TopicTest", "key-23").messages
        ] == [23]
        machine.put(store, range(COUNT, COUNT + 5))
        assert store.flush()
        reader.refresh()
        assert list(all_of(reader)) == list(range(COUNT + 5))
    store.shutdown()
    with elsewhere(machine, catalogue="rebuild") as reader:
        assert list(all_of(reader)) == list(range(COUNT + 5))


def test_nothing_is_published_beside_the_log(machine: Machine) -> None:
    store = machine.open()
    machine.put(store, range(5))
    assert store.flush(seal=True)
    store.shutdown()
    with open_client(machine.settings) as client:
        assert [*client.list(".rounds/")]
        assert not [*client.list(".catalog/")]


def test_a_second_machine_goes_on_and_the_first_is_fenced(machine: Machine, tmp_path: Path) -> None:
    first = machine.open()
    machine.put(first, range(5))
    assert first.flush()
    other = Machine(tmp_path / "other", machine.settings.endpoint, machine.settings.client)
    other.settings = machine.settings
    second = other.open()
    other.put(second, range(3), topic="Mine")
    assert second.flush()
    machine.put(first, range(5, 8))
    assert not first.flush()
    assert first.health().fence is not None
    assert second.health().fence is None
    with elsewhere(machine) as reader:
        assert {key.topic for key in reader.queues()} == {"TopicTest", "Mine"}
        assert list(all_of(reader)) == list(range(5))
    second.shutdown()
    first.shutdown(drain=False)


def test_an_empty_machine_goes_on_where_the_bucket_ends(machine: Machine) -> None:
    """It goes on without the operator, twice, and without what was not committed."""
    store = machine.open()
    machine.put(store, range(COUNT))
    assert store.flush()
    bodies = all_of(store)
    highest = store.confirmed_offset()
    machine.put(store, range(COUNT, COUNT + 3))
    store.shutdown(drain=False)
    for life in range(2):
        for folder in machine.folder.iterdir():
            shutil.rmtree(folder)
        store = machine.open()
        end = COUNT + 5 * life
        [queue] = store.agreement.continued
        assert (queue.local_end, queue.tier_end, queue.known_end) == (None, end, None)
        assert all_of(store) == bodies
        assert store.confirmed_offset() > highest
        machine.put(store, range(end, end + 5))
        assert store.flush()
        bodies = all_of(store)
        assert list(bodies) == list(range(end + 5))
        assert store.health().ok
        store.shutdown()


def test_a_damaged_and_a_truncated_entry_are_told(machine: Machine) -> None:
    store = machine.open()
    machine.put(store, range(5))
    assert store.flush()
    with open_client(machine.settings) as client:
        newest = max(
            (each for each in client.list(".rounds/") if "/log/" in each.key),
            key=lambda each: each.key,
        )
        data = client.get_range(newest.key, 0, newest.size)
        for broken in (data[:-20], data[:50] + b"?" + data[51:], b""):
            client.put(newest.key, broken, if_absent=False)
            with pytest.raises(MetadataError, match=newest.key), elsewhere(machine) as reader:
                all_of(reader)
        client.put(newest.key, data, if_absent=False)
    with elsewhere(machine) as reader:
        assert list(all_of(reader)) == list(range(5))
    store.shutdown()


def test_with_faults_all_around_it_is_written_in_the_end(
    machine: Machine, moto: tuple[str, Door]
) -> None:
    store = machine.open()
    with moto[1].breaking("503", "lost-reply", "429", rate=0.3):
        for number in range(5):
            machine.put(store, [number])
            store.flush()
    assert store.flush()
    assert store.health().ok
    with elsewhere(machine) as reader:
        assert list(all_of(reader)) == list(range(5))
    store.shutdown()


def test_a_bucket_copied_to_a_folder_is_read_by_its_bytes(machine: Machine, tmp_path: Path) -> None:
    store = machine.open()
    machine.put(store, range(COUNT))
    assert store.flush(seal=True)
    bodies = all_of(store)
    store.shutdown()
    config = dataclasses.replace(
        machine.copied_to(tmp_path / "copied"),
        store_path=str(tmp_path / "nowhere"),
        catalogue="rebuild",
    )
    with TieredReader(config, runtime=Runtime.inline()) as reader:
        assert all_of(reader) == bodies
