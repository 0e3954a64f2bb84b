"""An S3 server in this process, and clients that can reach no other."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import botocore.session
import pytest
from botocore.loaders import create_loader

from tests.s3.moto_server import Door, moto_server

if TYPE_CHECKING:
    from s3fs import S3FileSystem


@pytest.fixture(scope="session")
def s3_environment() -> Iterator[None]:
    """Made-up credentials, and nothing from the files of the user who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", "/nonexistent")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
        patch.setenv("NO_PROXY", "127.0.0.1")
        # Else each client of botocore reads some megabytes of JSON about AWS: 0.3 seconds.
        patch.setattr(botocore.session, "create_loader", lru_cache(create_loader))
        yield


@pytest.fixture(scope="session")
def s3_endpoint(s3_environment: None) -> Iterator[str]:
    """The address of moto's server: s3fs does not work with moto's patches of botocore."""
    with moto_server() as (endpoint, _):
        yield endpoint


@pytest.fixture(scope="session")
def moto(s3_environment: None) -> Iterator[tuple[str, Door]]:
    """The address of a server that counts requests and breaks them on demand, and its door."""
    with moto_server() as served:
        yield served


@pytest.fixture
def door(moto: tuple[str, Door]) -> Iterator[Door]:
    """That server's door; afterwards it is as open as before."""
    yield moto[1]
    moto[1].answers.clear()


@pytest.fixture
def s3(s3_endpoint: str) -> S3FileSystem:
    """A client without caches: it sees at once what another client wrote."""
    from s3fs import S3FileSystem

    return S3FileSystem(
        endpoint_url=s3_endpoint, use_listings_cache=False, skip_instance_cache=True
    )


@pytest.fixture
def bucket(s3: S3FileSystem) -> str:
    """An empty bucket that no other test uses."""
    name = f"tier-{uuid.uuid4().hex}"
    s3.mkdir(name)
    return name
