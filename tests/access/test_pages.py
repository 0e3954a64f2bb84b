"""Pages while messages vanish from the local log or the tier, with their topic, or are unreadable.

The rule is `check_page`: a page and its next offset skip no message that is there and not filtered
out. Everything that can happen to messages happens here between any two steps of a read.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.access.tier_lives import ENDS, SETTINGS
from tests.access.tiered_kit import ListIndex, a_config
from tests.local.store_audit import EXPIRING, expire_one_file, parts_of
from tests.local.store_audit import a_config as a_local_config
from tieredstore.access.store import TieredMessageStore
from tieredstore.aio import AsyncTieredStore
from tieredstore.codec.message import decode_message
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.local.commit_log import CommitLog
from tieredstore.local.consume_queue import ConsumeQueue
from tieredstore.local.reader import LocalReader
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.model.messages import GetResult
from tieredstore.model.values import QueueKey, StorageLevel
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Fault, Faults, FaultyProvider
from tieredstore.testing.message_store_contract import NamedTagFilter, TagFilter, check_page
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_body, a_message

HOUR_MS: Final = 3_600_000
LEVELS: Final = list(StorageLevel)
LITTLE: Final = {"commit_log_file_bytes": 2_048, "flush_disk_type": "ASYNC_FLUSH"}
STEPS_MAX: Final = 60  # of one read
Message = tuple[int, int]  # the life of the topic (a number), and the queue offset
Read = Callable[..., GetResult]


class World:
    """A local store and a tier in one thread, and what can happen to the messages in both."""

    def __init__(self, level: StorageLevel = StorageLevel.NOT_IN_DISK, **settings: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pages"))
        self._patch = pytest.MonkeyPatch()
        for name in ("fsync", "fdatasync"):  # for speed: nothing dies here
            self._patch.setattr(os, name, lambda _descriptor: None)
        self.runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        self.faults = Faults()
        config = a_local_config(self.folder / "local", **{**EXPIRING, **LITTLE})
        self.local = LocalMessageStore(config, self.runtime)
        self.store = TieredMessageStore(
            self.local,
            a_config(self.folder, **{**SETTINGS, **settings}),
            runtime=self.runtime,
            provider=FaultyProvider(MemoryProvider(self.runtime), self.faults, self.runtime),
            index=ListIndex(),
        )
        self.store.load()
        self.store.start()
        self.store.level = level
        self.life = 0
        self.places: list[int] = []  # local log offsets, by queue offset
        self._plan: dict[int, list[Callable[[], None]]] = {}
        self._step = 0
        self._is_busy = False

    def close(self) -> None:
        self.forgive()
        self.store.shutdown(drain=False)
        shutil.rmtree(self.folder)
        self._patch.undo()

    # What happens

    def put(self, count: int = 5) -> None:
        for _ in range(count):
            number = len(self.places)
            put = self.store.put_message(a_message(number))
            assert put.queue_offset == number
            self.places.append(put.log_offset)
        self.local.flush()

    def upload(self) -> None:
        self.store.flush()

    def expire(self) -> None:
        """Expire the oldest local file, if the tier has its messages."""
        if len(parts_of(self.local).log.queue.files) > 1:
            expire_one_file(self.local)

    def expire_much(self) -> None:
        for _ in range(4):
            self.expire()

    def lose(self) -> None:
        """Delete the oldest local log file, even if it is needed; the queue files stay."""
        log = parts_of(self.local).log
        if len(log.queue.files) > 1:
            log.queue.delete_before(log.queue.files[0].end_offset)

    def expire_tier(self) -> None:
        self._clock.advance(3 * HOUR_MS)
        self.store._loaded().retention.step()

    def delete_topic(self) -> None:
        self.store.delete_topics([TOPIC])
        self.life += 1
        self.places = []

    def upload_and_expire(self) -> None:
        self.upload()
        self.expire_much()

    def expire_both(self) -> None:
        self.expire_much()
        self.expire_tier()

    def begin_anew(self) -> None:
        self.delete_topic()
        self.put(30)

    def do(self, name: str) -> None:
        getattr(self, name)()

    def cut(self) -> None:
        self.faults.always = Fault.BEFORE

    def forgive(self) -> None:
        self.faults.always = None

    @property
    def _clock(self) -> ManualClock:
        clock = self.runtime.clock
        assert isinstance(clock, ManualClock)
        return clock

    # What is there

    def local_ones(self) -> set[Message]:
        minimum = self.local.min_log_offset() or 0
        return {(self.life, number) for number, at in enumerate(self.places) if at >= minimum}

    def tiered_ones(self) -> set[Message]:
        """The messages in the tier's catalogue, found without a read."""
        file = self.store._loaded().tier.files.get(QueueKey(TOPIC, 0))
        if file is None or not file.is_started:
            return set()
        spans = [(each.base // 20, each.end // 20) for each in file.queue.segments]
        named = {number for first, end in spans for number in range(first, end)}
        always, self.faults.always = self.faults.always, None
        minimum = file.min_offset
        self.faults.always = always
        return {(self.life, one) for one in named if minimum <= one < file.commit_offset}

    def there(self) -> set[Message]:
        disabled = self.store.level is StorageLevel.DISABLE
        return self.local_ones() | (set() if disabled else self.tiered_ones())

    # Reads with interference

    def plan(self, step: int, happening: Callable[[], None]) -> None:
        self._plan.setdefault(step, []).append(happening)

    @contextmanager
    def meddling(self) -> Iterator[None]:
        """Count the steps of a read, and run what is planned for each."""
        owners: list[tuple[Any, str]] = [
            *(
                (self.local, name)
                for name in ("get_message", "contains", "min_offset", "in_memory")
            ),
            *((self.local, name) for name in ("max_offset", "min_log_offset")),
            *((self._fetcher, name) for name in ("get_message", "commit_offset", "has_messages")),
            *((self._fetcher, name) for name in ("get_message_hot", "get_message_future")),
            (self._fetcher, "contains"),
            (parts_of(self.local).log.queue, "read"),
            (ConsumeQueue, "units"),
            (CommitLog, "message_bytes"),
            (FlatAppendFile, "read"),
        ]
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in owners:
                patch.setattr(owner, name, self._stepped(getattr(owner, name)))
            self._step = 0
            yield

    def _stepped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.tick()
            result = real(*arguments, **named)
            self.tick()
            return result

        return call

    def tick(self) -> None:
        if self._is_busy:
            return
        self._is_busy = True
        try:
            self._step += 1
            for happening in self._plan.pop(self._step, ()):
                happening()
        finally:
            self._is_busy = False

    @property
    def _fetcher(self) -> Any:
        return self.store._loaded().tier.fetcher

    @property
    def steps(self) -> int:
        return self._step

    def page(self, read: Read, offset: int, *, tag: str | None = None, **named: Any) -> GetResult:
        """Read one page and check it by the rule."""
        kind = named.pop("kind", TagFilter)
        before = self.there()
        chosen = None if tag is None else kind(tag)
        with self.meddling():
            page = read(self.store, offset, message_filter=chosen, **named)
        there = {number for _, number in before & self.there()}
        check_page(page, offset, there=there, wanted=_wanted(tag))
        for one in page.messages:
            assert decode_message(one.record).body == a_body(one.queue_offset)
        return page


def _wanted(tag: str | None) -> Callable[[int], bool]:
    return lambda number: tag is None or f"Tag{number % 3}" == tag


def called(store: TieredMessageStore, offset: int, **named: Any) -> GetResult:
    return store.get_message(TOPIC, 0, offset, **named)


def in_a_future(store: TieredMessageStore, offset: int, **named: Any) -> GetResult:
    return store.get_message_future(TOPIC, 0, offset, **named).result(0)


def if_hot(store: TieredMessageStore, offset: int, **named: Any) -> GetResult:
    hot = store.get_message_hot(TOPIC, 0, offset, **named)
    return hot if hot is not None else in_a_future(store, offset, **named)


READS: Final = [called, in_a_future, if_hot]


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def a_world(*given: Any, **named: Any) -> World:
        while worlds:
            worlds.pop().close()
        worlds.append(World(*given, **named))
        return worlds[-1]

    yield a_world
    while worlds:
        worlds.pop().close()


HAPPENINGS: Final = [
    *("expire", "expire_much", "upload_and_expire", "lose", "expire_tier", "expire_both"),
    *("delete_topic", "begin_anew"),
]


@pytest.mark.parametrize("happening", HAPPENINGS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_page_passes_nothing_by_whatever_happens_at_any_step_of_it(
    make: Callable[..., World], level: StorageLevel, happening: str
) -> None:
    stride = 1 if level in (StorageLevel.NOT_IN_DISK, StorageLevel.FORCE) else 5
    step, end = 0, 1
    while step < end:
        step += stride
        world = make(level)
        world.put(20)
        world.upload()
        world.put(10)
        world.expire()
        read = READS[step % len(READS)]
        first = min((number for _, number in world.local_ones()), default=0)
        world.plan(step, partial(world.do, happening))
        for offset in (first, max(0, first - 3), 19, 20):
            world.page(read, offset, tag=None if step % 2 else "Tag1", count_max=25)
            end = max(end, min(world.steps, STEPS_MAX))


def test_the_asyncio_face_passes_nothing_by_either(make: Callable[..., World]) -> None:
    def awaited(store: TieredMessageStore, offset: int, **named: Any) -> GetResult:
        return asyncio.run(AsyncTieredStore(store).get_message(TOPIC, 0, offset, **named))

    for step in range(1, 30):
        world = make()
        world.put(30)
        world.upload()
        world.plan(step, world.expire_much)
        world.page(awaited, 0, count_max=25)


STEPS = st.integers(1, STEPS_MAX)
ALL: Final = [*HAPPENINGS, "put", "upload", "cut", "forgive"]
PLANS = st.lists(st.tuples(STEPS, st.sampled_from(ALL)), max_size=4)
QUESTIONS = st.tuples(
    st.sampled_from(READS),
    st.integers(-1, 40),
    st.sampled_from([1, 4, 32]),
    st.sampled_from([None, None, "Tag0", "Tag2"]),
    st.sampled_from([TagFilter, NamedTagFilter]),
    PLANS,
)


@given(
    level=st.sampled_from(LEVELS),
    cached=st.booleans(),
    before=st.lists(st.sampled_from(["put", "put", "put", *ALL]), max_size=12),
    questions=st.lists(QUESTIONS, min_size=1, max_size=6),
)
def test_whatever_happens_during_reads_of_any_kind_nothing_is_passed_by(
    level: StorageLevel, cached: bool, before: list[str], questions: list[Any]
) -> None:
    world = World(level, read_ahead_enabled=cached)
    try:
        world.put(12)
        for name in before:
            world.do(name)
        for read, offset, count_max, tag, kind, plan in questions:
            for step, name in plan:
                world.plan(step, partial(world.do, name))
            try:
                world.page(read, offset, count_max=count_max, tag=tag, kind=kind)
            except BackendUnavailableError:
                assert world.faults.steps  # an error is allowed, as it is not a page
            world._plan.clear()
        world.forgive()
        _consume(world)
    finally:
        world.close()


def _consume(world: World) -> None:
    """Read the queue from start to end: every message that is there comes once."""
    there = {number for _, number in world.there()}
    found: list[int] = []
    offset = 0
    for _ in range(300):
        page = world.page(called, offset, count_max=7)
        found += [one.queue_offset for one in page.messages]
        if page.next_offset <= offset and not page.messages:
            assert page.status in ENDS
            assert found == sorted(there)
            return
        offset = page.next_offset
    raise AssertionError(f"it comes no further than {offset}")


# Questions that no consumer asks


def test_a_reader_beside_the_writer_passes_nothing_by_while_it_expires(
    make: Callable[..., World],
) -> None:
    for step in range(1, 25):
        world = make(StorageLevel.DISABLE)
        world.put(30)
        world.upload()
        with LocalReader.open(world.folder / "local") as reader:
            read = reader.get_message
            offset = 0
            for _ in range(60):
                before = world.there()
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(
                        CommitLog, "message_bytes", world._stepped(CommitLog.message_bytes)
                    )
                    world._step = 0
                    world.plan(step, world.expire)
                    page = read(TOPIC, 0, offset, count_max=9)
                world._plan.clear()
                there = {number for _, number in before & world.there()}
                check_page(page, offset, there=there)
                offset = page.next_offset
                if offset == 30:
                    break
            assert offset == 30


def test_neither_store_has_it_and_the_reader_goes_on_at_the_first_that_one_of_them_has(
    make: Callable[..., World],
) -> None:
    """The tier ends, and the local store begins only later."""
    world = make()
    world.put(10)
    world.upload()
    world.put(20)
    minimum = world.local.min_log_offset
    while (minimum() or 0) <= world.places[14]:
        world.lose()
    local = min(number for _, number in world.local_ones())
    assert 10 < local < 30
    for level in (StorageLevel.NOT_IN_DISK, StorageLevel.NOT_IN_MEM, StorageLevel.FORCE):
        world.store.level = level
        for offset in range(10, local):
            page = world.page(called, offset)
            assert (page.next_offset, list(page.messages)) == (local, [])
        page = world.page(called, local)
        assert page.messages[0].queue_offset == local


def test_a_tier_that_cannot_be_reached_is_an_error_where_the_next_store_just_lost_the_message(
    make: Callable[..., World],
) -> None:
    for level in (StorageLevel.NOT_IN_DISK, StorageLevel.FORCE):
        for step in range(1, 12):
            world = make(level)
            world.put(20)
            world.upload()
            world.cut()
            world.plan(step, world.expire_much)
            try:
                page = world.page(called, 0)
            except BackendUnavailableError:
                continue
            assert page.messages[0].queue_offset == 0
