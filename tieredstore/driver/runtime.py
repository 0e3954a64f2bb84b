"""Clock, randomness, threads, processes and deadlines: only this module uses the real ones."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, ParamSpec, Protocol, Self, TypeVar

from tieredstore.driver.one_process import OneProcess
from tieredstore.model.errors import StoreClosedError
from tieredstore.model.printable import log_of
from tieredstore.model.values import require_seconds

log = log_of(__name__)

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


DISPATCH_THREADS = 8
FETCH_THREADS = 16
PENDING_MAX = 10_000
PROCESSES_MAX = 64
_CLOSED: Final = "the runtime is closed"


class Clock(Protocol):
    """Tells the time and waits. `monotonic` is for spans, `now_ms` for timestamps."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Deadline:
    """A number of seconds from now on, shared by several steps in turn; None: no end.

    Raises InvalidArgumentError for anything that is not a number.
    """

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        require_seconds("timeout", seconds)
        self._clock = clock
        self._end = None if seconds is None else clock.monotonic() + seconds

    def left(self) -> float | None:
        """The seconds left; never more than a lock can wait for, which is some centuries."""
        if self._end is None:
            return None
        return min(max(0.0, self._end - self._clock.monotonic()), threading.TIMEOUT_MAX)


class ManualClock:
    """A clock that stands still until it is moved; sleeping moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = now_ms
        self._passed_ms = 0.0
        self._guard = threading.Lock()

    def now_ms(self) -> int:
        return self._start_ms + int(self._passed_ms)

    def monotonic(self) -> float:
        return self._passed_ms / 1000

    def sleep(self, seconds: float) -> None:
        self.advance(seconds * 1000)

    def advance(self, ms: float) -> None:
        with self._guard:
            self._passed_ms += max(0.0, ms)


class Pool(Protocol):
    """Runs calls; only a bounded number of them can wait."""

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]: ...

    def close(self, timeout: float | None = None) -> bool:
        """Accept no more calls and wait for those accepted; True if all ended within `timeout`.

        Calls that have not begun by then are cancelled, and calls under way go on. If a call of
        the pool closes it, as in a callback of a future, it does not wait for itself: the others
        finish afterwards.
        """


class InlinePool:
    """Runs each call at once, in the caller's thread."""

    def __init__(self) -> None:
        self._closed = False

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._closed:
            raise StoreClosedError(_CLOSED)
        return done_future(call, *args, **kwargs)

    def close(self, timeout: float | None = None) -> bool:
        self._closed = True
        return True


class _Executor(ThreadPoolExecutor):
    """An executor that goes on while the system refuses it another thread.

    A plain one raises, and makes the call all the same once it has a thread.
    """

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:  # else one of them makes the call
                self._work_queue.get_nowait()  # the caller makes it
                raise


class ThreadPool:
    """A bounded number of threads with a bounded queue before them.

    When the queue is full, or the system has no thread for the pool, the caller's own thread does
    the work: this slows callers down, memory stays bounded, and a call that submits another can
    never wait for itself. Threads start with the first call and end with `close`. They belong to
    the process of that call: a forked child has none of them, and would wait for ever.
    """

    def __init__(self, name: str, *, threads: int, pending_max: int) -> None:
        own = self._own = threading.local()  # `is_worker` in the pool's threads only
        self._executor = _Executor(
            threads,
            thread_name_prefix=f"tieredstore-{name}",
            # Not through `self`: with a reference to the pool, no thread would ever end.
            initializer=lambda: setattr(own, "is_worker", True),
        )
        self._places = threading.BoundedSemaphore(threads + pending_max)
        self._name = f"the threads for {name}"
        self._process: OneProcess | None = None
        self._closed = False

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._closed:
            raise StoreClosedError(_CLOSED)
        if self._process is None:
            self._process = OneProcess(self._name)
        self._process.require()
        if not self._places.acquire(blocking=False):
            return done_future(call, *args, **kwargs)
        try:
            future = self._executor.submit(call, *args, **kwargs)
        except BaseException as error:
            self._places.release()
            if self._closed:  # between the check above and here
                raise StoreClosedError(_CLOSED) from error
            if isinstance(error, RuntimeError):  # not one thread can be started
                return done_future(call, *args, **kwargs)
            raise
        future.add_done_callback(lambda _: self._places.release())
        return future

    def close(self, timeout: float | None = None) -> bool:
        self._closed = True
        if self._process is not None and not self._process.is_this:
            return True  # its threads are in the parent
        if hasattr(self._own, "is_worker"):
            self._executor.shutdown(wait=False)
            return False
        if timeout is None:
            self._executor.shutdown(wait=True)
            return True
        # An executor waits for ever or not at all, so another thread waits for it.
        waiting = threading.Thread(target=self._executor.shutdown, daemon=True)
        waiting.start()
        waiting.join(timeout)
        if waiting.is_alive():
            self._executor.shutdown(wait=False, cancel_futures=True)
        return not waiting.is_alive()


