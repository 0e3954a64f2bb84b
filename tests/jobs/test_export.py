"""An export has each message of the tier once, whatever was killed and retried on the way."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from threading import Barrier, Event
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.jobs import written_tier
from tests.jobs.dying import dying
from tests.jobs.job_kit import (
    Harmed,
    copy_of_golden,
    exported,
    flipped,
    golden_config,
    messages,
    run_inline,
    table,
    tier_messages,
)
from tests.jobs.written_tier import START_MS, WrittenTier, a_run, posix_config
from tieredstore.access.upkeep import expire
from tieredstore.driver.metadata import DeleteQueue
from tieredstore.driver.runtime import InlinePool, ManualClock
from tieredstore.jobs.export import ExportJob
from tieredstore.jobs.export_ledger import (
    Ledger,
    StagedRange,
    TableChangedError,
    commit_staged,
    free,
    joined,
    marked,
)
from tieredstore.jobs.export_parquet import NO_DAY, ParquetTable, escaped, exported_files
from tieredstore.jobs.export_target import MAKING, TRASH, ExportTarget, TargetOptions
from tieredstore.jobs.job import (
    HOPELESS_FAILURES,
    ItemResult,
    JobExit,
    JobReport,
    JobState,
    LocalEngine,
    Plan,
    RowStream,
    run_item,
    run_job,
)
from tieredstore.jobs.scan import OnCorrupt
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.errors import (
    BackendUnavailableError,
    InvalidConfigError,
    MetadataError,
)
from tieredstore.model.values import QueueKey


def test_every_message_of_the_golden_tier_is_there_once(tmp_path: Path) -> None:
    config = golden_config()
    report = exported(config, tmp_path)
    assert report.state is JobState.DONE
    assert report.counts["messages"] == 533
    assert messages(tmp_path) == tier_messages(config)
    assert max(messages(tmp_path).values()) == 1
    commit = tmp_path / "commit=00000001"
    assert {each.name for each in commit.glob("topic=*/day=*")} == {"day=2026-11-20"}
    assert (commit / "topic=%25RETRY%25gold_group").is_dir()
    assert staged(tmp_path) == []


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
    (*_, newest) = sorted(target.glob("commit=*"))
    record = json.loads((newest / "_commit.json").read_text())
    assert record["ledger"]["ranges"] == {
        "c/broker-a/Orders/0": [[0, 130]],
        "c/broker-a/Payments/3": [[0, 5]],
    }
    assert sum(each["rows"] for each in record["files"]) == 35
    assert newest.name == "commit=00000002"
    new = exported_files(str(target), after=1)
    assert sum(pq.read_metadata(path).num_rows for path in new) == 35
    assert len(exported_files(str(target))) == len(list(target.glob("commit=*/**/*.parquet")))


def test_a_run_whose_cleanup_fails_has_exported_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(target: ExportTarget, path: str) -> None:
        raise BackendUnavailableError(path, "delete", "503 slow down")

    with monkeypatch.context() as broken:
        broken.setattr(ExportTarget, "delete", fails)
        report = exported(golden_config(), tmp_path)
    assert report.state is JobState.DONE
    assert report.counts["messages"] == 533
    assert staged(tmp_path)
    again = exported(golden_config(), tmp_path)
    assert (again.state, again.counts["messages"]) == (JobState.DONE, 0)
    assert staged(tmp_path) == []
    assert max(messages(tmp_path).values()) == 1


def test_what_another_user_left_unpublished_fails_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("left", "ours"):
        (tmp_path / MAKING / name).mkdir(parents=True)
    rename = os.rename

    def renamed(old: Path, new: Path) -> None:
        if old.name == "left":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        rename(old, new)

    monkeypatch.setattr(os, "rename", renamed)
    assert exported(golden_config(), tmp_path).state is JobState.DONE
    assert [each.name for each in (tmp_path / MAKING).iterdir()] == ["left"]
    assert not (tmp_path / TRASH).exists()


def test_a_run_that_is_killed_anywhere_shows_all_or_nothing(tmp_path: Path) -> None:
    """Before and after each file, around the commit, and while its leftovers are removed."""
    config = golden_config()
    wanted = {each: 1 for each in tier_messages(config) if each[0].startswith("Gold")}
    with dying("export") as process:
        count = process.count(tmp_path / "whole")
        assert count > 40
        for step in sorted({*range(0, count, 11), *range(count - 8, count)}):
            target = tmp_path / str(step)
            assert process.run(step, target) is None
            target.mkdir(exist_ok=True)
            assert seen(target) in ({}, wanted)
            # This run would cut other ranges, but takes those that are staged as they are.
            report = exported(config, target, split_bytes=9_000)
            assert report.state is JobState.DONE
            assert messages(target) == tier_messages(config)
            assert staged(target) == []
            assert not list(target.glob("_tieredstore/making/*"))


def test_what_a_killed_run_has_staged_is_not_written_again(tmp_path: Path) -> None:
    config, target = golden_config(), str(tmp_path / "parquet")
    job = ExportJob(config=config, target=target, split_bytes=20_000)
    plan = job.plan()
    with pytest.raises(KeyboardInterrupt):
        job.finish(plan, RowStream(interrupted(job, plan, 7), item_count=len(plan.items)))
    assert seen(Path(target)) == {}
    again = job.plan()
    assert len(again.items) == len(plan.items) - 7
    assert again.lines[1] == "7 ranges were written by runs that did not end: to commit"
    report = run_inline(job)
    assert (report.counts["ranges"], report.counts["messages"]) == (len(plan.items), 533)
    assert messages(target) == tier_messages(config)


def interrupted(job: ExportJob, plan: Plan[Any], count: int) -> Iterator[ItemResult[Any]]:
    for at, item in enumerate(plan.items[:count]):
        yield run_item(job.work, item, at)
    raise KeyboardInterrupt


def staged(target: Path) -> list[str]:
    return [path.name for path in target.glob("_tieredstore/staged/*")]


def seen(target: Path) -> dict[Any, int]:
    """What a reader sees if it only lists folders."""
    return dict(messages(target)) if list(target.glob("commit=*")) else {}


def test_a_reader_that_lists_during_commits_sees_all_of_a_run_or_nothing(tmp_path: Path) -> None:
    tier = WrittenTier(config=posix_config(tmp_path))
    target = tmp_path / "parquet"
    target.mkdir()
    counts: list[int] = []
    ended = Event()

    def look() -> None:
        while not ended.is_set():
            found = ds.dataset(target, format="parquet", partitioning="hive")
            counts.append(found.count_rows())

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            for _ in range(12):
                for queue in range(4):
                    tier.add("Orders", queue, 25)
                exported(tier.config, target, split_bytes=2_000)
        finally:
            ended.set()
        looking.result()
    assert len(set(counts)) > 2
    assert {count % 100 for count in counts} == {0}
    assert counts == sorted(counts)


def test_two_runs_at_once_bring_each_message_once(tmp_path: Path) -> None:
    config, target = golden_config(), str(tmp_path / "parquet")
    for _ in range(3):
        rmtree(target, ignore_errors=True)
        both = Barrier(2, timeout=60)

        def run(split_bytes: int, both: Barrier = both) -> JobReport:
            job = ExportJob(config=config, target=target, split_bytes=split_bytes)
            plan = job.plan()
            results = [run_item(job.work, item, at) for at, item in enumerate(plan.items)]
            both.wait()
            report = job.finish(plan, RowStream(iter(results), item_count=len(results)))
            assert isinstance(report, JobReport)
            return report

        with ThreadPoolExecutor(2) as pool:
            reports = list(pool.map(run, (20_000, 20_000)))
        assert sum(report.counts["messages"] for report in reports) == 533
        assert messages(target) == tier_messages(config)
        assert exported(config, target).counts["messages"] == 0


def test_of_two_runs_with_other_cuts_the_later_one_brings_nothing_twice_and_the_next_one_the_rest(
    tmp_path: Path,
) -> None:
    tier = WrittenTier(config=posix_config(tmp_path))
    target = tmp_path / "parquet"
    tier.add("Orders", 0, 100)
    tier.add("Orders", 1, 30)
    job = ExportJob(config=tier.config, target=str(target))
    plans = [job.plan()]
    tier.add("Orders", 0, 20)  # now the range of this queue ends elsewhere
    plans.append(job.plan())
    reports = []
    for plan in plans:
        results = [run_item(job.work, item, at) for at, item in enumerate(plan.items)]
        reports.append(job.finish(plan, RowStream(iter(results), item_count=len(results))))
    states = [each.state for each in reports if isinstance(each, JobReport)]
    assert states == [JobState.DONE, JobState.INCOMPLETE]
    assert isinstance(reports[1], JobReport)
    assert (reports[1].counts["messages"], reports[1].counts["ranges_left"]) == (0, 1)
    assert table(target).num_rows == 130
    again = exported(tier.config, target)
    assert (again.state, again.counts["messages"]) == (JobState.DONE, 20)
    assert messages(target) == tier_messages(tier.config)
    assert staged(target) == []


def test_a_run_that_commits_what_another_has_staged_of_its_range_is_run_again(
    tmp_path: Path,
) -> None:
    tier = WrittenTier(config=posix_config(tmp_path))
    target = tmp_path / "parquet"
    tier.add("Orders", 0, 100)
    job = ExportJob(config=tier.config, target=str(target))
    plans = [job.plan()]
    tier.add("Orders", 0, 20)
    plans.append(job.plan())
    results = [[run_item(job.work, item, 0) for item in plan.items] for plan in plans]
    reports = [
        job.finish(plan, RowStream(iter(each), item_count=1))
        for plan, each in reversed([*zip(plans, results, strict=True)])
    ]
    reported = [each for each in reports if isinstance(each, JobReport)]
    found = [(each.state, each.counts["messages"]) for each in reported]
    assert found == [(JobState.INCOMPLETE, 100), (JobState.DONE, 0)]
    assert exported(tier.config, target).counts["messages"] == 20
    assert messages(target) == tier_messages(tier.config)
    assert staged(target) == []


def test_staged_files_that_another_run_commits_and_removes_are_no_error(tmp_path: Path) -> None:
    """They vanish between the look for the files and the commit, or before the look."""
    config, target = golden_config(), str(tmp_path / "parquet")

    class Overtaken(ParquetTable):
        calls = 0

        def append(self, ranges: Sequence[StagedRange], after: Ledger) -> None:
            self.calls += 1
            if self.calls == 1:
                exported(config, target)
            super().append(ranges, after)

    class Early(ExportTarget):
        done = False

        def sizes(self, paths: Sequence[str]) -> list[int | None]:
            if not self.done:
                self.done = True
                exported(config, target)
            return super().sizes(paths)

    for table_ in (
        Overtaken(ExportTarget(target, TargetOptions())),
        ParquetTable(Early(target, TargetOptions())),
    ):
        rmtree(target, ignore_errors=True)
        job = ExportJob(config=config, target=target, split_bytes=20_000)
        for item in job.plan().items:
            list(job.work(item))
        ranges = marked(ExportTarget(target, TargetOptions()), job.settings)
        added, ledger = commit_staged(table_, job.settings, ranges, "the-run")
        assert (added, ledger.commits) == ([], 1)
        assert messages(target) == tier_messages(config)


def test_a_commit_whose_outcome_was_unknown_is_recognised(tmp_path: Path) -> None:
    config, target = golden_config(), str(tmp_path / "parquet")

    class Doubtful(ParquetTable):
        def append(self, ranges: Sequence[StagedRange], after: Ledger) -> None:
            super().append(ranges, after)
            raise TableChangedError

    job = ExportJob(config=config, target=target)
    for item in job.plan().items:
        list(job.work(item))
    place = ExportTarget(target, TargetOptions())
    ranges = marked(place, job.settings)
    added, ledger = commit_staged(Doubtful(place), job.settings, ranges, "the-run")
    assert (added, ledger.commits, ledger.runs) == (ranges, 1, ("the-run",))


def test_a_folder_taken_away_while_it_is_made_is_not_published_in_part(tmp_path: Path) -> None:
    class Swept(ExportTarget):
        def _put_locally(self, root: Path, path: str, data: Any) -> None:
            if path == "last":
                self.drop_unpublished()
            super()._put_locally(root, path, data)

    target = Swept(str(tmp_path), TargetOptions())
    target.put("a", b"1")
    with pytest.raises(FileNotFoundError):
        target.publish("made", {"x/a": "a"}, ("last", b"2"))
    assert not (tmp_path / "made").exists()


def test_a_queue_that_was_made_anew_is_noted(tmp_path: Path) -> None:
    config, target = golden_config(), tmp_path / "parquet"
    exported(config, target)
    record = target / "commit=00000001/_commit.json"
    held = json.loads(record.read_text())
    held["ledger"]["ranges"]["GoldenCluster/broker-gold-a/GoldAa/0"] = [[0, 500]]
    record.write_text(json.dumps(held))
    report = exported(config, target)
    assert report.facts["made_anew"] == ["broker-gold-a/GoldAa/0 ends at 83, 500 was there"]


def test_messages_of_a_topic_that_was_made_anew_are_not_called_exported(tmp_path: Path) -> None:
    """The new topic has more messages than were exported from the first one."""
    tier, target = WrittenTier(config=posix_config(tmp_path)), tmp_path / "parquet"
    tier.add("Orders", 0, 20)
    tier.add("Payments", 0, 5)
    exported(tier.config, target)
    tier.delete("Orders")
    tier.add("Orders", 0, 30)
    tier.add("Payments", 0, 2)
    for new in (2, 0):
        report = exported(tier.config, target)
        assert (report.state, report.counts["messages"]) == (JobState.INCOMPLETE, new)
        assert report.exit_code is JobExit.REFUSED
        (failure,) = report.failures
        assert failure.text.startswith("Orders: the topic was deleted and made again")
    assert sum(messages(target).values()) == 27
    assert exported(tier.config, tmp_path / "another").counts["messages"] == 37


def test_a_topic_whose_folder_no_disk_can_name_keeps_no_other_from_the_target(
    tmp_path: Path,
) -> None:
    """RocketMQ's topics have up to 255 bytes, and the folder's name adds `topic=`."""
    tier, target = WrittenTier(config=posix_config(tmp_path)), tmp_path / "parquet"
    tier.add("Orders", 0, 20)
    tier.add("L" * 249, 0, 3)
    tier.add("L" * 250, 0, 7)
    report = exported(tier.config, target)
    assert (report.state, report.counts["messages"]) == (JobState.INCOMPLETE, 23)
    assert report.exit_code is JobExit.REFUSED
    (failure,) = report.failures
    assert "L" * 250 in failure.text
    assert exported(tier.config, target, topics=("Orders",)).state is JobState.DONE


def test_what_was_staged_of_a_topic_before_it_was_made_anew_is_left_out(tmp_path: Path) -> None:
    tier, target = WrittenTier(config=posix_config(tmp_path)), tmp_path / "parquet"
    tier.add("Orders", 0, 20)
    job = ExportJob(config=tier.config, target=str(target))
    for item in job.plan().items:
        assert list(job.work(item))
    tier.delete("Orders")
    tier.add("Orders", 0, 30)
    report = exported(tier.config, target)
    assert (report.state, report.counts["messages"]) == (JobState.DONE, 30)
    assert staged(target) == []


def test_offsets_that_were_given_again_are_not_called_exported(tmp_path: Path) -> None:
    """The queue has more messages than were exported of its first history, or of another tier."""
    target = tmp_path / "parquet"
    first = WrittenTier(config=posix_config(tmp_path / "first"))
    second = WrittenTier(config=posix_config(tmp_path / "second"), start_ms=START_MS + 1)
    for tier, count in ((first, 20), (second, 30)):
        tier.add("Orders", 0, count)
        tier.add("Orders", 1, 5 if tier is first else 0)
    second.add("Orders", 2, 3)
    exported(first.config, target)
    for new in (3, 0):
        report = exported(second.config, target)
        assert (report.state, report.counts["messages"]) == (JobState.INCOMPLETE, new)
        assert report.exit_code is JobExit.REFUSED
        (failure,) = report.failures
        assert "Orders/0: message 19 is not the one that was exported" in failure.text
    first.add("Orders", 0, 1)
    assert exported(first.config, target).counts["messages"] == 1
    assert max(messages(target).values()) == 1


@pytest.mark.parametrize("behind", [0, 5])
def test_another_history_is_told_where_it_lacks_what_was_exported_last(
    tmp_path: Path, behind: int
) -> None:
    """It ends before that message, or has a gap there: then only its own messages are later."""
    target, key = tmp_path / "parquet", QueueKey("Orders", 0)
    first = WrittenTier(config=posix_config(tmp_path / "first"))
    second = WrittenTier(config=posix_config(tmp_path / "second"), start_ms=START_MS + 60_000)
    first.add("Orders", 0, 20)
    second.add("Orders", 0, 10)
    if behind:
        with second.open() as parts:
            parts.files.create(*key).skip_to(25)
        second.ends[key] = 25
        second.add("Orders", 0, behind)
    exported(first.config, target)
    older = WrittenTier(config=posix_config(tmp_path / "older"))
    older.add("Orders", 0, 10)
    assert exported(older.config, target).state is JobState.DONE  # a copy of the first one
    report = exported(second.config, target)
    assert (report.state, report.counts["messages"]) == (JobState.INCOMPLETE, 0)
    (failure,) = report.failures
    assert "Orders/0: message 19 was exported and is not there, and message 9," in failure.text


def test_a_catalogue_older_than_the_export_and_than_a_clock_set_back_is_to_be_replaced(
    tmp_path: Path,
) -> None:
    target, later = tmp_path / "parquet", START_MS + 60_000
    tier = WrittenTier(config=posix_config(tmp_path / "tier"), start_ms=later)
    older = WrittenTier(config=posix_config(tmp_path / "older"), start_ms=later)
    for each in (tier, older):
        each.add("Orders", 0, 10)
    tier.start_ms = START_MS
    tier.add("Orders", 0, 10)
    exported(tier.config, target)
    (failure,) = exported(older.config, target).failures
    assert "a clock was set back and this catalogue is older" in failure.text
    assert exported(tier.config, target).state is JobState.DONE


def test_another_history_is_told_where_it_is_as_long_as_what_was_exported(tmp_path: Path) -> None:
    target = tmp_path / "parquet"
    first = WrittenTier(config=posix_config(tmp_path / "first"))
    second = WrittenTier(config=posix_config(tmp_path / "second"), start_ms=START_MS + 1)
    for tier in (first, second):
        tier.add("Orders", 0, 20)
    exported(first.config, target)
    report = exported(second.config, target)
    assert (report.state, report.exit_code) == (JobState.INCOMPLETE, JobExit.REFUSED)
    (failure,) = report.failures
    assert "Orders/0: message 19 is not the one that was exported" in failure.text
    assert exported(first.config, target).state is JobState.DONE
    assert ExportJob(config=first.config, target=str(target)).plan().items == []


def test_a_queue_without_anything_new_is_read_where_the_catalogue_does_not_tell(
    tmp_path: Path,
) -> None:
    """The export ends before the queue does."""
    tier, target = WrittenTier(config=posix_config(tmp_path)), tmp_path / "parquet"
    tier.add("Orders", 0, 200)
    times = 0, START_MS + 20_000
    exported(tier.config, target, times=times)
    (item,) = ExportJob(config=tier.config, target=str(target), times=times).plan().items
    assert len(item.slice) == 0
    report = exported(tier.config, target, times=times)
    assert (report.state, report.counts["messages"]) == (JobState.DONE, 0)
    assert messages(target).total() == 20


def test_refused_queues_keep_no_other_from_the_target_however_many_they_are(tmp_path: Path) -> None:
    """A job whose first 50 items fail would not try the others."""
    target = tmp_path / "parquet"
    first = WrittenTier(config=posix_config(tmp_path / "first"))
    second = WrittenTier(config=posix_config(tmp_path / "second"), start_ms=START_MS + 1)
    for tier, count in ((first, 1), (second, 2)):
        with tier.open() as parts:
            for key in (QueueKey("Orders", number) for number in range(60)):
                tier.write(parts, key, a_run(key, 0, count, start_ms=tier.start_ms))
    second.add("Payments", 0, 5)
    exported(first.config, target)
    report = exported(second.config, target)
    assert (report.state, report.counts["messages"]) == (JobState.INCOMPLETE, 5)
    assert (report.exit_code, len(report.failures)) == (JobExit.REFUSED, 60)


def test_a_staged_range_is_known_by_its_newest_message_too(tmp_path: Path) -> None:
    target = tmp_path / "parquet"
    first = WrittenTier(config=posix_config(tmp_path / "first"))
    second = WrittenTier(config=posix_config(tmp_path / "second"), start_ms=START_MS + 1)
    first.add("Orders", 0, 20)
    second.add("Orders", 0, 30)
    job = ExportJob(config=first.config, target=str(target))
    for item in job.plan().items:
        assert list(job.work(item))
    report = exported(second.config, target)
    assert (report.state, report.counts["messages"]) == (JobState.INCOMPLETE, 20)
    assert messages(target) == tier_messages(first.config)


def test_an_exported_message_that_has_expired_keeps_no_later_one_away(tmp_path: Path) -> None:
    tier = WrittenTier(config=posix_config(tmp_path, commit_log_segment_bytes=4_096))
    target = tmp_path / "parquet"
    tier.add("Orders", 0, 20)
    exported(tier.config, target)
    tier.add("Orders", 0, 60)
    with tier.open() as parts:
        file = parts.files.get(QueueKey("Orders", 0))
        assert file is not None
        assert expire(file, START_MS + 60_000).segment_count
    report = exported(tier.config, target)
    assert report.state is JobState.DONE
    assert 20 < report.counts["messages"] < 60


def test_a_wrong_number_in_the_oldest_record_of_a_queue_hides_no_message(tmp_path: Path) -> None:
    tier = WrittenTier(config=posix_config(tmp_path, commit_log_segment_bytes=4_096))
    tier.add("Orders", 0, 60)
    with tier.open() as parts:
        file = parts.files.get(QueueKey("Orders", 0))
        assert file is not None
        assert expire(file, START_MS + 30_000).segment_count
        first = file.min_offset
    oldest = min(Path(tier.config.path).rglob("COMMIT_LOG/*"), key=lambda path: path.name[-20:])
    with flipped(oldest, 26):  # 16384 is added to its queue offset
        report = exported(tier.config, tmp_path / "a", on_corrupt=OnCorrupt.SKIP)
        assert (report.counts["damaged"], report.counts["messages"]) == (1, 60 - first - 1)
        assert exported(tier.config, tmp_path / "b").exit_code is JobExit.DAMAGE


@pytest.mark.parametrize("on_corrupt", OnCorrupt)
@pytest.mark.parametrize("is_deleted", [False, True], ids=["expired", "deleted"])
def test_what_goes_while_it_is_exported_is_no_damage(
    tmp_path: Path, on_corrupt: OnCorrupt, is_deleted: bool
) -> None:
    tier = WrittenTier(config=posix_config(tmp_path, commit_log_segment_bytes=4_096))
    tier.add("Orders", 0, 80)

    def goes(_plan: object) -> None:
        if is_deleted:
            tier.delete("Orders")
            return
        with tier.open() as parts:
            file = parts.files.get(QueueKey("Orders", 0))
            assert file is not None
            assert expire(file, START_MS + 40_000).segment_count

    columns = ("queue_id", "queue_offset", "body")
    job = ExportJob(
        config=tier.config,
        target=str(tmp_path / "parquet"),
        columns=(*columns, "damage") if on_corrupt is OnCorrupt.REPORT else columns,
        on_corrupt=on_corrupt,
    )
    engine = LocalEngine(pool=InlinePool(), threads=1)
    report = run_job(job, engine, clock=ManualClock(), on_plan=goes)
    (failure,) = report.failures
    assert failure.text.endswith("a part of it expired or was deleted meanwhile")
    assert (report.exit_code, report.findings) == (JobExit.REFUSED, ())
    again = run_inline(job)
    assert again.exit_code is JobExit.DONE
    assert (again.counts["messages"], again.counts["damaged"]) == (
        len(tier_messages(tier.config)),
        0,
    )


def test_a_topic_that_is_made_anew_while_it_is_exported_is_not_taken_for_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker reads the new topic, where all that was planned exists and is sound."""
    tier = WrittenTier(config=posix_config(tmp_path))
    tier.add("Orders", 0, 20)
    tier.add("Payments", 0, 5)

    def made_anew(_plan: object) -> None:
        tier.delete("Orders")
        monkeypatch.setattr(written_tier, "START_MS", START_MS + 5_000)
        tier.add("Orders", 0, 30)

    target = tmp_path / "parquet"
    job = ExportJob(config=tier.config, target=str(target))
    engine = LocalEngine(pool=InlinePool(), threads=1)
    report = run_job(job, engine, clock=ManualClock(), on_plan=made_anew)
    assert (report.state, report.counts["messages"]) == (JobState.INCOMPLETE, 5)
    (failure,) = report.failures
    assert failure.text.endswith(
        "Orders/0: deleted and made again while it was exported: run it again"
    )
    report = run_inline(job)
    assert (report.state, report.counts["messages"]) == (JobState.DONE, 30)
    assert messages(target) == tier_messages(tier.config)
    assert staged(target) == []


