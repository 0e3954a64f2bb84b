"""A broker comes back without its disk, or with an older one: its queues go on where the tier ends,
and no number is given twice."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.access import lost_disks
from tests.access.lost_disks import ONE, OTHER, TWO, Machine
from tests.jobs.load_kit import LOADED_MS, loaded, recovered, rows_of
from tieredstore.access import agreement, queue_upload
from tieredstore.access.agreement import ContinuedQueue
from tieredstore.access.rebuild import rebuild
from tieredstore.access.store import TieredMessageStore
from tieredstore.access.upkeep import expire
from tieredstore.codec.message import decode_message
from tieredstore.codec.record import peek_store_timestamp
from tieredstore.driver.metadata import DeleteQueue, StaleCatalogueError
from tieredstore.driver.runtime import Runtime
from tieredstore.index.store import IndexStore
from tieredstore.jobs.job import LocalEngine, run_job
from tieredstore.jobs.verify import VerifyJob
from tieredstore.local.record_scan import DAY_MS
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.config import MIB
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.model.messages import GetResult, Message, MessageRun
from tieredstore.model.values import INT64_MAX, GetStatus, QueueKey, StorageLevel
from tieredstore.providers.posix import PosixFileSegment
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC


@pytest.fixture(params=["folder", "bucket"])
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Machine:
    return Machine(tmp_path, request.param)


def a_life(machine: Machine, count: int = 10, lost: int = 0) -> None:
    """Commit `count` messages of each queue, and put `lost` more that are not uploaded."""
    machine.open()
    machine.put(count)
    machine.flush()
    if lost:
        machine.put(lost)
    machine.end(drain=False)


def test_a_store_that_lost_nothing_agrees(machine: Machine) -> None:
    a_life(machine, lost=3)
    store = machine.open()
    assert not store.agreement.continued
    assert not store.agreement.refused
    assert store.agreement.checked == {ONE, TWO, OTHER}
    machine.put(5)
    machine.flush()
    machine.check()
    assert store.health().ok


def test_many_queues_are_compared_by_few_requests(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "bucket")
    keys = [QueueKey("Many", number) for number in range(60)]
    machine.open()
    for _ in range(3):
        machine.put(2, *keys)
        machine.flush()
    machine.end()
    store = machine.open()
    assert store.agreement.checked == set(keys)
    assert machine.client.requests["get_range"] < 20


def test_queues_of_a_lost_disk_are_not_compared_with_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 50 000 of them a load took five minutes longer."""
    machine = Machine(tmp_path)
    keys = [QueueKey("Many", number) for number in range(40)]
    machine.open()
    machine.put(1, *keys)
    machine.flush()
    machine.end()
    machine.lose_local()
    compared: list[object] = []

    def is_equal(one: object, other: object) -> bool:
        compared.append(other)
        return one is other

    monkeypatch.setattr(agreement._Verdict, "__eq__", is_equal)
    store = machine.open()
    assert store.agreement.ends == dict.fromkeys(keys, 1)
    assert len(compared) <= len(keys)


