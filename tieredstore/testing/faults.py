"""Backends that fail on purpose: before the effect, after it, half way, or for good.

What lives here: a plan of faults and the wrappers that carry it out. A fault strikes at a counted
operation, so that a test can let one strike at the n-th step for every n.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import ParamSpec, TypeVar

from tieredstore.driver.provider import ListedSegment, SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer, FileSegment
from tieredstore.driver.wrapper import ProviderWrapper, SegmentWrapper
from tieredstore.model.errors import BackendUnavailableError

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
    """Counts the operations of all segments that share it and strikes at the chosen ones.

    Steps count from 0. `always` strikes at every step that has no fault of its own. After a crash
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
        """Let a fault strike when `after` more steps have gone well."""
        with self._guard:
            self._at[self.steps + after] = fault

    def forgive(self) -> None:
        """No fault that was planned strikes any more."""
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
            if fault in _CRASHES:  # the dead are told nothing, bad news neither
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
        """One step. Half of a creation is none: a segment is there whole or not at all."""
        if not isinstance(segment, FaultySegment):
            return super().create(segment, blocks)
        return segment.struck("create", super().create, segment, blocks)

    def list(self, prefix: str = "") -> Iterator[ListedSegment]:
        if (fault := self.faults.next()) is not None:
            if fault in _CRASHES:
                raise SimulatedCrash
            raise BackendUnavailableError(prefix, "list", fault.value)
        return self.inner.list(prefix)