def test_a_topic_that_is_made_anew_while_a_killed_run_stages_it_is_not_taken_for_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = WrittenTier(config=posix_config(tmp_path))
    tier.add("Orders", 0, 20)
    tier.add("Payments", 0, 5)
    target = tmp_path / "parquet"
    job = ExportJob(config=tier.config, target=str(target))
    items = job.plan().items
    tier.delete("Orders")
    monkeypatch.setattr(written_tier, "START_MS", START_MS + 5_000)
    tier.add("Orders", 0, 30)
    for item in items:
        list(job.work(item))
    for count in (35, 0):
        report = run_inline(job)
        assert (report.state, report.counts["messages"]) == (JobState.DONE, count)
        assert messages(target) == tier_messages(tier.config)
        assert staged(target) == []


def test_a_target_without_numbers_of_topics_and_newest_messages_is_taken_up(tmp_path: Path) -> None:
    tier, target = WrittenTier(config=posix_config(tmp_path)), tmp_path / "parquet"
    tier.add("Orders", 0, 20)
    exported(tier.config, target)
    record = target / "commit=00000001/_commit.json"
    held = json.loads(record.read_text())
    assert held["ledger"].pop("topic_ids") == {"c/broker-a/Orders": 0}
    assert held["ledger"].pop("newest") == {"c/broker-a/Orders/0": [19, START_MS + 19_000]}
    record.write_text(json.dumps(held))
    tier.add("Orders", 0, 1)
    assert exported(tier.config, target).counts["messages"] == 1
    tier.delete("Orders")
    tier.add("Orders", 0, 30)
    assert exported(tier.config, target).state is JobState.INCOMPLETE


