"""One consume queue: puts, repeats, holes, fills and reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.local.queues.queue_fixtures import (
    FILE_BYTES,
    SIZE,
    Opener,
    directory,
    numbers,
    put,
    reopen,
    rows,
    whole,
)
from tieredstore.codec.queue_unit import PREFILL_BYTES, encode_unit
from tieredstore.model.errors import OffsetOutOfRangeError, PositionMismatchError
from tieredstore.model.values import Boundary

__all__ = ["directory", "reopen"]  # fixtures


def test_a_queue_without_files_is_empty(reopen: Opener, directory: Path) -> None:
    queue = reopen()
    assert (queue.min_offset, queue.max_offset, queue.last_log_end) == (0, 0, 0)
    assert whole(queue) == []
    queue.flush()
    assert not directory.exists()


@pytest.mark.parametrize("count", [1, 9, 10, 11, 47, 48, 100])
def test_what_was_put_is_read_across_files_and_after_a_reopening(
    reopen: Opener, count: int
) -> None:
    queue = reopen()
    assert put(queue, 0, count) == count
    for seen in (queue, reopen()):
        assert (seen.min_offset, seen.max_offset) == (0, count)
        assert seen.last_log_end == count * SIZE
        assert whole(seen) == numbers(*range(count))
        assert [seen.unit(offset) for offset in range(count)] == numbers(*range(count))


def test_few_and_many_give_the_same_bytes(reopen: Opener, directory: Path) -> None:
    queue = reopen()
    for first in range(0, 100, 7):
        put(queue, first, min(7, 100 - first))
    singly = {path.name: path.read_bytes() for path in directory.iterdir()}
    queue.destroy()
    assert put(queue, 0, 100) == 100
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == singly


def test_columns_may_be_arrays(reopen: Opener) -> None:
    queue = reopen()
    count = np.arange(60, dtype=np.int64)
    assert queue.put(0, count * SIZE, np.full(60, SIZE, np.int32), count) == 60
    assert queue.put(60, count[:3] * SIZE + 6000, np.full(3, SIZE, np.int32), count[:3]) == 3
    assert queue.max_offset == 63


@pytest.mark.parametrize("again", [1, 12, 60])
def test_a_repeated_put_changes_nothing(reopen: Opener, directory: Path, again: int) -> None:
    queue = reopen()
    put(queue, 0, 60)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    for seen in (queue, reopen()):
        assert put(seen, 0, again) == 0
        assert put(seen, 60 - again, again) == 0
        assert seen.max_offset == 60
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


@pytest.mark.parametrize("count", [8, 60])
def test_a_put_that_is_partly_known_adds_the_rest(reopen: Opener, count: int) -> None:
    queue = reopen()
    put(queue, 0, 5)
    assert put(queue, 2, count) == count - 3
    assert whole(queue) == numbers(*range(2 + count))


def test_a_queue_offset_that_is_taken_is_passed_over(reopen: Opener) -> None:
    queue = reopen()
    put(queue, 0, 5)
    assert put(queue, 3, at=50) == 0
    assert put(queue, 3, 3, at=50) == 1
    assert [unit.log_offset for unit in whole(queue)] == [0, 100, 200, 300, 400, 5200]


@pytest.mark.parametrize("first", [6, 10, 25])
def test_a_hole_is_refused_and_nothing_is_written(
    reopen: Opener, directory: Path, first: int
) -> None:
    queue = reopen()
    put(queue, 0, 5)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(PositionMismatchError) as caught:
        put(queue, first)
    assert (caught.value.expected, caught.value.actual) == (first, 5)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert put(queue, 5, first - 4) == first - 4
    assert whole(queue) == numbers(*range(first + 1))


def test_a_queue_that_begins_at_fifteen_is_filled_from_the_start_of_its_file(
    reopen: Opener, directory: Path
) -> None:
    """The vector of the format: ten units a file, first message 15."""
    queue = reopen()
    put(queue, 15, 2)
    queue.flush()
    assert [path.name for path in directory.iterdir()] == ["00000000000000000200"]
    fill = bytes.fromhex("00000000000000007fffffff0000000000000000")
    assert fill == PREFILL_BYTES
    units = b"".join(
        encode_unit(log_offset=n * SIZE, message_bytes=SIZE, tags_code=n) for n in (15, 16)
    )
    data = (directory / "00000000000000000200").read_bytes()
    assert data == (fill * 5 + units).ljust(FILE_BYTES, b"\x00")


@pytest.mark.parametrize("first", [1, 9, 10, 15, 19])
def test_fills_are_never_messages(reopen: Opener, first: int) -> None:
    queue = reopen()
    put(queue, first, 3)
    for seen in (queue, reopen()):
        assert (seen.min_offset, seen.max_offset) == (first, first + 3)
        assert seen.correct_min_offset(0) == first
        assert whole(seen) == numbers(first, first + 1, first + 2)
        with pytest.raises(OffsetOutOfRangeError):
            seen.units(first - 1, 1)
        answer = seen.offset_by_time(
            0, Boundary.LOWER, store_time=lambda log_offset, message_bytes: log_offset
        )
        assert answer == first


def test_a_first_message_at_the_start_of_the_log_may_follow_fills(reopen: Opener) -> None:
    queue = reopen()
    put(queue, 4, 2, at=0)
    assert reopen().max_offset == 6
    assert reopen().min_offset == 4


def test_a_queue_without_messages_begins_where_the_next_one_says(
    reopen: Opener, directory: Path
) -> None:
    queue = reopen()
    put(queue, 15, 2)
    assert queue.truncate(0) == 2
    assert (queue.min_offset, queue.max_offset, queue.last_log_end) == (15, 15, 0)
    assert reopen().max_offset == 15
    put(queue, 17, 1)
    assert (queue.min_offset, queue.max_offset) == (17, 18)
    queue.truncate(0)
    put(queue, 33, 2)
    for seen in (queue, reopen()):
        assert (seen.min_offset, seen.max_offset) == (33, 35)
        assert whole(seen) == numbers(33, 34)
    assert [path.name for path in directory.iterdir()] == ["00000000000000000600"]
    queue.truncate(0)
    put(queue, 2, 1)
    assert (queue.min_offset, queue.max_offset) == (2, 3)
    assert [path.name for path in directory.iterdir()] == ["00000000000000000000"]


@pytest.mark.parametrize(
    ("offset", "count", "want"),
    [(0, 0, []), (0, 1, [0]), (8, 4, [8, 9, 10, 11]), (23, 99, [23, 24]), (25, 5, []), (25, 0, [])],
)
def test_reads_stop_at_the_end(reopen: Opener, offset: int, count: int, want: list[int]) -> None:
    queue = reopen()
    put(queue, 0, 25)
    assert rows(queue.units(offset, count)) == numbers(*want)
