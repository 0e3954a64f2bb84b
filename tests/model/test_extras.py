"""A missing package is one line, in Python and in the command, that names an existing extra."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.extras import brought_by

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {
    name: {Requirement(each).name for each in wanted}
    for name, wanted in PROJECT["optional-dependencies"].items()
}
# What a user imports, the package that it needs, and the extra that brings this package; then
# the packages that have another name on PyPI.
NEEDS = {
    "import tieredstore.jobs.export": ("pyarrow", "jobs"),
    "from tieredstore.spark import load": ("pyspark", "spark"),
    "import tieredstore.exporters.prometheus": ("prometheus_client", "prometheus"),
    "import tieredstore.exporters.otel": ("opentelemetry", "otel"),
    "import tieredstore.testing.samples": ("hypothesis", "testing"),
}
SHIPPED_AS = {"prometheus_client": "prometheus-client", "opentelemetry": "opentelemetry-api"}


def test_what_is_missing_is_one_line_that_says_how_to_get_it() -> None:
    """All share one process, which forgets each of them, and all of tieredstore, in between."""
    program = "import sys\n"
    for statement, (package, _) in NEEDS.items():
        program += (
            f"for name in [name for name in sys.modules if name.startswith('tieredstore')]:\n"
            f"    del sys.modules[name]\n"
            f"sys.modules[{package!r}] = None\n"
            f"try:\n    {statement}\n"
            f"except ImportError as error:\n    print(str(error), isinstance(error, ValueError))\n"
            f"del sys.modules[{package!r}]\n"
        )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.stdout.splitlines() == [
        f"{package} is missing: pip install 'tieredstore[{extra}]' True"
        for package, extra in NEEDS.values()
    ], ran.stderr


@pytest.mark.parametrize(("package", "extra"), sorted(set(NEEDS.values())))
def test_the_extra_brings_it(package: str, extra: str) -> None:
    assert SHIPPED_AS.get(package, package) in EXTRAS[extra]


def test_every_extra_that_is_named_anywhere_exists() -> None:
    named: dict[str, set[str]] = {}
    for file in [*ROOT.glob("tieredstore/**/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]:
        text = file.read_text(encoding="utf-8")
        found = re.findall(r"(?:tieredstore|\.whl|'\.)\[([a-z0-9,]+)\]", text)
        found += re.findall(r'brought_by\("([a-z0-9]+)"\)', text)
        for words in found:
            for extra in words.split(","):
                named.setdefault(extra, set()).add(file.name)
    assert named.keys() <= EXTRAS.keys(), named
    assert {"s3", "fast", "jobs", "spark", "cli"} <= named.keys()


def test_what_tieredstore_itself_lacks_is_no_matter_of_extras() -> None:
    with pytest.raises(ModuleNotFoundError), brought_by("jobs"):
        import tieredstore.nothing  # type: ignore[import-not-found]  # noqa: F401
    with (
        pytest.raises(InvalidConfigError, match=r"nosuch is missing: .*\[jobs\]"),
        brought_by("jobs"),
    ):
        import nosuch.module  # type: ignore[import-not-found]  # noqa: F401
