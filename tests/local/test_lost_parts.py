"""Log data that a power cut takes before anything vouched for it is lost, not damaged: its queue
offsets are passed over, now and after each restart.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.local.store_audit import Ack, check_acks, crash, cut, opened, overwrite, put_acked
from tieredstore.local.lost_parts import LOST_FILE, LostParts
from tieredstore.local.reader import LocalReader
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import GetStatus
from tieredstore.testing.samples import TOPIC, a_message

SIZES = {
    "commit_log_file_bytes": 32_768,
    "queue_file_bytes": 400,
    "index_slot_count": 101,
    "index_item_count": 150,
}
SURE, COUNT = 10, 30


def check_lost(store: LocalMessageStore, acks: list[Ack], *holes: int) -> None:
    check_acks(store, [ack for number, ack in enumerate(acks) if number not in holes])
    for hole in holes:
        ack = acks[hole]
        page = store.get_message(ack.topic, ack.queue_id, ack.queue_offset)
        assert page.status is GetStatus.MESSAGE_WAS_REMOVING
        behind = next(
            other.queue_offset
            for number, other in enumerate(acks)
            if number > hole and number not in holes and other.queue_id == ack.queue_id
        )
        assert page.next_offset == behind
        before = store.get_message(ack.topic, ack.queue_id, 0, count_max=COUNT)
        first = min(acks[one].queue_offset for one in holes if acks[one].queue_id == ack.queue_id)
        assert before.next_offset == first == len(before.messages)
        answer = store.query_message(ack.topic, ack.key)
        assert (answer.messages, answer.complete) == ([], True)
        run = store.read_range(ack.topic, ack.queue_id, ack.queue_offset, count_max=1, bytes_max=1)
        assert not len(run)
        assert store.store_time(ack.topic, ack.queue_id, ack.queue_offset) is None
        assert not store.contains(ack.topic, ack.queue_id, ack.queue_offset)


@pytest.mark.parametrize("gone", ["nothing", "consumequeue", "index"])
@pytest.mark.parametrize("ends", ["in order", "in a crash"])
def test_a_hole_that_nobody_vouched_for_is_passed_over_for_good(
    tmp_path: Path, ends: str, gone: str
) -> None:
    acks = cut(tmp_path, SURE, COUNT, 15, 20, 22)
    store = opened(tmp_path)
    assert store.recovery is not None
    assert [one.log_offset for one in store.recovery.damages] == [
        acks[hole].log_offset for hole in (15, 20, 22)
    ]
    assert not any(one.mended for one in store.recovery.damages)
    for _ in range(2):
        check_lost(store, acks, 15, 20, 22)
        if ends == "in order":
            store.shutdown()
        else:
            crash(store)
        shutil.rmtree(tmp_path / gone, ignore_errors=True)
        with LocalReader.open(tmp_path, **SIZES) as reader:
            assert not reader.log_facts().damages
        store = opened(tmp_path)
        assert store.recovery is not None
        assert not store.recovery.damages  # the loss is named only once
    check_lost(store, acks, 15, 20, 22)
    assert put_acked(store, 99, queue_id=0).queue_offset == COUNT // 2


def test_a_log_that_begins_with_a_hole_is_as_old_as_what_follows(tmp_path: Path) -> None:
    acks = cut(tmp_path, 0, COUNT, 0, 1)
    store = opened(tmp_path)
    first = store.store_time(acks[2].topic, acks[2].queue_id, acks[2].queue_offset)
    assert first is not None
    assert store.earliest_time() == first


def test_a_hole_that_was_vouched_for_is_damage(tmp_path: Path) -> None:
    acks = cut(tmp_path, SURE, COUNT, SURE - 1)
    for _ in range(2):
        store = opened(tmp_path)
        assert store.recovery is not None
        assert len(store.recovery.damages) == 1
        with pytest.raises(SegmentCorruptError):
            store.get_message(acks[9].topic, 1, acks[9].queue_offset)
        crash(store)


def test_without_a_whole_checkpoint_nobody_knows_and_it_is_damage(tmp_path: Path) -> None:
    acks = cut(tmp_path, SURE, COUNT, 15)
    (tmp_path / "checkpoint").unlink()
    store = opened(tmp_path)
    with pytest.raises(SegmentCorruptError):
        store.get_message(acks[15].topic, 1, acks[15].queue_offset)


def test_what_is_put_where_a_lost_part_was_is_read(tmp_path: Path) -> None:
    """The next power cut takes more, and the log ends before the lost part that was noted."""
    acks = cut(tmp_path, SURE, COUNT, 15)
    store = opened(tmp_path)
    crash(store)
    (tmp_path / "config" / "tieredstore-queues.json").unlink()
    (tmp_path / "checkpoint").unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    path = tmp_path / "commitlog" / f"{0:020d}"
    overwrite(path, acks[12].log_offset, bytes(path.stat().st_size - acks[12].log_offset))
    store = opened(tmp_path)
    again = [put_acked(store, number, queue_id=number % 2) for number in range(100, 120)]
    check_acks(store, [*acks[:12], *again])


def test_a_damaged_list_makes_them_damage(tmp_path: Path) -> None:
    acks = cut(tmp_path, SURE, COUNT, 15)
    opened(tmp_path).shutdown()
    path = tmp_path / "config" / LOST_FILE
    for data in (b"{", path.read_bytes().replace(b"[[", b"[[9999999, 1], ["), b"[1]"):
        path.write_bytes(data)
        store = opened(tmp_path)
        with pytest.raises(SegmentCorruptError):
            store.get_message(acks[15].topic, 1, acks[15].queue_offset)
        store.shutdown()


def test_parts_are_kept_as_long_as_the_log_holds_them(tmp_path: Path) -> None:
    parts = LostParts(tmp_path / LOST_FILE)
    parts.load()
    parts.settle([(100, 190), (400, 450), (440, 490)], log_min=0, log_end=1_000)
    again = LostParts(tmp_path / LOST_FILE)
    again.load()

    def lost() -> list[int]:
        return [at for at in range(1_000) if again.has(at)]

    assert lost() == [*range(100, 190), *range(400, 490)]
    assert again.first_between(0, 100) is None
    assert again.first_between(150, 420) == (150, 190)
    assert again.first_between(190, 420) == (400, 420)
    again.settle([], log_min=190, log_end=1_000)
    assert lost() == [*range(400, 490)]
    again.settle([], log_min=190, log_end=450)
    assert lost() == [*range(400, 450)]


def test_a_lost_file_is_passed_over_too(tmp_path: Path) -> None:
    """No scan shows it; only the queue, if the power cut left it, tells its last queue offset."""
    store = opened(tmp_path, commit_log_file_bytes=4_096)
    for number in range(30):
        store.put_message(a_message(number, body_bytes=300))
    crash(store)
    files = sorted((tmp_path / "commitlog").iterdir())
    os.truncate(files[1], 0)
    for _ in range(2):
        store = opened(tmp_path, commit_log_file_bytes=4_096)
        at, found = 0, 0
        while at < 30:
            page = store.get_message(TOPIC, 0, at)
            found += len(page.messages)
            assert page.next_offset > at
            at = page.next_offset
        assert 15 < found < 30
        crash(store)


def test_the_number_of_a_lost_last_message_is_passed_over_too(tmp_path: Path) -> None:
    acks = cut(tmp_path, SURE, COUNT, COUNT - 2)
    for end in (COUNT // 2, COUNT // 2 + 1):
        store = opened(tmp_path)
        page = store.get_message(acks[-2].topic, 0, acks[-2].queue_offset)
        assert page.status is GetStatus.MESSAGE_WAS_REMOVING
        assert page.next_offset == COUNT // 2
        assert store.put_message(a_message(99, queue_id=0)).queue_offset == end
        crash(store)