def test_a_target_of_an_older_layout_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "_tieredstore").mkdir()
    (tmp_path / "_tieredstore/manifest.json").write_text("{}")
    with pytest.raises(InvalidConfigError, match="knows no commits; export to another one"):
        exported(golden_config(), tmp_path)


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
    assert {each.name for each in tmp_path.glob("commit=*/topic=*")} == {
        "topic=GoldAa",
        "topic=GoldBB",
    }
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


def test_a_queue_whose_end_is_gone_is_not_exported_whole(tmp_path: Path) -> None:
    tier = Harmed.golden(tmp_path)
    os.truncate(tier.file("GoldAa/0", "CONSUME_QUEUE", 1600), 30)
    report = exported(tier.config, tmp_path / "out")
    assert report.exit_code is JobExit.DAMAGE
    assert ["30 bytes" in each.detail for each in report.findings] == [True]
    assert report.counts["messages"] == 531


def test_messages_of_a_queue_that_the_catalogue_lost_are_told(tmp_path: Path) -> None:
    config = copy_of_golden(tmp_path / "java")
    with JsonMetadataStore.open(config.catalogue_path) as metadata:
        metadata.apply([DeleteQueue("GoldAa", 0)])
    with pytest.raises(MetadataError, match="GoldAa/0, and not the queue"):
        exported(config, tmp_path / "out")


