"""Cuts at the end and at the beginning of a queue, and what recovery finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.queues.queue_fixtures import (
    FILE_BYTES,
    SIZE,
    Opener,
    directory,
    numbers,
    put,
    reopen,
    whole,
)
from tieredstore.codec.queue_unit import PREFILL_BYTES, UNIT_BYTES, encode_unit
from tieredstore.model.errors import OffsetOutOfRangeError

__all__ = ["directory", "reopen"]  # fixtures

COUNT = 25


@pytest.mark.parametrize("kept", range(COUNT + 1))
def test_a_cut_at_every_unit_leaves_what_is_below(
    reopen: Opener, directory: Path, kept: int
) -> None:
    queue = reopen()
    put(queue, 0, COUNT)
    assert queue.truncate(kept * SIZE) == COUNT - kept
    for seen in (queue, reopen()):
        assert (seen.min_offset, seen.max_offset) == (0, kept)
        assert seen.last_log_end == kept * SIZE
        assert whole(seen) == numbers(*range(kept))
    left = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
    assert not any(left[kept * UNIT_BYTES :]), "old units must not come back to life"
    put(queue, kept, 12)
    assert whole(reopen()) == numbers(*range(kept + 12))


def test_a_cut_in_the_middle_of_a_record_keeps_its_unit(reopen: Opener) -> None:
    """As in Java: a unit stays while its record starts below the end of the log."""
    queue = reopen()
    put(queue, 0, 5)
    assert queue.truncate(401) == 0
    assert queue.truncate(400) == 1


@pytest.mark.parametrize("first", [0, 15])
def test_a_cut_of_everything_leaves_an_empty_queue(reopen: Opener, first: int) -> None:
    queue = reopen()
    put(queue, first, 12)
    assert queue.truncate(0) == 12
    for seen in (queue, reopen()):
        assert seen.min_offset == seen.max_offset == first
        assert seen.last_log_end == 0
    assert queue.truncate(0) == 0
    put(queue, first, 3)
    assert whole(reopen()) == numbers(first, first + 1, first + 2)


@pytest.mark.parametrize("torn_bytes", range(3 * UNIT_BYTES + 1))
def test_a_file_torn_at_every_byte_of_the_last_units_is_recovered(
    reopen: Opener, directory: Path, torn_bytes: int
) -> None:
    put(reopen(), 0, COUNT)
    last = max(directory.iterdir())
    data = last.read_bytes()
    end = (COUNT - 20) * UNIT_BYTES - torn_bytes
    last.write_bytes(data[:end].ljust(FILE_BYTES, b"\x00"))
    queue = reopen()
    # The tags code is the last field and may lose bytes that were zeros anyway; a unit without
    # its size is none.
    whole_units = 20 + end // UNIT_BYTES
    assert whole_units <= queue.max_offset <= whole_units + 1
    queue.truncate(whole_units * SIZE)
    put(queue, whole_units, COUNT - whole_units)
    assert whole(reopen()) == numbers(*range(COUNT))


def test_old_units_behind_a_hole_do_not_come_back(reopen: Opener, directory: Path) -> None:
    """A power cut lost a unit in the middle of the last file; the ones behind it are there."""
    put(reopen(), 0, COUNT)
    last = max(directory.iterdir())
    data = bytearray(last.read_bytes())
    data[UNIT_BYTES : 2 * UNIT_BYTES] = bytes(UNIT_BYTES)
    last.write_bytes(data)
    queue = reopen()
    assert queue.max_offset == 21
    assert put(queue, 21, at=50) == 1
    assert reopen().max_offset == 22


def test_units_of_an_older_history_end_a_queue(reopen: Opener, directory: Path) -> None:
    """Java leaves what it cut; once the queue has grown again older log offsets follow newer."""
    put(reopen(), 0, 8)
    file = next(directory.iterdir())
    data = bytearray(file.read_bytes())
    data[3 * UNIT_BYTES : 4 * UNIT_BYTES] = encode_unit(
        log_offset=5000, message_bytes=SIZE, tags_code=1
    )
    file.write_bytes(data)
    assert reopen().max_offset == 4


def test_opening_writes_nothing_and_the_first_put_tidies(reopen: Opener, directory: Path) -> None:
    put(reopen(), 0, 5)
    (directory / f"{FILE_BYTES:020d}").write_bytes(b"\x01" * FILE_BYTES)
    file = directory / f"{0:020d}"
    file.write_bytes(file.read_bytes()[:120].ljust(FILE_BYTES, b"\xff"))
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    queue = reopen()
    assert queue.max_offset == 5
    assert whole(queue) == numbers(*range(5))
    queue.flush()
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    put(queue, 5)
    assert [path.name for path in directory.iterdir()] == [file.name]
    assert not any(file.read_bytes()[120:])


def test_files_that_hold_nothing_yet_are_the_end_of_a_queue(
    reopen: Opener, directory: Path
) -> None:
    put(reopen(), 0, 20)
    for start in range(2, 8):
        (directory / f"{FILE_BYTES * start:020d}").write_bytes(bytes(FILE_BYTES))
    queue = reopen()
    assert (queue.max_offset, queue.last_log_end) == (20, 2000)
    put(queue, 20, 3)
    assert whole(reopen()) == numbers(*range(23))


def test_a_fill_that_a_power_cut_tore_is_written_again(reopen: Opener, directory: Path) -> None:
    put(reopen(), 15, 2)
    file = next(directory.iterdir())
    file.write_bytes((PREFILL_BYTES * 3).ljust(FILE_BYTES, b"\x00"))
    queue = reopen()
    assert (queue.min_offset, queue.max_offset, queue.last_log_end) == (13, 13, 0)
    put(queue, 15, 2)
    assert (reopen().min_offset, reopen().max_offset) == (15, 17)
    assert file.read_bytes()[: 5 * UNIT_BYTES] == PREFILL_BYTES * 5


@pytest.mark.parametrize("start", [0, 15])
def test_the_minimum_follows_the_log_through_all_files(reopen: Opener, start: int) -> None:
    queue = reopen()
    put(queue, start, 40)
    end = start + 40
    for minimum in range(start, end + 1):
        assert queue.correct_min_offset(minimum * SIZE) == minimum
        assert reopen().correct_min_offset(minimum * SIZE) == minimum
        assert whole(queue) == numbers(*range(minimum, end))
    assert queue.correct_min_offset(0) == end, "it never moves back"
    assert queue.max_offset == end


def test_the_minima_of_the_java_test(reopen: Opener) -> None:
    queue = reopen()
    put(queue, 0, 50)
    assert queue.correct_min_offset(0) == 0
    assert queue.correct_min_offset(2000) == 20
    assert queue.correct_min_offset(50 * SIZE) == queue.max_offset == 50
    assert queue.correct_min_offset(2**62) == 50


def test_the_minimum_of_an_empty_queue_stays(reopen: Opener) -> None:
    assert reopen().correct_min_offset(10_000) == 0


@pytest.mark.parametrize(
    ("min_log_offset", "minimum"),
    [(0, 0), (900, 9), (901, 10), (1000, 10), (1001, 11), (1999, 20), (2000, 20), (2400, 24)],
)
def test_files_below_the_log_are_deleted(reopen: Opener, min_log_offset: int, minimum: int) -> None:
    queue = reopen()
    put(queue, 0, COUNT)
    assert queue.delete_before(min_log_offset) == minimum // 10
    assert queue.min_offset == minimum
    assert whole(queue) == numbers(*range(minimum, COUNT))
    assert whole(reopen()) == numbers(*range(minimum // 10 * 10, COUNT))
    with pytest.raises(OffsetOutOfRangeError):
        queue.unit(minimum - 1)


def test_the_last_file_is_never_deleted(reopen: Opener, directory: Path) -> None:
    queue = reopen()
    put(queue, 0, COUNT)
    assert queue.delete_before(10**9) == 2
    assert [path.name for path in directory.iterdir()] == [f"{400:020d}"]
    assert queue.min_offset == queue.max_offset == COUNT
    again = reopen()
    assert (again.min_offset, again.max_offset) == (20, COUNT)
    assert again.correct_min_offset(10**9) == COUNT
    put(again, COUNT, at=10**8)
    assert (again.min_offset, again.max_offset) == (COUNT, COUNT + 1)


def test_a_missing_file_in_between_is_reported_where_it_is_and_hides_nothing_else(
    reopen: Opener, directory: Path
) -> None:
    put(reopen(), 0, 45)
    (directory / f"{FILE_BYTES * 3:020d}").unlink()
    queue = reopen()
    assert queue.max_offset == 30
    assert whole(queue) == numbers(*range(30))
