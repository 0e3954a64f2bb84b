"""What is read when a gauge is exported.

What lives here: `GaugeReads`. A gauge has many readers where a process has many stores.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator

from tieredstore.driver.metrics import Labels, Metric
from tieredstore.model.errors import TieredStoreError

log = logging.getLogger(__name__)

GaugeRead = Callable[[], Iterable[tuple[float, Labels]]]


class GaugeReads:
    """The readers of each gauge. One that fails is left out of that export and logged."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._reads: dict[Metric, list[GaugeRead]] = {}

    def add(self, metric: Metric, read: GaugeRead) -> bool:
        """Whether it is the first one of this gauge."""
        with self._guard:
            reads = self._reads.setdefault(metric, [])
            reads.append(read)
            return len(reads) == 1

    def metrics(self) -> list[Metric]:
        with self._guard:
            return list(self._reads)

    def read(self, metric: Metric) -> Iterator[tuple[float, Labels]]:
        with self._guard:
            reads = list(self._reads.get(metric, ()))
        for each in reads:
            try:
                yield from list(each())
            except (TieredStoreError, OSError) as error:
                log.debug("%s is not exported now: %s", metric.name, error)
