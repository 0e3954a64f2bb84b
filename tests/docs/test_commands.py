"""The commands in the documents exist, and end as the documents say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tests.cli.cli_kit import Command
from tests.docs.page_commands import SERVER, commands, run_block
from tests.docs.pages import PAGES, ROOT, Block, blocks, inline_code, page
from tests.s3.conftest import s3_endpoint, s3_environment
from tieredstore.cli.main import app

__all__ = ["s3_endpoint", "s3_environment"]  # fixtures

_WORD = re.compile(r"[a-z][a-z-]*")


def named(path: Path) -> str:
    return path.name


def has(path: Path, *words: str) -> bool:
    found = blocks(path.read_text(encoding="utf-8"))
    return any(block.language == "shell" and block.words == list(words) for block in found)


WALKED = {"first-hour.md"}  # by tests/front_door, with its own home folder
WITH_COMMANDS = [path for path in PAGES if has(path) and path.name not in WALKED]
WITH_S3 = [path for path in PAGES if has(path, "s3")]


def on_server(block: Block, folder: Path) -> Block:
    """A block with other paths, for a page's second run in this process: jobs keep opened parts by
    their settings.
    """
    text = block.text.replace('provider = "s3"', 'provider = "s3"\ncertify = "off"')
    return block._replace(text=text.replace('path = "', f'path = "{folder}/'))


@pytest.fixture
def tieredstore(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[str]], tuple[int, str]]:
    monkeypatch.chdir(tmp_path)
    command = Command(capsys)

    def run(words: list[str]) -> tuple[int, str]:
        ran = command.run(*words)
        return ran.code, ran.err

    return run


@pytest.mark.slow
@pytest.mark.parametrize("path", WITH_COMMANDS, ids=named)
def test_the_commands_of_a_page_end_as_it_says(
    path: Path, tmp_path: Path, tieredstore: Callable[[list[str]], tuple[int, str]]
) -> None:
    wrong = [
        line
        for block in blocks(path.read_text(encoding="utf-8"))
        if block.words != ["s3"]
        for line in run_block(block, tmp_path, tieredstore, SERVER)
    ]
    assert wrong == []


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.parametrize("path", WITH_S3, ids=named)
def test_those_of_a_page_with_a_bucket_too(
    path: Path,
    tmp_path: Path,
    tieredstore: Callable[[list[str]], tuple[int, str]],
    s3_endpoint: str,
) -> None:
    """Without the certification of the server: it takes long, and tests/s3 tests it."""
    wrong = [
        line
        for block in blocks(path.read_text(encoding="utf-8"))
        for line in run_block(on_server(block, tmp_path), tmp_path, tieredstore, s3_endpoint)
    ]
    assert wrong == []


def shown(text: str) -> Iterator[list[str]]:
    """Commands that are only shown, in prose and in blocks that are not run."""
    for code in inline_code(text):
        if code.startswith("tieredstore "):
            yield shlex.split(code)[1:]
    for block in blocks(text):
        if block.language == "text":
            for command in commands(block.text):
                if command.words[0] == "tieredstore":
                    yield command.words[1:]


def unknown(words: list[str]) -> list[str]:
    """The verbs and options of a command that do not exist."""
    group: Any = typer.main.get_command(app)
    for at, word in enumerate(words):
        if not _WORD.fullmatch(word) or not hasattr(group, "commands"):
            break
        if word not in group.commands:
            return words[: at + 1]
        group = group.commands[word]
    known = {"--help"}.union(*(parameter.opts for parameter in group.params))
    return [word for word in words if word.startswith("--") and word not in known]


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_commands_that_are_only_shown_exist(path: Path) -> None:
    found = [unknown(words) for words in shown(path.read_text(encoding="utf-8"))]
    assert not any(found), found


def test_a_wrong_command_is_caught(tmp_path: Path) -> None:
    text = "`tieredstore cat Orders --cuont 3` and `tieredstore mirgate`\n"
    text += "```text\ntieredstore catalogue shwo\n```\n"
    assert [unknown(words) for words in shown(text)] == [
        ["--cuont"],
        ["mirgate"],
        ["catalogue", "shwo"],
    ]
    block = Block("shell", [], "tieredstore a  # exit code 3\ntieredstore \\\n  b c\n")
    asked: list[list[str]] = []

    def run(words: list[str]) -> tuple[int, str]:
        asked.append(words)
        return 3, "no"

    assert run_block(block, tmp_path, run, "") == ["tieredstore b c: exit code 3: no"]
    assert asked == [["a"], ["b", "c"]]


PROVIDER_PAGE = page("write-a-provider.md")


def test_the_example_is_as_short_as_the_page_says() -> None:
    said = re.search(r"in under ([0-9]+) lines", PROVIDER_PAGE)
    assert said
    lines = (ROOT / "examples" / "own_provider.py").read_text(encoding="utf-8").splitlines()
    assert int(said[1]) - 20 <= len(lines) < int(said[1])


@pytest.mark.slow
def test_the_suite_that_is_shown_passes(tmp_path: Path) -> None:
    """The shown suite runs in one process, one test after the other, as each needs an empty
    backend.
    """
    (suite,) = (block.text for block in blocks(PROVIDER_PAGE) if "Contract" in block.text)
    (tmp_path / "test_my_provider.py").write_text(suite, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_provider.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert re.search(r"^[5-9][0-9] passed", ran.stdout, re.MULTILINE), ran.stdout
