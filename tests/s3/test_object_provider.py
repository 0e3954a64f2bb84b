"""The object store provider passes the shipped contracts on moto, with each client."""

from __future__ import annotations

import pytest

from tests.s3.moto_server import Door
from tests.s3.s3_clients import CLIENTS, new_client, new_settings
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.model.errors import FencedError
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_provider import ObjectProvider, open_client
from tieredstore.testing.provider_contract import SegmentProviderContract
from tieredstore.testing.segment_contract import FileSegmentContract

LOG = SegmentType.COMMIT_LOG
CLUSTER = "DefaultCluster"
PATH = "broker-a/%RETRY%主题 a|b/0"
MIB = 1 << 20


@pytest.mark.parametrize("name", CLIENTS)
class TestObjectFileSegment(FileSegmentContract):
    seals_for_good = True
    machine_examples = 3

    @pytest.fixture(autouse=True)
    def _provider(self, moto: tuple[str, Door], name: str) -> None:
        client = new_client(moto[0], name)
        self.provider = ObjectProvider(client, CLUSTER, Runtime.inline())

    def open_segment(self, path: str) -> FileSegment:
        return self.provider.open(path, LOG, 0)


@pytest.mark.parametrize("name", CLIENTS)
class TestObjectProvider(SegmentProviderContract):
    pairs_are_whole = True

    @pytest.fixture(autouse=True)
    def _server(self, moto: tuple[str, Door], name: str) -> None:
        self.endpoint, self.name = moto[0], name

    def open_provider(self, runtime: Runtime) -> SegmentProvider:
        return ObjectProvider(new_client(self.endpoint, self.name), CLUSTER, runtime)


@pytest.mark.parametrize("name", CLIENTS)
def test_a_segment_grows_is_sealed_and_read_over_s3(moto: tuple[str, Door], name: str) -> None:
    endpoint, door = moto
    settings = new_settings(endpoint, name)

    def process() -> ObjectProvider:
        return ObjectProvider(open_client(settings), CLUSTER, Runtime.inline())

    data = bytes(range(256)) * 4096
    writer = process()
    segment = writer.open(PATH, LOG, 0)
    for number in range(10):
        segment.write(number * MIB, data)
    door.requests()
    segment.write(10 * MIB, data)
    assert door.requests() == {"PUT": 1, "HEAD": 1}
    after = process()
    again = after.open(PATH, LOG, 0)
    assert again.read(5 * MIB - 1, 2 * MIB) == (data * 3)[MIB - 1 : 3 * MIB - 1]
    again.seal()
    with pytest.raises(FencedError):
        segment.write(11 * MIB, b"late")
    reader = process().open(PATH, LOG, 0)
    assert reader.size() == 11 * MIB
    door.requests()
    assert reader.read(0, 11 * MIB) == data * 11
    assert door.requests() == {"GET": 2}
    assert [(each.path, each.size) for each in process().list()] == [(PATH, 11 * MIB)]
    again.delete()
    assert list(process().list()) == []
