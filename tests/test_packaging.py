"""What is shipped: one top-level name, and providers and metadata as real files under it.

Builds with hatchling itself, in this environment: no network, no second environment.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOP_LEVEL = {"tieredstore", "pyspark_tieredstore"}


def hatchling(source: Path, target: str, into: Path) -> Path:
    """Build `target` from the tree at `source`; returns what was built."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)]
    ran = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (built,) = into.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def unpack(sdist: Path, into: Path) -> None:
    """Regular files only. `extractall` wants a filter since 3.12 and has none before 3.11.4."""
    with tarfile.open(sdist) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None, f"{member.name} is neither a file nor a link to one"
            path = into / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hatchling(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module", params=["checkout", "sdist"])
def wheel(
    request: pytest.FixtureRequest, sdist: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The wheel as built from the checkout, and as pip builds it from the sdist."""
    source = ROOT
    if request.param == "sdist":
        unpacked = tmp_path_factory.mktemp("unpacked")
        unpack(sdist, unpacked)
        (source,) = unpacked.iterdir()
    return hatchling(source, "wheel", tmp_path_factory.mktemp("wheel"))


def modules_of(folder: str) -> set[str]:
    """Modules under a folder of the checkout."""
    return {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py")}


def test_a_wheel_holds_providers_and_metadata_as_files_of_tieredstore(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert [name for name, times in Counter(names).items() if times > 1] == []
    wanted = modules_of("tieredstore/providers") | modules_of("tieredstore/metadata")
    assert len(wanted) > 2
    assert wanted <= set(names)
    assert "tieredstore/py.typed" in names
    assert {name for name in names if name.endswith((".pyc", ".so"))} == set()


def test_a_wheel_brings_nothing_else_to_the_top(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} <= TOP_LEVEL
    assert "tieredstore" in tops


def test_a_wheel_holds_every_module_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        modules = {name for name in archive.namelist() if name.endswith(".py")}
    assert modules == set().union(*(modules_of(top) for top in TOP_LEVEL))


def test_an_sdist_holds_what_a_build_needs_and_the_licence(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "tieredstore/providers/__init__.py"} <= names


def test_an_installed_wheel_imports_and_puts_one_name_into_site_packages(
    wheel: Path, tmp_path: Path
) -> None:
    # --isolated: whoever runs the tests may have told pip to install somewhere else.
    pip = [sys.executable, "-m", "pip", "--isolated", "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*pip, "--target", str(tmp_path), str(wheel)], check=True)
    tops = {path.name for path in tmp_path.iterdir() if path.suffix != ".dist-info"}
    # With --target the command lies beside the packages; in an environment it is in its own bin.
    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["tieredstore"]
    assert tops - {"bin"} <= TOP_LEVEL
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import tieredstore.model, tieredstore.providers.memory, tieredstore.metadata\n"
        "print(tieredstore.providers.memory.__file__)"
    )
    # -I keeps the checkout out: neither the current folder nor PYTHONPATH counts.
    command = [sys.executable, "-I", "-c", script, str(tmp_path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert Path(ran.stdout.strip()) == tmp_path / "tieredstore" / "providers" / "memory.py"


@pytest.mark.parametrize("name", ["providers", "metadata"])
def test_the_folders_at_the_top_refuse_to_be_packages_of_their_own(name: str) -> None:
    command = [sys.executable, "-c", f"import {name}"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"import it as tieredstore.{name}" in ran.stderr
    assert importlib.import_module(f"tieredstore.{name}").__name__ == f"tieredstore.{name}"


@pytest.mark.parametrize("name", ["providers", "metadata"])
def test_the_links_are_relative(name: str) -> None:
    link = ROOT / name
    assert link.is_symlink()
    assert link.readlink() == Path("tieredstore") / name
