"""One consume queue: puts, holes, bad input, failing disks, cuts, histories, and search by time.

The answers are compared with a model queue (a list) and with Java's recorded searches.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.codec.golden_files import expected, files_under
from tieredstore.codec.queue_unit import (
    PREFILL,
    PREFILL_BYTES,
    UNIT_BYTES,
    QueueUnit,
    QueueUnits,
    decode_units,
    encode_unit,
    encode_units,
)
from tieredstore.local.consume_queue import (
    ConsumeQueue,
    Doubt,
    QueueEnd,
    encode_new_units,
    first_where,
    matching_tags,
    offset_by_time,
)
from tieredstore.local.mapped_file import MappedFiles
from tieredstore.model.errors import (
    OffsetOutOfRangeError,
    PositionMismatchError,
    SegmentCorruptError,
)
from tieredstore.model.values import INT32_MAX, INT64_MAX, Boundary

FILE_BYTES = 200  # ten units
SIZE = 100
Opener = Callable[[], ConsumeQueue]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "T" / "0"


@pytest.fixture
def reopen(directory: Path) -> Iterator[Opener]:
    queues: list[ConsumeQueue] = []

    def open_again() -> ConsumeQueue:
        queue = ConsumeQueue.open(directory, file_bytes=FILE_BYTES, files=MappedFiles(open_max=2))
        queues.append(queue)
        return queue

    yield open_again
    for queue in queues:
        queue.close()


def put(queue: ConsumeQueue, first: int, count: int = 1, *, at: int | None = None) -> int:
    """Put messages of 100 bytes, one right behind another: number k is at log offset 100 * k."""
    log_offsets = [(first if at is None else at) * SIZE + SIZE * n for n in range(count)]
    return queue.put(first, log_offsets, [SIZE] * count, [first + n for n in range(count)])


def rows(units: QueueUnits) -> list[QueueUnit]:
    columns = (units.log_offsets, units.message_bytes, units.tags_codes)
    return [QueueUnit(*row) for row in zip(*(one.tolist() for one in columns), strict=True)]


def whole(queue: ConsumeQueue) -> list[QueueUnit]:
    return rows(queue.units(queue.min_offset, queue.max_offset - queue.min_offset))


def numbers(*offsets: int) -> list[QueueUnit]:
    return [QueueUnit(offset * SIZE, SIZE, offset) for offset in offsets]


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


def overwrite(directory: Path, offset: int, data: bytes) -> None:
    """Damage one unit on the disk."""
    path = directory / f"{offset * UNIT_BYTES // FILE_BYTES * FILE_BYTES:020d}"
    held = bytearray(path.read_bytes())
    at = offset * UNIT_BYTES % FILE_BYTES
    held[at : at + UNIT_BYTES] = data
    path.write_bytes(held)


def agrees(offset: int, unit: QueueUnit) -> bool:
    return unit == QueueUnit(offset * SIZE, SIZE, offset)


@pytest.mark.parametrize("count", [1, 9, 10, 11, 25])
def test_what_lies_behind_the_end_is_no_message(reopen: Opener, count: int) -> None:
    queue = reopen()
    put(queue, 0, count)
    for seen in (queue, reopen()):
        for offset in (-1, count, count + 1):
            with pytest.raises(OffsetOutOfRangeError):
                seen.unit(offset)
        assert rows(seen.units(count, 5)) == []
        assert rows(seen.units(count - 1, 5)) == numbers(count - 1)


def test_a_queue_that_agrees_with_its_log_is_not_doubted(reopen: Opener) -> None:
    assert reopen().distrust(agrees, 0) is None
    put(reopen(), 0, 25)
    queue = reopen()
    assert queue.distrust(agrees, 0) is None
    assert queue.distrust(lambda *_: False, 25 * SIZE) is None  # the log has deleted all of it
    assert queue.end() == QueueEnd(0, 25, 25 * SIZE)


def test_a_queue_ends_behind_the_last_unit_that_agrees(reopen: Opener, directory: Path) -> None:
    put(reopen(), 0, 25)
    for offset in (23, 24):
        overwrite(directory, offset, pack(">qiq", offset * SIZE, SIZE - 1, offset))
    queue = reopen()
    assert queue.max_offset == 25
    assert queue.distrust(agrees, 0) == Doubt(23, None, is_followed=False)
    assert queue.end() == QueueEnd(0, 23, 23 * SIZE)
    assert whole(queue) == numbers(*range(23))
    with pytest.raises(OffsetOutOfRangeError):
        queue.unit(23)


@pytest.mark.parametrize("last", [13, 19, 20, 24])
def test_units_behind_a_damaged_one_tell_that_the_queue_went_on(
    reopen: Opener, directory: Path, last: int
) -> None:
    put(reopen(), 0, 25)
    overwrite(directory, 12, bytes(UNIT_BYTES))
    queue = reopen()
    assert queue.max_offset == 12
    found = queue.distrust(lambda offset, unit: offset <= last and agrees(offset, unit), 0)
    assert found == Doubt(12, QueueEnd(0, last + 1, (last + 1) * SIZE), is_followed=True)
    assert queue.max_offset == 12


def test_units_behind_a_damaged_one_are_found_in_a_file_that_is_not_full(directory: Path) -> None:
    """The written part of the file ends with a page, in the middle of a unit."""

    def opened() -> ConsumeQueue:
        return ConsumeQueue.open(directory, file_bytes=20_000, files=MappedFiles(open_max=2))

    put(opened(), 0, 300)
    opened().mend(250, QueueUnit(0, 0, 0))
    assert opened().distrust(agrees, 0) == Doubt(250, QueueEnd(0, 300, 300 * SIZE), True)


@pytest.mark.parametrize("unit", [(0, SIZE, 0), (13 * SIZE, 0, 0), (1, 0, 0)])
def test_bytes_behind_the_end_that_agree_with_nothing_are_told(
    reopen: Opener, directory: Path, unit: tuple[int, int, int]
) -> None:
    put(reopen(), 0, 12)
    overwrite(directory, 13, pack(">qiq", *unit))
    queue = reopen()
    assert queue.max_offset == 12
    assert queue.distrust(agrees, 0) == Doubt(12, None, is_followed=True)


def test_a_queue_whose_first_file_went_begins_with_the_next(reopen: Opener) -> None:
    put(reopen(), 0, 35)
    queue = reopen()
    assert queue.delete_before(15 * SIZE) == 1
    assert (queue.first_kept, queue.min_offset) == (10, 15)
    assert queue.end() == QueueEnd(10, 35, 35 * SIZE)
    found = queue.distrust(lambda *_: False, 0)
    assert found == Doubt(10, None, is_followed=False)
    assert (queue.min_offset, queue.max_offset) == (10, 10)


@pytest.mark.parametrize("offset", [0, 9, 10, 13, 24])
def test_a_unit_is_mended_where_it_lies(reopen: Opener, directory: Path, offset: int) -> None:
    put(reopen(), 0, 25)
    overwrite(directory, offset, pack(">qiq", offset * SIZE, SIZE, 77))
    queue = reopen()
    path, at = queue.place_of(offset)
    assert Path(path).read_bytes()[at : at + UNIT_BYTES][-1] == 77
    assert queue.place_of(99) == (str(directory), 99 * UNIT_BYTES)
    queue.mend(offset, *numbers(offset))
    for seen in (queue, reopen()):
        assert whole(seen) == numbers(*range(25))
    queue.mend(25, QueueUnit(0, SIZE, 0))
    queue.mend(-1, QueueUnit(0, SIZE, 0))
    assert whole(queue) == numbers(*range(25))


@pytest.mark.parametrize("count", range(12))
def test_one_number_that_lies_misleads_only_beside_the_place(count: int) -> None:
    low, high = 5, 5 + count
    for border in range(low, high + 1):
        for liar in (None, *range(low, high)):

            def holds(number: int, border: int = border, liar: int | None = liar) -> bool:
                assert low <= number < high, "it is asked about numbers that are there only"
                return (number >= border) != (number == liar)

            found = first_where(low, high, holds)
            if liar is None or not border - 2 <= liar <= border + 1:
                assert found == border
            assert low <= found <= high
            assert abs(found - border) <= 2


def test_few_and_many_give_the_same_bytes(reopen: Opener, directory: Path) -> None:
    queue = reopen()
    for first in range(0, 100, 7):
        put(queue, first, min(7, 100 - first))
    singly = {path.name: path.read_bytes() for path in directory.iterdir()}
    queue.destroy()
    assert put(queue, 0, 100) == 100
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == singly


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
    """The format's test vector: ten units a file, first message 15."""
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
    put(queue, 12, 1)
    assert (queue.min_offset, queue.max_offset) == (12, 13)
    assert whole(queue) == numbers(12)
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


