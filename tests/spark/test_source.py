"""A tier read through Spark is the tier: Java's own files, filters, keys, damage, buckets."""

from __future__ import annotations

import importlib.util
import shutil
import uuid
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.datasource import EqualTo
from pyspark.sql.types import StringType, StructField, StructType
from werkzeug.wrappers import Response

from tests.codec.golden_files import BROKER, GOLDEN, expected
from tests.jobs.job_kit import golden_config
from tests.jobs.written_tier import SECOND_MS, START_MS, WrittenTier, posix_config
from tests.s3.conftest import moto, s3_environment
from tests.s3.moto_server import Door
from tests.spark.spark_kit import PUSHDOWN, load, options_of
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.jobs.arrow import MESSAGE_COLUMNS
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.values import INT64_MAX, SegmentType
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings
from tieredstore.spark.options import ReadOptions, parse_number
from tieredstore.spark.reading import DataLossError, spark_schema, with_schema
from tieredstore.spark.source import PushingTierBatchReader, TierBatchReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PLACE = ("topic", "queue_id", "queue_offset")


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> WrittenTier:
    made = WrittenTier(config=posix_config(tmp_path_factory.mktemp("tier")))
    made.add("orders", 0, 200, seal=True)
    made.add("orders", 1, 100, seal=True)
    made.add("payments", 0, 50)
    return made


def places(frame: DataFrame) -> list[tuple[str, int, int]]:
    return sorted(tuple(row) for row in frame.select(*PLACE).collect())


def test_the_tier_that_java_wrote_is_read_as_java_says_it_is(spark: SparkSession) -> None:
    frame = load(spark, golden_config(GOLDEN / "tier-posix"))
    assert frame.columns == list(MESSAGE_COLUMNS)
    bare = frame.withColumn("body", F.sha2("body", 256)).withColumn(
        "store_time", F.unix_millis("store_time")
    )
    born = F.unix_millis("born_time")
    found = {
        (row.topic, row.queue_id, row.queue_offset): row
        for row in bare.withColumn("born_time", born).collect()
    }
    local = {row["physicalOffset"]: row for row in expected("local-clean.expect-messages.json")}
    wanted = expected("tier-posix.expect-messages.json")
    assert len(found) == len(wanted) == 533
    for tiered in wanted:
        row = found[tiered["topic"], tiered["queueId"], tiered["queueOffset"]]
        message = local[tiered["localPhysicalOffset"]]
        assert (row["size"], row.log_offset, row.store_time) == (
            tiered["size"],
            tiered["tieredCommitLogOffset"],
            message["storeTimestamp"],
        )
        assert (row.born_time, row.flag, row.sys_flag, row.body, row.body_crc_ok) == (
            message["bornTimestamp"],
            message["flag"],
            message["sysFlag"],
            message["bodySha256"],
            True,
        )
        assert (row.tags, row.unique_key) == (message.get("tags"), message.get("uniqKey"))
        assert row["keys"] == [key for key in (message.get("keys") or "").split(" ") if key]
        assert (row.properties or {}).get("KEYS") == (message.get("keys") or None)
        assert host(row.born_host) == message["bornHost"]
        assert host(row.store_host) == message["storeHost"]


def host(text: str) -> str:
    """The host as in the expectation files: hexadecimal address, port."""
    import ipaddress

    address, _, port = text.rpartition(":")
    return f"{ipaddress.ip_address(address.strip('[]')).packed.hex()}:{port}"


CONDITIONS = [
    "topic = 'orders' and queue_id = 1 and queue_offset >= 10 and queue_offset < 20",
    "topic in ('payments', 'none') or queue_offset = 7",
    "store_time >= timestamp_millis({t0}) and store_time < timestamp_millis({t1})",
    "store_time = timestamp_millis({t0}) and queue_id <=> 0",
    "unique_key = 'U00000003' and topic like 'ord%'",
    "not (queue_id = 0) and queue_offset > 95",
]


