"""Opening a tier to drop what is too old in it.

What lives here: `expired_queues`. It is imported when the verb runs: help must be fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from tieredstore.access.upkeep import ExpiredQueue, expire_tier
from tieredstore.access.wiring import open_tier
from tieredstore.cli.tier import check_broker, opened_backend
from tieredstore.cli.tier_changing import checked_publisher, locked
from tieredstore.cli.tier_options import TierOptions
from tieredstore.index.contract import NoIndex


def expired_queues(tier: TierOptions, *, dry_run: bool) -> Iterator[ExpiredQueue]:
    """What went, queue by queue as it goes."""
    with ExitStack() as opened:
        backend = opened.enter_context(opened_backend(tier))
        if dry_run:
            metadata = backend.catalogue()
            check_broker(backend.config, metadata)
        else:
            metadata = opened.enter_context(locked(backend))
            checked_publisher(backend, metadata)  # whose tier this is; its parts publish the end
        parts = open_tier(
            backend.config,
            runtime=backend.runtime,
            provider=backend.provider,
            metadata=metadata,
            index=NoIndex(),
            read_only=dry_run,
        )
        opened.callback(parts.close)
        parts.load()
        for each in expire_tier(
            parts.files,
            metadata,
            backend.config,
            now_ms=backend.runtime.clock.now_ms(),
            dry_run=dry_run,
        ):
            if each.failure is not None:  # a backend that refuses says so itself: no damage
                next(iter(backend.provider.list(backend.config.broker_name)), None)
            yield each
