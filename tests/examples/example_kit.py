"""Run an example as its user does, in its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.disk_with_room import sitecustomize

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def command(name: str, *words: object) -> list[str]:
    return [sys.executable, "-W", "error", str(EXAMPLES / name), *map(str, words)]


def environment(**others: str) -> dict[str, str]:
    modules = os.pathsep.join([str(ROOT), str(sitecustomize.FOLDER)])
    return {"PATH": os.environ["PATH"], "PYTHONPATH": modules, **others}


def output(name: str, *words: object, **env: str) -> str:
    """Run the example and return what it prints; it must end well and write nothing to stderr."""
    done = subprocess.run(
        command(name, *words), env=environment(**env), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end a process that is started meanwhile, even if this process ignores it: a
    shell's background jobs ignore it, and their children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def serving(name: str, *words: object) -> Iterator[int]:
    """Run a broker and give its free port; Ctrl-C ends it, and it must end well."""
    with interruptible():
        process = subprocess.Popen(
            command(name, "--port", 0, *words),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        try:
            assert process.stdout is not None
            told = process.stdout.readline()
            yield int(told.partition(";")[0].rpartition(":")[2])
        finally:
            process.send_signal(signal.SIGINT)
            try:
                out, err = process.communicate(timeout=600)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        ended = process.returncode, out, err
        assert ended == (0, "ended\n", ""), ended
