"""The runtime: clocks, pools, services and calls that may never end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

import pytest

from tieredstore.driver.runtime import (
    Deadline,
    InlineService,
    ManualClock,
    Runtime,
    SystemClock,
    ThreadPool,
    ThreadService,
    mapped_future,
    with_deadline,
)
from tieredstore.model.errors import StoreClosedError
from tieredstore.model.values import INT64_MAX

LONG = 240.0  # an upper bound: no sound run waits that long


def test_inline_runs_at_once_in_the_callers_thread_and_in_order() -> None:
    runtime = Runtime.inline()
    seen: list[tuple[int, int]] = []
    for number in range(3):
        pool = runtime.dispatch if number % 2 else runtime.fetch
        future = pool.submit(lambda: seen.append((len(seen), threading.get_ident())))
        assert future.done()
    assert seen == [(number, threading.get_ident()) for number in range(3)]


def test_inline_keeps_an_error_for_whoever_asks() -> None:
    future = Runtime.inline().fetch.submit(int, "x")
    with pytest.raises(ValueError, match="invalid literal"):
        future.result()


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(now_ms=1_000)
    assert (clock.now_ms(), clock.monotonic()) == (1_000, 0.0)
    clock.advance(250)
    clock.sleep(0.5)
    clock.advance(-100)
    assert clock.now_ms() == 1_750


def test_the_system_clock_goes_on() -> None:
    clock = SystemClock()
    assert clock.now_ms() > 1_700_000_000_000
    assert clock.monotonic() <= clock.monotonic()
    clock.sleep(0)


def test_no_thread_starts_before_the_first_call() -> None:
    before = set(threading.enumerate())  # threads of earlier tests may end meanwhile
    runtime = Runtime.threads()
    assert set(threading.enumerate()) <= before
    assert runtime.fetch.submit(lambda: 7).result(LONG) == 7
    runtime.close()
    assert set(threading.enumerate()) <= before


def test_when_the_queue_is_full_the_caller_does_the_work() -> None:
    pool = ThreadPool("test", threads=1, pending_max=1)
    gate, started = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        gate.wait(LONG)

    held = pool.submit(hold)
    assert started.wait(LONG)
    waiting = pool.submit(threading.get_ident)
    assert not waiting.done()
    mine = pool.submit(threading.get_ident)
    assert mine.done()
    assert mine.result() == threading.get_ident()
    gate.set()
    assert held.result(LONG) is None
    assert waiting.result(LONG) != threading.get_ident()
    assert pool.submit(threading.get_ident).result(LONG) != threading.get_ident()
    pool.close()


def refuse_threads(patch: pytest.MonkeyPatch, names: str) -> None:
    """No thread whose name begins like this can be started."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(names):
            raise RuntimeError("can't start new thread")
        start(thread)

    patch.setattr(threading.Thread, "start", refuse)


def test_while_no_thread_can_be_started_the_caller_does_the_work_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = ThreadPool("test", threads=2, pending_max=0)
    made: list[int] = []
    with monkeypatch.context() as patch:
        refuse_threads(patch, "tieredstore-test")
        for _ in range(5):
            assert pool.submit(lambda: made.append(threading.get_ident())).done()
    assert made == [threading.get_ident()] * 5
    assert pool.submit(threading.get_ident).result(LONG) != threading.get_ident()
    assert len(made) == 5
    pool.close()


def test_while_no_more_threads_can_be_started_the_others_do_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = ThreadPool("test", threads=2, pending_max=2)
    gate, started = threading.Event(), threading.Event()

    def hold() -> int:
        started.set()
        gate.wait(LONG)
        return threading.get_ident()

    held = pool.submit(hold)
    assert started.wait(LONG)
    with monkeypatch.context() as patch:
        refuse_threads(patch, "tieredstore-test")
        waiting = pool.submit(threading.get_ident)
    gate.set()
    assert waiting.result(LONG) == held.result(LONG)
    pool.close()


