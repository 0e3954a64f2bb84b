"""The commands of docs/spark.md for a cluster, run; and the error where a package is missing."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import cloudpickle

import tieredstore
from tests.docs.pages import blocks, page
from tests.jobs.job_kit import in_bucket
from tests.jobs.load_kit import report_of
from tests.jobs.written_tier import WrittenTier, posix_config
from tests.s3.moto_server import moto_server
from tests.spark.clean_environment import bare_environment, fresh_python
from tests.spark.conftest import ROOT
from tests.spark.spark_kit import options_of
from tieredstore.model.config import StoreConfig
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings
from tieredstore.spark.options import ReadOptions
from tieredstore.spark.reading import TierPartition, spark_schema
from tieredstore.spark.sink import TierStreamWriter, WriteOptions
from tieredstore.spark.source import TierBatchReader, TierDataSource
from tieredstore.spark.stream import TierStreamReader

# As in a worker, which has Spark's own packages and whatever else is on these paths.
UNPICKLE = """
import importlib.abc, pickle, sys
blocked, paths, pickled = sys.argv[1].split(","), sys.argv[2].split(":"), sys.argv[3]

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in blocked and name != "tieredstore":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.path.extend(path for path in paths if path)
sys.meta_path.insert(0, Blocker())
print(type(pickle.loads(bytes.fromhex(pickled))).__name__)
"""


def unpickled(what: Any, *, lacks: str) -> subprocess.CompletedProcess[str]:
    """Unpickle it in another process whose interpreter lacks these packages."""
    # Without site, where the checkout and pyspark are installed.
    paths = f"{Path(pyspark.__file__).parents[1]}:{'' if lacks == 'tieredstore' else ROOT}"
    pickled = cloudpickle.dumps(what).hex()  # type: ignore[no-untyped-call]
    command = [sys.executable, "-I", "-S", "-c", UNPICKLE, lacks, paths]
    return subprocess.run(
        [*command, pickled],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def pickled_for_workers(folder: Path) -> list[Any]:
    given = options_of(posix_config(folder))
    options, schema = ReadOptions.parse(given), spark_schema(["topic"])
    return [
        TierDataSource(given),
        TierBatchReader(options, schema),
        TierStreamReader(options, schema),
        TierStreamWriter(WriteOptions.parse(given), schema),
    ]


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("lacks", ["tieredstore", "msgspec", "numpy"])
def test_a_worker_names_the_package_that_it_lacks_and_its_interpreter(
    which: int, lacks: str, tmp_path: Path
) -> None:
    if which == 0 and lacks == "tieredstore":
        pytest.skip("the source is found by the driver's path, which this machine has")
    ran = unpickled(pickled_for_workers(tmp_path)[which], lacks=lacks)
    assert ran.stderr.splitlines()[-1] == (
        f"ImportError: a process of Spark cannot read the tier: No module named '{lacks}';"
        f" install tieredstore with its extra spark for {sys.executable}, or name another"
        " interpreter by PYSPARK_PYTHON"
    )


def test_a_worker_that_has_all_gets_what_was_pickled(tmp_path: Path) -> None:
    for each in pickled_for_workers(tmp_path):
        ran = unpickled(each, lacks="nothing")
        assert (ran.stdout, ran.stderr) == (f"{type(each).__name__}\n", "")


@pytest.mark.parametrize("which", range(4))
def test_a_worker_of_another_version_reads_nothing(
    which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tieredstore.__version__
    monkeypatch.setattr(tieredstore, "__version__", "0.0.9")
    ran = unpickled(pickled_for_workers(tmp_path)[which], lacks="nothing")
    assert f"its tieredstore is {here}, and the driver's is 0.0.9" in ran.stderr.splitlines()[-1]


def test_the_look_at_the_package_is_no_part_of_each_partition() -> None:
    pickled = cloudpickle.dumps(TierPartition(()))  # type: ignore[no-untyped-call]
    assert len(pickled) < 200


WHEEL = "tieredstore-0.1.0-py3-none-any.whl"  # as the page names it

# All the page's examples of frames, tables, streams and sinks.
WALKED = """
import importlib.util, json, sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

