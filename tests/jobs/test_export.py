"""An export has each message of the tier once, whatever was killed and tried again on the way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.jobs.dying import dying
from tests.jobs.job_kit import (
    Harmed,
    exported,
    flipped,
    golden_config,
    messages,
    table,
    tier_messages,
)
from tests.jobs.written_tier import START_MS, WrittenTier, posix_config
from tieredstore.jobs.export import NO_DAY, ExportJob, escaped
from tieredstore.jobs.export_target import PLAN, ExportTarget, TargetOptions, free, joined
from tieredstore.jobs.job import ItemResult, JobExit, JobState, RowStream, run_item
from tieredstore.jobs.scan import OnCorrupt
from tieredstore.model.errors import InvalidConfigError, MetadataError


def test_every_message_of_the_golden_tier_is_there_once(tmp_path: Path) -> None:
    config = golden_config()
    report = exported(config, tmp_path)
    assert report.state is JobState.DONE
    assert report.counts["messages"] == 533
    assert messages(tmp_path) == tier_messages(config)
    assert max(messages(tmp_path).values()) == 1
    days = {day for each in tmp_path.glob("topic=*/day=*") if (day := each.name[4:])}
    assert days == {"2026-11-20"}
    assert (tmp_path / "topic=%25RETRY%25gold_group").is_dir()
    assert not (tmp_path / "_tieredstore" / "plan.json").exists()
    assert not list((tmp_path / "_tieredstore" / "done").iterdir())


def test_the_next_run_adds_what_is_new_and_nothing_else(tmp_path: Path) -> None:
    tier = WrittenTier(config=posix_config(tmp_path))
    target = tmp_path / "parquet"
    tier.add("Orders", 0, 100)
    exported(tier.config, target)
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*.parquet")}
    assert exported(tier.config, target).counts["messages"] == 0
    tier.add("Orders", 0, 30)
    tier.add("Payments", 3, 5)
    report = exported(tier.config, target)
    assert report.counts["messages"] == 35
    assert messages(target) == tier_messages(tier.config)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    manifest = json.loads((target / "_tieredstore/manifest.json").read_text())
    assert manifest["ranges"] == {
        "c/broker-a/Orders/0": [[0, 130]],
        "c/broker-a/Payments/3": [[0, 5]],
    }
    commit = json.loads((target / "_tieredstore/commits/00000002.json").read_text())
    assert sum(each["rows"] for each in commit["ranges"]) == 35


def test_a_run_that_is_killed_anywhere_is_gone_on_with(tmp_path: Path) -> None:
    """Behind the plan, on the way to a name, in the middle, and around the commit at the end."""
    config = golden_config()
    with dying("export") as process:
        count = process.count(tmp_path / "whole")
        ends = [step for step in range(count) if step > count - 8]
        for step in (2, 3, 12, *ends):
            target = tmp_path / str(step)
            assert process.run(step, target) is None
            if list(target.rglob("*.parquet")):
                seen = messages(target)  # a plain reader sees no half file, and none twice
                assert max(seen.values(), default=1) == 1
                assert seen <= tier_messages(config)
            report = exported(config, target, split_bytes=9_000)  # would cut other ranges
            assert report.state is JobState.DONE
            assert messages(target) == tier_messages(config)
            assert not list((target / "_tieredstore" / "halves").iterdir())


def test_messages_of_a_killed_run_that_expire_before_the_next_stay_exported(
    tmp_path: Path,
) -> None:
    config, target = golden_config(), tmp_path / "parquet"
    exported(config, target)
    manifest = target / "_tieredstore/manifest.json"
    ranges = json.loads(manifest.read_text())
    ranges["ranges"]["GoldenCluster/broker-gold-a/GoldAa/0"] = [[0, 500]]
    manifest.write_text(json.dumps(ranges))
    report = exported(config, target)
    assert report.facts["made_anew"] == ["broker-gold-a/GoldAa/0 ends at 83, 500 was there"]


def test_a_queue_that_is_gone_after_a_killed_run_leaves_no_plan_behind(tmp_path: Path) -> None:
    tier = WrittenTier(config=posix_config(tmp_path / "a"))
    tier.add("t", 0, 20)
    tier.add("u", 0, 20)
    target = ExportTarget(str(tmp_path / "parquet"), TargetOptions())
    job = ExportJob(config=tier.config, target=target.url)
    with pytest.raises(KeyboardInterrupt):
        job.finish(job.plan(), RowStream(map(interrupted, (0, 1)), item_count=2))
    assert target.read(PLAN) is not None
    other = WrittenTier(config=posix_config(tmp_path / "b"))
    other.add("u", 0, 20)
    assert exported(other.config, target.url).state is JobState.DONE
    assert messages(target.url) == tier_messages(other.config)
    assert target.read(PLAN) is None


def interrupted(at: int) -> ItemResult[Any]:
    raise KeyboardInterrupt(at)


def test_times_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="the begin is not before the end"):
        exported(golden_config(), tmp_path, times=(2, 1))


def test_days_are_those_of_the_store_time_in_utc(tmp_path: Path) -> None:
    tier = WrittenTier(config=posix_config(tmp_path))
    tier.add("Orders", 0, 40)
    first_day = tmp_path / "one"
    exported(tier.config, first_day, times=(START_MS + 5_000, START_MS + 8_000))
    assert table(first_day).column("queue_offset").to_pylist() == [5, 6, 7]
    assert {each.parent.name for each in first_day.rglob("*.parquet")} == {"day=2023-11-14"}


def test_columns_are_chosen_once_for_a_target(tmp_path: Path) -> None:
    config = golden_config()
    exported(config, tmp_path, columns=("queue_offset", "body"), topics=("Gold*",))
    (first, *_) = sorted(tmp_path.rglob("*.parquet"))
    assert pq.read_schema(first).names == ["queue_offset", "body"]
    assert {each.name for each in tmp_path.glob("topic=*")} == {"topic=GoldAa", "topic=GoldBB"}
    with pytest.raises(InvalidConfigError, match="with other settings \\(columns"):
        exported(config, tmp_path, columns=("body",))
    with pytest.raises(InvalidConfigError, match="columns: 'bodi'"):
        ExportJob(config=config, target=str(tmp_path), columns=("bodi",))
    with pytest.raises(InvalidConfigError, match="no topic is called 'Silver'"):
        exported(config, tmp_path, columns=("queue_offset", "body"), topics=("Silver",))


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    job = ExportJob(config=golden_config(), target=str(tmp_path / "parquet"))
    assert job.plan().counts["messages"] == 533
    assert not (tmp_path / "parquet").exists()


def test_what_cannot_be_read_fails_is_left_out_or_told(tmp_path: Path) -> None:
    tier = Harmed.golden(tmp_path)
    path = tier.file("GoldAa/1", "COMMIT_LOG", 0)
    with flipped(path, 4):  # the magic of the first message
        failed = exported(tier.config, tmp_path / "a")
        assert failed.exit_code is JobExit.DAMAGE
        assert failed.counts["ranges_left"] == 1
        skipped = exported(tier.config, tmp_path / "b", on_corrupt=OnCorrupt.SKIP)
        assert (skipped.exit_code, skipped.counts["damaged"]) == (JobExit.DONE, 1)
        assert skipped.counts["messages"] == 532
        told = exported(
            tier.config,
            tmp_path / "c",
            on_corrupt=OnCorrupt.REPORT,
            columns=("queue_id", "queue_offset", "body", "damage"),
        )
        assert told.exit_code is JobExit.DAMAGE
        assert "GoldAa/1" in told.findings[0].where
        lost = pq.read_table(
            next((tmp_path / "c").glob(f"topic=GoldAa/day={NO_DAY}/*.parquet")), partitioning=None
        )
        assert lost.column("queue_offset").to_pylist() == [0]
        assert lost.column("damage")[0].as_py()
    # The failed range stays planned, and is exported when its bytes are back.
    assert exported(tier.config, tmp_path / "a").state is JobState.DONE
    assert messages(tmp_path / "a") == tier_messages(tier.config)


def test_another_export_that_commits_meanwhile_is_noticed(tmp_path: Path) -> None:
    config, target = golden_config(), tmp_path / "parquet"
    job = ExportJob(config=config, target=str(target))
    plan = job.plan()
    exported(config, target, topics=("GoldBB",))
    with pytest.raises(MetadataError, match="another export has committed meanwhile"):
        job.finish(plan, RowStream(iter(()), item_count=len(plan.items)))


def test_workers_in_another_folder_write_to_the_same_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = WrittenTier(config=posix_config(tmp_path))
    tier.add("t", 0, 20)
    monkeypatch.chdir(tmp_path)
    here = replace(tier.config, path="tiered", store_path="store")
    job = ExportJob(config=here, target="parquet")
    plan = job.plan()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    results = (run_item(job.work, item, at) for at, item in enumerate(plan.items))
    assert job.finish(plan, RowStream(results, item_count=1)).state is JobState.DONE
    assert messages(tmp_path / "parquet") == tier_messages(tier.config)


def test_workers_that_write_to_disks_of_their_own_are_noticed(tmp_path: Path) -> None:
    config = golden_config()
    job = ExportJob(config=config, target=str(tmp_path / "here"), topics=("GoldBB",))
    there = replace(job, target=str(tmp_path / "there"))
    plan = job.plan()
    results = (run_item(there.work, item, at) for at, item in enumerate(plan.items))
    with pytest.raises(MetadataError, match="do all workers see this folder"):
        job.finish(plan, RowStream(results, item_count=len(plan.items)))


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "_tieredstore").mkdir()
    (tmp_path / "_tieredstore/manifest.json").write_text("{")
    with pytest.raises(MetadataError, match="manifest.json"):
        exported(golden_config(), tmp_path)


def test_a_target_that_is_no_place_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="names no bucket"):
        ExportTarget("s3://", TargetOptions(endpoint="http://127.0.0.1:1", region="x"))
    with pytest.raises(InvalidConfigError, match="neither a directory nor a URL"):
        ExportTarget("nowhere://bucket/x", TargetOptions())


def test_secrets_show_nowhere() -> None:
    options = TargetOptions(access_key="A", secret_key="hidden", session_token="hidden")
    assert "hidden" not in repr(options)


def test_names_are_escaped_as_hive_does() -> None:
    assert escaped("%RETRY%a/b=c\n") == "%25RETRY%25a%2Fb%3Dc%0A"
    assert escaped("größe") == "größe"


def test_ranges_are_joined_and_taken_away() -> None:
    assert joined([(5, 9), (0, 3), (3, 4), (8, 12)]) == [(0, 4), (5, 12)]
    assert free(0, 20, [(0, 4), (5, 12)]) == [(4, 5), (12, 20)]
    assert free(6, 10, [(0, 4), (5, 12)]) == []
    assert free(0, 3, []) == [(0, 3)]
    assert free(2, 6, [(4, 5)]) == [(2, 4), (5, 6)]
    assert free(0, 2, [(4, 5)]) == [(0, 2)]
