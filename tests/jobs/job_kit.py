"""Tiers that jobs work on, ways to run a job inline, and what a job must leave behind."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from tests.codec.golden_files import BROKER, CLUSTER, GOLDEN, contents
from tieredstore.access.reader import TieredReader
from tieredstore.codec.message import decode_message
from tieredstore.codec.names import cluster_directory, segment_name
from tieredstore.driver.runtime import InlinePool, ManualClock
from tieredstore.jobs.export import ExportJob
from tieredstore.jobs.job import Job, JobReport, LocalEngine, run_job
from tieredstore.jobs.migrate import migrate
from tieredstore.jobs.verify import VerifyJob
from tieredstore.model.config import StoreConfig

TIER = GOLDEN / "tier-posix"
NAMES: dict[str, Any] = {
    "broker_name": BROKER,
    "cluster_name": CLUSTER.partition("_")[2],
    "index_slot_count": 64,
    "index_item_count": 300,
}
Message = tuple[str, int, int, bytes]
"""Topic, queue id, queue offset and body."""


def verified(config: StoreConfig, *, split_bytes: int = 1 << 26) -> JobReport:
    return run_inline(VerifyJob(config=config, split_bytes=split_bytes))


def run_inline(job: Job[Any, Any]) -> JobReport:
    """Run the job in this thread."""
    engine = LocalEngine(pool=InlinePool(), threads=1)
    return run_job(job, engine, clock=ManualClock())


def kinds(report: JobReport) -> set[str]:
    found = report.facts["kinds"]
    assert isinstance(found, dict)
    return set(found)


@dataclass(frozen=True, slots=True)
class Harmed:
    """A copy of the tier that Java wrote."""

    root: Path

    @classmethod
    def golden(cls, folder: Path) -> Harmed:
        shutil.copytree(TIER, folder / "tier")
        return cls(folder / "tier")

    @property
    def config(self) -> StoreConfig:
        return golden_config(self.root)

    def file(self, queue: str, kind: str, base: int) -> Path:
        return self.root / "tiered" / CLUSTER / BROKER / queue / kind / segment_name(base)

    def files(self, kind: str) -> list[Path]:
        found = sorted(self.root.joinpath("tiered").rglob(f"{kind}/*"))
        assert found
        return found

    def local_index(self) -> Path:
        (found,) = self.root.joinpath("store", "tiered_index_file").iterdir()
        return found


@contextmanager
def flipped(path: Path, position: int, bits: int = 0x40) -> Iterator[None]:
    """Change one byte for the length of the block."""
    with changed(path, position, bytes([path.read_bytes()[position] ^ bits])):
        yield


@contextmanager
def changed(path: Path, position: int, others: bytes) -> Iterator[None]:
    """Put other bytes there for the length of the block."""
    data = path.read_bytes()
    path.write_bytes(data[:position] + others + data[position + len(others) :])
    try:
        yield
    finally:
        path.write_bytes(data)


def golden_config(root: Path = TIER) -> StoreConfig:
    """The tier that Java wrote."""
    return StoreConfig(
        provider="posix", path=str(root / "tiered"), store_path=str(root / "store"), **NAMES
    )


def copy_of_golden(place: Path) -> StoreConfig:
    """A copy of the golden tier that may be changed."""
    shutil.copytree(TIER, place)
    return golden_config(place)


def posix(place: Path, **others: Any) -> StoreConfig:
    """An empty tier in a directory."""
    return StoreConfig(
        **{
            "provider": "posix",
            "path": str(place / "tiered"),
            "store_path": str(place / "store"),
            **NAMES,
            **others,
        }
    )


def in_bucket(place: Path, bucket: str, endpoint: str, **others: Any) -> StoreConfig:
    """An empty tier in a bucket; its catalogue is a local file."""
    return StoreConfig(
        **{
            "provider": "s3",
            "bucket": bucket,
            "endpoint": endpoint,
            "region": "us-east-1",
            "access_key": "testing",
            "secret_key": "testing",
            "certify": "off",
            "store_path": str(place / "store"),
            **NAMES,
            **others,
        }
    )


def moved(source: StoreConfig, target: StoreConfig, **how: Any) -> JobReport:
    """A migration on two threads."""
    with LocalEngine(threads=2) as engine:
        return migrate(source, target, engine=engine, **how)


def files(config: StoreConfig) -> dict[str, bytes]:
    """Every segment of a tier in a directory, by its path below the cluster's directory."""
    return contents(Path(config.path, cluster_directory(config.cluster_name)))


def picture(place: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below `place`, with its bytes and its time of change."""
    return {
        str(path.relative_to(place)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }


def exported(config: StoreConfig, target: Path | str, **others: Any) -> JobReport:
    """An export in this thread, with a few ranges for each queue."""
    facts = {"config": config, "target": str(target), "split_bytes": 20_000, **others}
    return run_inline(ExportJob(**facts))


def table(target: Path | str) -> pa.Table:
    """What a reader sees if it only lists folders."""
    found: pa.Table = ds.dataset(target, format="parquet", partitioning="hive").to_table()
    return found


def messages(target: Path | str) -> Counter[Message]:
    return messages_in(table(target))


def messages_in(table: pa.Table) -> Counter[Message]:
    rows = table.select(["topic", "queue_id", "queue_offset", "body"])
    return Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def tier_messages(config: StoreConfig) -> Counter[Message]:
    found: Counter[Message] = Counter()
    with TieredReader(config) as reader:
        for key, run in reader.runs():
            for row in range(len(run)):
                body = decode_message(run.record(row)).body
                found[key.topic, key.queue_id, run.first_offset + row, body] += 1
    return found
