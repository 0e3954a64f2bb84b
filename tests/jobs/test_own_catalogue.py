"""Jobs over a tier whose provider keeps the catalogue with the bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.access.log_kit import BUCKETS, DOTTED, Bucket, LogProvider
from tests.jobs.growing_tier import broker_on, everything, tier_at
from tests.jobs.job_kit import kinds, moved, verified
from tests.jobs.load_kit import assert_found, loaded, rows_of
from tests.jobs.written_tier import WrittenTier, posix_config
from tieredstore.access.reader import TieredReader
from tieredstore.driver.metadata import LOG
from tieredstore.driver.runtime import InlinePool, ManualClock, Runtime
from tieredstore.jobs.job import JobExit, LocalEngine
from tieredstore.jobs.load import begin_load
from tieredstore.jobs.reindex import reindex
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import CatalogueLockedError, FencedError, InvalidConfigError
from tieredstore.model.values import QueueKey

A, B = QueueKey("orders", 0), QueueKey("orders", 3)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    yield BUCKETS.setdefault(str(tmp_path), Bucket())
    del BUCKETS[str(tmp_path)]


def in_bucket(bucket: Bucket, config: StoreConfig, place: Path) -> StoreConfig:
    """The same settings, for a tier in this bucket and another machine."""
    (name,) = (name for name, found in BUCKETS.items() if found is bucket)
    store_path = str(place / "store")
    return replace(config, provider=DOTTED, bucket=name, path="", store_path=store_path)


def topics_in(config: StoreConfig) -> list[str]:
    with JsonMetadataStore.open(config.catalogue_path, read_only=True) as found:
        return [row.topic for row in found.topics()]


def a_source(place: Path, **counts: Any) -> StoreConfig:
    config = tier_at(place)
    with broker_on(config) as broker:
        for topic, count in (counts or {"Orders": 150, "Bills": 30}).items():
            broker.put(count, topic=topic)
    return config


# Bulk loads and the index: one driver that owns the tier


def test_a_load_takes_the_tier_over_and_puts_its_rows_into_the_log(
    tmp_path: Path, bucket: Bucket
) -> None:
    config = in_bucket(bucket, posix_config(tmp_path, index_item_count=200), tmp_path)
    loaded(config, [[rows_of(A, range(300))], [rows_of(B, range(100))]])
    assert_found(config, {A: range(300), B: range(100)})
    assert set(bucket.claims) == {config.broker_name}
    assert topics_in(config) == ["orders"]
    with TieredReader.open(config) as reader:
        assert reader.catalogue.source == LOG


def test_a_load_beside_a_broker_of_this_machine_fences_nobody(
    tmp_path: Path, bucket: Bucket
) -> None:
    config = in_bucket(bucket, posix_config(tmp_path), tmp_path)
    Path(config.catalogue_path).parent.mkdir(parents=True)
    with JsonMetadataStore.open(config.catalogue_path), pytest.raises(CatalogueLockedError):
        begin_load(config, wait_seconds=0)
    assert bucket.claims == []


def test_the_index_is_made_anew_in_the_log(tmp_path: Path, bucket: Bucket) -> None:
    config = in_bucket(bucket, posix_config(tmp_path, index_item_count=200), tmp_path)
    loaded(config, [[rows_of(A, range(150))]], index=False)
    before = len(bucket.claims)
    engine = LocalEngine(pool=InlinePool(), threads=1)
    report = reindex(config, engine, clock=ManualClock())
    assert report.exit_code is JobExit.DONE
    assert len(bucket.claims) == before + 1  # one for the whole run
    assert_found(config, {A: range(150)})
    assert not kinds(verified(config))


# Moving a tier


def test_a_tier_is_moved_into_a_bucket(tmp_path: Path, bucket: Bucket) -> None:
    source = a_source(tmp_path / "disk")
    target = in_bucket(bucket, source, tmp_path / "cloud")
    moved(source, target)
    with TieredReader.open(target) as reader:  # before the cut-over the target is no tier
        assert reader.queues() == []
    report = moved(source, target, cut_over=True)
    assert report.exit_code is JobExit.DONE
    assert everything(target) == everything(source)
    assert bucket.claims == [target.broker_name] * 2  # one per run
    assert topics_in(target) == topics_in(source)
    report = moved(source, target, cut_over=True)
    assert report.facts["cut_over"] == "done before"


def test_the_workers_of_an_older_run_are_fenced(tmp_path: Path, bucket: Bucket) -> None:
    source = a_source(tmp_path / "disk")
    target = in_bucket(bucket, source, tmp_path / "cloud")
    moved(source, target)
    worker = LogProvider(bucket, Runtime.inline(), joins=True)
    worker.require(target.broker_name)
    moved(source, target, cut_over=True)
    with pytest.raises(FencedError):
        worker.require(target.broker_name)


def test_a_bucket_that_has_a_tier_is_refused_and_its_writer_goes_on(
    tmp_path: Path, bucket: Bucket
) -> None:
    source = a_source(tmp_path / "disk")
    target = in_bucket(bucket, source, tmp_path / "cloud")
    WrittenTier(config=target).add("orders", 0, 10)
    before = list(bucket.claims)
    with pytest.raises(InvalidConfigError, match="names a tier already"):
        moved(source, target, cut_over=True)
    assert bucket.claims == before


def test_a_file_of_another_tier_says_nothing_of_the_bucket(tmp_path: Path, bucket: Bucket) -> None:
    source = a_source(tmp_path / "disk")
    target = in_bucket(bucket, source, tmp_path / "cloud")
    Path(target.catalogue_path).parent.mkdir(parents=True)
    with JsonMetadataStore.open(target.catalogue_path) as other:
        other.add_topic("Other")
    moved(source, target, cut_over=True)
    assert topics_in(target) == topics_in(source)


def test_a_tier_is_moved_out_of_a_bucket_and_its_writer_is_fenced(
    tmp_path: Path, bucket: Bucket
) -> None:
    disk = a_source(tmp_path / "disk")
    source = in_bucket(bucket, disk, tmp_path / "cloud")
    moved(disk, source, cut_over=True)
    writer = LogProvider(bucket, Runtime.inline())
    writer.claim(source.broker_name)
    target = tier_at(tmp_path / "back")
    moved(source, target)
    writer.require(source.broker_name)  # a copy without the cut-over fences nobody
    report = moved(source, target, cut_over=True)
    assert report.facts["cut_over"] == "done"
    assert everything(target) == everything(disk)
    with pytest.raises(FencedError):
        writer.require(source.broker_name)


def test_queues_are_adopted_into_a_tier_in_a_bucket(tmp_path: Path, bucket: Bucket) -> None:
    source = a_source(tmp_path / "disk", Orders=50)
    target = in_bucket(bucket, replace(source, broker_name="broker-b"), tmp_path / "cloud")
    other = a_source(tmp_path / "other", Bills=20)
    moved(replace(other, broker_name="broker-a"), replace(target, broker_name="broker-a"))
    moved(other, replace(target, broker_name="broker-a"), cut_over=True)
    moved(source, replace(target, broker_name="broker-a"), cut_over=True, adopt=True)
    found = everything(replace(target, broker_name="broker-a"))
    assert found == {**everything(source), **everything(other)}
