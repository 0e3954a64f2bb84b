"""What stands at a place of the log: a record, damage, or nothing because it went."""

from __future__ import annotations

from pathlib import Path
from struct import pack_into

import pytest

from tests.local.store_audit import opened, parts_of
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.local.reader import LocalReader
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.messages import PutResult
from tieredstore.model.values import GetStatus
from tieredstore.testing.samples import TOPIC, a_message

LOG_FILE, QUEUE_FILE = 8_192, 400


def filled(root: Path) -> list[PutResult]:
    store = opened(root, commit_log_file_bytes=LOG_FILE)
    puts = [store.put_message(a_message(number, body_bytes=200)) for number in range(100)]
    store.shutdown()
    return puts


def reopened(root: Path) -> LocalMessageStore:
    return opened(root, commit_log_file_bytes=LOG_FILE)


def unit_becomes(root: Path, offset: int, log_offset: int, size: int) -> None:
    start = offset * UNIT_BYTES // QUEUE_FILE * QUEUE_FILE
    path = root / "consumequeue" / TOPIC / "0" / f"{start:020d}"
    data = bytearray(path.read_bytes())
    pack_into(">qi", data, offset * UNIT_BYTES - start, log_offset, size)
    path.write_bytes(data)


WRONG_UNITS = {f"size {size}": (None, size) for size in (-1, 0, 1, 90, -(2**31))} | {
    "behind the log": (1 << 40, 200),
    "below zero": (-(1 << 40), 200),
}


@pytest.mark.parametrize(("log_offset", "size"), WRONG_UNITS.values(), ids=WRONG_UNITS)
def test_a_unit_that_names_no_record_is_made_again_when_it_is_read(
    tmp_path: Path, log_offset: int | None, size: int
) -> None:
    puts = filled(tmp_path)
    unit_becomes(tmp_path, 3, puts[3].log_offset if log_offset is None else log_offset, size)
    store = reopened(tmp_path)
    assert not store.damages  # opening looks at the last files of a queue only
    (got,) = store.get_message(TOPIC, 0, 3, count_max=1).messages
    assert (got.queue_offset, got.log_offset) == (3, puts[3].log_offset)
    assert store.store_time(TOPIC, 0, 3) == puts[3].store_timestamp
    (damage,) = store.damages
    assert damage.mended
    store.shutdown()
    store = reopened(tmp_path)
    store.get_message(TOPIC, 0, 3)
    assert not store.damages
    store.shutdown()


@pytest.fixture
def holed(tmp_path: Path) -> tuple[Path, PutResult]:
    """A store without its second log file, and the first message that was in it."""
    puts = filled(tmp_path)
    (tmp_path / "commitlog" / f"{LOG_FILE:020d}").unlink()
    return tmp_path, next(put for put in puts if put.log_offset >= LOG_FILE)


def test_a_log_file_that_is_missing_is_reported(holed: tuple[Path, PutResult]) -> None:
    root, _ = holed
    store = reopened(root)
    assert store.recovery is not None
    (damage,) = store.recovery.damages
    assert (damage.log_offset, damage.resumed_at) == (LOG_FILE, 2 * LOG_FILE)
    assert damage.path == str(root / "commitlog" / f"{LOG_FILE:020d}")
    store.shutdown()
    with LocalReader.open(root) as reader:
        assert damage in reader.log_facts().damages


def test_messages_of_a_missing_log_file_are_damage_and_no_expired_ones(
    holed: tuple[Path, PutResult],
) -> None:
    root, put = holed
    store = reopened(root)
    for read in (
        lambda: store.get_message(TOPIC, 0, put.queue_offset),
        lambda: store.read_range(TOPIC, 0, put.queue_offset, count_max=3, bytes_max=9_999),
        lambda: store.message_at(put.log_offset),
        lambda: store.message_at(put.log_offset, put.size),
    ):
        with pytest.raises(SegmentCorruptError, match=f"{LOG_FILE:020d}"):
            read()
    before = store.get_message(TOPIC, 0, 0, count_max=100)
    assert before.status is GetStatus.FOUND
    store.shutdown()


def test_a_query_that_misses_a_message_of_a_missing_log_file_says_so(
    holed: tuple[Path, PutResult],
) -> None:
    root, put = holed
    store = reopened(root)
    got = store.query_message(TOPIC, f"key-{put.queue_offset}")
    assert not got.messages
    assert not got.complete
    assert store.query_message(TOPIC, "key-0").complete
    store.shutdown()


def test_a_query_that_misses_an_overwritten_message_says_so(tmp_path: Path) -> None:
    puts = filled(tmp_path)
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[puts[3].log_offset + 4] ^= 0x10  # its magic
    path.write_bytes(data)
    store = reopened(tmp_path)
    assert not store.query_message(TOPIC, "key-3").complete
    store.shutdown()


def test_a_query_is_complete_without_what_has_expired(tmp_path: Path) -> None:
    filled(tmp_path)
    store = reopened(tmp_path)
    parts_of(store).log.queue.delete_before(LOG_FILE)
    got = store.query_message(TOPIC, "key-0")
    assert not got.messages
    assert got.complete
    store.shutdown()


def test_a_place_that_is_asked_for_with_no_size_of_a_record_is_empty(tmp_path: Path) -> None:
    filled(tmp_path)
    store = reopened(tmp_path)
    for log_offset, size in ((0, -5), (0, 0), (-1, None), (10**30, None), (1 << 63, 10)):
        assert store.message_at(log_offset, size) is None
    store.shutdown()
