"""A tier moves on and on between directories, while its broker and each step of it are killed.

At the end of each move the broker goes on in the new directory, and every page there must have
what was acknowledged. KILLS in the environment sets how many brokers `make torture` kills:

    KILLS=100 make torture ARGS='-s tests/jobs/test_migrate_kills.py'
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.access.kill_writer import directory_after, tier_config
from tests.access.test_kills import ROOT, Counts, History
from tests.disk_with_room import sitecustomize
from tests.jobs.job_kit import moved, verified
from tieredstore.jobs.job import JobExit

KILLS = int(os.environ.get("KILLS") or 60)  # by `make torture`
HISTORY_KILLS = 10
TRIES_MAX = 6  # of a cut-over; the last one is not killed


def move(root: Path, moves: int, how: str) -> bool:
    """Copy to the next directory, or cut over to it; whether nothing is left to do."""
    source = tier_config(root)
    target = tier_config(root, **directory_after(root, moves + 1))
    report = moved(source, target, cut_over=how == "cut-over")
    assert how == "copy" or not report.findings, report.findings
    return report.exit_code is JobExit.DONE


def begun(root: Path, moves: int, how: str) -> subprocess.Popen[bytes]:
    paths = [str(sitecustomize.FOLDER), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "tests.jobs.test_migrate_kills", str(root), str(moves), how]
    return subprocess.Popen(command, cwd=ROOT, env=environment)


def killed(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Kill it after so many seconds of its work; return how it ended."""
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def lives(root: Path, kills: int, dice: random.Random) -> Counts:
    history, moves = History(root, dice), 0
    start = 1.0  # what Python and its imports take
    while history.counts.kills < kills:
        history.live_and_die()
        history.reopen()
        copying = begun(root, moves, "copy")
        history.live_and_die()
        killed(copying, dice.uniform(0, 1))
        for number in range(TRIES_MAX):
            at = time.monotonic()
            is_last = number == TRIES_MAX - 1
            seconds = 600.0 if is_last else start + dice.uniform(-0.3, 0.7)
            if killed(begun(root, moves, "cut-over"), seconds) == 0:
                start = max(0.3, time.monotonic() - at - 0.3)
                break
            assert not is_last, "a cut-over does not come to its end"
        moves += 1
        (root / "moves").write_text(str(moves), encoding="utf-8")
        history.reopen()
        assert verified(tier_config(root)).exit_code is JobExit.DONE
    return history.counts


@pytest.mark.slow
def test_what_was_acknowledged_moves_along_though_all_are_killed(tmp_path: Path) -> None:
    assert lives(tmp_path, 4, random.Random(3)).acknowledged > 20


@pytest.mark.torture
@pytest.mark.parametrize("history", range(-(-KILLS // HISTORY_KILLS)))
def test_nor_is_anything_lost_in_many_moves(tmp_path: Path, history: int) -> None:
    counts = lives(tmp_path, HISTORY_KILLS, random.Random())
    print(history, counts)
    assert counts.acknowledged


if __name__ == "__main__":
    sys.exit(0 if move(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]) else 1)
