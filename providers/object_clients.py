"""Which client serves a store: the fast one where it is installed, and which it was is said.

What lives here: `open_client`, the choice. Clients themselves are one module each.
"""

from __future__ import annotations

import importlib.util

from tieredstore.driver.object_client import ObjectClient
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.printable import log_of
from tieredstore.providers.object_settings import ObjectStoreSettings
from tieredstore.providers.obstore_connection import obstore_can, obstore_installed

log = log_of(__name__)


def open_client(settings: ObjectStoreSettings) -> ObjectClient:
    """A client for S3 without a connection yet. InvalidConfigError where none is installed."""
    client = _chosen(settings)
    log.info("object store client: %s", client.describe())
    if not settings.conditional_put:
        log.warning(
            "%s: conditional_put is off: a look before each put stands for the condition, and of"
            " two writers at once both may win; run one writer only",
            settings.place(),
        )
    return client


def _chosen(settings: ObjectStoreSettings) -> ObjectClient:
    fast, s3fs = obstore_installed(), importlib.util.find_spec("s3fs") is not None
    if settings.client == "obstore":
        if not fast:
            raise InvalidConfigError("object_client: obstore: pip install 'tieredstore[fast]'")
        if not obstore_can(settings):
            raise InvalidConfigError(f"checksum: obstore has no {settings.checksum!r}")
    if settings.client == "obstore" or (
        settings.client == "auto" and fast and obstore_can(settings)
    ):
        from tieredstore.providers.obstore_client import ObstoreClient

        return ObstoreClient(settings, _s3fs_client(settings) if s3fs else None)
    if not s3fs:
        raise InvalidConfigError(
            "provider: S3 needs a client: pip install 'tieredstore[fast]' or 'tieredstore[s3]'"
        )
    return _s3fs_client(settings)


def _s3fs_client(settings: ObjectStoreSettings) -> ObjectClient:
    from tieredstore.providers.s3fs_client import S3fsClient

    return S3fsClient(settings)
