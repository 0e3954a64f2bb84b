"""The command under test."""

from __future__ import annotations

import pytest

from tests.cli.cli_kit import Command


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)
