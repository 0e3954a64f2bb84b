"""The verb `verify`: what it says, and its exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.cli_kit import Command
from tests.cli.tier_kit import TIER, asked, copied, named, segment_file
from tieredstore.cli.failures import ExitCode


def test_a_sound_tier_is_told_to_be_so(command: Command) -> None:
    ran = command.run("verify", *named(TIER, store_path=TIER / "store"))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "9 queues with 533 messages, 346788 bytes are to be read",
        "read 533 messages, 1279 keys, 1324 entries: nothing is wrong",
    ]


def test_damage_is_named_in_words_and_in_json_and_ends_with_4(
    command: Command, tmp_path: Path
) -> None:
    root = copied(tmp_path / "tier")
    path = segment_file(root, "GoldBB/0", "CONSUME_QUEUE", 400)
    data = bytearray(path.read_bytes())
    data[19] ^= 1
    path.write_bytes(data)
    options = named(root, store_path=root / "store")
    ran = command.run("verify", *options)
    assert ran.code == 4
    assert ran.err.startswith("tieredstore: verify: found tags-code: ")
    assert "message 20: its unit has tags code" in ran.out
    ran = command.run("verify", *options, "--json", "--report", tmp_path / "report.json")
    assert [row["what"] for row in ran.rows] == ["plan", "report"]
    (finding,) = ran.rows[1]["findings"]
    assert (finding["severity"], finding["kind"]) == ("damage", "tags-code")
    assert (finding["topic"], finding["queue_id"], finding["queue_offset"]) == ("GoldBB", 0, 20)
    assert json.loads((tmp_path / "report.json").read_text())["findings"] == [finding]


def test_a_dry_run_says_what_would_be_read(command: Command) -> None:
    ran = command.run("verify", *named(TIER), "--dry-run", "--topic", "GoldAa")
    assert ran.code == 0
    assert ran.out.startswith("3 queues with 199 messages, ")


def test_without_arrow_the_verb_says_what_to_install(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("tieredstore.jobs")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    ran = asked(command, TIER, "verify")
    assert ran.code == ExitCode.USAGE
    assert ran.err == "tieredstore: pyarrow is missing: pip install 'tieredstore[jobs]'\n"
