"""What it costs to use a broker's store that has grown tenfold and a hundredfold.

Queues, segments, messages, keys and open readers grow one by one, each size in its own process. The
time of an operation at 100 is compared with ten times its time at 10: a ratio below 1 means that it
grows faster than what it works on. Prints one table, draws `growth.png`, exits with 1 if a promise
is missed:

    python -m bench.growth
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench._grown_store import WAYS
from bench._rows import RESULTS, Row, report, turns_row

TURNS: Final = 3
TIMES: Final = (1, 10, 100)
BASES: Final = {"queues": 20, "segments": 20, "messages": 20, "keys": 20, "readers": 1}
HUNDREDS: Final = ("messages", "keys")  # a base of 20 is 2,000 of these
LINEAR_PROMISED: Final = 0.5  # a hundredfold store leaves the processor's caches
MEGABYTES_MIN: Final = 4.0  # smaller figures show only the allocator's steps

Figures = dict[tuple[str, int], dict[str, list[float]]]


def measured(way: str, size: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        build, measure = (
            [sys.executable, "-m", "bench._grown_store", step, way, str(size), folder]
            for step in ("build", "measure")
        )
        subprocess.run(build, check=True)
        done = subprocess.run(measure, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def figures() -> Figures:
    found: Figures = {}
    for _ in range(TURNS):
        for way in WAYS:
            for times in TIMES:
                kept = found.setdefault((way, times), {})
                for what, value in measured(way, BASES[way] * times).items():
                    kept.setdefault(what, []).append(value)
    return found


def rows_of(found: Figures) -> Iterator[Row]:
    factor = TIMES[2] // TIMES[1]
    for way in WAYS:
        count = BASES[way] * TIMES[2] * (100 if way in HUNDREDS else 1)
        some, many = found[way, TIMES[1]], found[way, TIMES[2]]
        for what, grown in many.items():
            if what == "memory" and max(grown) < MEGABYTES_MIN:
                continue
            yield turns_row(
                f"{what}, {count:,} {way} ({factor} times a tenth of them)",
                [value * factor for value in some[what]],
                grown,
                unit="MB" if what == "memory" else "s",
                promised=LINEAR_PROMISED,
            )


def draw(found: Figures, path: Path) -> None:
    """Each operation as a line over the size, on two logarithmic scales; dotted: linear growth."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.use("agg")
    picture, places = plt.subplots(1, len(WAYS), figsize=(4.4 * len(WAYS), 4.2), sharey=True)
    for axes, way in zip(places, WAYS, strict=True):
        for what in found[way, 1]:
            if what == "memory":
                continue
            middles = [sorted(found[way, times][what])[TURNS // 2] for times in TIMES]
            axes.plot(TIMES, middles, marker="o", label=what)
        axes.plot(TIMES, [1e-3 * times for times in TIMES], ":", color="grey")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(f"{way}, from {BASES[way]}")
        axes.legend(fontsize=6)
    places[0].set_ylabel("seconds")
    picture.tight_layout()
    picture.savefig(path, dpi=110)


def main() -> int:
    found = figures()
    RESULTS.mkdir(exist_ok=True)
    draw(found, RESULTS / "growth.png")
    return report("growth", list(rows_of(found)))


if __name__ == "__main__":
    sys.exit(main())
