"""Shell completion: what the shell asks for is answered, and verbs are completed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.cli.cli_kit import ROOT, Command

ASKED = {
    "bash": {"COMP_WORDS": "tieredstore se", "COMP_CWORD": "1"},
    "zsh": {"_TYPER_COMPLETE_ARGS": "tieredstore se"},
    "fish": {"_TYPER_COMPLETE_ARGS": "tieredstore se", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
}


def ran(**words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tieredstore"],
        env={**os.environ, **words, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", ASKED)
def test_verbs_are_completed(shell: str) -> None:
    told = ran(_TIEREDSTORE_COMPLETE=f"complete_{shell}", **ASKED[shell])
    assert "segments" in told
    assert "topics" not in told


@pytest.mark.parametrize("shell", ASKED)
def test_each_shell_gets_its_script(shell: str) -> None:
    script = ran(_TIEREDSTORE_COMPLETE=f"source_{shell}")
    assert "tieredstore" in script
    assert f"complete_{shell}" in script
    program = shutil.which(shell)
    if program is not None:  # else nothing here can read it
        read = subprocess.run([program, "-n"], input=script, text=True, check=False)
        assert read.returncode == 0


def test_the_help_says_how_to_get_it(command: Command) -> None:
    assert "--show-completion" in command.run("--help").out
