"""Actors that run one at a time, and a seed that decides which one continues.

An actor is a greenlet. It runs until a point where another thread could interfere: a step of the
disk, a request, a lock, a sleep, a wait. There it may continue, or the scheduler chooses another
one. So the same seed makes the same history, and a history is cheap: a switch costs less than a
microsecond, and nobody really waits.

Code under test asks `threading` for its locks when it makes its objects. `Scheduler.installed`
gives it locks that switch to the scheduler instead of blocking the only thread; so does everything
made of locks in `threading` and `concurrent.futures` (RLock, Condition, Event, Future). Time stands
still while any actor can continue; then it jumps to one of the moments that are waited for.
"""

from __future__ import annotations

import itertools
import threading
from bisect import insort
from collections.abc import Callable, Iterator
from concurrent.futures import Future, _base
from contextlib import contextmanager, suppress
from itertools import chain, islice
from operator import attrgetter
from random import Random
from typing import Any, Final, ParamSpec, TypeVar

import pytest
from greenlet import getcurrent, greenlet

from tieredstore.driver.runtime import Runtime, done_future
from tieredstore.testing.disk import Crash

P = ParamSpec("P")
T = TypeVar("T")

STEPS_MAX: Final = 400_000
IDLE_JUMPS_MAX: Final = 20_000
TRACE_MAX: Final = 40_000


class Stuck(AssertionError):
    """No actor can continue, or none comes to an end."""


class Process:
    """Actors that die together. `place` is their machine."""

    def __init__(self, name: str, place: Any = None) -> None:
        self.name = name
        self.place = place
        self.is_dead = False
        self.sleeps_until = 0.0  # halted until then, without noticing


class Actor:
    """One thread of a process."""

    def __init__(
        self, name: str, number: int, process: Process, call: Callable[[], object]
    ) -> None:
        self.name = name
        self.number = number  # its identity as a thread: an address may come again
        self.process = process
        self.call = call
        self.is_done = False
        self.priority = 0.0
        self.until: Callable[[], bool] | None = None  # what it waits for
        self.deadline: float | None = None  # until when, in seconds
        self.greenlet: Any = None


class VirtualClock:
    """A clock that jumps; sleeping lets other actors run."""

    def __init__(self, scheduler: Scheduler, now_ms: int) -> None:
        self._scheduler = scheduler
        self._start_ms = now_ms
        self.passed_ms = 0.0
        self.shift_ms = 0  # somebody has set the clock

    def now_ms(self) -> int:
        return self._start_ms + self.shift_ms + int(self.passed_ms)

    def monotonic(self) -> float:
        return self.passed_ms / 1000

    def sleep(self, seconds: float) -> None:
        self._scheduler.wait(lambda: False, seconds)


