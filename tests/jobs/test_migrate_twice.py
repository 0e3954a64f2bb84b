"""Two processes that copy the same segment at once, as tasks that are speculated on do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.jobs.migrate_kit import copy_of_golden, files, moved, posix
from tests.jobs.verify_kit import golden_config
from tieredstore.driver.runtime import Runtime
from tieredstore.jobs.job import JobState
from tieredstore.model.values import SegmentType
from tieredstore.providers.posix import PosixProvider

ROOT = Path(__file__).parents[2]

# Creates a segment half, says so, and ends it when it is told to.
SLOW = """
import sys
from tieredstore.driver.runtime import Runtime
from tieredstore.model.values import SegmentType
from tieredstore.providers.posix import PosixProvider

data = open(sys.argv[2], "rb").read()

def blocks():
    yield data[:100]
    print("half", flush=True)
    sys.stdin.readline()
    yield data[100:]

provider = PosixProvider(sys.argv[1], "GoldenCluster", Runtime.inline())
with provider.open("broker-gold-a/GoldAa/0", SegmentType.COMMIT_LOG, 0) as segment:
    provider.create(segment, blocks())
print("whole", flush=True)
"""


def test_who_comes_second_leaves_the_firsts_segment_alone(tmp_path: Path) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path)
    with Runtime.inline() as runtime:
        provider = PosixProvider.from_config(source, runtime)
        first = provider.open("broker-gold-a/GoldAa/0", SegmentType.COMMIT_LOG, 0).path
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, target.path, first],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as slow:
        assert slow.stdin is not None
        assert slow.stdout is not None
        assert slow.stdout.readline() == "half\n"
        report = moved(source, target)
        assert report.state is JobState.INCOMPLETE
        assert report.counts["copied"] == 56
        print("go on", file=slow.stdin, flush=True)
        assert slow.stdout.readline() == "whole\n"
    again = moved(source, target)
    assert (again.counts["copied"], again.counts["compared"]) == (0, 1)
    assert files(target) == files(golden_config())
