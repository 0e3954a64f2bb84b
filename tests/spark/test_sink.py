"""`df.write.format("tieredstore")`: DataFrames into a tier, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.jobs.load_kit import bodies, messages, open_tier_of, report_of
from tests.jobs.written_tier import posix_config
from tests.spark.spark_kit import options_of, submitted
from tieredstore.access.reader import TieredReader
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.values import QueueKey
from tieredstore.spark.sink import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

A, B = QueueKey("orders", 0), QueueKey("orders", 1)


def write(frame: DataFrame, config: StoreConfig, mode: str = "append", **more: str) -> None:
    frame.write.format("tieredstore").options(**options_of(config), **more).mode(mode).save()


def orders(spark: SparkSession, first: int, end: int) -> DataFrame:
    return spark.range(first, end, 1, 2).selectExpr(
        "'orders' as topic",
        "cast(id % 2 as int) as queue_id",
        "cast(concat('body-', id) as binary) as body",
        "concat('tag', id % 3) as tags",
        "array(concat('k', id), 'all') as keys",
        "concat('u', id) as unique_key",
        "map('n', cast(id as string)) as properties",
        "timestamp_millis(1700000000000 + id) as store_time",
        "'10.0.0.7:4711' as born_host",
    )


def test_frames_become_queues_and_are_found_by_key(spark: SparkSession, tmp_path: Path) -> None:
    config = posix_config(tmp_path, index_item_count=300)
    write(orders(spark, 0, 240), config)
    for key in (A, B):
        numbers = range(key.queue_id, 240, 2)
        assert bodies(config, key) == [f"body-{number}" for number in numbers]
    found = messages(config, A)[5]
    assert found.born_host == (bytes([10, 0, 0, 7]), 4711)
    assert (found.store_timestamp, found.born_timestamp) == (1_700_000_000_010,) * 2
    properties = {"n": "10", "TAGS": "tag1", "KEYS": "k10 all", "UNIQ_KEY": "u10"}
    assert found.properties == properties
    with TieredReader.open(config) as reader:
        assert len(reader.query_message("orders", "u77").messages) == 1
        assert len(reader.query_message("orders", "all", count_max=999).messages) == 240
    assert report_of(config).findings == ()

    # What a read gives can be written to another tier, and is the same there.
    copy = posix_config(tmp_path / "copy")
    frame = spark.read.format("tieredstore").options(**options_of(config)).load()
    write(frame, copy, load_id="the copy")
    assert [message.property_bytes for message in messages(copy, B)] == [
        message.property_bytes for message in messages(config, B)
    ]
    assert messages(copy, A)[7].store_timestamp == messages(config, A)[7].store_timestamp


def test_what_cannot_be_is_one_line_and_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    config = posix_config(tmp_path)
    few = orders(spark, 0, 4)
    for frame, mode, says in (
        (few, "overwrite", "messages of a tier are never replaced; use mode('append')"),
        (few.selectExpr("body"), "append", "there is no column topic: add it"),
        (few.selectExpr("*", "1 as tag"), "append", "column tag: a message has no such field"),
        (few.selectExpr("topic", "queue_id", "1 as tags"), "append", "it is int32, not a string"),
        (few.selectExpr("'a/b' as topic", "queue_id"), "append", "column topic: 'a/b' is none"),
        (few.selectExpr("topic", "map() as properties"), "append", "it is map<void,void>, not"),
    ):
        with pytest.raises(Exception, match="tieredstore") as refusal:
            write(frame, config, mode)
        text = str(refusal.value)
        assert says in text
        assert "Traceback" not in text
    with open_tier_of(config) as parts:
        assert parts.files.files() == []
        with pytest.raises(Exception, match="another process has it open"):
            write(few, config, wait_seconds="0")
    assert report_of(config).findings == ()


@pytest.mark.parametrize("name", ["", " "])
def test_a_load_id_that_names_nothing_is_refused(name: str) -> None:
    """All loads with it would count as one, and only the first would be made."""
    with pytest.raises(InvalidConfigError, match="load_id: it is empty"):
        WriteOptions.parse({**options_of(posix_config(Path("/tier"))), "load_id": name})


# The first attempt at partition 1 fails after half of its rows; partition 0 kills its executor.
# Then the same cluster reads the tier.
LOADING = """
import json, os, signal, sys
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
# Spark finds a source by itself only where it is installed.
from pyspark_tieredstore import DefaultSource
spark.dataSource.register(DefaultSource)
died, options = sys.argv[1], json.loads(sys.argv[2])

def rows(numbers):
    context = TaskContext.get()
    for place, number in enumerate(numbers):
        if place == 40 and context.attemptNumber() == 0 and context.partitionId() == 1:
            raise RuntimeError("not at the first attempt")
        if place == 40 and context.partitionId() == 0 and not os.path.exists(died):
            Path(died).touch()
            daemon = os.getppid()
            executor = int(Path(f"/proc/{daemon}/stat").read_text().rsplit(")")[1].split()[1])
            os.kill(executor, signal.SIGKILL)
        yield ("orders", number % 2, b"body-%d" % number, ["k%d" % number])

numbers = spark.sparkContext.parallelize(range(200), 2)
schema = "topic string, queue_id int, body binary, keys array<string>"
frame = spark.createDataFrame(numbers.mapPartitions(rows), schema)
frame.write.format("tieredstore").options(**options, block_bytes="2k").mode("append").save()

reader = spark.read.format("tieredstore").options(**options)
found = reader.option("split_bytes", "4k").load().select("queue_id", "queue_offset").collect()
keyed = reader.option("columns", "key,queue_offset").option("key", "k12").load().collect()