class ProcessPool:
    """Processes of this machine; each makes one call at a time. They end with `close`, or when this
    process dies.

    Threads share an interpreter, which is the bottleneck for a local tier. A process takes a third
    of a second to start, calls are pickled, and each process imports the main module of the
    program, which needs the usual `if __name__ == "__main__"`.
    """

    def __init__(self, *, processes: int) -> None:
        # Imported here, as it takes twice as long as the rest of this module.
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        self._executor = ProcessPoolExecutor(
            min(processes, PROCESSES_MAX),
            mp_context=get_context("spawn"),  # clients and locks do not survive a fork
            initializer=_begin_process,
        )

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._executor.submit(call, *args, **kwargs)

    def close(self, timeout: float | None = None) -> bool:
        self._executor.shutdown(wait=True, cancel_futures=True)
        return True


def _begin_process() -> None:
    """Leave Ctrl-C to the parent, and end when the parent dies."""
    from multiprocessing import connection, parent_process

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Service(Protocol):
    """Repeats a step until it is stopped. A step that raises is logged and repeated."""

    def wake(self) -> None:
        """Take the next step now. Any thread may call it at any time."""

    def stop(self, timeout: float | None = None) -> bool:
        """Take no further steps; True if the step under way ended within `timeout` seconds.

        Idempotent.
        """


class ThreadService:
    """A step in a thread of its own, after each interval and whenever it is woken."""

    def __init__(self, name: str, step: Callable[[], object], interval_ms: int) -> None:
        self._step = step
        self._interval = min(interval_ms / 1000, threading.TIMEOUT_MAX)
        self._woken = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"tieredstore-{name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def stop(self, timeout: float | None = None) -> bool:
        self._stopped = True
        self._woken.set()
        if self._thread is threading.current_thread():
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            self._woken.wait(self._interval)
            self._woken.clear()
            if self._stopped:
                return
            try:
                self._step()
            except Exception:
                log.exception("%s: a step failed", self._thread.name)


class InlineService:
    """A step that runs only when it is woken, at once, in the caller's thread."""

    def __init__(self, step: Callable[[], object]) -> None:
        self._step: Callable[[], object] | None = step
        self._running = False
        self._woken = False

    def wake(self) -> None:
        self._woken = True
        if self._running:  # woken by its own step: that one is repeated afterwards
            return
        self._running = True
        try:
            while self._woken and self._step is not None:
                self._woken = False
                self._step()
        finally:
            self._running = False

    def stop(self, timeout: float | None = None) -> bool:
        self._step = None
        return True


