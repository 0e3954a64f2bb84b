"""A damaged record in the middle of the log: reported, never served, and nothing around it lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.local.store_audit import Ack, check_acks, opened
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.testing.samples import TOPIC, a_message

COUNT, BAD = 40, 17
SPOTS = {"length": 2, "magic": 5, "crc": 9, "queue offset": 20, "place": 30, "body": 120}


def filled(root: Path) -> list[Ack]:
    store = opened(root)
    acks = []
    for number in range(COUNT):
        put = store.put_message(a_message(number, queue_id=number % 2))
        key = f"key-{number}"
        acks.append(Ack.of(TOPIC, number % 2, f"UNIQ-{number:08d}", key, put))
    store.shutdown()
    return acks


def flip(root: Path, log_offset: int, spot: int) -> Path:
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[log_offset + spot] ^= 0x10
    path.write_bytes(data)
    return path


def check_around(store: LocalMessageStore, acks: list[Ack], bad: int, path: Path) -> None:
    check_acks(store, [ack for number, ack in enumerate(acks) if number != bad])
    ack = acks[bad]
    with pytest.raises(SegmentCorruptError) as caught:
        store.get_message(ack.topic, ack.queue_id, ack.queue_offset)
    assert (caught.value.path, caught.value.position) == (str(path), ack.log_offset)
    assert not store.query_message(ack.topic, ack.unique_key).messages
    before = store.get_message(ack.topic, ack.queue_id, 0, count_max=32)
    assert before.next_offset == ack.queue_offset == len(before.messages)


@pytest.mark.parametrize("lost", ["nothing", "consumequeue", "index", "both"])
@pytest.mark.parametrize("abort", [False, True], ids=["clean", "crashed"])
@pytest.mark.parametrize("spot", [spot for spot in SPOTS if spot != "queue offset"])
def test_damage_in_the_middle_hides_one_message_only(
    tmp_path: Path, spot: str, abort: bool, lost: str
) -> None:
    acks = filled(tmp_path)
    path = flip(tmp_path, acks[BAD].log_offset, SPOTS[spot])
    if abort:
        (tmp_path / "abort").touch()
    for folder in {"nothing": (), "both": ("consumequeue", "index")}.get(lost, (lost,)):
        shutil.rmtree(tmp_path / folder)
    store = opened(tmp_path)
    assert store.recovery is not None
    assert [damage.log_offset for damage in store.recovery.damages] == [acks[BAD].log_offset]
    assert store.recovery.damages[0].path == str(path)
    check_around(store, acks, BAD, path)
    assert store.put_message(a_message(99, queue_id=0)).queue_offset == COUNT // 2
    store.shutdown()
    store = opened(tmp_path)
    assert store.recovery is not None
    assert store.recovery.damages
    check_around(store, acks, BAD, path)
    store.shutdown()


@pytest.mark.parametrize("abort", [False, True], ids=["clean", "crashed"])
def test_the_number_of_a_damaged_last_message_is_not_given_again(
    tmp_path: Path, abort: bool
) -> None:
    acks = filled(tmp_path)
    path = flip(tmp_path, acks[-2].log_offset, SPOTS["body"])  # the last one of queue 0
    if abort:
        (tmp_path / "abort").touch()
    shutil.rmtree(tmp_path / "consumequeue")
    store = opened(tmp_path)
    check_around(store, acks, COUNT - 2, path)
    assert store.put_message(a_message(99, queue_id=0)).queue_offset == COUNT // 2
    store.shutdown()


def test_several_damaged_records_in_a_row_keep_their_numbers(tmp_path: Path) -> None:
    acks = filled(tmp_path)
    for bad in (10, 11, 12, 13, 20):
        flip(tmp_path, acks[bad].log_offset, SPOTS["length"])
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "abort").touch()
    for _ in range(2):
        store = opened(tmp_path)
        check_acks(store, [ack for at, ack in enumerate(acks) if at not in (10, 11, 12, 13, 20)])
        for bad in (10, 11, 12, 13, 20):
            with pytest.raises(SegmentCorruptError):
                store.get_message(TOPIC, acks[bad].queue_id, acks[bad].queue_offset)
        store.shutdown()
