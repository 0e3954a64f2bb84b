"""The figures of the read cache as metrics.

What lives here: `observe_cache`. The cache itself is `read_ahead`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tieredstore.access.reads.read_ahead import ReadCache
from tieredstore.driver.metrics import (
    READ_CACHE_ACCESS,
    READ_CACHE_BYTES,
    READ_CACHE_COUNT,
    READ_CACHE_HIT,
    Labels,
    Metric,
    Metrics,
)


def observe_cache(metrics: Metrics, cache: ReadCache) -> None:
    """Have the metrics ask the cache whenever somebody looks."""

    def gauge(metric: Metric, read: Callable[[], int]) -> None:
        def measured() -> Iterable[tuple[float, Labels]]:
            yield float(read()), {}

        metrics.observe(metric, measured)

    gauge(READ_CACHE_COUNT, lambda: cache.extent_count)
    gauge(READ_CACHE_BYTES, lambda: cache.held_bytes)
    gauge(READ_CACHE_ACCESS, lambda: cache.access_count)
    gauge(READ_CACHE_HIT, lambda: cache.hit_count)
