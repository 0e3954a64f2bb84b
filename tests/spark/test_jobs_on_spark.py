"""Jobs as tasks of Spark: the results of threads, progress, deaths, and a bare environment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from pyarrow.fs import FileSelector, S3FileSystem

from tests.codec.golden_files import GOLDEN
from tests.jobs.counting_job import CountingJob
from tests.jobs.dying import LOADED, config_in, load
from tests.jobs.job_kit import (
    Harmed,
    copy_of_golden,
    exported,
    files,
    flipped,
    golden_config,
    in_bucket,
    messages,
    moved,
    posix,
    tier_messages,
    verified,
)
from tests.jobs.load_kit import assert_found, report_of
from tests.jobs.test_reindex import index_files, run
from tests.jobs.written_tier import WrittenTier, posix_config
from tests.s3.moto_server import moto_server
from tests.spark.bring_java import java_home
from tests.spark.conftest import ROOT
from tests.spark.spark_kit import environment, started, submitted
from tieredstore.access.reader import TieredReader
from tieredstore.codec.java import string_hash
from tieredstore.driver.runtime import ManualClock, SystemClock
from tieredstore.jobs.export import ExportJob
from tieredstore.jobs.export_target import ExportTarget, TargetOptions
from tieredstore.jobs.job import JobExit, JobState, Progress, run_job
from tieredstore.jobs.migrate import migrate
from tieredstore.jobs.migrate_plan import snippet
from tieredstore.jobs.reindex import reindex
from tieredstore.jobs.worker import worker_scratch
from tieredstore.model.config import StoreConfig
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings
from tieredstore.spark.engine import SparkEngine, verify_on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


CLOCK = ManualClock()


def test_tasks_do_every_item_and_tell_of_it(spark: SparkSession) -> None:
    told: list[Progress] = []
    job = CountingJob(count=7, refused=frozenset({3}))
    engine = SparkEngine(spark, wave_items=4)
    report = run_job(job, engine, clock=CLOCK, on_progress=told.append)
    assert report.counts == {"sum": sum(n * n for n in range(7)) - 9, "failed": 1, "left": 0}
    assert report.state is JobState.INCOMPLETE
    assert [each.text for each in report.failures] == ["square number 3: not this one"]
    assert told[-1].items_done == 7
    assert told[-1].bytes_done == 70


def run_verify(tier: WrittenTier, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """`tieredstore verify --engine spark` as cron would run it: with only this environment."""
    named = [
        word
        for option, value in (
            ("--provider", "posix"),
            ("--path", tier.config.path),
            ("--store-path", tier.config.store_path),
            ("--cluster", tier.config.cluster_name),
            ("--broker", tier.config.broker_name),
            ("--index-slots", tier.config.index_slot_count),
            ("--index-items", tier.config.index_item_count),
        )
        for word in (option, str(value))
    ]
    return subprocess.run(
        [sys.executable, "-m", "tieredstore", "verify", "--engine", "spark", *named],
        cwd="/",
        env={"PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_job_from_an_environment_that_is_not_activated_runs_with_its_own_interpreter(
    tmp_path: Path,
) -> None:
    tier = WrittenTier(config=posix_config(tmp_path / "tier"))
    tier.add("orders", 0, 20, seal=True)
    (tmp_path / "bin").mkdir()
    for name in ("python", "python3"):
        program(tmp_path / "bin" / name, "echo the wrong one >&2; exit 1")
    ran = run_verify(
        tier,
        {
            "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
            "JAVA_HOME": str(java_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "read 20 messages" in ran.stdout


def test_without_java_a_job_ends_with_one_line_and_no_trace(tmp_path: Path) -> None:
    tier = WrittenTier(config=posix_config(tmp_path / "tier"))
    tier.add("orders", 0, 1)
    for variables, line in (
        ({"PATH": str(tmp_path)}, "there is none in the PATH; set JAVA_HOME"),
        (
            {"PATH": "/usr/bin:/bin", "JAVA_HOME": "/nowhere"},
            "JAVA_HOME is /nowhere, and there is none; set JAVA_HOME",
        ),
    ):
        ran = run_verify(tier, variables)
        assert ran.returncode == 2
        assert ran.stderr == f"tieredstore: Spark needs Java 17 or later: {line}\n"
    program(tmp_path / "bin" / "java", "exit 1")  # as a Java that is too old does
    ran = run_verify(tier, {"PATH": "/usr/bin:/bin", "JAVA_HOME": str(tmp_path)})
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1] == (
        "tieredstore: Spark did not start, for the reason that it printed;"
        f" it needs Java 17 or later, and {tmp_path / 'bin' / 'java'} is what it found"
    )
    assert "Traceback" not in ran.stderr


# Spark asks an interpreter for its version: this one gives a false one.
OTHER_PYTHON = """exec {python} -c '
import pyspark.worker, runpy, sys
sys.version_info = (3, 99, 0, "final", 0)
runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
' "$3"
"""


@pytest.mark.cluster
def test_workers_without_the_interpreter_of_the_driver_end_a_job_with_one_line(
    tmp_path: Path,
) -> None:
    tier = WrittenTier(config=posix_config(tmp_path / "tier"))
    tier.add("orders", 0, 1)
    other = tmp_path / "other-python"
    program(other, OTHER_PYTHON.format(python=sys.executable))
    mine = f"{sys.version_info.major}.{sys.version_info.minor}"
    for python, line in (
        (tmp_path / "none", f'Cannot run program "{tmp_path / "none"}"'),
        (other, f"Python in worker has different version: 3.99 than that in driver: {mine}"),
    ):
        ran = run_verify(
            tier,
            {
                "PATH": "/usr/bin:/bin",
                "JAVA_HOME": str(java_home()),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": str(python),
            },
        )
        assert ran.returncode == 2
        assert ran.stderr.splitlines()[-1] == (
            f"tieredstore: a worker cannot work: {line}; PYSPARK_PYTHON names its interpreter,"
            " which has to be of the driver's version and to have tieredstore on every machine"
        )


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


# In a session of its own: the shared session of the tests does not retry tasks.
STUMBLING = """
import sys
from dataclasses import dataclass
from pathlib import Path
from tests.jobs.job_kit import golden_config
from tieredstore.driver.runtime import SystemClock
from tieredstore.jobs.export import ExportJob
from tieredstore.jobs.job import run_job
from tieredstore.spark.engine import SparkEngine, spark_session

