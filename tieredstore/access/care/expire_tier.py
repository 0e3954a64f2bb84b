"""What a tier no longer keeps, dropped by hand: where no broker runs that would do it.

What lives here: `expire_tier`. A broker's own rounds are in `retention`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tieredstore.driver.metadata import MetadataStore
from tieredstore.flat.expiry import Expired, expire, kept_from, would_expire
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.values import QueueKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredQueue:
    """What went of one queue, or would go; or why that is not known."""

    key: QueueKey
    expired: Expired | None
    failure: str | None = None


def expire_tier(
    files: FlatFileStore,
    metadata: MetadataStore,
    config: StoreConfig,
    *,
    now_ms: int,
    dry_run: bool = False,
) -> Iterator[ExpiredQueue]:
    """Queue by queue, those of which something is too old. A failure touches its queue only.

    For who holds the catalogue's lock, or with `dry_run` for anybody. The key index is left as it
    is: what it says of messages that are gone finds nothing, and a broker drops its files.
    """
    for file in sorted(files.files(), key=lambda file: file.key):
        topic = metadata.topic(file.key.topic)
        before_ms = None if topic is None else kept_from(config, topic, now_ms)
        if before_ms is None:
            continue
        try:
            expired = would_expire(file, before_ms) if dry_run else expire(file, before_ms)
        except TieredStoreError as error:
            yield ExpiredQueue(key=file.key, expired=None, failure=str(error))
            continue
        if expired.segment_count:
            yield ExpiredQueue(key=file.key, expired=expired)
