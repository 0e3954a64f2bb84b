"""Migrations beside a broker, and migrations that fail or die at any step: the next run goes on."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.every_step import every_step
from tests.flat.store_kit import content
from tests.jobs import faulty_tiers, written_tier
from tests.jobs.dying import ROOT, dying
from tests.jobs.growing_tier import Broker, broker_on, everything, tier_at
from tests.jobs.job_kit import (
    copy_of_golden,
    files,
    flipped,
    golden_config,
    kinds,
    moved,
    picture,
    posix,
    verified,
)
from tests.jobs.load_kit import recovered
from tests.jobs.written_tier import START_MS, WrittenTier, posix_config
from tieredstore.access.reader import TieredReader
from tieredstore.access.wiring import Tier, open_tier
from tieredstore.driver import durable
from tieredstore.driver.durable import FileLock
from tieredstore.driver.metadata import DeleteQueue, DeleteSegment
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import InlinePool, ManualClock, Runtime
from tieredstore.jobs import migrate as migrate_job
from tieredstore.jobs import migrate_plan
from tieredstore.jobs.job import (
    ItemResult,
    JobExit,
    JobReport,
    JobState,
    LocalEngine,
    RowStream,
    run_item,
)
from tieredstore.jobs.migrate import MigrateJob, migrate
from tieredstore.jobs.migrate_copy import (
    CopyItem,
    CopyRow,
    CopyState,
    MigrationJournal,
    journal_path,
    read_journal,
)
from tieredstore.jobs.migrate_plan import SourceTier
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    FencedError,
    InvalidConfigError,
    MetadataError,
    SegmentCorruptError,
    TieredStoreError,
)
from tieredstore.model.findings import Finding
from tieredstore.model.values import QueueKey, SegmentType
from tieredstore.providers.posix import PosixFileSegment, PosixProvider
from tieredstore.roundlog import log as broker_log
from tieredstore.testing.disk import ForgetfulDisk
from tieredstore.testing.faults import Fault, Faults, ObjectFaults, SimulatedCrash
from tieredstore.testing.samples import TOPIC


@pytest.fixture
def posix_faults() -> Iterator[None]:
    faulty_tiers.POSIX_FAULTS.forgive()
    yield
    faulty_tiers.POSIX_FAULTS.forgive()


def whole(target: StoreConfig) -> None:
    """Check that the target has all of the golden tier, and a catalogue that names it."""
    assert files(target) == files(golden_config())
    with TieredReader(golden_config()) as old, TieredReader(target) as new:
        assert new.segments() == old.segments()


def test_killed_again_and_again_it_comes_to_its_end(tmp_path: Path) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path / "new")
    before = picture(tmp_path / "java")
    dice = random.Random(7)
    with dying("migrate") as process:
        for _ in range(30):
            left = process.run(dice.randrange(10, 60), tmp_path / "java", tmp_path / "new")
            after = files(target)
            for name, data in after.items():  # whole, or the beginning of a growing one
                if not name.endswith(".tmp"):
                    assert files(golden_config())[name].startswith(data)
            if left is not None:
                break
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done before"
    whole(target)
    after_all = picture(tmp_path / "java")
    assert {name: after_all[name] for name in before} == before


@pytest.mark.parametrize("is_made_again", [True, False])
def test_what_a_killed_run_copied_of_a_topic_that_is_gone_holds_no_later_run_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    source, target = posix_config(tmp_path / "old"), posix_config(tmp_path / "new")
    tier = WrittenTier(config=source)
    tier.add("t", 0, 200)
    tier.add("u", 0, 5)
    job = MigrateJob(source=source, target=target)
    plan = job.plan()

    def killed() -> Iterator[ItemResult[CopyRow]]:
        done = [run_item(job.work, item, at) for at, item in enumerate(plan.items)]
        if all(each.rows for each in done):  # the copy is there, but no row arrives
            raise KeyboardInterrupt
        yield from done

    with pytest.raises(KeyboardInterrupt):
        job.finish(plan, RowStream(killed(), item_count=len(plan.items)))
    tier.delete("t")
    monkeypatch.setattr(written_tier, "START_MS", written_tier.START_MS + 5_000)
    if is_made_again:
        tier.add("t", 0, 300, body_bytes=60)
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done"
    assert files(target) == files(source)


def test_killed_at_any_step_of_the_cut_over_it_is_whole_or_not_there(tmp_path: Path) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path / "new")
    moved(source, target)

    def check(left: int | None, step: int) -> bool:
        with JsonMetadataStore.open(target.catalogue_path, read_only=True) as metadata:
            assert len(metadata.queues()) in (0, 9)
            assert len(metadata.segments()) in (0, 57)
        return left is None

    with dying("migrate") as process:
        assert every_step(lambda n: process.run(n, tmp_path / "java", tmp_path / "new"), check) > 4
    whole(target)
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done before"


def moved_inline(source: StoreConfig, target: StoreConfig) -> JobReport:
    """A migration with its cut-over, in this thread.

    What an earlier one knew and held is forgotten, as in a new process.
    """
    durable._durable_directories.clear()
    durable._held.difference_update(
        [held for held in durable._held if held.startswith(f"{target.store_path}/")]
    )
    with LocalEngine(pool=InlinePool(), threads=1) as engine:
        return migrate(source, target, engine=engine, cut_over=True)


def test_what_goes_while_the_source_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = posix_config(tmp_path / "old"), posix_config(tmp_path / "new")
    tier = WrittenTier(config=source)
    for topic in ("gone", "kept"):
        tier.add(topic, 0, 20)
    goes = iter(["gone"])

    def then_it_goes(*arguments: Any, **named: Any) -> Tier:
        parts = open_tier(*arguments, **named)
        for topic in goes:
            tier.delete(topic)
        return parts

    monkeypatch.setattr(migrate_plan, "open_tier", then_it_goes)
    assert not moved(source, target).findings
    assert files(target) == files(source)


def refuse(job: MigrateJob, item: object) -> NoReturn:
    raise BackendUnavailableError("", "copy", "it is away")


@pytest.mark.parametrize("count", [3, 40], ids=["shorter", "longer"])
@pytest.mark.parametrize("is_cut_off", [False, True], ids=["", "after a cut-off run"])
def test_a_topic_that_was_made_anew_takes_the_place_of_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, is_cut_off: bool
) -> None:
    source, target = posix_config(tmp_path / "old"), posix_config(tmp_path / "new")
    tier = WrittenTier(config=source)
    tier.add("t", 0, 20)
    moved(source, target)
    tier.delete("t")
    monkeypatch.setattr(written_tier, "START_MS", written_tier.START_MS + 5_000)
    tier.add("t", 0, count, body_bytes=60)
    if is_cut_off:
        with monkeypatch.context() as patch:
            patch.setattr(MigrateJob, "work", refuse)
            assert moved(source, target).state is not JobState.DONE
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done"
    assert files(target) == files(source)


@pytest.mark.parametrize("ran_before", [False, True], ids=["first", "later"])
def test_a_run_that_another_one_cuts_over_under_leaves_that_tier_alone(
    tmp_path: Path, ran_before: bool
) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(30)
    if ran_before:
        moved(source, target)
    with broker_on(source) as broker:  # so that the run would delete a copy
        assert isinstance(broker.runtime.clock, ManualClock)
        broker.runtime.clock.advance(1_000)
        broker.files.delete_topics([TOPIC])
        broker.put(10)

    def cut_over(_plan: object) -> None:
        with broker_on(source) as broker:
            broker.put(5)
        assert moved(source, target, cut_over=True).facts["cut_over"] == "done"
        with broker_on(target) as broker:
            broker.put(3)

    with pytest.raises(BackendRefusedError, match="another migration ran there meanwhile"):
        moved(source, target, on_plan=cut_over)
    assert [*everything(target)[QueueKey(TOPIC, 0)]] == [*range(18)]
    assert moved(source, target).facts["cut_over"] == "done before"


@pytest.mark.parametrize("adopt", [False, True])
def test_a_broker_that_ran_on_the_target_during_the_copy_keeps_its_queues_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adopt: bool
) -> None:
    """It was started before there was anything to find, and has ended before the cut-over."""
    source = tier_at(tmp_path / "old", broker="broker-b" if adopt else "broker-a")
    target = tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(3)
    if adopt:
        with broker_on(target) as broker:
            broker.put(2, topic="Mine")
    looked = migrate_job._left_behind

    def meanwhile(job: MigrateJob) -> list[Finding]:
        with broker_on(target) as broker:
            broker.put(2, topic="Mine")
        if adopt:  # of this queue it has uploaded nothing yet
            Path(target.store_path, "consumequeue", TOPIC, "0").mkdir(parents=True)
        return looked(job)

    monkeypatch.setattr(migrate_job, "_left_behind", meanwhile)
    text = "both brokers have: " if adopt else "the target's catalogue names a tier already"
    with pytest.raises(InvalidConfigError, match=text):
        moved(source, target, adopt=adopt, cut_over=True)
    assert everything(target).keys() == {QueueKey("Mine", 0)}


def test_no_cut_over_deletes_what_a_broker_wrote_during_the_copy_under_the_name_of_a_gone_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = posix_config(tmp_path / "old"), posix_config(tmp_path / "new")
    tier, mine = WrittenTier(config=source), WrittenTier(config=target)
    tier.add("t", 0, 20)
    tier.add("u", 0, 5)
    with mine.open():
        pass  # a broker was started there, so that another one may be
    moved(source, target)
    tier.delete("t")
    with monkeypatch.context() as patch:
        patch.setattr(migrate_job, "_publish", is_refused)
        with pytest.raises(BackendRefusedError):  # it has deleted the copy by then
            moved(source, target, cut_over=True)
    looked = migrate_job._left_behind

    def meanwhile(job: MigrateJob) -> list[Finding]:
        mine.add("t", 0, 7, body_bytes=33)
        return looked(job)

    monkeypatch.setattr(migrate_job, "_left_behind", meanwhile)
    with pytest.raises(InvalidConfigError, match="the target's catalogue names a tier already"):
        moved(source, target, cut_over=True)
    with TieredReader(target) as reader:
        assert len(list(reader.messages("t", 0))) == 7


def is_refused(*_given: object, **_named: object) -> NoReturn:
    raise BackendRefusedError("target", "cut over", "not now")


def memory_config(place: Path) -> StoreConfig:
    """An empty tier in a bucket in memory, which lasts as long as the process."""
    url = f"memory://{place.name}-{id(place)}"
    return posix_config(place, provider="fsspec", path="", url=url)


def two_topics(place: Path) -> tuple[StoreConfig, StoreConfig, WrittenTier]:
    """A source with two topics, an empty target, and the tier of the source."""
    source, target = posix_config(place / "old"), posix_config(place / "new")
    tier = WrittenTier(config=source, start_ms=START_MS - 1)  # else its rows look recovered
    for topic in ("t", "u"):
        tier.add(topic, 0, 20)
    return source, target, tier


@pytest.mark.parametrize("topics", [(), ("t",)])
def test_a_topic_that_was_made_anew_and_has_no_message_yet_has_none_of_its_copy(
    tmp_path: Path, topics: tuple[str, ...]
) -> None:
    source, target, tier = two_topics(tmp_path)
    moved(source, target)
    tier.delete("t")
    with tier.open() as parts:
        parts.files.create("t", 0).start_at(0)
    assert moved(source, target, cut_over=True, topics=topics).facts["cut_over"] == "done"
    with TieredReader(target) as reader:
        assert list(reader.messages("t", 0)) == []
    assert kinds(verified(target)) == (set() if topics else {"no-index"})


def test_a_topic_that_only_an_earlier_run_moved_can_be_made_anew_in_the_target(
    tmp_path: Path,
) -> None:
    source, target, _ = two_topics(tmp_path)
    moved(source, target)
    assert moved(source, target, cut_over=True, topics=("t",)).facts["cut_over"] == "done"
    WrittenTier(config=target).add("u", 0, 5, body_bytes=33)
    assert kinds(verified(target)) == {"keys-not-uploaded"}  # those of the moved topic


@pytest.mark.parametrize("what", ["not deleted", "cut short"])
def test_a_copy_that_a_cut_over_gave_up_is_replaced_where_its_topic_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    source, target, tier = two_topics(tmp_path)
    moved(source, target)
    if what == "cut short":
        for copy in Path(target.path).rglob("t/0/*/*"):
            os.truncate(copy, 20)
        report = moved(source, target, cut_over=True)
        assert {each.kind for each in report.findings} == {"lost-copy"}
        tier.delete("t")
    else:
        tier.delete("t")
        with monkeypatch.context() as patch:
            patch.setattr(PosixFileSegment, "delete", is_away)
            with pytest.raises(BackendUnavailableError):
                moved(source, target, cut_over=True)
    monkeypatch.setattr(written_tier, "START_MS", written_tier.START_MS + 5_000)
    tier.add("t", 0, 30, body_bytes=60)
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done"
    assert files(target) == files(source)


def is_away(segment: PosixFileSegment) -> NoReturn:
    raise BackendUnavailableError(segment.path, "delete", "it is away")


@pytest.mark.parametrize("count", [0, 3])
def test_a_topic_that_is_made_anew_while_it_is_copied_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    source, target, tier = two_topics(tmp_path)
    work = MigrateJob.work

    def as_it_goes(job: MigrateJob, item: CopyItem) -> Iterable[CopyRow]:
        for topic in goes:
            tier.delete(topic)
            monkeypatch.setattr(written_tier, "START_MS", written_tier.START_MS + 5_000)
            with tier.open() as parts:
                parts.files.create(topic, 0).start_at(0)
            tier.add(topic, 0, count)
        return work(job, item)

    goes = iter(["t"])
    monkeypatch.setattr(MigrateJob, "work", as_it_goes)
    report = moved(source, target)
    assert (report.exit_code, report.findings) == (JobExit.DONE, ())
    assert report.counts["expired"] > 0
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done"
    assert files(target) == files(source)


def a_small_tier(place: Path) -> StoreConfig:
    source = tier_at(place)
    with broker_on(source) as broker:
        broker.put(40)
        broker.put(3, queue_id=1)
    return source


def comes_to_its_end(source: StoreConfig, target: StoreConfig) -> None:
    """Run it again, and check the target."""
    assert moved_inline(source, target).facts["cut_over"] in ("done", "done before")
    assert everything(target) == everything(source)
    # The tags codes of these units are plain numbers, and the broker has yet to publish the tier.
    assert kinds(verified(target)) <= {"tags-code", "published-missing"}


@pytest.mark.parametrize("has_power", [True, False])
@pytest.mark.parametrize("apart", [7, pytest.param(1, marks=pytest.mark.torture)])
def test_stopped_at_any_step_of_the_disk_it_goes_on_from_what_is_left(
    tmp_path: Path, has_power: bool, apart: int
) -> None:
    """After a kill the target has what was written, after a power cut what was synced."""
    source = a_small_tier(tmp_path / "old")

    def stopped(name: str, stop_at: int) -> ForgetfulDisk:
        (tmp_path / name).mkdir()
        with ForgetfulDisk(tmp_path / name, stop_at=stop_at) as disk:
            moved_inline(source, tier_at(tmp_path / name))
        return disk

    def check(disk: ForgetfulDisk, step: int) -> None:
        assert disk.died
        left = tmp_path / f"left-{step}"
        # The journal and the catalogue name the first place, so what is left goes back there.
        (disk.written if has_power else disk.synced)(left)
        shutil.rmtree(disk.folder)
        left.rename(disk.folder)
        target = tier_at(disk.folder)
        comes_to_its_end(source, target)
        with broker_on(target) as broker:
            assert content(broker.put(5)).keys() == set(range(45))
        shutil.rmtree(disk.folder)

    steps = range(stopped("quiet", 0).steps)
    assert len(steps) > 40
    every_step(
        lambda step: stopped(f"at-{step}", step + 1),
        check,
        steps=steps[(3 if has_power else 0) % apart :: apart],
    )


def test_no_power_cut_brings_the_journal_of_what_was_cut_over_back(tmp_path: Path) -> None:
    source = a_small_tier(tmp_path / "old")
    (tmp_path / "new").mkdir()
    target = tier_at(tmp_path / "new")
    with ForgetfulDisk(tmp_path / "new") as disk:
        assert moved_inline(source, target).facts["cut_over"] == "done"
    left = disk.synced(tmp_path / "left")
    assert not (left / journal_path(target).relative_to(disk.folder)).exists()


FAULTS = [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.BEFORE, Fault.AFTER]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("apart", [11, pytest.param(1, marks=pytest.mark.torture)])
def test_stopped_at_any_request_to_a_bucket_it_goes_on(
    tmp_path: Path, fault: Fault, apart: int
) -> None:
    """It dies before or after a request's effect, or a request fails, or its reply is lost."""
    source = a_small_tier(tmp_path / "old")

    def stopped(step: int) -> Faults:
        name = f"{tmp_path.name}-{step}"
        target = faulty_tiers.in_struck_bucket(source, name, store_path=str(tmp_path / name))
        faults = Faults({step: fault})
        faulty_tiers.REQUEST_FAULTS[0] = faults
        with suppress(SimulatedCrash, TieredStoreError):
            moved_inline(source, target)
        faulty_tiers.REQUEST_FAULTS[0] = Faults()
        comes_to_its_end(source, target)
        objects = faulty_tiers.BUCKETS.pop(name)
        faults.crashed = False  # so that what the dead process held can be closed
        assert not objects.uploads
        return faults

    steps = range(stopped(-1).steps)
    assert len(steps) > 20
    every_step(
        stopped,
        lambda faults, step: faults.steps > step,
        steps=steps[FAULTS.index(fault) % apart :: apart],
    )