messages = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-1, 3), st.integers(-(2**63), 2**63)), max_size=8
)


@given(rows=messages, begin=st.integers(-1, 3), last_log_end=st.integers(0, 30))
def test_new_units_are_those_of_a_loop_over_the_messages(
    rows: list[tuple[int, int, int]], begin: int, last_log_end: int
) -> None:
    log_offsets: list[int] = []
    for apart, size, _ in rows:
        log_offsets.append(begin + apart)
        begin += apart + size
    sizes, tags_codes = [size for _, size, _ in rows], [tags for _, _, tags in rows]
    units, end = [], 0
    is_sound = True
    for log_offset, size, tags_code in zip(log_offsets, sizes, tags_codes, strict=True):
        is_sound = is_sound and log_offset >= end and size > 0
        end = log_offset + size
        if end > last_log_end:  # only a known message may have a tags code that is too large
            is_sound = is_sound and tags_code < 2**63
            units.append((log_offset, size, tags_code))
    if not is_sound:
        with pytest.raises(ValueError, match="log_offset|message_bytes|tags_code"):
            encode_new_units(log_offsets, sizes, tags_codes, last_log_end)
        return
    new = encode_new_units(log_offsets, sizes, tags_codes, last_log_end)
    assert (new.skipped, new.last_log_end) == (len(rows) - len(units), end)
    assert new.data == b"".join(
        encode_unit(log_offset=at, message_bytes=size, tags_code=code) for at, size, code in units
    )


