"""A broker that comes back without its disk, or with an older one: its queues go on where the tier
ends, and no number is given twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.access.lost_disks import ONE, OTHER, TWO, Machine
from tieredstore.access.agreement import ContinuedQueue
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.config import MIB
from tieredstore.model.values import QueueKey


@pytest.fixture(params=["folder", "bucket"])
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Machine:
    return Machine(tmp_path, request.param)


def a_life(machine: Machine, count: int = 10, lost: int = 0) -> None:
    """Messages that are all committed, and some that are not."""
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


def test_queues_of_a_lost_disk_go_on_at_the_end_of_the_tier(machine: Machine) -> None:
    a_life(machine, lost=3)
    machine.lose_local()
    store = machine.open()
    assert store.agreement.ends == {ONE: 10, TWO: 10, OTHER: 10}
    assert [queue.local_end for queue in store.agreement.continued] == [None] * 3
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
    machine.put(1)  # which looks at it
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
    assert store.agreement.ends == {ONE: 22, TWO: 22, OTHER: 22} or store.agreement.ends == {
        ONE: 20,
        TWO: 20,
        OTHER: 20,
    }
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
        path.unlink()  # the queues still say how far they went
    store = machine.open()
    assert {queue.lost_count for queue in store.agreement.continued} == {4}
    assert (
        store.agreement.continued[0]
        == ContinuedQueue(topic="Other", queue_id=7, local_end=0, tier_end=10, known_end=14)
        or store.agreement.continued
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
    machine.log_offsets.clear()  # of messages that were not in the tier some may come again
    machine.put(5)
    machine.flush()
    machine.check()
    machine.end()
    machine.open()
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
