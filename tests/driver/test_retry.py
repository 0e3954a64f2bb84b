"""Retries are bounded, jittered, counted, end at a deadline, and happen only if they may help."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from tieredstore.driver.metrics import RETRIES, Labels, Metric, NoMetrics
from tieredstore.driver.object_client import ObjectFacts
from tieredstore.driver.object_requests import RetryingClient
from tieredstore.driver.provider import (
    ListedSegment,
    ProviderWrapper,
    SegmentProvider,
    SegmentRead,
)
from tieredstore.driver.retry import Retry, RetryingProvider, RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    PositionMismatchError,
    TieredStoreError,
)
from tieredstore.model.values import SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Fault, Faults, FaultyProvider
from tieredstore.testing.memory_objects import MemoryObjectClient

LOG = SegmentType.COMMIT_LOG


def failing(times: int, error: Exception) -> tuple[Callable[[], str], list[int]]:
    """A call that fails so many times, and the list that notes its calls."""
    calls: list[int] = []

    def call() -> str:
        calls.append(len(calls))
        if len(calls) <= times:
            raise error
        return "done"

    return call, calls


UNAVAILABLE = BackendUnavailableError("b/t/0", "read", "timed out")


def test_a_transient_failure_is_tried_again() -> None:
    runtime = Runtime.inline()
    call, calls = failing(3, UNAVAILABLE)
    assert Retry(RetryPolicy(), runtime)(call) == "done"
    assert len(calls) == 4
    assert runtime.clock.monotonic() > Runtime.inline().clock.monotonic()


def test_a_success_waits_for_nothing() -> None:
    runtime = Runtime.inline()
    before = runtime.clock.monotonic()
    call, calls = failing(0, UNAVAILABLE)
    assert Retry(RetryPolicy(), runtime)(call) == "done"
    assert (len(calls), runtime.clock.monotonic()) == (1, before)


@pytest.mark.parametrize("retries_max", [0, 1, 4])
def test_retries_are_bounded_and_the_last_error_is_raised(retries_max: int) -> None:
    call, calls = failing(100, UNAVAILABLE)
    policy = RetryPolicy(retries_max=retries_max, deadline_ms=10**9)
    with pytest.raises(BackendUnavailableError, match="timed out"):
        Retry(policy, Runtime.inline())(call)
    assert len(calls) == retries_max + 1


def test_no_attempt_starts_after_the_deadline() -> None:
    runtime = Runtime.inline()
    started = runtime.clock.monotonic()
    call, calls = failing(10**6, UNAVAILABLE)
    policy = RetryPolicy(retries_max=10**6, deadline_ms=2_000, longest_wait_ms=500)
    with pytest.raises(BackendUnavailableError):
        Retry(policy, runtime)(call)
    assert runtime.clock.monotonic() - started <= 2.0
    assert 5 < len(calls) < 200


def test_a_slow_attempt_counts_into_the_deadline() -> None:
    runtime = Runtime.inline()

    def slow() -> str:
        runtime.clock.sleep(1.5)
        raise UNAVAILABLE

    started = runtime.clock.monotonic()
    with pytest.raises(BackendUnavailableError):
        Retry(RetryPolicy(retries_max=50, deadline_ms=2_000), runtime)(slow)
    assert runtime.clock.monotonic() - started < 3.6


def test_waits_grow_to_their_bound_and_are_jittered() -> None:
    policy = RetryPolicy(first_wait_ms=100, longest_wait_ms=1_000)
    assert [policy.wait_max_seconds(n) for n in range(1, 7)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert policy.wait_max_seconds(10**6) == 1.0

    def spent(seed: int) -> float:
        runtime = Runtime.inline(seed=seed)
        before = runtime.clock.monotonic()
        Retry(policy, runtime)(failing(1, UNAVAILABLE)[0])
        return runtime.clock.monotonic() - before

    waits = [spent(seed) for seed in range(20)]
    assert len(set(waits)) > 10
    assert all(0 <= wait <= 0.1 for wait in waits)
    assert spent(3) == spent(3)


@pytest.mark.parametrize(
    "error",
    [
        BackendRefusedError("b/t/0", "write", "no permission"),
        PositionMismatchError("b/t/0", expected=1, actual=2),
        ValueError("ours"),
    ],
)
def test_nothing_else_is_tried_again(error: Exception) -> None:
    call, calls = failing(1, error)
    with pytest.raises(type(error)):
        Retry(RetryPolicy(), Runtime.inline())(call)
    assert len(calls) == 1


def test_a_refusal_after_a_transient_failure_ends_it() -> None:
    errors: list[Exception] = [UNAVAILABLE, BackendRefusedError("p", "read", "no permission")]

    def call() -> str:
        raise errors.pop(0)

    with pytest.raises(BackendRefusedError):
        Retry(RetryPolicy(), Runtime.inline())(call)


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="deadline_ms"):
        RetryPolicy(deadline_ms=-1)


def test_a_lost_reply_tells_the_writer_the_true_end() -> None:
    runtime = Runtime.inline()
    faults = Faults({0: Fault.AFTER})
    inner = FaultyProvider(MemoryProvider(runtime), faults, runtime)
    segment = RetryingProvider(inner, RetryPolicy(), runtime).open("b/t/0", LOG, 0)
    with pytest.raises(PositionMismatchError) as caught:
        segment.write(0, b"first")
    assert caught.value.actual == 5  # it landed whole


def test_a_retried_listing_skips_and_repeats_nothing() -> None:
    runtime = Runtime.inline()
    memory = MemoryProvider(runtime)
    for number in range(5):
        memory.open(f"b/t/{number}", LOG, 0).write(0, b"x")
    inner = FaultyProvider(memory, Faults({0: Fault.BEFORE, 1: Fault.BEFORE}), runtime)
    provider = RetryingProvider(inner, RetryPolicy(), runtime)
    assert [found.path for found in provider.list("b")] == [f"b/t/{n}" for n in range(5)]


def test_the_error_of_a_listing_comes_behind_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = Runtime.inline()
    memory = MemoryProvider(runtime)

    def listed(prefix: str = "") -> Iterator[ListedSegment]:
        yield ListedSegment("b/t/0", LOG, 0, 1)
        raise UNAVAILABLE

    monkeypatch.setattr(memory, "list", listed)
    found = RetryingProvider(memory, RetryPolicy(), runtime).list("b")
    assert next(found).path == "b/t/0"
    with pytest.raises(BackendUnavailableError):
        next(found)


class Together(ProviderWrapper):
    """Reads together, and notes how many reads each call has."""

    def __init__(self, inner: SegmentProvider, runtime: Runtime) -> None:
        super().__init__(inner, runtime)
        self.reads_together = True
        self.asked: list[int] = []

    def read_together(self, reads: Sequence[SegmentRead]) -> Sequence[bytes | TieredStoreError]:
        self.asked.append(len(reads))
        return SegmentProvider.read_together(self, reads)


def test_of_reads_made_together_those_that_failed_are_tried_again() -> None:
    runtime, metrics = Runtime.inline(), Counted()
    memory = MemoryProvider(runtime)
    for number in range(4):
        memory.open(f"b/t/{number}", LOG, 0).write(0, b"%d" % number)
    faults = Faults(dict.fromkeys([1, 3, 4, 6], Fault.BEFORE))
    together = Together(FaultyProvider(memory, faults, runtime), runtime)
    provider = RetryingProvider(together, RetryPolicy(retries_max=3), runtime)
    provider.report_to(metrics)
    reads = [SegmentRead(f"b/t/{number}", LOG, 0, 0, 1) for number in range(4)]
    beyond = SegmentRead("b/t/0", LOG, 0, 0, 2)  # it fails for good, so a retry does not help
    *answers, refused = provider.read_together([*reads, beyond])
    assert answers == [b"0", b"1", b"2", b"3"]
    assert isinstance(refused, OffsetOutOfRangeError)
    assert (together.asked, len(metrics.operations)) == ([5, 3, 1], 2)

    faults.always = Fault.BEFORE
    assert all(isinstance(a, BackendUnavailableError) for a in provider.read_together(reads))
    assert together.asked[3:] == [4, 4, 4, 4]


class Counted(NoMetrics):
    def __init__(self) -> None:
        self.operations: list[str] = []

    def add(self, metric: Metric, amount: int, labels: Labels) -> None:
        assert (metric, amount) == (RETRIES, 1)
        self.operations.append(labels["operation"])


@pytest.mark.parametrize(
    ("failures", "counted"),
    [(0, []), (1, ["get"]), (3, ["get"] * 3), (9, ["get"] * 4)],  # the policy ends the retries
)
def test_each_further_call_is_counted_once(failures: int, counted: list[str]) -> None:
    metrics, left = Counted(), [failures]
    retry = Retry(RetryPolicy(retries_max=4), Runtime.inline())
    retry.report_to(metrics)

    def call() -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise BackendUnavailableError("p", "get", "busy")

    try:
        retry(call)
    except BackendUnavailableError:
        assert failures > 4
    assert metrics.operations == counted


def test_what_is_not_tried_again_is_not_counted() -> None:
    metrics = Counted()
    retry = Retry(RetryPolicy(), Runtime.inline())
    retry.report_to(metrics)

    def refused() -> None:
        raise BackendRefusedError("p", "get", "no")

    with pytest.raises(BackendRefusedError):
        retry(refused)
    assert metrics.operations == []


def test_segments_of_a_provider_and_requests_of_a_client_are_counted() -> None:
    runtime, metrics = Runtime.inline(), Counted()
    faults = Faults()
    inner = FaultyProvider(MemoryProvider(runtime), faults, runtime)
    provider = RetryingProvider(inner, RetryPolicy(retries_max=1), runtime)
    provider.report_to(metrics)
    segment = provider.open("b/t/0", SegmentType.COMMIT_LOG, 0)
    segment.write(0, b"x")
    assert metrics.operations == []
    faults.always = Fault.BEFORE
    with pytest.raises(BackendUnavailableError):
        segment.read(0, 1)
    assert metrics.operations == ["read"]

    client = RetryingClient(_Busy(), RetryPolicy(retries_max=2), runtime)
    client.report_to(metrics)
    with pytest.raises(BackendUnavailableError):
        client.head("key")
    assert metrics.operations == ["read", "head", "head"]


class _Busy(MemoryObjectClient):
    def head(self, key: str) -> ObjectFacts:
        raise BackendUnavailableError(key, "head", "busy")
