"""The suite that write-a-provider.md shows is one that passes, as its reader would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, page

TEXT = page("write-a-provider.md")
PROVIDER = "own_provider.py"


def test_the_example_is_as_short_as_the_page_says() -> None:
    said = re.search(r"in under ([0-9]+) lines", TEXT)
    assert said
    lines = (ROOT / "examples" / PROVIDER).read_text(encoding="utf-8").splitlines()
    assert int(said[1]) - 20 <= len(lines) < int(said[1])


@pytest.mark.slow
def test_the_suite_that_is_shown_passes(tmp_path: Path) -> None:
    """One test after the other in one process: each needs an empty backend."""
    (shown,) = (each.text for each in blocks(TEXT) if "FileSegmentContract" in each.text)
    (tmp_path / "test_my_provider.py").write_text(shown, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_provider.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert re.search(r"^[5-9][0-9] passed", ran.stdout, re.MULTILINE), ran.stdout
