"""The contract and the whole proof on a stricter server than moto, where one is running.

TIEREDSTORE_S3_ENDPOINT is its address on this machine; `make test-s3` runs this.
"""

from __future__ import annotations

import os

import pytest

from tests.s3.s3_clients import CLIENTS, new_client
from tieredstore.driver.certify import certify
from tieredstore.driver.object_client import ObjectClient
from tieredstore.testing.object_client_contract import ObjectClientContract

ENDPOINT = os.environ.get("TIEREDSTORE_S3_ENDPOINT", "")

if not ENDPOINT:
    pytest.skip("TIEREDSTORE_S3_ENDPOINT names no second S3 server", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("s3_environment")


class TestS3fs(ObjectClientContract):
    def open_client(self) -> ObjectClient:
        return new_client(ENDPOINT, "s3fs")


class TestObstore(ObjectClientContract):
    def open_client(self) -> ObjectClient:
        return new_client(ENDPOINT, "obstore")


@pytest.mark.parametrize("name", CLIENTS)
def test_it_can_be_trusted_with_a_tier(name: str) -> None:
    with new_client(ENDPOINT, name) as client:
        certificate = certify(client)
        assert certificate.passed, certificate.summary()
