"""Requests of a broker's log, counted at the server, with each client."""

from __future__ import annotations

import pytest

from tests.s3.moto_server import Door
from tests.s3.s3_clients import CLIENTS, new_settings
from tieredstore.driver.provider import SegmentWrite, WritePair
from tieredstore.driver.runtime import Runtime
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_provider import ObjectProvider, open_client

LOG, QUEUE = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE
QUEUES = 1_000
MIB = 1 << 20


def a_round(provider: ObjectProvider, number: int) -> None:
    """Write 100 bytes and one unit to each queue."""
    pairs = []
    for queue in range(QUEUES):
        path = f"broker-a/T/{queue}"
        log, units = provider.open(path, LOG, 0), provider.open(path, QUEUE, 0)
        pairs.append(
            WritePair(
                SegmentWrite(log, 100 * number, b"m" * 100),
                SegmentWrite(units, 20 * number, b"u" * 20),
            )
        )
    for future in provider.write_many(pairs):
        future.result()


@pytest.mark.parametrize("name", CLIENTS)
def test_a_round_of_all_queues_is_two_requests_and_a_bucket_opens_with_few(
    moto: tuple[str, Door], name: str
) -> None:
    endpoint, door = moto
    settings = new_settings(endpoint, name)
    with ObjectProvider(open_client(settings), "c", Runtime.inline()) as provider:
        provider.claim("broker-a")
        for number in range(3):
            door.requests()
            a_round(provider, number)
            assert dict(door.requests()) == {"PUT": 1, "HEAD": 1}
        provider.tend("broker-a")
        provider.tend("broker-a")
        assert provider.open("broker-a/T/7", LOG, 0).size() == 300
        assert not door.requests()

    entries = 4  # the claim's and those of three rounds
    lists = 3 if name == "obstore" else 2  # no state yet, for which obstore's client asks twice
    with ObjectProvider(open_client(settings), "c", Runtime.inline()) as reader:
        assert reader.catalogue("broker-a", read_only=True) is not None
        seen = door.requests()
        assert seen["GET"] == entries
        assert seen.keys() <= {"GET", "LIST"}
        assert seen["LIST"] <= lists
        assert reader.open("broker-a/T/7", LOG, 0).read(0, 300) == b"m" * 300
        assert dict(door.requests()) == {"GET": 3}  # a piece of each round
    with ObjectProvider(open_client(settings), "c", Runtime.inline()) as writer:
        writer.claim("broker-a")
        seen = door.requests()
        assert seen["GET"] == entries
        assert seen.keys() <= {"GET", "LIST", "PUT"}
        assert seen["LIST"] <= 2
        assert seen["PUT"] == 2


@pytest.mark.parametrize("name", CLIENTS)
def test_a_sealed_segment_is_read_in_blocks(moto: tuple[str, Door], name: str) -> None:
    endpoint, door = moto
    settings = new_settings(endpoint, name)
    with ObjectProvider(open_client(settings), "c", Runtime.inline()) as provider:
        segment = provider.open("broker-a/T/0", LOG, 0)
        provider.create(segment, [bytes(MIB)] * 20)
        door.requests()
        for start in range(0, 20, 8):
            length = min(8, 20 - start) * MIB
            assert len(segment.read(start * MIB, length)) == length
        seen = door.requests()
        assert seen["GET"] <= 3 + 1
        assert seen.keys() == {"GET"}