def test_segments_beside_a_catalogue_without_rows_are_told(tmp_path: Path) -> None:
    config = copy_of_golden(tmp_path / "java")
    Path(config.catalogue_path).write_text("{}")
    with pytest.raises(MetadataError, match=r"names no segment of the broker .* a rebuild adds"):
        exported(config, tmp_path / "out")
    rmtree(config.path)
    assert exported(config, tmp_path / "out").exit_code is JobExit.DONE


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
        (path,) = (tmp_path / "c").glob(f"commit=*/topic=GoldAa/day={NO_DAY}/*.parquet")
        lost = pq.read_table(path, partitioning=None)
        assert lost.column("queue_offset").to_pylist() == [0]
        assert lost.column("damage")[0].as_py()
    # The failed range is exported once its bytes are back.
    assert exported(tier.config, tmp_path / "a").state is JobState.DONE
    assert messages(tmp_path / "a") == tier_messages(tier.config)


def test_queues_that_are_all_damaged_keep_no_other_from_the_target(tmp_path: Path) -> None:
    tier = WrittenTier(config=posix_config(tmp_path))
    for queue_id in range(HOPELESS_FAILURES):
        tier.add("Damaged", queue_id, 2)
    tier.add("Orders", 0, 5)
    for path in Path(tier.config.path).rglob("Damaged/*/COMMIT_LOG/*"):
        path.write_bytes(bytes(path.stat().st_size))
    report = exported(tier.config, tmp_path / "out")
    assert (report.exit_code, report.counts["messages"]) == (JobExit.DAMAGE, 5)


