"""Labels and gauges in the form that both exporters need."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from tieredstore.driver.metrics import BASE_LABELS, GaugeRead, Labels, Metric
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.printable import log_of

log = log_of(__name__)

LABEL_SETS_MAX: Final = 100_000
"""For each metric. The queues above this number are counted together."""

OTHER: Final = "other"
_TIMES: Final = ("seconds", "milliseconds")


class LabelSets:
    """The label names of a broker's metrics, and the values of each measurement.

    * A metric has its own labels first, then those of the broker: `storage_type`,
      `storage_medium`, and what the broker says about itself. Labels in `without` are left out.
    * After LABEL_SETS_MAX different sets of one metric, new ones are shown as OTHER. Forgotten
      sets make room.
    * Any thread may call. If two threads are the first at the same time, both may call `make`.
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
        """The values of all labels, in the order of their names; `seen` are the known sets."""
        own = tuple(_shown(labels.get(name, "")) for name in self._own_names(metric))
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
        """What `make` returned for these values the first time, so that measuring stays cheap."""
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
        """Forget all that was made for these values of a label; returns the forgotten sets.

        Each comes with the name of its metric and the values of all its labels. A label that is not
        shown forgets no set.
        """
        wanted = frozenset(values)
        gone = []
        for name, metric in list(self._metrics.items()):
            if not wanted or label not in metric.labels:
                continue
            made, at = self._made.get(name, {}), metric.labels.index(label)
            for own in [shown for shown in list(made) if shown[at] in wanted]:
                made.pop(own, None)
            if label in self._without:
                continue
            seen, at = self._seen.get(name, set()), self._own_names(metric).index(label)
            for own in [shown for shown in list(seen) if shown[at] in wanted]:
                seen.discard(own)
                gone.append((name, self._whole(metric, own)))
        return gone


def _shown(value: object) -> str:
    """The value as text, with surrogates escaped: half a surrogate pair, as in a group's name,
    would make the whole page fail."""
    return str(value).encode(errors="backslashreplace").decode()


class Instruments:
    """The instruments of an exporter by the names of their metrics. Each is made once; any thread
    may call."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._made: dict[str, Any] = {}

    def of(self, metric: Metric, make: Callable[[], Any]) -> Any:
        found = self._made.get(metric.name)
        if found is not None:
            return found
        with self._guard:
            if metric.name not in self._made:
                self._made[metric.name] = make()
            return self._made[metric.name]

    def known(self, name: str) -> Any:
        """The instrument of this name; KeyError if there is none yet."""
        return self._made[name]


class GaugeReads:
    """The readers of each gauge, and of each counter that is kept elsewhere.

    * If several readers return values for the same labels, these are added up; of times, the
      longest counts.
    * A reader that fails is left out of that export; this is logged.
    """

    def __init__(self, labels: LabelSets) -> None:
        self._labels = labels
        self._guard = threading.Lock()
        self._reads: dict[Metric, list[GaugeRead]] = {}

    def add(self, metric: Metric, read: GaugeRead) -> bool:
        """Add a reader; returns whether it is the first of this gauge."""
        with self._guard:
            reads = self._reads.setdefault(metric, [])
            reads.append(read)
            return len(reads) == 1

    def metrics(self) -> list[Metric]:
        with self._guard:
            return list(self._reads)

    def read(self, metric: Metric) -> dict[tuple[str, ...], float]:
        """The values of a gauge by the values of all its labels, in the order of their names."""
        with self._guard:
            reads = list(self._reads.get(metric, ()))
        found: dict[tuple[str, ...], float] = {}
        seen: set[tuple[str, ...]] = set()  # only in this export: sets that are gone take no room
        for read in reads:
            try:
                shown = [(value, self._labels.values(metric, own, seen)) for value, own in read()]
            except (TieredStoreError, OSError) as error:
                log.debug("%s is not exported now: %s", metric.name, error)
                continue
            for value, labels in shown:
                before = found.get(labels, 0.0)
                longest = metric.unit in _TIMES
                found[labels] = max(before, value) if longest else before + value
        return found
