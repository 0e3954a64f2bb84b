"""A client or provider that was used before a fork works on both sides of it."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

import pytest

from tests.s3.moto_server import Door
from tests.s3.s3_clients import CLIENTS, new_client, new_settings
from tieredstore.driver.object_client import ObjectClient, Range
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import FencedError
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_provider import ObjectProvider, open_client

CHILD_SECONDS = 240


def work(client: ObjectClient, name: str) -> list[object]:
    client.put(f"{name}/a", b"0123456789", metadata={"nonce": name})
    client.put_stream(f"{name}/b", [b"01234", b"56789"])
    return [
        client.get_range("parent/a", 2, 3),
        list(client.get_ranges([Range("parent/a", 0, 1), Range(f"{name}/b", 9, 1)])),
        [found.key for found in client.list(f"{name}/")],
        client.head(f"{name}/a").metadata,
        dict(client.delete_many([f"{name}/b"])),
    ]


def in_child(client: ObjectClient, pipe: Connection) -> None:
    try:
        pipe.send(work(client, "child"))
    except Exception as error:  # noqa: BLE001 - the parent says what went wrong
        pipe.send(repr(error))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("name", CLIENTS)
def test_it_works_on_both_sides(moto: tuple[str, Door], name: str) -> None:
    context = multiprocessing.get_context("fork")
    with new_client(moto[0], name) as client:
        before = work(client, "parent")
        ours, theirs = context.Pipe()
        child = context.Process(target=in_child, args=(client, theirs))
        child.start()
        try:
            assert ours.poll(CHILD_SECONDS), "the child hangs"
            after = ours.recv()
            child.join(CHILD_SECONDS)
        finally:
            child.kill()
            child.join()
        assert child.exitcode == 0
        assert after == [
            b"234",
            [b"0", b"9"],
            ["child/a", "child/b"],
            {"nonce": "child"},
            {},
        ]
        assert before[0] == b"234"
        assert client.get_range("child/a", 0, 10) == b"0123456789"


LOG = SegmentType.COMMIT_LOG
PATH = "broker-a/TopicTest/0"


def read_in_child(provider: ObjectProvider, pipe: Connection) -> None:
    """Do what a Spark or multiprocessing worker does with a provider that it got by the fork."""
    try:
        segment = provider.open(PATH, LOG, 0)
        seen = [segment.size(), segment.read(2, 5)]
        seen.append([each.size for each in provider.list()])
        segment.write(10, b"child")  # as another process, it takes over
        pipe.send([*seen, segment.read(0, 15)])
    except Exception as error:  # noqa: BLE001 - the parent says what went wrong
        pipe.send(repr(error))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("name", CLIENTS)
def test_a_provider_works_on_both_sides(moto: tuple[str, Door], name: str) -> None:
    context = multiprocessing.get_context("fork")
    client = open_client(new_settings(moto[0], name))
    provider = ObjectProvider(client, "DefaultCluster", Runtime.inline())
    segment = provider.open(PATH, LOG, 0)
    segment.write(0, b"0123456789")
    assert segment.read(0, 10) == b"0123456789"
    ours, theirs = context.Pipe()
    child = context.Process(target=read_in_child, args=(provider, theirs))
    child.start()
    try:
        assert ours.poll(CHILD_SECONDS), "the child hangs"
        seen = ours.recv()
        child.join(CHILD_SECONDS)
    finally:
        child.kill()
        child.join()
    assert seen == [10, b"23456", [10], b"0123456789child"]
    with pytest.raises(FencedError):
        segment.write(10, b"parent")
    assert segment.read(0, 10) == b"0123456789"
    provider.close()
