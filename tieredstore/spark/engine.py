"""Runs jobs as Spark tasks; findings become a DataFrame, and errors one line."""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from pyspark.accumulators import AccumulatorParam

from tieredstore.driver.runtime import SystemClock
from tieredstore.jobs.job import (
    Engine,
    ItemResult,
    ItemT,
    JobReport,
    OnProgress,
    Plan,
    Progress,
    RowT,
    Work,
    no_progress,
    run_item,
    run_job,
)
from tieredstore.jobs.verify import VerifyJob
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError, TieredStoreError

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import DataFrame, SparkSession

WAVE_ITEMS: Final = 1_000
"""Items of one Spark job. This bounds how many of their rows the driver holds."""
TASKS_A_CORE: Final = 4
TASK_BYTES: Final = 64 << 20
_NO_WORKER: Final = re.compile(  # what Spark says if a worker has no suitable interpreter
    r'Cannot run program "[^"]*"'
    r"|Python in worker has different version: \S+ than that in driver: \d+\.\d+"
    r"|No module named '[^']*'"
)
_HAS_JVM: Final = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, which also chose the interpreters
FINDINGS_SCHEMA: Final = (
    "severity string, kind string, topic string, queue_id int, path string, position bigint, "
    "queue_offset bigint, text string"
)
_HIDE = "SPARK_HIDE_TRACEBACK"


