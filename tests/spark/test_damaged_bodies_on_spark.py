"""A damaged body reaches no row of a DataFrame unmarked: the workers check as every bulk reader."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.jobs.written_tier import WrittenTier, posix_config
from tests.spark.read_options import load
from tieredstore.access.reader import TieredReader
from tieredstore.codec.message import decode_message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAMAGED = 3


def test_it_fails_is_reported_or_is_not_looked_at(spark: SparkSession, tmp_path: Path) -> None:
    tier = WrittenTier(config=posix_config(tmp_path))
    tier.add("Orders", 0, 20)
    with TieredReader(tier.config) as reader:
        message = reader.get_message("Orders", 0, DAMAGED, count_max=1).messages[0]
    (path,) = (tmp_path / "tiered").rglob("Orders/0/COMMIT_LOG/*00000000")
    data = bytearray(path.read_bytes())
    data[message.log_offset + message.record.index(decode_message(message.record).body)] ^= 1
    path.write_bytes(data)

    with pytest.raises(PySparkException, match=f"body of message {DAMAGED} "):
        load(spark, tier.config).select("body").collect()
    skipped = load(spark, tier.config, on_corrupt="skip").select("queue_offset").collect()
    assert sorted(row.queue_offset for row in skipped) == [n for n in range(20) if n != DAMAGED]
    told = load(spark, tier.config, on_corrupt="report").where("damage is not null").collect()
    assert [(row.queue_offset, row.body) for row in told] == [(DAMAGED, None)]
    frame = load(spark, tier.config, crc_check_enabled="false")
    assert [row.queue_offset for row in frame.where("not body_crc_ok").collect()] == [DAMAGED]
