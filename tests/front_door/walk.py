"""`make front-door`: a newcomer's first hour, command by command, from docs/first-hour.md alone.

    ```shell             run line by line; a line that ends with & runs until the end
    ```text              the output of the previous block's commands; … stands for anything
    ```toml tier.toml    a file in the home; so is ```python program.py

The home holds only an environment with this checkout's wheel, examples, pages, and a store that an
older version wrote. At the end it is deleted, and everything started is stopped. The wheel's
requirements come from the checkout's environment, so this does not check that the extras bring
them.

    python -m tests.front_door.walk [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

from tests.docs.page_commands import FILES, Command, commands
from tests.docs.pages import DOCS, ROOT, Block, blocks

PAGE: Final = DOCS / "first-hour.md"
OLD: Final = Path(__file__).parent / "golden" / "old"
PORT: Final = "9000"  # the page's port, replaced here by a free one
COMMAND_SECONDS: Final = 600.0
START_SECONDS: Final = 60.0
END_SECONDS: Final = 30.0
KEPT: Final = ("JAVA_HOME", "LANG", "LC_ALL")
_HEADING = re.compile(r"^## +(.+)$", re.MULTILINE)
_KEPT = re.compile(r"server-.*\.log|pytest-of-.*")  # our logs, pytest's last runs
_ANYTHING = "…"
_TURN = threading.Event()  # never set: waiting for it is a sleep


class Section(NamedTuple):
    """One task of the page."""

    title: str
    blocks: list[Block]


class NotAsToldError(Exception):
    """A command failed, or printed something else than the page shows."""


def sections(text: str) -> list[Section]:
    _, *found = _HEADING.split(text)
    return [Section(*each) for each in zip(found[::2], map(blocks, found[1::2]), strict=True)]


def is_said(told: str, said: str) -> bool:
    """Whether the output is as the page tells, from the first line to the last."""
    lines = [
        r"(?:.*\n)*?"
        if line == _ANYTHING
        else ".*".join(map(re.escape, line.split(_ANYTHING))) + r" *\n"
        for line in told.strip("\n").splitlines()
    ]
    return re.fullmatch("".join(lines), said.strip("\n") + "\n") is not None


class Home:
    """A home folder without files of the user, and the processes started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tmp").mkdir()
        self.environ = {
            **{name: os.environ[name] for name in KEPT if name in os.environ},
            "HOME": str(folder),
            "TMPDIR": str(folder / "tmp"),
            "PATH": f"{folder}/venv/bin:/usr/bin:/bin",
        }
        self._port = str(_free_port())
        self._servers: list[subprocess.Popen[bytes]] = []

    def walk(self, section: Section) -> None:
        said = ""
        for block in section.blocks:
            if block.language in {*FILES, "python"} and block.words:
                text = block.text.replace(PORT, self._port)
                (self.folder / block.words[0]).write_text(text, encoding="utf-8")
            elif block.language == "shell":
                said = "".join(self.run(command) for command in commands(block.text))
            elif block.language == "text" and not is_said(block.text, said):
                raise NotAsToldError(f"the page tells\n{block.text}and it says\n{said}")

    def run(self, command: Command) -> str:
        """Run the command and return what it writes to stdout and stderr."""
        line = command.line.replace(PORT, self._port)
        began = time.monotonic()
        if line.startswith("export "):
            for word in shlex.split(line)[1:]:
                name, _, self.environ[name] = word.partition("=")
            said = ""
        elif line.endswith("&"):
            said = self._start(line.removesuffix("&"))
        else:
            said = self._run(line, command.code)
        _say(f"  {time.monotonic() - began:5.1f} s  {command.line}")
        return said

    def _run(self, line: str, code: int) -> str:
        process = self._begin(line, subprocess.PIPE)
        try:
            out, _ = process.communicate(timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            raise NotAsToldError(f"$ {line}\ndoes not end") from None
        finally:
            _end(process)
        said = out.decode(errors="replace")
        if process.returncode != code:
            raise NotAsToldError(f"$ {line}\n{said}exit code {process.returncode}, not {code}")
        return said

    def _start(self, line: str) -> str:
        """Start a server and, like a newcomer, go on once it is there."""
        log = self.folder / "tmp" / f"server-{len(self._servers)}.log"
        with log.open("wb") as words:
            server = self._begin(line, words)
        self._servers.append(server)
        until = time.monotonic() + START_SECONDS
        while server.poll() is None and time.monotonic() < until:
            with suppress(OSError), socket.create_connection(("127.0.0.1", int(self._port)), 1):
                return ""
            _TURN.wait(0.1)
        raise NotAsToldError(f"$ {line}&\n{log.read_text(errors='replace')}does not start")

    def _begin(self, line: str, words: int | IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def end(self) -> None:
        for server in self._servers:
            _end(server)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and everything in its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def furnish(folder: Path) -> None:
    """Set up what the page takes for granted."""
    python, wheels = f"{folder}/venv/bin/python", folder / "tmp" / "wheels"
    _do("venv", "--without-pip", f"{folder}/venv")
    _do("hatchling", "build", "-t", "wheel", "-d", str(wheels))
    [wheel] = wheels.iterdir()
    _do("pip", "--python", python, "install", "--no-input", "--no-deps", str(wheel))
    [packages] = (folder / "venv" / "lib").glob("*/site-packages")
    (packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    shutil.rmtree(wheels)
    for name in "examples", "docs":
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    shutil.copytree(OLD, folder / "old")


def _do(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NotAsToldError(f"python -m {shlex.join(words)}\n{done.stdout}{done.stderr}")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def walk(folder: Path, tasks: Sequence[Section]) -> int:
    home = Home(folder)
    began = time.monotonic()
    try:
        furnish(folder)
        for section in tasks:
            _say(section.title)
            home.walk(section)
        home.end()
        left = [path.name for path in (folder / "tmp").iterdir() if not _KEPT.match(path.name)]
        if left:
            raise NotAsToldError(f"left behind in the folder for temporary files: {left}")
    except NotAsToldError as error:
        _say(f"FAILED\n{error}")
        return 1
    finally:
        home.end()
    _say(f"{len(tasks)} tasks, {time.monotonic() - began:.0f} s")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.front_door.walk")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="walk there, and leave it")
    options = parser.parse_args()
    tasks = sections(PAGE.read_text(encoding="utf-8"))
    if options.keep:
        options.keep.mkdir(parents=True)
        return walk(options.keep.resolve(), tasks)
    with tempfile.TemporaryDirectory(prefix="front-door-") as name:
        return walk(Path(name), tasks)


if __name__ == "__main__":
    sys.exit(main())
