"""Retries: bounded, jittered, under a total deadline, and only for transient errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type

from tieredstore.driver.metrics import RETRIES, Metrics, NoMetrics
from tieredstore.driver.provider import (
    ListedSegment,
    ProviderWrapper,
    SegmentProvider,
    SegmentRead,
    SegmentWrapper,
)
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer, FileSegment
from tieredstore.model.errors import BackendUnavailableError, InvalidConfigError, TieredStoreError

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and for how long. The n-th wait is drawn from 0 to min(first · 2ⁿ, longest)."""

    retries_max: int = 5
    first_wait_ms: int = 50
    longest_wait_ms: int = 5_000
    deadline_ms: int = 60_000

    def __post_init__(self) -> None:
        for name in ("retries_max", "first_wait_ms", "longest_wait_ms", "deadline_ms"):
            if getattr(self, name) < 0:
                raise InvalidConfigError(f"{name} is negative")

    def wait_max_seconds(self, attempt: int) -> float:
        doubled = self.first_wait_ms << min(attempt - 1, 32)
        return min(doubled, self.longest_wait_ms) / 1000


class Retry:
    """Calls a function again while it raises BackendUnavailableError and the policy allows it.

    A call that succeeds at once costs nothing extra. No attempt starts after the deadline; the last
    error is raised. Each further call is counted under the operation that the previous failure
    names.
    """

    def __init__(self, policy: RetryPolicy, runtime: Runtime) -> None:
        self._policy = policy
        self._runtime = runtime
        self._metrics: Metrics = NoMetrics()

    def report_to(self, metrics: Metrics) -> None:
        """Report retries to these metrics from now on."""
        self._metrics = metrics

    def __call__(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        started = self._runtime.clock.monotonic()
        try:
            return call(*args, **kwargs)
        except BackendUnavailableError as error:
            first: BackendUnavailableError | None = error

        def attempt() -> T:
            nonlocal first
            if first is not None:  # the outcome of attempt 1
                failure, first = first, None
                raise failure
            return call(*args, **kwargs)

        return self._retrying(started)(attempt)

    def _count(self, state: RetryCallState) -> None:
        failure = None if state.outcome is None else state.outcome.exception()
        if isinstance(failure, BackendUnavailableError):
            self._metrics.add(RETRIES, 1, {"operation": failure.operation})

    def _retrying(self, started: float) -> Retrying:
        policy, clock, dice = self._policy, self._runtime.clock, self._runtime.dice

        def wait(state: RetryCallState) -> float:
            return dice.uniform(0, policy.wait_max_seconds(state.attempt_number))

        def stop(state: RetryCallState) -> bool:
            elapsed = clock.monotonic() - started
            return (
                state.attempt_number > policy.retries_max
                or elapsed + state.upcoming_sleep > policy.deadline_ms / 1000
            )

        return Retrying(
            retry=retry_if_exception_type(BackendUnavailableError),
            wait=wait,
            stop=stop,
            before_sleep=self._count,
            sleep=clock.sleep,
            reraise=True,
        )


class RetryingSegment(SegmentWrapper):
    """A segment that retries transient failures."""

    def __init__(self, inner: FileSegment, retry: Retry) -> None:
        super().__init__(inner)
        self._retry = retry

    def size(self) -> int:
        return self._retry(self.inner.size)

    def read(self, position: int, length: int) -> bytes:
        return self._retry(self.inner.read, position, length)

    def write(self, position: int, data: Buffer) -> None:
        self._retry(self.inner.write, position, data)

    def seal(self) -> None:
        self._retry(self.inner.seal)

    def delete(self) -> None:
        self._retry(self.inner.delete)


class RetryingProvider(ProviderWrapper):
    """A provider that retries transient failures of its segments and listings.

    It does not retry `create`, as a stream cannot be read twice: the owner of the source starts
    over.
    """

    def __init__(self, inner: SegmentProvider, policy: RetryPolicy, runtime: Runtime) -> None:
        super().__init__(inner, runtime)
        self._retry = Retry(policy, runtime)

    def wrap(self, segment: FileSegment) -> RetryingSegment:
        return RetryingSegment(segment, self._retry)

    def report_to(self, metrics: Metrics) -> None:
        self._retry.report_to(metrics)
        super().report_to(metrics)

    def read_together(self, reads: Sequence[SegmentRead]) -> Sequence[bytes | TieredStoreError]:
        """Only failed reads are tried again."""
        if not self.reads_together:
            return super().read_together(reads)
        found: list[bytes | TieredStoreError] = []
        pending = list(range(len(reads)))

        def attempt() -> None:
            answers = self.inner.read_together([reads[place] for place in pending])
            if not found:
                found.extend(answers)
            for place, answer in zip(pending, answers, strict=True):
                found[place] = answer
            failed = [each for each in pending if isinstance(found[each], BackendUnavailableError)]
            pending[:] = failed
            for place in failed[:1]:
                failure = found[place]
                assert isinstance(failure, BackendUnavailableError)
                raise failure

        try:
            self._retry(attempt)
        except BackendUnavailableError:
            if not found:
                raise  # else the error is among the answers
        return found

    def list(self, prefix: str = "") -> Iterator[ListedSegment]:
        """The whole listing is one attempt, so that a retry neither skips nor repeats. If all fail,
        the error comes behind what the last one has found."""
        found: list[ListedSegment] = []

        def attempt() -> None:
            found.clear()
            found.extend(self.inner.list(prefix))

        try:
            self._retry(attempt)
        except BackendUnavailableError:
            yield from found
            raise
        yield from found
