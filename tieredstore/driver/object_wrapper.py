"""A client around another: the ground that retry, counters and fault tests share.

What lives here: forwarding, nothing else. A wrapper is a client too and passes the same contract.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tieredstore.driver.object_client import (
    AbandonedUpload,
    Attempt,
    ListedKey,
    ObjectCapabilities,
    ObjectClient,
    ObjectFacts,
    Range,
    once,
)
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import TieredStoreError


class ObjectClientWrapper(ObjectClient):
    """Forwards everything to `inner`."""

    def __init__(self, inner: ObjectClient) -> None:
        self.inner = inner

    @property
    def capabilities(self) -> ObjectCapabilities:
        return self.inner.capabilities

    def describe(self) -> str:
        return self.inner.describe()

    def head(self, key: str) -> ObjectFacts:
        return self.inner.head(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.inner.get_range(key, start, length)

    def get_ranges(self, ranges: Sequence[Range]) -> Sequence[bytes | TieredStoreError]:
        return self.inner.get_ranges(ranges)

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
        if_match: str | None = None,
    ) -> ObjectFacts:
        return self.inner.put(key, data, metadata=metadata, if_absent=if_absent, if_match=if_match)

    def put_stream(
        self,
        key: str,
        blocks: Iterable[Buffer],
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
        attempt: Attempt = once,
    ) -> ObjectFacts | None:
        return self.inner.put_stream(
            key, blocks, metadata=metadata, if_absent=if_absent, attempt=attempt
        )

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        return self.inner.list(prefix, after=after)

    def delete_many(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        return self.inner.delete_many(keys)

    def abandoned_uploads(self, prefix: str = "") -> Sequence[AbandonedUpload]:
        return self.inner.abandoned_uploads(prefix)

    def abort_upload(self, upload: AbandonedUpload) -> None:
        self.inner.abort_upload(upload)

    def close(self) -> None:
        self.inner.close()
