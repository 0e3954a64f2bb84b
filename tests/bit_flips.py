"""Single flipped bits in every kind of file of local stores and tiers: `python -m tests.bit_flips`.

The flips are spread evenly over a local store, a tier in a folder, a tier whose broker was killed,
and a tier in a bucket. A table shows their outcomes. A flip with a silently wrong answer is printed
and makes the run fail.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from tests.access.tier_flips import KINDS, TierFlips
from tests.local.bit_flips import Flip, Flips, Outcome
from tests.roundlog.small import everything_small

LOCAL = "local"


def wrong_flips(
    kind: str, folder: Path, *, seed: int, count: int, outcomes: Counter[tuple[str, Outcome]]
) -> Iterator[tuple[Flip, list[str]]]:
    """The flips with silently wrong answers, and the reasons; counts all outcomes by field."""
    with ExitStack() as within:
        flips: Flips | TierFlips
        if kind == LOCAL:
            flips = Flips(folder)
        else:
            within.enter_context(everything_small())
            flips = TierFlips(folder, kind)
        for flip in flips.some(seed, count):
            told = flips.wrong(flip)
            if told:
                yield flip, told
    outcomes.update(flips.outcomes)


def table(kinds: Mapping[str, Counter[tuple[str, Outcome]]], *, by_field: bool) -> Iterator[str]:
    yield f"| {'of' if not by_field else 'of, field'} | flips | {' | '.join(Outcome)} |"
    yield f"| {' | '.join(['---'] * (2 + len(Outcome)))} |"
    for kind, outcomes in kinds.items():
        rows: dict[str, Counter[Outcome]] = {}
        for (field, outcome), count in outcomes.items():
            name = f"{kind}, {field}" if by_field else kind
            rows.setdefault(name, Counter())[outcome] += count
        for name, counts in sorted(rows.items()):
            cells = (f"{counts[outcome]:,}" for outcome in Outcome)
            yield f"| {name} | {counts.total():,} | {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bit_flips", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1_000, help="flips, of all kinds together")
    parser.add_argument("--of", choices=(LOCAL, *KINDS), help="of this kind only")
    parser.add_argument("--fields", action="store_true", help="a row for each field")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # otherwise each damage would be logged
    kinds = (given.of,) if given.of else (LOCAL, *KINDS)
    found: dict[str, Counter[tuple[str, Outcome]]] = {}
    failed = 0
    for number, kind in enumerate(kinds):
        count = given.count * (number + 1) // len(kinds) - given.count * number // len(kinds)
        found[kind] = Counter()
        with tempfile.TemporaryDirectory() as folder:
            for flip, told in wrong_flips(
                kind, Path(folder), seed=given.seed, count=count, outcomes=found[kind]
            ):
                failed += 1
                print(f"{kind}: {flip}", *told, sep="\n  ", flush=True)
    print(*table(found, by_field=given.fields), sep="\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