@pytest.mark.parametrize("then", OnCorrupt)
def test_damage_that_a_killed_run_staged_is_told_by_the_next_one(
    tmp_path: Path, then: OnCorrupt
) -> None:
    tier, target = WrittenTier(config=posix_config(tmp_path)), tmp_path / "parquet"
    tier.add("Orders", 0, 20)
    (log,) = Path(tier.config.path).rglob("COMMIT_LOG/*")
    with flipped(log, 100):
        job = ExportJob(config=tier.config, target=str(target), on_corrupt=OnCorrupt.SKIP)
        for item in job.plan().items:
            assert list(job.work(item))
        tier.add("Orders", 0, 5)
        report = exported(tier.config, target, on_corrupt=then)
        fails = then is OnCorrupt.FAIL
        assert (report.state is JobState.INCOMPLETE, report.counts["damaged"]) == (fails, not fails)
        assert report.exit_code is (JobExit.DONE if then is OnCorrupt.SKIP else JobExit.DAMAGE)
    found = exported_files(str(target))
    assert sum(pq.read_metadata(path).num_rows for path in found) == (0 if fails else 24)


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
    report = job.finish(plan, RowStream(results, item_count=1))
    assert isinstance(report, JobReport)
    assert report.state is JobState.DONE
    assert messages(tmp_path / "parquet") == tier_messages(tier.config)