@pytest.mark.parametrize("pushdown", ["false", "true"])
def test_filters_say_the_same_pushed_down_or_not(
    spark: SparkSession, tier: WrittenTier, pushdown: str
) -> None:
    everything = [(*key, number) for key, end in sorted(tier.ends.items()) for number in range(end)]
    wanted = [
        [each for each in everything if each[:2] == ("orders", 1) and 10 <= each[2] < 20],
        [each for each in everything if each[0] == "payments" or each[2] == 7],
        [each for each in everything if 5 <= each[2] < 8],
        [each for each in everything if each[2] == 5 and each[1] == 0],
        [each for each in everything if each[2] == 3 and each[0] == "orders"],
        [each for each in everything if each[1] == 1 and each[2] > 95],
    ]
    spark.conf.set(PUSHDOWN, pushdown)
    try:
        frames = [
            load(spark, tier.config, pushdown=pushdown).where(
                condition.format(t0=START_MS + 5 * SECOND_MS, t1=START_MS + 8 * SECOND_MS)
            )
            for condition in CONDITIONS
        ]
        united = reduce(
            DataFrame.union,
            [frame.select(F.lit(at), *PLACE) for at, frame in enumerate(frames)],
        )
        found = sorted(tuple(row) for row in united.collect())
        assert found == [(at, *each) for at in range(len(wanted)) for each in wanted[at]]
        by_key = load(
            spark, tier.config, pushdown=pushdown, columns="key,topic,queue_id,queue_offset"
        )
        chosen = by_key.where("key in ('order-12', 'shared-3')")
        assert places(chosen) == [
            each
            for each in everything
            if (each[2] // 10 == 3 and each[2] % 7 != 6) or each[2] == 12
        ]
    finally:
        spark.conf.unset(PUSHDOWN)


def test_a_key_that_is_pushed_down_reads_its_messages_and_no_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    """All other messages of the log are destroyed: reading them would fail."""
    made = WrittenTier(config=posix_config(tmp_path))
    made.add("orders", 0, 60, seal=True)
    frame = load(spark, made.config, columns="queue_offset,log_offset,size", topics="orders")
    kept = frame.where("queue_offset = 17").collect()[0]
    (log,) = Path(made.config.path).glob("*/*/orders/0/COMMIT_LOG/*")
    data = bytearray(len(log.read_bytes()))
    data[kept.log_offset : kept.log_offset + kept["size"]] = log.read_bytes()[
        kept.log_offset : kept.log_offset + kept["size"]
    ]
    log.write_bytes(data)
    assert [row.queue_offset for row in load(spark, made.config, key="order-17").collect()] == [17]
    spark.conf.set(PUSHDOWN, "true")
    try:
        pushed = load(spark, made.config, pushdown="true")
        found = pushed.where("unique_key = 'U00000017' and topic = 'orders'")
        assert [row.queue_offset for row in found.collect()] == [17]
    finally:
        spark.conf.unset(PUSHDOWN)


@pytest.mark.parametrize("setting", ["true", "false"])
def test_a_frame_that_is_used_again_has_every_row_that_its_condition_passes(
    spark: SparkSession, tier: WrittenTier, setting: str
) -> None:
    """In one query or several, as a frame or a view, whatever Spark's own setting says."""
    spark.conf.set(PUSHDOWN, setting)
    try:
        frame = load(spark, tier.config, columns="topic,queue_id,queue_offset,unique_key")
        frame.createOrReplaceTempView("messages")
        paid, first = frame.where("topic = 'payments'"), frame.where("queue_offset < 5")
        in_turn = [paid.count(), frame.count(), first.count(), paid.count(), frame.count()]
        assert in_turn == [50, 350, 15, 50, 350]
        assert paid.union(first).count() == paid.union(frame.where("queue_id = 9")).count() + 15
        assert paid.union(frame).union(first).count() == 50 + 350 + 15
        keys = frame.where("topic = 'orders' and queue_id = 1").alias("one")
        joined = keys.join(paid.alias("other"), "queue_offset")
        assert joined.count() == 50
        assert frame.join(first.select("unique_key"), "unique_key").count() == 5 * 3 * 3
        assert frame.where("topic = 'orders'").join(frame.limit(0), "topic", "left").count() == 300
        told = spark.sql(
            "select (select count(*) from messages where topic = 'payments'),"
            " (select count(*) from messages where queue_offset >= 90 and queue_id = 0),"
            " (select count(*) from messages)"
        )
        assert tuple(told.collect()[0]) == (50, 110, 350)
        kept = frame.where("queue_id = 1").cache()
        try:
            counts = [kept.count(), frame.count(), spark.table("messages").count(), kept.count()]
            assert counts == [100, 350, 350, 100]
        finally:
            kept.unpersist()
        other = load(spark, tier.config, columns="topic", topics="payments")
        counts = [other.count(), other.where("topic = 'orders'").count(), other.count()]
        assert counts == [50, 0, 50]
    finally:
        spark.conf.unset(PUSHDOWN)
        spark.catalog.dropTempView("messages")


def test_options_say_what_filters_say_and_only_columns_of_the_schema_are_read(
    spark: SparkSession, tier: WrittenTier
) -> None:
    options = {
        **options_of(tier.config),
        "topicPattern": "ord.*",
        "queues": "0-5",
        "start_offset": "3",
        "endTime": datetime.fromtimestamp(START_MS / 1000 + 6, UTC).isoformat(),
        "split_bytes": "2k",
    }
    reader = spark.read.format("tieredstore").options(**options)
    frame = reader.schema("body binary, queue_id int, topic string").load()
    rows = frame.collect()
    assert frame.columns == ["body", "queue_id", "topic"]
    assert sorted((row.queue_id, bytes(row.body)[:8]) for row in rows) == [
        (queue, f"{number:08d}".encode()) for queue in (0, 1) for number in (3, 4, 5)
    ]


def test_a_batch_has_the_offsets_of_each_queue_that_it_is_told(tier: WrittenTier) -> None:
    def ranges(**options: str) -> dict[tuple[str, int], tuple[int, int]]:
        named = {"topics": "orders", "columns": "queue_id,queue_offset", **options}
        parsed = ReadOptions.parse({**options_of(tier.config), **named})
        reader = TierBatchReader(parsed, spark_schema(("queue_id", "queue_offset")))
        found: dict[tuple[str, int], list[int]] = {}
        for partition in reader.partitions():
            for row in [row for batch in reader.read(partition) for row in batch.to_pylist()]:
                found.setdefault(("orders", row["queue_id"]), []).append(row["queue_offset"])
        assert all(sorted(at) == [*range(min(at), max(at) + 1)] for at in found.values())
        return {key: (min(at), max(at) + 1) for key, at in found.items()}

    begin, end = '{"orders": {"0": 180, "1": -2}}', '{"orders": {"0": 190, "1": -1}}'
    whole = {("orders", 0): (0, 200), ("orders", 1): (0, 100)}
    assert ranges(startingOffsets=begin) == whole | {("orders", 0): (180, 200)}
    assert ranges(startingOffsets=begin, endingOffsets=end, start_offset="20") == {
        ("orders", 0): (180, 190),
        ("orders", 1): (20, 100),
    }
    assert ranges(ending='{"orders": {"1": 0}}', starting="earliest") == {("orders", 0): (0, 200)}
    far = '{"orders": {"1": 101}}'
    with pytest.raises(DataLossError, match="queue 1: message 101 is asked for, but the tier has"):
        ranges(endingOffsets=far)
    assert ranges(endingOffsets=far, failOnDataLoss="false") == whole
    for wrong, line in (
        ({"startingOffsets": "latest"}, "starting: a batch begins at the earliest message"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "begins at the newest message is empty"),
        ({"startingOffsets": '{"orders": {"7": 1}}'}, "queue 7 of 'orders' is not among those"),
        ({"startingOffsets": '{"payments": {"0": 1}}'}, "queue 0 of 'payments' is not among"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "nothing ends at the oldest message"),
        ({"endingOffsets": '{"orders": {"0": "2"}}'}, "ending: want latest, or offsets such as"),
        ({"endingOffsets": '{"orders": 2}'}, "ending: want latest, or offsets such as"),
        ({"startingOffsets": "{"}, "starting: want latest, or offsets such as"),
        ({"startingOffsets": '{"a":' * 20_000}, "starting: want latest, or offsets such as"),
        ({"starting": "earliest", "startingOffsets": begin}, "starting is given twice"),
    ):
        with pytest.raises(InvalidConfigError, match=line):
            ranges(**wrong)


def test_a_filter_may_leave_out_queues_that_offsets_are_told_of(tier: WrittenTier) -> None:
    for topic, count in (("payments", 50), ("orders", 120)):
        told = {"pushdown": "true", "starting": '{"orders": {"0": 180}}', "columns": "topic"}
        parsed = ReadOptions.parse({**options_of(tier.config), **told})
        reader = PushingTierBatchReader(parsed, spark_schema(("topic",)))
        list(reader.pushFilters([EqualTo(("topic",), topic)]))
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        assert sum(map(len, batches)) == count


def test_a_limit_is_read_by_one_task_that_stops_there(
    tier: WrittenTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    plain = FlatAppendFile.read

    def noted(file: FlatAppendFile, offset: int, length: int) -> bytes:
        read.append(length if file.type is SegmentType.COMMIT_LOG else 0)
        return plain(file, offset, length)

    def rows(**options: str) -> list[tuple[str, int, int]]:
        parsed = ReadOptions.parse(
            {**options_of(tier.config), "columns": ",".join(PLACE)} | options
        )
        reader = TierBatchReader(parsed, spark_schema(PLACE))
        (partition,) = reader.partitions()
        monkeypatch.setattr(FlatAppendFile, "read", noted)
        batches = list(reader.read(partition))
        monkeypatch.undo()
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]

    assert rows(limit="3", split_bytes="1k") == [("orders", 0, number) for number in range(3)]
    assert sum(read) < 64 * 2 * 400  # two runs, not a window over all queues
    assert len(rows(limit="230", split_bytes="1k")) == 230
    assert len(rows(limit="1000000")) == 350
    assert rows(limit="2", topics="payments", start_offset="30") == [
        ("payments", 0, 30),
        ("payments", 0, 31),
    ]
    assert len(rows(limit="5", key="shared-3")) == 5
    with pytest.raises(InvalidConfigError, match="limit: 0 messages are none"):
        rows(limit="0")


def test_damage_fails_is_left_out_or_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "tier-posix", tmp_path / "t")
    config = golden_config(tmp_path / "t")
    (log,) = (tmp_path / "t").glob(f"tiered/*/{BROKER}/GoldAa/0/COMMIT_LOG/*" + "0" * 20)
    data = bytearray(log.read_bytes())
    data[0:4] = b"\xff\xff\xff\xff"
    log.write_bytes(data)
    count = len(expected("tier-posix.expect-messages.json"))
    with pytest.raises(PySparkException) as failure:
        load(spark, config).count()
    assert f"{log.name}: damaged at byte 0: this is not message 0" in str(failure.value)
    assert "Traceback" not in str(failure.value).partition("Driver stacktrace")[0]
    assert load(spark, config, on_corrupt="skip").count() == count - 1
    reported = load(spark, config, on_corrupt="report")
    assert reported.count() == count
    (told,) = reported.where("damage is not null").collect()
    assert (told.topic, told.queue_id, told.queue_offset, told.body) == ("GoldAa", 0, 0, None)
    assert log.name in told.damage


