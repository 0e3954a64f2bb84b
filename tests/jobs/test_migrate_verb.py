"""`tieredstore migrate`: what it prints, what it ends with, and what it says of mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_kit import Command
from tests.cli.tier_kit import CATALOGUE, TIER, copied, named
from tests.jobs.growing_tier import broker_on, tier_at
from tests.jobs.migrate_kit import files, posix
from tests.jobs.verify_kit import golden_config
from tieredstore.access.reader import TieredReader
from tieredstore.cli import submit
from tieredstore.index.watermarks import Watermarks
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def to(place: Path) -> list[str]:
    return [
        *("--to-provider", "posix", "--to-path", str(place / "tiered")),
        *("--to-metadata", str(place / "store/config/tieredStoreMetadata.json")),
    ]


def test_the_plan_is_told_first_and_a_dry_run_ends_there(command: Command, tmp_path: Path) -> None:
    ran = command.run("migrate", *named(TIER), *to(tmp_path), "--dry-run")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "57 segments of 9 queues, 346788 bytes",
        "to copy: 57 segments, 346788 bytes",
    ]
    assert not list(tmp_path.iterdir())


def test_for_programs_the_plan_and_the_report_are_a_line_each(
    command: Command, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    words = ["migrate", *named(TIER), *to(tmp_path / "new"), "--json", "--report", report]
    ran = command.run(*words)
    assert (ran.code, ran.err) == (0, "")
    plan, done = ran.rows
    assert (plan["what"], plan["bytes"]["to_copy"]) == ("plan", 346788)
    assert (done["what"], done["state"], done["counts"]["copied"]) == ("report", "done", 57)
    assert json.loads(report.read_text()) == {
        name: value for name, value in done.items() if name != "what"
    }


def test_a_report_that_has_no_place_is_told_before_the_work(
    command: Command, tmp_path: Path
) -> None:
    words = ["migrate", *named(TIER), *to(tmp_path / "new"), "--report", tmp_path / "no/r.json"]
    ran = command.run(*words)
    assert (ran.code, ran.out) == (3, "")
    assert ran.err == f"tieredstore: --report {tmp_path}/no/r.json: there is no such directory\n"
    assert not list(tmp_path.iterdir())


def test_the_cut_over_prints_settings_that_open_the_target(
    command: Command, tmp_path: Path
) -> None:
    root, new = copied(tmp_path / "old"), tmp_path / "new"
    ran = command.run("migrate", *named(root), *to(new), "--cut-over")
    assert ran.code == 0
    settings = tmp_path / "printed.toml"
    settings.write_text(ran.out[ran.out.index("[tieredstore]") :])
    with TieredReader(StoreConfig.from_file(settings)) as reader:
        assert len(reader.queues()) == 9
    assert files(posix(new)) == files(golden_config())


@pytest.mark.parametrize("is_javas", [True, False])
def test_the_settings_that_are_printed_are_those_that_the_tier_was_made_with(
    command: Command, tmp_path: Path, is_javas: bool
) -> None:
    root, new = copied(tmp_path / "old"), tmp_path / "new"
    if not is_javas:
        with JsonMetadataStore.open(root / CATALOGUE) as metadata:
            metadata.apply([Watermarks.sizes(slot_count=64, item_capacity=300)])
    words = [*named(root, index_slots=None, index_items=None), *to(new)]
    assert "--index-slots" not in words
    for run in range(2):  # the second one finds that it was cut over before
        ran = command.run("migrate", *words, "--cut-over", "--report", tmp_path / f"{run}.json")
        assert ran.code == 0
        told = json.loads((tmp_path / f"{run}.json").read_text())["facts"]["config"]
        if run == 0:
            assert told in ran.out
        settings = tmp_path / "printed.toml"
        settings.write_text(told)
        found = StoreConfig.from_file(settings)
        assert found.index_slot_count == 64
        assert is_javas or found.index_item_count == 300


def test_settings_in_files_name_both_sides(command: Command, tmp_path: Path) -> None:
    old, new = tmp_path / "old.conf", tmp_path / "new.toml"
    old.write_text(
        "brokerClusterName=GoldenCluster\nbrokerName=broker-gold-a\n"
        "tieredBackendServiceProvider=org.apache.rocketmq.tieredstore.provider.PosixFileSegment\n"
        f"tieredStoreFilePath={TIER}/tiered\nstorePathRootDir={TIER}/store\n"
        "tieredStoreIndexFileMaxHashSlotNum=64\ntieredStoreIndexFileMaxIndexNum=300\n"
    )
    new.write_text(
        f'provider = "posix"\npath = "{tmp_path}/tiered"\nstore_path = "{tmp_path}/store"\n'
        "index_slot_count = 64\nindex_item_count = 300\n"
    )
    assert command.run("migrate", "--config", old, "--to", new).code == 0
    assert files(posix(tmp_path)) == files(golden_config())


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (2, [], "where to? Name the target with --to FILE"),
        (2, ["--to-provider", "posix", "--to-path", "x"], "--to-metadata FILE"),
        (3, ["--to", "no.toml"], "no.toml: there is no such file"),
        (3, ["TO", "--topic", "nix"], "no topic is called 'nix'; there are: %RETRY%gold_group"),
        (2, ["TO", "--engine", "hadoop"], "--engine"),
        (2, ["TO", "--adopt", "--rename-broker", "x"], "--rename is for a move"),
        (2, ["SAME"], "source and target are the same tier"),
    ],
)
def test_a_mistake_is_one_line_and_a_code(
    command: Command, tmp_path: Path, code: int, words: list[str], told: str
) -> None:
    where = {
        "TO": to(tmp_path),
        "SAME": [
            *("--to-provider", "posix", "--to-path", str(TIER / "tiered")),
            *("--to-metadata", str(tmp_path / "new.json")),
        ],
    }
    spread = [each for word in words for each in where.get(word, [word])]
    ran = command.run("migrate", *named(TIER), *spread)
    assert (ran.code, ran.out) == (code, "")
    assert told in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_root_that_is_not_there_is_told(command: Command, tmp_path: Path) -> None:
    ran = command.run("migrate", *named(TIER, path=tmp_path / "nowhere"), *to(tmp_path))
    assert (ran.code, len(ran.err.splitlines())) == (3, 1)
    assert "there is no such directory" in ran.err


def test_a_catalogue_that_is_not_there_is_told(command: Command, tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"
    ran = command.run("migrate", *named(TIER, metadata=missing), *to(tmp_path / "new"))
    assert ran.code != 0
    assert len(ran.err.splitlines()) == 1
    assert str(missing) in ran.err
    assert not (tmp_path / "new").exists()


def test_a_live_broker_is_refused_in_one_line(command: Command, tmp_path: Path) -> None:
    source = tier_at(tmp_path / "old")
    words = [
        *("migrate", "--provider", "posix", "--path", source.path, "--broker", "broker-a"),
        *("--store-path", source.store_path, *to(tmp_path / "new"), "--cut-over"),
    ]
    with broker_on(source) as broker:
        broker.put(3)
        ran = command.run(*words)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (5, "", 1)
    assert "a broker is running on this store: stop it first" in ran.err
    assert command.run(*words).code == 0


def test_the_script_for_spark_has_the_same_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A dry run waits for no JVM."""
    assert submit.main(["migrate", *named(TIER), *to(tmp_path), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "57 segments of 9 queues, 346788 bytes"
