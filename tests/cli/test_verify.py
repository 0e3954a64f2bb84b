"""The verb `verify`: what it says, and its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.cli.cli_kit import Command
from tests.cli.tier_kit import TIER, copied, named, segment_file
from tieredstore.cli.output import ExitCode


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


def test_without_arrow_the_verb_says_what_to_install() -> None:
    """In a process of its own: modules imported anew would outlive the test in their packages."""
    program = (
        "import sys; sys.modules['pyarrow'] = None; "
        "from tieredstore.__main__ import main; sys.exit(main())"
    )
    words = [str(word) for word in ("verify", *named(TIER))]
    ended = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (ExitCode.USAGE, "")
    assert ended.stderr == "tieredstore: pyarrow is missing: pip install 'tieredstore[jobs]'\n"