def test_plain_bodies_are_a_column_and_one_that_is_damaged_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = WrittenTier(config=posix_config(tmp_path))
    stored = zlib.compress(b"an order")
    made.add("orders", 0, 2, bodies=[stored, stored[:-1]], sys_flag=1)
    frame = load(spark, made.config, columns="queue_offset,body_plain", end_offset=1)
    assert [tuple(row) for row in frame.collect()] == [(0, b"an order")]
    with pytest.raises(PySparkException, match="orders, queue 0, message 1: the compressed body"):
        load(spark, made.config, columns="body_plain").collect()
    columns = "queue_offset,body_plain,damage"
    reported = load(spark, made.config, columns=columns, on_corrupt="report").collect()
    told = "the compressed body is damaged (zlib): it ends too early"
    assert sorted(tuple(row) for row in reported) == [(0, b"an order", None), (1, None, told)]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"topics": ""}, "topics: name at least one"),
        ({"topics": " , "}, "topics: name at least one"),
        ({"topic_pattern": ""}, "topic_pattern: name at least one"),
        ({"columns": ","}, "columns: name at least one"),
        ({"columns": "body,body"}, "columns: one is named twice"),
        ({"queues": ""}, "queues: name at least one"),
        ({"queues": "1,5-2"}, "queues: '5-2' ends before it begins"),
        ({"key": ""}, "key: name at least one"),
        ({"keys": ""}, "keys: name at least one"),
        ({"key": "a", "keys": " "}, "keys: name at least one"),
        ({"start_offset": "5", "end_offset": "5"}, "start_offset: 5 is not before end_offset 5"),
        ({"start_offset": "6", "end_offset": "5"}, "start_offset: 6 is not before end_offset 5"),
        ({"start_time": "2", "end_time": "1"}, "start_time: 2 is not before end_time 1"),
        ({"start_time": "soon"}, "start_time: want milliseconds or a time"),
        ({"config": "/nowhere/tier.toml"}, "no such file: /nowhere/tier.toml"),
        ({"tier": "prod"}, "tier prod: name the file that has it with the option config"),
        ({"columns": "bdy"}, "columns: there is no column 'bdy'"),
        ({"on_corrupt": "maybe"}, "on_corrupt: 'maybe' is none of fail, skip, report"),
        ({"pushdown": "auto"}, "pushdown: want true or false, not 'auto'"),
        ({"broker": "b"}, "option broker: broker_name is given twice"),
        (
            {"startingOffsets": '{"t": {"0": 9}}', "endingOffsets": '{"t": {"0": 7}}'},
            "starting: t, queue 0: 9 is behind ending 7",
        ),
    ],
)
def test_options_that_select_nothing_or_make_no_sense_are_refused(
    options: dict[str, str], line: str
) -> None:
    named = {**options_of(posix_config(Path("/tier"))), **options}
    with pytest.raises(InvalidConfigError) as refusal:
        ReadOptions.parse(named)
    assert line in str(refusal.value)


