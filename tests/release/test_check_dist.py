"""The checks of `make dist` before it builds environments, which takes minutes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.release.check_dist import is_release, pythons

CHANGES = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n"


def test_a_release_needs_a_section_with_its_day() -> None:
    assert is_release("0.2.0", CHANGES)
    for changes in ("", CHANGES.replace(" - 2026-12-01", ""), CHANGES.replace("0.2.0", "0.2.01")):
        with pytest.raises(SystemExit, match="no section of 0.2.0"):
            is_release("0.2.0", changes)


def test_what_no_tag_names_is_no_release() -> None:
    for version in ("0.2.1.dev7+g3c9b1d2", "0.2.1.dev0+g3c9b1d2.d20261201", "0.0"):
        assert not is_release(version, CHANGES)


def test_an_interpreter_that_does_not_run_is_passed_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shims, real = tmp_path / "shims", tmp_path / "versions" / "3.99.1" / "bin"
    for folder, line in ((shims, "exit 127"), (real, f'exec {sys.executable} "$@"')):
        folder.mkdir(parents=True)
        (folder / "python3.99").write_text(f"#!/bin/sh\n{line}\n")
        (folder / "python3.99").chmod(0o755)
    monkeypatch.setenv("PATH", f"{shims}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert list(pythons("3.99")) == [str(real / "python3.99")]
    assert list(pythons("3.98")) == []
