"""The contracts and the whole certification on a stricter server than moto, if one is running.

TIEREDSTORE_S3_ENDPOINT is its address; `make test-s3` starts one and runs these tests. See
`s3_clients.py` for a third party's server: its keys, an existing bucket and other settings.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.s3.s3_clients import CLIENTS, THIRD_PARTY, new_client, new_settings, throw_away
from tieredstore.driver.certify import certify
from tieredstore.driver.object_client import ObjectClient
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.model.errors import BackendError
from tieredstore.model.values import SegmentType
from tieredstore.providers.certified import Certification
from tieredstore.providers.object_provider import ObjectProvider, open_client
from tieredstore.testing.object_client_contract import ObjectClientContract
from tieredstore.testing.provider_contract import SegmentProviderContract
from tieredstore.testing.segment_contract import FileSegmentContract

ENDPOINT = THIRD_PARTY.get("endpoint", "")
CLUSTER = "DefaultCluster"

if not ENDPOINT:
    pytest.skip("TIEREDSTORE_S3_ENDPOINT names no second S3 server", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("s3_environment")


@pytest.fixture(autouse=True)
def _cleaned() -> Iterator[None]:
    yield
    throw_away()


class TestS3fs(ObjectClientContract):
    def open_client(self) -> ObjectClient:
        return new_client(ENDPOINT, "s3fs")


class TestObstore(ObjectClientContract):
    def open_client(self) -> ObjectClient:
        return new_client(ENDPOINT, "obstore")


@pytest.mark.parametrize("name", CLIENTS)
class TestObjectFileSegment(FileSegmentContract):
    seals_for_good = True
    machine_examples = 2

    @pytest.fixture(autouse=True)
    def _provider(self, name: str) -> None:
        self.provider = ObjectProvider(new_client(ENDPOINT, name), CLUSTER, Runtime.inline())

    def open_segment(self, path: str) -> FileSegment:
        return self.provider.open(path, SegmentType.COMMIT_LOG, 0)


@pytest.mark.parametrize("name", CLIENTS)
class TestObjectProvider(SegmentProviderContract):
    pairs_are_whole = True

    @pytest.fixture(autouse=True)
    def _name(self, name: str) -> None:
        self.name = name

    def open_provider(self, runtime: Runtime) -> SegmentProvider:
        return ObjectProvider(new_client(ENDPOINT, self.name), CLUSTER, runtime)


@pytest.mark.parametrize("name", CLIENTS)
def test_it_can_be_trusted_with_a_tier(name: str) -> None:
    with new_client(ENDPOINT, name) as client:
        certificate = certify(client)
        assert certificate.passed, certificate.summary()
        assert certificate.elapsed_ms < 600_000


@pytest.mark.parametrize(
    ("name", "checksum"),
    [
        ("s3fs", "crc32"),
        ("s3fs", "crc32c"),
        ("s3fs", "sha256"),
        ("s3fs", "crc64nvme"),
        ("obstore", "sha256"),
        ("obstore", "crc64nvme"),
    ],
)
def test_it_compares_checksums_and_ours_are_right(name: str, checksum: str) -> None:
    with new_client(ENDPOINT, name, checksum=checksum) as client:
        client.put("k", b"x" * 1000)
        facts = client.put_stream("large", [bytes(1 << 20)] * 17)
        assert facts is not None
        assert client.head("large").size == 17 << 20


def test_a_wrong_checksum_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from tieredstore.providers import s3fs as s3_put

    monkeypatch.setitem(s3_put._DIGESTS, "crc32c", lambda data: b"\0\0\0\1")
    with new_client(ENDPOINT, "s3fs", checksum="crc32c") as client:
        with pytest.raises(BackendError):
            client.put("k", b"x" * 1000)
        assert list(client.list()) == []


@pytest.mark.parametrize("name", CLIENTS)
def test_a_tier_is_written_to_once_the_store_has_proved_itself(name: str) -> None:
    settings = new_settings(ENDPOINT, name)
    for position in (0, 4):
        certification = Certification("require")
        provider = ObjectProvider(
            open_client(settings), CLUSTER, Runtime.inline(), certification=certification
        )
        provider.open("broker-a/T/0", SegmentType.COMMIT_LOG, 0).write(position, b"data")
        assert (provider.counted.counts.snapshot()["put"] > 1_000) == (position == 0)
        provider.close()
