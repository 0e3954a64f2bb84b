"""One flipped bit where no CRC looks: the store opens, says so, and serves everything else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.local.store_audit import Ack, check_acks, opened
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import GetStatus
from tieredstore.testing.samples import TOPIC, a_message

QUEUE_ID, QUEUE_OFFSET, STORE_TIME = 12, 20, 56
COUNT = 300
DAY_MS = 86_400_000


def filled(root: Path, count: int = COUNT) -> list[Ack]:
    store = opened(root)
    acks = []
    for number in range(count):
        put = store.put_message(a_message(number, queue_id=number % 2))
        acks.append(Ack.of(TOPIC, number % 2, f"UNIQ-{number:08d}", f"key-{number}", put))
    store.shutdown()
    return acks


def becomes(root: Path, ack: Ack, spot: int, data: bytes) -> None:
    path = root / "commitlog" / f"{ack.log_offset // 32_768 * 32_768:020d}"
    content = bytearray(path.read_bytes())
    at = ack.log_offset % 32_768 + spot
    content[at : at + len(data)] = data
    path.write_bytes(content)


def without_queues(root: Path) -> LocalMessageStore:
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    (root / "abort").touch()
    return opened(root)


def check_around(store: LocalMessageStore, acks: list[Ack], bad: int) -> None:
    ack = acks[bad]
    assert store.recovery is not None
    assert [damage.log_offset for damage in store.recovery.damages] == [ack.log_offset]
    check_acks(store, [other for number, other in enumerate(acks) if number != bad])
    assert not store.query_message(ack.topic, ack.unique_key).messages
    for queue_id in (0, 1):
        put = store.put_message(a_message(999, queue_id=queue_id))
        assert put.queue_offset == len(acks) // 2
    with pytest.raises(SegmentCorruptError):
        store.get_message(ack.topic, ack.queue_id, ack.queue_offset)


def number(value: int, width: int = 8) -> bytes:
    return value.to_bytes(width, signed=True)


SPOTS = {
    "a queue below zero": (QUEUE_ID, number(-(2**31), 4)),
    "a queue offset below zero": (QUEUE_OFFSET, number(-(2**63) + 50)),
    "a queue offset that no file has": (QUEUE_OFFSET, number(1 << 60)),
    "a queue offset that the log has no room for": (QUEUE_OFFSET, number(50 + (1 << 20))),
    "the place of the next": (QUEUE_OFFSET, number(51)),
    "a place far behind": (QUEUE_OFFSET, number(50 + 128)),
    "the place of one long before": (QUEUE_OFFSET, number(18)),
}


@pytest.mark.parametrize(("spot", "data"), SPOTS.values(), ids=SPOTS)
def test_a_message_with_an_untrue_place_costs_no_other_its_own(
    tmp_path: Path, spot: int, data: bytes
) -> None:
    acks = filled(tmp_path)
    bad = 100  # the fiftieth of queue 0
    assert acks[bad].queue_offset == 50
    becomes(tmp_path, acks[bad], spot, data)
    store = without_queues(tmp_path)
    check_around(store, acks, bad)
    store.shutdown()
    again = opened(tmp_path)
    check_acks(again, [ack for row, ack in enumerate(acks) if row != bad])
    again.shutdown()


def test_a_topic_that_is_no_directory_is_damage(tmp_path: Path) -> None:
    acks = filled(tmp_path)
    bad = acks[100]
    store = opened(tmp_path)
    message = store.message_at(bad.log_offset)
    store.shutdown()
    assert message is not None
    at = message.record.index(TOPIC.encode())
    becomes(tmp_path, bad, at, b"/")
    store = without_queues(tmp_path)
    check_around(store, acks, 100)
    store.shutdown()


def test_a_message_that_claims_a_place_in_another_queue_does_not_get_it(tmp_path: Path) -> None:
    acks = filled(tmp_path)
    store = opened(tmp_path)
    for extra in range(20):  # queue 0 runs ahead of queue 1
        put = store.put_message(a_message(COUNT + extra, queue_id=0))
        key = f"key-{COUNT + extra}"
        acks.append(Ack.of(TOPIC, 0, f"UNIQ-{COUNT + extra:08d}", key, put))
    for extra in range(20, 26):
        put = store.put_message(a_message(COUNT + extra, queue_id=extra % 2))
        key = f"key-{COUNT + extra}"
        acks.append(Ack.of(TOPIC, extra % 2, f"UNIQ-{COUNT + extra:08d}", key, put))
    store.shutdown()
    bad = COUNT + 20
    assert acks[bad].queue_offset == 170
    becomes(tmp_path, acks[bad], QUEUE_ID, number(1, 4))
    store = without_queues(tmp_path)
    assert store.recovery is not None
    assert [one.log_offset for one in store.recovery.damages] == [acks[bad].log_offset]
    check_acks(store, [ack for row, ack in enumerate(acks) if row != bad])
    with pytest.raises(SegmentCorruptError):
        store.get_message(TOPIC, 0, 170)
    store.shutdown()


def test_the_first_message_of_a_queue_does_not_move_the_others_out_of_it(tmp_path: Path) -> None:
    acks = filled(tmp_path)
    store = opened(tmp_path)
    late = []
    for extra in range(10):
        put = store.put_message(a_message(COUNT + extra, topic="Late"))
        key = f"key-{COUNT + extra}"
        late.append(Ack.of("Late", 0, f"UNIQ-{COUNT + extra:08d}", key, put))
    store.shutdown()
    becomes(tmp_path, late[0], QUEUE_OFFSET, number(256))
    store = without_queues(tmp_path)
    check_acks(store, [*acks, *late[1:]])
    assert store.get_message("Late", 0, 0).status is GetStatus.OFFSET_TOO_SMALL
    assert store.put_message(a_message(999, topic="Late")).queue_offset == 10
    store.shutdown()


def test_records_that_are_only_missing_are_no_reason_to_doubt_the_next(tmp_path: Path) -> None:
    acks = filled(tmp_path)
    for bad in (100, 102, 104):
        becomes(tmp_path, acks[bad], 120, b"?")
    store = without_queues(tmp_path)
    assert store.recovery is not None
    offsets = [damage.log_offset for damage in store.recovery.damages]
    assert offsets == [acks[bad].log_offset for bad in (100, 102, 104)]
    check_acks(store, [ack for row, ack in enumerate(acks) if row not in (100, 102, 104)])
    store.shutdown()


def test_a_store_time_far_ahead_is_reported_and_not_given_to_later_messages(
    tmp_path: Path,
) -> None:
    acks = filled(tmp_path, 20)
    store = opened(tmp_path)
    time = store.store_time(TOPIC, 1, 8)
    store.shutdown()
    assert time is not None
    becomes(tmp_path, acks[-1], STORE_TIME, number(time + (1 << 62)))
    for _ in range(2):
        store = opened(tmp_path)
        assert store.recovery is not None
        assert [one.log_offset for one in store.recovery.damages] == [acks[-1].log_offset]
        assert "store time" in store.recovery.damages[0].reason
        check_acks(store, acks)
        store.shutdown()
    store = opened(tmp_path)
    assert store.put_message(a_message(20)).store_timestamp - time < DAY_MS
    store.shutdown()


def test_a_clock_that_is_far_behind_the_whole_log_is_no_damage(tmp_path: Path) -> None:
    acks = filled(tmp_path, 20)
    ahead = 1_700_000_000_000 + 1_000 * DAY_MS
    for ack in acks:
        becomes(tmp_path, ack, STORE_TIME, number(ahead))
    store = opened(tmp_path)
    assert store.recovery is not None
    assert store.recovery.damages == ()
    assert store.put_message(a_message(20)).store_timestamp == ahead
    store.shutdown()