def test_the_cut_over_of_a_bucket_does_not_run_into_each_entry_of_the_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_log, "MEETINGS_MAX", 5)
    source = tier_at(tmp_path / "old")
    with broker_on(source) as broker:
        broker.put(150)
    target = faulty_tiers.in_struck_bucket(source, tmp_path.name, store_path=str(tmp_path / "new"))
    report = moved_inline(source, target)
    assert report.counts["copied"] > 10
    assert report.facts["cut_over"] == "done"
    assert everything(target) == everything(source)
    del faulty_tiers.BUCKETS[target.bucket]


def test_a_cut_over_that_only_deletes_copies_in_a_bucket_does_not_fence_itself(
    tmp_path: Path,
) -> None:
    source = tier_at(tmp_path / "old")
    target = faulty_tiers.in_struck_bucket(source, tmp_path.name, store_path=str(tmp_path / "new"))
    with broker_on(source) as broker:
        broker.put(100)
        moved(source, target)
        expire(source, broker)
    report = moved_inline(source, target)
    assert (report.facts["cut_over"], report.counts["copied"]) == ("done", 0)
    assert everything(target) == everything(source)
    del faulty_tiers.BUCKETS[target.bucket]


def test_a_run_that_another_writer_overtakes_just_before_its_cut_over_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = a_small_tier(tmp_path / "old")
    target = faulty_tiers.in_struck_bucket(source, tmp_path.name, store_path=str(tmp_path / "new"))
    looked = migrate_job._left_behind

    def overtaken(job: MigrateJob) -> list[Finding]:
        elsewhere = replace(target, store_path=str(tmp_path / "elsewhere"))
        WrittenTier(config=elsewhere).add("of-another", 0, 5)
        return looked(job)

    monkeypatch.setattr(migrate_job, "_left_behind", overtaken)
    with pytest.raises(FencedError):
        moved_inline(source, target)
    assert {key.topic for key in everything(target)} == {"of-another"}
    del faulty_tiers.BUCKETS[target.bucket]