def test_bad_input_is_one_line_that_names_it(spark: SparkSession, tier: WrittenTier) -> None:
    spoken = {
        "did you mean topics?": {"topcs": "a"},
        "topics: the tier has no topic 'order'; its 2 topics: orders, payments": {
            "topics": "order"
        },
        "/nowhere/catalogue.json: there is no such file": {
            **options_of(golden_config(GOLDEN / "tier-posix")),
            "metadata_path": "/nowhere/catalogue.json",
        },
        "has no broker 'nobody'; it has broker-a": {"broker_name": "nobody"},
        "cluster_name: no cluster 'd' (8277e091_d) lies in": {"cluster_name": "d"},
        "path: there is no directory /nowhere/tier": {"path": "/nowhere/tier"},
    }
    for line, options in spoken.items():
        reader = spark.read.format("tieredstore").options(**{**options_of(tier.config), **options})
        with pytest.raises(AnalysisException) as failure:
            reader.load().count()
        text = str(failure.value)
        assert line in text
        assert "Traceback" not in text
        assert len(text.strip().splitlines()) <= 2, text
    with pytest.raises(AnalysisException, match=r"schema: topic is string, not bigint"):
        spark.read.format("tieredstore").options(**options_of(tier.config)).schema(
            "topic long"
        ).load().count()