tier, target, marks = map(Path, sys.argv[1:4])

class Stumbling(ExportJob):
    def work(self, item):
        yield from super().work(item)
        attempt = marks / item.name
        if not attempt.exists():
            attempt.touch()
            raise RuntimeError("a task that fails at its first attempt, when all is written")

job = Stumbling(config=golden_config(tier), target=str(target), topics=("GoldBB",))
spark = spark_session("stumbling", master="local[2,4]")
spark.sparkContext.setLogLevel("OFF")
report = run_job(job, SparkEngine(spark), clock=SystemClock())
spark.stop()
print(report.state.value, report.counts["messages"])
"""


@pytest.fixture
def endpoint() -> Iterator[str]:
    with moto_server() as (endpoint, _):
        yield endpoint


def test_findings_are_a_frame_and_those_of_threads(spark: SparkSession, tmp_path: Path) -> None:
    tier = Harmed.golden(tmp_path)
    unit = tier.file("GoldBB/0", "CONSUME_QUEUE", 400)
    with flipped(unit, 19), flipped(tier.files("INDEX")[1], 28 + 512 + 28 * 100 + 19, 0x02):
        frame, report = verify_on_spark(spark, tier.config)
        same = verified(tier.config)
    assert report.exit_code is JobExit.DAMAGE
    assert report.findings == same.findings
    assert report.counts == same.counts
    rows = frame.collect()
    assert len(rows) == len(report.findings) >= 3
    (wrong,) = [row for row in rows if row.kind == "tags-code"]
    assert (wrong.severity, wrong.topic, wrong.queue_id) == ("damage", "GoldBB", 0)
    assert (wrong.queue_offset, wrong.position) == (20, 10_081)
    assert "GoldBB/0/COMMIT_LOG/" in wrong.path


def test_an_export_into_a_bucket_is_read_back_by_spark_and_by_arrow(
    spark: SparkSession, tmp_path: Path, endpoint: str
) -> None:
    config = golden_config()
    named: dict[str, Any] = {
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key": "key",
        "secret_key": "secret",
    }
    options = TargetOptions(**named)
    create_bucket(ObjectStoreSettings(bucket="lake", **named))
    job = ExportJob(
        config=config, target="s3://lake/messages", target_options=options, split_bytes=20_000
    )
    assert run_job(job, SparkEngine(spark), clock=ManualClock()).state is JobState.DONE
    assert job.plan().counts["messages"] == 0
    target = ExportTarget(job.target, options)
    found = ds.dataset(
        "lake/messages", filesystem=target._files, format="parquet", partitioning="hive"
    ).to_table()
    assert found.num_rows == sum(tier_messages(config).values()) == 533
    local = tmp_path / "parquet"
    exported(config, local)
    counted = spark.read.parquet(str(local)).groupBy("topic", "day").count().collect()
    assert {str(row.day) for row in counted} == {"2026-11-20"}
    assert {row.topic: row["count"] for row in counted}["%RETRY%gold_group"] == 72
    assert sum(row["count"] for row in counted) == 533


def test_tasks_that_fail_at_their_first_attempt_leave_every_message_once(tmp_path: Path) -> None:
    marks, target = tmp_path / "marks", tmp_path / "parquet"
    marks.mkdir()
    words = [sys.executable, "-c", STUMBLING, str(GOLDEN / "tier-posix"), str(target), str(marks)]
    ran = started(words, ROOT, PYTHONPATH=str(ROOT))
    assert ran.stdout.splitlines()[-1] == "done 134"
    assert len(list(marks.iterdir())) == 2
    config = golden_config()
    wanted = {each for each in tier_messages(config) if each[0] == "GoldBB"}
    assert dict(messages(target)) == dict.fromkeys(wanted, 1)


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


def same(source: StoreConfig, target: StoreConfig) -> None:
    with TieredReader(source) as old, TieredReader(target) as new:
        assert new.segments() == old.segments()
        assert new.topics() == old.topics()


def test_into_a_bucket_to_another_and_back(
    spark: SparkSession, tmp_path: Path, endpoint: str
) -> None:
    source, back = copy_of_golden(tmp_path / "java"), posix(tmp_path / "back")
    bucket, other = made_buckets(tmp_path, endpoint, "tier", "other")
    engine, told = SparkEngine(spark, wave_items=40), list[Progress]()
    for old, new in ((source, bucket), (bucket, other), (other, back)):
        report = migrate(old, new, engine=engine, cut_over=True, on_progress=told.append)
        assert not report.failures
        assert report.exit_code is JobExit.DONE
        assert report.counts["copied"] == 57
        assert told[-1].bytes_done == told[-1].bytes_total == 346788
        same(source, new)
    assert files(back) == files(golden_config())


def made_buckets(place: Path, endpoint: str, *names: str) -> list[StoreConfig]:
    """Make empty tiers, each in a bucket of its own."""
    found = [in_bucket(place / name, name, endpoint) for name in names]
    for config in found:
        create_bucket(ObjectStoreSettings.from_config(config))
    return found


def test_of_a_damaged_tier_in_a_bucket_spark_finds_exports_and_indexes_what_threads_do(
    spark: SparkSession, tmp_path: Path, endpoint: str
) -> None:
    tier = Harmed.golden(tmp_path)
    bucket, other = made_buckets(tmp_path, endpoint, "harmed", "same")
    unit, index = tier.file("GoldBB/0", "CONSUME_QUEUE", 400), tier.files("INDEX")[1]
    with flipped(unit, 19), flipped(index, 28 + 512 + 28 * 100 + 19, 0x02):
        for target in (bucket, other):
            assert moved(tier.config, target, cut_over=True).facts["cut_over"] == "done"
    _, report = verify_on_spark(spark, bucket)
    wanted = verified(bucket)
    assert report.exit_code is JobExit.DAMAGE
    assert len(report.findings) >= 3
    assert (report.findings, report.counts) == (wanted.findings, wanted.counts)
    ours, theirs = tmp_path / "spark-parquet", tmp_path / "threads-parquet"
    job = ExportJob(config=bucket, target=str(ours), topics=("GoldBB",), split_bytes=20_000)
    assert run_job(job, SparkEngine(spark), clock=CLOCK).state is JobState.DONE
    exported(bucket, theirs, topics=("GoldBB",))
    assert messages(ours) == messages(theirs)
    made = reindex(bucket, SparkEngine(spark, wave_items=2), clock=SystemClock())
    assert (made.state, made.failures) == (JobState.DONE, ())
    assert made.counts == run(other).counts
    assert verified(bucket).findings == verified(other).findings


def config_file(config: StoreConfig, place: Path) -> Path:
    place.write_text(
        snippet(config) + f'access_key = "{config.access_key}"\n'
        f'secret_key = "{config.secret_key}"\n'
    )
    return place


def objects(config: StoreConfig, endpoint: str) -> int:
    """How many objects the bucket of a tier has."""
    named = {"access_key": config.access_key, "secret_key": config.secret_key}
    address = {"endpoint_override": endpoint, "scheme": "http", "region": "us-east-1"}
    bucket = FileSelector(config.bucket, recursive=True)
    found = S3FileSystem(**named, **address).get_file_info(bucket)
    return sum(each.is_file for each in found)


def was_killed(
    words: list[str], place: Path, seconds: float, made: Callable[[], int] | None, more: int
) -> bool:
    """Run until `made` has grown by `more`, at most for `seconds`, then kill; return whether it was
    still running."""
    before = made() if made is not None else 0
    with subprocess.Popen(
        words,
        cwd=place,
        env=environment(PYTHONPATH=str(ROOT)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as driver:
        end = time.monotonic() + seconds
        never = threading.Event()
        while driver.poll() is None and time.monotonic() < end:
            if made is not None and made() - before >= more:
                break
            never.wait(0.02)
        is_running = driver.poll() is None
        if is_running:
            os.killpg(driver.pid, signal.SIGKILL)
    return is_running


@pytest.mark.cluster
@pytest.mark.parametrize("job", ["reindex", "migrate", "export", "verify"])
def test_a_job_in_a_bucket_whose_driver_is_killed_is_gone_on_with(
    tmp_path: Path, endpoint: str, job: str
) -> None:
    bucket, other = made_buckets(tmp_path, endpoint, f"killed-{job}", f"moved-{job}")
    source = copy_of_golden(tmp_path / "java")
    moved(source, bucket, cut_over=True)
    target = tmp_path / "parquet"
    words = [sys.executable, "-m", "tieredstore", job, "--engine", "spark", "--master", "local[2]"]
    words += ["--config", str(config_file(bucket, tmp_path / "tier.toml"))]
    made: Callable[[], int] | None = None
    if job == "reindex":
        made = partial(objects, bucket, endpoint)
    elif job == "migrate":
        words += ["--to-config", str(config_file(other, tmp_path / "moved.toml")), "--cut-over"]
        made = partial(objects, other, endpoint)
    elif job == "export":
        words += ["--to", str(target)]
        made = lambda: len(list(target.rglob("*.parquet")))  # noqa: E731
    dice = random.Random(7)
    seconds = [60.0, 60.0] if made is not None else []
    seconds += [dice.uniform(4.0, 9.0) for _ in range(1 if made is not None else 2)]
    more = [1, 4, 1 << 30, 1 << 30]
    killed = [
        was_killed(words, tmp_path, *each)
        for each in ((until, made, count) for until, count in zip(seconds, more, strict=False))
    ]
    assert killed[0], "it was over before the first kill"
    started(words, tmp_path, PYTHONPATH=str(ROOT))
    if job == "migrate":
        same(bucket, other)
    if job == "export":
        assert dict(messages(target)) == dict.fromkeys(tier_messages(bucket), 1)
    assert verified(other if job == "migrate" else bucket).exit_code is JobExit.DONE
    assert not list(worker_scratch(bucket).listed("reindex"))


def test_submitted_to_a_cluster_whose_executor_dies(tmp_path: Path) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path / "new")
    died = tmp_path / "died"
    settings = tmp_path / "new.toml"
    settings.write_text(
        f'provider = "more:DyingPosix"\npath = "{target.path}"\nprefix = "{died}"\n'
        f'store_path = "{target.store_path}"\nindex_slot_count = 64\nindex_item_count = 300\n'
    )
    words = [
        *("migrate", "--provider", "posix", "--path", source.path, "--json", "--cut-over"),
        *("--store-path", source.store_path, "--cluster", source.cluster_name),
        *("--broker", source.broker_name, "--index-slots", "64", "--index-items", "300"),
        *("--to-config", str(settings), "--report", str(tmp_path / "report.json")),
    ]
    script = (ROOT / "tieredstore/cli/submit.py").read_text()
    ran = submitted(script, words, tmp_path, more=DYING)
    assert died.exists()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["state"] == "done"
    assert report["counts"]["copied"] + report["counts"]["compared"] == 57
    assert [json.loads(line)["what"] for line in ran.stdout.splitlines()] == ["plan", "report"]
    assert files(target) == files(golden_config())
    same(source, target)


def tier_in(folder: Path) -> StoreConfig:
    config = config_in(folder)
    WrittenTier(config=config).add("other", 7, 40)
    load(config)
    return config


def test_tasks_make_the_files_that_threads_make(spark: SparkSession, tmp_path: Path) -> None:
    ours, other = tier_in(tmp_path / "spark"), tier_in(tmp_path / "threads")
    report = reindex(ours, SparkEngine(spark, wave_items=2), clock=SystemClock())
    assert (report.state, report.failures) == (JobState.DONE, ())
    assert run(other).counts == report.counts
    assert_found(ours, LOADED)
    assert report_of(ours).findings == ()
    assert index_files(ours) == index_files(other)


TOPICS = ["orders", "payments", "orders", "größe"]


def test_workers_run_the_checkout_and_agree_with_the_driver(spark: SparkSession) -> None:
    def hashed(topics: Iterable[str]) -> Iterator[tuple[str, int, int, str]]:
        from tieredstore.codec import java

        for topic in topics:
            yield topic, java.string_hash(topic), os.getpid(), java.__file__

    rows = spark.sparkContext.parallelize(TOPICS, 2).mapPartitions(hashed).collect()
    assert [row[:2] for row in rows] == [(topic, string_hash(topic)) for topic in TOPICS]
    assert all(process != os.getpid() for *_, process, _ in rows)
    assert {Path(file).parents[2] for *_, file in rows} == {ROOT}


def test_spark_listens_on_this_machine_only(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