def test_so_is_one_that_another_writer_overtakes_before_its_processes_have_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the other writer's epoch then, and it does not fence them."""
    source = a_small_tier(tmp_path / "old")
    target = faulty_tiers.in_struck_bucket(source, tmp_path.name, store_path=str(tmp_path / "new"))
    claimed, others = MigrateJob.claimed_target, ["of-another"]

    def overtaken(job: MigrateJob) -> SegmentProvider:
        found = claimed(job)
        while others:
            elsewhere = replace(target, store_path=str(tmp_path / "elsewhere"))
            WrittenTier(config=elsewhere).add(others.pop(), 0, 5)
        return found

    monkeypatch.setattr(MigrateJob, "claimed_target", overtaken)
    with pytest.raises(FencedError):
        moved_inline(source, target)
    assert {key.topic for key in everything(target)} == {"of-another"}
    del faulty_tiers.BUCKETS[target.bucket]


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.HALF])
@pytest.mark.usefixtures("posix_faults")
def test_after_faults_at_the_target_the_next_run_goes_on(tmp_path: Path, fault: Fault) -> None:
    target = replace(posix(tmp_path), provider="tests.jobs.faulty_tiers:FaultyPosix")
    for after in (3, 20, 40, 80, 81, 82, 120):
        faulty_tiers.POSIX_FAULTS.strike(fault, after=after)
    first = moved(golden_config(), target)
    faulty_tiers.POSIX_FAULTS.forgive()
    assert first.state in (JobState.INCOMPLETE, JobState.DONE)
    again = moved(golden_config(), target)
    assert again.state is JobState.DONE
    assert files(target) == files(golden_config())
    assert moved(golden_config(), target).counts["copied"] == 0