def test_a_number_may_have_as_many_digits_as_it_likes() -> None:
    for text, number in (("0" * 30 + "7", 7), ("0" * 5_000, 0), ("9" * 5_000, INT64_MAX)):
        assert parse_number("start_offset", text) == number


def test_a_schema_without_columns_would_have_no_rows_and_is_refused(tier: WrittenTier) -> None:
    options = ReadOptions.parse(options_of(tier.config))
    for columns in ((), ("size", "size")):
        with pytest.raises(InvalidConfigError, match="at least one column, and none twice"):
            with_schema(options, spark_schema(columns))


def test_a_null_in_a_column_that_a_schema_says_has_none_is_one_line(tier: WrittenTier) -> None:
    options = {**options_of(tier.config), "topics": "payments"}

    def rows_of(column: str) -> int:
        schema = StructType([StructField(column, StringType(), nullable=False)])
        reader = TierBatchReader(with_schema(ReadOptions.parse(options), schema), schema)
        return sum(len(batch) for part in reader.partitions() for batch in reader.read(part))

    assert rows_of("tags") == 50
    with pytest.raises(InvalidConfigError, match="^schema: unique_key is NOT NULL there, and a"):
        rows_of("unique_key")


__all__ = ["moto", "s3_environment"]
SECRET = "whoever-reads-this-has-the-bucket"
EXAMPLES = Path(__file__).parents[2] / "examples"
REFUSED = b"<Error><Code>InvalidAccessKeyId</Code><Message>No such key.</Message></Error>"