def test_a_message_that_ends_where_the_queue_ends_is_known() -> None:
    for count in (3, 100):
        log_offsets = [100 * number for number in range(count)]
        sizes, tags = [100] * count, [7] * count
        new = encode_new_units(log_offsets, sizes, tags, 200)
        assert new.skipped == 2
        assert new.last_log_end == 100 * count
        assert new.data == encode_units(
            log_offsets=log_offsets[2:], message_bytes=sizes[2:], tags_codes=tags[2:]
        )
        assert encode_new_units(log_offsets, sizes, tags, 100 * count).data == b""


def test_bad_input_is_refused_with_what_is_wrong(reopen: Opener) -> None:
    queue = reopen()
    put(queue, 0, 3)
    with pytest.raises(ValueError, match="queue_offset"):
        queue.put(-1, [900], [1], [1])
    with pytest.raises(ValueError, match="count"):
        queue.units(0, -1)
    for offset in (-1, 3, 2**70):
        with pytest.raises(OffsetOutOfRangeError):
            queue.unit(offset)
    for offset in (-1, 4):
        with pytest.raises(OffsetOutOfRangeError):
            queue.units(offset, 1)
    assert queue.put(3, [], [], []) == 0


@pytest.mark.parametrize("count", [3, 60])
@pytest.mark.parametrize(
    ("place", "log_offset", "size", "tags", "name"),
    [
        (1, 5000 - 1, 100, 0, "log_offset"),
        (0, -1, 100, 0, "log_offset"),
        (1, 5100, 0, 0, "message_bytes"),
        (1, 5100, -5, 0, "message_bytes"),
        (2, 5200, 2**31, 0, "message_bytes"),
        (2, 5200, 100, 2**63, "tags_code"),
    ],
)
def test_columns_that_are_no_records_in_log_order_are_refused(
    reopen: Opener, count: int, place: int, log_offset: int, size: int, tags: int, name: str
) -> None:
    queue = reopen()
    put(queue, 0, 3)
    columns = [
        [5000 + 100 * number for number in range(count)],
        [100] * count,
        [0] * count,
    ]
    columns[0][place], columns[1][place], columns[2][place] = log_offset, size, tags
    with pytest.raises(ValueError, match=name):
        queue.put(3, *columns)
    with pytest.raises(ValueError, match="different lengths"):
        queue.put(3, columns[0], columns[1][:-1], columns[2])
    with pytest.raises(ValueError, match="log_offset: 400 is below"):
        queue.put(3, [300, 400, 5_000_000_000], [INT32_MAX, SIZE, SIZE], [0, 0, 0])
    assert queue.max_offset == 3
    assert reopen().max_offset == 3


