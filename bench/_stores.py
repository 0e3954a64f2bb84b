"""Stores to put into: a local one alone, or with a tier that uploads beside it.

The tier is a folder, or a bucket of a server on this machine.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tieredstore.access.store import TieredMessageStore
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.config import StoreConfig
from tieredstore.providers.object_provider import open_client
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Settings of a kind of store; `tier` is None for a local store alone. The store gets its own
    folder in `parent`, or if that is None in the system's folder for temporary files."""

    name: str
    tier: StoreConfig | None = None
    local: LocalConfig = field(default_factory=LocalConfig)
    parent: Path | None = None


ALONE = Place(name="the store alone")
POSIX = Place(name="tier in a folder", tier=StoreConfig(broker_name="broker-a", provider="posix"))


def s3(endpoint: str) -> Place:
    tier = StoreConfig(
        broker_name="broker-a",
        provider="s3",
        endpoint=endpoint,
        region="us-east-1",
        access_key="bench",
        secret_key="bench-secret",
        certify="off",
    )
    return Place(name="tier in a bucket", tier=tier)


@contextmanager
def a_tier(place: Place) -> Iterator[TieredMessageStore]:
    with a_store(place) as store:
        assert isinstance(store, TieredMessageStore)
        yield store


@contextmanager
def a_store(place: Place) -> Iterator[MessageStore]:
    """A new store, started; what it holds is deleted after the block."""
    with (
        tempfile.TemporaryDirectory(dir=place.parent) as folder,
        Runtime.threads() as runtime,
        _placed(place, folder) as config,
    ):
        local = LocalMessageStore(replace(place.local, store_path=folder), runtime)
        if config is None:
            local.load()
            local.start()
            yield local
            local.shutdown()
        else:
            store = TieredMessageStore(local, config, runtime=runtime)
            store.load()
            store.start()
            yield store
            store.shutdown(drain=False)


@contextmanager
def _placed(place: Place, folder: str) -> Iterator[StoreConfig | None]:
    """The tier's settings with its own folder or bucket, which is emptied after the block."""
    if place.tier is None:
        yield None
    elif place.tier.provider == "posix":
        yield replace(place.tier, path=f"{folder}/tier", store_path=folder)
        shutil.rmtree(Path(folder, "tier"), ignore_errors=True)
    else:
        config = replace(place.tier, bucket=f"bench-{uuid.uuid4().hex}", store_path=folder)
        settings = ObjectStoreSettings.from_config(config)
        create_bucket(settings)
        yield config
        client = open_client(settings)
        client.delete_many([listed.key for listed in client.list()])
        client.close()
