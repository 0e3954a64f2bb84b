"""The read cache: its answers, the fetches that they cost, and its bounds.

With one reader, with many at once, and in random runs compared with a plain file.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from functools import partial

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.access.cached_file_kit import (
    NOTHING_AHEAD,
    WAIT_S,
    FakeFile,
    a_cache,
    asked,
    content,
    extents,
)
from tieredstore.access.read_cache import (
    COMMIT_LOG_AHEAD,
    CONSUME_QUEUE_AHEAD,
    SWEEP_STEP,
    CachedFile,
    ReadAhead,
    ReadCache,
)
from tieredstore.driver.runtime import ManualClock, SystemClock
from tieredstore.model.config import MIB
from tieredstore.model.errors import (
    BackendUnavailableError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentNotFoundError,
    TieredStoreError,
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


# Windows


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
    # A page of units may name more bytes than fit: the next read begins inside the last.
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
    # After one window that is too wide they start small again: not one request for each read.
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


# The cost of a cold read of a whole queue

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


# The read cache keeps within its bytes and its idle time, and forgets on demand


WIDE = ReadAhead(floor_bytes=1000, growth=8, cap_bytes=10_000)


def starts(cache: ReadCache) -> list[int]:
    return [start for _, start, _ in extents(cache)]


def touch(cache: ReadCache, file: CachedFile, *offsets: int) -> None:
    """Read 100 bytes at each of these offsets."""
    for offset in offsets:
        assert cache.read(file, offset, 100, ahead=NOTHING_AHEAD) == content(offset, offset + 100)


def test_the_least_recently_used_extents_make_room() -> None:
    file, cache = FakeFile(commit_offset=10_000), a_cache(bytes_max=300)
    touch(cache, file, 0, 200, 400, 0)  # 0 is used again: now 200 is the oldest
    touch(cache, file, 600)
    assert starts(cache) == [0, 400, 600]
    assert cache.held_bytes == 300


def test_a_read_over_several_extents_uses_each_of_them() -> None:
    file, cache = FakeFile(commit_offset=10_000), a_cache(bytes_max=300)
    touch(cache, file, 0, 100, 400)
    cache.read(file, 50, 100)
    touch(cache, file, 600)
    assert starts(cache) == [0, 100, 600]


def test_a_window_takes_a_quarter_of_the_cache_at_most() -> None:
    file, cache = FakeFile(commit_offset=10_000), a_cache(bytes_max=400)
    for start in range(0, 1000, 10):
        assert cache.read(file, start, 10, ahead=WIDE) == content(start, start + 10)
    assert {length for _, length in file.reads} == {100}


def test_a_read_bigger_than_the_cache_is_answered_and_not_kept() -> None:
    file, cache = FakeFile(commit_offset=10_000), a_cache(bytes_max=300)
    touch(cache, file, 2000)
    assert cache.read(file, 0, 1500, ahead=NOTHING_AHEAD) == content(0, 1500)
    assert starts(cache) == [2000], "nothing is evicted for what cannot stay"
    assert cache.read(file, 1000, 2000, ahead=NOTHING_AHEAD) == content(1000, 3000)
    assert file.reads == [(2000, 100), (0, 1500), (1000, 1000), (2100, 900)]
    assert (cache.access_count, cache.hit_count) == (3, 0)


def test_a_read_as_big_as_the_cache_is_kept() -> None:
    file, cache = FakeFile(commit_offset=10_000), a_cache(bytes_max=300)
    touch(cache, file, 2000)
    cache.read(file, 0, 300)
    assert extents(cache) == [(file.cache_key, 0, 300)]


def test_while_others_fetch_windows_shrink_and_then_nothing_is_kept() -> None:
    cache = a_cache(bytes_max=1000)
    quarter = FakeFile(commit_offset=10_000, cache_key="quarter")
    bare = FakeFile(commit_offset=10_000, cache_key="bare")
    outer = FakeFile(commit_offset=10_000, cache_key="outer")

    def during(offset: int, length: int) -> None:
        outer.before_read = None
        assert cache.held_bytes == 700
        cache.read(quarter, 0, 10, ahead=WIDE)  # 250 fit
        cache.read(bare, 0, 260, ahead=WIDE)  # 260 fit once those are evicted
        cache.read(bare, 1000, 301, ahead=WIDE)  # 301 never fit
        assert cache.held_bytes <= 1000

    outer.before_read = during
    cache.read(outer, 0, 700, ahead=NOTHING_AHEAD)
    assert quarter.reads == [(0, 250)]
    assert bare.reads == [(0, 260), (1000, 301)]
    assert extents(cache) == [("outer", 0, 700), ("bare", 0, 260)]


def test_a_window_that_does_not_fit_beside_what_is_fetched_shrinks_to_what_is_asked() -> None:
    cache = a_cache(bytes_max=1000)
    inner = FakeFile(commit_offset=10_000, cache_key="inner")
    outer = FakeFile(commit_offset=10_000, cache_key="outer")

    def during(offset: int, length: int) -> None:
        cache.read(inner, 0, 10, ahead=WIDE)

    outer.before_read = during
    cache.read(outer, 0, 900, ahead=NOTHING_AHEAD)
    assert inner.reads == [(0, 10)]
    assert cache.held_bytes == 910


# Time


def test_an_extent_that_nobody_reads_is_dropped_by_the_next_read_of_anything() -> None:
    clock = ManualClock()
    file, cache = FakeFile(commit_offset=10_000), a_cache(idle_ms=1000, clock=clock)
    touch(cache, file, 0, 200)
    clock.advance(999)
    touch(cache, file, 200)
    clock.advance(1)
    touch(cache, file, 200)
    assert starts(cache) == [200]
    clock.advance(1000)
    touch(cache, file, 200)
    assert file.reads == [(0, 100), (200, 100), (200, 100)]


def test_a_sweep_drops_all_that_is_idle_and_nothing_else() -> None:
    clock = ManualClock()
    file, cache = FakeFile(commit_offset=100_000), a_cache(idle_ms=1000, clock=clock)
    cache.sweep()
    touch(cache, file, *range(0, 50_000, 200))
    clock.advance(600)
    touch(cache, file, 400, 60_000)
    cache.sweep()
    assert cache.extent_count == 251
    clock.advance(400)
    cache.sweep()
    assert starts(cache) == [400, 60_000]
    clock.advance(600)
    cache.sweep()
    assert (extents(cache), cache.held_bytes) == ([], 0)
    cache.sweep()


def test_one_read_drops_a_few_idle_extents_and_the_next_ones_the_rest() -> None:
    clock = ManualClock()
    file, cache = FakeFile(commit_offset=100_000), a_cache(idle_ms=1000, clock=clock)
    touch(cache, file, *range(0, 30_000, 200))
    clock.advance(5000)
    touch(cache, file, 90_000)
    assert cache.extent_count == 150 - SWEEP_STEP + 1
    touch(cache, file, 90_000, 90_000)
    assert starts(cache) == [90_000]


# Forgetting


def test_a_forgotten_file_is_read_again_and_others_stay() -> None:
    one, two = (FakeFile(commit_offset=1000, cache_key=key) for key in ("one", "two"))
    cache = a_cache()
    touch(cache, one, 0, 200)
    touch(cache, two, 0)
    cache.forget("one")
    cache.forget("never seen")
    assert extents(cache) == [("two", 0, 100)]
    touch(cache, one, 0)
    assert one.reads == [(0, 100), (200, 100), (0, 100)]
    cache.clear()
    assert (extents(cache), cache.held_bytes) == ([], 0)


def test_expired_bytes_are_forgotten_and_the_rest_of_the_file_stays() -> None:
    file, cache = FakeFile(commit_offset=1000), a_cache()
    touch(cache, file, 0, 200, 400)
    cache.forget(file.cache_key, before=250)
    assert starts(cache) == [400]
    cache.forget(file.cache_key, before=400)
    assert starts(cache) == [400]


@pytest.mark.parametrize("everything", [False, True])
def test_what_was_on_its_way_when_its_file_was_forgotten_does_not_come_back(
    everything: bool,
) -> None:
    file, cache = FakeFile(commit_offset=1000), a_cache()

    def forget(offset: int, length: int) -> None:
        if everything:
            cache.clear()
        else:
            cache.forget(file.cache_key)
        assert cache.held_bytes == 100, "it is still in memory"

    file.before_read = forget
    touch(cache, file, 0)
    assert (extents(cache), cache.held_bytes) == ([], 0)


def test_an_old_and_a_new_file_of_one_name_do_not_mix_while_the_old_one_is_being_read() -> None:
    new = FakeFile(commit_offset=4, data=b"new!")
    old = FakeFile(commit_offset=4, data=b"old!")
    cache = a_cache()

    def recreate(offset: int, length: int) -> None:
        cache.forget(old.cache_key)
        assert cache.read(new, 0, 4) == b"new!"

    old.before_read = recreate
    assert cache.read(old, 0, 4) == b"old!"
    assert cache.read(new, 0, 4) == b"new!"
    assert len(new.reads) == 1
    assert len(extents(cache)) == 1


# Many readers of one cache at once: one request for all of them, and none waits for ever


READERS = 64


class Stop(BaseException):
    """Ends a thread from outside, like an interrupt: it says nothing about the bytes."""


class Uncopyable(Exception):
    """A foreign error that cannot be copied: its constructor takes two arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("uncopyable")


