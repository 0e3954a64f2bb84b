"""Requests fail at a rate: nothing is lost, nothing wrong is served, and tries are bounded."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Iterable, Iterator, Mapping

import pytest

from tieredstore.driver.object_client import (
    ListedKey,
    ObjectClient,
    ObjectClientWrapper,
    ObjectExistsError,
    ObjectFacts,
    Range,
)
from tieredstore.driver.object_requests import RetryingClient
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import BackendRefusedError, BackendUnavailableError
from tieredstore.providers.fsspec import FsspecClient
from tieredstore.testing.faults import FaultyClient, ObjectFault, ObjectFaults
from tieredstore.testing.object_client_contract import ObjectClientContract

RATES = (0.01, 0.1, 0.5)
POLICY = RetryPolicy()
# A client cannot see that a listing lags; only those who rely on listings notice.
SEEN = [fault for fault in ObjectFault if fault is not ObjectFault.STALE_LISTING]


def new_store() -> ObjectClient:
    return FsspecClient(f"memory://{uuid.uuid4().hex}")


def broken(
    store: ObjectClient, faults: ObjectFaults, policy: RetryPolicy = POLICY
) -> RetryingClient:
    runtime = Runtime.inline()
    return RetryingClient(FaultyClient(store, faults, runtime.clock), policy, runtime)


class TestWithoutFaults(ObjectClientContract):
    def open_client(self) -> ObjectClient:
        return RetryingClient(new_store(), POLICY, Runtime.inline())


class TestWithAFault(ObjectClientContract):
    """One request in ten fails, and nobody notices."""

    def open_client(self) -> ObjectClient:
        runtime = Runtime.inline()
        faults = ObjectFaults(0.1, ObjectFault.TIMED_OUT, ObjectFault.BUSY, seed=3)
        policy = RetryPolicy(retries_max=20)
        return RetryingClient(FaultyClient(new_store(), faults, runtime.clock), policy, runtime)

    def test_a_counted_client_sends_the_same(self, client: ObjectClient) -> None:
        """It does not apply, as each try would be counted."""


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("seed", range(3))
def test_what_was_acknowledged_is_there_and_nothing_else_is_served(rate: float, seed: int) -> None:
    store = new_store()
    faults = ObjectFaults(rate, *SEEN, seed=seed)
    client = broken(store, faults)
    dice = random.Random(seed)
    there: dict[str, bytes] = {}
    in_doubt: dict[str, bytes] = {}
    calls = failed = 0
    for number in range(150):
        key, data = f"k-{number:04}", dice.randbytes(50)
        calls += 1
        try:
            if number % 5:
                client.put(key, data, metadata={"nonce": f"n-{number}"})
            else:
                client.put_stream(key, [data], metadata={"nonce": f"n-{number}"})
            there[key] = data
        except BackendUnavailableError:
            failed += 1
            in_doubt[key] = data
        if number % 10 == 9:
            doomed = dice.sample(sorted(there), 2)
            errors = client.delete_many(doomed)
            calls += 1
            for each in doomed:
                data = there.pop(each)
                if each in errors:
                    failed += 1
                    in_doubt[each] = data
    known = {**in_doubt, **there}
    for key, data in there.items():
        assert store.get_range(key, 0, 50) == data
    for found in store.list():
        assert store.get_range(found.key, 0, 50) == known[found.key]
    ranges = [Range(key, 10, 20) for key in sorted(there)]
    for wanted, answer in zip(ranges, client.get_ranges(ranges), strict=True):
        calls += 1
        if isinstance(answer, bytes):
            assert answer == there[wanted.key][10:30]
        else:
            assert isinstance(answer, BackendUnavailableError)
            failed += 1
    assert faults.requests <= 2 * calls * (1 + POLICY.retries_max)
    assert failed <= {0.01: 0, 0.1: 2, 0.5: calls // 4}[rate]
    try:
        assert [found.key for found in client.list()] == [found.key for found in store.list()]
    except BackendUnavailableError:
        assert rate == 0.5


@pytest.mark.parametrize("fault", [ObjectFault.LOST_REPLY])
def test_a_put_whose_reply_is_lost_finds_its_own_object(fault: ObjectFault) -> None:
    store, faults = new_store(), ObjectFaults(1.0, fault)
    client = broken(store, faults)
    with pytest.raises(BackendUnavailableError):
        client.put("k", b"mine", metadata={"nonce": "n"})
    faults.rate = 0.5
    assert client.put("l", b"mine", metadata={"nonce": "n"}).size == 4
    assert faults.struck[fault] > 6


def test_a_put_that_meets_another_after_a_lost_reply_is_a_conflict() -> None:
    store = new_store()
    store.put("k", b"theirs", metadata={"nonce": "other"})
    policy = RetryPolicy(retries_max=50, deadline_ms=3_600_000)
    client = broken(store, ObjectFaults(0.5, ObjectFault.TIMED_OUT, seed=2), policy)
    for _ in range(20):
        with pytest.raises(ObjectExistsError):
            client.put("k", b"mine12", metadata={"nonce": "n"})
        with pytest.raises(ObjectExistsError):
            client.put("k", b"mine12")
    assert store.get_range("k", 0, 6) == b"theirs"


class Expiring(ObjectClientWrapper):
    """The first put lands but its reply is lost; the keys have expired from then on."""

    expired = False

    def head(self, key: str) -> ObjectFacts:
        self.refuse_expired(key, "head")
        return super().head(key)

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
    ) -> ObjectFacts:
        self.refuse_expired(key, "put")
        super().put(key, data, metadata=metadata, if_absent=if_absent)
        self.expired = True
        raise BackendUnavailableError(key, "put", "the reply is lost")

    def refuse_expired(self, key: str, operation: str) -> None:
        if self.expired:
            raise BackendRefusedError(key, operation, "403 ExpiredToken")


def test_a_refusal_behind_a_lost_reply_does_not_say_that_nothing_was_written() -> None:
    store = new_store()
    client = RetryingClient(Expiring(store), POLICY, Runtime.inline())
    with pytest.raises(BackendUnavailableError, match="403 ExpiredToken"):
        client.put("k", b"mine", metadata={"nonce": "n"})
    assert store.get_range("k", 0, 4) == b"mine"


def test_an_object_that_may_not_be_looked_at_is_perhaps_our_own() -> None:
    store = new_store()
    store.put("k", b"mine", metadata={"nonce": "n"})

    class Blind(ObjectClientWrapper):
        def head(self, key: str) -> ObjectFacts:
            raise BackendRefusedError(key, "head", "403 ExpiredToken")

    client = RetryingClient(Blind(store), POLICY, Runtime.inline())
    with pytest.raises(BackendUnavailableError, match="403 ExpiredToken"):
        client.put("k", b"mine", metadata={"nonce": "n"})


class Listing(ObjectClientWrapper):
    """A store that lists given keys."""

    def __init__(self, keys: Iterable[str]) -> None:
        super().__init__(new_store())
        self.keys = keys

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        return (ListedKey(key, 1) for key in self.keys)


def test_a_key_that_is_listed_twice_in_a_row_is_one() -> None:
    client = RetryingClient(Listing(["a", "b", "b", "c"]), POLICY, Runtime.inline())
    assert [found.key for found in client.list()] == ["a", "b", "c"]


@pytest.mark.parametrize("length", [1, 2, 3, 7, 1_000])
@pytest.mark.parametrize("before", [0, 5])
def test_a_listing_in_circles_comes_to_an_end(before: int, length: int) -> None:
    keys = itertools.chain(
        (f"a-{number}" for number in range(before)),
        itertools.cycle(f"k-{number:04}" for number in range(length)),
    )
    client = RetryingClient(Listing(keys), POLICY, Runtime.inline())
    with pytest.raises(BackendRefusedError, match="again and again"):
        list(client.list())


def test_the_final_error_names_the_last_reason_and_tries_are_bounded() -> None:
    faults = ObjectFaults(1.0, ObjectFault.BUSY)
    client = broken(new_store(), faults)
    with pytest.raises(BackendUnavailableError, match="get k: 503 or 429") as caught:
        client.get_range("k", 0, 1)
    assert caught.value.operation == "get"
    assert faults.requests == 1 + POLICY.retries_max


def test_a_call_that_succeeds_is_one_request() -> None:
    faults = ObjectFaults(0.0)
    client = broken(new_store(), faults)
    client.put("k", b"x")
    client.get_range("k", 0, 1)
    list(client.list())
    client.delete_many(["k"])
    assert faults.requests == 4


def test_slow_first_bytes_end_at_the_deadline() -> None:
    runtime = Runtime.inline()
    faults = ObjectFaults(1.0, ObjectFault.SLOW)
    inner = FaultyClient(new_store(), faults, runtime.clock)
    client = RetryingClient(inner, POLICY, runtime)
    client.put("k", b"x")  # the slow put lands
    inner.faults = ObjectFaults(1.0, ObjectFault.BUSY)
    runtime.clock.sleep(1)
    with pytest.raises(BackendUnavailableError):
        client.head("k")
    assert runtime.clock.monotonic() < 120
