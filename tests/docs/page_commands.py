"""The commands of a page, run as its reader would run them.

    ```shell             run, top to bottom, in one empty folder for each page
    ```shell s3          likewise, with an S3 server at http://127.0.0.1:9000
    ```toml tier.toml    a file of that folder
    ```python here       run in that folder
    ```python s3         likewise, with the server
    ```text              shown, not run; its verbs and options must exist

A command that is expected to fail is followed by its exit code: `# exit code 4`.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.docs.pages import Block

SERVER = "http://127.0.0.1:9000"
FILES = frozenset({"toml", "properties"})
_CODE = re.compile(r"\s+# exit code ([0-9]+)$")
# The only other commands that a page may use.
_SYSTEM = frozenset({"mkdir", "cp", "mv", "rm"})


class Command(NamedTuple):
    """A command of a shell block, and its expected exit code."""

    words: list[str]
    code: int
    line: str


def commands(text: str) -> Iterator[Command]:
    """The commands of a block; a backslash at its end joins a line with the next."""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        plain = line.strip().removeprefix("$ ")
        if not plain or plain.startswith("#"):
            continue
        found = _CODE.search(plain)
        words = shlex.split(_CODE.sub("", plain))
        yield Command(words, int(found[1]) if found else 0, plain)


def run_block(
    block: Block, folder: Path, tieredstore: Callable[[list[str]], tuple[int, str]], server: str
) -> list[str]:
    """Run a block in `folder`, the current one; return the commands with unexpected exit codes."""
    text = block.text.replace(SERVER, server)
    if block.language in FILES and block.words and not block.words[0].startswith("/"):
        (folder / block.words[0]).write_text(text, encoding="utf-8")
        return []
    if block.language == "python" and block.words in (["here"], ["s3"]):
        exec(text, {})
    if block.language != "shell":
        return []
    wrong = []
    for command in commands(text):
        program, *words = command.words
        if program == "tieredstore":
            code, said = tieredstore(words)
        else:
            assert program in _SYSTEM, f"{command.line}: a block of another language, or add it"
            ran = subprocess.run(command.words, capture_output=True, text=True, check=False)
            code, said = ran.returncode, ran.stderr
        if code != command.code:
            wrong.append(f"{command.line}: exit code {code}: {said}")
    return wrong
