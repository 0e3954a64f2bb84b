"""What a process of Spark says that lacks the package, or a part of what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import cloudpickle

import tieredstore
from tests.jobs.written_tier import posix_config
from tests.spark.conftest import ROOT
from tests.spark.spark_kit import options_of
from tieredstore.spark.options import ReadOptions
from tieredstore.spark.reading import TierPartition, spark_schema
from tieredstore.spark.sink import TierStreamWriter, WriteOptions
from tieredstore.spark.source import TierBatchReader, TierDataSource
from tieredstore.spark.stream import TierStreamReader

# As a worker does: it has Spark's own packages, and what else lies on these paths.
UNPICKLE = """
import importlib.abc, pickle, sys
blocked, paths, pickled = sys.argv[1].split(","), sys.argv[2].split(":"), sys.argv[3]

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in blocked and name != "tieredstore":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.path.extend(path for path in paths if path)
sys.meta_path.insert(0, Blocker())
print(type(pickle.loads(bytes.fromhex(pickled))).__name__)
"""


def unpickled(what: Any, *, lacks: str) -> subprocess.CompletedProcess[str]:
    """In another process whose interpreter lacks these packages."""
    # Without site: the checkout is installed there, and pyspark beside it.
    paths = f"{Path(pyspark.__file__).parents[1]}:{'' if lacks == 'tieredstore' else ROOT}"
    pickled = cloudpickle.dumps(what).hex()  # type: ignore[no-untyped-call]
    command = [sys.executable, "-I", "-S", "-c", UNPICKLE, lacks, paths]
    return subprocess.run(
        [*command, pickled],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def pickled_for_workers(folder: Path) -> list[Any]:
    given = options_of(posix_config(folder))
    options, schema = ReadOptions.parse(given), spark_schema(["topic"])
    return [
        TierDataSource(given),
        TierBatchReader(options, schema),
        TierStreamReader(options, schema),
        TierStreamWriter(WriteOptions.parse(given), schema),
    ]


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("lacks", ["tieredstore", "msgspec", "numpy"])
def test_a_worker_names_the_package_that_it_lacks_and_its_interpreter(
    which: int, lacks: str, tmp_path: Path
) -> None:
    if which == 0 and lacks == "tieredstore":
        pytest.skip("the source is found by the driver's path, which this machine has")
    ran = unpickled(pickled_for_workers(tmp_path)[which], lacks=lacks)
    assert ran.stderr.splitlines()[-1] == (
        f"ImportError: a process of Spark cannot read the tier: No module named '{lacks}';"
        f" install tieredstore with its extra spark for {sys.executable}, or name another"
        " interpreter by PYSPARK_PYTHON"
    )


def test_a_worker_that_has_all_gets_what_was_pickled(tmp_path: Path) -> None:
    for each in pickled_for_workers(tmp_path):
        ran = unpickled(each, lacks="nothing")
        assert (ran.stdout, ran.stderr) == (f"{type(each).__name__}\n", "")


@pytest.mark.parametrize("which", range(4))
def test_a_worker_of_another_version_reads_nothing(
    which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tieredstore, "__version__", "0.0.9")
    ran = unpickled(pickled_for_workers(tmp_path)[which], lacks="nothing")
    assert "its tieredstore is 0.1.0, and the driver's is 0.0.9" in ran.stderr.splitlines()[-1]


def test_the_look_at_the_package_is_no_part_of_each_partition() -> None:
    pickled = cloudpickle.dumps(TierPartition(()))  # type: ignore[no-untyped-call]
    assert len(pickled) < 200
