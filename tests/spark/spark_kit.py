"""Options that name a tier to Spark, and programs in Spark sessions of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from tests.spark.bring_java import java_home
from tests.spark.conftest import ROOT
from tieredstore.model.config import StoreConfig
from tieredstore.model.settings import settings_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def options_of(config: StoreConfig) -> dict[str, str]:
    """All settings that differ from the default, as text."""
    plain = StoreConfig()
    return {
        name: str(getattr(config, name))
        for name in settings_of(config)
        if getattr(config, name) != getattr(plain, name) and name != "metadata"
    }


def load(spark: SparkSession, config: StoreConfig, **options: Any) -> DataFrame:
    named = {name: str(value) for name, value in options.items()}
    return spark.read.format("tieredstore").options(**options_of(config), **named).load()


def submitted(
    script: str, words: Sequence[object], place: Path, *, more: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a script by `spark-submit`, with two executors in processes of their own.

    They get the package as a zip with a module `more` in it; no checkout is on any path.
    """
    program, package = place / "program.py", place / "package.zip"
    program.write_text(script)
    with zipfile.ZipFile(package, "w") as shipped:
        shipped.writestr("more.py", more)
        for top in ("tieredstore", "pyspark_tieredstore"):
            for folder, _, names in os.walk(ROOT / top, followlinks=True):
                for file in [Path(folder, name) for name in names if name.endswith(".py")]:
                    shipped.write(file, file.relative_to(ROOT))
    confs = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(place / "local"),
    }
    home = Path(pyspark.__file__).parent
    command = [
        str(home / "bin" / "spark-submit"),
        *("--master", "local-cluster[2,1,512]", "--py-files", str(package)),
        *(word for name, value in confs.items() for word in ("--conf", f"{name}={value}")),
        *(str(program), *map(str, words)),
    ]
    return run_to_its_end(command, environment(SPARK_HOME=str(home)), place)


def started(
    command: Sequence[str], place: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a process that may start a Spark of its own; if it fails, the test fails."""
    return run_to_its_end(command, environment(**variables), place)


def environment(**variables: str) -> dict[str, str]:
    """The environment of a process that starts a Spark of its own."""
    return {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | {
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        **variables,
    }


def run_to_its_end(
    command: Sequence[str], variables: Mapping[str, str], place: Path
) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run(
        command,
        cwd=place,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return ran


def drop_tables(spark: SparkSession) -> None:
    """Leave nothing in the session's catalogue: other tests share the session."""
    for found in spark.catalog.listTables():
        if found.isTemporary:
            spark.catalog.dropTempView(found.name)
        else:
            spark.sql(f"DROP TABLE {found.name}")