@pytest.mark.usefixtures("posix_faults")
def test_a_journal_that_cannot_be_synced_is_an_error_of_ours_and_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path)

    synced, journal = os.fdatasync, str(journal_path(target))

    def refuse(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == journal:
            raise OSError(errno.EIO, "Input/output error")
        synced(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(MetadataError, match="it cannot be written: Input/output error"):
            moved(source, target)
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done"


def test_a_journal_that_cannot_be_removed_does_not_make_a_cut_over_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path)
    unlink, journal = os.unlink, journal_path(target)

    def refuse(path: str | os.PathLike[str], **named: Any) -> None:
        if Path(path) == journal:
            raise OSError(errno.EIO, "Input/output error")
        unlink(path, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        assert moved(source, target, cut_over=True).facts["cut_over"] == "done"
    assert journal.exists()
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done before"
    assert not journal.exists()  # a leftover would have a later migration to this place refused


def test_a_target_that_takes_nothing_is_told_at_once(tmp_path: Path) -> None:
    target = replace(posix(tmp_path), provider="tests.jobs.faulty_tiers:FaultyPosix")
    faulty_tiers.POSIX_FAULTS.always = Fault.BEFORE
    with pytest.raises(BackendUnavailableError, match="fails before it has an effect"):
        moved(copy_of_golden(tmp_path / "java"), target, cut_over=True)
    assert not Path(target.catalogue_path).exists()
    assert not Path(target.path).exists()


def test_what_was_stored_wrong_is_noticed_and_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path)
    lying = replace(target, provider="tests.jobs.faulty_tiers:LyingPosix")
    place = ("broker-gold-a/GoldAa/0", SegmentType.COMMIT_LOG, 0)
    monkeypatch.setattr(faulty_tiers.LyingPosix, "lies_about", place)
    report = moved(source, lying, cut_over=True)
    assert report.exit_code is JobExit.DAMAGE
    assert "what was read back is not what was written" in report.failures[0].text
    assert (report.counts["copied"], report.facts["cut_over"]) == (56, "refused")
    monkeypatch.undo()
    assert moved(source, lying, cut_over=True).counts["copied"] == 1
    assert files(target) == files(golden_config())


def test_a_bucket_that_answers_badly_gets_everything_once(tmp_path: Path) -> None:
    source = tier_at(tmp_path / "old")
    bucket = tmp_path.name
    target = replace(
        source,
        provider="tests.jobs.faulty_tiers:FaultyObjects",
        bucket=bucket,
        path="",
        store_path=str(tmp_path / "new"),
    )
    back = tier_at(tmp_path / "back")
    faulty_tiers.OBJECT_FAULTS[bucket] = ObjectFaults(0.1, seed=11)
    for count in (30, 1, 80):
        with broker_on(source) as broker:
            broker.put(count)
            broker.put(count, queue_id=1)
        for _ in range(10):
            if moved(source, target).state is JobState.DONE:
                break
    assert sum(faulty_tiers.OBJECT_FAULTS[bucket].struck.values()) > 15
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done"
    assert moved(target, back, cut_over=True).facts["cut_over"] == "done"
    assert files(back) == files(source)
    assert everything(back) == everything(source)


def test_a_copy_that_is_gone_again_is_noticed_before_the_cut_over(tmp_path: Path) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path)
    moved(source, target)
    Path(target.path, min(Path(target.path).rglob("broker-gold-a/GoldAa/0/*/*"))).unlink()
    report = moved(source, target, cut_over=True)
    assert (report.facts["cut_over"], report.exit_code) == ("refused", 4)
    assert [each.kind for each in report.findings] == ["lost-copy"]
    report = moved(source, target, cut_over=True)
    assert (report.facts["cut_over"], report.counts["copied"]) == ("done", 1)
    assert files(target) == files(golden_config())


