"""Each example runs as a user would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("provider", ["posix", "memory"])
def test_the_demo_runs_and_cleans_up(provider: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py"), "--provider", provider],
        env={"PYTHONPATH": str(EXAMPLES.parent), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "20,000 messages put into the local store" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_what_the_demo_keeps_is_where_it_was_asked_to_be(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--keep", str(tmp_path / "kept")]
    subprocess.run(
        command, env={"PYTHONPATH": str(EXAMPLES.parent)}, check=True, capture_output=True
    )
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["store", "tier"]
