"""What the read cache answers, what it fetches for that, and how far it reads ahead."""

from __future__ import annotations

import pytest

from tests.access.cached_file_kit import NOTHING_AHEAD, FakeFile, a_cache, content, extents
from tieredstore.access.read_cache import COMMIT_LOG_AHEAD, CONSUME_QUEUE_AHEAD, ReadAhead
from tieredstore.model.config import KIB, MIB
from tieredstore.model.errors import (
    BackendUnavailableError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentNotFoundError,
)

SMALL = ReadAhead(floor_bytes=100, growth=8, cap_bytes=10_000)


def test_a_read_returns_exactly_the_bytes_and_a_second_one_asks_nobody() -> None:
    file, cache = FakeFile(commit_offset=1000), a_cache()
    assert cache.read(file, 10, 50, ahead=SMALL) == content(10, 60)
    assert cache.read(file, 10, 50, ahead=SMALL) == content(10, 60)
    assert cache.read(file, 60, 50, ahead=SMALL) == content(60, 110)
    assert file.reads == [(10, 100)]
    assert (cache.access_count, cache.hit_count) == (3, 2)
    assert (cache.held_bytes, cache.extent_count) == (100, 1)


def test_what_is_handed_out_are_bytes_of_its_own() -> None:
    file, cache = FakeFile(commit_offset=1000), a_cache()
    part = cache.read(file, 0, 10, ahead=SMALL)
    assert type(part) is bytes
    assert len(part) == 10
    assert type(cache.read(file, 0, 300, ahead=SMALL)) is bytes


def test_a_range_that_is_partly_cached_costs_its_gaps_only() -> None:
    file, cache = FakeFile(commit_offset=1000), a_cache()
    for start in (100, 300, 500):
        cache.read(file, start, 50, ahead=NOTHING_AHEAD)
    file.reads.clear()
    assert cache.read(file, 120, 480, ahead=NOTHING_AHEAD) == content(120, 600)
    assert file.reads == [(150, 150), (350, 150), (550, 50)]
    assert cache.read(file, 100, 500) == content(100, 600)
    assert len(file.reads) == 3
    assert len(extents(cache)) == 6


def test_files_do_not_mix() -> None:
    cache = a_cache()
    one = FakeFile(commit_offset=4, cache_key="one", data=b"aaaa")
    two = FakeFile(commit_offset=4, cache_key="two", data=b"bbbb")
    for _ in range(2):
        assert cache.read(one, 0, 4) + cache.read(two, 0, 4) == b"aaaabbbb"
    assert len(one.reads) == len(two.reads) == 1


def test_nothing_beyond_the_committed_bytes_is_asked_for_and_what_comes_later_is_seen() -> None:
    file, cache = FakeFile(commit_offset=150), a_cache()
    assert cache.read(file, 100, 10, ahead=SMALL) == content(100, 110)
    assert file.reads == [(100, 50)]
    with pytest.raises(OffsetOutOfRangeError) as caught:
        cache.read(file, 100, 51, ahead=SMALL)
    assert (caught.value.offset, caught.value.minimum, caught.value.maximum) == (100, 0, 150)
    file.commit_offset = 200
    assert cache.read(file, 100, 51, ahead=SMALL) == content(100, 151)
    assert file.reads == [(100, 50), (150, 50)]


@pytest.mark.parametrize(("start", "length"), [(9, 1), (10, 91), (101, 0), (50, -1), (-1, 5)])
def test_a_range_that_is_not_there_is_an_error_and_no_access(start: int, length: int) -> None:
    file, cache = FakeFile(commit_offset=100, min_offset=10), a_cache()
    with pytest.raises(OffsetOutOfRangeError):
        cache.read(file, start, length)
    assert (cache.access_count, file.reads) == (0, [])
    cache.read(file, 10, 90)
    with pytest.raises(OffsetOutOfRangeError):
        cache.read(file, start, length)


def test_a_read_of_nothing_asks_nobody() -> None:
    file, cache = FakeFile(commit_offset=100), a_cache()
    assert cache.read(file, 100, 0) == b""
    assert cache.read(file, 0, 0) == b""
    assert file.reads == []


# How far


def test_a_reader_that_goes_on_gets_windows_that_grow_up_to_a_cap() -> None:
    file, cache = FakeFile(commit_offset=100_000), a_cache()
    for start in range(0, 40_000, 50):
        assert cache.read(file, start, 50, ahead=SMALL) == content(start, start + 50)
    assert [length for _, length in file.reads] == [100, 800, 6400, 10_000, 10_000, 10_000, 10_000]


def test_reads_that_jump_fetch_little_each() -> None:
    file, cache = FakeFile(commit_offset=100_000), a_cache()
    for start in range(0, 10_000, 1000):
        cache.read(file, start, 50, ahead=SMALL)
    assert {length for _, length in file.reads} == {100}


def test_a_read_beside_bytes_that_nobody_read_to_their_end_is_a_jump() -> None:
    file, cache = FakeFile(commit_offset=100_000), a_cache()
    cache.read(file, 0, 50, ahead=SMALL)
    cache.read(file, 100, 50, ahead=SMALL)
    assert file.reads == [(0, 100), (100, 100)]


def test_a_reader_that_steps_back_a_little_still_goes_on() -> None:
    # A page of queue units may name more bytes than fit: the next one begins inside the last.
    file, cache = FakeFile(commit_offset=100_000), a_cache()
    cache.read(file, 0, 100, ahead=SMALL)
    cache.read(file, 60, 100, ahead=SMALL)
    assert file.reads == [(0, 100), (100, 800)]


