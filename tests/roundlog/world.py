"""A bucket, and writers and readers whose every request waits for a seeded scheduler.

A request may be answered, lost, sent in vain, late by days, or land twice; a process may sleep or
end at any request. What is seen is always compared with `Truth`.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, NoReturn

from tests.roundlog.parked_client import GO, IN_VAIN, LAST, LATE, LOST, TWICE, ParkedClient
from tests.roundlog.truth import Picture, Witness
from tieredstore.driver.metadata import Change, DeleteNote, DeleteSegment, Put, PutNote
from tieredstore.driver.object_client import (
    ObjectClient,
    ObjectFacts,
    Range,
)
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import InlinePool, ManualClock, Runtime
from tieredstore.model.errors import (
    BackendUnavailableError,
    FencedError,
    PositionMismatchError,
    SegmentNotFoundError,
    TieredStoreError,
)
from tieredstore.model.values import SegmentRecord, SegmentType, TopicRecord
from tieredstore.roundlog import upkeep
from tieredstore.roundlog.draft import Draft, DraftWrite
from tieredstore.roundlog.entry import SegmentKey
from tieredstore.roundlog.layout import ObjectLayout, number_of
from tieredstore.roundlog.log import BrokerLog
from tieredstore.roundlog.object_calls import ObjectCalls
from tieredstore.roundlog.state import LogState
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects

LAYOUT: Final = ObjectLayout("cluster")
PREFIX: Final = LAYOUT.rounds("broker")
KEYS: Final = [
    (f"broker/topic/{queue}", SegmentType.COMMIT_LOG, base) for queue in range(3) for base in (0, 9)
]
MINUTE: Final = 60_000
DAY: Final = 24 * 60 * MINUTE
LATE_MS: Final = 30 * DAY  # a request lands no later than this
POLICY: Final = RetryPolicy(retries_max=1, first_wait_ms=1)

_ODDS: Final = ([GO] * 34, [LOST, IN_VAIN, LATE, LATE, TWICE, TWICE, TWICE, LAST])
_READ_ODDS: Final = ([GO] * 40, [LOST])


class _Ends(BaseException):
    """The process ends here."""


class Actor:
    """A process: a thread that runs only when it is its turn, up to its next request."""

    def __init__(self, world: World, name: str, script: Callable[[Actor], None]) -> None:
        self.world, self.name = world, name
        self.dice = Random(f"{world.seed} {name}")
        self.waits_for = ""  # a request
        self.sleeps_until = 0
        self.is_killed = self.is_done = False
        self.verdict = GO
        self._script = script
        self._turn = _thread.allocate_lock()
        self._turn.acquire()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self, verdict: str) -> None:
        """Let it run up to its next request."""
        self.verdict = verdict
        self._turn.release()
        self.world.baton.acquire()

    def park(self, request: str) -> str:
        if self.is_killed:
            raise _Ends
        self.waits_for = request
        self.world.baton.release()
        self._turn.acquire()
        if self.is_killed:
            raise _Ends
        return self.verdict

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self.is_killed:
                self._script(self)
        except _Ends:
            pass
        except BaseException as error:  # noqa: BLE001 - the world raises it
            self.world.problems.append(error)
        self.is_done = True
        self.world.baton.release()


class WritersClient(ParkedClient):
    """A process's client: each request waits for the scheduler's verdict."""

    def __init__(self, actor: Actor) -> None:
        super().__init__(MemoryObjectClient(actor.world.objects))
        self.actor = actor

    def _verdict(self, request: str, *, changes: bool) -> str:
        return self.actor.park(request)

    def _lands_later(self, request: str, call: Callable[[], Any]) -> None:
        world = self.actor.world
        world.late.append((world.clock.now_ms(), f"{self.actor.name} {request}", call))

    def _ends(self) -> NoReturn:
        self.actor.is_killed = True
        raise _Ends


class WatchedObjects(MemoryObjects):
    """A bucket that reports what lands in it."""

    def __init__(self, landed: Callable[[str, bytes], None]) -> None:
        super().__init__()
        self._landed = landed

    def put(
        self,
        key: str,
        data: bytes,
        metadata: Mapping[str, str] | None,
        *,
        if_absent: bool = False,
    ) -> ObjectFacts:
        facts = super().put(key, data, metadata, if_absent=if_absent)
        self._landed(key, data)
        return facts


@dataclass(frozen=True)
class Acknowledged:
    """Bytes that a writer was told are durable."""

    writer: str
    number: int
    position: int
    data: bytes


class World:
    """One schedule. `run` raises AssertionError for the first violation."""

    def __init__(self, seed: int, *, log: type[BrokerLog] = BrokerLog) -> None:
        self.seed = seed
        self.dice = Random(seed)
        self.log_type = log
        self.clock = ManualClock()
        self.objects = WatchedObjects(self._landed)
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.actors: list[Actor] = []
        self.late: list[tuple[int, str, Callable[[], Any]]] = []
        self.problems: list[BaseException] = []
        self.trace: list[str] = []
        self.witness = Witness(PREFIX)
        self.truth, self.pictures = self.witness.truth, self.witness.pictures
        self.acknowledged: list[Acknowledged] = []
        self.appenders: dict[int, str] = {}  # by epoch: whose append was acknowledged
        self.claims: dict[int, int] = {}  # by epoch: the step in which the claim landed
        self.step = 0
        self._running: Actor | None = None
        self._client = MemoryObjectClient(self.objects)
        self._laggard: BrokerLog | None = None  # a reader that reads once, and at the end

    def run(self, steps_max: int = 300) -> None:
        self._begin("w", self._write)
        self._begin("r", self._read)
        for self.step in range(1, steps_max):
            self._one_step()
            if self.problems:
                break
            if all(actor.is_done for actor in self.actors):
                break
        if not self.problems and self.dice.random() < 0.6:
            self._take_over()
        while self.late and not self.problems:
            self._land_late(self.dice.randrange(len(self.late)))
        for actor in self.actors:  # those that still sleep must find out
            for _ in range(12):
                if not actor.is_done and not self.problems:
                    self.trace.append(f"{actor.name} {actor.waits_for}")
                    actor.step(GO)
            self._end(actor)
        if self.problems:
            raise AssertionError(f"{self.problems[0]!r}") from self.problems[0]
        self._check_the_end()

    def _take_over(self) -> None:
        """An undisturbed writer does everything that is due, and deletes what was dead."""
        self.trace.append("a writer takes over")
        log = self._open(self._client, self.dice)
        log.claim()
        chores = upkeep.Upkeep(log)
        for number in range(3):
            log.append([Draft(changes=[PutNote("kind", "number", number)])])
            chores.save(entries_min=1)
            self.clock.advance(20 * MINUTE)
            while chores.step():
                pass

    # The scheduler

    def _one_step(self) -> None:
        dice = self.dice
        draw = dice.random()
        names = "".join(actor.name[0] for actor in self.actors)
        if draw < 0.015 and names.count("w") < 4:
            self._begin("w", self._write)
        elif draw < 0.02 and names.count("r") < 2:
            self._begin("r", self._read)
        elif draw < 0.025:
            self._end(dice.choice(self.actors))
        elif draw < 0.06:
            ms = dice.choice([1_500, MINUTE, 20 * MINUTE, 20 * MINUTE, DAY, 5 * DAY])
            self.trace.append(f"{ms / 1000} s pass")
            self.clock.advance(ms)
        elif draw < 0.08 and self.late:
            self._land_late(dice.randrange(len(self.late)))
        elif draw < 0.085 and self._laggard is None:
            self.trace.append("the laggard reads")
            self._laggard = self._open(self._client, self.dice)
            self._laggard.follow()
        elif (actor := self._chosen()) is None:
            self._begin("w", self._write)
        elif actor.waits_for and dice.random() < 0.01:
            actor.sleeps_until = self.step + dice.choice([20, 80, 200])
            self.trace.append(f"{actor.name} sleeps before {actor.waits_for}")
        else:
            self._let(actor)

    def _chosen(self) -> Actor | None:
        """Nearly always the one that ran last, so that each makes progress."""
        awake = [
            each for each in self.actors if not each.is_done and each.sleeps_until <= self.step
        ]
        if not awake:
            return None
        if self._running not in awake or self.dice.random() < 0.15:
            self._running = self.dice.choice(awake)
        return self._running

    def _let(self, actor: Actor) -> None:
        is_read = actor.waits_for.startswith(("GET", "LIST", "HEAD"))
        usual, unusual = _READ_ODDS if is_read else _ODDS
        verdict = self.dice.choice(usual if self.dice.random() < 0.9 else unusual)
        if actor.waits_for:
            self.trace.append(f"{actor.name} {actor.waits_for}: {verdict}")
        actor.step(verdict)

    def _begin(self, kind: str, script: Callable[[Actor], None]) -> None:
        name = f"{kind}{len(self.actors)}"
        self.trace.append(f"{name} begins")
        self.actors.append(Actor(self, name, script))

    def _end(self, actor: Actor) -> None:
        if not actor.is_done:
            self.trace.append(f"{actor.name} ends before {actor.waits_for}")
            actor.is_killed = True
            actor.step(GO)

    def _land_late(self, which: int) -> None:
        sent_ms, name, call = self.late.pop(which)
        if self.clock.now_ms() - sent_ms < LATE_MS:
            self.trace.append(f"late: {name}")
            with suppress(TieredStoreError):
                call()

    # What lands

    def _landed(self, key: str, data: bytes) -> None:
        try:
            self._take(key, data)
        except Exception as error:  # noqa: BLE001 - `run` raises it
            self.problems.append(error)

    def _take(self, key: str, data: bytes) -> None:
        if told := self.witness.landed(key, data):
            self.trace.append(f"  {told}")
        number = number_of(key.removeprefix(PREFIX))
        if key.startswith(f"{PREFIX}epoch/") and number is not None:
            self.claims[number] = self.step

    # Processes

    def _open(self, client: ObjectClient, dice: Random) -> BrokerLog:
        runtime = Runtime(clock=self.clock, dispatch=InlinePool(), fetch=InlinePool(), dice=dice)
        return self.log_type(ObjectCalls(client, runtime, POLICY), LAYOUT, "broker", runtime)

    def _write(self, actor: Actor) -> None:
        client = WritersClient(actor)
        log = self._open(client, actor.dice)
        chores = upkeep.Upkeep(log)
        for _ in range(60):
            begun_at = self.step
            try:
                log.claim()
                self._act(actor, log, chores, begun_at)
            except FencedError:
                self._check_fenced(log, client)
                return
            except (BackendUnavailableError, PositionMismatchError):
                with suppress(BackendUnavailableError, FencedError):
                    log.settled()
            except SegmentNotFoundError:
                # An overtaken writer that does not know it yet misses what the winner deleted.
                assert log.epoch is not None
                assert log.epoch + 1 in self.claims

    def _act(self, actor: Actor, log: BrokerLog, chores: upkeep.Upkeep, begun_at: int) -> None:
        dice = actor.dice
        draw = dice.random()
        state = log.state()
        key = dice.choice(KEYS)
        segment = state.segment(key)
        if draw < 0.55:
            drafts = [self._draft(actor, log, each) for each in dice.sample(KEYS, 2)]
            self._append(actor, log, [each for each in drafts if each is not None], begun_at)
        elif draw < 0.60:
            gone = DeleteSegment(*key)
            self._append(actor, log, [Draft(deleted=[key], changes=[gone])], begun_at)
        elif draw < 0.66 and segment is not None:
            upkeep.seal(log, [key], InlinePool())
        elif draw < 0.72:
            self._stage(log, [Put(TopicRecord(topic=f"{actor.name}-{self.step}", topic_id=1))])
        elif draw < 0.76:
            note: Change = PutNote("kind", key[0], self.step)
            if dice.random() < 0.3:
                note = DeleteNote("kind", key[0])
            self._append(actor, log, [Draft(changes=[note])], begun_at)
        else:
            chores.step()

    def _draft(self, actor: Actor, log: BrokerLog, key: SegmentKey) -> Draft | None:
        """The next bytes of a segment and its row, which may be a staged one."""
        state = log.state()
        segment = state.segment(key)
        if segment is not None and segment.sealed is not None:
            return None
        size = 0 if segment is None else segment.size
        text = f"{actor.name}.{self.step}.{actor.dice.random()};".encode()
        data = text * actor.dice.choice([1, 1, 1, 8])
        path, kind, base = key
        row = SegmentRecord(path=path, type=kind, base_offset=base, create_timestamp=size and 1)
        if actor.dice.random() < 0.4:
            self._stage(log, [Put(row)])
        grown = replace(row, size=size + len(data), begin_timestamp=1, end_timestamp=self.step)
        return Draft(writes=[DraftWrite(key, size, data)], rows=[grown])

    def _stage(self, log: BrokerLog, changes: Sequence[Change]) -> None:
        log.state().tables.apply(changes)
        log.staged += changes

    def _append(self, actor: Actor, log: BrokerLog, drafts: Sequence[Draft], begun_at: int) -> None:
        epoch = log.epoch
        assert epoch is not None
        before = log.state().sequence
        log.append(drafts)
        if log.state().sequence == before:
            return  # there was nothing to write
        claimed_at = self.claims.get(epoch + 1)
        assert claimed_at is None or claimed_at > begun_at, "it does not say that it is fenced"
        assert self.appenders.setdefault(epoch, actor.name) == actor.name, "two in an epoch"
        state = log.state()
        self._check_seen(log, state)
        for draft in drafts:
            if draft.error is not None:
                continue
            for write in draft.writes:
                number = state.numbers[write.key]
                place = write.position
                self.acknowledged.append(Acknowledged(actor.name, number, place, bytes(write.data)))
        self.trace.append(f"  {actor.name} was told that entry {state.sequence} is durable")
        self._check_acknowledged()

    def _read(self, actor: Actor) -> None:
        client = WritersClient(actor)
        log = self._open(client, actor.dice)
        for _ in range(15):
            try:
                state = log.follow()
                self._check_seen(log, state, rows=True)
                if state.segments:
                    number = actor.dice.choice(list(state.segments))
                    self._check_bytes(log, state, number)
            except (BackendUnavailableError, SegmentNotFoundError):
                pass  # a reader that lags looks again

    # What must hold

    def _check_seen(self, log: BrokerLog, state: LogState, *, rows: bool = False) -> None:
        known = self.pictures[state.sequence]
        found = Picture.of(state)
        assert found.segments == known.segments, f"entry {state.sequence}: other segments"
        assert found.epoch == known.epoch
        if rows:
            assert found.rows == known.rows, f"entry {state.sequence}: other rows"

    def _check_bytes(self, log: BrokerLog, state: LogState, number: int) -> None:
        segment = state.segments[number]
        size, sealed = segment.size, segment.sealed
        if sealed is not None:
            data = log.calls.ranges([Range(log.key(sealed.key), 0, sealed.size)])[0]
        else:
            places = state.places(number)
            wanted = [Range(log.key(each.object), each.offset, each.length) for each in places]
            data = b"".join(log.calls.ranges(wanted))
        assert data == bytes(self.truth.segments[number].data[:size]), "other bytes"

    def _check_acknowledged(self) -> None:
        for each in self.acknowledged:
            known = (
                self.truth.segments[each.number].data if each.number in self.truth.segments else b""
            )
            found = bytes(known[each.position : each.position + len(each.data)])
            assert found == each.data, f"what {each.writer} was told is durable is lost"

    def _check_fenced(self, log: BrokerLog, client: WritersClient) -> None:
        """It must say so at once and forever, and know nothing of the winner."""
        count = client.count
        epoch = log.epoch
        for call in (log.claim, log.settled, lambda: log.append([Draft()])):
            try:
                call()
            except FencedError:
                continue
            raise AssertionError("a fenced writer goes on")
        assert client.count == count
        if epoch is not None:
            state = log.follow()
            assert state.epoch <= epoch, "a fenced writer reads of the winner"
            # Its epoch's beginning may have landed in place of a deleted entry; it says no more.
            at = state.sequence
            known = [self.pictures[each].segments for each in (at, at - 1)]
            assert Picture.of(state).segments in known, "a fenced writer knows what never was"
        assert client.count == count

    def _check_the_end(self) -> None:
        """A new reader must find everything acknowledged, and a new writer can write."""
        self._check_acknowledged()
        reader = self._open(self._client, self.dice)
        for each in (self._laggard, reader):
            if each is not None:
                self._read_all(each)
        writer = self._open(self._client, self.dice)
        writer.claim()
        key = ("broker/last/0", SegmentType.COMMIT_LOG, 0)
        writer.append([Draft(writes=[DraftWrite(key, 0, b"the last")])])
        self._read_all(reader)
        assert self.truth.live[key]
        if self.problems:
            raise AssertionError(f"{self.problems[0]!r}") from self.problems[0]

    def _read_all(self, reader: BrokerLog) -> None:
        state = reader.follow()
        assert state.sequence == self.truth.sequence
        self._check_seen(reader, state, rows=True)
        for number in list(state.segments):
            self._check_bytes(reader, state, number)
