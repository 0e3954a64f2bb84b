"""Processes that share the newest epoch: they fill a tier together, and a broker takes it over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tieredstore.driver.runtime import Runtime
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.providers.writer_epoch import WriterStalledError
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects

LOG = SegmentType.COMMIT_LOG
PATH = "broker-a/TopicTest/0"


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime.inline() as made:
        yield made


def process(objects: MemoryObjects, runtime: Runtime, *, joins: bool) -> ObjectProvider:
    return ObjectProvider(MemoryObjectClient(objects), "cluster-a", runtime, joins_epoch=joins)


@pytest.mark.parametrize("has_history", [False, True])
def test_many_processes_fill_a_tier_that_a_broker_goes_on_with(
    runtime: Runtime, has_history: bool
) -> None:
    objects = MemoryObjects()
    if has_history:  # an earlier broker's epoch is there
        with process(objects, runtime, joins=False) as earlier:
            earlier.open("broker-a/Other/0", LOG, 0).write(0, b"kept")
    first = process(objects, runtime, joins=True)
    second = process(objects, runtime, joins=True)
    first.open(PATH, LOG, 5).write(0, b"open")
    for number, each in enumerate((first, second, first, second)):
        segment = each.open(f"broker-a/TopicTest/{number + 1}", LOG, 0)
        assert each.create(segment, [b"whole"]) == 5
    first.open(PATH, LOG, 5).write(4, b"-more")
    broker = process(objects, runtime, joins=False)
    growing = broker.open(PATH, LOG, 5)
    assert growing.read(0, 9) == b"open-more"
    growing.write(9, b"!")
    growing.seal()
    sizes = {each.path: each.size for each in broker.list("broker-a/TopicTest")}
    assert sizes == {PATH: 10, **{f"broker-a/TopicTest/{n}": 5 for n in (1, 2, 3, 4)}}
    with pytest.raises(WriterStalledError):
        second.open("broker-a/TopicTest/9", LOG, 0).write(0, b"late")
    with process(objects, runtime, joins=False) as reader:
        assert reader.open(PATH, LOG, 5).read(0, 10) == b"open-more!"
        assert not list(reader.list("broker-a/TopicTest/9"))
        if has_history:
            assert reader.open("broker-a/Other/0", LOG, 0).read(0, 4) == b"kept"