class SparkEngine(Engine):
    """Runs items in waves of tasks; small ones share a task.

    * If the tier refuses something, only that item fails. Any other error fails the task, which
      Spark retries as configured, and then ends the job. InvalidConfigError if workers have no
      suitable interpreter.
    * Workers need `tieredstore` installed, or shipped as a zip (`--py-files`).
    """

    def __init__(self, spark: SparkSession, *, wave_items: int = WAVE_ITEMS) -> None:
        self._context: SparkContext = spark.sparkContext
        self._wave_items = wave_items

    def results(
        self, work: Work[ItemT, RowT], plan: Plan[ItemT], *, on_progress: OnProgress
    ) -> Generator[ItemResult[RowT], None, None]:
        counter = self._context.accumulator((0, 0), _Counts(plan, on_progress))
        task = partial(_run, work, counter)
        for begin in range(0, len(plan.items), self._wave_items):
            end = min(begin + self._wave_items, len(plan.items))
            wave = [(at, plan.items[at], plan.bytes_of(at)) for at in range(begin, end)]
            count = self._task_count(wave)
            # Dealt like cards: items often come sorted by size.
            tasks = self._context.parallelize([wave[at::count] for at in range(count)], count)
            yield from _collected(tasks.mapPartitions(task))

    def _task_count(self, wave: Sequence[tuple[int, object, int]]) -> int:
        """Enough tasks to keep all cores busy to the end, but not so many that they cost time."""
        cores = self._context.defaultParallelism
        size = sum(item_bytes for _, _, item_bytes in wave)
        wanted = max(TASKS_A_CORE * cores, size // TASK_BYTES)
        return max(1, min(len(wave), wanted if size else TASKS_A_CORE * cores * 4))


def _collected(results: RDD[ItemResult[RowT]]) -> list[ItemResult[RowT]]:
    try:
        return results.collect()
    except Exception as error:  # of the JVM, or of Python with the text of the worker's error
        found = _NO_WORKER.search(str(error))
        if found is None:
            raise
        raise InvalidConfigError(
            f"a worker cannot work: {found[0]}; PYSPARK_PYTHON names its interpreter, which"
            " has to be of the driver's version and to have tieredstore on every machine"
        ) from error


def _run(
    work: Any, counter: Any, groups: Iterable[Sequence[tuple[int, Any, int]]]
) -> Iterator[ItemResult[Any]]:
    """What a task does. It is pickled for the worker."""
    for number, item, size in chain.from_iterable(groups):
        result: ItemResult[Any] = run_item(work, item, number)
        counter.add((1, size))
        yield result


class _Counts(AccumulatorParam[tuple[int, int]]):
    """Items and bytes done. The driver reports each addition; a worker has no plan and only adds.

    A task that ran twice counts twice, so reports are capped at the totals of the plan.
    """

    def __init__(self, plan: Plan[Any] | None, on_progress: OnProgress = no_progress) -> None:
        self._on_progress = on_progress
        self._is_driver = plan is not None
        self._items_total = 0 if plan is None else len(plan.items)
        self._bytes_total = 0 if plan is None else plan.bytes_total

    def __reduce__(self) -> tuple[Any, ...]:
        return _Counts, (None,)

    def zero(self, value: tuple[int, int]) -> tuple[int, int]:
        return 0, 0

    def addInPlace(  # noqa: N802 - Spark's name
        self, value1: tuple[int, int], value2: tuple[int, int]
    ) -> tuple[int, int]:
        items_done, bytes_done = value1[0] + value2[0], value1[1] + value2[1]
        if self._is_driver:
            self._on_progress(
                Progress(
                    items_done=min(items_done, self._items_total),
                    items_total=self._items_total,
                    bytes_done=min(bytes_done, self._bytes_total),
                    bytes_total=self._bytes_total,
                )
            )
        return items_done, bytes_done


def spark_session(name: str, *, master: str = "") -> SparkSession:
    """The session of this process. If there is none, it is made with `master` or, without one, with
    Spark's own default: the master of `spark-submit`, or the cores of this machine.

    Workers run this same interpreter unless the environment names another: it has `tieredstore`,
    which the first `python3` in the PATH may lack. InvalidConfigError if there is no Java.
    """
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    java = ""
    if _HAS_JVM not in os.environ:
        java = _java()
        for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            if not os.environ.get(variable):
                os.environ[variable] = sys.executable
    building = SparkSession.builder.appName(name)
    if master:
        building = building.master(master)
    try:
        return building.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        on = f", on the master {master!r}" if master else ""
        raise InvalidConfigError(
            f"Spark did not start{on}, for the reason that it printed; it needs Java 17 or later,"
            f" and {java} is what it found"
        ) from error


def _java() -> str:
    """The Java that Spark's scripts will run. Without one, they would show a traceback."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if found is None:
        where = f"JAVA_HOME is {home}, and there is none" if home else "there is none in the PATH"
        raise InvalidConfigError(f"Spark needs Java 17 or later: {where}; set JAVA_HOME")
    return found


def verify_on_spark(
    spark: SparkSession, config: StoreConfig, *, topics: tuple[str, ...] = ()
) -> tuple[DataFrame, JobReport]:
    """Verify the tier with the workers of this session. Returns the findings and the report."""
    job = VerifyJob(config=config, topics=topics)
    report = run_job(job, SparkEngine(spark), clock=SystemClock())
    return findings_frame(spark, report), report


def findings_frame(spark: SparkSession, report: JobReport) -> DataFrame:
    """One row for each finding that the report has room for."""
    rows = [found.row() for found in report.findings]
    names = ("severity", "kind", "topic", "queue_id", "where", "position", "queue_offset", "detail")
    return spark.createDataFrame(
        [tuple(row.get(name) for name in names) for row in rows], FINDINGS_SCHEMA
    )


@contextmanager
def plain_failures() -> Iterator[None]:
    """Raise our own errors without their causes and without a traceback.

    Spark ends a Python process after any failure, so the variable set here hides nothing else.
    """
    try:
        yield
    except TieredStoreError as error:
        os.environ[_HIDE] = "1"
        raise error.with_traceback(None) from None


@contextmanager
def planning() -> Iterator[None]:
    """`plain_failures` without garbage collection, for planning over all queues on the driver.

    Thousands of queues are hundreds of thousands of objects that stay, and the collector took half
    of the time to look at them again and again.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        with plain_failures():
            yield
    finally:
        if was_on:
            gc.enable()
