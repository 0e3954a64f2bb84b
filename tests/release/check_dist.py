"""`make dist`: builds an sdist and a wheel, checks them, and installs them in empty environments.

    python -m tests.release.check_dist

Each Python from 3.11 to 3.14 on this machine gets two empty environments: one with the newest
versions of the wheel's requirements, and one with the lowest that it allows. tests/release/smoke.py
runs in both. Finally a pip of 2023 installs the extra `s3`, and is timed.

uv and twine get their own environment in build/dist.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.s3.moto_server import moto_server

ROOT: Final = Path(__file__).parents[2]
DIST, BUILD = ROOT / "dist", ROOT / "build" / "dist"
BIN: Final = BUILD / "tools" / "bin"
TOOLS: Final = ("uv>=0.9", "twine>=6.2")
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
# The extras for users, without Spark, which has its own tests with Java.
EXTRAS: Final = (
    "cli",
    "s3",
    "fast",
    "jobs",
    "delta",
    "iceberg",
    "compression",
    "prometheus",
    "otel",
)
PIP: Final = "pip==23.0"
TRIED_MAX: Final = 3  # versions of one package: more is a search, which grows with each release


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.rmtree(BUILD, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(BUILD / "tools")], check=True)
    subprocess.run([str(BIN / "pip"), "install", "--quiet", *TOOLS], check=True)
    uv("build", "--quiet", "--python", sys.executable, "--out-dir", str(DIST))
    (wheel,) = DIST.glob("*.whl")
    (sdist,) = DIST.glob("*.tar.gz")
    say(f"built {sdist.name} and {wheel.name}")
    subprocess.run([str(BIN / "twine"), "check", "--strict", str(sdist), str(wheel)], check=True)
    look_at(wheel)
    with moto_server() as (endpoint, _):
        for version in PYTHONS:
            for resolution in ("highest", "lowest-direct"):
                install(wheel, version, resolution, endpoint)
    return by_an_old_pip(wheel)


def look_at(wheel: Path) -> None:
    """Check the wheel's content, and that the changelog has the release."""
    version = wheel.name.split("-")[1]
    if is_release(version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")):
        say(f"{version} is a release")
    else:
        say(f"{version} is no release: HEAD has no tag, or files are not committed")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/test_packaging.py"]
    built = os.environ | {"TIEREDSTORE_DIST": str(DIST)}
    subprocess.run(command, cwd=ROOT, env=built, check=True)


def is_release(version: str, changes: str) -> bool:
    """Whether a tag has this version; raise SystemExit if the changelog lacks the release."""
    if ".dev" in version or version == "0.0":
        return False
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE):
        raise SystemExit(f"CHANGELOG.md has no section of {version} with its day")
    return True


def install(wheel: Path, version: str, resolution: str, endpoint: str) -> None:
    """Install the wheel with its requirements in an empty environment, and run the smoke test."""
    named = f"Python {version}, {resolution.partition('-')[0]} dependencies"
    python = next(pythons(version), None)
    chosen = BUILD / f"{version}-{resolution}.txt"
    # Only wheels, as users of a Python do not get versions without a wheel for it.
    asked = ["--resolution", resolution, "--only-binary", ":all:", "--python-version", version]
    asked += [word for extra in EXTRAS for word in ("--extra", extra)]
    uv("pip", "compile", "--quiet", "pyproject.toml", *asked, "--output-file", str(chosen))
    if python is None:
        say(f"{named}: SKIPPED, there is no python{version} here; wheels of all of them there are")
        return
    place = BUILD / f"{version}-{resolution}"
    uv("venv", "--quiet", "--clear", "--python", python, str(place))
    words = [f"tieredstore[{','.join(EXTRAS)}] @ {wheel.as_uri()}", "--requirements", str(chosen)]
    uv("pip", "install", "--quiet", "--python", str(place / "bin" / "python"), *words)
    smoke = [
        str(place / "bin" / "python"),
        "-I",
        str(Path(__file__).with_name("smoke.py")),
    ]
    ran = subprocess.run(
        [*smoke, endpoint], cwd=BUILD, stdout=subprocess.PIPE, text=True, check=False
    )
    if ran.returncode:
        raise SystemExit(f"{named}: failed")
    say(f"{named}: {ran.stdout.strip()}")
    shutil.rmtree(place)


def pythons(version: str) -> Iterator[str]:
    """Interpreters of this version: first from the search path, then pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = shutil.which(f"python{version}")
    for each in [found, *sorted(pyenv.glob(f"{version}.*/bin/python{version}"))]:
        # One in the path may be a pyenv shim that only says where to look.
        if each and subprocess.run([each, "-V"], capture_output=True, check=False).returncode == 0:
            yield str(each)


def by_an_old_pip(wheel: Path) -> int:
    """Let an old pip install the extra s3 in an empty environment, without a cache."""
    place = BUILD / "old-pip"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", PIP], check=True)
    began = time.monotonic()
    asked = ["install", "--no-cache-dir", f"tieredstore[s3] @ {wheel.as_uri()}"]
    ran = subprocess.run([*pip, *asked], stdout=subprocess.PIPE, text=True, check=True)
    seconds = time.monotonic() - began
    tried = Counter(re.findall(r"^ *Downloading (.+?)-\d", ran.stdout, re.MULTILINE))
    ((name, most),) = tried.most_common(1)
    say(f"{PIP} installs [s3] in {seconds:.0f} s; most tries: {most}, of {name}")
    return int(most > TRIED_MAX)


def uv(*words: str) -> None:
    command = [str(BIN / "uv"), "--no-progress", "--no-python-downloads", *words]
    subprocess.run(command, cwd=ROOT, check=True)


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
