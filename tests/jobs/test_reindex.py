"""All index files rebuilt: keys in sorted runs, files like those of the index itself."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flat.tiers import FaultyCatalogue, run_of
from tests.jobs import faulty_tiers
from tests.jobs.dying import LOADED, NEW, OLD, config_in, dying, load, reindexed
from tests.jobs.job_kit import copy_of_golden, files, flipped, kinds, verified
from tests.jobs.load_kit import assert_found, loaded, open_tier_of, report_of, rows_of
from tests.jobs.written_tier import START_MS, WrittenTier, posix_config
from tieredstore.access.reader import TieredReader
from tieredstore.access.wiring import open_tier, published_catalogue
from tieredstore.codec.message import decode_message
from tieredstore.codec.names import index_queue_path
from tieredstore.driver.metadata import Change, DeleteQueue, DeleteSegment, DeleteTopic
from tieredstore.driver.provider import Scratch
from tieredstore.driver.runtime import ManualClock, Runtime, SystemClock
from tieredstore.index.contract import CommittedRun
from tieredstore.index.keys import IndexColumns
from tieredstore.index.store import IndexStore
from tieredstore.jobs import key_runs
from tieredstore.jobs.job import JobExit, JobReport, JobState, LocalEngine, RowStream, run_job
from tieredstore.jobs.key_runs import KeyRun, RunWriter, file_plans, in_order, merged, staged_runs
from tieredstore.jobs.reindex import ReindexKeys, begin_timestamps, reindex
from tieredstore.jobs.worker import owned_tier, worker_provider
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.metadata.tables import Tables
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    CatalogueLockedError,
    InvalidConfigError,
    MetadataError,
    SegmentCorruptError,
)
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import QueueKey, SegmentRecord, SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.providers.posix import PosixFileSegment, PosixProvider
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.samples import STORE_TIMESTAMP, a_record

CLOCK = SystemClock()
HOUR_MS = 3_600_000
OTHER = QueueKey("other", 7)


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
    WrittenTier(config=config).add(*OTHER, 40, seal=True)
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
    with open_tier_of(config) as parts:  # the index has nothing left to put
        assert parts.index.indexed_offset("other", parts.metadata.topic("other").topic_id, 7) == 40


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_of_a_bucket_a_request_that_fails_or_loses_its_reply_takes_no_key(
    tmp_path: Path, fault: Fault
) -> None:
    """The change that names the new files may have taken effect when its reply is lost."""
    bucket = tmp_path.name
    config = faulty_tiers.in_struck_bucket(posix_config(tmp_path), bucket)
    loaded(config, [[rows_of(NEW, range(20))]])
    held = dict(faulty_tiers.BUCKETS[bucket].held)

    def struck(step: int) -> int:
        faults = Faults({step: fault})
        with faulty_tiers.struck(bucket, held, faults):
            run(config)
        assert not report_of(config).damage
        assert_found(config, {NEW: range(20)}, samples=3)
        return faults.steps

    for step in range(struck(-1)):
        struck(step)
    del faulty_tiers.BUCKETS[bucket]


def cut_short(config: StoreConfig) -> None:
    """Leave an upload that the broker did not finish, with the name that the next file gets too."""
    path = index_queue_path(config.broker_name)
    with open_tier_of(config) as parts:
        (*_, last) = parts.metadata.segments(path, SegmentType.INDEX)
        row = SegmentRecord(
            path=path, type=SegmentType.INDEX, base_offset=last.end_offset, create_timestamp=1
        )
        parts.metadata.put(row)
        with parts.provider.open(*row.key) as segment:
            segment.write(0, b"begun")


def test_readers_elsewhere_are_told_before_old_files_go(
    config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(config)  # publishes
    gone: list[bool] = []
    delete = PosixFileSegment.delete

    def checked(segment: PosixFileSegment) -> None:
        published = published_catalogue(config, worker_provider(config))
        assert published is not None
        place = segment.queue_path, segment.type, segment.base
        gone.append(any(row.key == place for row in published.segments()))
        delete(segment)

    monkeypatch.setattr(PosixFileSegment, "delete", checked)
    run(config)
    assert gone
    assert not any(gone)
    assert report_of(config).findings == ()


def test_an_upload_that_was_cut_short_takes_no_new_file_with_it(config: StoreConfig) -> None:
    cut_short(config)
    count = run(config).counts["files"]
    assert len(index_files(config)) == count
    assert_found(config, LOADED)
    assert report_of(config).findings == ()


def test_a_load_takes_its_name(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    WrittenTier(config=config).add("other", 7, 40, seal=True)
    cut_short(config)
    load(config)
    assert_found(config, LOADED)
    assert report_of(config).findings == ()


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


def test_an_index_that_was_made_anew_lacks_nothing_that_was_dropped_before(
    config: StoreConfig,
) -> None:
    with open_tier_of(config) as parts:
        assert parts.index.expire(START_MS + HOUR_MS)
    assert kinds(verified(config)) == {"keys-expired"}
    run(config)
    assert verified(config).findings == ()
    with TieredReader.open(config) as reader:
        covered = reader.indexed_times()
        assert covered is not None
        assert covered.begin is None
    with open_tier_of(config) as parts:
        path = index_queue_path(config.broker_name)
        row = parts.metadata.segments(path, SegmentType.INDEX)[1]
        parts.metadata.delete_segment(*row.key)
        parts.provider.open(*row.key).delete()
    assert "key-missing" in kinds(verified(config))


def test_keys_that_a_reindex_could_not_read_are_not_taken_for_expired(config: StoreConfig) -> None:
    """Those of the oldest message, which was brought back."""
    with open_tier_of(config) as parts:
        segment = Path(parts.files.get(OTHER).log.segments[0].segment.path)
    with flipped(segment, 4):
        assert run(config).exit_code is JobExit.DAMAGE
    assert kinds(verified(config)) == {"key-missing"}


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
        assert plans == []  # refused before a message is read
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


@pytest.mark.parametrize("lost", [DeleteQueue("other", 7), DeleteTopic("other")])
def test_what_the_catalogue_lost_takes_no_keys_with_it(config: StoreConfig, lost: Change) -> None:
    before = index_files(config)
    with open_tier_of(config) as parts:
        parts.metadata.apply([lost])
    for dry_run in (True, False):
        with pytest.raises(MetadataError, match="of .*other"):
            run(config, dry_run=dry_run)
    assert index_files(config) == before


def test_files_that_an_older_catalogue_does_not_know_stay(tmp_path: Path) -> None:
    config = copy_of_golden(tmp_path / "java")
    with JsonMetadataStore.open(config.catalogue_path) as metadata:
        rows = metadata.segments(index_queue_path(config.broker_name), SegmentType.INDEX)
        metadata.apply([DeleteSegment(*row.key) for row in rows])
    before = files(config)
    with pytest.raises(MetadataError, match="rebuild"):
        run(config)
    assert files(config) == before


def test_another_number_of_slots_is_refused(config: StoreConfig) -> None:
    with pytest.raises(InvalidConfigError, match="index_slot_count"):
        run(replace(config, index_slot_count=config.index_slot_count + 1))


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_topic_that_the_catalogue_has_lost_is_named(config: StoreConfig, dry_run: bool) -> None:
    before = index_files(config)
    with open_tier_of(config) as parts:
        parts.metadata.delete_topic("other")
    with pytest.raises(MetadataError, match="it has queues of other, and not the topic"):
        run(config, dry_run=dry_run)
    assert index_files(config) == before


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


@pytest.mark.parametrize("type", [SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE])
@pytest.mark.parametrize("share", [0, 0.5], ids=["all", "half"])
def test_the_lost_end_of_a_queue_is_told_and_its_keys_are_not_taken_for_indexed(
    config: StoreConfig, type: SegmentType, share: float
) -> None:
    with open_tier_of(config) as parts:
        file = parts.files.get(OTHER)
        chain = file.log if type is SegmentType.COMMIT_LOG else file.queue
        (segment,) = (Path(each.segment.path) for each in chain.segments)
    whole = segment.read_bytes()
    segment.write_bytes(whole[: int(len(whole) * share)])
    report = run(config)
    segment.write_bytes(whole)  # it is brought back
    with TieredReader.open(config) as reader:
        answer = reader.query_message(OTHER.topic, "order-39")
        assert answer.messages or not answer.complete
    assert report.exit_code is JobExit.DAMAGE
    (finding,) = report.findings
    assert (finding.kind, finding.where) == ("not-indexed", "other/7")
    assert run(config).exit_code is JobExit.DONE
    with TieredReader.open(config) as reader:
        assert reader.query_message(OTHER.topic, "order-39").messages


@pytest.mark.parametrize("share", [0.5, 1], ids=["half a log", "a log"])
def test_a_queue_without_any_units_is_left_out_and_the_others_are_indexed(
    config: StoreConfig, share: float
) -> None:
    with open_tier_of(config) as parts:
        file = parts.files.get(OTHER)
        (units,) = file.queue.segments
        (log,) = (Path(each.segment.path) for each in file.log.segments)
        parts.metadata.delete_segment(*units.record.key)
    place = Path(units.segment.path)
    whole = place.read_bytes(), log.read_bytes()
    place.unlink()
    log.write_bytes(whole[1][: int(len(whole[1]) * share)])
    report = run(config)
    assert [(each.kind, each.where) for each in report.findings] == (
        [("not-indexed", "other/7")] if share < 1 else []  # it may never have had any units
    )
    with TieredReader.open(config) as reader:
        assert reader.query_message(NEW.topic, "u-orders-1-11").messages
    place.write_bytes(whole[0])  # it is brought back
    log.write_bytes(whole[1])
    with owned_tier(config, threads=1) as tier:
        tier.metadata.put(units.record)
    with TieredReader.open(config) as reader:
        answer = reader.query_message(OTHER.topic, "order-39")
        assert answer.messages or not answer.complete
    assert run(config).exit_code is JobExit.DONE
    with TieredReader.open(config) as reader:
        assert reader.query_message(OTHER.topic, "order-39").messages


def test_what_a_killed_run_could_not_read_is_read_again(config: StoreConfig) -> None:
    """Its segment was brought back meanwhile."""
    job = ReindexKeys(config=config)
    with open_tier_of(config) as parts:
        file = parts.files.get(NEW)
        segment = Path(file.log.segments[0].segment.path)
        place = int(file.units(10, 1).log_offsets[0])
    with flipped(segment, place + 4):
        for item in job.plan().items:
            list(job.work(item))
    report = run(config)
    assert (report.exit_code, report.findings) == (JobExit.DONE, ())
    assert_found(config, LOADED, samples=100)


def test_a_file_that_a_killed_run_made_of_what_it_could_read_is_made_again(
    config: StoreConfig,
) -> None:
    """The files after it would go on at another key."""
    with open_tier_of(config) as parts:
        file = parts.files.get(NEW)
        segment = Path(file.log.segments[0].segment.path)
        place = int(file.units(10, 1).log_offsets[0])
    job: Any = ReindexKeys(config=config)
    with flipped(segment, place + 4), LocalEngine(threads=1) as engine:
        for _ in range(2):
            plan = job.plan()
            results = list(engine.results(job.work, plan, on_progress=lambda _: None))
            if isinstance(job, ReindexKeys):
                job = job.finish(plan, RowStream(iter(results), item_count=len(plan.items)))
    report = run(config)
    assert (report.exit_code, report.findings) == (JobExit.DONE, ())
    assert verified(config).findings == ()


def test_the_steps_of_a_job_are_run_one_after_the_other(config: StoreConfig) -> None:
    told: list[int] = []
    with LocalEngine(threads=1) as engine:
        report = run_job(
            ReindexKeys(config=config),
            engine,
            clock=CLOCK,
            on_plan=lambda plan: told.append(len(plan.items)),
        )
    assert told == [3]  # the slices; the second step is not announced
    assert "files" in report.counts


def test_a_second_reindex_at_once_is_refused_and_the_first_is_right(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    load(config)
    refused: list[str] = []

    def second(_: object) -> None:
        with pytest.raises(CatalogueLockedError) as error:
            run(config)
        refused.append(str(error.value))

    assert run(config, on_plan=second).state is JobState.DONE
    (line,) = refused
    assert "another process has it open" in line
    assert "\n" not in line
    assert_found(config, LOADED)
    assert report_of(config).findings == ()


def test_a_killed_reindex_is_gone_on_with(tmp_path: Path) -> None:
    def tier(name: str) -> Path:
        folder = tmp_path / name
        WrittenTier(config=config_in(folder)).add(*OLD, 30, seal=True)
        load(config_in(folder))
        return folder

    with dying("reindex") as process:
        count = process.count(tier("whole"))
        lives = {step: tier(str(step)) for step in (count // 2, count - 3)}
        for step, folder in lives.items():
            assert process.run(step, folder) is None
            assert_found(config_in(folder), LOADED)
            reindexed(config_in(folder))
            assert_found(config_in(folder), LOADED)
            assert report_of(config_in(folder)).findings == ()


@dataclass(frozen=True, slots=True)
class Stored:
    key: QueueKey
    queue_offset: int
    time: int
    record: bytes


MESSAGE = st.tuples(st.integers(0, 4), st.integers(0, 5))  # seconds since the last one, keys
QUEUES = st.lists(st.lists(MESSAGE, max_size=12), min_size=1, max_size=3)


def stored_messages(queues: list[list[tuple[int, int]]]) -> list[Stored]:
    found = []
    for number, messages in enumerate(queues):
        key, time = QueueKey(f"t{number % 2}", number), STORE_TIMESTAMP
        for offset, (seconds, count) in enumerate(messages):
            time += 500 * seconds
            keys = " ".join(f"{number}-{offset}-{each}" for each in range(count))
            record = a_record(
                offset,
                topic=key.topic,
                queue_id=key.queue_id,
                store_timestamp=time,
                properties={"KEYS": keys} if count else {},
            )
            found.append(Stored(key, offset, time, record))
    return found


def one_run(message: Stored, log_offset: int) -> MessageRun:
    run = run_of(message.queue_offset, [message.record], [0])
    return replace(run, log_offsets=np.array([log_offset]))


def write_tier(config: StoreConfig, messages: list[Stored]) -> dict[tuple[QueueKey, int], int]:
    """Write the messages without an index; return where each of them is."""
    places = {}
    without = replace(config, index_enabled=False)
    parts = open_tier(without, runtime=Runtime.inline(now_ms=STORE_TIMESTAMP))
    try:
        parts.load()
        for message in messages:
            file = parts.files.create(*message.key)
            file.start_at(0)
            while not (appended := file.append(one_run(message, 0))).count:
                assert file.commit()
            places[message.key, message.queue_offset] = int(appended.log_offsets[0])
            assert file.commit()
    finally:
        parts.close()
    return places


def index_itself(
    config: StoreConfig,
    messages: list[Stored],
    places: dict[tuple[QueueKey, int], int],
    at: Path,
    begins: list[int],
) -> list[bytes]:
    """What the index uploads when it takes the messages one by one as they are stored.

    Its files begin at `begins`. If several begin in the same millisecond, a reindex knows them all
    and moves the later ones later; the index does not, and moves them earlier.
    """
    runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
    clock = runtime.clock
    assert isinstance(clock, ManualClock)
    provider = MemoryProvider(runtime)
    catalogue = FaultyCatalogue(Tables(), Faults())
    ids = {}
    for message in messages:
        ids[message.key.topic] = catalogue.add_topic(message.key.topic).topic_id
    index = IndexStore(
        replace(config, store_path=str(at), index_rolling_hours=1_000, expiry_enabled=False),
        provider=provider,
        metadata=catalogue,
        runtime=runtime,
    )
    index.load()
    wanted = iter(begins)
    index._writer._free_begin = lambda latest: next(wanted)  # type: ignore[method-assign]
    for message in sorted(
        messages, key=lambda each: (each.time, ids[each.key.topic], each.key.queue_id)
    ):
        clock.advance(message.time - clock.now_ms())
        offset = places[message.key, message.queue_offset]
        committed = CommittedRun(
            run=one_run(message, offset), log_offsets=np.array([offset], np.int64)
        )
        topic, queue_id = message.key
        index.put(topic, ids[topic], queue_id, committed)
        index.step()
    index.seal()
    path = index_queue_path(config.broker_name)
    rows = catalogue.segments(path, SegmentType.INDEX)
    found = [provider.open(path, row.type, row.base_offset).read(0, row.size) for row in rows]
    index.shutdown()
    assert list(wanted) == []
    return found


@given(queues=QUEUES, items=st.sampled_from([3, 9, 40]))
@settings(max_examples=12)
def test_files_are_byte_for_byte_those_of_the_index_itself(
    tmp_path_factory: pytest.TempPathFactory, queues: list[list[tuple[int, int]]], items: int
) -> None:
    place = tmp_path_factory.mktemp("tier")
    config = posix_config(place, index_slot_count=17, index_item_count=items)
    messages = stored_messages(queues)
    if not messages:
        return
    places = write_tier(config, messages)
    assert run(config).state is JobState.DONE
    made = index_files(config)
    begins = [int.from_bytes(data[4:12], "big") for data in made]
    assert made == index_itself(config, messages, places, place / "index", begins)


@given(
    times=st.lists(st.integers(1_000, 1_020), max_size=12).map(sorted),
    used=st.sets(st.integers(990, 1_020)),
)
def test_files_begin_in_order_alone_and_never_after_their_first_message(
    times: list[int], used: set[int]
) -> None:
    begins = begin_timestamps(times, used)
    assert begins == sorted(set(begins))
    assert used.isdisjoint(begins)
    assert all(begin <= first for begin, first in zip(begins, times, strict=True))


RUNTIME = Runtime.inline()
Entry = tuple[int, int, int, int, int, int]
"""Time, topic id, queue id, log offset, place within the message, hash."""


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return PosixProvider(tmp_path, "c", RUNTIME).scratch("b")


def small_steps(dice: random.Random, patch: pytest.MonkeyPatch) -> None:
    """Make samples, blocks and looks back so short that few entries need many of them."""
    patch.setattr(key_runs, "SAMPLE_ENTRIES", 4)
    patch.setattr(key_runs, "_BACK_ENTRIES", dice.choice([1, 2, 64]))
    patch.setattr(key_runs, "_OPEN_MAX", dice.choice([1, 2, 256]))
    block = dice.choice([1, 3, 7])
    patch.setattr(key_runs, "_BLOCK_MIN", block)
    patch.setattr(key_runs, "_BLOCK_MAX", block)
    patch.setattr(key_runs, "_GIVEN_ENTRIES", 5)


def put_runs(scratch: Scratch, dice: random.Random) -> list[Entry]:
    """Put runs of a few queues, with many equal times; return all entries in order."""
    entries: list[Entry] = []
    span = dice.choice([1, 3, 50])
    for queue_id in range(dice.randint(1, 4)):
        offset = 0
        for part in range(dice.randint(1, 3)):
            writer = RunWriter(
                scratch,
                f"x/q{queue_id}-{part}",
                topic_id=queue_id % 2,
                queue_id=queue_id,
                first_offset=part,
                entries_max=dice.choice([5, 1000]),
            )
            for _ in range(dice.randint(0, 30)):
                time, count = dice.randint(0, span), dice.choice([0, 1, 1, 2, 5, 14])
                hashes = [dice.getrandbits(63) for _ in range(count)]
                writer.add(columns_of(hashes, queue_id, offset, time))
                for place, each in enumerate(hashes):
                    entries.append((time, queue_id % 2, queue_id, offset, place, each))
                offset += 100
            writer.finish()
    return sorted(entries, key=lambda entry: entry[:5])


def columns_of(hashes: list[int], queue_id: int, offset: int, time: int) -> IndexColumns:
    count = len(hashes)
    return IndexColumns(
        key_hashes=np.array(hashes, np.uint64),
        topic_ids=queue_id % 2,
        queue_ids=queue_id,
        log_offsets=np.full(count, offset, np.int64),
        message_bytes=np.full(count, 100, np.int64),
        store_timestamps=np.full(count, time, np.int64),
    )


def files_of(entries: list[Entry], items_max: int) -> list[list[Entry]]:
    """The entries of each file: a message stays in one file unless no file has room for it."""
    ends = [
        at + 1
        for at in range(len(entries))
        if at + 1 == len(entries) or entries[at][:4] != entries[at + 1][:4]
    ]
    files, start = [], 0
    while start < len(entries):
        fit = [end for end in ends if start < end <= start + items_max]
        end = fit[-1] if fit else min(start + items_max, len(entries))
        files.append(entries[start:end])
        start = end
    return files


def found_runs(scratch: Scratch) -> list[KeyRun]:
    return in_order([run for runs in staged_runs(scratch, "x").values() for run in runs])


def entries_of(scratch: Scratch, plan: key_runs.FilePlan) -> Iterator[tuple[int, ...]]:
    for each in merged(scratch, plan.parts, RUNTIME, entries_max=8):
        topics, queues = each.topic_ids, each.queue_ids
        assert not isinstance(topics, int)
        assert not isinstance(queues, int)
        columns = (each.store_timestamps, topics, queues, each.log_offsets, each.key_hashes)
        yield from zip(*(column.tolist() for column in columns), strict=True)


def check(scratch: Scratch, seed: int, patch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    small_steps(dice, patch)
    entries = put_runs(scratch, dice)
    items_max = dice.choice([1, 4, 10, 37])
    plans = list(file_plans(scratch, found_runs(scratch), items_max=items_max))
    files = files_of(entries, items_max)
    assert [plan.count for plan in plans] == [len(file) for file in files]
    for plan, file in zip(plans, files, strict=True):
        assert plan.first_time == file[0][0]
        wanted = [(*entry[:4], entry[5]) for entry in file]
        assert list(entries_of(scratch, plan)) == wanted
    scratch.delete([each.name for each in scratch.listed()])


def test_files_are_cut_and_merged_as_a_plain_sort_would(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(8):
        check(scratch, seed, monkeypatch)


@pytest.mark.torture
def test_many_more(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3_000):
        check(scratch, random.randrange(2**32), monkeypatch)


def test_runs_of_an_origin_that_was_not_finished_do_not_count(scratch: Scratch) -> None:
    for stem, is_finished in (("x/whole", True), ("x/cut", False)):
        writer = RunWriter(scratch, stem, topic_id=0, queue_id=0, first_offset=0, entries_max=2)
        for offset in range(5):
            writer.add(columns_of([1, 2], 0, offset, 0))
        if is_finished:
            writer.finish()
    assert list(staged_runs(scratch, "x")) == ["x/whole"]


def test_what_is_no_run_is_told(scratch: Scratch) -> None:
    scratch.put("x/y.0", [b"?" * 100])
    with pytest.raises(SegmentCorruptError, match=r"x/y\.0: .* this is no run of keys"):
        staged_runs(scratch, "x")
