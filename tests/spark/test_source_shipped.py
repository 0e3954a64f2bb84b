"""The package shipped as a zip to executors of a cluster.

The cluster needs a Spark of its own, so it runs in a process of its own. Streams are not run here:
Spark 4.3 does not give `--py-files` to the process that plans a stream.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from tests.jobs.written_tier import WrittenTier, posix_config
from tests.spark.bring_java import java_home
from tests.spark.read_options import options_of

ROOT = Path(__file__).resolve().parents[2]

# What a user's script does; spark-submit ships the package, and no checkout is on any path.
SCRIPT = """
import json, os, sys
options = json.loads(sys.argv[1])
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
# Spark finds a source by itself only where it is installed.
from tieredstore.spark.source import TierDataSource
spark.dataSource.register(TierDataSource)
reader = spark.read.format("tieredstore").options(**options)
frame = reader.option("split_bytes", "4k").load()
rows = sorted([row.topic, row.queue_id, row.queue_offset] for row in frame.collect())
keyed = reader.option("columns", "key,queue_offset").option("key", "order-12").load().collect()
def where(_):
    import tieredstore
    yield tieredstore.__file__, os.getpid()
files = spark.sparkContext.parallelize(range(4), 4).mapPartitions(where).collect()
print("ANSWER", json.dumps({
    "rows": rows,
    "keyed": [row.queue_offset for row in keyed],
    "files": sorted({file for file, _ in files}),
}))
spark.stop()
"""


def zipped(into: Path) -> Path:
    """The package as a wheel would hold it; a zip has no links, so what they lead to is copied."""
    package = into / "tieredstore.zip"
    with zipfile.ZipFile(package, "w") as archive:
        for name in ("tieredstore", "pyspark_tieredstore"):
            for folder, below, files in os.walk(ROOT / name, followlinks=True):
                below[:] = [each for each in below if each != "__pycache__"]
                for file in files:
                    path = Path(folder, file)
                    archive.write(path, path.relative_to(ROOT))
    return package


@pytest.mark.slow
def test_executors_of_a_cluster_read_with_the_package_in_a_zip(tmp_path: Path) -> None:
    tier = WrittenTier(config=posix_config(tmp_path / "tier"))
    tier.add("orders", 0, 60, seal=True)
    tier.add("orders", 1, 40, seal=True)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHONPATH")
    }
    environment.update(
        JAVA_HOME=str(java_home()),
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
    )
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.local.dir": str(tmp_path / "work"),
        "spark.ui.enabled": "false",
    }
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit")]
    command += ["--master", "local-cluster[2,1,512]", "--driver-memory", "512m"]
    command += ["--py-files", str(zipped(tmp_path))]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    command += [str(tmp_path / "script.py"), json.dumps(options_of(tier.config))]
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    answers = [line for line in ran.stdout.splitlines() if line.startswith("ANSWER ")]
    assert len(answers) == 1, ran.stderr[-4000:]
    answer = json.loads(answers[0].partition(" ")[2])
    assert answer["rows"] == sorted(
        [*key, number] for key, end in tier.ends.items() for number in range(end)
    )
    assert answer["keyed"] == [12, 12]
    assert all(".zip" in file for file in answer["files"]), answer["files"]
