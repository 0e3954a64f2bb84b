"""What is shipped, and what it requires: floors, no ceilings, extras that the core does not need.

The tests build with hatchling in this environment, without the network or another environment.
`make dist` gives the folder of its builds in TIEREDSTORE_DIST, and these are checked instead. Why
floors matter: docs/decisions/0003-floors-no-ceilings.md.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
TOP_LEVEL = {"tieredstore", "pyspark_tieredstore"}
BUILT = os.environ.get("TIEREDSTORE_DIST")


def hatchling(source: Path, *words: str) -> str:
    """Run hatchling on the tree at `source`; return its output."""
    command = [sys.executable, "-m", "hatchling", *words]
    ran = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.strip()


def build(source: Path, target: str, into: Path) -> Path:
    """Build `target` from the tree at `source`; return the file."""
    hatchling(source, "build", "-t", target, "-d", str(into))
    return only(into, target)


def only(folder: Path, target: str) -> Path:
    (built,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def unpack(sdist: Path, into: Path) -> None:
    """Extract regular files. `extractall` wants a filter since 3.12, and has none before 3.11.4."""
    with tarfile.open(sdist) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None, f"{member.name} is neither a file nor a link to one"
            path = into / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if BUILT:
        return only(Path(BUILT), "sdist")
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module", params=["checkout", "sdist"])
def wheel(
    request: pytest.FixtureRequest, sdist: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The wheel built from the checkout, and built from the sdist, as pip does."""
    source = ROOT
    if BUILT and request.param == "checkout":
        return only(Path(BUILT), "wheel")
    if request.param == "sdist":
        unpacked = tmp_path_factory.mktemp("unpacked")
        unpack(sdist, unpacked)
        (source,) = unpacked.iterdir()
    return build(source, "wheel", tmp_path_factory.mktemp("wheel"))


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
    beside = {"py.typed", "cli/report.html", "cli/report.js"}
    assert {f"tieredstore/{name}" for name in beside} <= set(names)
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


def test_a_wheel_says_who_may_use_it_and_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        said = archive.read(info).decode()
        licence = archive.read(info.replace("METADATA", "licenses/LICENSE"))
    assert licence == (ROOT / "LICENSE").read_bytes()
    assert "License-Expression: Apache-2.0\n" in said
    assert "Requires-Python: >=3.11\n" in said
    assert "\n# tieredstore\n" in said


def test_an_sdist_holds_what_a_build_needs_and_the_licence(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "tieredstore/providers/__init__.py"} <= names


def test_the_wheel_of_an_sdist_has_its_version(sdist: Path, wheel: Path) -> None:
    assert wheel.name.split("-")[1] == sdist.name.removesuffix(".tar.gz").split("-")[1]


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of the last commit and its parent, without tags."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone: it knows its version from elsewhere")
    git(tmp_path, "clone", "--quiet", "--depth", "2", "--no-tags", ROOT.as_uri(), "clone")
    return tmp_path / "clone"


def test_a_shallow_clone_without_tags_has_a_version(clone: Path) -> None:
    assert re.fullmatch(r"0\.1\.dev\d+\+g[0-9a-f]+", hatchling(clone, "version"))


def test_a_tag_is_the_version_and_commits_after_it_are_counted(clone: Path) -> None:
    git(clone, "tag", "v9.8.7", "HEAD")
    assert hatchling(clone, "version") == "9.8.7"
    git(clone, "commit", "--quiet", "--allow-empty", "--message", "one more")
    assert re.fullmatch(r"9\.8\.8\.dev1\+g[0-9a-f]+", hatchling(clone, "version"))


def test_an_export_without_git_knows_the_tag_that_it_was_made_at(clone: Path) -> None:
    export = clone.parent / "export"
    git(clone, "archive", "--output", "../none.zip", "HEAD")
    git(clone, "tag", "v9.8.7")
    git(clone, "archive", "--output", "../tagged.zip", "HEAD")
    for name, known in (("none", "0.0"), ("tagged", "9.8.7")):
        shutil.unpack_archive(clone.parent / f"{name}.zip", export)
        assert hatchling(export, "version") == known


def test_a_copy_without_git_has_a_version(clone: Path) -> None:
    shutil.rmtree(clone / ".git")
    assert hatchling(clone, "version") == "0.0"


def test_an_installed_wheel_imports_and_puts_one_name_into_site_packages(
    wheel: Path, tmp_path: Path
) -> None:
    # --isolated: the user may have configured pip to install somewhere else.
    pip = [sys.executable, "-m", "pip", "--isolated", "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*pip, "--target", str(tmp_path), str(wheel)], check=True)
    tops = {path.name for path in tmp_path.iterdir() if path.suffix != ".dist-info"}
    # With --target the command is beside the packages; in an environment it is in its own bin.
    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["tieredstore"]
    assert tops - {"bin"} <= TOP_LEVEL
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import tieredstore.model, tieredstore.providers.memory, tieredstore.metadata\n"
        "print(tieredstore.providers.memory.__file__)"
    )
    # -I hides the checkout: neither the current folder nor PYTHONPATH counts.
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


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
CORE = {"fsspec", "msgspec", "numpy", "tenacity", "google-crc32c"}

# The top-level modules that the extras bring. The core needs none of them.
OPTIONAL_MODULES = [
    "aiobotocore",
    "aiohttp",
    "awscrt",
    "boto3",
    "botocore",
    "deltalake",
    "hypothesis",
    "isal",
    "lz4",
    "matplotlib",
    "moto",
    "obstore",
    "opentelemetry",
    "prometheus_client",
    "pyarrow",
    "pyiceberg",
    "pyspark",
    "pytest",
    "rich",
    "s3fs",
    "typer",
    "zstandard",
]
CORE_PACKAGES = ["model", "codec", "driver", "flat", "index", "access", "local", "metadata"]

