"""The verb `reindex`: a dry run changes nothing, a run ends with a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_kit import Command, picture
from tests.jobs.load_kit import open_tier_of
from tests.jobs.written_tier import WrittenTier, posix_config
from tieredstore.model.config import StoreConfig


@pytest.fixture
def config(tmp_path: Path) -> StoreConfig:
    config = posix_config(tmp_path, index_item_count=100)
    WrittenTier(config=config).add("orders", 0, 70)
    return config


def words_for(config: StoreConfig) -> list[str]:
    return [
        *("reindex", "--provider", "posix", "--path", config.path),
        *("--store-path", config.store_path, "--cluster", config.cluster_name),
        *("--broker", config.broker_name, "--index-slots", str(config.index_slot_count)),
        *("--index-items", str(config.index_item_count)),
    ]


def test_a_dry_run_changes_nothing(command: Command, config: StoreConfig) -> None:
    before = picture(Path(config.path))
    ran = command.run(*words_for(config), "--dry-run")
    assert (ran.code, ran.err) == (0, "")
    assert "70 messages in 1 slices" in ran.out
    assert picture(Path(config.path)) == before


def test_a_run_ends_with_a_report_and_keys_are_found(
    command: Command, config: StoreConfig, tmp_path: Path
) -> None:
    words = words_for(config)
    ran = command.run(*words, "--json", "--threads", "2", "--report", tmp_path / "report.json")
    assert ran.code == 0, ran.err
    assert [row["what"] for row in ran.rows] == ["plan", "report"]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report == {name: value for name, value in ran.rows[-1].items() if name != "what"}
    assert (report["state"], report["counts"]["keys"], report["counts"]["files"]) == (
        "done",
        180,
        2,
    )
    found = command.run("query", *words[1:], "orders", "shared-2", "--json")
    assert sorted(row["queue_offset"] for row in found.rows) == [21, 22, 23, 24, 25, 26, 28, 29]


def test_a_living_writer_is_one_line(command: Command, config: StoreConfig) -> None:
    with open_tier_of(config):
        ran = command.run(*words_for(config))
    assert (ran.code, ran.out) == (5, "")
    assert ran.err.count("\n") == 1
    assert "another process has it open" in ran.err
