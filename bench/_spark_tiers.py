"""Tiers for the benchmark on Spark, written as fast as the disk allows; and Spark itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tieredstore.access.wiring import open_tier
from tieredstore.codec.message import encode_message
from tieredstore.driver.runtime import Runtime
from tieredstore.index.contract import CommittedRun
from tieredstore.model.config import StoreConfig
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import Host

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "TopicTest"
START_MS = 1_700_000_000_000
ROOT = Path(__file__).resolve().parents[1]
_BATCH = 20_000
_DIGITS = 12


def config_of(folder: Path) -> StoreConfig:
    return StoreConfig(
        provider="posix",
        path=str(folder / "tiered"),
        store_path=str(folder / "store"),
        broker_name="broker-a",
        cluster_name="bench",
        expiry_enabled=False,  # its messages are from another year
        index_rolling_hours=24 * 365 * 100,
    )


def written(folder: Path, count: int, *, body_bytes: int, has_index: bool = False) -> StoreConfig:
    """One queue of `count` messages of one size, each with its own key."""
    config = config_of(folder)
    template = _Template(body_bytes, has_all=not has_index)
    with Runtime.threads() as runtime:
        parts = open_tier(config, runtime=runtime)
        parts.load()
        parts.index.start()
        file = parts.files.create(TOPIC, 0)
        file.start_at(0)
        at = 0
        while at < count:
            run = template.run(at, min(_BATCH, count - at))
            appended = file.append(run)
            file.commit()
            if has_index and appended.count:
                committed = CommittedRun(
                    run=template.run(at, appended.count), log_offsets=appended.log_offsets
                )
                parts.index.put(TOPIC, file.topic_id, 0, committed)
            at += appended.count
        if has_index:
            parts.index.seal()
        parts.close()
    return config


def a_message() -> MessageRun:
    return _Template(100, has_all=True).run(0, 1)


def key_of(number: int) -> str:
    return f"order-{number:0{_DIGITS}d}"


class _Template:
    """One record whose numbers are overwritten in many copies at once."""

    def __init__(self, body_bytes: int, *, has_all: bool) -> None:
        properties = f"KEYS\x01{key_of(0)}\x02"
        if has_all:
            properties += "UNIQ_KEY\x017F0000010A2F18B4AAC200000000ABCD\x02TAGS\x01TagA\x02"
            properties += "WAIT\x01true\x02CLUSTER\x01DefaultCluster\x02"
        self._record = encode_message(
            topic=TOPIC,
            queue_id=0,
            queue_offset=0,
            log_offset=0,
            born_timestamp=START_MS,
            born_host=Host(b"\x0a\x00\x00\x01", 4711),
            store_timestamp=START_MS,
            store_host=Host(b"\x0a\x00\x00\x02", 10911),
            body=(bytes(range(256)) * (body_bytes // 256 + 1))[:body_bytes],
            property_bytes=properties.encode(),
        )
        self._key_at = self._record.index(key_of(0).encode()) + len("order-")

    def run(self, first: int, count: int) -> MessageRun:
        size = len(self._record)
        rows = np.tile(np.frombuffer(self._record, np.uint8), (count, 1))
        numbers = np.arange(first, first + count)
        _put(rows, 20, numbers)
        _put(rows, 56, START_MS + numbers // 20)
        for digit in range(_DIGITS):
            rows[:, self._key_at + digit] = 48 + numbers // 10 ** (_DIGITS - 1 - digit) % 10
        starts = np.arange(count, dtype=np.int64) * size
        return MessageRun(
            first_offset=first,
            log_offsets=starts,
            message_bytes=np.full(count, size, np.int32),
            tags_codes=np.zeros(count, np.int64),
            starts=starts,
            records=rows.tobytes(),
        )


def _put(rows: NDArray[np.uint8], at: int, numbers: NDArray[Any]) -> None:
    rows[:, at : at + 8] = numbers.astype(">i8").view(np.uint8).reshape(-1, 8)


def keep_bytecode(folder: Path) -> None:
    """Let later processes compile each module only once, like an installed package. If the shell
    switches bytecode off, each would otherwise spend a second of the processor on it."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")


@contextmanager
def spark(folder: Path) -> Iterator[SparkSession]:
    """A local Spark with two workers; its Java is found in the way of the tests."""
    finder = [sys.executable, str(ROOT / "tests" / "spark" / "bring_java.py")]
    home = subprocess.run(finder, check=True, capture_output=True, text=True).stdout.strip()
    keep_bytecode(folder)
    os.environ.update(
        JAVA_HOME=home,
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
        PYTHONPATH=str(ROOT),
    )
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("tieredstore-bench")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()
