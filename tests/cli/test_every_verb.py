"""Every verb there is, on stores that Java wrote: it does its work, and says so to both readers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.cli_kit import Command, picture
from tests.cli.tier_kit import TIER
from tests.cli.verb_kit import (
    CLEAN,
    EVERY,
    ON_A_LOCAL_STORE,
    ON_A_TIER,
    Bench,
    commands,
    golden_copy,
    on_posix,
)


@pytest.fixture
def bench(command: Command, tmp_path: Path) -> Bench:
    return Bench(command, tmp_path)


def test_every_verb_has_a_row() -> None:
    assert sorted(EVERY) == sorted(commands())


@pytest.mark.parametrize("name", ON_A_TIER)
def test_a_verb_does_its_work_on_a_tier_of_java(bench: Bench, tmp_path: Path, name: str) -> None:
    bench.prepare(name)
    ran = bench.run(name, *on_posix(bench, golden_copy(tmp_path)), "--json").done()
    assert ON_A_TIER[name].holds(ran.rows), ran.out[:1000]
    assert all(isinstance(row, dict) for row in ran.rows)


@pytest.mark.parametrize("name", ON_A_TIER)
def test_people_are_told_in_words(bench: Bench, tmp_path: Path, name: str) -> None:
    bench.prepare(name)
    ran = bench.run(name, *on_posix(bench, golden_copy(tmp_path))).done()
    assert ran.out.strip()
    assert "\x1b" not in ran.out  # no colours where that is no terminal
    assert not ran.out.startswith("{")


@pytest.mark.parametrize("name", ON_A_LOCAL_STORE)
def test_a_verb_does_its_work_on_a_local_store_of_java(bench: Bench, name: str) -> None:
    before = picture(CLEAN)
    ran = bench.run(name, "--json").done()
    assert ON_A_LOCAL_STORE[name].holds(ran.rows), ran.out[:1000]
    told = bench.run(name)
    assert (told.code, told.err) == (0, ""), told
    assert told.out.strip()
    assert picture(CLEAN) == before


def test_a_local_store_of_java_is_offloaded_with_its_broker_conf(
    command: Command, tmp_path: Path
) -> None:
    store = golden_store(tmp_path)
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"storePathRootDir={store}\ntieredStoreFilePath={tmp_path / 'tier'}\nbrokerName=b\n"
        "tieredBackendServiceProvider=posix\nmappedFileSizeCommitLog=32768\n"
        "mappedFileSizeConsumeQueue=400\nmaxHashSlotNum=101\nmaxIndexNum=400\n"
    )
    (tmp_path / "tier").mkdir()
    ran = command.run("offload", "--config", conf, "--json").done()
    uploaded = [row for row in ran.rows if row["committed_offset"]]  # system topics stay
    assert all(row["committed_offset"] == row["max_offset"] for row in uploaded)
    count = sum(row["max_offset"] for row in uploaded)
    assert count > 500
    queues = command.run("queues", "--config", conf, "--json").rows
    assert sum(row["max_offset"] for row in queues) == count


def golden_store(place: Path) -> Path:
    return Path(shutil.copytree(CLEAN, place / "store"))


def test_what_java_wrote_is_still_as_java_wrote_it(bench: Bench, tmp_path: Path) -> None:
    """The rows above name copies: a verb that took the original would be seen here."""
    before = picture(TIER)
    for name in ON_A_TIER:
        bench.words(name)
    assert picture(TIER) == before
