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


def test_without_what_the_command_needs_it_says_how_to_get_it() -> None:
    """The library alone is installed: the script is there, typer is not."""
    program = (
        "import sys; sys.modules['typer'] = None; "
        "from tieredstore.__main__ import main; sys.exit(main())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, "topics"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "tieredstore: typer is missing: pip install 'tieredstore[cli]'\n"
