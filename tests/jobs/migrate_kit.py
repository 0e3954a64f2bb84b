"""Tiers to migrate, and what a migration has to leave behind."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.codec.golden_files import BROKER, CLUSTER, GOLDEN, contents
from tests.jobs.verify_kit import golden_config
from tieredstore.codec.names import cluster_directory
from tieredstore.jobs.job import JobReport, LocalEngine
from tieredstore.jobs.migrate import migrate
from tieredstore.model.config import StoreConfig

TIER = GOLDEN / "tier-posix"
NAMES: dict[str, Any] = {
    "broker_name": BROKER,
    "cluster_name": CLUSTER.partition("_")[2],
    "index_slot_count": 64,
    "index_item_count": 300,
}


def copy_of_golden(place: Path) -> StoreConfig:
    """One that may be changed."""
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
    """Every segment of a tier in a directory, by its path below the cluster's."""
    return contents(Path(config.path, cluster_directory(config.cluster_name)))


def picture(place: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below, with its bytes and when it was changed."""
    return {
        str(path.relative_to(place)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }
