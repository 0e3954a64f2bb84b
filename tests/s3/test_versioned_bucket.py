"""A tier does not notice a bucket that keeps old versions, as many companies require.

Deletes leave markers in it, and what was deleted may be created again.
"""

from __future__ import annotations

import pytest

from tests.s3.moto_server import Door
from tests.s3.s3_clients import CLIENTS, new_settings
from tieredstore.driver.certify import certify
from tieredstore.driver.object_client import ObjectClient, ObjectExistsError
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import SegmentNotFoundError
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_provider import ObjectProvider, open_client
from tieredstore.providers.s3_admin import admin_client
from tieredstore.providers.s3_settings import ObjectStoreSettings
from tieredstore.testing.object_client_contract import ObjectClientContract

CLUSTER, PATH = "DefaultCluster", "broker-a/Orders/0"
LOG = SegmentType.COMMIT_LOG


def versioned(endpoint: str, name: str) -> ObjectStoreSettings:
    settings = new_settings(endpoint, name)
    admin_client(settings).put_bucket_versioning(
        Bucket=settings.bucket, VersioningConfiguration={"Status": "Enabled"}
    )
    return settings


@pytest.fixture(params=CLIENTS)
def settings(request: pytest.FixtureRequest, moto: tuple[str, Door]) -> ObjectStoreSettings:
    return versioned(moto[0], request.param)


@pytest.mark.parametrize("name", CLIENTS)
class TestClient(ObjectClientContract):
    @pytest.fixture(autouse=True)
    def _server(self, moto: tuple[str, Door], name: str) -> None:
        self.settings = versioned(moto[0], name)

    def open_client(self) -> ObjectClient:
        return open_client(self.settings)


def test_the_store_keeps_its_word_though_nothing_goes(settings: ObjectStoreSettings) -> None:
    with open_client(settings) as client:
        found = certify(client)
    assert found.passed, found


def test_what_was_deleted_can_be_created_once_more_and_only_once(
    settings: ObjectStoreSettings,
) -> None:
    with open_client(settings) as client:
        for data in (b"one", b"three"):
            client.put("k", data)
            with pytest.raises(ObjectExistsError):
                client.put("k", b"two")
            assert client.get_range("k", 0, len(data)) == data
            assert client.delete_many(["k"]) == {}
            assert list(client.list()) == []
            with pytest.raises(SegmentNotFoundError):
                client.head("k")


def test_a_segment_of_a_deleted_name_has_nothing_of_the_old_one(
    settings: ObjectStoreSettings,
) -> None:
    for data in (b"old" * 100, b"new"):
        provider = ObjectProvider(open_client(settings), CLUSTER, Runtime.inline())
        segment = provider.open(PATH, LOG, 0)
        segment.write(0, data)
        segment.seal()
        reader = ObjectProvider(open_client(settings), CLUSTER, Runtime.inline())
        assert reader.open(PATH, LOG, 0).read(0, len(data)) == data
        segment.delete()
        assert list(provider.list()) == []
