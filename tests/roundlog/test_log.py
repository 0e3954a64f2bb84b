"""A broker's log in a bucket: which requests it sends, and how it handles their answers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tieredstore.driver.metadata import Put, PutNote
from tieredstore.driver.object_client import (
    KeysExpiredError,
    ListedKey,
    ObjectClient,
    ObjectClientWrapper,
    ObjectFacts,
    Range,
)
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import InlinePool, ManualClock, Runtime
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    FencedError,
    MetadataError,
    PositionMismatchError,
    SegmentNotFoundError,
    TieredStoreError,
)
from tieredstore.model.values import SegmentRecord, SegmentType, TopicRecord
from tieredstore.roundlog import log as log_module
from tieredstore.roundlog.catalogue import LogCatalogue
from tieredstore.roundlog.draft import DATA_BYTES_MAX, Draft, DraftWrite
from tieredstore.roundlog.entry import NO_ROW, Entry, Extents, Sealed, SegmentKey
from tieredstore.roundlog.frames import crc32c
from tieredstore.roundlog.layout import ObjectLayout, epoch_name, log_name, state_name
from tieredstore.roundlog.log import INLINE_BYTES_MAX, BrokerLog, side_by_side
from tieredstore.roundlog.object_calls import ObjectCalls
from tieredstore.roundlog.state import LogState
from tieredstore.roundlog.upkeep import GRACE_MS, Upkeep
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects

KEY: SegmentKey = ("broker/topic/0", SegmentType.COMMIT_LOG, 0)
MIB = 1 << 20


class Moody(ObjectClientWrapper):
    """A client that calls `mood` before and after each request."""

    def __init__(self, objects: MemoryObjects) -> None:
        self.memory = MemoryObjectClient(objects)
        super().__init__(self.memory)
        self.mood: Callable[[str, str, bool], None] = lambda *_: None

    def _request(self, name: str, key: str, call: Callable[[], Any]) -> Any:
        self.mood(name, key, False)
        found = call()
        self.mood(name, key, True)
        return found

    def head(self, key: str) -> ObjectFacts:
        found: ObjectFacts = self._request("head", key, lambda: self.inner.head(key))
        return found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        found: bytes = self._request("get", key, lambda: self.inner.get_range(key, start, length))
        return found

    def get_ranges(self, ranges: Sequence[Range]) -> Sequence[bytes | TieredStoreError]:
        return ObjectClient.get_ranges(self, ranges)

    def put(self, key: str, data: Buffer, **how: Any) -> ObjectFacts:
        found: ObjectFacts = self._request("put", key, lambda: self.inner.put(key, data, **how))
        return found


class Tier:
    """A bucket, and logs of one broker in it."""

    def __init__(self) -> None:
        self.objects = MemoryObjects()
        self.runtime = Runtime.inline()
        self.clients: list[Moody] = []
        self.layout = ObjectLayout("cluster")

    def open(self, *, claims: bool = True, runtime: Runtime | None = None, **how: Any) -> BrokerLog:
        runtime = runtime or self.runtime
        client = Moody(self.objects)
        self.clients.append(client)
        calls = ObjectCalls(client, runtime, RetryPolicy(retries_max=2))
        log = BrokerLog(calls, self.layout, "broker", runtime, **how)
        if claims:
            log.claim()
        return log

    def requests(self, call: Callable[[], object], which: int = -1) -> Counter[str]:
        """The requests of one call, by default those of the newest client."""
        counts = self.clients[which].memory.requests
        before = counts.copy()
        call()
        return counts - before

    def drop(self, name: str) -> None:
        del self.objects.held[self.layout.rounds("broker") + name]


def put(log: BrokerLog, data: bytes, key: SegmentKey = KEY) -> Draft:
    """The next bytes of a segment."""
    segment = log.state().segment(key)
    draft = Draft(writes=[DraftWrite(key, 0 if segment is None else segment.size, data)])
    log.append([draft])
    assert draft.error is None
    return draft


def contents(tier: Tier, key: SegmentKey = KEY) -> bytes:
    """What a new reader finds in a segment."""
    reader = tier.open(claims=False)
    state = reader.follow()
    segment = state.segment(key)
    if segment is None:
        return b""
    held, found = tier.objects.held, b""
    for each in state.places(segment.number):
        data = held[reader.key(each.object)][0]
        found += data[each.offset : each.offset + each.length]
    return found


@pytest.fixture
def tier() -> Tier:
    return Tier()


# Requests


def test_an_append_is_a_put_and_a_look_whatever_it_has(tier: Tier) -> None:
    log = tier.open()
    many = [
        DraftWrite((f"broker/topic/{queue}", SegmentType.COMMIT_LOG, 0), 0, b"x" * 100)
        for queue in range(1_000)
    ]
    assert tier.requests(lambda: log.append([Draft(writes=many)])) == {"put": 1, "head": 1}
    assert tier.requests(lambda: log.append([])) == {}
    assert tier.requests(lambda: (log.state(recent=True), log.settled(), log.follow())) == {}


def test_opening_costs_five_requests_and_one_for_each_entry_since_the_state(tier: Tier) -> None:
    first = tier.open()
    for _ in range(4):
        put(first, b"x")
    state = first.state()
    first.calls.put(first.key(state_name(state.sequence)), state.encoded())
    put(first, b"y")
    put(first, b"z")
    second = tier.open(claims=False)
    assert tier.requests(second.claim) == {"list": 2, "get": 1 + 2, "put": 2}
    assert second.epoch == 2
    reader = tier.open(claims=False)
    assert tier.requests(reader.follow) == {"list": 2, "get": 1 + 3}


def test_following_is_a_listing_and_a_get_for_each_entry(tier: Tier) -> None:
    writer, reader = tier.open(), tier.open(claims=False)
    reader.follow()
    assert tier.requests(reader.follow) == {"list": 1}
    put(writer, b"one")
    put(writer, b"two")
    assert tier.requests(reader.follow) == {"list": 1, "get": 2}
    assert tier.requests(lambda: reader.state(recent=True)) == {}
    tier.runtime.clock.sleep(2)
    assert tier.requests(lambda: reader.state(recent=True)) == {"list": 1}


def test_what_expires_while_it_is_read_is_read_again(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread reads the log; another has a newer catalogue, and needs the bytes it names."""
    writer, reader = tier.open(), tier.open(claims=False)
    memory = tier.clients[-1].memory
    listed = memory.list

    def overtaken(prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        found = [*listed(prefix, after=after)]
        monkeypatch.undo()
        put(writer, b"newer")
        reader.expire()
        return iter(found)

    reader.follow()
    monkeypatch.setattr(memory, "list", overtaken)
    assert reader.follow().segment(KEY) is None
    assert reader.state(recent=True).segment(KEY) is not None


def test_a_reader_that_is_interrupted_within_an_entry_begins_again(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Ctrl-C, after which a program may go on reading."""
    writer, reader = tier.open(), tier.open(claims=False)
    put(writer, b"one")
    reader.follow()
    put(writer, b"two")
    put(writer, b"x", ("broker/topic/1", SegmentType.COMMIT_LOG, 0))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LogState, "_grow", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reader.follow()
    state = reader.state(recent=True)
    segment = state.segment(KEY)
    assert segment is not None
    assert segment.size == 6
    assert state.encoded() == writer.state().encoded()


def test_who_follows_lists_what_begins_with_the_last_entry_it_knows(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = tier.open(), tier.open(claims=False)
    put(writer, b"one")
    reader.follow()
    asked: list[str] = []
    memory = tier.clients[-1].memory
    listed = memory.list

    def counted(prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        asked.append(after)
        return listed(prefix, after=after)

    monkeypatch.setattr(memory, "list", counted)
    reader.follow()
    assert asked == [reader.key(log_name(1))]


@pytest.mark.parametrize("left", ["", "epoch/", "state/"])
def test_a_log_that_is_gone_shows_its_reader_no_older_one(tier: Tier, left: str) -> None:
    writer, reader = tier.open(), tier.open(claims=False)
    held = tier.objects.held
    tier.runtime.clock.sleep(1)
    put(writer, b"one")
    writer.calls.put(writer.key(state_name(2)), writer.state().encoded())
    tier.runtime.clock.sleep(1)
    put(writer, b"two")
    reader.follow()
    before, has = dict(held), 2 if left == "state/" else 0
    for key in [key for key in held if not (left and key.startswith(writer.key(left)))]:
        del held[key]
    for _ in range(2):
        with pytest.raises(MetadataError, match=f"had 3 entries and has {has}"):
            reader.follow()
    held.update(before)  # restored
    assert reader.follow().sequence == 3


@pytest.mark.parametrize("count", [1, 2, 3, 9])
@pytest.mark.parametrize("left", ["", "epoch/"])
def test_a_log_in_place_of_another_is_read_from_its_beginning(
    tier: Tier, count: int, left: str
) -> None:
    other = ("broker/other/0", SegmentType.COMMIT_LOG, 0)
    writer, reader = tier.open(), tier.open(claims=False)
    put(writer, b"one")
    put(writer, b"two")
    catalogue = LogCatalogue(reader, read_only=True)
    assert reader.follow().sequence == 3
    held = tier.objects.held
    for key in [key for key in held if not (left and key.startswith(writer.key(left)))]:
        del held[key]
    tier.runtime.clock.sleep(60)
    following = tier.open()
    for _ in range(count):
        put(following, b"anew", other)
    state = reader.follow()
    assert state.encoded() == following.state().encoded()
    catalogue.refresh()
    assert (catalogue.facts.epoch, catalogue.facts.written_ms) == (state.epoch, state.time_ms)


def test_a_log_as_long_as_the_one_before_is_read_though_it_has_a_state_there(tier: Tier) -> None:
    other = ("broker/another/0", SegmentType.COMMIT_LOG, 0)
    writer, reader = tier.open(), tier.open(claims=False)
    put(writer, b"one")
    put(writer, b"two")
    assert reader.follow().sequence == 3
    tier.objects.held.clear()
    tier.runtime.clock.sleep(60)
    following = tier.open()
    put(following, b"anew", other)
    put(following, b"and on", other)
    following.calls.put(following.key(state_name(3)), following.state().encoded())
    for _ in range(2):
        assert reader.follow().encoded() == following.state().encoded()


def test_who_has_missed_its_log_believes_no_entry_of_the_same_size(tier: Tier) -> None:
    tier.runtime.clock.sleep(1_000_000)  # so that all times have as many digits
    writer, reader = tier.open(), tier.open(claims=False)
    put(writer, b"one")
    put(writer, bytes(range(20)))
    reader.follow()
    held, last = tier.objects.held, writer.key(log_name(3))
    size = len(held[last][0])
    for count in range(400):  # by its length; it also varies by some bytes
        held.clear()
        with pytest.raises(MetadataError, match="had 3 entries and has 0"):
            reader.follow()
        tier.runtime.clock.sleep(60)
        following = tier.open()
        put(following, b"new")
        put(following, bytes(range(100, 112 + count % 16)))
        if len(held[last][0]) == size:
            break
    else:
        pytest.fail("no entry had the same size")
    assert reader.follow().encoded() == following.state().encoded()


def put_two_with_states(writer: BrokerLog) -> None:
    for data in (b"one", b"two"):
        put(writer, data)
        state = writer.state()
        writer.calls.put(writer.key(state_name(state.sequence)), state.encoded())


def test_a_state_that_goes_while_it_is_read_gives_way_to_a_newer_one(tier: Tier) -> None:
    put_two_with_states(tier.open())
    reader = tier.open(claims=False)
    newest = reader.key(state_name(3))

    def mood(name: str, key: str, is_done: bool) -> None:
        if name == "get" and key == newest and newest in tier.objects.held:
            del tier.objects.held[newest]

    tier.clients[-1].mood = mood
    assert reader.follow().sequence == 3
    assert newest not in tier.objects.held


def test_a_claim_goes_on_from_an_older_state_where_the_newest_one_goes(tier: Tier) -> None:
    put_two_with_states(tier.open())
    second = tier.open(claims=False)
    newest = second.key(state_name(3))

    def mood(name: str, key: str, is_done: bool) -> None:
        if name == "get" and key == newest:
            tier.objects.held.pop(newest, None)

    tier.clients[-1].mood = mood
    assert second.claim() == 2
    assert newest not in tier.objects.held
    assert second.state().segments[1].size == 6


def test_states_that_always_go_while_they_are_read_are_an_outage(tier: Tier) -> None:
    writer = tier.open()
    state = writer.state()
    writer.calls.put(writer.key(state_name(state.sequence)), state.encoded())
    reader = tier.open(claims=False)

    def mood(name: str, key: str, is_done: bool) -> None:
        if name == "get" and "/state/" in key:
            raise SegmentNotFoundError(key)

    tier.clients[-1].mood = mood
    with pytest.raises(BackendUnavailableError, match="states keep changing"):
        reader.follow()


def test_what_is_too_much_for_an_entry_goes_side_by_side_before_it(tier: Tier) -> None:
    log = tier.open()
    data = bytes(DATA_BYTES_MAX + 5 * MIB)
    assert tier.requests(lambda: put(log, data)) == {"put": 3, "head": 1}
    assert tier.requests(lambda: put(log, bytes(INLINE_BYTES_MAX))) == {"put": 1, "head": 1}
    assert len(contents(tier)) == len(data) + INLINE_BYTES_MAX


def test_those_who_append_meanwhile_share_the_next_entry(tier: Tier) -> None:
    with Runtime.threads() as runtime:
        log = tier.open(runtime=runtime)
        waits, goes_on = threading.Event(), threading.Event()

        def mood(name: str, key: str, is_done: bool) -> None:
            if name == "put" and not waits.is_set():
                waits.set()
                goes_on.wait(10)

        tier.clients[-1].mood = mood
        before = log.state().sequence
        keys = [(f"broker/topic/{queue}", SegmentType.COMMIT_LOG, 0) for queue in range(5)]
        threads = [threading.Thread(target=put, args=(log, b"x", key)) for key in keys]
        threads[0].start()
        waits.wait(10)
        for thread in threads[1:]:
            thread.start()
        while len(log._waiting) < 4:
            pass
        goes_on.set()
        for thread in threads:
            thread.join(10)
    assert log.state().sequence == before + 2
    assert {contents(tier, key) for key in keys} == {b"x"}


@pytest.mark.parametrize("lands", [False, True], ids=["lost", "landed"])
def test_who_is_interrupted_interrupts_none_that_shares_its_entry(tier: Tier, lands: bool) -> None:
    """Ctrl-C goes to the main thread. It would end the service that appends beside it."""
    log = tier.open()
    other = log_module._Ticket([Draft(writes=[DraftWrite(KEY, 0, b"other")])])
    log._waiting.append(other)

    def interrupted(name: str, key: str, is_done: bool) -> None:
        if name == "put" and is_done == lands:
            raise KeyboardInterrupt

    tier.clients[-1].mood = interrupted
    with pytest.raises(KeyboardInterrupt):
        put(log, b"mine", ("broker/topic/1", SegmentType.COMMIT_LOG, 0))
    assert other.is_done
    assert isinstance(other.failure, BackendUnavailableError)
    tier.clients[-1].mood = lambda *_: None
    log.settled()
    assert contents(tier) == b"other"


def test_one_that_is_alone_shares_no_entry_and_no_entry_is_too_large(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "TOGETHER_BYTES_MAX", 10)
    log = tier.open()

    def together(*sizes: int, alone: int = -1) -> list[int]:
        """How many drafts each entry gets."""
        drafts = [[Draft(writes=[DraftWrite(KEY, 0, bytes(size))])] for size in sizes]
        log._waiting.extend(
            log_module._Ticket(each, is_alone=number == alone) for number, each in enumerate(drafts)
        )
        found = []
        while log._waiting:
            found.append(len(log._together()))
        return found

    assert together(4, 6) == [2]
    assert together(4, 6, 1) == [2, 1]
    assert together(11, 11) == [1, 1]
    assert together(1, 1, 1, 1, alone=1) == [1, 1, 2]


def test_a_helper_that_has_not_begun_is_not_waited_for() -> None:
    class Never(InlinePool):
        def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            return Future()

    done: list[int] = []
    side_by_side(Never(), iter(range(5)), done.append, helpers=2)
    assert done == list(range(5))


def test_a_helper_that_has_begun_is_waited_for() -> None:
    begun, goes_on = threading.Event(), threading.Event()
    done: list[int] = []

    def call(number: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            goes_on.wait(10)
        else:
            assert begun.wait(10)
            goes_on.set()
        done.append(number)

    with Runtime.threads(fetch_threads=1) as runtime:
        side_by_side(runtime.fetch, iter(range(2)), call, helpers=1)
        assert sorted(done) == [0, 1]


def test_an_append_of_another_that_fails_takes_none_with_it(tier: Tier) -> None:
    log = tier.open()
    other = log_module._Ticket([Draft(changes=[PutNote("kind", "other", 1)])], is_alone=True)
    log._waiting.append(other)
    refused = outage(False, 3)  # including the client's retries

    tier.clients[-1].mood = refused
    log.append([Draft(changes=[PutNote("kind", "mine", 2)])])
    assert isinstance(other.failure, BackendUnavailableError)
    assert log.state().tables.notes["kind"]["mine"] == b"2"


def test_what_is_staged_while_an_entry_is_sent_is_newer_than_it(tier: Tier) -> None:
    log = tier.open()
    older, newer = (Put(TopicRecord(topic="topic", topic_id=number)) for number in (1, 2))

    def stage(change: Put) -> None:
        log.state().tables.apply([change])
        log.staged.append(change)

    def mood(name: str, key: str, is_done: bool) -> None:
        if name == "put" and is_done:
            tier.clients[-1].mood = lambda *_: None
            stage(newer)

    stage(older)
    tier.clients[-1].mood = mood
    put(log, b"x")
    assert log.staged == [newer]
    assert log.state().tables.topics == {"topic": newer.record}
    log.append([])
    assert tier.open(claims=False).follow().tables.topics == {"topic": newer.record}


def test_what_is_staged_is_in_the_newer_state_that_is_read(tier: Tier) -> None:
    log, other = (tier.open(joins=True) for _ in range(2))
    staged, theirs = (Put(TopicRecord(topic=name, topic_id=1)) for name in ("staged", "theirs"))
    log.state().tables.apply([staged])
    log.staged.append(staged)
    other.append([Draft(changes=[theirs])])
    state = other.state()
    other.calls.put(other.key(state_name(state.sequence)), state.encoded())
    tier.runtime.clock.sleep(2)
    assert log.state(recent=True).sequence == state.sequence
    assert log.state().tables.topics == {"staged": staged.record, "theirs": theirs.record}
    assert log.staged == [staged]


def test_a_sealing_of_what_is_gone_is_passed_over(tier: Tier) -> None:
    log = tier.open()
    draft = Draft(sealed=[Sealed(999, "data/0000000001-of-nobody", 5, 0)])
    log.append([draft])
    assert draft.error is None


@pytest.mark.parametrize("times", [(None, None), (5, 6), (None, 6)])
def test_a_row_that_comes_with_its_segment_is_said_once(
    tier: Tier, times: tuple[int | None, int | None]
) -> None:
    """How it grows is in the columns of the extents."""
    log = tier.open()
    path, kind, base = KEY
    row = SegmentRecord(path=path, type=kind, base_offset=base, create_timestamp=3)
    grown = replace(row, size=2, begin_timestamp=times[0], end_timestamp=times[1])
    log.append([Draft(writes=[DraftWrite(KEY, 0, b"xy")], rows=[grown], changes=[Put(row)])])
    key = log.key(log_name(log.state().sequence))
    assert Entry.decoded(tier.objects.held[key][0], key).changes == (Put(row),)
    reader = tier.open(claims=False)
    for state in (log.state(), reader.follow()):
        assert state.tables.segments[kind][path][base] == grown


def test_a_draft_that_is_refused_leaves_the_others_of_its_entry(tier: Tier) -> None:
    log = tier.open()
    wrong = Draft(writes=[DraftWrite(KEY, 7, b"x")])
    right = Draft(changes=[PutNote("kind", "key", 1)])
    log.append([wrong, right])
    assert isinstance(wrong.error, PositionMismatchError)
    assert log.state().tables.notes == {"kind": {"key": b"1"}}
    assert tier.requests(lambda: log.append([wrong])) == {}


def test_what_is_staged_goes_along_with_the_next_entry(tier: Tier) -> None:
    log = tier.open()
    row = Put(TopicRecord(topic="topic", topic_id=1))
    log.state().tables.apply([row])
    log.staged.append(row)
    put(log, b"x")
    assert log.staged == []
    assert tier.open(claims=False).follow().tables.topics == {"topic": row.record}


# Doubt


def outage(fails_after: bool, times: int, of: str = "/log/") -> Callable[[str, str, bool], None]:
    """The next `times` requests for keys with `of` fail, after they landed or before."""
    left = [times]

    def mood(name: str, key: str, is_done: bool) -> None:
        if of in key and is_done == fails_after and left[0]:
            left[0] -= 1
            raise BackendUnavailableError(key, name, "an outage")

    return mood


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("of", ["/log/", "/epoch/"])
def test_a_request_that_fails_for_a_moment_is_not_seen(
    tier: Tier, lands: bool, times: int, of: str
) -> None:
    log = tier.open()
    tier.clients[-1].mood = outage(lands, times, of)
    put(log, b"one")
    put(log, b"two")
    assert contents(tier) == b"onetwo"


@pytest.mark.parametrize(("of", "lands"), [("/log/", True), ("/log/", False), ("/epoch/", False)])
def test_an_append_in_doubt_is_settled_before_anything_else(
    tier: Tier, of: str, lands: bool
) -> None:
    log = tier.open()
    put(log, b"one")
    tier.clients[-1].mood = outage(lands, 1_000, of)
    with pytest.raises(BackendUnavailableError):
        put(log, b"two")
    was_in_doubt = log.in_doubt
    with pytest.raises(BackendUnavailableError):
        log.settled()
    assert log.state().segments[1].size == 3
    tier.clients[-1].mood = lambda *_: None
    assert log.settled().segments[1].size == 6
    assert (was_in_doubt, log.in_doubt) == (True, False)
    put(log, b"three")
    assert contents(tier) == b"onetwothree"


def test_it_stays_in_doubt_while_another_thread_sends_it_again(tier: Tier) -> None:
    """Otherwise an upload to a queue that was being deleted left segments without a queue."""
    log = tier.open()
    put(log, b"one")
    tier.clients[-1].mood = outage(False, 1_000)
    with pytest.raises(BackendUnavailableError):
        put(log, b"two")
    seen: list[bool] = []
    tier.clients[-1].mood = lambda *_: seen.append(log.in_doubt)
    log.settled()
    assert seen
    assert all(seen)
    seen.clear()
    put(log, b"three")
    assert not any(seen)


def test_an_append_that_is_refused_is_in_no_doubt(tier: Tier) -> None:
    log = tier.open()

    def mood(name: str, key: str, is_done: bool) -> None:
        raise BackendRefusedError(key, name, "no")

    tier.clients[-1].mood = mood
    with pytest.raises(BackendRefusedError):
        put(log, b"one")
    assert not log.in_doubt
    tier.clients[-1].mood = lambda *_: None
    put(log, b"two")
    assert contents(tier) == b"two"


def test_an_entry_that_landed_before_keys_expired_is_not_sent_as_another(tier: Tier) -> None:
    """Its rows would come once more, without what the segments have grown by since."""
    log = tier.open()

    def mood(name: str, key: str, is_done: bool) -> None:
        if name == "head":
            raise KeysExpiredError(key, name, "expired")

    staged = Put(TopicRecord(topic="topic", topic_id=1))
    log.state().tables.apply([staged])
    log.staged.append(staged)
    tier.clients[-1].mood = mood
    with pytest.raises(KeysExpiredError):
        put(log, b"one")
    assert log.in_doubt
    tier.clients[-1].mood = lambda *_: None
    assert log.settled().segments[1].size == 3
    assert log.staged == []
    put(log, b"two")
    assert contents(tier) == b"onetwo"


def test_a_bucket_that_was_deleted_and_made_again_gets_no_log_without_a_beginning(
    tier: Tier,
) -> None:
    log = tier.open()
    put(log, b"one")

    def gone(name: str, key: str, is_done: bool) -> None:
        raise BackendRefusedError(key, name, "404 NoSuchBucket")

    tier.clients[-1].mood = gone
    with pytest.raises(BackendRefusedError):
        put(log, b"two")
    with pytest.raises(BackendRefusedError, match="NoSuchBucket"):
        put(log, b"two")
    held = dict(tier.objects.held)
    tier.objects.held.clear()
    tier.clients[-1].mood = lambda *_: None
    for _ in range(2):
        with pytest.raises(MetadataError, match="the log is lost"):
            put(log, b"two")
        assert not tier.objects.held
    tier.objects.held.update(held)  # restored
    assert tier.requests(lambda: put(log, b"two")) == {"get": 1, "put": 1, "head": 1}
    assert tier.requests(lambda: put(log, b"three")) == {"put": 1, "head": 1}
    assert contents(tier) == b"onetwothree"


@pytest.mark.parametrize("lands", [True, False])
def test_a_claim_that_failed_goes_on_with_the_same_number(tier: Tier, lands: bool) -> None:
    log = tier.open(claims=False)
    tier.clients[-1].mood = outage(lands, 1_000)
    with pytest.raises(BackendUnavailableError):
        log.claim()
    assert not log.is_writer
    tier.clients[-1].mood = lambda *_: None
    assert log.claim() == 1
    put(log, b"one")
    assert contents(tier) == b"one"


@pytest.mark.parametrize("joins", [False, True])
def test_who_claims_begins_no_second_log_where_listings_show_nothing(
    tier: Tier, joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a proxy answers each listing with a page that counts as an empty one."""
    log = tier.open()
    put(log, b"one")
    put(log, b"two")
    assert Upkeep(log).save(entries_min=1)
    tier.drop(log_name(1))  # the state replaces it
    other = tier.open(claims=False, joins=joins)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryObjectClient, "list", lambda *_, **__: iter(()))
        for _ in range(2):
            with pytest.raises(BackendUnavailableError, match="listings lack it"):
                other.append([Draft(writes=[DraftWrite(KEY, 0, b"new")])])
    put(other, b"three")
    assert contents(tier) == b"onetwothree"


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("count", range(1, 9))
def test_who_claims_begins_no_second_log_where_the_first_listings_show_nothing(
    tier: Tier, joins: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tier.open()
    put(log, b"one")
    log = tier.open()
    put(log, b"two")
    assert Upkeep(log).save(entries_min=1)
    tier.drop(log_name(1))
    other = tier.open(claims=False, joins=joins)
    listed, blind = MemoryObjectClient.list, iter(range(count))

    def flaky(*where: Any, **how: Any) -> Iterator[ListedKey]:
        return iter(()) if next(blind, None) is not None else listed(*where, **how)

    monkeypatch.setattr(MemoryObjectClient, "list", flaky)
    draft = Draft(writes=[DraftWrite(KEY, 6, b"three")])
    for _ in range(count):
        with suppress(BackendUnavailableError):
            other.append([draft])
            break
    assert contents(tier) == b"onetwothree"


def test_each_claim_is_the_object_of_the_first_number_that_nobody_has(tier: Tier) -> None:
    late = tier.open(claims=False)
    claimed: list[int | None] = []

    def meanwhile(name: str, key: str, _: bool) -> None:
        if name == "put" and "/epoch/" in key and not claimed:
            claimed.append(None)
            claimed[:] = [tier.open().epoch for _ in range(3)]

    tier.clients[-1].mood = meanwhile
    assert late.claim() == 4
    assert claimed == [1, 2, 3]
    prefix = tier.layout.rounds("broker")
    epochs = [name for name in sorted(tier.objects.held) if "/epoch/" in name]
    assert epochs == [prefix + epoch_name(number) for number in range(1, 5)]


def keys_listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that listings return from now on, as far as somebody looks at them."""
    read: list[str] = []
    inner = MemoryObjectClient.list

    def listed(client: MemoryObjectClient, prefix: str = "", **how: Any) -> Iterator[ListedKey]:
        for each in inner(client, prefix, **how):
            read.append(each.key)
            yield each

    monkeypatch.setattr(MemoryObjectClient, "list", listed)
    return read


def test_of_many_claims_opening_reads_only_some(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job claims for each load, and claims are never deleted."""
    last = [tier.open() for _ in range(9)][-1]
    state = last.state()
    last.calls.put(last.key(state_name(state.sequence)), state.encoded())
    monkeypatch.setattr(log_module, "LISTED_MAX", 4)
    read = keys_listed(monkeypatch)
    assert tier.open().epoch == 10
    assert sum("/epoch/" in key for key in read) <= 5


def test_claiming_does_not_list_all_objects_of_loads(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tier.open()
    put(log, b"one")
    log.calls.put(log.key(state_name(2)), log.state().encoded())
    for number in range(40):
        log.calls.put(log.key(f"load/run/{number:013d}.part"), b"1")
    monkeypatch.setattr(log_module, "LISTED_MAX", 4)
    read = keys_listed(monkeypatch)
    assert tier.open().epoch == 2
    assert sum("/load/" in key for key in read) <= 5
    assert contents(tier) == b"one"


# Several writers


def test_a_fenced_writer_says_so_for_ever_and_sees_nothing_of_the_winner(tier: Tier) -> None:
    first = tier.open()
    put(first, b"one")
    second = tier.open()
    put(second, b"two")
    for _ in range(2):
        with pytest.raises(FencedError):
            put(first, b"wrong")
    assert first.fence is not None
    assert first.fence.epoch == 2

    def all_calls() -> None:
        for call in (first.claim, first.settled, first.data_name, lambda: first.append([Draft()])):
            with pytest.raises(FencedError):
                call()
        first.expire()
        assert first.state(recent=True).segments[1].size == 3
        assert first.follow().epoch == 1

    assert tier.requests(all_calls, 0) == {}
    assert contents(tier) == b"onetwo"


def test_who_is_overtaken_before_its_epoch_has_begun_is_fenced(tier: Tier) -> None:
    late = tier.open(claims=False)

    def mood(name: str, key: str, is_done: bool) -> None:
        if name == "put" and "/epoch/" in key and is_done:
            tier.clients[0].mood = lambda *_: None
            put(tier.open(), b"winner")

    tier.clients[0].mood = mood
    with pytest.raises(FencedError):
        late.claim()
    assert late.fence is not None
    assert late.fence.epoch == 2


def test_who_meets_an_entry_of_a_later_epoch_asks_nothing_more(tier: Tier) -> None:
    first = tier.open()
    tier.open()

    def overtaken() -> None:
        with pytest.raises(FencedError):
            put(first, b"late")

    assert tier.requests(overtaken, 0) == {"put": 1, "head": 3, "get": 1}
    assert first.fence is not None
    assert first.fence.epoch == 2


def test_who_is_overtaken_while_it_appends_says_by_whom(tier: Tier) -> None:
    first = tier.open()

    def mood(name: str, key: str, is_done: bool) -> None:
        if name == "put" and is_done:
            first.calls.put(first.key(epoch_name(2)), b"another")

    tier.clients[0].mood = mood
    with pytest.raises(FencedError):
        put(first, b"late")
    assert first.fence is not None
    assert first.fence.epoch == 2


def test_an_entry_that_landed_before_the_winner_began_counts_and_is_not_acknowledged(
    tier: Tier,
) -> None:
    first = tier.open()
    put(first, b"one")
    second = tier.open(claims=False)
    seconds = tier.clients[-1]
    caught: list[BaseException] = []

    def mood(name: str, key: str, is_done: bool) -> None:
        if name == "put" and "/log/" in key and not caught:
            with pytest.raises(FencedError) as error:
                put(first, b"two")
            caught.append(error.value)

    seconds.mood = mood
    second.claim()
    assert caught
    assert second.state().segments[1].size == 6
    assert contents(tier) == b"onetwo"


def test_those_that_join_append_side_by_side(tier: Tier) -> None:
    logs = [tier.open(joins=True) for _ in range(3)]
    assert {log.epoch for log in logs} == {1}
    keys = [(f"broker/topic/{queue}", SegmentType.COMMIT_LOG, 0) for queue in range(3)]
    for _ in range(3):
        for log, key in zip(logs, keys, strict=True):
            put(log, b"x", key)
    assert {contents(tier, key) for key in keys} == {b"xxx"}
    tier.runtime.clock.sleep(2)
    assert {log.settled().sequence for log in logs} == {10}
    owner = tier.open()
    assert owner.epoch == 2
    for log in logs:
        with pytest.raises(FencedError):
            log.append([Draft()])
        assert log.follow().epoch == 1


@pytest.mark.parametrize("in_doubt", [False, True])
def test_one_that_joined_and_slept_appends_where_the_log_ends_now(
    tier: Tier, in_doubt: bool
) -> None:
    """Nobody has claimed meanwhile, so only the log can tell that its next sequence was used."""
    sleeper, other = (tier.open(joins=True) for _ in range(2))
    keys = [(f"broker/topic/{queue}", SegmentType.COMMIT_LOG, 0) for queue in range(2)]
    put(sleeper, b"one", keys[0])
    if in_doubt:
        tier.clients[0].mood = outage(False, 3)
        with pytest.raises(BackendUnavailableError):
            put(sleeper, b"lost", keys[0])
        assert sleeper.in_doubt
    for _ in range(2):
        put(other, b"two", keys[1])
    state = other.state()
    other.calls.put(other.key(state_name(state.sequence)), state.encoded())
    tier.drop(log_name(2))
    tier.runtime.clock.sleep(GRACE_MS / 1000)
    put(sleeper, b"three", keys[0])
    assert tier.open(claims=False).follow().segments[1].size == 8


@pytest.mark.parametrize("joins", [False, True])
def test_a_writer_appends_behind_however_many_entries_of_others(
    tier: Tier, monkeypatch: pytest.MonkeyPatch, joins: bool
) -> None:
    """The driver of a job claims, and its workers join: each of them appends on its own."""
    monkeypatch.setattr(log_module, "MEETINGS_MAX", 20)
    owner = tier.open(joins=joins)
    other = tier.open(joins=True)
    keys = [(f"broker/topic/{queue}", SegmentType.COMMIT_LOG, 0) for queue in range(2)]
    for _ in range(50):
        put(other, b"o", keys[1])
    counts = tier.requests(lambda: put(owner, b"own", keys[0]), which=0)
    assert counts["put"] <= 10
    assert contents(tier, keys[0]) == b"own"
    assert contents(tier, keys[1]) == b"o" * 50
    for _ in range(50):
        put(other, b"o", keys[1])
    tier.open()
    with pytest.raises(FencedError):
        put(owner, b"late", keys[0])


@pytest.mark.parametrize("joins", [False, True])
def test_a_writer_that_reads_many_entries_of_others_takes_in_nothing_of_its_successor(
    tier: Tier, monkeypatch: pytest.MonkeyPatch, joins: bool
) -> None:
    """What it has listed is deleted before it is read, and a state of the successor replaces it."""
    owner, other = tier.open(joins=joins), tier.open(joins=True)
    for _ in range(20):
        put(other, b"o")
    inner = tier.clients[0].get_ranges
    successors: list[BrokerLog] = []

    def overtaken(ranges: Sequence[Range]) -> Sequence[bytes | TieredStoreError]:
        if not successors:
            successors.append(tier.open())
            state = successors[0].state()
            successors[0].calls.put(owner.key(state_name(state.sequence)), state.encoded())
            for sequence in range(1, state.sequence + 1):
                tier.drop(log_name(sequence))
        return inner(ranges)

    monkeypatch.setattr(tier.clients[0], "get_ranges", overtaken)
    with pytest.raises(FencedError):
        put(owner, b"own", ("broker/topic/9", SegmentType.COMMIT_LOG, 0))
    assert successors
    assert owner.state().epoch < 2


def test_one_that_joins_a_bucket_without_a_log_counts_no_objects_there(tier: Tier) -> None:
    """Only readers take them for segments, until an entry names them."""
    taken = ("broker/topic/9", SegmentType.COMMIT_LOG, 0)
    log = tier.open(joins=True, taken_in=lambda state: state.take_in(taken, "sealed", 3))
    tier.runtime.clock.sleep(2)
    assert not log.settled().segments
    put(log, b"one")
    assert contents(tier) == b"one"


@pytest.mark.parametrize("has_landed", [True, False])
def test_one_that_joined_reads_on_while_an_entry_of_its_own_is_in_doubt(
    tier: Tier, has_landed: bool
) -> None:
    log, other = (tier.open(joins=True) for _ in range(2))
    keys = [(f"broker/topic/{queue}", SegmentType.COMMIT_LOG, 0) for queue in range(2)]
    put(log, b"one", keys[0])

    def mood(name: str, key: str, is_done: bool) -> None:
        if is_done is has_landed or name == "head":
            raise BackendUnavailableError(key, name, "down")

    tier.clients[0].mood = mood
    with pytest.raises(BackendUnavailableError):
        put(log, b"two", keys[0])
    tier.clients[0].mood = lambda *_: None
    put(other, b"three", keys[1])
    log.follow()
    size = log.settled().segments[1].size
    assert size == (6 if has_landed else 3)
    assert not log.in_doubt
    put(log, b"four", keys[0])
    assert [contents(tier, key) for key in keys] == [
        b"onetwofour" if has_landed else b"onefour",
        b"three",
    ]


def test_a_writer_that_slept_till_its_sequence_was_deleted_is_fenced(tier: Tier) -> None:
    first = tier.open()
    put(first, b"one")
    lagging = tier.open(claims=False)
    lagging.follow()
    second = tier.open()
    put(second, b"two")
    state = second.state()
    second.calls.put(second.key(state_name(state.sequence)), state.encoded())
    tier.drop(log_name(3))
    with pytest.raises(FencedError):
        put(first, b"wrong")
    assert second.key(log_name(3)) in tier.objects.held
    assert first.state().segments[1].size == 3
    assert lagging.follow().segments[1].size == 6
    assert contents(tier) == b"onetwo"


def test_a_writer_believes_no_entry_that_was_put_again_where_it_slept(tier: Tier) -> None:
    first = tier.open()
    put(first, b"one")
    second = tier.open()
    put(second, b"two")
    state = second.state()
    second.calls.put(second.key(state_name(state.sequence)), state.encoded())
    tier.drop(log_name(3))
    row = (1, 3, 5, 0, 0, crc32c(b"wrong"), NO_ROW, NO_ROW)
    late = Entry(
        sequence=3, epoch=1, nonce="late", time_ms=0, extents=Extents.of([row]), payload_bytes=5
    )
    tier.objects.put(second.key(log_name(3)), late.encoded([b"wrong"]), None)
    with pytest.raises(FencedError):
        put(first, b"more")
    assert first.state().segments[1].size == 3


# Readers


def test_a_reader_that_lags_behind_what_was_deleted_begins_at_the_state(tier: Tier) -> None:
    writer, reader = tier.open(), tier.open(claims=False)
    put(writer, b"one")
    reader.follow()
    for _ in range(3):
        put(writer, b"two")
    state = writer.state()
    writer.calls.put(writer.key(state_name(state.sequence)), state.encoded())
    put(writer, b"three")
    for sequence in range(1, 4):
        tier.drop(log_name(sequence))
    assert tier.requests(reader.follow) == {"list": 1, "get": 2}
    assert reader.state().segments[1].size == 3 + 9 + 5


def test_a_missing_entry_is_damage(tier: Tier) -> None:
    writer = tier.open()
    for _ in range(3):
        put(writer, b"x")
    tier.drop(log_name(2))
    with pytest.raises(MetadataError, match=f"{log_name(2)}: is missing"):
        tier.open()
    with pytest.raises(MetadataError, match="is missing"):
        tier.open(claims=False).follow()


def test_an_entry_or_a_state_under_another_name_is_damage(tier: Tier) -> None:
    writer = tier.open()
    put(writer, b"x")
    held = tier.objects.held
    held[writer.key(log_name(3))] = held[writer.key(log_name(2))]
    with pytest.raises(MetadataError, match="it is entry 2"):
        tier.open()
    tier.drop(log_name(3))
    tier.objects.put(writer.key(state_name(7)), writer.state().encoded(), None)
    with pytest.raises(MetadataError, match="it is the state of entry 2"):
        tier.open()


def test_a_reader_that_reads_for_minutes_lists_again(tier: Tier) -> None:
    writer = tier.open()
    for _ in range(20):
        put(writer, b"x")
    reader = tier.open(claims=False)
    slept: list[str] = []

    def mood(name: str, key: str, is_done: bool) -> None:
        if name == "get" and log_name(12) in key and not slept:
            slept.append(key)
            clock = tier.runtime.clock
            assert isinstance(clock, ManualClock)
            clock.advance(400_000)

    tier.clients[-1].mood = mood
    assert tier.requests(reader.follow)["list"] == 3
    assert reader.state().segments[1].size == 20


def test_open_segments_of_the_older_layout_are_refused(tier: Tier) -> None:
    key = ".parts/" + tier.layout.below("broker") + "topic/0/COMMIT_LOG/x"
    tier.objects.put(key, b"x", None)
    with pytest.raises(BackendRefusedError, match="older layout"):
        tier.open()
    assert not tier.objects.held_keys(".rounds/")
    assert tier.open(claims=False).follow().sequence == 0
