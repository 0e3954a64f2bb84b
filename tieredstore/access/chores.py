"""What a started tier does beside uploading and reading, over and over.

What lives here: which chores there are, and how often. What each does is in its own module.
"""

from __future__ import annotations

from tieredstore.access.tiered_reads import OpenTier
from tieredstore.driver.runtime import Service
from tieredstore.model.config import StoreConfig


def start_chores(tier: OpenTier, config: StoreConfig) -> list[Service]:
    """Begin them; whoever began stops them."""
    runtime = tier.parts.runtime
    services = [
        runtime.service("tier-sealing", tier.sealing.step, interval_ms=config.dispatch_interval_ms)
    ]
    if config.expiry_enabled:
        services.append(
            runtime.service(
                "tier-expiry", tier.retention.step, interval_ms=config.expiry_interval_ms
            )
        )
    return services
