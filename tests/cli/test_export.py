"""The verb `export`: its options, and what it says where they are wrong."""

from __future__ import annotations

from pathlib import Path

from tests.cli.cli_kit import Command
from tests.cli.tier_kit import TIER, named
from tests.jobs.export_kit import table


def test_messages_of_a_time_come_out_as_parquet(command: Command, tmp_path: Path) -> None:
    words = (*named(TIER), "--to", tmp_path, "--topic", "GoldB?")
    times = ("--begin", "2026-11-20T10:45:40Z", "--end", "1795171545000")
    ran = command.run("export", *words, *times, "--columns", "queue_id,store_time")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[-1].startswith("exported ")
    found = table(tmp_path)
    assert found.column_names == ["queue_id", "store_time", "topic", "day"]
    assert set(found.column("topic").to_pylist()) == {"GoldBB"}
    stamps = [round(each.timestamp() * 1000) for each in found.column("store_time").to_pylist()]
    assert stamps
    assert 1795171540000 <= min(stamps) <= max(stamps) < 1795171545000
    ran = command.run("export", *words, *times, "--columns", "queue_id,store_time", "--json")
    assert ran.rows[1]["counts"]["messages"] == 0


def test_wrong_words_are_told_in_one_line(command: Command, tmp_path: Path) -> None:
    for words, told in (
        ((), "Name a directory or a URL with --to"),
        (("--to", tmp_path, "--begin", "soon"), "--begin: 'soon' is no time"),
        (("--to", tmp_path, "--columns", "bodi"), "columns: 'bodi' cannot be exported"),
        (("--to", tmp_path, "--topic", "Silver"), "no topic is called 'Silver'"),
        (("--to", tmp_path, "--on-corrupt", "maybe"), "'maybe'"),
    ):
        ran = command.run("export", *named(TIER), *words)
        assert ran.code == (3 if "Silver" in words else 2), words
        assert ran.out == ""
        assert told in ran.err
        assert len(ran.err.splitlines()) == 1
