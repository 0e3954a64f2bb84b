"""Tiers to be verified, and ways to harm one byte of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.codec.golden_files import BROKER, CLUSTER, GOLDEN
from tieredstore.codec.names import segment_name
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.jobs.job import Job, JobReport, LocalEngine, run_job
from tieredstore.jobs.verify import VerifyJob
from tieredstore.model.config import StoreConfig


def verified(config: StoreConfig, *, split_bytes: int = 1 << 26) -> JobReport:
    return run_inline(VerifyJob(config=config, split_bytes=split_bytes))


def run_inline(job: Job[Any, Any]) -> JobReport:
    """In one thread."""
    engine = LocalEngine(runtime=Runtime.inline(), threads=1)
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
        shutil.copytree(GOLDEN / "tier-posix", folder / "tier")
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
    """One byte is another within the block."""
    data = path.read_bytes()
    harmed = bytearray(data)
    harmed[position] ^= bits
    path.write_bytes(harmed)
    try:
        yield
    finally:
        path.write_bytes(data)


def golden_config(root: Path = GOLDEN / "tier-posix") -> StoreConfig:
    """The tier that Java wrote."""
    return StoreConfig(
        provider="posix",
        path=str(root / "tiered"),
        store_path=str(root / "store"),
        cluster_name="GoldenCluster",
        broker_name=BROKER,
        index_slot_count=64,
        index_item_count=300,
    )
