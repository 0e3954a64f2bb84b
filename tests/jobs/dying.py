"""Jobs in processes that die by SIGKILL before their n-th step that leaves something behind.

`dying` starts one process for a whole test. It forks a child for each life, so that what takes
longest, the imports, is done once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.jobs.job_kit import exported, golden_config, moved, posix
from tests.jobs.load_kit import loaded, rows_of
from tests.jobs.written_tier import posix_config
from tieredstore.driver.runtime import SystemClock
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
# A file is put in two steps: its bytes have no name before the second.
EXPORT_STEPS: Steps = (
    *((ExportTarget, name) for name in ("put", "publish", "delete", "drop_unpublished")),
    *((os, name) for name in ("replace", "link", "rename")),
)


def config_in(folder: Path) -> StoreConfig:
    return posix_config(folder, index_item_count=120)


def load(config: StoreConfig, run_id: str = "run") -> None:
    """The same load each time, by the same id."""
    first, second = (rows_of(key, numbers) for key, numbers in LOADED.items())
    partitions = [[first, second.slice(0, 30)], [second.slice(30)]]
    loaded(config, partitions, run_id=run_id, load_id="the-load")


def reindexed(config: StoreConfig) -> None:
    with LocalEngine(threads=1) as engine:
        report = reindex(config, engine, clock=SystemClock())
    assert not report.failures, report.failures


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
}


class Dying:
    """Runs one kind of work, again and again."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, steps: int, *places: Path) -> int | None:
        """How many steps were left where the work came to its end; None where it was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(steps, *places, sep="\t", file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().split()
        assert answer, "it ended by itself, and badly"
        return int(answer[1]) if answer[0] == "left" else None

    def count(self, *places: Path) -> int:
        """How many steps the whole work takes."""
        left = self.run(STEPS_MAX, *places)
        assert left is not None
        return STEPS_MAX - left


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
    left = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return step

    steps, work = WORKS[sys.argv[1]]
    for place, name in steps:
        setattr(place, name, counted(getattr(place, name)))
    for line in sys.stdin:
        number, *places = line.rstrip("\n").split("\t")
        left = int(number)
        child = os.fork()
        if not child:
            work(*places)
            print("left", left, flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            print("killed", flush=True)


if __name__ == "__main__":
    _main()
