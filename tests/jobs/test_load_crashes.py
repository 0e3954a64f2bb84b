"""A driver killed at any step of a load: all of it or nothing, and after the re-run each message
once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.dying_load import LOADED, NEW, OLD, config_in, die_at, load
from tests.jobs.load_kit import assert_found, bodies, names_of, report_of
from tests.jobs.written_tier import WrittenTier
from tieredstore.access.reader import TieredReader
from tieredstore.model.config import StoreConfig

PRESENT = 20  # messages of the old queue before the load
MANY = 1_000


def tier_in(folder: Path) -> StoreConfig:
    config = config_in(folder)
    WrittenTier(config=config).add(*OLD, PRESENT, seal=True)
    return config


def loaded_counts(config: StoreConfig) -> tuple[int, int]:
    with TieredReader.open(config) as reader:
        counts = [reader.max_offset(*key) or 0 for key in (OLD, NEW)]
    return counts[0] - PRESENT, counts[1]


def check_a_death_at(steps: list[int], place: Path) -> None:
    folders = [place / str(step) for step in steps]
    configs = [tier_in(folder) for folder in folders]
    said = die_at("load", list(zip(folders, steps, strict=True)))
    assert said == ["killed"] * len(steps)
    outcomes = set()
    for config in configs:
        counts = loaded_counts(config)
        assert counts in ((0, 0), (90, 60))
        outcomes.add(counts)
        load(config, "again")
        assert bodies(config, OLD)[PRESENT:] == names_of(OLD, range(90))
        assert bodies(config, NEW) == names_of(NEW, range(60))
        assert_found(config, LOADED)
        assert report_of(config).findings == ()
    assert len(outcomes) == 2


def count_of_steps(place: Path) -> int:
    tier_in(place)
    (said,) = die_at("load", [(place, MANY)])
    return MANY - int(said.removeprefix("left "))


def test_a_killed_driver_loads_all_or_nothing(tmp_path: Path) -> None:
    count = count_of_steps(tmp_path / "whole")
    check_a_death_at([count // 2, *range(count - 5, count, 2)], tmp_path)


@pytest.mark.slow
def test_at_any_step(tmp_path: Path) -> None:
    check_a_death_at(list(range(count_of_steps(tmp_path / "whole"))), tmp_path)
