"""The names of the package: all there, each from one place, none imported before it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tieredstore


def test_every_public_name_can_be_had() -> None:
    for name in tieredstore.__all__:
        assert getattr(tieredstore, name) is not None


def test_what_a_type_checker_sees_is_what_a_program_gets() -> None:
    tree = ast.parse(Path(tieredstore.__file__).read_text())
    seen = {
        alias.name: (node.module or "").removeprefix("tieredstore.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tieredstore.")
        for alias in node.names
    }
    assert seen == tieredstore._HOMES
    assert sorted([*seen, "__version__"]) == sorted(tieredstore.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Tiered'"):
        tieredstore.Tiered  # noqa: B018


def test_the_package_alone_imports_nothing_heavy() -> None:
    code = "import sys, tieredstore; print(*sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "fsspec", "typer", "tieredstore.access"} & set(found.stdout.split())
