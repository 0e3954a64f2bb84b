"""The S3 clients under test, each over a bucket of its own."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

from tieredstore.driver.object_client import ObjectClient
from tieredstore.providers.object_clients import open_client
from tieredstore.providers.object_settings import ObjectStoreSettings
from tieredstore.providers.s3_admin import create_bucket

CLIENTS = ("s3fs", "obstore")


def new_settings(endpoint: str, client: str, **options: Any) -> ObjectStoreSettings:
    """Settings for an empty bucket that no other test knows."""
    settings = ObjectStoreSettings(
        bucket=f"tier-{uuid.uuid4().hex}",
        prefix="some/tier",
        endpoint=endpoint,
        region="us-east-1",
        access_key="testing",
        secret_key="testing-secret",
        client=client,
        request_timeout_ms=10_000,
    )
    settings = dataclasses.replace(settings, **options)
    create_bucket(settings)
    return settings


def new_client(endpoint: str, client: str, **options: Any) -> ObjectClient:
    return open_client(new_settings(endpoint, client, **options))
