"""One Spark for all tests of this folder: starting it takes longer than any of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.bring_java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
# No JVM here lives long enough for the second compiler or a parallel collector to pay off.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session", autouse=True)
def short_lived_java() -> Iterator[None]:
    """Set these options for each JVM that a test starts, and for those of its executors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", SHORT_LIVED)
        yield


@pytest.fixture(scope="session")
def spark(
    short_lived_java: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A local Spark with two workers that import `tieredstore` from the checkout."""
    from pyspark.sql import SparkSession

    scratch = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java_home()))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        # Only the workers need it, and only here: elsewhere `tieredstore` is installed.
        patch.setenv("PYTHONPATH", str(ROOT))
        session = (
            SparkSession.builder.master("local[2]")
            .appName("tieredstore-tests")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "512m")
            .config("spark.executorEnv.PYTHONPATH", str(ROOT))
            .config("spark.local.dir", str(scratch / "local"))
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.ui.enabled", "false")
            # On a busy machine a worker may need more than 15 seconds to authenticate.
            .config("spark.python.authenticate.socketTimeout", "10m")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        try:
            yield session
        finally:
            session.stop()
