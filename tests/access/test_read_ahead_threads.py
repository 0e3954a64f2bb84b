"""Many readers of one cache at once: one request for what all want, and nobody waits for ever."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from functools import partial

import pytest

from tests.access.cached_file_kit import (
    NOTHING_AHEAD,
    WAIT_S,
    FakeFile,
    a_cache,
    asked,
    content,
    extents,
)
from tieredstore.access.read_cache import ReadAhead, ReadCache
from tieredstore.driver.runtime import SystemClock
from tieredstore.model.errors import BackendUnavailableError, SegmentCorruptError

READERS = 64
WIDE = ReadAhead(floor_bytes=1000, growth=8, cap_bytes=10_000)


class Stop(BaseException):
    """Ends a thread from outside, as an interrupt does: says nothing about the bytes."""


class Uncopyable(Exception):
    """An error of somebody else's that is built from two things and copied from none."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("uncopyable")


def together(calls: list[Callable[[], bytes]]) -> list[Future[bytes]]:
    """Each call in a thread of its own; all have ended."""
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
    # Each is fetching one half when it finds the other half on its way.
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
