"""RocketMQ's own classes, which do the same work as a benchmark of ours, alternating with it.

`bench/java` is built against the version of RocketMQ that TIEREDSTORE_BENCH_JAVA names (`make bench
JAVA=5.3.3`); without it no row compares with Java. The process stays alive between two commands, so
compiled code stays compiled; while our code runs it waits for a line.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.interop.maven import JAVA, built

HERE: Final = Path(__file__).parent / "java"
VERSION: Final = os.environ.get("TIEREDSTORE_BENCH_JAVA", "")
_HEAP: Final = "-Xmx3g"  # a full index file is compacted in memory


class Java:
    """Answers with seconds; `is_there` is False if no version was named."""

    def __init__(self, process: subprocess.Popen[str] | None) -> None:
        self._process = process

    @property
    def is_there(self) -> bool:
        return self._process is not None

    def seconds(self, command: str, **arguments: object) -> float | None:
        """What a command took, as Java measured it; None without Java."""
        if self._process is None:
            return None
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write("\t".join([command, *(f"{key}={value}" for key, value in arguments.items())]))
        stdin.write("\n")
        stdin.flush()
        answer = stdout.readline().strip()
        if not answer or answer.startswith("error"):
            raise RuntimeError(f"Java: {command}: {answer or 'it has ended'}")
        return float(answer)


@contextmanager
def java() -> Iterator[Java]:
    """A process that ends with the block; what its libraries print goes to results/java.log."""
    if not VERSION:
        yield Java(None)
        return
    classes = built(HERE, VERSION, "twin-1.0.jar")
    log = HERE.parent / "results" / "java.log"
    log.parent.mkdir(exist_ok=True)
    with (
        log.open("a", encoding="utf-8") as words,
        subprocess.Popen(
            [*JAVA, _HEAP, f"-Duser.home={HERE / 'target'}", "-cp", classes, "bench.Twin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            text=True,
        ) as process,
    ):
        try:
            yield Java(process)
        finally:
            process.kill()
