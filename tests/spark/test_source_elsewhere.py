"""A tier in an object store through Spark, and the examples as their readers would run them."""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException
from werkzeug.wrappers import Response

from tests.jobs.written_tier import START_MS, WrittenTier, posix_config
from tests.s3.conftest import moto, s3_environment
from tests.s3.moto_server import Door
from tests.spark.read_options import load, options_of
from tieredstore.model.config import StoreConfig
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
