"""A process killed while a put copies its bytes leaves nothing of the put: each state in turn."""

from __future__ import annotations

import mmap
import shutil
from pathlib import Path
from typing import cast

import pytest

from tests.local.store_audit import (
    Ack,
    check_acks,
    check_agreement,
    crash,
    opened,
    overwrite,
    parts_of,
    put_acked,
)
from tieredstore.local.reader import LocalReader
from tieredstore.local.record_scan import HEAD_BYTES
from tieredstore.testing.samples import TOPIC, a_message

BEFORE = 7
VECTOR = 64  # bytes; a copy by the widest registers may write the first ones last


class SlowMap:
    """A mapping of a log that takes a picture of the store wherever a kill may stop a copy."""

    def __init__(self, map: mmap.mmap, root: Path, pictures: Path) -> None:
        self._map, self._root, self._pictures = map, root, pictures
        self.taken: list[Path] = []

    def __setitem__(self, place: slice, data: bytes) -> None:
        start, end = place.start, place.stop
        if end - start <= HEAD_BYTES:  # one instruction
            self._picture()
            self._map[place] = data
            return
        for part in ((0, 0), (0, (end - start) // 2), (VECTOR, end - start), (0, end - start)):
            self._map[start:end] = bytes(end - start)
            self._map[start + part[0] : start + part[1]] = data[slice(*part)]
            self._picture()

    def __getitem__(self, place: slice) -> bytes:
        return self._map[place]

    def _picture(self) -> None:
        to = self._pictures / str(len(self.taken))
        shutil.copytree(self._root, to)
        self.taken.append(to)


@pytest.mark.parametrize("count", [1, 2, 20])
@pytest.mark.parametrize("flushed", [False, True])
def test_nothing_of_it_is_there_and_the_next_put_takes_its_place(
    tmp_path: Path, count: int, flushed: bool
) -> None:
    root, pictures = tmp_path / "store", tmp_path / "pictures"
    store = opened(root)
    acks = [put_acked(store, number, queue_id=number % 2) for number in range(BEFORE)]
    if flushed:
        store.flush()
    file = parts_of(store).log.queue.files[0]
    mapping, end = file.mapping, file.wrote
    assert mapping is not None
    slow = SlowMap(mapping.map, root, pictures)
    mapping.map = cast(mmap.mmap, slow)
    batch = [a_message(90 + number, queue_id=0, body_bytes=200) for number in range(count)]
    assert all(put.stored for put in store.put_messages(batch))
    crash(store)
    assert len(slow.taken) == 5
    for picture in slow.taken:
        check_picture(picture, acks, end)


def check_picture(root: Path, acks: list[Ack], end: int) -> None:
    with LocalReader.open(root) as reader:
        facts = reader.log_facts()
        assert (facts.log_end, facts.damages, facts.torn) == (end, (), None)
    store = opened(root)
    assert store.damages == ()
    assert parts_of(store).log.max_offset == end
    check_acks(store, acks)
    assert check_agreement(store) == BEFORE
    shorter = put_acked(store, BEFORE, queue_id=0)
    assert (shorter.log_offset, shorter.queue_offset) == (end, 4)
    crash(store)
    store = opened(root)
    assert store.damages == ()
    check_acks(store, [*acks, shorter])
    assert check_agreement(store) == BEFORE + 1


@pytest.mark.parametrize("later", ["another time", "on disk"])
def test_what_is_no_killed_put_stays_damage_that_hides_one_message(
    tmp_path: Path, later: str
) -> None:
    store = opened(tmp_path, commit_log_file_bytes=65_536)
    first = put_acked(store, 0, queue_id=0)
    messages = [a_message(number, queue_id=0, body_bytes=500) for number in range(1, 12)]
    puts = list(store.put_messages(messages))
    if later == "another time":
        parts_of(store).log.time_min = puts[0].store_timestamp + 1_000
        store.put_message(a_message(12, queue_id=0))
    elif later == "on disk":
        store.flush()
    crash(store)
    log = tmp_path / "commitlog" / f"{0:020d}"
    overwrite(log, puts[0].log_offset, bytes(HEAD_BYTES))
    store = opened(tmp_path, commit_log_file_bytes=65_536)
    assert puts[0].log_offset in [damage.log_offset for damage in store.damages]
    assert store.message_at(first.log_offset) is not None
    assert store.message_at(puts[1].log_offset) is not None
    assert store.max_offset(TOPIC, 0) == (13 if later == "another time" else 12)