def test_readers_at_different_places_of_a_file_do_not_disturb_each_other() -> None:
    file, cache = FakeFile(commit_offset=100_000), a_cache()
    for step in range(0, 5000, 50):
        for begin in (0, 30_000, 60_000):
            cache.read(file, begin + step, 50, ahead=SMALL)
    assert [length for _, length in file.reads] == [100] * 3 + [800] * 3 + [6400] * 3


def test_a_window_ends_where_cached_bytes_begin_and_goes_on_as_wide_behind_them() -> None:
    file, cache = FakeFile(commit_offset=100_000), a_cache()
    cache.read(file, 1000, 50, ahead=SMALL)
    file.reads.clear()
    for start in range(0, 2000, 50):
        cache.read(file, start, 50, ahead=SMALL)
    assert file.reads == [(0, 100), (100, 800), (900, 100), (1100, 10_000)]


def test_what_is_asked_for_is_one_read_however_much_it_is() -> None:
    file, cache = FakeFile(commit_offset=100_000), a_cache()
    assert cache.read(file, 0, 50_000, ahead=SMALL) == content(0, 50_000)
    assert file.reads == [(0, 50_000)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"floor_bytes": -1},
        {"growth": 0},
        {"floor_bytes": 2, "cap_bytes": 1},
    ],
)
def test_a_window_that_makes_no_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidConfigError):
        ReadAhead(**wrong)


# Failures


def test_a_failure_reaches_the_reader_and_the_next_one_tries_again() -> None:
    def fail(offset: int, length: int) -> None:
        raise BackendUnavailableError("p", "read", "no answer")

    file, cache = FakeFile(commit_offset=1000, before_read=fail), a_cache()
    for _ in range(2):
        with pytest.raises(BackendUnavailableError):
            cache.read(file, 0, 50, ahead=SMALL)
    assert file.reads == [(0, 100)] * 2
    assert extents(cache) == []
    file.before_read = None
    assert cache.read(file, 0, 50, ahead=SMALL) == content(0, 50)
    assert (cache.access_count, cache.hit_count) == (3, 0)


def test_a_failure_at_one_gap_keeps_what_came_before_it_and_leaves_the_rest_unread() -> None:
    file, cache = FakeFile(commit_offset=1000), a_cache()
    for start in (100, 300):
        cache.read(file, start, 50, ahead=NOTHING_AHEAD)
    file.reads.clear()

    def fail(offset: int, length: int) -> None:
        if offset == 150:
            raise KeyError(offset)

    file.before_read = fail
    with pytest.raises(KeyError):
        cache.read(file, 50, 400, ahead=NOTHING_AHEAD)
    assert file.reads == [(50, 50), (150, 150)]
    assert [start for _, start, _ in extents(cache)] == [50, 100, 300]


def test_what_lies_ahead_and_cannot_be_read_does_not_hide_what_was_asked_for() -> None:
    def fail(offset: int, length: int) -> None:
        if offset + length > 1000:
            raise SegmentNotFoundError("segment at 1000")

    file, cache = FakeFile(commit_offset=100_000, before_read=fail), a_cache()
    for start in range(0, 1000, 50):
        assert cache.read(file, start, 50, ahead=SMALL) == content(start, start + 50)
    # One window too wide, then small ones again: no request for each of the last reads.
    assert file.reads == [(0, 100), (100, 800), (900, 6400), (900, 50), (950, 100), (950, 50)]
    with pytest.raises(SegmentNotFoundError):
        cache.read(file, 1000, 50, ahead=SMALL)
    with pytest.raises(SegmentNotFoundError):
        cache.read(file, 980, 50, ahead=SMALL)
    assert extents(cache)[-1][1:] == (950, 1000)


def test_a_file_that_returns_fewer_bytes_than_asked_for_is_found_out() -> None:
    file, cache = FakeFile(commit_offset=1000, data=b"short"), a_cache()
    with pytest.raises(SegmentCorruptError, match="5 bytes came where 50 were asked for"):
        cache.read(file, 0, 50, ahead=SMALL)
    assert extents(cache) == []


# What a cold read of a whole queue costs

MESSAGE, COUNT, UNIT = 1024, 65_536, 20


@pytest.mark.parametrize(("batch", "most"), [(32, 9), (4096, 7)])
def test_a_cold_read_of_a_64_mib_queue_costs_few_requests(batch: int, most: int) -> None:
    log_bytes, queue_bytes = MESSAGE * COUNT, UNIT * COUNT
    log = FakeFile(commit_offset=log_bytes, data=bytes(log_bytes))
    queue = FakeFile(commit_offset=queue_bytes, data=bytes(queue_bytes), cache_key="queue")
    cache = a_cache(bytes_max=256 * MIB)
    for first in range(0, COUNT, batch):
        units = cache.read(queue, first * UNIT, batch * UNIT, ahead=CONSUME_QUEUE_AHEAD)
        assert len(units) == batch * UNIT
        records = cache.read(log, first * MESSAGE, batch * MESSAGE, ahead=COMMIT_LOG_AHEAD)
        assert len(records) == batch * MESSAGE
    assert len(log.reads) + len(queue.reads) == most
    assert most <= log_bytes // (8 * MIB) + 2
    assert cache.hit_count == cache.access_count - most


def test_the_windows_of_a_queue_are_as_wide_as_promised() -> None:
    assert (COMMIT_LOG_AHEAD.floor_bytes, COMMIT_LOG_AHEAD.cap_bytes) == (64 * KIB, 16 * MIB)
    assert (CONSUME_QUEUE_AHEAD.floor_bytes, CONSUME_QUEUE_AHEAD.cap_bytes) == (160 * KIB, 4 * MIB)