spark = SparkSession.builder.getOrCreate()
config = "/data/tier.toml"

def tier(reading, topic):
    return reading.format("tieredstore").option("config", config).option("topics", topic).load()

def sink(writing):
    return writing.format("tieredstore").option("config", config)

def where(_):
    import tieredstore
    yield tieredstore.__file__, sys.executable, importlib.util.find_spec("pandas") is not None

spark.sql(f"CREATE TABLE messages USING tieredstore OPTIONS (config '{config}')")
counts = [tier(spark.read, "orders").count(), spark.table("messages").count()]
rows = [("Loaded", 0, b"one")]
frame = spark.createDataFrame(rows, "topic string, queue_id int, body binary")
sink(frame.write.mode("append")).save()
stream = tier(spark.readStream, "orders").withColumn("topic", lit("Copied"))
stream = sink(stream.writeStream).option("checkpointLocation", "/data/checkpoint")
stream.trigger(availableNow=True).start().awaitTermination()
counts += [tier(spark.read, "Loaded").count(), tier(spark.read, "Copied").count()]
seen = spark.sparkContext.parallelize(range(4), 4).mapPartitions(where).collect()
print(json.dumps([counts, seen]))
"""


@pytest.fixture
def walked_tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreConfig]:
    if request.param == "posix":
        yield posix_config(tmp_path)
        return
    with moto_server() as (endpoint, _):
        config = in_bucket(tmp_path, f"walked-{uuid.uuid4().hex[:8]}", endpoint)
        create_bucket(ObjectStoreSettings.from_config(config))
        yield config


@pytest.mark.cluster
@pytest.mark.parametrize("walked_tier", ["posix", "s3"], indirect=True)
@pytest.mark.parametrize("how", ["wheel", "zip"])
def test_the_commands_of_the_page_set_a_cluster_up(
    how: str, walked_tier: StoreConfig, tmp_path: Path
) -> None:
    """Without a checkout, the caller's environment, keys in it, or pandas."""
    WrittenTier(config=walked_tier).add("orders", 0, 30)
    settings = {name: getattr(walked_tier, name) for name in options_of(walked_tier)}
    lines = [f"{name} = {json.dumps(value, default=str)}" for name, value in settings.items()]
    (tmp_path / "tier.toml").write_text("\n".join(["[tieredstore]", *lines]))
    (tmp_path / "program.py").write_text(WALKED.replace("/data/", f"{tmp_path}/"))
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    python = fresh_python(tmp_path / "venv")
    shown = [block.text for block in blocks(page("spark.md")) if block.words == [how]]
    commands = shown[0].replace("/opt/tier", f"{tmp_path}/venv").replace("/data/", f"{tmp_path}/")
    assert WHEEL in commands
    commands = commands.replace(WHEEL, wheel.name)
    ran = subprocess.run(
        ["bash", "-e", "-c", commands],
        cwd=tmp_path,
        env=bare_environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    said = [
        line for line in ran.stderr.splitlines() if " INFO " not in line and "\tat " not in line
    ]
    assert ran.returncode == 0, ran.stdout[-4000:] + "\n".join(said[:60])
    (told,) = [line for line in ran.stdout.splitlines() if line.startswith("[[")]
    counts, seen = json.loads(told)
    assert counts == [30, 30, 1, 30]
    package = "tieredstore.zip/tieredstore" if how == "zip" else f"{tmp_path}/venv/lib"
    assert seen
    for file, interpreter, has_pandas in seen:
        assert package in file
        assert (interpreter, has_pandas) == (str(python), False)
    assert "nothing is wrong" in ran.stdout  # what the job found
    assert report_of(walked_tier).findings == ()
