"""What is read when a gauge is exported.

What lives here: `GaugeReads`. A gauge has many readers where a process has many stores.
"""

from __future__ import annotations

import threading
from typing import Final

from tieredstore.driver.metrics import GaugeRead, Metric
from tieredstore.exporters.label_sets import LabelSets
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.printable import log_of

log = log_of(__name__)

_TIMES: Final = ("seconds", "milliseconds")


class GaugeReads:
    """The readers of each gauge, and of each counter that is kept elsewhere.

    * What several readers show under the same labels is added up; of times the longest counts.
    * One that fails is left out of that export and logged.
    """

    def __init__(self, labels: LabelSets) -> None:
        self._labels = labels
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

    def read(self, metric: Metric) -> dict[tuple[str, ...], float]:
        """By the values of all labels, in the order of their names."""
        with self._guard:
            reads = list(self._reads.get(metric, ()))
        found: dict[tuple[str, ...], float] = {}
        seen: set[tuple[str, ...]] = set()  # of this export: what is gone takes no room
        for each in reads:
            try:
                shown = [(value, self._labels.values(metric, own, seen)) for value, own in each()]
            except (TieredStoreError, OSError) as error:
                log.debug("%s is not exported now: %s", metric.name, error)
                continue
            for value, labels in shown:
                before = found.get(labels, 0.0)
                longest = metric.unit in _TIMES
                found[labels] = max(before, value) if longest else before + value
        return found
