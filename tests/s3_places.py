"""Empty places in moto's server, made quickly: the tests of a tier need thousands of them.

A bucket is made with one bare request. For settings that use the product's own bucket set-up, see
`tests.s3.s3_clients`.
"""

from __future__ import annotations

import itertools
import os
import urllib.request
from typing import Final

from tieredstore.driver.object_client import ObjectClient
from tieredstore.providers.object_provider import open_client
from tieredstore.providers.s3_settings import ObjectStoreSettings

_numbers: Final = itertools.count()


class Place:
    """A new, empty bucket; each client acts as that of a new process."""

    def __init__(self, endpoint: str, client: str) -> None:
        self.settings = ObjectStoreSettings(
            bucket=f"tier-{os.getpid()}-{next(_numbers)}",
            prefix="some/tier",
            endpoint=endpoint,
            region="us-east-1",
            access_key="testing",
            secret_key="testing-secret",
            client=client,
            # Long, as a busy machine may answer late.
            connect_timeout_ms=60_000,
            request_timeout_ms=60_000,
        )
        self._opened: list[ObjectClient] = []
        # botocore takes a hundred times as long: half a second to make its client.
        asked = urllib.request.Request(f"{endpoint}/{self.settings.bucket}", method="PUT")
        with urllib.request.urlopen(asked, timeout=60) as reply:
            reply.read()

    def client(self) -> ObjectClient:
        client = open_client(self.settings)
        self._opened.append(client)
        return client

    def close(self) -> None:
        """Close the clients and delete the bucket."""
        while self._opened:
            self._opened.pop().close()
        forget(self.settings.bucket)


def forget(bucket: str) -> None:
    """Let moto, which runs in this process, forget a bucket and all that it ever held.

    Otherwise moto keeps every object that was ever put: gigabytes after thousands of tests.
    """
    from moto.s3.models import FakeKey, s3_backends

    partition, account = s3_backends.bucket_accounts.pop(bucket)
    s3_backends[account][partition].buckets.pop(bucket)
    known = FakeKey.instances_tracked  # type: ignore[attr-defined]
    for key in known:
        if key.bucket_name == bucket:
            key.dispose()
    known[:] = [key for key in known if key.bucket_name != bucket]