@pytest.mark.parametrize("left", [0, 100])
def test_the_copy_of_a_growing_segment_is_made_again_where_its_beginning_is_lost(
    tmp_path: Path, left: int
) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(10)
    moved(source, target)
    for copy in Path(target.path).rglob("*/*_*/*"):
        os.truncate(copy, left)
    with broker_on(source) as broker:
        broker.put(3)
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done"
    assert files(target) == files(source)


@pytest.mark.parametrize("state", ["whole", "cut off"])
@pytest.mark.parametrize("more", [0, 7, -7])
@pytest.mark.parametrize("target_of", [posix_config, memory_config])
def test_a_segment_of_a_disk_that_was_lost_and_recovered_twice_is_copied_anew(
    tmp_path: Path, target_of: Callable[[Path], StoreConfig], more: int, state: str
) -> None:
    """Recovered rows do not tell a segment from one that was uploaded anew under its name: both
    have the time of their first message."""
    source, target = posix_config(tmp_path / "old"), target_of(tmp_path / "new")
    recovered_with(source, b"old", 20)
    moved(source, target)
    if state == "cut off":  # while the bytes were sent: the journal knows only that it began
        known = read_journal(source, target)
        with MigrationJournal.open(source, target, planned_with=known) as journal:
            for key, copied in known.items():
                journal.add(key, replace(copied, size=0, crc=0))
    recovered_with(source, b"new", 20 + more)
    report = moved(source, target, cut_over=True)
    assert (report.facts["cut_over"], report.findings) == ("done", ())
    assert len(everything(target)[QueueKey("t", 0)]) == 20 + more
    assert everything(target) == everything(source)


def doubtful_items(job: MigrateJob) -> list[CopyItem]:
    items = [item for item in job.plan().items if item.is_doubtful]
    assert items
    return items


