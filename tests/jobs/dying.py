"""Jobs in processes that SIGKILL ends before their n-th step that leaves something behind, or some
time after that step.

`dying` starts one process for a whole test. It forks a child for each life, so that the imports,
which take longest, are done once.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.jobs.job_kit import exported, golden_config, moved, posix
from tests.jobs.load_kit import loaded, rows_of
from tests.jobs.written_tier import posix_config
from tieredstore.driver.runtime import SystemClock
from tieredstore.jobs import export
from tieredstore.jobs.export import TableFormat
from tieredstore.jobs.export_target import ExportTarget
from tieredstore.jobs.job import LocalEngine
from tieredstore.jobs.migrate_copy import MigrationJournal
from tieredstore.jobs.reindex import reindex
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import QueueKey
from tieredstore.providers.posix import PosixFileSegment
from tieredstore.providers.posix_shelf import PosixGenerations, PosixScratch

ROOT = Path(__file__).parents[2]
STEPS_MAX = 1_000
SECONDS_MAX = 60.0  # for a life that is not to be killed
OLD, NEW = QueueKey("orders", 0), QueueKey("orders", 1)
LOADED = {OLD: range(90), NEW: range(60)}
Steps = Sequence[tuple[object, str]]
TIER_STEPS: Steps = (
    *((PosixFileSegment, "create"), (PosixFileSegment, "delete")),
    *((PosixScratch, "put"), (PosixScratch, "delete"), (PosixGenerations, "create")),
    *((JsonMetadataStore, "apply"), (JsonMetadataStore, "close")),
)
MIGRATION_STEPS: Steps = (
    *((PosixFileSegment, name) for name in ("create", "write", "delete")),
    *((MigrationJournal, name) for name in ("add", "sync", "remove")),
    *((JsonMetadataStore, "apply"), (JsonMetadataStore, "close"), (os, "replace")),
)
# A file is put in two steps: its bytes get their name in the second.
EXPORT_STEPS: Steps = (
    *((ExportTarget, name) for name in ("put", "publish", "delete", "drop_unpublished")),
    *((os, name) for name in ("replace", "link", "rename")),
)


LAKE_STEPS: Steps = (
    (sys.modules[__name__], "lake_exported"),
    *((export, name) for name in ("commit_staged", "drop_marks")),
)
IMPORTS: Final = {
    "delta": "deltalake",
    "iceberg": "pyiceberg.catalog.sql",
}  # imported once, before all lives


def config_in(folder: Path) -> StoreConfig:
    return posix_config(folder, index_item_count=120)


def load(config: StoreConfig, run_id: str = "run") -> None:
    """The same load each time, with the same id."""
    first, second = (rows_of(key, numbers) for key, numbers in LOADED.items())
    partitions = [[first, second.slice(0, 30)], [second.slice(30)]]
    loaded(config, partitions, run_id=run_id, load_id="the-load")


def reindexed(config: StoreConfig) -> None:
    with LocalEngine(threads=1) as engine:
        report = reindex(config, engine, clock=SystemClock())
    assert not report.failures, report.failures


def lake_exported(kind: str, tier: str, target: str) -> None:
    """Export what is new in the tier; the environment names the Iceberg catalogue."""
    exported(posix_config(Path(tier)), target, format=TableFormat(kind))


WORKS: dict[str, tuple[Steps, Callable[..., object]]] = {
    "load": (TIER_STEPS, lambda folder: load(config_in(Path(folder)))),
    "reindex": (TIER_STEPS, lambda folder: reindexed(config_in(Path(folder)))),
    "migrate": (
        MIGRATION_STEPS,
        lambda old, new: moved(golden_config(Path(old)), posix(Path(new)), cut_over=True),
    ),
    "export": (
        EXPORT_STEPS,
        lambda target: exported(golden_config(), target, topics=("Gold*",)),
    ),
    # Called by its name in the module, so that each call is a step.
    "delta": (LAKE_STEPS, lambda *places: lake_exported("delta", *places)),
    "iceberg": (LAKE_STEPS, lambda *places: lake_exported("iceberg", *places)),
}


class Dying:
    """Runs one kind of work again and again."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, steps: int, *places: Path | str, seconds: float = 0.0) -> int | None:
        """Kill the work before this step, or `seconds` after it: None, or how many steps were left
        if the work came to its end."""
        answer = self._asked(steps, seconds, *places)
        return int(answer[1]) if answer[0] == "left" else None

    def count(self, *places: Path | str) -> int:
        """How many steps the whole work takes."""
        left = self.run(STEPS_MAX, *places)
        assert left is not None
        return STEPS_MAX - left

    def seconds(self, step: int, *places: Path | str) -> float:
        """How long the whole work takes from this step on."""
        answer = self._asked(step, SECONDS_MAX, *places)
        assert answer[0] == "left"
        return float(answer[2])

    def _asked(self, steps: int, seconds: float, *places: Path | str) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(steps, seconds, *places, sep="\t", file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().split()
        assert answer not in ([], ["failed"]), "it ended by itself, and badly"
        return answer


@contextmanager
def dying(work: str) -> Iterator[Dying]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.jobs.dying", work],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Dying(process)
        assert process.stdin is not None
        process.stdin.close()


def _main() -> None:
    left, seconds, told = 0, 0.0, -1

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0 and not seconds:
                os.kill(os.getpid(), signal.SIGKILL)
            if left == -1:
                os.write(told, b"\n")
            return call(*args, **kwargs)

        return step

    steps, work = WORKS[sys.argv[1]]
    if sys.argv[1] in IMPORTS:
        importlib.import_module(IMPORTS[sys.argv[1]])
    for place, name in steps:
        setattr(place, name, counted(getattr(place, name)))
    for line in sys.stdin:
        number, time_left, *places = line.rstrip("\n").split("\t")
        left, seconds = int(number), float(time_left)
        read, told = os.pipe()
        child = os.fork()
        if not child:
            work(*places)
            os.write(told, f"{left}".encode())
            os._exit(0)
        os.close(told)
        print(*_watched(child, read, seconds), flush=True)
        os.close(read)


def _watched(child: int, told: int, seconds: float) -> tuple[object, ...]:
    """Kill the child `seconds` after its step, which it reports by a line; return how it ended."""
    said = os.read(told, 1)
    begun = time.monotonic()
    if said == b"\n" and seconds and not select.select([told], [], [], seconds)[0]:
        os.kill(child, signal.SIGKILL)
    elapsed = time.monotonic() - begun
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return ("killed",)
    left = (said + os.read(told, 20)).decode().strip()
    return ("left", left, elapsed) if status == 0 else ("failed",)


if __name__ == "__main__":
    _main()
