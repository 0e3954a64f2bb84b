"""A bulk load into a bucket, and a rebuild of its index, on moto."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.load_kit import assert_found, bodies, loaded, names_of, report_of, rows_of
from tests.s3.moto_server import Door
from tests.s3.s3_clients import new_settings
from tieredstore.driver.runtime import SystemClock
from tieredstore.jobs.job import JobState, LocalEngine
from tieredstore.jobs.reindex import reindex
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import QueueKey
from tieredstore.providers.object_provider import open_client
from tieredstore.providers.s3_settings import ObjectStoreSettings

A, B = QueueKey("orders", 0), QueueKey("größe", 1)


@pytest.fixture
def settings(moto: tuple[str, Door]) -> ObjectStoreSettings:
    return new_settings(moto[0], "s3fs")


@pytest.fixture
def config(settings: ObjectStoreSettings, tmp_path: Path) -> StoreConfig:
    return StoreConfig(
        provider="s3",
        object_client=settings.client,
        bucket=settings.bucket,
        prefix=settings.prefix,
        endpoint=settings.endpoint,
        region=settings.region,
        access_key=settings.access_key,
        secret_key=settings.secret_key,
        certify="off",
        store_path=str(tmp_path / "store"),
        broker_name="broker-a",
        index_slot_count=64,
        index_item_count=400,
        commit_log_segment_bytes=6_000,
    )


def test_a_load_and_another_behind_it_are_found_by_key(
    config: StoreConfig, settings: ObjectStoreSettings
) -> None:
    loaded(config, [[rows_of(A, range(40))], [rows_of(B, range(10))]])
    loaded(config, [[rows_of(A, range(40, 60))]], run_id="again")
    assert bodies(config, A) == names_of(A, range(60))
    assert bodies(config, B) == names_of(B, range(10))
    assert_found(config, {A: range(60), B: range(10)}, samples=4)
    assert report_of(config).findings == ()
    with LocalEngine(threads=2) as engine:
        report = reindex(config, engine, clock=SystemClock())
    assert (report.state, report.counts["keys"]) == (JobState.DONE, 210)
    assert_found(config, {A: range(60), B: range(10)}, samples=4)
    assert report_of(config).findings == ()
    with open_client(settings) as client:
        assert [each.key for each in client.list() if ".staged" in each.key] == []
