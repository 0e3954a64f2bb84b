"""A job in processes: what it finds, and what happens if a worker or the driver is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.counting_job import CountingJob
from tieredstore.driver.runtime import ManualClock, ProcessPool
from tieredstore.jobs.job import Job, JobReport, JobState, LocalEngine, WorkerKilledError, run_job


def ran(job: Job[Any, Any]) -> JobReport:
    with LocalEngine(threads=2, pool=ProcessPool(processes=2)) as engine:
        return run_job(job, engine, clock=ManualClock())


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlyJob(CountingJob):
    """Kills the process that works on its last number."""

    def work(self, item: int) -> Iterable[int]:
        if item == self.count - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        yield os.getpid()


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphaningJob(CountingJob):
    """Prints the process id of the worker, and kills the driver."""

    parent: int = 0

    def work(self, item: int) -> Iterable[int]:
        print(os.getpid(), flush=True)
        os.kill(self.parent, signal.SIGKILL)
        signal.pause()
        yield 0


def test_every_item_is_done_and_failures_are_values() -> None:
    report = ran(CountingJob(count=20, refused=frozenset({3})))
    assert report.counts == {"sum": sum(n * n for n in range(20)) - 9, "failed": 1, "left": 0}
    assert [each.text for each in report.failures] == ["square number 3: not this one"]
    assert report.state is JobState.INCOMPLETE


def test_a_bug_in_an_item_ends_the_job() -> None:
    with pytest.raises(ZeroDivisionError):
        ran(CountingJob(count=4, stumbles=frozenset({3})))


def test_a_killed_process_ends_the_job_with_words() -> None:
    with pytest.raises(WorkerKilledError, match="was killed.*run it again"):
        ran(DeadlyJob(count=4))


def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os\n"
        "from tests.jobs.test_job_in_processes import OrphaningJob, ran\n"
        "if __name__ == '__main__':\n"
        "    ran(OrphaningJob(count=1, parent=os.getpid()))\n"
    )
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    run = subprocess.run(
        # The pipe ends only when every process that holds it has ended.
        [sys.executable, program], capture_output=True, env=environment, timeout=60, check=False
    )  # fmt: skip
    assert run.returncode == -signal.SIGKILL
    assert run.stdout.strip().isdigit(), run.stderr.decode()
