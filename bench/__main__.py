"""Every benchmark, or those that are named; then one table, a picture, and the page of the docs.

python -m bench [--page] [--runs N] [name ...]

The scripts run one after the other, each in its own process. `--runs` repeats all of them, and
tells which ratios agree. `--page` runs none: it writes docs/benchmarks.md from the existing
figures, and the table of README.md from that page.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench._front import between_marks, front_of
from bench._rows import RESULTS, Row, saved, table
from bench._runs import gathered, keep, kept, section

HERE: Final = Path(__file__).parent
PAGE: Final = HERE.parent / "docs" / "benchmarks.md"
FRONT: Final = HERE.parent / "README.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("[!_]*.py"))


def run(name: str) -> int:
    print(f"== bench/{name}.py", flush=True)
    start = time.monotonic()
    code = subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode
    print(f"it took {time.monotonic() - start:.0f} s", flush=True)
    return code


def found(wanted: Sequence[str]) -> dict[str, list[Row]]:
    return {name: saved(name) for name in wanted if (RESULTS / f"{name}.json").exists()}


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def draw(figures: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Every ratio as a bar on a logarithmic scale; a mark shows the promised one."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.use("agg")

    rows = [(f"{name}: {row.what}", row) for name, rows in figures.items() for row in rows]
    rows = [(label, row) for label, row in rows if row.ratio is not None][::-1]
    figure, axes = plt.subplots(figsize=(12, 1 + 0.28 * len(rows)))
    colours = ["#2f6fb2" if row.is_kept else "#b3392f" for _, row in rows]
    axes.barh([label for label, _ in rows], [row.ratio or 0.0 for _, row in rows], color=colours)
    for place, (_, row) in enumerate(rows):
        if row.promised is not None:
            axes.plot([row.promised] * 2, [place - 0.4, place + 0.4], color="black", linewidth=2)
    axes.set_xscale("log")
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_xlabel("times the baseline; black: promised")
    axes.tick_params(axis="y", labelsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def page_of(figures: Mapping[str, Sequence[Row]], where: str) -> str:
    """The part of the page that is generated from figures."""
    lines = [f"Measured on {where}."]
    for name, rows in figures.items():
        lines += ["", f"### `make bench BENCH={name}`", ""]
        lines += [
            "| what | baseline | ours | ratio | promised |",
            "| --- | --- | --- | --- | --- |",
        ]
        for row in rows:
            promised = "" if row.promised is None else f"≥ {row.promised:.2g}"
            missed = "" if row.is_kept else " **missed**"
            lines.append(
                f"| {row.what} | {row.beside} | {row.ours} | {row.ratio_text} "
                f"| {promised}{missed} |"
            )
    repeated = section(kept())
    return "\n".join([*lines, "", *repeated] if repeated else lines)


def write_page(figures: Mapping[str, Sequence[Row]]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = page_of(figures, machine())
    PAGE.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}", encoding="utf-8")
    write_front()


def write_front() -> None:
    made = front_of(PAGE.read_text(encoding="utf-8"))
    FRONT.write_text(between_marks(FRONT.read_text(encoding="utf-8"), made), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(names())}")
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks.md, run nothing")
    parser.add_argument("--runs", type=int, default=1, help="how often, one run after the other")
    arguments = parser.parse_args()
    wanted = arguments.names or names()
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(names())}")
    if arguments.page:
        write_page(found(wanted))
        return 0
    failed: set[str] = set()
    runs: list[dict[str, list[Row]]] = []
    for _ in range(arguments.runs):
        failed |= {name for name in wanted if run(name)}
        runs.append(found(wanted))
    figures = runs[-1]
    if len(runs) > 1:
        keep(gathered(runs))
    print("\n== all of it")
    for name, rows in figures.items():
        print(f"\n{name}\n{table(rows)}")
    RESULTS.mkdir(exist_ok=True)
    together = {name: [asdict(row) for row in rows] for name, rows in figures.items()}
    document = {"machine": machine(), "benchmarks": together}
    (RESULTS / "all.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if len(runs) > 1:
        print("\n".join(["", *section(kept())]))
    if figures:
        draw(figures, RESULTS / "all.png")
        print(f"\nfigures in {RESULTS}: all.json, all.png")
    if failed:
        print(f"missed a promise, or failed: {', '.join(sorted(failed))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