def test_a_call_that_submits_to_its_own_pool_does_not_wait_for_itself() -> None:
    pool = ThreadPool("test", threads=1, pending_max=0)
    outer = pool.submit(lambda: pool.submit(lambda: "inner").result(LONG))
    assert outer.result(LONG) == "inner"
    pool.close()


@pytest.mark.parametrize("make", [Runtime.inline, Runtime.threads])
def test_a_closed_runtime_takes_no_more(make: Callable[[], Runtime]) -> None:
    with make() as runtime:
        kept = runtime.dispatch.submit(lambda: "kept")
    runtime.close()
    assert kept.result(LONG) == "kept"
    for pool in (runtime.dispatch, runtime.fetch):
        with pytest.raises(StoreClosedError):
            pool.submit(lambda: None)


def test_a_service_repeats_its_step_when_woken_and_survives_one_that_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps: list[int] = []
    third = threading.Event()

    def step() -> None:
        steps.append(threading.get_ident())
        if len(steps) == 3:
            third.set()
        if len(steps) == 1:
            service.wake()
            raise RuntimeError("the first step fails")
        service.wake()

    with Runtime.threads() as runtime:
        service = runtime.service("test", step, interval_ms=10_000_000)
        service.wake()
        assert third.wait(LONG)
        service.stop()
        service.stop()
    taken = len(steps)
    service.wake()
    assert len(steps) == taken
    assert set(steps) != {threading.get_ident()}
    assert "the first step fails" in caplog.text


def test_a_service_whose_interval_never_ends_still_steps_when_woken() -> None:
    done = threading.Event()
    with Runtime.threads() as runtime:
        service = runtime.service("test", done.set, interval_ms=INT64_MAX)
        service.wake()
        assert done.wait(LONG)
        assert service.stop(LONG)


@pytest.mark.parametrize("seconds", [float("inf"), 1e30])
def test_a_deadline_beyond_all_time_is_one_that_a_lock_can_wait_for(seconds: float) -> None:
    left = Deadline(SystemClock(), seconds).left()
    assert left is not None
    assert threading.Lock().acquire(timeout=left)


def test_a_service_takes_a_step_after_each_interval() -> None:
    done = threading.Event()
    with Runtime.threads() as runtime:
        service = runtime.service("test", done.set, interval_ms=1)
        assert done.wait(LONG)
        service.stop()


def test_an_inline_service_runs_only_when_woken() -> None:
    steps: list[int] = []

    def step() -> None:
        steps.append(threading.get_ident())
        if len(steps) == 1:
            service.wake()  # asks for another step, which must not run inside this one

    service = Runtime.inline().service("test", step, interval_ms=1)
    assert steps == []
    service.wake()
    assert steps == [threading.get_ident()] * 2
    service.stop()
    service.wake()
    assert len(steps) == 2


def test_the_dice_of_an_inline_runtime_fall_the_same_each_time() -> None:
    throws = [[Runtime.inline(seed=5).dice.random() for _ in range(3)] for _ in range(2)]
    assert throws[0] == throws[1]


def test_a_runtime_is_closed_in_time_whatever_its_calls_do() -> None:
    runtime = Runtime.threads(dispatch_threads=1, fetch_threads=1)
    gate, started = threading.Event(), threading.Event()

    def hold() -> str:
        started.set()
        gate.wait(LONG)
        return "held"

    held = runtime.dispatch.submit(hold)
    assert started.wait(LONG)
    waiting = runtime.dispatch.submit(lambda: "never")
    assert not runtime.close(0.05)
    assert waiting.cancelled()
    with pytest.raises(StoreClosedError):
        runtime.dispatch.submit(lambda: None)
    gate.set()
    assert held.result(LONG) == "held"
    assert runtime.close(LONG)


def test_a_runtime_with_time_lets_all_it_accepted_finish() -> None:
    runtime = Runtime.threads(dispatch_threads=1, fetch_threads=1)
    kept = [runtime.dispatch.submit(int, number) for number in range(50)]
    assert runtime.close(LONG)
    assert [each.result(0) for each in kept] == list(range(50))


