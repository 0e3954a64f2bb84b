"""Segments, providers and object stores that fail on purpose."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import ParamSpec, TypeVar

from tieredstore.driver.object_client import (
    Attempt,
    ListedKey,
    ObjectClient,
    ObjectClientWrapper,
    ObjectFacts,
    Range,
    once,
)
from tieredstore.driver.provider import (
    ListedSegment,
    ProviderWrapper,
    SegmentProvider,
    SegmentWrapper,
)
from tieredstore.driver.runtime import Clock, Runtime
from tieredstore.driver.segment import Buffer, FileSegment
from tieredstore.model.errors import BackendUnavailableError, TieredStoreError

P = ParamSpec("P")
T = TypeVar("T")


class Fault(Enum):
    """What goes wrong."""

    BEFORE = "fails before it has an effect"
    AFTER = "takes effect, but its reply is lost"
    HALF = "half of a write takes effect, then it fails"
    CRASH_BEFORE = "the process dies before the effect"
    CRASH_AFTER = "the process dies after the effect"
    CRASH_HALF = "the process dies when half of a write is there"


_CRASHES = frozenset({Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_HALF})
_HALVES = frozenset({Fault.HALF, Fault.CRASH_HALF})
_LATE = frozenset({Fault.AFTER, Fault.CRASH_AFTER})


class SimulatedCrash(BaseException):
    """The process is dead. No `except Exception` may catch it, and nothing works after it."""


class Faults:
    """Counts the operations of all segments that share it, and strikes at the chosen ones.

    Steps count from 0. `always` strikes at every step that has no fault of its own. After a crash,
    every further operation crashes: start again with the inner provider, as a new process would.
    """

    def __init__(
        self, at: Mapping[int, Fault] | None = None, *, always: Fault | None = None
    ) -> None:
        self._at = dict(at or {})
        self.always = always
        self.steps = 0
        self.crashed = False
        self._guard = threading.Lock()

    def strike(self, fault: Fault, *, after: int = 0) -> None:
        """Let a fault strike after `after` more steps."""
        with self._guard:
            self._at[self.steps + after] = fault

    def forgive(self) -> None:
        """Cancel all planned faults."""
        with self._guard:
            self._at.clear()
            self.always = None

    def next(self) -> Fault | None:
        with self._guard:
            if self.crashed:
                raise SimulatedCrash
            fault = self._at.pop(self.steps, self.always)
            self.steps += 1
            if fault in _CRASHES:
                self.crashed = True
            return fault


class FaultySegment(SegmentWrapper):
    """A segment whose operations fail as planned. `seal` and `close` touch no backend."""

    def __init__(self, inner: FileSegment, faults: Faults) -> None:
        super().__init__(inner)
        self._faults = faults

    def size(self) -> int:
        return self.struck("size", self.inner.size)

    def read(self, position: int, length: int) -> bytes:
        return self.struck("read", self.inner.read, position, length)

    def write(self, position: int, data: Buffer) -> None:
        fault = self._faults.next()
        if fault in _HALVES:
            view = memoryview(data).cast("B")
            self.inner.write(position, view[: len(view) // 2])
            self._fail("write", fault)
        self._carry_out(fault, "write", self.inner.write, position, data)

    def delete(self) -> None:
        self.struck("delete", self.inner.delete)

    def cut(self, size: int) -> None:
        self.struck("cut", self.inner.cut, size)

    def struck(
        self, operation: str, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._carry_out(self._faults.next(), operation, call, *args, **kwargs)

    def _carry_out(
        self,
        fault: Fault | None,
        operation: str,
        call: Callable[P, T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        if fault is not None and fault not in _LATE:
            self._fail(operation, fault)
        try:
            outcome = call(*args, **kwargs)
        except Exception:
            if fault in _CRASHES:  # a dead process learns nothing, not even of an error
                raise SimulatedCrash from None
            raise
        if fault is not None:
            self._fail(operation, fault)
        return outcome

    def _fail(self, operation: str, fault: Fault) -> None:
        if fault in _CRASHES:
            raise SimulatedCrash
        raise BackendUnavailableError(self.path, operation, fault.value)


class FaultyProvider(ProviderWrapper):
    """A provider whose segments and listings fail as planned."""

    def __init__(self, inner: SegmentProvider, faults: Faults, runtime: Runtime) -> None:
        super().__init__(inner, runtime)
        self.faults = faults

    def wrap(self, segment: FileSegment) -> FaultySegment:
        return FaultySegment(segment, self.faults)

    def create(self, segment: FileSegment, blocks: Iterable[Buffer]) -> int:
        """One step. There is no half of a creation: a segment exists whole or not at all."""
        if not isinstance(segment, FaultySegment):
            return super().create(segment, blocks)
        return segment.struck("create", super().create, segment, blocks)

    def list(self, prefix: str = "") -> Iterator[ListedSegment]:
        if (fault := self.faults.next()) is not None:
            if fault in _CRASHES:
                raise SimulatedCrash
            raise BackendUnavailableError(prefix, "list", fault.value)
        return self.inner.list(prefix)


BURST_REQUESTS = 3
FIRST_BYTE_MS = 500


class ObjectFault(Enum):
    """What goes wrong with a request. A fault that makes no sense for a request strikes as BUSY."""

    TIMED_OUT = "it fails before it has an effect"
    LOST_REPLY = "it takes effect, but its reply is lost"
    BUSY = "503 or 429, and so do the next few"
    TRUNCATED = "a body, or a listing, breaks off"
    SLOW = "the first byte comes late"
    STALE_LISTING = "a listing does not know the newest object yet"
    PARTIAL_DELETE = "some of the keys of a batch are not deleted"


class ObjectFaults:
    """Random faults that many clients may share; in one thread, a seed always gives the same."""

    def __init__(self, rate: float, *faults: ObjectFault, seed: int = 0) -> None:
        self.rate = rate
        self.struck: Counter[ObjectFault] = Counter()
        self.requests = 0
        self._faults = faults or tuple(ObjectFault)
        self._dice = random.Random(seed)
        self._burst = 0
        self._guard = threading.Lock()

    def next(self) -> ObjectFault | None:
        """The fault that the next request meets."""
        with self._guard:
            self.requests += 1
            if self._burst:
                self._burst -= 1
                fault = ObjectFault.BUSY
            elif self._dice.random() < self.rate:
                fault = self._dice.choice(self._faults)
                # A burst must not raise the share of failing requests much above the rate.
                if fault is ObjectFault.BUSY and self._dice.random() < 1 / BURST_REQUESTS:
                    self._burst = BURST_REQUESTS - 1
            else:
                return None
            self.struck[fault] += 1
            return fault

    def some(self, keys: Sequence[str]) -> list[str]:
        """Some of the keys, at least one."""
        with self._guard:
            return self._dice.sample(keys, self._dice.randint(1, len(keys)))


class FaultyClient(ObjectClientWrapper):
    """A client whose requests meet faults. A slow request waits on the given clock."""

    def __init__(self, inner: ObjectClient, faults: ObjectFaults, clock: Clock) -> None:
        super().__init__(inner)
        self.faults = faults
        self._clock = clock
        self._newest = ""

    def head(self, key: str) -> ObjectFacts:
        return self._struck("head", key, self.inner.head, key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._struck("get", key, self.inner.get_range, key, start, length)

    def get_ranges(self, ranges: Sequence[Range]) -> Sequence[bytes | TieredStoreError]:
        return ObjectClient.get_ranges(self, ranges)  # each range meets a fault of its own

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
    ) -> ObjectFacts:
        facts = self._struck(
            "put",
            key,
            self.inner.put,
            key,
            data,
            metadata=metadata,
            if_absent=if_absent,
        )
        self._newest = key
        return facts

    def put_stream(
        self,
        key: str,
        blocks: Iterable[Buffer],
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
        attempt: Attempt = once,
    ) -> ObjectFacts | None:
        def struck(call: Callable[[], T], /) -> T:
            return attempt(lambda: self._struck("put_stream", key, call))

        return self.inner.put_stream(
            key, blocks, metadata=metadata, if_absent=if_absent, attempt=struck
        )

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        fault = self._begin("list", prefix)
        if fault is ObjectFault.LOST_REPLY:
            self._fail("list", prefix, fault)
        found = list(self.inner.list(prefix, after=after))
        if fault is ObjectFault.STALE_LISTING:
            found = [listed for listed in found if listed.key != self._newest]
        if fault is ObjectFault.TRUNCATED:
            yield from found[: len(found) // 2]
            self._fail("list", prefix, fault)
        yield from found

    def delete_many(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        if not keys:
            return self.inner.delete_many(keys)
        fault = self._begin("delete", keys[0])
        failed: dict[str, TieredStoreError] = {}
        if fault is ObjectFault.PARTIAL_DELETE:
            failed = {
                key: BackendUnavailableError(key, "delete", fault.value)
                for key in self.faults.some(keys)
            }
        errors = {**self.inner.delete_many([key for key in keys if key not in failed]), **failed}
        if fault in (ObjectFault.LOST_REPLY, ObjectFault.TRUNCATED):
            self._fail("delete", keys[0], fault)
        return errors

    def _struck(
        self,
        operation: str,
        key: str,
        call: Callable[P, T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        fault = self._begin(operation, key)
        outcome = call(*args, **kwargs)
        if fault in (ObjectFault.LOST_REPLY, ObjectFault.TRUNCATED):
            self._fail(operation, key, fault)
        return outcome

    def _begin(self, operation: str, key: str) -> ObjectFault | None:
        """The fault that the caller carries out; faults before the effect strike here."""
        fault = self.faults.next()
        if fault is ObjectFault.SLOW:
            self._clock.sleep(FIRST_BYTE_MS / 1000)
        pointless = (fault is ObjectFault.STALE_LISTING and operation != "list") or (
            fault is ObjectFault.PARTIAL_DELETE and operation != "delete"
        )
        if fault in (ObjectFault.TIMED_OUT, ObjectFault.BUSY) or pointless:
            self._fail(operation, key, ObjectFault.BUSY if pointless else fault)
        return fault

    def _fail(self, operation: str, key: str, fault: ObjectFault | None) -> None:
        reason = fault.value if fault else "it fails"
        raise BackendUnavailableError(key, operation, reason)