def test_a_put_that_fails_halfway_is_made_up_for_by_the_next(
    reopen: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = reopen()
    put(queue, 0, 5)

    def refuse(descriptor: int, size: int) -> None:
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)
        with pytest.raises(Exception, match="no space left"):
            put(queue, 5, 20)
    assert queue.max_offset == 5
    assert reopen().max_offset in (5, 10)
    assert put(queue, 5, 20) == 20
    assert whole(queue) == numbers(*range(25))


def test_what_is_flushed_is_synced_without_a_flush_of_the_map(
    reopen: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = reopen()
    synced: list[str] = []
    fdatasync = os.fdatasync

    def watch(descriptor: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fdatasync(descriptor)

    put(queue, 0, 25)
    monkeypatch.setattr(os, "fdatasync", watch)
    queue.flush()
    assert synced == [f"{start:020d}" for start in (0, 200, 400)]
    queue.flush()
    assert len(synced) == 3
    put(queue, 25)
    queue.flush()
    assert synced[3:] == [f"{400:020d}"]


def test_extension_addresses_are_kept_and_match_every_tag(reopen: Opener) -> None:
    queue = reopen()
    tags = [-(2**63) + 5, -(2**31) - 1, -(2**31), 7, 7 + 2**32, 8]
    queue.put(0, range(0, 600, 100), [100] * 6, tags)
    units = reopen().units(0, 6)
    assert units.tags_codes.tolist() == tags
    assert matching_tags(units, [7]).tolist() == [True, True, False, True, True, False]
    assert matching_tags(units, [-(2**31)]).tolist() == [True, True, True, False, False, False]
    assert matching_tags(units, [2**31]).tolist() == [True, True, True, False, False, False]
    assert matching_tags(units, []).tolist() == [True, True, False, False, False, False]
    many = [7, *range(1000, 1020)]
    assert matching_tags(units, many).tolist() == matching_tags(units, [7]).tolist()


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
    assert len(list(directory.iterdir())) == max(1, -(-kept // 10)), "Java fails at an empty file"
    put(queue, kept, 12)
    assert whole(reopen()) == numbers(*range(kept + 12))


def test_a_file_that_a_crash_left_empty_is_removed(reopen: Opener, directory: Path) -> None:
    put(reopen(), 0, 10)
    left = directory / f"{FILE_BYTES:020d}"
    left.write_bytes(bytes(FILE_BYTES))
    queue = reopen()
    queue.tidy()
    assert not left.exists()
    put(queue, 10, 3)
    assert whole(reopen()) == numbers(*range(13))


@pytest.mark.parametrize("count", [0, 3])
def test_a_queue_that_a_crash_left_without_a_message_has_no_file(
    count: int, reopen: Opener, directory: Path
) -> None:
    """Java takes the first unit of an empty file for a message."""
    put(reopen(), 0, 3)
    if not count:
        (directory / f"{0:020d}").write_bytes(bytes(FILE_BYTES))
    queue = reopen()
    assert queue.truncate(0) == count
    queue.tidy()
    assert not directory.exists()
    assert queue.max_offset == reopen().max_offset == 0
    put(queue, 0, 12)
    assert whole(reopen()) == numbers(*range(12))


def test_an_empty_file_whose_name_alone_holds_the_number_of_a_queue_stays(
    reopen: Opener, directory: Path
) -> None:
    put(reopen(), 0, 12)
    (directory / f"{0:020d}").unlink()
    (directory / f"{FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES))
    queue = reopen()
    queue.tidy()
    assert queue.max_offset == reopen().max_offset == 10


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
    # its size does not count.
    whole_units = 20 + end // UNIT_BYTES
    assert whole_units <= queue.max_offset <= whole_units + 1
    queue.truncate(whole_units * SIZE)
    put(queue, whole_units, COUNT - whole_units)
    assert whole(reopen()) == numbers(*range(COUNT))


def test_old_units_behind_a_hole_do_not_come_back(reopen: Opener, directory: Path) -> None:
    """A power cut lost a unit in the middle of the last file; those behind it are still there."""
    put(reopen(), 0, COUNT)
    last = max(directory.iterdir())
    data = bytearray(last.read_bytes())
    data[UNIT_BYTES : 2 * UNIT_BYTES] = bytes(UNIT_BYTES)
    last.write_bytes(data)
    queue = reopen()
    assert queue.max_offset == 21
    assert put(queue, 21, at=50) == 1
    assert reopen().max_offset == 22


@pytest.mark.parametrize("newest", [3, 9, 19])
def test_units_of_an_older_history_end_a_queue(
    reopen: Opener, directory: Path, newest: int
) -> None:
    """Java leaves what it cut: once the queue has grown again, older log offsets follow newer."""
    put(reopen(), 0, 25)
    overwrite(directory, newest, pack(">qiq", 5000, SIZE, 1))
    assert reopen().max_offset == newest + 1


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


@pytest.mark.parametrize("count", [511, 512, 513, 700])
def test_a_queue_longer_than_a_block_is_found_whole(directory: Path, count: int) -> None:
    def opened() -> ConsumeQueue:
        return ConsumeQueue.open(directory, file_bytes=20_000, files=MappedFiles(open_max=2))

    put(opened(), 0, count)
    assert (opened().max_offset, opened().last_log_end) == (count, count * SIZE)


@pytest.mark.parametrize(
    ("log_offset", "size", "end"),
    [
        (INT64_MAX - INT32_MAX, INT32_MAX, 24),
        (INT64_MAX - INT32_MAX + 1, SIZE, 23),
        (INT64_MAX, SIZE, 23),
        (-1, SIZE, 23),
        (2300, 0, 23),
    ],
)
def test_a_unit_that_no_log_has_room_for_ends_a_queue(
    reopen: Opener, directory: Path, log_offset: int, size: int, end: int
) -> None:
    put(reopen(), 0, 25)
    overwrite(directory, 23, pack(">qiq", log_offset, size, 23))
    assert reopen().max_offset == end


@pytest.mark.parametrize("unit", [(INT64_MAX, SIZE, 0), (-1, SIZE, 0), (2000, 0, 0)])
@pytest.mark.parametrize(("count", "first"), [(15, 0), (45, 20)])
def test_a_file_that_begins_with_no_unit_leaves_what_lies_before_it(
    reopen: Opener, directory: Path, count: int, first: int, unit: tuple[int, int, int]
) -> None:
    put(reopen(), 0, count)
    overwrite(directory, first, pack(">qiq", *unit))
    queue = reopen()
    assert (queue.max_offset, queue.last_log_end) == (first, first * SIZE)


def test_a_queue_that_was_told_where_to_begin_has_no_message_yet(reopen: Opener) -> None:
    queue = reopen()
    put(queue, 0, 12)
    queue.begin_at(40)
    assert (queue.min_offset, queue.max_offset, queue.last_log_end) == (40, 40, 0)
    put(queue, 42)  # the messages in between have no units here
    assert (queue.min_offset, queue.max_offset) == (42, 43)


def test_what_was_not_doubted_is_not_opened_to_be_tidied(directory: Path) -> None:
    """A store calls `tidy` for every queue that it has."""
    files = MappedFiles(open_max=2)
    put(ConsumeQueue.open(directory, file_bytes=FILE_BYTES, files=MappedFiles(open_max=2)), 0, 25)
    queue = ConsumeQueue.open(directory, file_bytes=FILE_BYTES, files=files)
    queue.tidy()
    assert files.open_count == 0


def test_a_first_unit_that_lies_keeps_nothing_that_has_gone(reopen: Opener) -> None:
    queue = reopen()
    put(queue, 0, 25)
    queue.mend(0, QueueUnit(9_000, SIZE, 0))
    assert queue.correct_min_offset(15 * SIZE) == 15


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
    assert queue.has_gap
    assert queue.max_offset == 30
    assert whole(queue) == numbers(*range(30))


@pytest.mark.parametrize("count", [11, 45])
def test_a_file_that_goes_while_the_queue_is_open_is_damage_at_its_place(
    reopen: Opener, directory: Path, count: int
) -> None:
    put(reopen(), 0, count)
    queue = reopen()
    assert not queue.has_gap
    (directory / f"{FILE_BYTES:020d}").unlink()
    for read in (lambda: queue.unit(10), lambda: queue.units(4, 9)):
        with pytest.raises(SegmentCorruptError, match="no file holds the unit") as caught:
            read()
        assert caught.value.position == 10 * UNIT_BYTES
    assert rows(queue.units(4, 6)) == numbers(*range(4, 10))


FIVE_UNITS = 100  # five units
SHORT_RECORD = 10


class QueueMachine(RuleBasedStateMachine):
    """`kept` are the messages in the queue, by queue offset; the log goes on at `log_end`."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp()
        self.kept: dict[int, QueueUnit] = {}
        self.next = 0
        self.minimum = 0
        self.log_end = 0
        self.queue = self.opened()

    def opened(self) -> ConsumeQueue:
        files = MappedFiles(open_max=2)
        return ConsumeQueue.open(Path(self.root) / "T" / "0", file_bytes=FIVE_UNITS, files=files)

    def teardown(self) -> None:
        self.queue.close()
        shutil.rmtree(self.root)

    def put(self, first: int, units: list[QueueUnit]) -> int:
        columns = [list(column) for column in zip(*units, strict=True)]
        return self.queue.put(first, *columns)

    @rule(count=st.integers(1, 24), apart=st.integers(0, 3))
    def put_new(self, count: int, apart: int) -> None:
        units = [
            QueueUnit(self.log_end + number * (SHORT_RECORD + apart), SHORT_RECORD, number)
            for number in range(count)
        ]
        assert self.put(self.next, units) == count
        self.kept |= {self.next + number: unit for number, unit in enumerate(units)}
        self.next += count
        self.log_end = units[-1].log_offset + SHORT_RECORD

    @precondition(lambda self: not self.kept)
    @rule(first=st.integers(0, 40))
    def begin_anew(self, first: int) -> None:
        self.next = self.minimum = first
        self.put_new(1, 0)

    @precondition(lambda self: self.kept)
    @rule(hole=st.integers(1, 12))
    def leave_a_hole(self, hole: int) -> None:
        with pytest.raises(PositionMismatchError) as caught:
            self.put(self.next + hole, [QueueUnit(self.log_end, SHORT_RECORD, 0)])
        assert caught.value.actual == self.next

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def put_again(self, data: st.DataObject) -> None:
        first = data.draw(st.sampled_from(sorted(self.kept)))
        count = data.draw(st.integers(1, 24))
        units = [self.kept[offset] for offset in range(first, min(self.next, first + count))]
        assert self.put(first, units) == 0

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from(sorted(self.kept)))
        log_offset = self.kept[at].log_offset
        dropped = [offset for offset in self.kept if offset >= at]
        # Messages below the minimum have left the log as well and cannot be cut.
        readable = [offset for offset in dropped if offset >= self.minimum]
        if at < self.minimum:
            return
        assert self.queue.truncate(log_offset) == len(readable)
        for offset in dropped:
            del self.kept[offset]
        self.next = at
        self.log_end = log_offset

    @precondition(lambda self: self.kept)
    @rule(data=st.data(), delete=st.booleans())
    def expire(self, data: st.DataObject, delete: bool) -> None:
        at = data.draw(st.sampled_from([*sorted(self.kept), self.next]))
        log_offset = self.kept[at].log_offset if at in self.kept else self.log_end
        if delete:
            self.queue.delete_before(log_offset)
            files = min(int(path.name) for path in Path(self.queue.directory).iterdir())
            first = files // UNIT_BYTES
            self.kept = {offset: unit for offset, unit in self.kept.items() if offset >= first}
        else:
            self.queue.correct_min_offset(log_offset)
        self.minimum = max(self.minimum, at)

    @rule(flush=st.booleans())
    def reopen(self, flush: bool) -> None:
        if flush:
            self.queue.flush()
        self.queue.close()
        self.queue = self.opened()
        # The queue learns where the log begins now.
        unit = self.kept.get(self.minimum)
        self.queue.correct_min_offset(self.log_end if unit is None else unit.log_offset)

    @invariant()
    def the_queue_is_the_list(self) -> None:
        queue = self.queue
        assert (queue.min_offset, queue.max_offset) == (self.minimum, self.next)
        units = queue.units(self.minimum, 10_000)
        want = [self.kept[offset] for offset in range(self.minimum, self.next)]
        assert units.log_offsets.tolist() == [unit.log_offset for unit in want]
        assert units.message_bytes.tolist() == [unit.message_bytes for unit in want]
        assert units.tags_codes.tolist() == [unit.tags_code for unit in want]
        if want:
            assert queue.last_log_end == want[-1].log_offset + SHORT_RECORD
            middle = want[len(want) // 2]
            answer = queue.offset_by_time(
                middle.log_offset, Boundary.LOWER, store_time=lambda log_offset, size: log_offset
            )
            assert self.kept[answer] == middle


TestQueueMachine = QueueMachine.TestCase


LOWER, UPPER = Boundary.LOWER, Boundary.UPPER


def linear(
    times: Sequence[int | None], timestamp: int, boundary: Boundary, *, minimum: int = 0
) -> int:
    """The model search: times[k] belongs to queue offset minimum + k; None cannot be read."""
    readable = [(minimum + k, time) for k, time in enumerate(times) if time is not None]
    if boundary is LOWER:
        return next((at for at, time in readable if time >= timestamp), minimum + len(times))
    return max((at for at, time in readable if time <= timestamp), default=minimum)


def search(
    times: Sequence[int | None], timestamp: int, boundary: Boundary, *, minimum: int = 0
) -> tuple[int, int]:
    """The answer and the number of messages read for it."""
    probes: list[int] = []

    def store_time(log_offset: int, message_bytes: int) -> int | None:
        probes.append(log_offset)
        assert message_bytes == 100
        return times[log_offset // 100 - minimum]

    answer = offset_by_time(
        timestamp,
        boundary,
        minimum=minimum,
        maximum=minimum + len(times),
        unit=lambda offset: QueueUnit(offset * 100, 100, 0),
        store_time=store_time,
    )
    return answer, len(probes)


def golden_units(folder: str, topic: str, queue_id: int) -> tuple[int, QueueUnits]:
    """The first queue offset in the files, and all units from there on."""
    files = files_under(f"{folder}/consumequeue/{topic}/{queue_id}")
    return int(files[0].name) // UNIT_BYTES, decode_units(b"".join(f.read_bytes() for f in files))


@pytest.mark.parametrize("folder", ["local-clean", "local-expired"])
def test_every_recorded_answer_of_java_is_ours(folder: str) -> None:
    state: dict[str, Any] = expected(f"{folder}.expect-state.json")
    states = {(queue["topic"], queue["queueId"]): queue for queue in state["queues"]}
    times = {
        row["physicalOffset"]: row["storeTimestamp"]
        for row in expected("local-clean.expect-messages.json")
    }
    queues = {key: golden_units(folder, *key) for key in states}
    asked = 0
    for row in expected(f"{folder}.expect-queries.json"):
        query = row["query"]
        key = (query.get("topic"), query.get("queueId"))
        if query["op"] != "offsetByTime" or key not in states:
            continue
        first, units = queues[key]

        def unit(offset: int, first: int = first, units: QueueUnits = units) -> QueueUnit:
            place = offset - first
            return QueueUnit(int(units.log_offsets[place]), int(units.message_bytes[place]), 0)

        answer = offset_by_time(
            query["timestamp"],
            Boundary[query["boundary"]],
            minimum=states[key]["minOffset"],
            maximum=states[key]["maxOffset"],
            unit=unit,
            store_time=lambda log_offset, message_bytes: times[log_offset],
            min_log_offset=state["store"]["minPhyOffset"],
        )
        assert answer == row["result"]["offset"], row
        asked += 1
    assert asked > 150


def test_the_answers_measured_on_a_queue_of_forty_five_messages() -> None:
    times = [1000 + 10 * number for number in range(45)]
    times[18:] = [time + 1000 for time in times[18:]]
    assert search(times, 1, LOWER)[0] == search(times, 1, UPPER)[0] == 0
    assert (search(times, 1500, LOWER)[0], search(times, 1500, UPPER)[0]) == (18, 17)
    assert (search(times, 9999, LOWER)[0], search(times, 9999, UPPER)[0]) == (45, 44)


@given(
    times=st.lists(st.integers(0, 30), max_size=40).map(sorted),
    timestamp=st.integers(-1, 31),
    boundary=st.sampled_from(Boundary),
    minimum=st.integers(0, 5),
)
def test_a_search_answers_as_the_linear_definition(
    times: list[int], timestamp: int, boundary: Boundary, minimum: int
) -> None:
    answer, _ = search(times, timestamp, boundary, minimum=minimum)
    assert answer == linear(times, timestamp, boundary, minimum=minimum)


@given(
    rows=st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=30),
    timestamp=st.integers(-1, 21),
    boundary=st.sampled_from(Boundary),
)
def test_messages_that_cannot_be_read_are_as_if_they_were_not_there(
    rows: list[tuple[int, bool]], timestamp: int, boundary: Boundary
) -> None:
    ordered = sorted(time for time, _ in rows)
    times = [time if good else None for time, (_, good) in zip(ordered, rows, strict=True)]
    answer, _ = search(times, timestamp, boundary)
    assert answer == linear(times, timestamp, boundary)


@pytest.mark.parametrize("boundary", Boundary)
def test_a_search_reads_few_messages(boundary: Boundary) -> None:
    _, probes = search(range(300_000), 123_456, boundary)
    assert probes <= 19


@pytest.mark.parametrize("boundary", Boundary)
def test_an_empty_queue_answers_its_minimum(boundary: Boundary) -> None:
    assert search([], 5, boundary, minimum=7) == (7, 0)


def test_a_queue_of_which_nothing_can_be_read_answers_its_ends() -> None:
    assert search([None] * 9, 5, LOWER)[0] == 9
    assert search([None] * 9, 5, UPPER)[0] == 0


def test_units_of_expired_log_files_are_too_old_and_are_not_read() -> None:
    read: list[int] = []

    def store_time(log_offset: int, message_bytes: int) -> int:
        read.append(log_offset)
        return log_offset

    def answer(timestamp: int, boundary: Boundary) -> int:
        return offset_by_time(
            timestamp,
            boundary,
            minimum=0,
            maximum=100,
            unit=lambda offset: QueueUnit(offset * 10, 10, 0),
            store_time=store_time,
            min_log_offset=600,
        )

    assert answer(5, LOWER) == 60
    assert answer(650, LOWER) == answer(650, UPPER) == 65
    assert min(read) >= 600


def test_units_that_hold_no_message_are_walked_over() -> None:
    units = [PREFILL, PREFILL, QueueUnit(0, 0, 0), QueueUnit(70, 10, 0), QueueUnit(80, 10, 0)]

    def answer(timestamp: int) -> int:
        return offset_by_time(
            timestamp,
            LOWER,
            minimum=0,
            maximum=6,
            unit=lambda offset: units[offset] if offset < len(units) else None,
            store_time=lambda log_offset, message_bytes: log_offset,
        )

    assert [answer(time) for time in (0, 70, 71, 80, 81)] == [3, 3, 4, 4, 6]


def test_batches_of_any_length_leave_no_memory_behind() -> None:
    """A `Struct` takes 96 bytes for each unit that it packs."""
    counts = range(1_000, 2_000, 20)
    places, ones = list(range(1, 2_000)), [1] * 1_999
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for count in counts:
            new = encode_new_units(places[:count], ones[:count], ones[:count], last_log_end=0)
            assert len(new.data) == UNIT_BYTES * count
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held < 1 << 20


@pytest.mark.parametrize("count", [1, 255, 256, 257, 512, 700])
def test_units_of_long_batches_are_those_of_single_messages(count: int) -> None:
    log_offsets, sizes, codes = range(10, 10 + 5 * count, 5), [5] * count, range(-1, count - 1)
    new = encode_new_units(log_offsets, sizes, codes, last_log_end=0)
    assert new.data == b"".join(
        encode_unit(log_offset=at, message_bytes=5, tags_code=code)
        for at, code in zip(log_offsets, codes, strict=True)
    )
