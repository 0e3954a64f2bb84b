"""The read cache stays within its bytes and its time, and forgets what it is told to."""

from __future__ import annotations

import pytest

from tests.access.cached_file_kit import NOTHING_AHEAD, FakeFile, a_cache, content, extents
from tieredstore.access.read_cache import SWEEP_STEP, CachedFile, ReadAhead, ReadCache
from tieredstore.driver.runtime import ManualClock

WIDE = ReadAhead(floor_bytes=1000, growth=8, cap_bytes=10_000)


def starts(cache: ReadCache) -> list[int]:
    return [start for _, start, _ in extents(cache)]


def touch(cache: ReadCache, file: CachedFile, *offsets: int) -> None:
    """Read 100 bytes at each of these."""
    for offset in offsets:
        assert cache.read(file, offset, 100, ahead=NOTHING_AHEAD) == content(offset, offset + 100)


def test_the_least_recently_used_extents_make_room() -> None:
    file, cache = FakeFile(commit_offset=10_000), a_cache(bytes_max=300)
    touch(cache, file, 0, 200, 400, 0)  # 0 is used again: 200 is the oldest now
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


def test_a_cache_without_room_reads_all_the_same() -> None:
    file, cache = FakeFile(commit_offset=1000), a_cache(bytes_max=0)
    for _ in range(2):
        assert cache.read(file, 5, 50, ahead=WIDE) == content(5, 55)
    assert file.reads == [(5, 50)] * 2
    assert extents(cache) == []


def test_while_others_fetch_windows_shrink_and_then_nothing_is_kept() -> None:
    cache = a_cache(bytes_max=1000)
    quarter = FakeFile(commit_offset=10_000, cache_key="quarter")
    bare = FakeFile(commit_offset=10_000, cache_key="bare")
    outer = FakeFile(commit_offset=10_000, cache_key="outer")

    def during(offset: int, length: int) -> None:
        outer.before_read = None
        assert cache.held_bytes == 700
        cache.read(quarter, 0, 10, ahead=WIDE)  # 250 fit
        cache.read(bare, 0, 260, ahead=WIDE)  # 260 fit once that went
        cache.read(bare, 1000, 301, ahead=WIDE)  # not at all
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


def test_parts_of_an_answer_that_are_evicted_on_the_way_are_still_right() -> None:
    file, cache = FakeFile(commit_offset=10_000), a_cache(bytes_max=300)
    touch(cache, file, 0, 200, 400)
    assert cache.read(file, 0, 600, ahead=NOTHING_AHEAD) == content(0, 600)
    assert cache.held_bytes <= 300
    extents(cache)


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


def test_a_failure_after_forgetting_leaves_nothing_behind() -> None:
    file, cache = FakeFile(commit_offset=1000), a_cache()

    def forget_and_fail(offset: int, length: int) -> None:
        cache.forget(file.cache_key)
        raise KeyError("gone")

    file.before_read = forget_and_fail
    with pytest.raises(KeyError):
        cache.read(file, 0, 10)
    assert (extents(cache), cache.held_bytes) == ([], 0)
