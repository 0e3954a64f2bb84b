"""Objects on a remote filesystem of fsspec, which refuses things in words of its own."""

from __future__ import annotations

import uuid

import pytest

from tieredstore.driver.object_client import ObjectClient
from tieredstore.model.errors import BackendRefusedError
from tieredstore.providers.fsspec import FsspecClient
from tieredstore.testing.object_client_contract import ObjectClientContract


def client_of(endpoint: str, bucket: str) -> FsspecClient:
    keys = {"endpoint_url": endpoint, "key": "testing", "secret": "testing"}
    return FsspecClient(f"s3://{bucket}/{uuid.uuid4().hex}", keys)


class TestS3(ObjectClientContract):
    @pytest.fixture(autouse=True)
    def _bucket(self, s3_endpoint: str, bucket: str) -> None:
        self.place = s3_endpoint, bucket

    def open_client(self) -> ObjectClient:
        return client_of(*self.place)


def test_a_missing_bucket_is_no_missing_object(s3_endpoint: str) -> None:
    with (
        client_of(s3_endpoint, "no-such-bucket") as client,
        pytest.raises(BackendRefusedError, match="no such place"),
    ):
        client.put("k", b"data")