def test_a_task_that_runs_late_deletes_no_copy_that_is_right_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may run an item twice, or end a task late: another run may have cut over by then."""
    source, target = posix_config(tmp_path / "old"), posix_config(tmp_path / "new")
    recovered_with(source, b"old", 20)
    moved(source, target)
    recovered_with(source, b"new", 20)
    job = MigrateJob(source=source, target=target, cut_over=True)
    late = doubtful_items(job)
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done"
    monkeypatch.setattr(PosixFileSegment, "delete", is_away)
    rows = [row for item in late for row in job.work(item)]
    assert {row.state for row in rows} == {CopyState.COMPARED}


def test_a_doubtful_copy_is_not_deleted_where_the_targets_broker_has_a_queue_of_its_name(
    tmp_path: Path,
) -> None:
    source = posix_config(tmp_path / "old", broker_name="broker-b")
    target = posix_config(tmp_path / "new")
    WrittenTier(config=target).add("mine", 0, 1)
    recovered_with(source, b"old", 20)
    moved(source, target, adopt=True)
    recovered_with(source, b"new", 20)
    job = MigrateJob(source=source, target=target, adopt=True, cut_over=True)
    items = doubtful_items(job)
    for copied in Path(target.path).rglob("t/0/*/*"):
        copied.unlink()
    WrittenTier(config=target).add("t", 0, 40)
    for item in items:
        with pytest.raises(SegmentCorruptError):
            list(job.work(item))
    assert len(everything(target)[QueueKey("t", 0)]) == 40


def test_a_copy_that_goes_on_otherwise_behind_what_is_known_of_it_is_made_anew(
    tmp_path: Path,
) -> None:
    source, target = posix_config(tmp_path / "old"), posix_config(tmp_path / "new")
    recovered_with(source, b"all", 10)
    moved(source, target)
    known = read_journal(source, target)
    recovered_with(source, b"all", 10, then=b"old")
    moved(source, target)
    with MigrationJournal.open(
        source, target, planned_with=read_journal(source, target)
    ) as journal:
        for key, copied in known.items():  # as if it had been killed while it sent the rest
            journal.add(key, copied)
    recovered_with(source, b"all", 10, then=b"new")
    report = moved(source, target, cut_over=True)
    assert (report.facts["cut_over"], report.failures) == ("done", ())
    assert everything(target) == everything(source)


def test_a_recovered_segment_that_is_damaged_now_does_not_take_the_place_of_its_copy(
    tmp_path: Path,
) -> None:
    source, target = posix_config(tmp_path / "old"), posix_config(tmp_path / "new")
    recovered_with(source, b"all", 20)
    moved(source, target)
    before = files(target)
    log = min(Path(source.path).rglob("COMMIT_LOG/*"))
    with flipped(log, log.read_bytes().index(b"110 all")):
        report = moved(source, target, cut_over=True)
    assert report.exit_code is JobExit.DAMAGE
    assert files(target) == before
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done"


@pytest.mark.parametrize("then", ["recovered", "made anew"])
def test_rows_without_any_time_tell_nothing_either(tmp_path: Path, then: str) -> None:
    source, target = posix_config(tmp_path / "old"), posix_config(tmp_path / "new")
    recovered_with(source, b"old", 20, has_times=False)
    moved(source, target)
    assert {each.created_ms for each in read_journal(source, target).values()} == {0}
    recovered_with(source, b"new", 20, has_times=False)
    if then == "made anew":
        tier = WrittenTier(config=source, start_ms=START_MS - 1)
        tier.delete("t")
        tier.add("t", 0, 20, bodies=[b"%d new" % (number + 100) for number in range(20)])
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done"
    assert files(target) == files(source)


def recovered_with(
    source: StoreConfig, body: bytes, count: int, *, then: bytes = b"", has_times: bool = True
) -> None:
    """A tier with these messages alone, recovered after the loss of the broker's disk; if asked,
    with as many others behind them, and with a first message that cannot be read."""
    shutil.rmtree(source.path, ignore_errors=True)
    shutil.rmtree(source.store_path, ignore_errors=True)
    bodies = [b"%d %s" % (number + 100, body) for number in range(count)]
    bodies += [b"%d %s" % (number + 100, then) for number in range(count if then else 0)]
    WrittenTier(config=source).add("t", 0, len(bodies), bodies=bodies)
    if not has_times:
        log = min(Path(source.path).rglob("COMMIT_LOG/*"))
        log.write_bytes(bytes(8) + log.read_bytes()[8:])
        shutil.rmtree(Path(source.path, ".catalog"))  # which has them
    assert (recovered(source).problems == ()) is has_times


def test_what_is_read_again_counts_for_the_plan(tmp_path: Path) -> None:
    source, target = posix_config(tmp_path / "old"), posix_config(tmp_path / "new")
    recovered_with(source, b"all", 20)
    moved(source, target)
    WrittenTier(config=source).add("u", 0, 5)
    plan = MigrateJob(source=source, target=target, cut_over=True).plan()
    assert plan.items[0].row.path == "broker-a/t/0"
    assert plan.bytes_total == plan.byte_counts["tier"]
    sizes = [item.row.size for item in plan.items if item.row.path == "broker-a/t/0"]
    assert plan.byte_counts["to_read_again"] == sum(sizes)
    assert any(line.startswith("to read again: ") for line in plan.lines)


def test_a_recovered_tier_is_read_again_before_the_cut_over_alone(tmp_path: Path) -> None:
    source, target = posix_config(tmp_path / "old"), posix_config(tmp_path / "new")
    recovered_with(source, b"all", 20)
    assert moved(source, target).counts["copied"] == 2
    again = moved(source, target)
    assert (again.counts["copied"], again.counts["compared"]) == (0, 0)
    last = moved(source, target, cut_over=True)
    assert (last.counts["copied"], last.counts["compared"]) == (0, 2)
    assert last.facts["cut_over"] == "done"


def test_each_run_copies_only_what_has_come_since(tmp_path: Path) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(10)
        moved(source, target)
        broker.put(1)
        first = moved(source, target)
        assert first.counts["copied"] == 2
        assert first.byte_counts["copied"] == added(broker, 1)
        broker.put(90)
        broker.put(5, queue_id=1)
        moved(source, target)
        assert files(target) == files(source)
        assert moved(source, target).counts["copied"] == 0
    report = moved(source, target, cut_over=True)
    assert report.facts["cut_over"] == "done"
    assert files(target) == files(source)
    assert everything(target) == everything(source)
    assert len(everything(target)[QueueKey(TOPIC, 0)]) == 101


def test_the_broker_goes_on_in_the_target(tmp_path: Path) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(33)
    moved(source, target, cut_over=True)
    with broker_on(target) as broker:
        assert content(broker.put(40)).keys() == set(range(73))


def test_a_broker_that_holds_only_rocketmqs_own_lock_is_live_too(tmp_path: Path) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(3)
    lock = FileLock.acquire(Path(source.store_path, "lock"))
    assert lock is not None
    with lock, pytest.raises(BackendRefusedError, match="stop it first"):
        moved(source, target, cut_over=True)
    assert not Path(target.catalogue_path).exists()


def without_a_lock(source: StoreConfig, change: Callable[[StoreConfig], object]) -> None:
    """Change the source as Java does, which takes no lock. It also publishes no catalogue, so none
    keeps it from deleting."""
    copied = Path(source.store_path, "copy/metadata.json")
    lockless = replace(source, metadata_path=str(copied), publish_interval_ms=0)
    copied.parent.mkdir()
    copied.write_bytes(Path(source.catalogue_path).read_bytes())
    change(lockless)
    Path(source.catalogue_path).write_bytes(copied.read_bytes())


def test_a_broker_without_a_lock_is_noticed_by_what_it_writes(tmp_path: Path) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(3)

    def write_more(lockless: StoreConfig) -> None:
        with broker_on(lockless) as java:
            java.put(2)

    with pytest.raises(BackendRefusedError, match="a broker is still writing: stop it first"):
        moved(source, target, cut_over=True, on_plan=lambda _: without_a_lock(source, write_more))
    assert not Path(target.catalogue_path).exists()
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done"
    assert everything(target) == everything(source)


def test_a_broker_without_a_lock_that_makes_a_topic_anew_with_as_many_bytes_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = posix_config(tmp_path / "old"), posix_config(tmp_path / "new")
    tier = WrittenTier(config=source)
    tier.add("t", 0, 5)

    def make_anew(lockless: StoreConfig) -> None:
        java = WrittenTier(config=lockless, start_ms=tier.start_ms + 60_000)
        java.delete("t")
        monkeypatch.setattr(written_tier, "START_MS", java.start_ms)
        java.add("t", 0, 5)

    with pytest.raises(BackendRefusedError, match="a broker is still writing: stop it first"):
        moved(source, target, cut_over=True, on_plan=lambda _: without_a_lock(source, make_anew))
    assert not Path(target.catalogue_path).exists()
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done"
    assert everything(target) == everything(source)


def test_what_goes_between_its_copy_and_the_cut_over_is_not_in_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = posix_config(tmp_path / "old"), posix_config(tmp_path / "new")
    tier = WrittenTier(config=source)
    tier.add("t", 0, 20)
    tier.add("u", 0, 5)
    explain = migrate_job._Finish._explain_gone

    def then_it_goes(finish: migrate_job._Finish) -> None:
        without_a_lock(source, lambda lockless: WrittenTier(config=lockless).delete("t"))
        explain(finish)

    monkeypatch.setattr(migrate_job._Finish, "_explain_gone", then_it_goes)
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done"
    assert files(target) == files(source)
    WrittenTier(config=target).add("t", 0, 5, body_bytes=33)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_broker_that_writes_while_the_target_is_opened_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """In a bucket one may start after our claim; here the source is read as if it had grown."""
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(3)
    reads: list[int] = []

    def read(*given: Any, **named: Any) -> SourceTier:
        found = migrate_plan.read_source(*given, **named)
        reads.append(1)
        if len(reads) < {"before": 3, "after": 4}[when]:  # the plan, the cut-over, the last check
            return found
        (queue, *rest) = found.queues
        log = tuple(replace(row, size=row.size + 100) for row in queue.log)
        return replace(found, queues=(replace(queue, log=log), *rest))

    monkeypatch.setattr("tieredstore.jobs.migrate.read_source", read)
    if when == "before":
        with pytest.raises(BackendRefusedError, match="a broker is still writing: stop it first"):
            moved(source, target, cut_over=True)
        assert not Path(target.catalogue_path).exists()
        monkeypatch.undo()
        assert moved(source, target, cut_over=True).exit_code is JobExit.DONE
        return
    report = moved(source, target, cut_over=True)
    assert [each.kind for each in report.findings] == ["written-since"]
    assert (report.facts["cut_over"], report.exit_code) == ("done", JobExit.DAMAGE)


@pytest.mark.parametrize("adopt", [False, True])
def test_what_a_broker_wrote_after_a_killed_cut_over_is_told_by_every_later_run(
    tmp_path: Path, adopt: bool
) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    if adopt:
        target = tier_at(tmp_path / "new", broker="broker-b")
        with broker_on(target) as other:
            other.put(1, topic="Other")
    with broker_on(source) as broker:
        broker.put(3)
        broker.put(3, queue_id=1)
    moved(source, target, adopt=adopt, cut_over=True)  # and nobody has seen how it ended
    again = moved(source, target, adopt=adopt, cut_over=True)
    assert (again.facts["cut_over"], again.findings) == ("done before", ())
    with broker_on(source) as broker:
        broker.put(2, queue_id=1)
    for cut_over in (True, False):
        again = moved(source, target, adopt=adopt, cut_over=cut_over)
        (found,) = again.findings
        assert (found.kind, found.where) == ("written-since", f"broker-a/{TOPIC}/1")
        assert (again.facts["cut_over"], again.exit_code) == ("done before", JobExit.DAMAGE)


def test_a_topic_that_was_deleted_and_made_anew_after_the_cut_over_lacks_nothing(
    tmp_path: Path,
) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(3)
    moved(source, target, cut_over=True)
    with broker_on(target) as broker:
        broker.files.delete_topics([TOPIC])
        broker.put(1)
    again = moved(source, target, cut_over=True)
    assert (again.facts["cut_over"], again.exit_code) == ("done before", JobExit.DONE)


def test_what_expires_during_the_run_is_no_error(tmp_path: Path) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(100)
        report = moved(source, target, on_plan=lambda plan: expire(source, broker))
        assert report.exit_code is JobExit.DONE
        assert report.counts["expired"] == 1
    assert moved(source, target, cut_over=True).exit_code is JobExit.DONE
    assert files(target) == files(source)


@pytest.mark.parametrize("topics", [(), (TOPIC,)])
def test_what_expired_after_it_was_copied_is_not_in_the_target(
    tmp_path: Path, topics: tuple[str, ...]
) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(100)
        moved(source, target, topics=topics)
        expire(source, broker)
    moved(source, target, topics=topics, cut_over=True)
    assert files(target) == files(source)


@pytest.mark.parametrize("left", [0, 1_000])
def test_what_the_catalogue_names_and_is_gone_is_damage(tmp_path: Path, left: int) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(100)

    def lose(_plan: object) -> None:
        os.truncate(min(Path(source.path).rglob("COMMIT_LOG/*00000")), left)

    report = moved(source, target, on_plan=lose)
    assert report.exit_code is JobExit.DAMAGE
    assert "missing" in {each.kind for each in report.findings}
    again = moved(source, target, cut_over=True)
    assert again.facts["cut_over"] == "refused"
    assert not Path(target.catalogue_path).exists()


def test_segments_of_a_queue_that_the_catalogue_lost_are_not_left_behind(tmp_path: Path) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path / "new")
    with JsonMetadataStore.open(source.catalogue_path) as metadata:
        metadata.apply([DeleteQueue("GoldAa", 0)])
    for cut_over in (False, True):
        with pytest.raises(MetadataError, match="segments of broker-gold-a/GoldAa/0, and not the"):
            moved(source, target, cut_over=cut_over)
    assert not Path(target.catalogue_path).exists()
    assert moved(source, target, topics=["GoldBB"]).exit_code is JobExit.DONE


def test_what_an_older_catalogue_does_not_name_is_not_left_behind(tmp_path: Path) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path / "new")
    with JsonMetadataStore.open(source.catalogue_path) as metadata:
        rows = metadata.segments("broker-gold-a/GoldAa/0")
        metadata.apply([*(DeleteSegment(*row.key) for row in rows), DeleteQueue("GoldAa", 0)])
    report = moved(source, target, cut_over=True)
    assert report.facts["cut_over"] == "refused"
    assert {each.kind for each in report.findings} == {"not-named"}
    assert len(report.findings) == len(rows)
    assert not Path(target.catalogue_path).exists()
    assert moved(source, target, topics=["GoldBB"], cut_over=True).facts["cut_over"] == "done"


def test_other_bytes_in_the_target_are_told_and_never_written_over(tmp_path: Path) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(10)
    moved(source, target)
    Path(f"{target.catalogue_path}.migration").unlink()
    log = min(Path(target.path).rglob("COMMIT_LOG/*"))
    damaged = bytearray(log.read_bytes())
    damaged[100] ^= 1
    log.write_bytes(damaged)
    report = moved(source, target, cut_over=True)
    assert report.exit_code is JobExit.DAMAGE
    assert report.failures[0].error == SegmentCorruptError.__name__
    assert "the target holds other bytes than the source" in report.failures[0].text
    assert log.read_bytes() == damaged
    assert not Path(target.catalogue_path).exists()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda old, new: {"target": old}, "source and target are the same tier"),
        (lambda old, new: {"topics": ["nix-*"]}, "no topic is called 'nix-\\*'; there are"),
        (
            lambda old, new: {"source": replace(old, metadata_path=str(Path(old.path, "no.json")))},
            "no.json",
        ),
        (
            lambda old, new: {"target": replace(new, broker_name="other")},
            "say --rename-broker other if that is meant",
        ),
        (
            lambda old, new: {
                "source": replace(old, broker_name="x"),
                "target": replace(new, broker_name="x"),
            },
            "'x' is not in the catalogue",
        ),
        (lambda old, new: {"target": replace(new, index_slot_count=7)}, "index_slot_count"),
        (
            lambda old, new: {"target": replace(new, metadata_path=old.catalogue_path)},
            "the same catalogue",
        ),
    ],
)
def test_what_can_only_be_a_mistake_is_one_line(
    tmp_path: Path, change: Callable[[StoreConfig, StoreConfig], dict[str, Any]], text: str
) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(2)
    how: dict[str, Any] = {"source": source, "target": target, **change(source, target)}
    with pytest.raises(Exception, match=text) as raised:
        moved(how.pop("source"), how.pop("target"), cut_over=True, **how)
    assert "\n" not in str(raised.value)
    assert not Path(target.catalogue_path).exists()


def test_a_target_that_has_a_tier_of_its_own_is_refused(tmp_path: Path) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    for config in (source, target):
        with broker_on(config) as broker:
            broker.put(2)
    before = files(target)
    with pytest.raises(InvalidConfigError, match="names a tier already"):
        moved(source, target)
    assert files(target) == before


def added(broker: Broker, count: int) -> int:
    """The bytes of the last messages of queue 0, records and units."""
    file = broker.files.get(QueueKey(TOPIC, 0))
    assert file is not None
    units = file.units(file.commit_offset - count, count)
    return int(sum(units.message_bytes)) + 20 * count


def expire(config: StoreConfig, broker: Broker) -> None:
    """Expire the first log segment as the broker does: the row, then the bytes."""
    path = f"broker-a/{TOPIC}/0"
    row = broker.metadata.segments(path, SegmentType.COMMIT_LOG)[0]
    broker.metadata.apply([DeleteSegment(path, row.type, row.base_offset)])
    with Runtime.inline() as runtime:
        provider = PosixProvider.from_config(config, runtime)
        provider.open(path, row.type, row.base_offset).delete()


@pytest.mark.parametrize("keeps_local_files", [True, False])
def test_keys_that_lie_in_local_files_are_put_again_where_those_stay_behind(
    tmp_path: Path, keeps_local_files: bool
) -> None:
    source, target = tier_at(tmp_path / "old"), tier_at(tmp_path / "new")
    with broker_on(source) as broker:
        broker.put(50)
        notes: list[tuple[str, str, Any]] = [
            ("index", "end", 0),
            ("index-queue", "0/0", [40, 1_700_000_000_000]),
            ("index-queue", "0/1", 7),
            ("index-file", "1700000000000", 30),
            ("index-start", "1700000000000/0/0", 10),
        ]
        for kind, key, value in notes:
            broker.metadata.put_note(kind, key, value)
    if keeps_local_files:
        catalogue = target.catalogue_path
        target = replace(target, store_path=source.store_path, metadata_path=catalogue)
    moved(source, target, cut_over=True)
    with JsonMetadataStore.open(target.catalogue_path, read_only=True) as metadata:
        noted = {
            kind: dict(metadata.notes(kind))
            for kind in ("index-queue", "index-file", "index-start")
        }
    mark = 40 if keeps_local_files else 10
    assert noted["index-queue"] == {"0/0": [mark, 1_700_000_000_000], "0/1": 7}
    assert bool(noted["index-file"]) is bool(noted["index-start"]) is keeps_local_files


# Creates half of a segment, says so, and completes it when told to.
SLOW = """
import sys
from tieredstore.driver.runtime import Runtime
from tieredstore.model.values import SegmentType
from tieredstore.providers.posix import PosixFileSegment, PosixProvider
from tieredstore.roundlog import log as broker_log

data = open(sys.argv[2], "rb").read()

def blocks():
    yield data[:100]
    print("half", flush=True)
    sys.stdin.readline()
    yield data[100:]

provider = PosixProvider(sys.argv[1], "GoldenCluster", Runtime.inline())
with provider.open("broker-gold-a/GoldAa/0", SegmentType.COMMIT_LOG, 0) as segment:
    provider.create(segment, blocks())
print("whole", flush=True)
"""


def test_who_comes_second_leaves_the_firsts_segment_alone(tmp_path: Path) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path)
    with Runtime.inline() as runtime:
        provider = PosixProvider.from_config(source, runtime)
        first = provider.open("broker-gold-a/GoldAa/0", SegmentType.COMMIT_LOG, 0).path
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, target.path, first],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as slow:
        assert slow.stdin is not None
        assert slow.stdout is not None
        assert slow.stdout.readline() == "half\n"
        report = moved(source, target)
        assert report.state is JobState.INCOMPLETE
        assert report.counts["copied"] == 56
        print("go on", file=slow.stdin, flush=True)
        assert slow.stdout.readline() == "whole\n"
    again = moved(source, target)
    assert (again.counts["copied"], again.counts["compared"]) == (0, 1)
    assert files(target) == files(golden_config())
