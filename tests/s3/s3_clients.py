"""The S3 clients under test, each with its own place, in moto or on a third party's server.

The environment names a third party's server. Whatever tests leave in a place is thrown away.
"""

from __future__ import annotations

import dataclasses
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from tieredstore.driver.object_client import ObjectClient
from tieredstore.model.errors import BackendRefusedError
from tieredstore.providers.object_provider import open_client
from tieredstore.providers.s3_admin import admin_client, create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings

CLIENTS = ("s3fs", "obstore")
VARIABLES: Final = "TIEREDSTORE_S3_"
# The settings below that each test sets for itself.
_OURS: Final = ("client", "prefix", "prices")


def settings_of(environ: Mapping[str, str]) -> dict[str, Any]:
    """The settings in TIEREDSTORE_S3_ENDPOINT, …_ACCESS_KEY, …_BUCKET, …_CHECKSUM and so on."""
    given: dict[str, Any] = {}
    for each in dataclasses.fields(ObjectStoreSettings):
        text = environ.get(f"{VARIABLES}{each.name.upper()}", "")
        if not text or each.name in _OURS:
            continue
        if each.type == "bool":
            given[each.name] = {"true": True, "false": False}[text.lower()]
        else:
            given[each.name] = int(text) if each.type == "int" else text
    return given


THIRD_PARTY: Final = settings_of(os.environ)
_made: Final[list[ObjectStoreSettings]] = []  # places there that are not thrown away yet


def settings_at(
    endpoint: str, client: str, *, bucket: str = "b", **options: Any
) -> ObjectStoreSettings:
    """Settings for a bucket that may not exist, with keys that our own servers accept."""
    return ObjectStoreSettings(
        bucket=bucket,
        endpoint=endpoint,
        region="us-east-1",
        access_key="testing",
        secret_key="testing-secret",
        client=client,
        **options,
    )


def new_settings(endpoint: str, client: str, **options: Any) -> ObjectStoreSettings:
    """Settings for an empty place that no other test uses: a bucket, or a prefix in a given one."""
    unique = f"tier-{uuid.uuid4().hex}"
    settings = settings_at(
        endpoint,
        client,
        bucket=unique,
        prefix="some/tier",
        request_timeout_ms=60_000,  # moto is slow on a busy machine
    )
    third_party = THIRD_PARTY if endpoint == THIRD_PARTY.get("endpoint") else {}
    settings = dataclasses.replace(settings, **{**third_party, **options})
    if "bucket" in third_party:
        settings = dataclasses.replace(settings, prefix=f"{unique}/some/tier")
    else:
        create_bucket(settings)
    if third_party:
        _made.append(settings)
    return settings


def new_client(endpoint: str, client: str, **options: Any) -> ObjectClient:
    return open_client(new_settings(endpoint, client, **options))


def throw_away() -> None:
    """Delete what tests left on a third party's server, and the buckets made for them."""
    while _made:
        settings = _made.pop()
        given = settings.bucket == THIRD_PARTY.get("bucket")
        emptied = dataclasses.replace(
            settings, prefix=settings.prefix if given else "", client="s3fs"
        )
        with open_client(emptied) as client:
            client.delete_many([found.key for found in client.list()])
            with suppress(BackendRefusedError):  # a store that lists no uploads keeps them
                for upload in client.abandoned_uploads():
                    client.abort_upload(upload)
        if not given:
            admin_client(settings).delete_bucket(Bucket=settings.bucket)
