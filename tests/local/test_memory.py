"""The memory that a large open store takes. `bench` makes and opens the store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ALLOWED_BYTES = 50_000_000

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="only Linux tells how much memory is anonymous"
)


def figures_of(root: Path, log_files: int) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-m", "bench._sparse_store", str(root), str(log_files)],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
        text=True,
        timeout=600,
    )
    figures: dict[str, int] = json.loads(done.stdout)
    return figures


def test_opening_a_hundred_gigabytes_takes_little_memory(tmp_path: Path) -> None:
    root = tmp_path / "store"
    figures = figures_of(root, 100)
    held = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    assert held >= 100 << 30
    assert (figures["read"], figures["found"]) == (32, 32)
    assert figures["after_opening"] - figures["after_imports"] < ALLOWED_BYTES
