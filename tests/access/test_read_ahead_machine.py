"""The read cache beside a plain file: whatever happens, the answers are the file's bytes."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.access.cached_file_kit import FakeFile, content, extents
from tieredstore.access.read_cache import ReadAhead, ReadCache
from tieredstore.driver.runtime import ManualClock
from tieredstore.model.errors import (
    BackendUnavailableError,
    SegmentNotFoundError,
    TieredStoreError,
)

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
