"""What the package asks for: floors, no ceilings, and extras that stay out of the core.

Why floors matter so much: docs/decisions/0003-floors-no-ceilings.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
CORE = {"fsspec", "msgspec", "numpy", "tenacity", "google-crc32c"}

# The top-level modules that the extras bring. None of them is needed for the core.
OPTIONAL_MODULES = [
    "aiobotocore",
    "aiohttp",
    "boto3",
    "botocore",
    "hypothesis",
    "isal",
    "lz4",
    "matplotlib",
    "moto",
    "obstore",
    "opentelemetry",
    "prometheus_client",
    "pyarrow",
    "pyspark",
    "pytest",
    "rich",
    "s3fs",
    "typer",
    "zstandard",
]
CORE_PACKAGES = ["model", "codec", "driver", "flat", "index", "access", "local", "metadata"]

# Imports every module of the core in a Python where nothing of the extras can be imported.
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
    # Without floors pip settles on s3fs 0.4.2 of 2020, which lacks conditional writes.
    named = {requirement.name for group, requirement in requirements() if group == "s3"}
    assert {"s3fs", "aiobotocore", "boto3", "botocore"} <= named
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