# Imports every module of the core in a Python that cannot import any module of the extras.
IMPORT_THE_CORE = """
import importlib, importlib.abc, pkgutil, sys
blocked, packages = sys.argv[1].split(","), sys.argv[2].split(",")

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError(f"{name} is optional")

sys.meta_path.insert(0, Blocker())
import tieredstore
seen = {"tieredstore"}
for found in pkgutil.iter_modules(tieredstore.__path__, "tieredstore."):
    if found.name.rpartition(".")[2] not in packages:
        continue
    seen.add(found.name)
    package = importlib.import_module(found.name)
    if found.ispkg:
        for module in pkgutil.walk_packages(package.__path__, found.name + "."):
            importlib.import_module(module.name)
            seen.add(module.name)
for name in ("tieredstore.providers.memory", "tieredstore.providers.posix"):
    importlib.import_module(name)
loaded = sorted({name.partition(".")[0] for name in sys.modules} & set(blocked))
assert not loaded, loaded
print(len(seen))
"""


def test_the_changelog_has_a_day_for_each_release_the_newest_first() -> None:
    heads = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert heads[0] == "[Unreleased]"
    releases = [
        re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", head) for head in heads[1:]
    ]
    assert all(releases), heads
    found = [(Version(each[1]), each[2]) for each in releases if each]
    assert found == sorted(found, reverse=True)


def requirements() -> Iterator[tuple[str, Requirement]]:
    groups = {"core": PROJECT["dependencies"], **EXTRAS}
    for group, lines in groups.items():
        yield from ((group, Requirement(line)) for line in lines)


def bounds(requirement: Requirement) -> set[str]:
    return {specifier.operator for specifier in requirement.specifier}


def is_ourselves(requirement: Requirement) -> bool:
    return bool(requirement.name == PROJECT["name"])


def test_every_requirement_has_a_floor_and_no_ceiling() -> None:
    wrong = [
        f"{group}: {requirement}"
        for group, requirement in requirements()
        if not is_ourselves(requirement) and bounds(requirement) != {">="}
    ]
    assert not wrong, f"pip searches years of versions without floors: {wrong}"


@pytest.mark.parametrize("line", ["s3fs", "s3fs==2026.9", "s3fs>=2026.9,<2027", "s3fs~=2026.9"])
def test_a_requirement_without_floor_or_with_ceiling_is_told_apart(line: str) -> None:
    assert bounds(Requirement(line)) != {">="}


def test_a_floor_is_the_same_wherever_a_package_is_named() -> None:
    floors: dict[str, set[str]] = {}
    for _, requirement in requirements():
        if not is_ourselves(requirement):
            floors.setdefault(requirement.name, set()).add(str(requirement.specifier))
    assert {name: found for name, found in floors.items() if len(found) > 1} == {}


def test_the_core_asks_for_five_packages() -> None:
    assert {Requirement(line).name for line in PROJECT["dependencies"]} == CORE


def test_dev_holds_every_other_extra() -> None:
    (ourselves,) = (r for r in map(Requirement, EXTRAS["dev"]) if is_ourselves(r))
    assert ourselves.extras == set(EXTRAS) - {"dev"}


def test_whoever_asks_for_s3_gets_a_client_of_this_decade() -> None:
    # Without floors pip chooses s3fs 0.4.2 of 2020, which lacks conditional writes.
    named = {requirement.name for group, requirement in requirements() if group == "s3"}
    assert {"s3fs", "aiobotocore", "botocore"} <= named
    assert "boto3" not in named, "pip tries each of its releases against aiobotocore's botocore"
    assert int(version("s3fs").partition(".")[0]) >= 2026
    assert int(version("fsspec").partition(".")[0]) >= 2026


def test_the_floors_are_what_is_installed_or_older() -> None:
    too_old = [
        f"{requirement} but {version(requirement.name)} is installed"
        for _, requirement in requirements()
        if not is_ourselves(requirement)
        and not requirement.specifier.contains(version(requirement.name), prereleases=True)
    ]
    assert not too_old


def test_the_core_imports_without_any_extra() -> None:
    ran = run_blocked(IMPORT_THE_CORE)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 10, "the walk has to find the modules it imports"


def test_the_jobs_need_arrow_and_nothing_else() -> None:
    others = [name for name in OPTIONAL_MODULES if name != "pyarrow"]
    ran = run_blocked(IMPORT_THE_CORE, blocked=others, packages=["jobs"])
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 10, "the walk has to find the modules it imports"


def test_a_tier_is_migrated_without_any_extra() -> None:
    before, _, _ = IMPORT_THE_CORE.partition("import tieredstore\n")
    ran = run_blocked(before + "import tieredstore.jobs.migrate")
    assert ran.returncode == 0, ran.stderr


def test_the_blocker_blocks() -> None:
    before, _, after = IMPORT_THE_CORE.partition("import tieredstore\n")
    assert after
    ran = run_blocked(before + "import s3fs")
    assert re.search("ImportError: s3fs is optional", ran.stderr)


def run_blocked(
    script: str,
    *,
    blocked: Sequence[str] = OPTIONAL_MODULES,
    packages: Sequence[str] = CORE_PACKAGES,
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, ",".join(blocked), ",".join(packages)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
