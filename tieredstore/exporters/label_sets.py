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
    * Behind LABEL_SETS_MAX different sets of one metric, new ones are told as OTHER. What is
      forgotten makes room.
    * Any thread may ask. Two that come first at once may both make what is made.
    """

    def __init__(self, labels: Mapping[str, str], without: Collection[str] = ()) -> None:
        self._base = {**BASE_LABELS, **labels}
        self._without = frozenset(without)
        self._seen: dict[str, set[tuple[str, ...]]] = {}
        self._made: dict[str, dict[tuple[str, ...], Any]] = {}
        self._metrics: dict[str, Metric] = {}

    def names(self, metric: Metric) -> tuple[str, ...]:
        shown = (*metric.labels, *(name for name in self._base if name not in metric.labels))
        return tuple(name for name in shown if name not in self._without)

    def values(self, metric: Metric, labels: Labels, seen: set[tuple[str, ...]]) -> tuple[str, ...]:
        """The values of all labels, in the order of their names; `seen` are the sets there are."""
        own = tuple(str(labels.get(name, "")) for name in self._own_names(metric))
        if own not in seen:
            if len(seen) >= LABEL_SETS_MAX:
                own = (OTHER,) * len(own)
            seen.add(own)
        return self._whole(metric, own)

    def _own_names(self, metric: Metric) -> list[str]:
        return [name for name in metric.labels if name not in self._without]

    def _whole(self, metric: Metric, own: tuple[str, ...]) -> tuple[str, ...]:
        return (*own, *(self._base[name] for name in self.names(metric)[len(own) :]))

    def made(
        self, metric: Metric, labels: Labels, make: Callable[[Metric, tuple[str, ...]], Any]
    ) -> Any:
        """What was made of these values the first time; measuring often is not to cost much."""
        known = self._made.get(metric.name)
        if known is None:
            self._metrics[metric.name] = metric
            known = self._made.setdefault(metric.name, {})
        own = tuple([labels.get(name, "") for name in metric.labels])
        found = known.get(own)
        if found is None:
            seen = self._seen.setdefault(metric.name, set())
            found = make(metric, self.values(metric, labels, seen))
            if len(known) < LABEL_SETS_MAX:
                known[own] = found
        return found

    def forget(self, label: str, values: Collection[str]) -> list[tuple[str, tuple[str, ...]]]:
        """What was made under these values of a label is made anew; the sets that are gone.

        With the metric's name, and whole. A label that is not shown leaves nothing to take away.
        """
        wanted = frozenset(values)
        gone = []
        for name, metric in list(self._metrics.items()):
            if not wanted or label not in metric.labels:
                continue
            made, at = self._made.get(name, {}), metric.labels.index(label)
            for own in [each for each in list(made) if each[at] in wanted]:
                made.pop(own, None)
            if label in self._without:
                continue
            seen, at = self._seen.get(name, set()), self._own_names(metric).index(label)
            for own in [each for each in list(seen) if each[at] in wanted]:
                seen.discard(own)
                gone.append((name, self._whole(metric, own)))
        return gone
