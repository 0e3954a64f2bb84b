"""What a started tier does beside uploading and reading, over and over, and how it ends.

What lives here: which chores there are, and how often. What each does is in its own module.
"""

from __future__ import annotations

from collections.abc import Iterable

from tieredstore.access.tiered_reads import OpenTier
from tieredstore.driver.runtime import Deadline, Service
from tieredstore.model.config import StoreConfig
from tieredstore.model.printable import log_of

log = log_of(__name__)


def start_chores(tier: OpenTier, config: StoreConfig) -> list[Service]:
    """Begin them; whoever began stops them."""
    runtime = tier.parts.runtime
    services = [
        runtime.service("tier-sealing", tier.sealing.step, interval_ms=config.dispatch_interval_ms)
    ]
    if tier.parts.publishing.is_enabled:
        publish = tier.parts.publishing.step
        every = config.publish_interval_ms
        services.append(runtime.service("tier-catalogue", publish, interval_ms=every))
    if config.expiry_enabled:
        services.append(
            runtime.service(
                "tier-expiry", tier.retention.step, interval_ms=config.expiry_interval_ms
            )
        )
    return services


def end_uploads(tier: OpenTier, deadline: Deadline, *, drain: bool) -> None:
    """With `drain`, after a last one."""
    if drain and not tier.flushing.make_durable(deadline.left()):
        log.warning("the broker's store did not make durable what it took last")
    if not tier.dispatcher.shutdown(drain=drain, timeout=deadline.left()):
        log.warning("not all that was to be uploaded is in the tier: it follows after a restart")


def end_chores(services: Iterable[Service], deadline: Deadline) -> None:
    """No further step; those that do not end in time are left behind."""
    stopped = [service.stop(deadline.left()) for service in services]
    if not all(stopped):
        log.warning("what the tier does beside uploading did not end in time")
