"""The labels of one measurement as the values that an instrument is asked with.

What lives here: `LabelSets`, which keeps their number bounded. It knows no client library.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from tieredstore.driver.metrics import BASE_LABELS, Labels, Metric

LABEL_SETS_MAX: Final = 100_000
"""Of one metric. A broker with more queues than that sees the rest together."""

OTHER: Final = "other"


class LabelSets:
    """The label names of a broker's metrics, and the values of each measurement.

    * A metric has its own labels first, then those of the broker: `storage_type`,
      `storage_medium`, and what the broker says of itself. Those of `without` are left out.
    * Behind LABEL_SETS_MAX different sets of one metric, new ones are told as OTHER.
    """

    def __init__(self, labels: Mapping[str, str], without: Collection[str] = ()) -> None:
        self._base = {**BASE_LABELS, **labels}
        self._without = frozenset(without)
        self._seen: dict[str, set[tuple[str, ...]]] = {}
        self._made: dict[str, dict[tuple[str, ...], Any]] = {}

    def names(self, metric: Metric) -> tuple[str, ...]:
        shown = (*metric.labels, *(name for name in self._base if name not in metric.labels))
        return tuple(name for name in shown if name not in self._without)

    def values(self, metric: Metric, labels: Labels) -> tuple[str, ...]:
        own = tuple(
            str(labels.get(name, "")) for name in metric.labels if name not in self._without
        )
        seen = self._seen.setdefault(metric.name, set())
        if own not in seen:
            if len(seen) >= LABEL_SETS_MAX:
                own = (OTHER,) * len(own)
            seen.add(own)
        names = self.names(metric)[len(own) :]
        return (*own, *(self._base[name] for name in names))

    def made(self, metric: Metric, labels: Labels, make: Callable[[tuple[str, ...]], Any]) -> Any:
        """What was made of these values the first time; measuring often is not to cost much."""
        known = self._made.get(metric.name)
        if known is None:
            known = self._made.setdefault(metric.name, {})
        own = tuple([labels.get(name, "") for name in metric.labels])
        found = known.get(own)
        if found is None:
            found = make(self.values(metric, labels))
            if len(known) < LABEL_SETS_MAX:
                known[own] = found
        return found
