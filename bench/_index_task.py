"""How much memory the tasks and the driver of a reindex take, each measured in its own process.

    python -m bench._index_task FOLDER [KEYS_A_FILE [FILES [QUEUES]]]

Keys are staged as the first step would stage them; the second step then makes index files from
them, with the default number of slots. A task imports what a Python worker of Spark imports.
"""

from __future__ import annotations

import base64
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench._index_memory import Peak
from tieredstore.driver.runtime import SystemClock
from tieredstore.index.keys import IndexColumns
from tieredstore.jobs.job import (
    Engine,
    ItemResult,
    ItemT,
    OnProgress,
    Plan,
    RowT,
    Work,
    run_item,
    run_job,
)
from tieredstore.jobs.key_runs import RunWriter
from tieredstore.jobs.reindex import KEYS, ReindexFiles, ReindexScope
from tieredstore.jobs.worker import worker_scratch
from tieredstore.model.config import StoreConfig

BEGIN: Final = 1_760_000_000_000
BATCH: Final = 1 << 16


def staged_keys(config: StoreConfig, keys: int, queues: int) -> ReindexScope:
    """Keys of all queues over the same ten minutes, so that every merge opens all of them."""
    dice = np.random.default_rng(7)
    stems = []
    for queue in range(queues):
        stem = f"{KEYS}/{queue:08x}"
        writer = RunWriter(worker_scratch(config), stem, topic_id=1, queue_id=queue, first_offset=0)
        count = keys // queues + (queue < keys % queues)
        for start in range(0, count, BATCH):
            numbers = np.arange(start, min(start + BATCH, count))
            columns = IndexColumns(
                key_hashes=dice.integers(0, 1 << 63, len(numbers)).astype(np.uint64),
                topic_ids=1,
                queue_ids=queue,
                log_offsets=numbers * 512,
                message_bytes=np.full(len(numbers), 512),
                store_timestamps=BEGIN + numbers * 600_000 // count,
            )
            writer.add(columns)
        writer.finish()
        stems.append(stem)
    return ReindexScope(stems=tuple(stems), ends=())


class InChildren(Engine):
    """Runs items one by one, each in its own process; `seen` has what each of them took."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def results(
        self, work: Work[ItemT, RowT], plan: Plan[ItemT], *, on_progress: OnProgress
    ) -> Generator[ItemResult[RowT], None, None]:
        for number, item in enumerate(plan.items):
            result, figures = in_child("task", (work, item, number))
            self.seen.append(figures)
            yield result


def in_child(what: str, given: object) -> tuple[Any, dict[str, float]]:
    command = [sys.executable, "-m", "bench._index_task", f"--{what}"]
    text = base64.b64encode(pickle.dumps(given))
    ran = subprocess.run(command, input=text, check=True, stdout=subprocess.PIPE)
    found: tuple[Any, dict[str, float]] = pickle.loads(base64.b64decode(ran.stdout))  # noqa: S301
    return found


def child(what: str) -> None:
    """Run one task, or a whole driver; write its result and peaks in bytes to standard output."""
    import pyspark.worker  # noqa: F401 - its memory counts too

    given = pickle.loads(base64.b64decode(sys.stdin.buffer.read()))  # noqa: S301
    started, tasks = time.perf_counter(), InChildren()
    with Peak() as peak:
        before = peak.most
        if what == "--task":
            result: object = run_item(*given)
        else:
            report = run_job(given, tasks, clock=SystemClock())
            result = (report.counts, report.failures, tasks.seen)
    figures = {
        "before": before,
        "anonymous": peak.most,
        "resident": resident_peak(),
        "seconds": time.perf_counter() - started,
    }
    sys.stdout.buffer.write(base64.b64encode(pickle.dumps((result, figures))))


def resident_peak() -> int:
    """The peak of this process since it began, including mapped pages."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def shown(figures: dict[str, float]) -> str:
    sizes = (f"{name} {figures[name] / 1e6:.0f} MB" for name in ("before", "anonymous", "resident"))
    return f"{', '.join(sizes)}, {figures['seconds']:.1f} s"


def main() -> None:
    folder = Path(sys.argv[1])
    given = [int(word) for word in sys.argv[2:]]
    keys, files, queues = [*given, *(20_000_000 - 1, 5, 16)[len(given) :]]
    config = StoreConfig(
        provider="posix",
        path=str(folder / "tier"),
        store_path=str(folder / "store"),
        index_item_count=keys + 1,
    )
    scope = staged_keys(config, keys * files, queues)
    job = ReindexFiles(config=config, scope=scope)
    (counts, failures, tasks), driver = in_child("driver", job)
    print(f"{keys} keys a file, {queues} queues: {counts}", *failures)
    for figures in tasks:
        print("task:", shown(figures))
    print("driver:", shown(driver))
    shutil.rmtree(folder)


if __name__ == "__main__":
    child(sys.argv[1]) if sys.argv[1].startswith("--") else main()
