"""A log that breaks off anywhere in its last records: the store ends at the last whole one."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.local.store_audit import Ack, check_acks, check_agreement, crash, opened
from tieredstore.model.values import GetStatus
from tieredstore.testing.messages import a_message

# Only with the checksum of the whole record can garbage in its properties be told from them.
SETTINGS = {
    "commit_log_file_bytes": 2048,
    "index_item_count": 20,
    "property_crc_enabled": True,
}


def filled(root: Path) -> tuple[list[Ack], list[int]]:
    """Messages in two queues, the last three of them in the last file; and their sizes."""
    store = opened(root, **SETTINGS)
    acks, sizes = [], []
    for number in range(25):
        names = {"UNIQ_KEY": f"u{number}", "KEYS": f"k{number}"}
        message = a_message(number, topic="T", queue_id=number % 2, body_bytes=9, properties=names)
        put = store.put_message(message)
        acks.append(Ack.of("T", number % 2, f"u{number}", f"k{number}", put))
        sizes.append(put.size)
        if number == 15:
            store.flush()
    store.shutdown()
    return acks, sizes


@pytest.mark.slow
@pytest.mark.parametrize("tail", ["zeros", "garbage"])
def test_cut_at_any_byte_of_the_last_three_records(tmp_path: Path, tail: str) -> None:
    cut_everywhere(tmp_path, tail, abort_at=0)


@pytest.mark.torture
@pytest.mark.parametrize("tail", ["zeros", "garbage"])
def test_cut_there_with_the_other_end(tmp_path: Path, tail: str) -> None:
    cut_everywhere(tmp_path, tail, abort_at=1)


def cut_everywhere(tmp_path: Path, tail: str, *, abort_at: int) -> None:
    """At every second byte as after a crash, at the others as after a clean end."""
    whole, root = tmp_path / "whole", tmp_path / "store"
    acks, sizes = filled(whole)
    dice = random.Random(1)
    path = max((whole / "commitlog").iterdir())
    base, data = int(path.name), path.read_bytes()
    assert base <= acks[-3].log_offset
    for cut in range(acks[-3].log_offset, acks[-1].log_offset + sizes[-1]):
        shutil.copytree(whole, root)
        rest = len(data) - (cut - base)
        torn = bytes(rest) if tail == "zeros" else dice.randbytes(rest)
        (root / "commitlog" / path.name).write_bytes(data[: cut - base] + torn)
        if cut % 2 == abort_at:
            (root / "abort").touch()
        pairs = zip(acks, sizes, strict=True)
        kept = [ack for ack, size in pairs if ack.log_offset + size <= cut]
        store = opened(root, **SETTINGS)
        check_acks(store, kept[-4:])
        for lost in acks[len(kept) :]:
            got = store.get_message(lost.topic, lost.queue_id, lost.queue_offset)
            assert got.status is GetStatus.OFFSET_OVERFLOW_ONE or not got.messages
            assert not store.query_message(lost.topic, lost.unique_key).messages
        put = store.put_message(a_message(99, topic="T", queue_id=acks[len(kept)].queue_id))
        assert put.queue_offset == acks[len(kept)].queue_offset
        assert put.log_offset == acks[len(kept)].log_offset
        if cut % 16 == 0:
            assert check_agreement(store) == len(kept) + 1
            crash(store)
            store = opened(root, **SETTINGS)
            assert check_agreement(store) == len(kept) + 1
        store.shutdown()
        shutil.rmtree(root)