@pytest.mark.parametrize("timeout", [None, LONG])
def test_a_call_that_closes_its_own_runtime_does_not_wait_for_itself(timeout: float | None) -> None:
    runtime = Runtime.threads(dispatch_threads=1, fetch_threads=1)
    accepted = threading.Event()

    def close() -> bool:
        assert accepted.wait(LONG)
        return runtime.close(timeout)

    closing = runtime.fetch.submit(close)
    behind = runtime.fetch.submit(int, 7)
    accepted.set()
    assert not closing.result(LONG / 2)
    assert behind.result(LONG) == 7
    assert runtime.close(LONG)


def test_threads_of_a_runtime_that_nobody_has_any_more_end() -> None:
    runtime = Runtime.threads()
    thread = runtime.fetch.submit(threading.current_thread).result(10)
    del runtime
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_who_stops_a_service_need_not_wait_for_its_step() -> None:
    gate, started = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        gate.wait(LONG)

    with Runtime.threads() as runtime:
        service = runtime.service("test", hold, interval_ms=10_000_000)
        service.wake()
        assert started.wait(LONG)
        assert not service.stop(0.05)
        gate.set()
        assert service.stop(LONG)
    assert Runtime.inline().service("test", hold, interval_ms=1).stop(0)


def test_a_call_that_does_not_end_is_left_behind() -> None:
    gate = threading.Event()
    with Runtime.threads() as runtime:
        future = with_deadline(runtime, "test", lambda: gate.wait(240), 0.05)
        assert not future.done()
        gate.set()
        assert future.result(240)


def test_a_call_is_made_though_its_thread_comes_after_the_deadline() -> None:
    """The caller no longer waits, but the call may have a lock to release."""
    may_come = threading.Event()

    class Late(ThreadService):
        def _run(self) -> None:
            assert may_come.wait(LONG)
            super()._run()

    class Busy(Runtime):
        def service(self, name: str, step: Callable[[], object], *, interval_ms: int) -> Late:
            return Late(name, step, interval_ms)

    inline = Runtime.inline()
    runtime = Busy(clock=inline.clock, dispatch=inline.dispatch, fetch=inline.fetch)
    future = with_deadline(runtime, "test", lambda: 7, 0)
    assert not future.done()
    may_come.set()
    assert future.result(LONG) == 7


def test_what_a_call_returns_or_raises_is_in_the_future() -> None:
    for runtime in (Runtime.inline(), Runtime.threads()):
        assert with_deadline(runtime, "test", lambda: 7, 240).result(0) == 7
        with pytest.raises(ValueError, match="invalid literal"):
            with_deadline(runtime, "test", lambda: int("x"), 240).result(0)
        runtime.close()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("x")])
def test_whatever_a_future_holds_is_passed_on(error: BaseException) -> None:
    """A host's executor puts even a SystemExit into the future of a call."""
    first: Future[int] = Future()
    second = mapped_future(first, lambda number: number + 1)
    with suppress(type(error)):
        first.set_exception(error)
    assert second.exception(0) is error


def test_who_waits_for_a_call_that_ends_its_thread_learns_it() -> None:
    def leave() -> None:
        raise SystemExit(3)

    with Runtime.threads() as runtime:
        future = with_deadline(runtime, "test", leave, 1)
        assert isinstance(future.exception(0), SystemExit)
    with pytest.raises(SystemExit):
        with_deadline(Runtime.inline(), "test", leave, 1)


def test_a_call_is_made_once_though_its_service_goes_on() -> None:
    """A machine may halt for a day between the end of the call and the end of the wait."""
    services: list[InlineService] = []

    class Halted(Runtime):
        def service(
            self, name: str, step: Callable[[], object], *, interval_ms: int
        ) -> InlineService:
            services.append(InlineService(step))
            return services[-1]

    inline, calls = Runtime.inline(), iter(range(2))
    runtime = Halted(clock=inline.clock, dispatch=inline.dispatch, fetch=inline.fetch)
    future = with_deadline(runtime, "test", lambda: next(calls), 1)
    services[0].wake()
    assert (future.result(0), next(calls)) == (0, 1)
