"""The command under test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.cli_kit import Command
from tests.cli.tier_kit import copied


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the golden tier that a test may change."""
    return copied(tmp_path / "tier")
