"""The labels of one measurement as the values that an instrument is asked with.

What lives here: `LabelSets`, which keeps their number bounded. It knows no client library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tieredstore.driver.metrics import BASE_LABELS, Labels, Metric

LABEL_SETS_MAX: Final = 100_000
"""Of one metric. A broker with more queues than that sees the rest together."""

OTHER: Final = "other"


class LabelSets:
    """The label names of a broker's metrics, and the values of each measurement.

    * A metric has its own labels first, then those of the broker: `storage_type`,
      `storage_medium`, and what the broker says of itself.
    * Behind LABEL_SETS_MAX different sets of one metric, new ones are told as OTHER.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._base = {**BASE_LABELS, **labels}
        self._seen: dict[str, set[tuple[str, ...]]] = {}

    def names(self, metric: Metric) -> tuple[str, ...]:
        return (*metric.labels, *(name for name in self._base if name not in metric.labels))

    def values(self, metric: Metric, labels: Labels) -> tuple[str, ...]:
        own = tuple(str(labels.get(name, "")) for name in metric.labels)
        seen = self._seen.setdefault(metric.name, set())
        if own not in seen:
            if len(seen) >= LABEL_SETS_MAX:
                own = (OTHER,) * len(own)
            seen.add(own)
        others = (value for name, value in self._base.items() if name not in metric.labels)
        return (*own, *others)

    def mapping(self, metric: Metric, labels: Labels) -> dict[str, str]:
        return dict(zip(self.names(metric), self.values(metric, labels), strict=True))
