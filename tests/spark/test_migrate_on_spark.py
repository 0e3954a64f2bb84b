"""A migration as tasks of Spark: many processes write into one bucket, and executors die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.jobs.job_kit import copy_of_golden, files, golden_config, in_bucket, posix
from tests.s3.moto_server import moto_server
from tests.spark.bring_java import java_home
from tieredstore.access.reader import TieredReader
from tieredstore.jobs.job import JobExit, Progress
from tieredstore.jobs.migrate import migrate
from tieredstore.model.config import StoreConfig
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings
from tieredstore.spark.engine import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]

# Ends the executor's JVM when the third segment is created, once.
DYING = """
import os, signal
from pathlib import Path
from tieredstore.providers.posix import PosixProvider

class DyingPosix(PosixProvider):
    created = 0

    @classmethod
    def from_config(cls, config, runtime):
        made = super().from_config(config, runtime)
        made.died = Path(config.prefix)
        return made

    def create(self, segment, blocks):
        size = super().create(segment, blocks)
        DyingPosix.created += 1
        if DyingPosix.created == 3 and not self.died.exists():
            self.died.touch()
            daemon = os.getppid()
            executor = int(Path(f"/proc/{daemon}/stat").read_text().rsplit(")")[1].split()[1])
            os.kill(executor, signal.SIGKILL)
        return size
"""


@pytest.fixture
def endpoint() -> Iterator[str]:
    with moto_server() as (endpoint, _):
        yield endpoint


def same(source: StoreConfig, target: StoreConfig) -> None:
    with TieredReader(source) as old, TieredReader(target) as new:
        assert new.segments() == old.segments()
        assert new.topics() == old.topics()


def test_into_a_bucket_and_back(spark: SparkSession, tmp_path: Path, endpoint: str) -> None:
    source, back = copy_of_golden(tmp_path / "java"), posix(tmp_path / "back")
    bucket = in_bucket(tmp_path / "bucket", "tier", endpoint)
    create_bucket(ObjectStoreSettings.from_config(bucket))
    engine, told = SparkEngine(spark, wave_items=40), list[Progress]()
    for old, new in ((source, bucket), (bucket, back)):
        report = migrate(old, new, engine=engine, cut_over=True, on_progress=told.append)
        assert not report.failures
        assert report.exit_code is JobExit.DONE
        assert report.counts["copied"] == 57
        assert told[-1].bytes_done == told[-1].bytes_total == 346788
        same(source, new)
    assert files(back) == files(golden_config())


def test_submitted_to_a_cluster_whose_executor_dies(tmp_path: Path) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path / "new")
    package = shipped(tmp_path / "tieredstore.zip")
    died = tmp_path / "died"
    settings = tmp_path / "new.toml"
    settings.write_text(
        f'provider = "dying_provider:DyingPosix"\npath = "{target.path}"\nprefix = "{died}"\n'
        f'store_path = "{target.store_path}"\nindex_slot_count = 64\nindex_item_count = 300\n'
    )
    words = [
        *("migrate", "--provider", "posix", "--path", source.path, "--json", "--cut-over"),
        *("--store-path", source.store_path, "--cluster", source.cluster_name),
        *("--broker", source.broker_name, "--index-slots", "64", "--index-items", "300"),
        *("--to", str(settings), "--report", str(tmp_path / "report.json")),
    ]
    ran = submitted(package, words, tmp_path)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert died.exists()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["state"] == "done"
    assert report["counts"]["copied"] + report["counts"]["compared"] == 57
    assert [json.loads(line)["what"] for line in ran.stdout.splitlines()] == ["plan", "report"]
    assert files(target) == files(golden_config())
    same(source, target)


def shipped(place: Path) -> Path:
    """The package as one file, and beside it the backend that kills."""
    with zipfile.ZipFile(place, "w") as package:
        package.writestr("dying_provider.py", DYING)
        for folder, _, names in os.walk(ROOT / "tieredstore", followlinks=True):
            for name in names:
                if name.endswith(".py"):
                    file = Path(folder, name)
                    package.write(file, file.relative_to(ROOT))
    return place


def submitted(package: Path, words: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    """By `spark-submit`, to two executors that are processes of their own."""
    import pyspark

    script = place / "submit.py"
    script.write_bytes((ROOT / "tieredstore/cli/submit.py").read_bytes())
    local = {
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
    }
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    confs = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(place / "local"),
    }
    return subprocess.run(
        [
            str(Path(local["SPARK_HOME"], "bin", "spark-submit")),
            *("--master", "local-cluster[2,1,512]", "--py-files", str(package)),
            *(word for name, value in confs.items() for word in ("--conf", f"{name}={value}")),
            *(str(script), *words),
        ],
        cwd=place,
        env={**environment, **local},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
