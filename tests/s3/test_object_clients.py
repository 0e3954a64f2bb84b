"""Both S3 clients keep the contract on moto, and send no more requests than they say."""

from __future__ import annotations

import pytest

from tests.s3.moto_server import Door
from tests.s3.s3_clients import CLIENTS, new_client
from tieredstore.driver.object_client import ObjectClient, Range
from tieredstore.testing.object_client_contract import ObjectClientContract


class OnMoto(ObjectClientContract):
    name = ""

    @pytest.fixture(autouse=True)
    def _server(self, moto: tuple[str, Door]) -> None:
        self.endpoint, self.door = moto

    def open_client(self) -> ObjectClient:
        return new_client(self.endpoint, self.name)


class TestS3fs(OnMoto):
    name = "s3fs"


class TestObstore(OnMoto):
    name = "obstore"


@pytest.mark.parametrize("name", CLIENTS)
def test_each_call_is_the_requests_it_says(moto: tuple[str, Door], name: str) -> None:
    endpoint, door = moto
    with new_client(endpoint, name) as client:
        client.put("warm", b"up")
        door.requests()
        client.put("k", bytes(100), metadata={"nonce": "n"})
        assert door.requests() == {"PUT": 1}
        client.head("k")
        assert door.requests() == {"HEAD": 1}
        client.get_range("k", 10, 20)
        assert door.requests() == {"GET": 1}
        client.get_range("k", 10, 0)
        assert door.requests() == {}
        client.get_ranges([Range("k", place, 1) for place in range(64)])
        assert door.requests() == {"GET": 64}
        for number in range(3):
            client.put(f"l/{number}", b"x")
        door.requests()
        assert len(list(client.list("l/"))) == 3
        assert door.requests() == {"LIST": 1}
        client.delete_many([f"l/{number}" for number in range(3)])
        assert door.requests() == {"DELETE-MANY": 1}
        client.put_stream("small", [bytes(1000)] * 10)
        assert door.requests() == {"PUT": 1}
        client.put_stream("large", [bytes(1024 * 1024)] * 33)
        assert door.requests() == {"POST uploads": 1, "PUT uploadId": 3, "POST uploadId": 1}
        client.close()
        assert door.requests() == {}