def where(_):
    import tieredstore
    yield tieredstore.__file__

files = spark.sparkContext.parallelize(range(4), 4).mapPartitions(where).collect()
print(json.dumps([sorted(map(tuple, found)), [row.queue_offset for row in keyed], files]))
"""


@pytest.mark.slow
def test_attempts_that_fail_and_executors_that_die_leave_every_message_once(
    tmp_path: Path,
) -> None:
    """On a cluster that has the package as a zip, and also reads with it."""
    config = posix_config(tmp_path)
    died = tmp_path / "died"
    ran = submitted(LOADING, [died, json.dumps(options_of(config))], tmp_path)
    assert died.exists()
    for key in (A, B):
        numbers = range(key.queue_id, 200, 2)
        assert bodies(config, key) == [f"body-{number}" for number in numbers]
    with TieredReader.open(config) as reader:
        for number in range(0, 200, 9):
            assert len(reader.query_message("orders", f"k{number}").messages) == 1
    assert report_of(config).findings == ()
    found, keyed, files = json.loads(ran.stdout.splitlines()[-1])
    assert found == [[queue_id, number] for queue_id in (0, 1) for number in range(100)]
    assert len(keyed) == 1
    assert all(".zip" in file for file in files), files


# The first attempt at one partition stops after most of its rows. It goes on when its twin has
# begun, when its twin has given all its rows, or never: then Spark kills it.
TWINS = """
import json, sys, threading
from pathlib import Path
from pyspark import SparkContext, TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

place, options = Path(sys.argv[1]), json.loads(sys.argv[2])
options["block_bytes"] = "2k"
ROWS = 160

# Spark starts a twin on another machine only: a cluster whose two have an address each.
SparkContext._ensure_initialized()
jvm, deploy = SparkContext._jvm, SparkContext._jvm.org.apache.spark.deploy
conf, none = jvm.org.apache.spark.SparkConf(), jvm.scala.Option.empty()
master = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)._1().address()
urls = SparkContext._gateway.new_array(jvm.String, 1)
urls[0] = master.toSparkURL()
for host in ("127.0.0.2", "127.0.0.3"):
    deploy.worker.Worker.startRpcEnvAndEndpoint(
        host, 0, 0, 1, 1024, urls, str(place / host), none, conf, none
    )

building = SparkSession.builder.master(urls[0])
building = building.config("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
for name, value in (
    ("", "true"), (".interval", "50ms"), (".minTaskRuntime", "10ms"),
    (".multiplier", "1.1"), (".quantile", "0.5"),
):
    building = building.config(f"spark.speculation{name}", value)
spark = building.getOrCreate()
import tieredstore.spark
from pyspark_tieredstore import DefaultSource
spark.dataSource.register(DefaultSource)

def slowed(numbers, name, goes_on):
    def given(number):
        context, pause = TaskContext.get(), threading.Event()
        mark = f"{name}-{context.partitionId()}-"
        if number % ROWS == 0:
            (place / f"{mark}{context.attemptNumber()}").touch()
        if number % ROWS == 120 and context.attemptNumber() == 0 and context.partitionId() == 1:
            for _ in range(6_000):
                if (place / f"{mark}1{goes_on}").exists():
                    break
                pause.wait(0.01)
        if number % ROWS == ROWS - 1:
            (place / f"{mark}{context.attemptNumber()}.end").touch()
        return number

    given = udf(given, "long").asNondeterministic()
    return numbers.select(given("id").alias("id")).selectExpr(
        "'orders' as topic",
        "cast(id % 2 as int) as queue_id",
        "cast(concat('body-', id) as binary) as body",
        "concat('u', id) as unique_key",
    )

first = 0
for goes_on in ("", ".end", ".never"):
    starts = range(first, first + 12 * ROWS, 4 * ROWS)
    numbers = [spark.range(start, start + 4 * ROWS, 1, 4) for start in starts]
    frame = slowed(numbers[0], f"save{goes_on}", goes_on)
    frame.write.format("tieredstore").options(**options).mode("append").save()
    frame = slowed(numbers[1], f"load{goes_on}", goes_on)
    tieredstore.spark.load(frame, load_id=f"load{goes_on}", **options)
    lines = str(place / f"lines{goes_on}")
    numbers[2].write.parquet(lines)
    files = spark.readStream.schema("id long").parquet(lines)
    sink = slowed(files, f"stream{goes_on}", goes_on).writeStream.format("tieredstore")
    sink = sink.options(**options).option("checkpointLocation", str(place / f"at{goes_on}"))
    sink.trigger(availableNow=True).start().awaitTermination()
    first += 12 * ROWS
"""


@pytest.mark.cluster
def test_speculative_twins_add_each_message_once(tmp_path: Path) -> None:
    """In a write, in a load, and in a batch of a stream."""
    config = posix_config(tmp_path / "tier")
    submitted(TWINS, [tmp_path, json.dumps(options_of(config))], tmp_path)
    for name in ("save", "load", "stream"):
        for goes_on in ("", ".end", ".never"):
            assert (tmp_path / f"{name}{goes_on}-1-1").exists(), "it had no twin"
    count = 9 * 4 * 160
    for key in (A, B):
        wanted = [f"body-{number}" for number in range(key.queue_id, count, 2)]
        assert sorted(bodies(config, key)) == sorted(wanted)
    with TieredReader.open(config) as reader:
        for number in range(0, count, 97):
            assert len(reader.query_message("orders", f"u{number}").messages) == 1
    assert report_of(config).findings == ()