class Scheduler:
    """Decides which actor continues. `run` returns when its first one, the director, has ended."""

    def __init__(self, seed: object, *, now_ms: int) -> None:
        self.dice = Random(f"{seed} scheduler")
        self.clock = VirtualClock(self, now_ms)
        self.switches = self.dice.choice([0.02, 0.1, 0.3, 0.7])  # how often at each point
        self.by_priority = self.dice.random() < 0.5
        self.actors: list[Actor] = []  # by priority, highest first
        self.running: Actor | None = None
        self.failure: BaseException | None = None
        self.steps = 0
        self.trace: list[str] = []
        self.at_step: Callable[[str], None] | None = None  # called at each step
        self._numbers = itertools.count(2)
        self._lowest = 0.0
        self._has_ended = False  # whether an actor ended since the last clean-up
        self._dying: list[tuple[Process, Callable[[], None]]] = []
        self._hub: Any = getcurrent()
        self._jumps = 0

    # For actors

    def spawn(self, name: str, process: Process, call: Callable[[], object]) -> Actor:
        actor = Actor(name, next(self._numbers), process, call)
        actor.priority = self.dice.random()
        actor.greenlet = greenlet(lambda: self._run(actor), parent=self._hub)
        insort(self.actors, actor, key=lambda each: -each.priority)
        return actor

    def pause(self, what: str) -> None:
        """A point where other actors may run, or the process may end."""
        actor = self.running
        if actor is None:
            return
        if actor.process.is_dead:
            raise Crash(what)
        self.steps += 1
        if self.at_step is not None:
            self.at_step(what)
        if self.dice.random() < self.switches or self._dying:
            if self.by_priority:
                self._lowest -= 1
                actor.priority = self._lowest
                self.actors.remove(actor)
                self.actors.append(actor)
            self._give_way(actor)

    def wait(self, until: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until something is true, at most `seconds`; returns whether it is true."""
        actor = self.running
        if actor is None:
            raise Stuck("the scheduler itself would wait")
        if actor.process.is_dead:
            raise Crash
        actor.until = until
        actor.deadline = None if seconds is None else self.clock.monotonic() + seconds
        try:
            self._give_way(actor)
        finally:
            actor.until = actor.deadline = None
        return until()

    def note(self, text: str) -> None:
        if len(self.trace) >= TRACE_MAX:
            del self.trace[: TRACE_MAX // 2]
        who = "" if self.running is None else self.running.name
        self.trace.append(f"{self.clock.passed_ms / 1000:.3f} {who}: {text}")

    def kill(self, process: Process, then: Callable[[], None] = lambda: None) -> None:
        """End a process at the next turn: none of its actors continues or completes."""
        process.is_dead = True
        self._dying.append((process, then))

    # The hub

    def run(self, director: Actor) -> None:
        while not director.is_done and self.failure is None:
            self._bury()
            actor = self._chosen()
            if actor is not None:
                self._switch_to(actor)
            if self.steps > STEPS_MAX:
                raise Stuck(f"no end after {self.steps} steps: {self._who_waits()}")
        self.end()
        if self.failure is not None:
            raise self.failure

    def end(self) -> None:
        for process in {id(each.process): each.process for each in self.actors}.values():
            self.kill(process)
        self._bury()

    def _bury(self) -> None:
        while self._dying:
            process, then = self._dying.pop(0)
            for actor in [each for each in self.actors if each.process is process]:
                if not actor.is_done:
                    self.running, actor.is_done = actor, True
                    with suppress(Crash):  # raised by one that has not begun
                        actor.greenlet.throw(Crash)
                    self.running = None
            self.actors = [each for each in self.actors if each.process is not process]
            then()

    def _chosen(self) -> Actor | None:
        now = self.clock.passed_ms / 1000
        if self._has_ended:
            self.actors = [each for each in self.actors if not each.is_done]
            self._has_ended = False
        chosen = self._next(now)
        if chosen is None:
            self._let_time_pass(now)
        elif self.dice.random() < 0.3:
            self.clock.passed_ms += 1
        return chosen

    def _next(self, now: float) -> Actor | None:
        """The first actor that can continue, by priority or from a random place on."""
        actors = self.actors
        start = 0 if self.by_priority else int(self.dice.random() * len(actors))
        for each in chain(islice(actors, start, None), islice(actors, start)):
            if each.process.sleeps_until > now:
                continue
            until, deadline = each.until, each.deadline
            if until is None or (deadline is not None and deadline <= now) or until():
                return each
        return None

    def _let_time_pass(self, now: float) -> None:
        moments = [each.deadline for each in self.actors if each.deadline is not None]
        moments += [each.process.sleeps_until for each in self.actors]
        ahead = sorted({each for each in moments if each > now})
        self._jumps += 1
        if not ahead:
            raise Stuck(f"a deadlock: {self._who_waits()}")
        if self._jumps > IDLE_JUMPS_MAX:
            raise Stuck(f"nothing comes of waiting: {self._who_waits()}")
        to = ahead[0] if self.dice.random() < 0.5 else self.dice.choice(ahead)
        # Slightly later: rounding might otherwise leave the clock just before the moment forever.
        self.clock.passed_ms = max(self.clock.passed_ms, to * 1000 + 0.001)

    def _who_waits(self) -> str:
        return ", ".join(f"{each.process.name} {each.name}" for each in self.actors)

    def _switch_to(self, actor: Actor) -> None:
        self.running = actor
        actor.greenlet.switch()
        self.running = None

    def _give_way(self, actor: Actor) -> None:
        self._hub.switch()
        if actor.process.is_dead:
            raise Crash

    def _run(self, actor: Actor) -> None:
        try:
            actor.call()
        except Crash:
            if not actor.process.is_dead:
                self.failure = self.failure or AssertionError(f"{actor.name} dies of nothing")
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            if not actor.process.is_dead:  # errors of a dying process are ignored
                self.failure = self.failure or error
        actor.is_done = self._has_ended = True

    # What code under test gets instead of threads

    def _ident(self) -> int:
        return 1 if self.running is None else self.running.number

    @contextmanager
    def installed(self) -> Iterator[None]:
        scheduler = self

        class Lock(_Lock):
            def __init__(self) -> None:
                super().__init__(scheduler)

        class RLock(_RLock):
            def __init__(self) -> None:
                super().__init__(scheduler)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading, "Lock", Lock)
            patch.setattr(threading, "_allocate_lock", Lock)
            patch.setattr(threading, "RLock", RLock)
            patch.setattr(threading, "get_ident", self._ident)
            # `current_thread` enters unknown threads there forever, and since Python 3.12 refers to
            # the last one from the thread: either would keep all this alive.
            patch.setattr(threading, "_active", dict(threading._active))  # type: ignore[attr-defined]
            patch.setattr(threading, "_DeleteDummyThreadOnDel", lambda _: None, raising=False)
            patch.setattr(threading, "_time", self.clock.monotonic)
            # `wait` takes the locks of its futures in the order of their addresses.
            patch.setattr(_base, "_AcquireFutures", _AcquireInOrder)
            patch.setattr(_base.Future, "__init__", _numbered(_base.Future.__init__))
            # It returns sets of them, which iterate in the order of their hashes.
            patch.setattr(_base.Future, "__hash__", _number_of)
            yield


def _numbered(init: Callable[[Any], None]) -> Callable[[Any], None]:
    numbers = itertools.count()

    def initialize(future: Any) -> None:
        init(future)
        future.number = next(numbers)

    return initialize


def _number_of(future: Any) -> int:
    number: int = future.number
    return number


class _AcquireInOrder(_base._AcquireFutures):
    def __init__(self, futures: Any) -> None:
        self.futures = sorted(futures, key=attrgetter("number"))


class _Lock:
    """A lock: an actor that finds it taken lets others run."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = self._scheduler
        if scheduler.running is not None and not scheduler.running.process.is_dead:
            scheduler.pause("lock")
        if blocking:
            seconds = None if timeout < 0 else timeout
            while self._is_held and scheduler.wait(self._is_free, seconds):
                pass
        if self._is_held:
            return False
        self._is_held = True
        return True

    def release(self, *exception: object) -> None:
        if not self._is_held:
            raise RuntimeError("release unlocked lock")
        self._is_held = False

    def locked(self) -> bool:
        return self._is_held

    def _is_free(self) -> bool:
        return not self._is_held

    __enter__, __exit__ = acquire, release


class _RLock(_Lock):
    """A lock that its holder may take again."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._owner: Actor | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._count and self._owner is self._scheduler.running:
            self._count += 1
            return True
        if not super().acquire(blocking, timeout):
            return False
        self._owner, self._count = self._scheduler.running, 1
        return True

    def release(self, *exception: object) -> None:
        if not self._is_owned():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner, self._is_held = None, False

    __enter__, __exit__ = acquire, release

    # For conditions

    def _is_owned(self) -> bool:
        return bool(self._count) and self._owner is self._scheduler.running

    def _release_save(self) -> int:
        count, self._count, self._owner, self._is_held = self._count, 0, None, False
        return count

    def _acquire_restore(self, count: int) -> None:
        super().acquire()
        self._owner, self._count = self._scheduler.running, count


class ActorPool:
    """Runs each call in a new actor of its process."""

    def __init__(self, scheduler: Scheduler, process: Process, name: str) -> None:
        self._scheduler, self._process, self._name = scheduler, process, name
        self._calls: list[Actor] = []
        self._closed = False

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._closed:
            return done_future(_refuse)
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                result = call(*args, **kwargs)
            except Crash:
                raise
            except BaseException as error:  # noqa: BLE001 - the future raises it
                future.set_exception(error)
            else:
                future.set_result(result)

        self._calls = [each for each in self._calls if not each.is_done]
        self._calls.append(self._scheduler.spawn(self._name, self._process, run))
        return future

    def close(self, timeout: float | None = None) -> bool:
        self._closed = True
        return self._scheduler.wait(lambda: all(each.is_done for each in self._calls), timeout)


def _refuse() -> Any:
    from tieredstore.model.errors import StoreClosedError

    raise StoreClosedError("the runtime is closed")


class ActorService:
    """Runs a step after each interval and whenever it is woken, in its own actor."""

    def __init__(
        self, runtime: ActorRuntime, name: str, step: Callable[[], object], interval_ms: int
    ) -> None:
        self._runtime, self._step, self._interval = runtime, step, interval_ms / 1000
        self._woken = self._stopped = False
        self._actor = runtime.scheduler.spawn(name, runtime.process, self._run)

    def wake(self) -> None:
        self._woken = True

    def stop(self, timeout: float | None = None) -> bool:
        self._stopped = self._woken = True
        scheduler = self._runtime.scheduler
        if scheduler.running is self._actor:
            return True
        return scheduler.wait(lambda: self._actor.is_done, timeout)

    def _run(self) -> None:
        scheduler = self._runtime.scheduler
        while True:
            scheduler.wait(lambda: self._woken, self._interval)
            self._woken = False
            if self._stopped:
                return
            try:
                self._step()
            except Exception as error:  # noqa: BLE001 - as a thread's service does
                self._runtime.failed(error)


class ActorRuntime(Runtime):
    """Pools and services of actors, and the virtual clock. `failed` gets what a step raises."""

    def __init__(
        self,
        scheduler: Scheduler,
        process: Process,
        dice: Random,
        failed: Callable[[Exception], None],
    ) -> None:
        super().__init__(
            clock=scheduler.clock,
            dispatch=ActorPool(scheduler, process, "dispatch"),
            fetch=ActorPool(scheduler, process, "fetch"),
            dice=dice,
        )
        self.scheduler, self.process, self.failed = scheduler, process, failed

    def service(self, name: str, step: Callable[[], object], *, interval_ms: int) -> ActorService:
        return ActorService(self, name, step, interval_ms)

    def pool(self, name: str, *, threads: int) -> ActorPool:
        return ActorPool(self.scheduler, self.process, name)