@pytest.fixture
def in_a_bucket(moto: tuple[str, Door], tmp_path: Path) -> Iterator[tuple[WrittenTier, Door]]:
    endpoint, door = moto
    bucket = f"tier-{uuid.uuid4().hex}"
    named: dict[str, Any] = {
        "bucket": bucket,
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key": "testing",
        "secret_key": SECRET,
    }
    create_bucket(ObjectStoreSettings(**named))
    config: StoreConfig = posix_config(tmp_path, provider="s3", path="", **named)
    made = WrittenTier(config=config)
    made.add("orders", 0, 60, seal=True)
    made.add("orders", 1, 20, seal=True)
    yield made, door
    door.answers.clear()


@pytest.mark.s3
def test_a_tier_in_a_bucket_is_read_and_wrong_credentials_are_one_line(
    spark: SparkSession, in_a_bucket: tuple[WrittenTier, Door]
) -> None:
    tier, door = in_a_bucket
    frame = load(spark, tier.config, split_bytes="2k", columns="queue_id,queue_offset,body_crc_ok")
    assert sorted(tuple(row) for row in frame.collect()) == [
        (queue_id, number, True) for queue_id, end in ((0, 60), (1, 20)) for number in range(end)
    ]
    keyed = load(spark, tier.config, key="order-12", columns="queue_id,queue_offset")
    assert sorted(tuple(row) for row in keyed.collect()) == [(0, 12), (1, 12)]
    refusal = Response(REFUSED, status=403, content_type="application/xml")
    door.answers.update(dict.fromkeys(("GET", "HEAD", "LIST"), refusal))
    with pytest.raises(AnalysisException) as failure:
        load(spark, tier.config).count()
    text = str(failure.value)
    assert len(text.strip().splitlines()) <= 2, text
    assert "403 InvalidAccessKeyId" in text
    assert SECRET not in text


@pytest.mark.s3
def test_a_plan_does_not_show_the_secret(
    spark: SparkSession, in_a_bucket: tuple[WrittenTier, Door], capfd: pytest.CaptureFixture[str]
) -> None:
    tier, _ = in_a_bucket
    frame = load(spark, tier.config, columns="queue_id,queue_offset").where("queue_id = 0")
    frame.explain(mode="extended")
    frame.show()
    shown = capfd.readouterr()
    assert "queue_offset" in shown.out
    assert SECRET not in shown.out + shown.err


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["read_with_spark", "stream_to_parquet"])
@pytest.mark.parametrize("words", [["--help"], ["--out", "lake", "--config"]])
def test_an_example_without_a_value_for_an_option_shows_its_usage(
    name: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert example(name).main(words) == 2
    assert "--config tier.toml" in capsys.readouterr().err


def test_the_examples_show_a_tier_and_keep_it_as_parquet(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tier = WrittenTier(config=posix_config(tmp_path / "tier"))
    tier.add("orders", 3, 40, seal=True)
    words = [f"--{name} {value}" for name, value in options_of(tier.config).items()]
    given = " ".join(words).split(" ")
    reading, streaming = example("read_with_spark"), example("stream_to_parquet")
    since = f"{START_MS + 38_000}"
    reading.show(spark, reading.pairs([*given, "--start-time", since, "--key", "order-39"]))
    shown = capsys.readouterr().out
    assert "|orders|3       |2       |" in shown
    assert "00000039" in shown
    out = tmp_path / "lake"
    streaming.follow(spark, streaming.pairs([*given, "--out", str(out)]))
    assert spark.read.parquet(str(out)).count() == 40
    tier.add("orders", 3, 5)
    streaming.follow(spark, streaming.pairs([*given, "--out", str(out)]))
    kept = spark.read.parquet(str(out))
    assert kept.count() == kept.select("queue_offset").distinct().count() == 45
    assert {row.day.isoformat() for row in kept.select("day").distinct().collect()} == {
        "2023-11-14"
    }
