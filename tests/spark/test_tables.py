"""A tier in Spark SQL: tables, views of topics, and how queries see new messages."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from tests.jobs.written_tier import WrittenTier, posix_config
from tests.spark.conftest import ROOT
from tests.spark.spark_kit import drop_tables, options_of, started
from tieredstore.model.errors import InvalidConfigError
from tieredstore.spark import register
from tieredstore.spark.tables import KEPT, options_of_read, options_of_table, with_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = ["%RETRY%billing", "order-events", "payments"]


@pytest.fixture
def tier(tmp_path: Path) -> WrittenTier:
    made = WrittenTier(config=posix_config(tmp_path / "tier", index_enabled=False))
    for number, topic in enumerate(TOPICS):
        made.add(topic, number, 10 + number)
    return made


@pytest.fixture
def file(tier: WrittenTier, tmp_path: Path) -> Path:
    path = tmp_path / "tier.toml"
    named = options_of(tier.config).items()
    values = {name: text if text.isdigit() else repr(text) for name, text in named}
    values["index_enabled"] = "false"
    lines = [f"{name} = {value}" for name, value in values.items()]
    path.write_text("\n".join(["[tieredstore]", *lines]))
    return path


@pytest.fixture
def sql(spark: SparkSession) -> Iterator[SparkSession]:
    """The session; after each test its catalogue is emptied."""
    yield spark
    drop_tables(spark)


def counts(spark: SparkSession, query: str) -> dict[str, int]:
    return {row[0]: row[1] for row in spark.sql(query).collect()}


def test_a_table_reads_the_tier_as_it_is_at_each_query(
    sql: SparkSession, tier: WrittenTier, tmp_path: Path
) -> None:
    given = {name: text for name, text in options_of(tier.config).items() if name != "provider"}
    options = ", ".join(f"{name} '{text}'" for name, text in given.items())
    sql.sql(f"CREATE TABLE messages USING tieredstore OPTIONS ({options}) COMMENT 'of the tier'")
    each = "SELECT topic, count(*) FROM messages {} GROUP BY topic"
    assert counts(sql, each.format("")) == dict(zip(TOPICS, [10, 11, 12], strict=True))
    sql.sql("CREATE TEMPORARY VIEW late AS SELECT * FROM messages WHERE queue_offset >= 11")
    assert counts(sql, "SELECT topic, count(*) FROM late GROUP BY topic") == {"payments": 1}
    tier.add("payments", 2, 5)
    assert counts(sql, "SELECT topic, count(*) FROM late GROUP BY topic") == {"payments": 6}
    narrow = "WITH (topics = 'payments', start_offset = '15')"
    assert counts(sql, each.format(narrow)) == {"payments": 2}
    stream = sql.readStream.option("topics", "payments").table("messages").writeStream
    stream = stream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = stream.trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.lastProgress is not None
    assert query.lastProgress.numInputRows == 17
    sql.sql("DROP TABLE messages")
    assert Path(tier.config.path).is_dir()  # LOCATION belongs to the tier: only the name is gone


def test_every_topic_becomes_a_view_that_sees_what_comes(
    sql: SparkSession, tier: WrittenTier, file: Path
) -> None:
    assert register(sql, file) == TOPICS
    assert sql.sql("SELECT * FROM `%RETRY%billing`").count() == 10
    tier.add("order-events", 1, 4)
    tier.add("refunds", 0, 3)
    assert sql.sql("SELECT * FROM `order-events`").count() == 15
    assert sql.table("tier").count() == 10 + 15 + 12 + 3
    register(sql, file, prefix="q_", topic_pattern="refunds|payments", columns="topic,body")
    assert sql.table("q_refunds").columns == ["topic", "body"]
    assert sql.table("q_refunds").count() == 3
    with pytest.raises(InvalidConfigError, match="view payments: its name is that of the table"):
        register(sql, file, table="Payments")
    sql.sql("CREATE TABLE mine (a int) USING parquet")
    with pytest.raises(InvalidConfigError, match="table mine: there is one that reads no tier"):
        register(sql, file, table="mine")
    assert sql.table("mine").columns == ["a"]


def test_a_topic_whose_name_an_option_would_take_apart_has_a_view_of_its_own(
    sql: SparkSession, tier: WrittenTier, file: Path
) -> None:
    odd = [" payments", "a.b", "order-events,payments"]
    for count, topic in enumerate([*odd, "axb"], start=1):
        tier.add(topic, 0, count)
    register(sql, file, topic_pattern="(?!axb).*")
    for count, topic in enumerate(odd, start=1):
        query = f"SELECT topic, count(*) FROM `{topic}` GROUP BY topic"
        assert counts(sql, query) == {topic: count}


def test_a_query_of_several_views_reads_each_by_its_own_plan(
    sql: SparkSession, tier: WrittenTier, file: Path
) -> None:
    register(sql, file, subscribe=",".join(TOPICS))
    every = "(SELECT * FROM `order-events` UNION ALL SELECT * FROM payments)"
    each = f"SELECT topic, count(*) FROM {every} GROUP BY topic"
    assert counts(sql, each) == {"order-events": 11, "payments": 12}
    one_by_one = "SELECT (SELECT count(*) FROM `%RETRY%billing`), (SELECT count(*) FROM payments)"
    assert sql.sql(one_by_one).first() == (10, 12)
    joined = "SELECT count(*) FROM `order-events` o JOIN payments p ON o.unique_key = p.unique_key"
    assert sql.sql(joined).first() == (10,)  # number 6 has no key


def test_rows_are_inserted_into_the_tier_that_the_statement_names_and_no_other(
    sql: SparkSession, tier: WrittenTier, file: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.toml"
    copy.write_text(file.read_text().replace(tier.config.path, f"{tmp_path}/copy/tiered"))
    copy.write_text(copy.read_text().replace(tier.config.store_path, f"{tmp_path}/copy/store"))
    for name, place in (("here", file), ("there", copy)):
        sql.sql(f"CREATE TABLE {name} USING tieredstore OPTIONS (config '{place}')")
    there = f"INSERT INTO there WITH (config = '{copy}')"
    sql.sql(f"{there} SELECT * FROM here WHERE topic = 'payments'")
    sql.sql(f"{there} (body, topic, queue_id) VALUES (X'32', 'new', 0), (NULL, 'new', 0)")
    every = "SELECT topic, count(*) FROM {} GROUP BY topic"
    assert counts(sql, every.format("there")) == {"payments": 12, "new": 2}
    with pytest.raises(Exception, match="messages of a tier are never replaced"):
        sql.sql(f"INSERT OVERWRITE there WITH (config = '{copy}') SELECT * FROM here")
    # Spark gives these rows the columns of the table from which they were read.
    sql.table("here").write.parquet(f"{tmp_path}/archive")
    for rows in ("here", "there", f"parquet.`{tmp_path}/archive`"):
        with pytest.raises(Exception, match="which tier"):
            sql.sql(f"INSERT INTO there SELECT * FROM {rows}")
    with pytest.raises(Exception, match="which tier"):
        sql.sql(f"CREATE TABLE t USING tieredstore OPTIONS (config '{copy}') AS TABLE here")
    assert counts(sql, every.format("here")) == dict(zip(TOPICS, [10, 11, 12], strict=True))
    assert counts(sql, every.format("there")) == {"payments": 12, "new": 2}


def test_a_table_that_cannot_be_read_or_tells_a_secret_is_one_line(
    sql: SparkSession, file: Path
) -> None:
    with pytest.raises(Exception, match="option secret_key: a table keeps its options in the") as e:
        sql.sql("CREATE TABLE t USING tieredstore OPTIONS (bucket 'b', secret_key 'hush')")
    assert "hush" not in str(e.value)
    with pytest.raises(InvalidConfigError, match="option secret_key: a table keeps its") as refused:
        register(sql, file, secret_key="hush")
    assert "hush" not in str(refused.value)
    sql.sql(f"CREATE TABLE listed (topic string) USING tieredstore OPTIONS (config '{file}')")
    with pytest.raises(Exception, match="A table that was created with a list of columns has"):
        sql.table("listed").count()
    with pytest.raises(Exception, match=r"did you mean topics\?"):
        sql.sql(f"CREATE TABLE t USING tieredstore OPTIONS (config '{file}', topcs 'a')")


def test_options_of_a_query_count_more_than_those_of_its_table_and_never_mix_two_tiers() -> None:
    from pyspark.sql.types import StringType, StructField, StructType

    assert options_of_table({"provider": "posix", "path": "/tier"}) is None
    made = options_of_table(
        {
            "provider": "tieredstore",
            "owner": "me",
            "option.Topics": "a",
            "topics": "a",
            "path": "file:/a%20tier",
        }
    )
    assert made == {"topics": "a", "path": "/a tier"}
    plain = StructType([StructField("topic", StringType())])
    schema = with_options(plain, made)
    assert options_of_read({}, schema) == made
    assert options_of_read({"topics": "b"}, schema) == {"topics": "b", "path": "/a tier"}
    assert options_of_read({"config": "/x", "key": "k"}, schema) == {"config": "/x", "key": "k"}
    spelled = {"startoffset": "3", "subscribe": "a", "metadata_path": "/m", "limit": "9"}
    again = {"start_offset": "5", "topics": "b", "metadata": "/n"}
    other = with_options(plain, {"path": "/tier", **spelled})
    assert options_of_read(again, other) == {"path": "/tier", "limit": "9", **again}
    for damaged in ("[1]", "{", '{"a": 1}', "[" * 20_000):
        kept = StructType([StructField("topic", StringType(), True, {KEPT: damaged})])
        with pytest.raises(InvalidConfigError, match="the options of the table are damaged"):
            options_of_read({}, kept)


@pytest.mark.cluster
def test_the_command_spark_sql_makes_a_table_that_the_next_one_finds(
    tier: WrittenTier, file: Path, tmp_path: Path
) -> None:
    """In a Hive metastore, and without any Python code of the user."""

    def run(statements: str) -> subprocess.CompletedProcess[str]:
        home = Path(pyspark.__file__).parent
        confs = f"spark.sql.warehouse.dir={tmp_path / 'warehouse'}", "spark.ui.enabled=false"
        command = [str(home / "bin" / "spark-sql"), "--master", "local[1]"]
        command += [word for conf in confs for word in ("--conf", conf)]
        return started([*command, "-e", statements], tmp_path, PYTHONPATH=str(ROOT))

    create = f"CREATE TABLE messages USING tieredstore OPTIONS (config '{file}');"
    assert run(f"{create} SELECT count(*) FROM messages;").stdout.split()[-1] == "33"
    tier.add("payments", 2, 5)
    again = run("SELECT topic, count(*) FROM messages WHERE queue_id = 2 GROUP BY topic;")
    assert again.stdout.split()[-2:] == ["payments", "17"]