def test_workers_that_write_to_disks_of_their_own_are_noticed(tmp_path: Path) -> None:
    config = golden_config()
    job = ExportJob(config=config, target=str(tmp_path / "here"), topics=("GoldBB",))
    plan = job.plan()
    there = [replace(item, place=str(tmp_path / "there")) for item in plan.items]
    results = (run_item(job.work, item, at) for at, item in enumerate(there))
    with pytest.raises(MetadataError, match="do all workers see this folder"):
        job.finish(plan, RowStream(results, item_count=len(plan.items)))


@pytest.mark.parametrize("damage", ["{", "[]", '{"settings": [1]}', '{"ranges": {"a": [1]}}', "7"])
def test_a_damaged_record_of_a_commit_is_named(tmp_path: Path, damage: str) -> None:
    exported(golden_config(), tmp_path, topics=("GoldAa",))
    record = tmp_path / "commit=00000001/_commit.json"
    held = json.loads(record.read_text())
    if damage.startswith('{"'):
        held["ledger"].update(json.loads(damage))
        damage = json.dumps(held)
    record.write_text(damage)
    with pytest.raises(MetadataError, match="commit=00000001/_commit.json"):
        exported(golden_config(), tmp_path)


def test_a_target_that_is_no_place_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="names no bucket"):
        ExportTarget("s3://", TargetOptions(endpoint="http://127.0.0.1:1", region="x"))
    with pytest.raises(InvalidConfigError, match="neither a directory nor a URL"):
        ExportTarget("nowhere://bucket/x", TargetOptions())
    with pytest.raises(InvalidConfigError, match="'ftp'"):
        ExportTarget("s3://bucket/x", TargetOptions(endpoint="ftp://127.0.0.1:1", region="x"))
    with pytest.raises(InvalidConfigError, match="a folder without a name"):
        ExportTarget("s3://bucket//x", TargetOptions(endpoint="http://127.0.0.1:1", region="x"))


def test_files_have_the_same_paths_whether_or_not_a_slash_ends_their_target(tmp_path: Path) -> None:
    """In a bucket a//b and a/b are different names."""
    exported(golden_config(), tmp_path, topics=("GoldAa",))
    wanted = exported_files(f"file://{tmp_path}")
    assert wanted
    assert exported_files(f"file://{tmp_path}/") == wanted
    options = TargetOptions(endpoint="http://127.0.0.1:1", region="x")
    assert ExportTarget("s3://bucket/x/", options).url == "s3://bucket/x"


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
