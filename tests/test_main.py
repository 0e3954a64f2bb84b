"""`python -m tieredstore` is the command line."""

from __future__ import annotations

import subprocess
import sys

from tieredstore.cli.main import main


def test_the_package_runs_as_the_command_does() -> None:
    arguments = ["local", "no-such-command"]
    code = main(arguments)
    ended = subprocess.run(
        [sys.executable, "-m", "tieredstore", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert code != 0
    assert ended.returncode == code
    assert "no-such-command" in ended.stderr
