"""A tier that Java wrote moves into a bucket, to another bucket, and back into a directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from werkzeug.wrappers import Response

from tests.jobs.growing_tier import SIZES, broker_on, tier_at
from tests.jobs.job_kit import copy_of_golden, files, golden_config, in_bucket, moved, posix
from tests.s3.moto_server import Door
from tieredstore.access.reader import TieredReader
from tieredstore.access.wiring import provider_of
from tieredstore.driver.metrics import NoMetrics
from tieredstore.driver.runtime import Runtime
from tieredstore.jobs.job import JobExit
from tieredstore.model.errors import BackendError, BackendRefusedError
from tieredstore.model.values import SegmentType
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings

if TYPE_CHECKING:
    from s3fs import S3FileSystem


def test_to_a_bucket_to_another_and_back_equals_the_original(
    tmp_path: Path, s3_endpoint: str, bucket: str, s3: S3FileSystem
) -> None:
    other = f"{bucket}-b"
    s3.mkdir(other)
    first = in_bucket(tmp_path / "first", bucket, s3_endpoint)
    second = in_bucket(tmp_path / "second", other, s3_endpoint, prefix="tiers/one")
    back = posix(tmp_path / "back")
    java = copy_of_golden(tmp_path / "java")
    for source, target in ((java, first), (first, second), (second, back)):
        report = moved(source, target, cut_over=True)
        assert not report.failures, (source.bucket, target.bucket, report.counts)
        assert report.exit_code is JobExit.DONE
        assert report.counts["copied"] == len(files(golden_config()))
        assert moved(source, target, cut_over=True).counts["copied"] == 0
    assert files(back) == files(golden_config())
    with TieredReader(golden_config()) as old, TieredReader(back) as new:
        assert new.segments() == old.segments()
        assert new.topics() == old.topics()


def test_a_growing_segment_is_caught_up_in_a_bucket(
    tmp_path: Path, s3_endpoint: str, bucket: str
) -> None:
    source, back = tier_at(tmp_path / "old"), tier_at(tmp_path / "back")
    names = {"broker_name": "broker-a", "cluster_name": source.cluster_name, **SIZES}
    sizes = {"index_slot_count": 5_000_000, "index_item_count": 20_000_000}
    target = in_bucket(tmp_path / "new", bucket, s3_endpoint, **names, **sizes)
    for count in (3, 1, 50):
        with broker_on(source) as broker:
            broker.put(count)
            assert not moved(source, target).failures
    assert moved(source, target).counts["copied"] == 0
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done"
    with TieredReader(source) as old, TieredReader(target) as new:
        assert new.segments() == old.segments()
    assert moved(target, back, cut_over=True).facts["cut_over"] == "done"
    assert files(back) == files(source)


def test_a_writer_elsewhere_is_fenced_off_by_the_cut_over(
    tmp_path: Path, s3_endpoint: str, bucket: str
) -> None:
    source, there = tier_at(tmp_path / "old"), tier_at(tmp_path / "there")
    with broker_on(source) as broker:
        broker.put(3)
    names = {"broker_name": "broker-a", "cluster_name": source.cluster_name, **SIZES}
    sizes = {"index_slot_count": 5_000_000, "index_item_count": 20_000_000}
    tier = in_bucket(tmp_path / "new", bucket, s3_endpoint, **names, **sizes)
    moved(source, tier, cut_over=True)
    with Runtime.inline() as runtime:
        # It stands for another machine, whose lock cannot be seen here.
        elsewhere = provider_of(tier, runtime, NoMetrics())
        segment = elsewhere.open("broker-a/TopicTest/9", SegmentType.COMMIT_LOG, 0)
        segment.write(0, b"before")
        segment.delete()  # a segment that no catalogue names would block a cut-over
        assert moved(tier, there, cut_over=True).facts["cut_over"] == "done"
        segment = elsewhere.open("broker-a/TopicTest/9", SegmentType.COMMIT_LOG, 64)
        with pytest.raises(BackendRefusedError, match="another writer has taken over"):
            segment.write(0, b"after")
        elsewhere.close()


@pytest.mark.parametrize(
    ("change", "told"),
    [({"bucket": "no-such-bucket"}, "bucket"), ({"endpoint": "http://127.0.0.1:9"}, "127.0.0.1:9")],
)
def test_a_store_that_refuses_is_one_line(
    tmp_path: Path, s3_endpoint: str, bucket: str, change: dict[str, str], told: str
) -> None:
    target = replace(in_bucket(tmp_path, bucket, s3_endpoint), **change)  # type: ignore[arg-type]
    with pytest.raises(BackendError, match=told) as raised:
        moved(golden_config(), target)
    assert "\n" not in str(raised.value)


def test_missing_rights_are_one_line(
    tmp_path: Path, moto: tuple[str, Door], request: pytest.FixtureRequest
) -> None:
    endpoint, door = moto
    target = in_bucket(tmp_path, f"rights-{tmp_path.name[-8:].replace('_', '-')}", endpoint)
    create_bucket(ObjectStoreSettings.from_config(target))
    denied = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    door.answers["PUT"] = Response(denied, 403, content_type="application/xml")
    request.addfinalizer(door.answers.clear)
    with pytest.raises(BackendRefusedError, match="AccessDenied") as raised:
        moved(golden_config(), target)
    assert "\n" not in str(raised.value)
