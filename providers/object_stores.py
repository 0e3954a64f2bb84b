"""The object store provider under its names: which client it gets from the settings.

What lives here: `S3Provider` and `FsspecProvider`. Clients and their settings are in
`object_clients` and `object_settings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from tieredstore.driver.object_requests import PriceTable
from tieredstore.driver.runtime import Runtime
from tieredstore.providers.certified import Certification
from tieredstore.providers.fsspec_client import FsspecClient
from tieredstore.providers.object_clients import open_client
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.providers.object_settings import ObjectStoreSettings

if TYPE_CHECKING:
    from tieredstore.model.config import StoreConfig


class S3Provider(ObjectProvider):
    """Segments in a bucket of S3 or of a store that speaks its protocol."""

    @classmethod
    def from_config(cls, config: StoreConfig, runtime: Runtime) -> Self:
        settings = ObjectStoreSettings.from_config(config)
        certification = Certification(config.certify)
        return cls(
            open_client(settings),
            config.cluster_name,
            runtime,
            prices=settings.prices,
            certification=certification,
            joins_epoch=not config.claim_epoch,
        )


class FsspecProvider(ObjectProvider):
    """Segments in any filesystem of fsspec, as objects."""

    @classmethod
    def from_config(cls, config: StoreConfig, runtime: Runtime) -> Self:
        prices = PriceTable.parse(config.request_prices)
        certification = Certification(config.certify)
        return cls(
            FsspecClient(config.url),
            config.cluster_name,
            runtime,
            prices=prices,
            certification=certification,
            joins_epoch=not config.claim_epoch,
        )
