"""What Spark's driver spends on a tier of 10 000 queues: seconds of the processor.

1 250 topics of 8 queues in a directory. Each figure is from a Python process such as Spark starts,
with compiled modules; the figure of a batch's plan includes the start of the process. A trigger of
a stream that finds nothing new asks for the newest offsets, and for the progress. Prints one table;
exits with 1 if a promise is missed:

    python -m bench.spark_plan
"""

from __future__ import annotations

import json
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench import _spark_tiers
from bench._rows import report, turns_row
from bench.spark_scan import named
from tieredstore.access.wiring import open_tier
from tieredstore.driver.runtime import Runtime
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import QueueRecord, SegmentRecord, SegmentType

TOPICS: Final = 1_250
QUEUES_EACH: Final = 8
MESSAGES: Final = 1_000  # in each queue, of 1 KB
PLAN_PROMISED: Final = 0.3
REPEATS: Final = 3
IDLE_TRIGGERS: Final = 5


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        _spark_tiers.keep_bytecode(Path(name))
        config = _spark_tiers.config_of(Path(name))
        fill(config)
        options = named(config)
        catalogue = str(config.catalogue_path)
        found = [(least(catalogue), *measured(options)) for _ in range(REPEATS)]
        bare, plan, idle = zip(*found, strict=True)
        queues = f"{TOPICS * QUEUES_EACH:,} queues"
        rows = [
            turns_row(
                f"plan of {queues}, CPU (importing, and the catalogue's words by re)",
                bare,
                plan,
                unit="s",
                promised=PLAN_PROMISED,
            ),
            turns_row(f"idle trigger over {queues}, CPU (the plan)", plan, idle, unit="s"),
        ]
        return report("spark_plan", rows)


def fill(config: StoreConfig) -> None:
    """A catalogue, one message and empty files: a plan reads no message."""
    with Runtime.threads() as runtime:
        parts = open_tier(config, runtime=runtime)
        parts.load()
        for topic in range(TOPICS):
            parts.metadata.add_topic(f"Orders-{topic:04d}")
        file = parts.files.create("Aardvark", 0)  # a tier without any bytes is refused
        file.start_at(0)
        file.append(_spark_tiers.a_message())
        file.commit()
        for row in segments():  # as long as the catalogue says, but all zeros
            place = Path(parts.provider.open(row.path, row.type, row.base_offset).path)
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("wb") as out:
                out.truncate(row.size)
        parts.metadata.put(*queues(), *segments())
        parts.close()


def queues() -> list[QueueRecord]:
    return [
        QueueRecord(broker_name="broker-a", topic=f"Orders-{topic:04d}", queue_id=queue_id)
        for topic in range(TOPICS)
        for queue_id in range(QUEUES_EACH)
    ]


def segments() -> list[SegmentRecord]:
    return [
        SegmentRecord(
            path=f"{queue.broker_name}/{queue.topic}/{queue.queue_id}",
            type=kind,
            base_offset=0,
            size=MESSAGES * size,
            create_timestamp=_spark_tiers.START_MS,
            begin_timestamp=_spark_tiers.START_MS,
            end_timestamp=_spark_tiers.START_MS + MESSAGES,
        )
        for queue in queues()
        for kind, size in ((SegmentType.COMMIT_LOG, 1_000), (SegmentType.CONSUME_QUEUE, 20))
    ]


def measured(options: dict[str, str]) -> tuple[float, float]:
    """Processor seconds of a separate process: a plan with its start, and one idle trigger."""
    command = [sys.executable, "-m", "bench.spark_plan", json.dumps(options)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    plan, idle = json.loads(done.stdout.splitlines()[-1])
    return plan, idle


def least(catalogue: str) -> float:
    """Processor seconds of one that imports as much, and finds the words of the catalogue."""
    program = (
        "import re, sys, time, tieredstore.spark.source, pyspark.sql.streaming.datasource\n"
        "re.findall(r'\\w+', open(sys.argv[1]).read())\nprint(time.process_time())"
    )
    command = [sys.executable, "-c", program, catalogue]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def plan_here(options: dict[str, str]) -> tuple[float, float]:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from tieredstore.spark.source import TierDataSource

    source = TierDataSource(options)
    partitions: list[Any] = list(source.reader(source.schema()).partitions())
    pieces = sum(len(part.items) for part in partitions)
    assert pieces >= TOPICS * QUEUES_EACH, pieces
    pickle.dumps(partitions)
    plan = time.process_time()
    stream = source.streamReader(source.schema())
    reached = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    spent = []
    for _ in range(IDLE_TRIGGERS):
        started = time.process_time()
        given = json.loads(json.dumps(reached))  # Spark keeps it as text
        assert stream.latestOffset(given, ReadAllAvailable()) == reached
        json.dumps(stream.reportLatestOffset())
        spent.append(time.process_time() - started)
    stream.stop()
    return plan, statistics.median(spent)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(plan_here(json.loads(sys.argv[1]))))
        sys.exit(0)
    sys.exit(main())
