"""The layer contracts hold, and each of them fails when it should.

`make layers` runs the same contracts on the checkout. These tests run them on copies in which one
module imports what it must not.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("aio", "cli", "spark", "jobs", "access", "index", "flat", "local")
RUN = "from importlinter.cli import lint_imports_command; lint_imports_command()"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the packages, in which layers that are not written yet exist as well."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tieredstore", tmp_path / "tieredstore", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for layer in LAYERS:
        package = tmp_path / "tieredstore" / layer
        if not package.with_suffix(".py").exists():
            package.mkdir(exist_ok=True)
            (package / "__init__.py").touch()
    (tmp_path / "tieredstore" / "access" / "wiring.py").touch()
    return tmp_path


def broken_contracts(tree: Path) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-c", RUN, "--no-cache"],
        cwd=tree,
        env={"PYTHONPATH": str(tree), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Contracts:" in ran.stdout, ran.stdout + ran.stderr
    broken = {line for line in ran.stdout.splitlines() if " BROKEN" in line}
    assert bool(broken) == bool(ran.returncode)
    return broken


def put_import(tree: Path, module: str, line: str) -> None:
    path = tree / module
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    with path.open("a", encoding="utf-8") as source:
        source.write(f"\n{line}\n")


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("tieredstore/access/wiring", "import tieredstore.driver.registry"),
        ("tieredstore/access", "import tieredstore.index, tieredstore.codec.java"),
        ("tieredstore/cli", "import tieredstore.local, tieredstore.jobs"),
        ("tieredstore/spark", "import pyspark, tieredstore.jobs"),
        ("tieredstore/aio", "import asyncio, tieredstore.access"),
        ("tieredstore/providers/memory", "import boto3, s3fs"),
        ("tieredstore/providers/memory", "import tieredstore.roundlog, tieredstore.metadata"),
        ("tieredstore/roundlog", "import tieredstore.metadata, tieredstore.driver.segment"),
    ],
)
def test_what_a_layer_may_import_breaks_nothing(tree: Path, module: str, line: str) -> None:
    put_import(tree, module, line)
    assert broken_contracts(tree) == set()


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("tieredstore/codec/java", "import tieredstore.driver.segment", "Access over"),
        ("tieredstore/driver/segment", "import tieredstore.codec.java", "Access over"),
        ("tieredstore/flat", "import tieredstore.index", "Access over"),
        ("tieredstore/access", "import tieredstore.jobs", "Access over"),
        ("tieredstore/aio", "import tieredstore.cli", "Access over"),
        ("tieredstore/roundlog", "import tieredstore.providers.memory", "Access over"),
        ("tieredstore/metadata", "import tieredstore.roundlog", "Access over"),
        ("tieredstore/local", "import tieredstore.metadata", "Access over"),
        ("tieredstore/metadata", "import tieredstore.providers.memory", "Access over"),
        ("tieredstore/providers/memory", "import tieredstore.flat", "Access over"),
        ("tieredstore/testing", "import tieredstore.providers.memory", "Access over"),
        ("tieredstore/access/wiring", "import tieredstore.providers.memory", "lie above"),
        ("tieredstore/flat", "def f():\n    from tieredstore import metadata", "lie above"),
        ("tieredstore/jobs", "import tieredstore.local", "lie above"),
        ("tieredstore/flat", "import tieredstore.roundlog", "lie above"),
        ("tieredstore/driver/segment", "def f():\n    import s3fs", "clients of stores"),
        ("tieredstore/jobs", "import pyspark.sql", "pyspark only"),
        ("tieredstore/access", "import tieredstore.driver.registry", "access/wiring.py"),
        ("tieredstore/jobs", "from tieredstore.driver import registry", "access/wiring.py"),
        ("tieredstore/driver/segment", "import asyncio", "only aio"),
        ("tieredstore/providers/memory", "from asyncio import Lock", "only aio"),
        ("tieredstore/codec/checks", "import tieredstore.codec.message", "No circles"),
        ("tieredstore/model/errors", "def f():\n    import tieredstore.model.values", "No circles"),
    ],
)
def test_a_forbidden_import_breaks_its_contract(
    tree: Path, module: str, line: str, contract: str
) -> None:
    put_import(tree, module, line)
    broken = broken_contracts(tree)
    assert any(contract in name for name in broken), broken


def test_a_module_without_a_layer_breaks_the_first_contract(tree: Path) -> None:
    (tree / "tieredstore" / "somewhere.py").touch()
    assert any("Access over" in name for name in broken_contracts(tree))
