"""What the parts of a tier know of how it is doing, put together.

What lives here: `health_of`. The values are in `health`.
"""

from __future__ import annotations

from typing import Final

from tieredstore.access.health import CacheHealth, LocalDamage, QueueHealth, TierHealth
from tieredstore.access.reads.read_ahead import ReadCache
from tieredstore.access.tiered_reads import OpenTier
from tieredstore.driver.message_store import MessageStore
from tieredstore.model.values import QueueKey, StorageLevel

DAMAGES_SHOWN_MAX: Final = 100


def health_of(tier: OpenTier, next_store: MessageStore, level: StorageLevel) -> TierHealth:
    """As of now, from memory: no backend is asked."""
    upload = tier.dispatcher.health()
    expiry_errors = tier.retention.errors
    files = {file.key: file for file in tier.parts.files.files()}
    keys = {*files, *upload.stopped, *upload.failing, *upload.lost, *upload.not_indexed}
    queues = [
        QueueHealth(
            topic=key.topic,
            queue_id=key.queue_id,
            commit_offset=tier.dispatcher.committed_offset(*key),
            behind_count=_behind(tier, next_store, key),
            problem=upload.stopped.get(key),
            lost_count=upload.lost.get(key, 0),
            last_error=upload.failing.get(key) or expiry_errors.get(key),
            not_indexed_count=upload.not_indexed.get(key, 0),
        )
        for key in sorted(keys)
    ]
    return TierHealth(
        level=level,
        queues=tuple(queues),
        cache=_cache(tier.parts.fetcher.cache),
        buffered_bytes=upload.buffered_bytes,
        uploads=upload.uploads,
        index_error=tier.parts.index.problem,
        catalogue=tier.parts.publishing.health(),
        local_damages=_local_damages(next_store),
    )


def _local_damages(store: MessageStore) -> tuple[LocalDamage, ...]:
    """A broker's store may have `damages`, as ours has; the first ones of many."""
    found = getattr(store, "damages", ())
    return tuple(
        LocalDamage(
            path=damage.path,
            position=damage.position,
            reason=damage.reason,
            mended=damage.mended,
        )
        for damage in found[:DAMAGES_SHOWN_MAX]
    )


def _cache(cache: ReadCache | None) -> CacheHealth:
    if cache is None:
        return CacheHealth()
    return CacheHealth(
        held_bytes=cache.held_bytes,
        extent_count=cache.extent_count,
        access_count=cache.access_count,
        hit_count=cache.hit_count,
    )


def _behind(tier: OpenTier, next_store: MessageStore, key: QueueKey) -> int:
    """What the next store has and the tier has not."""
    maximum = next_store.max_offset(*key)
    if maximum is None or tier.dispatcher.topic_filter.rejects(key.topic):
        return 0
    committed = tier.dispatcher.committed_offset(*key)
    return max(0, maximum - max(committed or 0, next_store.min_offset(*key) or 0))