def together(calls: list[Callable[[], bytes]]) -> list[Future[bytes]]:
    """Run each call in its own thread, and wait for all of them."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        assert not wait_for(futures, WAIT_S).not_done
    return futures


def many(cache: ReadCache, file: FakeFile, start: int, length: int) -> list[Future[bytes]]:
    return together([lambda: cache.read(file, start, length, ahead=WIDE)] * READERS)


def test_many_readers_of_one_cold_range_cost_one_request() -> None:
    file, cache = FakeFile(commit_offset=100_000), a_cache()
    file.before_read = lambda *_: asked(cache, READERS)
    answers = many(cache, file, 500, 700)
    assert {answer.result() for answer in answers} == {content(500, 1200)}
    assert file.reads == [(500, 1000)]
    assert (cache.access_count, cache.hit_count) == (READERS, READERS - 1)
    extents(cache)


def test_readers_of_different_parts_of_what_is_on_its_way_wait_for_it() -> None:
    file, cache = FakeFile(commit_offset=100_000), a_cache()
    first = threading.Event()

    def hold(offset: int, length: int) -> None:
        first.set()
        asked(cache, 11)

    file.before_read = hold

    def part(start: int) -> bytes:
        assert first.wait(WAIT_S)
        return cache.read(file, start, 100, ahead=WIDE)

    calls: list[Callable[[], bytes]] = [lambda: cache.read(file, 0, 100, ahead=WIDE)]
    calls += [partial(part, start) for start in range(0, 1000, 100)]
    answers = together(calls)
    assert b"".join(answer.result() for answer in answers[1:]) == content(0, 1000)
    assert file.reads == [(0, 1000)]


@pytest.mark.parametrize(
    "error",
    [
        BackendUnavailableError("a/b", "read", "no answer"),
        SegmentCorruptError("a/b", "torn", position=7),
        Uncopyable(1, 2),
        CancelledError("by somebody's pool"),
    ],
)
def test_a_failure_reaches_all_who_wait_and_the_next_reader_tries_again(error: Exception) -> None:
    file, cache = FakeFile(commit_offset=100_000), a_cache()

    def fail(offset: int, length: int) -> None:
        asked(cache, READERS)
        raise error

    file.before_read = fail
    answers = many(cache, file, 0, 1000)
    errors = [answer.exception() for answer in answers]
    assert {type(each) for each in errors} == {type(error)}
    assert {str(each) for each in errors} == {str(error)}
    assert {tuple(vars(each)) for each in errors} == {tuple(vars(error))}
    if not isinstance(error, Uncopyable):
        assert len({id(each) for each in errors}) == READERS
        assert sum(each.__cause__ is error for each in errors if each is not None) == READERS - 1
    assert len(file.reads) == 1
    assert (extents(cache), cache.held_bytes) == ([], 0)
    file.before_read = None
    assert cache.read(file, 0, 1000, ahead=WIDE) == content(0, 1000)


def test_an_interrupt_ends_the_reader_it_meets_and_another_one_fetches_for_the_rest() -> None:
    file, cache = FakeFile(commit_offset=100_000), a_cache()

    def interrupt_the_first(offset: int, length: int) -> None:
        if len(file.reads) == 1:
            asked(cache, READERS)
            raise Stop

    file.before_read = interrupt_the_first
    answers = many(cache, file, 0, 1000)
    failed = [answer for answer in answers if answer.exception() is not None]
    assert [type(answer.exception()) for answer in failed] == [Stop]
    right = [answer.result() for answer in answers if answer not in failed]
    assert right == [content(0, 1000)] * (READERS - 1)
    assert len(file.reads) <= 3
    extents(cache)


def test_who_waits_for_bytes_ahead_that_could_not_be_read_asks_for_them_himself() -> None:
    file, cache = FakeFile(commit_offset=100_000), a_cache()
    on_the_way = threading.Event()

    def damaged_from_500(offset: int, length: int) -> None:
        on_the_way.set()
        asked(cache, 3)
        if offset + length > 500:
            raise SegmentCorruptError("a/b", "torn", position=500)

    def behind(start: int) -> bytes:
        assert on_the_way.wait(WAIT_S)
        return cache.read(file, start, 100, ahead=WIDE)

    file.before_read = damaged_from_500
    first, second, third = together(
        [
            lambda: cache.read(file, 0, 100, ahead=WIDE),
            lambda: behind(200),
            lambda: behind(450),
        ]
    )
    assert first.result() == content(0, 100)
    assert second.result() == content(200, 300)
    assert isinstance(third.exception(), SegmentCorruptError)
    extents(cache)


@pytest.mark.parametrize(("start", "length"), [(0, 100), (300, 150), (700, 100)])
@pytest.mark.parametrize(
    "error", [SegmentCorruptError("a/b", "torn", position=500), SegmentNotFoundError("a/b")]
)
def test_damage_in_what_another_reader_asked_for_is_not_that_of_sound_bytes_beside_it(
    error: Exception, start: int, length: int
) -> None:
    file, cache = FakeFile(commit_offset=100_000), a_cache()
    on_the_way = threading.Event()

    def damaged_at_500(offset: int, length: int) -> None:
        on_the_way.set()
        asked(cache, 2)
        if offset <= 500 < offset + length:
            raise error

    def beside() -> bytes:
        assert on_the_way.wait(WAIT_S)
        return cache.read(file, start, length, ahead=NOTHING_AHEAD)

    file.before_read = damaged_at_500
    whole, sound = together([lambda: cache.read(file, 0, 1000, ahead=NOTHING_AHEAD), beside])
    assert isinstance(whole.exception(), type(error))
    assert sound.result() == content(start, start + length)
    extents(cache)


def test_what_was_cut_short_before_cached_bytes_is_fetched_by_who_waited_for_both() -> None:
    file, cache = FakeFile(commit_offset=100_000), a_cache()
    cache.read(file, 1000, 100, ahead=NOTHING_AHEAD)
    on_the_way = threading.Event()

    def fail_when_wide(offset: int, length: int) -> None:
        on_the_way.set()
        asked(cache, 3)
        if length == 1000:
            raise SegmentCorruptError("a/b", "torn", position=500)

    def over_both() -> bytes:
        assert on_the_way.wait(WAIT_S)
        return cache.read(file, 900, 150, ahead=WIDE)

    file.before_read = fail_when_wide
    one, both = together([lambda: cache.read(file, 0, 100, ahead=WIDE), over_both])
    assert (one.result(), both.result()) == (content(0, 100), content(900, 1050))
    assert file.reads[1:] == [(0, 1000), (0, 100), (900, 100)]
    extents(cache)


def test_who_waits_for_a_gap_that_was_never_tried_fetches_it_himself() -> None:
    file, cache = FakeFile(commit_offset=100_000), a_cache()
    cache.read(file, 100, 100, ahead=NOTHING_AHEAD)
    on_the_way = threading.Event()

    def fail_at_the_first(offset: int, length: int) -> None:
        on_the_way.set()
        asked(cache, 3)
        if offset == 0:
            raise BackendUnavailableError("a/b", "read", "no answer")

    def second_gap() -> bytes:
        assert on_the_way.wait(WAIT_S)
        return cache.read(file, 200, 50, ahead=NOTHING_AHEAD)

    file.before_read = fail_at_the_first
    both, behind = together(
        [lambda: cache.read(file, 0, 300, ahead=NOTHING_AHEAD), second_gap],
    )
    assert isinstance(both.exception(), BackendUnavailableError)
    assert behind.result() == content(200, 250)
    assert file.reads[1:] == [(0, 100), (200, 50)]


def test_two_readers_whose_ranges_cross_do_not_wait_for_each_other_for_ever() -> None:
    file, cache = FakeFile(commit_offset=100_000), a_cache()
    both = threading.Barrier(2)

    def meet(offset: int, length: int) -> None:
        if len(file.reads) <= 2:
            both.wait(WAIT_S)

    cache.read(file, 400, 100, ahead=NOTHING_AHEAD)
    file.reads.clear()
    file.before_read = meet
    # Each fetches one half, and finds that the other half is being fetched.
    answers = together(
        [
            lambda: cache.read(file, 0, 450, ahead=NOTHING_AHEAD),
            lambda: cache.read(file, 450, 450, ahead=NOTHING_AHEAD),
        ]
    )
    assert [answer.result() for answer in answers] == [content(0, 450), content(450, 900)]
    file.before_read = None
    cache.clear()
    ranges = [(start, start + 700) for start in range(0, 2000, 100)]
    answers = together(
        [
            partial(cache.read, file, start, end - start, ahead=NOTHING_AHEAD)
            for start, end in ranges
        ]
    )
    assert [answer.result() for answer in answers] == [content(*each) for each in ranges]
    extents(cache)


@pytest.mark.parametrize("bytes_max", [700, 5000, 50_000])
def test_readers_writers_failures_and_forgetting_at_once_never_give_wrong_bytes(
    bytes_max: int,
) -> None:
    file = FakeFile(commit_offset=1000)
    cache = a_cache(bytes_max=bytes_max, idle_ms=1, clock=SystemClock())
    dice = random.Random(bytes_max)
    policy = ReadAhead(floor_bytes=64, growth=2, cap_bytes=512)

    def sometimes_fail(offset: int, length: int) -> None:
        assert cache.held_bytes <= bytes_max
        if dice.random() < 0.05:
            raise BackendUnavailableError("a/b", "read", "no answer")
        if dice.random() < 0.05 and length > 200:
            raise SegmentCorruptError("a/b", "torn", position=offset)

    def work(seed: int) -> bytes:
        mine = random.Random(seed)
        at = failures = 0
        for _ in range(400):
            what = mine.random()
            if what < 0.02:
                cache.forget(file.cache_key, before=mine.choice([None, 500]))
            elif what < 0.04:
                cache.sweep()
            elif what < 0.1:
                file.commit_offset += 10
            at = at if mine.random() < 0.7 and at < 900 else mine.randrange(900)
            end = min(at + mine.randrange(200), 1000)
            try:
                assert cache.read(file, at, end - at, ahead=policy) == content(at, end)
                at = end
            except (BackendUnavailableError, SegmentCorruptError):
                failures += 1
        return bytes(failures > 0)

    file.before_read = sometimes_fail
    for answer in together([partial(work, seed) for seed in range(8)]):
        answer.result()
    assert cache.access_count == 8 * 400
    assert 0 < cache.hit_count <= cache.access_count
    extents(cache)


# The read cache compared with a plain file: whatever happens, it answers the file's bytes


IDLE_MS = 1000
POLICIES = [
    ReadAhead(floor_bytes=0, growth=1, cap_bytes=0),
    ReadAhead(floor_bytes=7, growth=2, cap_bytes=50),
    ReadAhead(floor_bytes=64, growth=8, cap_bytes=400),
]


class CacheBesideFiles(RuleBasedStateMachine):
    """Two files that grow and lose their beginnings, read in any order, with failures."""

    @initialize(bytes_max=st.sampled_from([0, 40, 200, 1000, 100_000]))
    def start(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.clock = ManualClock()
        self.cache = ReadCache(bytes_max=bytes_max, idle_ms=IDLE_MS, clock=self.clock)
        self.files = [
            FakeFile(commit_offset=size, cache_key=size, before_read=self._backend)
            for size in (300, 1000)
        ]
        self.failures: list[TieredStoreError] = []
        self.position = 0
        self.forget_on_the_way = False
        self.reads = self.hits = 0

    def _backend(self, offset: int, length: int) -> None:
        assert self.cache.held_bytes <= self.bytes_max
        if self.forget_on_the_way:
            self.cache.clear()
            self.forget_on_the_way = False
        if self.failures:
            raise self.failures.pop()

    def _read(self, file: FakeFile, start: int, length: int, policy: ReadAhead) -> None:
        start = min(max(start, file.min_offset), file.commit_offset)
        end = min(start + length, file.commit_offset)
        asked_before = len(file.reads)
        self.reads += 1
        expects_failure = bool(self.failures)
        try:
            assert self.cache.read(file, start, end - start, ahead=policy) == content(start, end)
            self.position = end
        except TieredStoreError:
            assert expects_failure
        self.hits += len(file.reads) == asked_before

    @rule(
        which=st.integers(0, 1),
        start=st.integers(0, 1500),
        length=st.integers(0, 600),
        policy=st.sampled_from(POLICIES),
    )
    def jump(self, which: int, start: int, length: int, policy: ReadAhead) -> None:
        self._read(self.files[which], start, length, policy)

    @rule(which=st.integers(0, 1), length=st.integers(0, 100), policy=st.sampled_from(POLICIES))
    def go_on(self, which: int, length: int, policy: ReadAhead) -> None:
        self._read(self.files[which], self.position, length, policy)

    @rule(which=st.integers(0, 1), count=st.integers(1, 200))
    def grow(self, which: int, count: int) -> None:
        self.files[which].commit_offset += count

    @rule(which=st.integers(0, 1), count=st.integers(1, 100))
    def expire(self, which: int, count: int) -> None:
        file = self.files[which]
        file.min_offset = min(file.min_offset + count, file.commit_offset)
        self.cache.forget(file.cache_key, before=file.min_offset)
        assert all(
            start >= file.min_offset
            for key, start, _ in extents(self.cache)
            if key == file.cache_key
        )

    @rule(transient=st.booleans())
    def fail_next(self, transient: bool) -> None:
        self.failures = [
            BackendUnavailableError("p", "read", "no") if transient else SegmentNotFoundError("p")
        ]

    @rule()
    def forget_during_the_next_read(self) -> None:
        self.forget_on_the_way = True

    @rule(ms=st.integers(1, IDLE_MS))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule()
    def sweep(self) -> None:
        self.cache.sweep()
        now = self.clock.monotonic()
        assert all(now - each.used_at < IDLE_MS / 1000 for each in self.cache._table._complete)

    @invariant()
    def the_books_are_right(self) -> None:
        if hasattr(self, "cache"):
            extents(self.cache)
            assert self.cache.held_bytes <= self.bytes_max
            assert (self.cache.access_count, self.cache.hit_count) == (self.reads, self.hits)


TestCacheBesideFiles = CacheBesideFiles.TestCase