def test_queues_of_a_lost_disk_go_on_at_the_end_of_the_tier(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    a_life(machine, lost=3)
    machine.lose_local()
    store = machine.open()
    assert store.agreement.ends == {ONE: 10, TWO: 10, OTHER: 10}
    assert [queue.local_end for queue in store.agreement.continued] == [None] * 3
    assert "the local store does not have it; nobody knows what was lost" in caplog.text
    assert [queue.lost_count for queue in store.agreement.continued] == [None] * 3
    assert {store.max_offset(*key) for key in (ONE, TWO, OTHER)} == {10}
    machine.check()
    assert store.put_message(machine.message(QueueKey("New", 0))).queue_offset == 0
    machine.put(5)
    machine.flush()
    machine.check()
    assert list(machine.read(ONE)) == list(range(15))
    health = store.health()
    assert health.ok
    assert [one["tier_end"] for one in health.as_json()["continued"]] == [10, 10, 10]
    machine.end()
    store = machine.open()
    assert not store.agreement.continued
    machine.check()


@pytest.mark.parametrize("restarts", [False, True])
def test_no_message_is_stored_before_those_of_the_tier(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    """The clock of the new machine is behind. If it dated messages before those of the tier,
    answers by key or time would skip what only the tier has."""
    a_life(machine)
    machine.lose_local()
    monkeypatch.setattr(lost_disks, "STORE_TIMESTAMP", STORE_TIMESTAMP - 60_000)
    store = machine.open()
    if restarts:
        machine.end()
        store = machine.open()
    machine.put(2)
    answer = store.query_message(ONE.topic, "shared", count_max=64)
    assert (len(answer.messages), answer.complete) == (24, True)
    assert store.offset_by_time(*ONE, STORE_TIMESTAMP) == 0


def test_messages_of_a_clock_that_ran_ahead_are_found_by_key_in_every_later_life(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New messages are stored at most a day ahead of the clock, so before those of the tier."""
    monkeypatch.setattr(lost_disks, "STORE_TIMESTAMP", STORE_TIMESTAMP + 90 * DAY_MS)
    a_life(machine)
    machine.lose_local()
    monkeypatch.undo()
    store = machine.open()
    machine.put(2)
    for _ in range(3):
        machine.end()
        store = machine.open()
        answer = store.query_message(ONE.topic, "shared", count_max=64)
        assert (len(answer.messages), answer.complete) == (24, True)
        assert store.query_message(ONE.topic, "key-1").messages
    times = [peek_store_timestamp(one.record) for one in store.get_message(*ONE, 10).messages]
    assert times == [STORE_TIMESTAMP + DAY_MS] * 2


def test_an_empty_machine_goes_on_with_its_bucket(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "bucket")
    a_life(machine, lost=3)
    machine.lose_disk()
    for _ in range(3):
        machine.open()
        machine.check()
        machine.put(5)
        machine.flush()
        machine.check()
        machine.end()
        machine.lose_disk()


def test_log_offsets_go_on_behind_those_of_the_tier(machine: Machine) -> None:
    a_life(machine, count=100)
    highest = max(machine.log_offsets)
    machine.lose_local()
    machine.open()
    machine.put(1)  # records its log offset
    assert max(machine.log_offsets) > max(highest, MIB)
    assert (max(machine.log_offsets) - highest) < 2 * MIB


def test_without_a_note_they_go_on_behind_what_its_records_take(machine: Machine) -> None:
    a_life(machine)
    store = machine.open()
    tier = store._loaded().tier
    tier.metadata.delete_note("log-mark", "broker-a")
    machine.end()
    machine.lose_local()
    machine.open()
    machine.put(1)


def test_an_older_image_of_the_disk_goes_on_at_the_end_of_the_tier(machine: Machine) -> None:
    a_life(machine)
    machine.image("older")
    a_life(machine, lost=2)
    machine.restore("older")
    store = machine.open()
    ends = {store.committed_offset(*key) for key in (ONE, TWO, OTHER)}
    assert {*store.agreement.ends.values()} == ends == {20}
    machine.note_committed()
    assert {queue.local_end for queue in store.agreement.continued} == {10}
    local = store._next
    assert isinstance(local, LocalMessageStore)
    assert local.min_offset(*ONE) == local.max_offset(*ONE) == store.max_offset(*ONE)
    machine.check()
    machine.put(5)
    machine.flush()
    machine.check()
    machine.end()
    machine.open()
    machine.check()


def test_what_is_known_of_the_loss_is_told(machine: Machine) -> None:
    a_life(machine, lost=4)
    for path in (machine.disk / "local" / "commitlog").iterdir():
        path.unlink()  # the queue files still tell where the queues ended
    store = machine.open()
    assert {queue.lost_count for queue in store.agreement.continued} == {4}
    assert store.agreement.continued[0] == ContinuedQueue(
        topic="Other", queue_id=7, local_end=0, tier_end=10, goes_on_at=10, known_end=14
    )
    assert not store.health().ok
    machine.put(3)
    machine.flush()
    machine.check()


@pytest.mark.parametrize("gone", ["commitlog", "consumequeue", "config", "last", "first"])
def test_a_disk_that_was_copied_by_halves_gives_no_number_twice(
    machine: Machine, gone: str
) -> None:
    machine.open()
    machine.put(60)
    machine.flush()
    machine.put(20)
    machine.note_committed()
    machine.end(drain=False)
    files = sorted((machine.disk / "local" / "commitlog").iterdir())
    assert len(files) > 4
    if gone == "last":
        for path in files[-2:]:
            path.unlink()
    elif gone == "first":
        for path in files[:2]:
            path.unlink()
    else:
        shutil.rmtree(machine.disk / "local" / gone)
    machine.open()
    machine.check()
    machine.log_offsets.clear()  # log offsets of messages that were not tiered may be reused
    machine.put(5)
    machine.flush()
    machine.check()
    machine.end()
    machine.open()
    machine.check()


def ahead_of_its_copy(tmp_path: Path, **small: int) -> Machine:
    """A machine at work: its disk was copied to `older`, and more messages were put since."""
    machine = Machine(tmp_path)
    machine.open(**small)
    machine.put(7, ONE)
    machine.flush()
    machine.end()
    shutil.copytree(machine.disk, tmp_path / "older")
    machine.open(**small)
    machine.put(20, ONE)
    return machine


def test_a_catalogue_that_is_older_than_its_folder_lets_no_number_be_given_twice(
    tmp_path: Path,
) -> None:
    small = {"consume_queue_segment_bytes": 200}
    machine = ahead_of_its_copy(tmp_path, **small)
    machine.put(5, OTHER)
    machine.flush()
    machine.end()
    machine.lose_disk()
    shutil.copytree(tmp_path / "older", machine.disk)
    (broker,) = (machine.root / "tier").glob("*/broker-a")
    away = broker / "Away"
    away.symlink_to(tmp_path / "gone")  # a disk that is not there, which is listed first
    machine.open(**small)
    assert "up to number 27" in machine.refusal(ONE)
    assert "tieredstore rebuild" in machine.refusal(OTHER)
    machine.end(drain=False)
    away.unlink()
    store = machine.tiered(**small)
    tier = store._tier_of_new_life()
    rebuild(tier.metadata, tier.provider, store.config, tier.runtime)
    tier.close()
    store = machine.open(**small)
    assert store.agreement.ends == {ONE: 27, OTHER: 5}
    machine.log_offsets.clear()  # the older catalogue knew fewer log offsets
    machine.put(2)
    assert store.flush()
    machine.check()


def test_trusting_a_tier_whose_catalogue_is_older_gives_no_number_twice(tmp_path: Path) -> None:
    """The older image of the disk ran alone before, while the tier was away."""
    small = {"consume_queue_segment_bytes": 200}
    machine = ahead_of_its_copy(tmp_path, **small)
    machine.flush()
    machine.end()
    machine.lose_disk()
    shutil.copytree(tmp_path / "older", machine.disk)
    alone = LocalMessageStore(machine.local_config(), Runtime.inline(now_ms=STORE_TIMESTAMP))
    alone.load()
    alone.start()
    assert alone.put_message(machine.message(ONE)).queue_offset == 7
    alone.shutdown()
    store = machine.open(**small)
    assert "different messages from number 7 on" in machine.refusal(ONE)
    trust(store, machine, ONE, "tier")
    machine.end(drain=False)
    store = machine.open(**small)
    assert store.agreement.ends == {ONE: 27}
    assert store.put_message(machine.message(ONE)).queue_offset == 27
    assert store.flush()


@pytest.mark.parametrize("knows_of_it", [True, False])
def test_an_older_catalogue_deletes_no_messages_of_a_topic_that_was_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows_of_it: bool
) -> None:
    """The segments of the new topic have the names of old ones, which the image still names."""
    machine = Machine(tmp_path)
    small = {"commit_log_segment_bytes": 1000, "reserve_hours": 1}
    machine.open(**small)
    machine._number = 1000  # messages of the same size
    machine.put(45, ONE)
    machine.flush()
    if knows_of_it:
        with monkeypatch.context() as patch:
            patch.setattr(PosixFileSegment, "delete", is_away)
            machine.store.delete_topics([TOPIC])
            machine.end()
    else:
        machine.end()
    shutil.copytree(machine.disk, tmp_path / "older")
    machine.open(**small)
    machine.store.delete_topics([TOPIC])
    machine.put(50, ONE)
    machine.flush()
    machine.end()
    written = tiered_files(machine)
    assert len(written) > 5
    machine.lose_disk()
    shutil.copytree(tmp_path / "older", machine.disk)
    opened = machine.open(**small)._loaded()
    for _ in range(3):
        opened.tier.runtime.clock.sleep(360_000)
        opened.retention.step()
        opened.tier.publish()
    error = machine.store.health().catalogue.error
    assert error is not None
    assert "newer than this catalogue's file" in error
    machine.end(drain=False)
    assert tiered_files(machine) == written


def test_an_older_catalogue_takes_no_keys_from_the_tier(tmp_path: Path) -> None:
    """The next index file would have the name of one that the image does not know."""
    small = {"consume_queue_segment_bytes": 200, "index_slot_count": 11}
    machine = ahead_of_its_copy(tmp_path, **small)
    assert machine.store.flush(seal=True)
    machine.end()
    machine.lose_disk()
    shutil.copytree(tmp_path / "older", machine.disk)
    store = machine.open(**small)
    assert machine.refusal(ONE)
    machine.log_offsets.clear()  # the older catalogue knew fewer log offsets
    machine.put(3, TWO)
    with pytest.raises(StaleCatalogueError, match="newer"):
        store.flush(seal=True)
    index = store._loaded().tier.index
    assert isinstance(index, IndexStore)
    index.step()
    assert "newer" in str(store.health().index_error)
    machine.end(drain=False)
    recovered(store.config)
    store = machine.open(**small)
    for number in range(1, 28):
        found = store.query_message(TOPIC, f"key-{number}")
        assert found.complete
        assert [one.queue_offset for one in found.messages] == [number - 1]


def is_away(segment: PosixFileSegment) -> None:
    raise BackendUnavailableError(segment.path, "delete", "it is away")


def tiered_files(machine: Machine) -> list[Path]:
    return sorted((machine.root / "tier").rglob("*/COMMIT_LOG/*"))


def test_a_queue_that_the_catalogue_lost_gives_no_number_twice(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.open()
    machine.put(7, ONE)
    machine.flush()
    machine.end()
    machine.lose_local()
    store = machine.tiered()
    tier = store._tier_of_new_life()
    tier.metadata.apply([DeleteQueue(*ONE)])
    tier.close()
    machine.open()
    assert "tieredstore rebuild" in machine.refusal(ONE)
    machine.end(drain=False)
    tier = machine.tiered()._tier_of_new_life()
    rebuild(tier.metadata, tier.provider, store.config, tier.runtime)
    tier.close()
    store = machine.open()
    assert store.agreement.ends == {ONE: 7}
    machine.log_offsets.clear()  # log offsets of messages that were not tiered may be reused
    machine.put(2)
    assert store.flush()
    machine.check()


def test_topics_that_stay_out_of_the_tier_begin_as_they_do(machine: Machine) -> None:
    machine.open()
    machine.put(3)
    machine.flush()
    machine.end()
    machine.lose_local()
    store = machine.tiered()
    store.topic_filter.reject("Other")
    store.load()
    store.start()
    machine.store = store
    assert store.agreement.ends == {ONE: 3, TWO: 3}
    assert store.put_message(machine.message(OTHER)).queue_offset == 0


def test_a_store_whose_queues_cannot_begin_takes_no_puts_there(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_life(machine)
    machine.lose_local()
    monkeypatch.delattr(LocalMessageStore, "begin_queues")
    store = machine.open()
    assert "begin_queues" in machine.refusal(ONE)
    results = store.put_messages(
        [machine.message(ONE), machine.message(QueueKey("New", 1)), machine.message(TWO)]
    )
    assert [put.stored for put in results] == [False, True, False]
    monkeypatch.setattr(store, "_next_batch_at_once", store._next.put_messages)
    at_once = store.put_messages_at_once(
        [machine.message(ONE), machine.message(QueueKey("New", 1))]
    )
    assert at_once is not None
    assert [put.stored for put in at_once] == [False, True]
    monkeypatch.setattr(store, "_next_batch_at_once", lambda _: None)
    assert store.put_messages_at_once([machine.message(ONE)]) is None
    future = store.put_messages_future([machine.message(QueueKey("New", 1)), machine.message(ONE)])
    assert [put.stored for put in future.result(10)] == [True, False]
    assert not store.put_message_future(machine.message(ONE)).result(10).stored
    machine.check()
    health = store.health()
    assert not health.ok
    assert {queue.topic for queue in health.queues if not queue.takes_puts} == {
        "TopicTest",
        "Other",
    }


def test_a_queue_of_which_the_tier_cannot_say_where_it_ends_takes_no_puts(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    a_life(machine)
    machine.lose_local()
    [path] = (path for path in (tmp_path / "tier").rglob("*") if path.is_dir() and path.name == "7")
    for file in path.rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    machine.open()
    assert "cannot say where it ends" in machine.refusal(OTHER)
    machine.put(3, ONE, TWO)


def a_fork(machine: Machine, *, old: int = 10, tier: int = 5, local: int = 3) -> None:
    """Both stores have `old` messages. After them, the tier has `tier` more, and an older image of
    the disk took `local` different ones while the tier was away."""
    a_life(machine, count=old)
    machine.image("older")
    a_life(machine, count=tier)
    machine.restore("older")
    alone = LocalMessageStore(machine.local_config(), Runtime.inline(now_ms=STORE_TIMESTAMP))
    alone.load()
    alone.start()
    for key in (ONE, TWO):
        for number in range(old, old + local):
            put = alone.put_message(machine.message(key))
            assert put.queue_offset == number
    alone.shutdown()


@pytest.mark.parametrize("lost", [range(12, 14), range(15, 18), range(10, 18)])
def test_two_histories_part_before_what_the_local_store_has_lost(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, lost: range
) -> None:
    """As after a power cut, which may take messages in the middle of a queue."""
    a_fork(machine, tier=8, local=10)
    read, get = LocalMessageStore.read_range, LocalMessageStore.get_message

    def read_range(
        store: LocalMessageStore,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        **more: Any,
    ) -> MessageRun:
        count_max = 0 if offset in lost else count_max
        return read(store, topic, queue_id, offset, count_max=count_max, **more)

    def get_message(
        store: LocalMessageStore, topic: str, queue_id: int, offset: int, **more: Any
    ) -> GetResult:
        found = get(store, topic, queue_id, lost.stop if offset in lost else offset, **more)
        if offset not in lost:
            return found
        status = GetStatus.MESSAGE_WAS_REMOVING
        return replace(found, status=status, messages=[], next_offset=lost.stop)

    monkeypatch.setattr(LocalMessageStore, "read_range", read_range)
    monkeypatch.setattr(LocalMessageStore, "get_message", get_message)
    forks = machine.open().agreement.forks
    assert forks == ({} if 10 in lost else {ONE: 10, TWO: 10})


def bodies(machine: Machine, key: QueueKey) -> list[bytes]:
    return list(machine.read(key).values())


def run_bodies(store: TieredMessageStore, key: QueueKey) -> list[bytes]:
    found: list[bytes] = []
    while len(run := store.read_range(*key, len(found), count_max=7, bytes_max=1 << 20)):
        found += [decode_message(run.record(row)).body for row in range(len(run))]
    return found


SIZES = [(5, 3), (3, 5), (4, 4), (1, 1)]


@pytest.mark.parametrize(("tier", "local"), SIZES)
def test_a_queue_with_two_histories_takes_no_puts_and_is_read_as_one(
    machine: Machine, tier: int, local: int
) -> None:
    a_fork(machine, tier=tier, local=local)
    for life in range(2):
        store = machine.open()
        assert store.agreement.forks == {ONE: 10, TWO: 10}
        assert store.agreement.ends == ({OTHER: 10 + tier} if life == 0 else {})
        for key in (ONE, TWO):
            assert "from number 10 on" in machine.refusal(key)
            assert "resume --trust" in machine.refusal(key)
            assert f"{key.topic}/{key.queue_id}" in machine.refusal(key)
            assert list(machine.read(key)) == list(range(10 + local))
            assert run_bodies(store, key) == bodies(machine, key)
            assert store.max_offset(*key) == 10 + local
        assert not store.flush()
        assert not store.health().ok
        assert {one.queue_id for one in store.health().queues if not one.takes_puts} == {0, 1}
        machine.check(OTHER)
        machine.end()


def without_the_first_log_file(store: TieredMessageStore) -> int:
    """Delete it from the local store; return where queue ONE begins then."""
    local = store._next
    assert isinstance(local, LocalMessageStore)
    parts = local._loaded()
    parts.log.queue.delete_before(parts.log.queue.files[0].end_offset)
    parts.queues.delete_before(parts.log.min_offset or 0)
    return local.min_offset(*ONE) or 0


def test_below_the_fork_the_tier_serves_what_has_expired_at_every_level(machine: Machine) -> None:
    a_fork(machine, old=90, tier=5, local=30)
    store = machine.open()
    before = bodies(machine, ONE)
    assert len(before) == 120
    first = without_the_first_log_file(store)
    assert 0 < first < 90
    for level in StorageLevel:
        store.level = level
        if level is StorageLevel.DISABLE:
            page = store.get_message(*ONE, 0)
            assert (page.status, page.next_offset) == (GetStatus.OFFSET_TOO_SMALL, first)
            continue
        assert bodies(machine, ONE) == before
        for offset in (0, 1, first - 1, first, 89, 90, 100, 119):
            page = store.get_message_future(*ONE, offset, count_max=1).result(10)
            assert decode_message(page.messages[0].record).body == before[offset]
            assert store.contains(*ONE, offset)
        assert run_bodies(store, ONE) == before
        assert not store.contains(*ONE, 120)
        assert store.max_offset(*ONE) == 120


def test_below_the_fork_no_message_is_skipped_that_only_the_local_store_still_has(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tier has expired beyond the first message of the local store."""
    monkeypatch.setattr(machine, "config", partial(machine.config, commit_log_segment_bytes=12_000))
    a_fork(machine, old=90, tier=60, local=30)
    store = machine.open()
    first = without_the_first_log_file(store)
    file = store._loaded().tier.files.get(ONE)
    assert file is not None
    expire(file, INT64_MAX)
    assert 0 < first < file.min_offset < 90
    for store.level in set(StorageLevel) - {StorageLevel.DISABLE}:
        for offset in (0, first - 1):
            page = store.get_message(*ONE, offset)
            assert (page.status, page.next_offset) == (GetStatus.OFFSET_TOO_SMALL, first)
        assert list(machine.read(ONE)) == list(range(first, 120))


def test_keys_behind_the_fork_take_no_place_of_those_below_it(machine: Machine) -> None:
    a_fork(machine, old=10, tier=30, local=3)
    store = machine.open()
    store.level = StorageLevel.FORCE
    for count in (1, 3, 8):
        found = store.query_message(TOPIC, "shared", count_max=count).messages
        assert [one.queue_offset for one in found] == [9, 9, 8, 8, 7, 7, 6, 6][:count]


def test_a_queue_that_is_resumed_takes_puts_and_is_one_history_again(machine: Machine) -> None:
    """The messages that differ have expired in the local store."""
    a_fork(machine, tier=5, local=90)
    store = machine.open()
    assert store.agreement.forks == {ONE: 10, TWO: 10}
    assert store.resume_queue(*ONE) is not None
    assert "from number 10 on" in machine.refusal(ONE)
    first = without_the_first_log_file(store)
    assert 15 < first < 100
    assert store.resume_queue(*ONE) is None
    assert store.put_message(machine.message(ONE)).queue_offset == 100
    store.flush()
    store.level = StorageLevel.FORCE
    assert list(read_over_gaps(machine, ONE)) == [*range(15), *range(first, 101)]
    assert "from number 10 on" in machine.refusal(TWO)


@pytest.mark.parametrize(("tier", "local"), SIZES)
def test_trusting_the_tier_goes_on_behind_all_numbers_that_were_given(
    machine: Machine, tier: int, local: int
) -> None:
    a_fork(machine, tier=tier, local=local)
    store = machine.open()
    trust(store, machine, ONE, "tier")
    machine.end()
    store = machine.open()
    end = 10 + max(tier, local)
    assert store.agreement.ends[ONE] == end
    assert set(store.agreement.refused) == {TWO}
    assert store.put_message(machine.message(ONE)).queue_offset == end
    assert store.flush() is False  # the other queue is still stopped
    machine.check(OTHER)
    found = {number: body for number, body in read_over_gaps(machine, ONE).items() if number < end}
    assert found == machine.committed[ONE]
    machine.end()
    store = machine.open()
    assert set(store.agreement.refused) == {TWO}
    assert store.put_message(machine.message(ONE)).queue_offset == end + 1
    assert store.committed_offset(*ONE) == end + 1


@pytest.mark.parametrize(("tier", "local"), SIZES)
def test_trusting_the_local_store_uploads_it_again(machine: Machine, tier: int, local: int) -> None:
    a_fork(machine, tier=tier, local=local)
    store = machine.open()
    before = bodies(machine, ONE)
    trust(store, machine, ONE, "local")
    trust(store, machine, TWO, "local")
    machine.end()
    store = machine.open()
    assert not store.agreement.refused
    assert store.agreement.ends[ONE] == 10 + local
    assert store.put_message(machine.message(ONE)).queue_offset == 10 + local
    assert store.flush()
    assert store.committed_offset(*ONE) == 10 + local + 1
    assert bodies(machine, ONE)[: 10 + local] == before
    machine.end()
    machine.lose_local()
    store = machine.open()
    assert bodies(machine, ONE)[: 10 + local] == before
    assert store.health().ok


@pytest.mark.parametrize("more", [0, 2])
def test_two_histories_are_found_where_the_tier_has_a_gap(machine: Machine, more: int) -> None:
    """The local store has messages in the gap, and ends in it or after it."""
    a_fork(machine, tier=3, local=8)
    machine.image("forked")
    store = machine.open()
    for key in (ONE, TWO):
        trust(store, machine, key, "tier")
    machine.end()
    store = machine.open()
    assert store.agreement.ends[ONE] == 18
    machine.put(3, ONE, TWO)
    machine.flush()
    machine.end()
    machine.restore("forked")
    alone = LocalMessageStore(machine.local_config(), Runtime.inline(now_ms=STORE_TIMESTAMP))
    alone.load()
    alone.start()
    for key in (ONE, TWO):
        for _ in range(more):
            alone.put_message(machine.message(key))
    alone.shutdown()
    store = machine.open()
    assert store.agreement.forks == {ONE: 10, TWO: 10}
    assert list(machine.read(ONE)) == list(range(18 + more))


def test_keys_of_what_was_given_up_for_the_local_store_are_no_damage(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    a_fork(machine)
    store = machine.open()
    for key in (ONE, TWO):
        trust(store, machine, key, "local")
    machine.end()
    store = machine.open()
    assert store.flush(seal=True)
    answer = store.query_message(TOPIC, "shared", count_max=64)
    assert (len(answer.messages), answer.complete) == (26, True)
    machine.end()
    runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
    engine = LocalEngine(pool=runtime.dispatch, threads=1)
    report = run_job(VerifyJob(config=machine.config()), engine, clock=runtime.clock)
    assert not [each for each in report.findings if each.is_damage]


def test_the_index_takes_what_was_uploaded_again_just_before_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is set back: by its times the new queue may be the old one."""
    machine = Machine(tmp_path)
    a_fork(machine, tier=3, local=8)
    store = machine.open()
    for key in (ONE, TWO):
        trust(store, machine, key, "local")
    machine.end()

    def killed(*_: object) -> None:
        raise BackendUnavailableError("the index", "put", "away")

    with monkeypatch.context() as patch:
        patch.setattr(IndexStore, "put", killed)
        assert not machine.open().flush()
        machine.end(drain=False)
    store = machine.open(storage_level=StorageLevel.FORCE)
    assert store.flush()
    answer = store.query_message(TOPIC, "shared", count_max=64)
    assert (len(answer.messages), answer.complete) == (36, True)


def opened_behind_a_load_that_was_cut_short(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> TieredMessageStore:
    """Load after another load was killed before it forgot the decisions that it had settled."""

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(agreement, "forget_trust", killed)
        with pytest.raises(KeyboardInterrupt):
            machine.open()
    return machine.open()


@pytest.mark.parametrize("side", ["tier", "local"])
def test_a_load_that_is_cut_short_while_it_does_what_was_decided_is_finished_by_the_next(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    a_fork(machine, tier=5, local=5)
    store = machine.open()
    for key in (ONE, TWO):
        trust(store, machine, key, side)
    machine.end()

    store = opened_behind_a_load_that_was_cut_short(machine, monkeypatch)
    assert not store.agreement.refused
    for key in (ONE, TWO):
        assert store.put_message(machine.message(key)).queue_offset == 15
    assert store.flush()
    assert store.health().ok
    assert not store._loaded().tier.metadata.notes("trusted-side")


def test_a_load_that_is_cut_short_before_it_forgets_a_stop_leaves_none_behind(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed load continued the queue at the tier's end; the next one finds that done."""
    a_life(machine)
    tier = machine.open()._loaded().tier
    file = tier.files.get(ONE)
    assert file is not None
    queue_upload.stop_queue(file, "the local store has lost its end", tier.metadata)
    machine.end()
    machine.lose_local()

    store = opened_behind_a_load_that_was_cut_short(machine, monkeypatch)
    assert store.put_message(machine.message(ONE)).queue_offset == 10
    assert store.flush()
    assert store.health().ok


def test_two_histories_that_cannot_be_compared_again_stay_two(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_fork(machine, tier=3, local=5)
    trust(machine.open(), machine, ONE, "local")
    machine.end()

    def away(*_: object) -> str:
        raise BackendUnavailableError("it", "read", "away")

    with monkeypatch.context() as patch:
        patch.setattr(agreement, "disagreement_at", away)
        store = machine.open()
        for key in (ONE, TWO):
            assert "cannot be compared" in machine.refusal(key)
        machine.end()
    store = machine.open()
    assert store.agreement.forks == {TWO: 10}
    assert store.put_message(machine.message(ONE)).queue_offset == 15


def test_two_histories_are_two_though_the_catalogue_cannot_say_so_yet(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could not be compared at the load: the upload finds out."""
    a_fork(machine, tier=3, local=5)

    def away(*_: object) -> str:
        raise BackendUnavailableError("it", "read", "away")

    with monkeypatch.context() as patch:
        patch.setattr(agreement, "disagreement_at", away)
        store = machine.open()
    with monkeypatch.context() as patch:
        patch.setattr(queue_upload, "stop_queue", away)
        assert not store.flush()
    for key in (ONE, TWO):
        assert "from number 10 on" in machine.refusal(key)
    assert not store.flush()


def test_the_tier_is_not_given_up_for_a_disk_that_was_lost_meanwhile(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    a_fork(machine, tier=5, local=8)
    trust(machine.open(), machine, ONE, "local")
    machine.end()
    machine.lose_local()
    [place] = (path for path in (tmp_path / "tier").rglob("TopicTest/0"))
    shutil.move(place, tmp_path / "away")
    machine.open()
    assert "cannot say where it ends" in machine.refusal(ONE)
    machine.end()
    shutil.move(tmp_path / "away", place)
    store = machine.open()
    assert store.agreement.ends == {ONE: 15}
    machine.check()


def test_a_topic_that_is_deleted_and_made_anew_has_one_history(machine: Machine) -> None:
    a_fork(machine)
    store = machine.open()
    store.delete_topics({ONE.topic})
    machine.log_offsets.clear()  # the fork's other store assigned some of them
    machine.put(3, ONE, TWO)
    for key in (ONE, TWO):
        assert list(machine.read(key)) == [0, 1, 2]
    assert store.flush()
    assert store.health().ok
    machine.end()
    store = machine.open()
    assert not store.agreement.refused
    assert list(machine.read(ONE)) == [0, 1, 2]


def test_a_decision_that_nobody_needs_any_more_is_forgotten(machine: Machine) -> None:
    a_life(machine)
    store = machine.open()
    trust(store, machine, ONE, "local")
    machine.end()
    store = machine.open()
    assert not store._loaded().tier.metadata.notes("trusted-side")
    machine.check()


def trust(store: TieredMessageStore, machine: Machine, key: QueueKey, side: str) -> None:
    tier = store._loaded().tier
    file = tier.files.get(key)
    assert file is not None
    queue_upload.trust(file.path, side, tier.metadata)


def read_over_gaps(machine: Machine, key: QueueKey) -> dict[int, bytes]:
    """Read the queue like a consumer that follows each next offset."""
    found: dict[int, bytes] = {}
    offset = 0
    for _ in range(200):
        page = machine.store.get_message(*key, offset)
        found |= {one.queue_offset: decode_message(one.record).body for one in page.messages}
        if page.next_offset == offset:
            return found
        offset = page.next_offset
    raise AssertionError("it never comes to the end")


def test_an_image_of_an_earlier_life_is_another_history_from_the_start(machine: Machine) -> None:
    a_life(machine, count=7)
    machine.image("earlier")
    machine.store = machine.tiered()
    machine.store.destroy()
    machine.acked.clear()
    machine.committed.clear()
    machine.log_offsets.clear()
    a_life(machine, count=9)
    machine.restore("earlier")
    store = machine.open()
    assert store.agreement.forks == {ONE: 0, TWO: 0, OTHER: 0}
    for key in (ONE, TWO, OTHER):
        assert "resume --trust" in machine.refusal(key)
        trust(store, machine, key, "tier")
    machine.end()
    machine.open()
    machine.put(3)
    machine.flush()
    machine.check()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_becomes_of_the_disk_no_number_of_the_tier_is_given_twice(
    machine: Machine, seed: int
) -> None:
    """Random lives; the tier is trusted if a queue has two histories."""
    dice = random.Random(seed)
    images = 0
    machine.open()
    for _ in range(10):
        for key in (ONE, TWO, OTHER):
            machine.put(dice.randrange(6), key)
        if dice.random() < 0.5:
            machine.flush()
        machine.end(drain=dice.random() < 0.5)
        fate = dice.choice(["restart", "lose", "image", "restore", "restore"])
        if fate == "lose":
            machine.lose_local()
        elif fate == "image":
            machine.image(f"image-{images}")
            images += 1
        elif fate == "restore" and images:
            machine.restore(f"image-{dice.randrange(images)}")
        machine.log_offsets.clear()  # those of uncommitted messages may be reused
        store = machine.open()
        machine.note_committed()
        for key in store.agreement.refused:
            trust(store, machine, key, "tier")
        if store.agreement.refused:
            machine.end(drain=False)
            store = machine.open()
            assert not store.agreement.refused
        for key, committed in machine.committed.items():
            found = read_over_gaps(machine, key)
            assert {number: found.get(number) for number in committed} == committed, key
            assert (store.max_offset(*key) or 0) >= max(committed, default=-1) + 1


def test_what_a_load_brought_is_found_by_key_and_time_however_new_it_is(tmp_path: Path) -> None:
    """The next store has older messages, and none of the loaded queue, which begins there after the
    loaded messages.
    """
    machine = Machine(tmp_path)
    machine.open()
    machine.put(1, ONE)
    properties = {"KEYS": "all", "UNIQ_KEY": "near"}
    near = Message(topic="orders", queue_id=1, body=b"near", properties=properties)
    assert machine.store.put_message(near).stored
    machine.flush()
    machine.end()
    loaded(machine.config(), [[rows_of(QueueKey("orders", 0), range(3))]])
    store = machine.open()
    found = store.query_message("orders", "k-orders-0-1")
    assert ([one.queue_offset for one in found.messages], found.complete) == ([1], True)
    newest = store.query_message("orders", "all", count_max=1)
    assert [peek_store_timestamp(one.record) for one in newest.messages] == [LOADED_MS]
    assert len(store.query_message("orders", "all").messages) == 4
    for asked, first in ((LOADED_MS, 0), (LOADED_MS + 1, 3)):
        assert store.offset_by_time("orders", 0, asked) == first
    machine.end()
