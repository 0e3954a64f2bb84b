"""An export into a table that is killed at random moments, and run again until it is done.

KILLS=20 makes more kills, KILLS_SEED=n repeats the dice of a run.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.jobs.dying import LAKE_STEPS, STEPS_MAX, dying
from tests.jobs.written_tier import WrittenTier, body_of, posix_config
from tieredstore.jobs.export_ledger import Ledger

KILLS = int(os.environ.get("KILLS", "4"))
SEED = int(os.environ.get("KILLS_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
QUEUES = [("orders", 0), ("payments", 3)]


class DeltaLake:
    """What a reader of Delta tables finds if it knows nothing about us."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def target(self, name: str) -> str:
        return str(self._place / name)

    def found(self, name: str) -> tuple[pa.Table | None, str]:
        """All rows, and the packed offsets of the newest commit."""
        if not deltalake.DeltaTable.is_deltatable(self.target(name)):
            return None, ""
        table = deltalake.DeltaTable(self.target(name))
        return table.to_pyarrow_table(), table.history(1)[0].get("tieredstore.offsets", "")


class IcebergLake:
    """The same for Iceberg tables in an SQLite catalogue."""

    def __init__(self, place: Path) -> None:
        self._catalog = catalog_in(place)

    def target(self, name: str) -> str:
        return f"lake.{name}"

    def found(self, name: str) -> tuple[pa.Table | None, str]:
        catalog = SqlCatalog("default", **self._catalog)
        try:
            if not catalog.table_exists(self.target(name)):
                return None, ""
            table = catalog.load_table(self.target(name))
            snapshot = table.current_snapshot()
            if snapshot is None or snapshot.summary is None:
                return table.scan().to_arrow(), ""
            offsets = snapshot.summary.additional_properties["tieredstore.offsets"]
            return table.scan().to_arrow(), offsets
        finally:
            catalog.close()


def catalog_in(place: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{place}/catalog.db",
        "warehouse": f"file://{place}/warehouse",
    }


LAKES: dict[str, type[DeltaLake | IcebergLake]] = {"delta": DeltaLake, "iceberg": IcebergLake}


def check(lake: DeltaLake | IcebergLake, name: str) -> dict[str, int]:
    """Check that the table has once each row that its offsets name; return where the queues end."""
    table, packed = lake.found(name)
    ledger = Ledger.unpacked("", packed) if packed else Ledger()
    ends = {source.split("/", 2)[2]: end for source, ((_, end),) in ledger.exported.items()}
    assert all(held[0][0] == 0 for held in ledger.exported.values())
    names = ("topic", "queue_id", "queue_offset", "body")
    columns = [] if table is None else [table[name].to_pylist() for name in names]
    found = Counter(zip(*columns, strict=True))
    wanted = Counter(
        (source.split("/")[0], int(source.split("/")[1]), offset, body_of(offset, 50))
        for source, end in ends.items()
        for offset in range(end)
    )
    assert found == wanted
    return ends


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAKES)
def test_a_run_killed_at_any_time_shows_all_or_nothing_and_the_next_goes_on(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of the kills fall anywhere, a third in the commit, a third after it; every fourth
    try begins a new table."""
    print(f"\nKILLS_SEED={SEED}")
    dice, counts = random.Random(SEED), Counter[str]()
    tier = WrittenTier(config=posix_config(tmp_path))
    for name, text in catalog_in(tmp_path).items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__DEFAULT__{name.upper()}", text)

    def grown() -> dict[str, int]:
        for key in QUEUES:
            tier.add(*key, dice.randrange(1, 40))
        return {f"{key.topic}/{key.queue_id}": end for key, end in tier.ends.items()}

    lake, name = LAKES[kind](tmp_path), "measured"
    with dying(kind) as process:
        lengths = list[float]()
        for step in range(len(LAKE_STEPS)):
            grown()
            lengths.append(process.seconds(step, tmp_path, lake.target(name)))
        for number in range(4 * KILLS):
            if number % 4 == 0:
                name = f"table{number}"
            places, step = (tmp_path, lake.target(name)), number % len(lengths)
            before, wanted = check(lake, name), grown()
            seconds = dice.uniform(0.0005, lengths[step])
            was_killed = process.run(step, *places, seconds=seconds) is None
            lengths[step] *= 1.1 if was_killed else 0.8  # keeps moments near the end of its work
            after = check(lake, name)
            assert after in ([before, wanted] if was_killed else [wanted])
            counts["all is there" if after == wanted else "nothing is there"] += was_killed
            is_last = counts.total() == KILLS
            if number % 2 or is_last:
                assert process.run(STEPS_MAX, *places) is not None
                assert check(lake, name) == wanted
            if is_last:
                break
    print(f"{kind}: {counts.total()} kills:", dict(counts))
    assert counts.total() == KILLS
