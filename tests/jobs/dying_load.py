"""A load, or a reindex, that dies by SIGKILL before its n-th step that leaves something behind.

What lives here: a program for a process of its own, and `die_at`, which starts it. Each line on its
stdin is a folder with the settings of a tier in it, and a number of steps.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.jobs.load_kit import loaded, rows_of
from tests.jobs.written_tier import posix_config
from tieredstore.driver.runtime import SystemClock
from tieredstore.jobs.job import LocalEngine
from tieredstore.jobs.reindex import reindex
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import QueueKey
from tieredstore.providers.posix import PosixFileSegment
from tieredstore.providers.posix_shelf import PosixGenerations, PosixScratch

ROOT = Path(__file__).parents[2]
OLD, NEW = QueueKey("orders", 0), QueueKey("orders", 1)
LOADED = {OLD: range(90), NEW: range(60)}
STEPS = (
    *((PosixFileSegment, "create"), (PosixFileSegment, "delete")),
    *((PosixScratch, "put"), (PosixScratch, "delete"), (PosixGenerations, "create")),
    *((JsonMetadataStore, "apply"), (JsonMetadataStore, "close")),
)


def config_in(folder: Path) -> StoreConfig:
    return posix_config(folder, index_item_count=120)


def load(config: StoreConfig, run_id: str = "run") -> None:
    """The same load each time, by the same id."""
    batches = [rows_of(key, numbers) for key, numbers in LOADED.items()]
    loaded(config, [[batches[0], batches[1].slice(0, 30)], [batches[1].slice(30)]],
           run_id=run_id, load_id="the-load")  # fmt: skip


def reindexed(config: StoreConfig) -> None:
    with LocalEngine(threads=1) as engine:
        report = reindex(config, engine, clock=SystemClock())
    assert not report.failures, report.failures


WORKS: dict[str, Callable[[StoreConfig], None]] = {"load": load, "reindex": reindexed}


def die_at(work: str, lives: Sequence[tuple[Path, int]]) -> list[str]:
    """`killed`, or `left n` where it came to its end n steps before it was to die."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.jobs.dying_load", work],
        input="".join(f"{folder}\t{steps}\n" for folder, steps in lives),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
        check=True,
    )
    return done.stdout.splitlines()


def _main() -> None:
    left = 0

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return step

    for place, name in STEPS:
        setattr(place, name, dying(getattr(place, name)))
    for line in sys.stdin:
        folder, steps = line.split("\t")
        left = int(steps)
        child = os.fork()
        if not child:
            WORKS[sys.argv[1]](config_in(Path(folder)))
            print("left", left, flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            print("killed", flush=True)


if __name__ == "__main__":
    _main()