class Runtime:
    """The clock, the randomness, the two pools and the services of one store.

    `dispatch` carries uploads, `fetch` carries reads, so that neither starves the other. No call
    in a pool waits for another call in the same pool. `close` is idempotent.
    """

    def __init__(
        self, *, clock: Clock, dispatch: Pool, fetch: Pool, dice: random.Random | None = None
    ) -> None:
        self.clock = clock
        self.dispatch = dispatch
        self.fetch = fetch
        self.dice = dice or random.Random()

    def service(self, name: str, step: Callable[[], object], *, interval_ms: int) -> Service:
        """Repeat a step: after each interval, and at once when woken.

        An inline runtime has no thread for that: there the step runs only when it is woken, and
        what it raises reaches the thread that woke it.
        """
        if isinstance(self.dispatch, InlinePool):
            return InlineService(step)
        return ThreadService(name, step, interval_ms)

    def pool(self, name: str, *, threads: int) -> Pool:
        """One more pool, for calls that wait for calls in the other two; the caller closes it."""
        if isinstance(self.dispatch, InlinePool):
            return InlinePool()
        return ThreadPool(name, threads=threads, pending_max=PENDING_MAX)

    @classmethod
    def threads(
        cls,
        *,
        dispatch_threads: int = DISPATCH_THREADS,
        fetch_threads: int = FETCH_THREADS,
        pending_max: int = PENDING_MAX,
    ) -> Runtime:
        """Real time and two bounded pools."""
        return cls(
            clock=SystemClock(),
            dispatch=ThreadPool("dispatch", threads=dispatch_threads, pending_max=pending_max),
            fetch=ThreadPool("fetch", threads=fetch_threads, pending_max=pending_max),
        )

    @classmethod
    def inline(cls, *, now_ms: int = 1_700_000_000_000, seed: int = 0) -> Runtime:
        """One thread, one order, a clock that only the caller moves: every run is the same."""
        return cls(
            clock=ManualClock(now_ms),
            dispatch=InlinePool(),
            fetch=InlinePool(),
            dice=random.Random(seed),
        )

    def close(self, timeout: float | None = None) -> bool:
        """Close both pools; True if all calls ended within `timeout` seconds: see `Pool.close`."""
        deadline = Deadline(self.clock, timeout)
        ended = [pool.close(deadline.left()) for pool in (self.dispatch, self.fetch)]
        return all(ended)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def done_future(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Make a call at once, in this thread; the future holds what it returns or raises."""
    return _run(Future(), call, *args, **kwargs)


def when_cancelled(future: Future[T], call: Callable[[StoreClosedError], object]) -> None:
    """Make this call if the pool that has the future's call cancels it: see `Pool.close`. It gets
    the error that a closed pool raises, and must not wait for anything."""

    def tell(done: Future[T]) -> None:
        if done.cancelled():
            call(StoreClosedError(_CLOSED))

    future.add_done_callback(tell)


def mapped_future(future: Future[T], change: Callable[[T], S]) -> Future[S]:
    """A future that is done when this one is: with `change` of its result, or with its error."""
    mapped: Future[S] = Future()
    mapped.set_running_or_notify_cancel()  # like the other, it cannot be cancelled

    def settle(done: Future[T]) -> None:
        try:
            _run(mapped, lambda: change(done.result()))
        except BaseException as error:  # noqa: BLE001 - a future may hold any, such as SystemExit
            mapped.set_exception(error)

    future.add_done_callback(settle)
    return mapped


def _run(
    future: Future[T], call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> Future[T]:
    try:
        future.set_result(call(*args, **kwargs))
    except Exception as error:  # noqa: BLE001 - the future raises it
        future.set_exception(error)
    return future


ONCE_MS: Final = 24 * 3_600_000  # the interval of a service that is stopped after its first step


def with_deadline(
    runtime: Runtime, name: str, call: Callable[[], T], seconds: float | None
) -> Future[T]:
    """Make a call in its own thread and wait for it, `seconds` at most.

    The future holds what the call returns or raises. A call that takes longer goes on; nothing
    stops it. An inline runtime has no other thread, so there the caller makes the call.
    """
    future: Future[T] = Future()
    caller = threading.current_thread()

    def step() -> None:
        service.stop()  # not earlier: a service stopped before its thread runs never makes the call
        try:
            _run(future, call)
        except BaseException as error:
            future.set_exception(error)  # the caller waits for it
            if threading.current_thread() is caller:
                raise

    service = runtime.service(name, step, interval_ms=ONCE_MS)
    service.wake()
    wait([future], seconds)
    return future
