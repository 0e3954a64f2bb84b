"""A log that breaks off anywhere in its last records.

After a crash the store ends at the last whole one. After a clean end nothing can be torn: what
cannot be read is damage, and keeps its place and its number.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.local.store_audit import Ack, check_acks, check_agreement, crash, opened
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import GetStatus
from tieredstore.testing.samples import a_message

# Only with the checksum of the whole record can garbage in its properties be told from them.
SETTINGS = {
    "commit_log_file_bytes": 2048,
    "index_item_count": 20,
    "property_crc_enabled": True,
}
PROPERTIES_AT = 88 + 9 + 2 + 2  # behind the head, a body of nine bytes and a topic of one


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
            shutil.copytree(root / "config", root / "as-flushed" / "config")
            shutil.copy(root / "checkpoint", root / "as-flushed" / "checkpoint")
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
        crashed = cut % 2 == abort_at
        if crashed:
            (root / "abort").touch()
            shutil.copytree(root / "as-flushed", root, dirs_exist_ok=True)
        pairs = zip(acks, sizes, strict=True)
        kept = [ack for ack, size in pairs if ack.log_offset + size <= cut]
        store = opened(root, **SETTINGS)
        check_acks(store, kept[-4:])
        if crashed:
            check_cut_off(root, store, acks, len(kept), audited=cut % 16 == abort_at)
        else:
            check_places_kept(store, acks, sizes, cut)
        shutil.rmtree(root)


def check_cut_off(
    root: Path, store: LocalMessageStore, acks: list[Ack], kept: int, *, audited: bool
) -> None:
    for lost in acks[kept:]:
        got = store.get_message(lost.topic, lost.queue_id, lost.queue_offset)
        assert got.status is GetStatus.OFFSET_OVERFLOW_ONE or not got.messages
        assert not store.query_message(lost.topic, lost.unique_key).messages
    put = store.put_message(a_message(99, topic="T", queue_id=acks[kept].queue_id))
    assert put.queue_offset == acks[kept].queue_offset
    assert put.log_offset == acks[kept].log_offset
    if audited:
        assert check_agreement(store) == kept + 1
        crash(store)
        store = opened(root, **SETTINGS)
        assert check_agreement(store) == kept + 1
    store.shutdown()


def check_places_kept(
    store: LocalMessageStore, acks: list[Ack], sizes: list[int], cut: int
) -> None:
    lost = [ack for ack, size in zip(acks, sizes, strict=True) if ack.log_offset + size > cut]
    assert store.recovery is not None
    assert lost[0].log_offset in {damage.log_offset for damage in store.recovery.damages}
    for ack in lost:
        if cut - ack.log_offset >= PROPERTIES_AT:  # a read does not know that it had another CRC
            continue
        with pytest.raises(SegmentCorruptError):
            store.get_message(ack.topic, ack.queue_id, ack.queue_offset)
        assert not store.query_message(ack.topic, ack.unique_key).messages
    for queue_id in (0, 1):
        put = store.put_message(a_message(99, topic="T", queue_id=queue_id))
        assert put.queue_offset == 1 + max(
            ack.queue_offset for ack in acks if ack.queue_id == queue_id
        )
        assert put.log_offset >= acks[-1].log_offset + sizes[-1]
        [found] = store.get_message("T", queue_id, put.queue_offset).messages
        assert found.log_offset == put.log_offset
    store.shutdown()
