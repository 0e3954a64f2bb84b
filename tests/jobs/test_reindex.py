"""All index files made anew: installed in one step in the place of the old ones."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.dying_load import LOADED, NEW, OLD, config_in, die_at, load, reindexed
from tests.jobs.load_kit import assert_found, open_tier_of, report_of
from tests.jobs.migrate_kit import copy_of_golden
from tests.jobs.written_tier import WrittenTier
from tieredstore.access.reader import TieredReader
from tieredstore.codec.message import decode_message
from tieredstore.codec.names import index_queue_path
from tieredstore.driver.runtime import SystemClock
from tieredstore.jobs.job import JobExit, JobReport, JobState, LocalEngine, run_job
from tieredstore.jobs.reindex import ReindexKeys, reindex
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import CatalogueLockedError, InvalidConfigError
from tieredstore.model.values import SegmentType

CLOCK = SystemClock()


def run(config: StoreConfig, **how: Any) -> JobReport:
    with LocalEngine(threads=2) as engine:
        return reindex(config, engine, clock=CLOCK, **how)


def index_files(config: StoreConfig) -> list[bytes]:
    with open_tier_of(config) as parts:
        path = index_queue_path(config.broker_name)
        rows = parts.metadata.segments(path, SegmentType.INDEX)
        return [parts.provider.open(path, row.type, row.base_offset).read(0, row.size)
                for row in rows]  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> StoreConfig:
    config = config_in(tmp_path)
    WrittenTier(config=config).add("other", 7, 40, seal=True)
    load(config)
    return config


def test_old_files_are_replaced_and_everything_is_found(config: StoreConfig) -> None:
    before = index_files(config)
    dry = run(config, dry_run=True)
    assert (dry.state, dry.counts["messages"]) == (JobState.PLANNED, 190)
    assert index_files(config) == before
    report = run(config)
    assert report.exit_code is JobExit.DONE
    assert report.counts["files"] == len(index_files(config))
    assert_found(config, LOADED)
    with TieredReader.open(config) as reader:
        assert len(reader.query_message("other", "shared-1", count_max=99).messages) == 9
        assert [reader.indexed_offset(*key) for key in reader.queues()] == [90, 60, 40]
    assert report_of(config).findings == ()
    with open_tier_of(config) as parts:  # the index has nothing to put again
        assert parts.index.indexed_offset("other", parts.metadata.topic("other").topic_id, 7) == 40


def test_again_it_makes_the_same(config: StoreConfig) -> None:
    run(config)
    before = index_files(config)
    again = run(config)
    assert again.state is JobState.DONE
    assert [len(each) for each in index_files(config)] == [len(each) for each in before]


def test_an_index_that_was_lost_is_there_again(config: StoreConfig) -> None:
    with open_tier_of(config) as parts:
        for row in parts.metadata.segments(index_queue_path(config.broker_name)):
            parts.metadata.delete_segment(row.path, row.type, row.base_offset)
            parts.provider.open(row.path, row.type, row.base_offset).delete()
    run(config)
    assert_found(config, LOADED)


def test_what_was_staged_before_a_failure_is_used_again(config: StoreConfig) -> None:
    job = ReindexKeys(config=config)
    plan = job.plan()
    with LocalEngine(threads=1) as engine:
        results = engine.results(job.work, plan, on_progress=lambda _: None)
        next(results)
        results.close()
    assert job.plan().counts["staged"] == 1
    assert len(job.plan().items) == len(plan.items) - 1
    run(config)
    assert_found(config, LOADED)


def test_it_is_refused_under_a_living_writer(config: StoreConfig) -> None:
    plans: list[Any] = []
    with open_tier_of(config) as parts:
        with pytest.raises(CatalogueLockedError, match="another process has it open"):
            run(config, on_plan=plans.append)
        assert plans == []  # before a message is read
        scratch = parts.provider.scratch(config.broker_name)
        assert scratch is not None
        assert list(scratch.listed("reindex")) == []
    assert run(config).state is JobState.DONE


def test_nobody_else_writes_the_tier_from_the_first_read_to_the_last_step(
    config: StoreConfig,
) -> None:
    refusals: list[str] = []

    def another_writer(_: object) -> None:
        with pytest.raises(CatalogueLockedError) as refused, open_tier_of(config):
            pass
        refusals.append(str(refused.value))

    assert run(config, on_plan=another_writer, on_progress=another_writer).state is JobState.DONE
    assert len(refusals) > 3  # the plan, the slices, the files
    with open_tier_of(config):
        assert_found(config, LOADED)


def test_a_dry_run_asks_for_no_lock(config: StoreConfig) -> None:
    with open_tier_of(config):
        assert run(config, dry_run=True).state is JobState.PLANNED


def test_a_worker_gets_the_job_without_the_lock(config: StoreConfig) -> None:
    with ReindexKeys(config=config).held() as job:
        sent = pickle.loads(pickle.dumps(job))  # noqa: S301 - our own bytes
    assert job.tier is not None
    assert sent == ReindexKeys(config=config)
    assert sent.tier is None


def test_a_tier_that_java_wrote_is_found_by_every_key(tmp_path: Path) -> None:
    golden = copy_of_golden(tmp_path / "java")
    assert run(golden).exit_code is JobExit.DONE
    with TieredReader.open(golden) as reader:
        wanted: dict[tuple[str, str], set[tuple[int, int]]] = {}
        for key in reader.queues():
            for message in reader.messages(*key):
                record = decode_message(message.record)
                for text in {record.unique_key or "", *record.keys} - {""}:
                    found = wanted.setdefault((key.topic, text), set())
                    found.add((key.queue_id, message.log_offset))
        assert len(wanted) > 100
        for (topic, text), places in wanted.items():
            answer = reader.query_message(topic, text, count_max=9_999)
            records = [decode_message(each.record) for each in answer.messages]
            assert {(each.queue_id, each.log_offset) for each in records} == places


def test_another_number_of_slots_is_refused(config: StoreConfig) -> None:
    with pytest.raises(InvalidConfigError, match="index_slot_count"):
        run(replace(config, index_slot_count=config.index_slot_count + 1))


def test_messages_that_cannot_be_read_are_told(config: StoreConfig) -> None:
    with open_tier_of(config) as parts:
        file = parts.files.get(NEW)
        segment = Path(file.log.segments[0].segment.path)
        place = int(file.units(10, 1).log_offsets[0])
    with segment.open("r+b") as opened:
        opened.seek(place)
        opened.write(b"\0" * 8)
    report = run(config)
    assert report.exit_code is JobExit.DAMAGE
    assert [each.kind for each in report.findings] == ["not-indexed"]
    with TieredReader.open(config) as reader:
        assert reader.query_message(NEW.topic, "u-orders-1-11").messages


def test_the_steps_of_a_job_are_run_one_after_the_other(config: StoreConfig) -> None:
    told: list[int] = []
    with LocalEngine(threads=1) as engine:
        report = run_job(
            ReindexKeys(config=config),
            engine,
            clock=CLOCK,
            on_plan=lambda plan: told.append(len(plan.items)),
        )
    assert told == [3]  # the slices; nobody is told of the second step
    assert "files" in report.counts


def test_a_killed_reindex_is_gone_on_with(tmp_path: Path) -> None:
    def tier(name: str) -> Path:
        folder = tmp_path / name
        WrittenTier(config=config_in(folder)).add(*OLD, 30, seal=True)
        load(config_in(folder))
        return folder

    (said,) = die_at("reindex", [(tier("whole"), 1_000)])
    count = 1_000 - int(said.removeprefix("left "))
    steps = [count // 2, count - 3]
    lives = [(tier(str(step)), step) for step in steps]
    assert die_at("reindex", lives) == ["killed"] * len(steps)
    for folder, _ in lives:
        assert_found(config_in(folder), LOADED)
        reindexed(config_in(folder))
        assert_found(config_in(folder), LOADED)
        assert report_of(config_in(folder)).findings == ()
