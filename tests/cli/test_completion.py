"""Shell completion: what the shell asks for is answered, and verbs are completed."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.cli.cli_kit import ROOT, Command


def test_verbs_are_completed() -> None:
    words = {
        "_TIEREDSTORE_COMPLETE": "complete_bash",
        "COMP_WORDS": "tieredstore se",
        "COMP_CWORD": "1",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "tieredstore"],
        env={**os.environ, **words, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.stdout.split() == ["segments"]


def test_the_help_says_how_to_get_it(command: Command) -> None:
    assert "--show-completion" in command.run("--help").out
