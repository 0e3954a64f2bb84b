"""Requests of a log to its bucket, whose replies may be lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.providers.object_kit import StruckClient
from tieredstore.driver.object_client import ObjectClient, ObjectExistsError
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.roundlog.object_calls import ObjectCalls
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects


def calls_of(client: ObjectClient) -> ObjectCalls:
    return ObjectCalls(client, Runtime.inline(), RetryPolicy(retries_max=2))


@pytest.mark.parametrize("forgets", [False, True])
def test_a_put_whose_reply_was_lost_is_known_for_its_own(forgets: bool) -> None:
    """Even by a client that `forgets` the metadata, as some do."""
    objects = MemoryObjects()
    client = StruckClient(MemoryObjectClient(objects), Faults({0: Fault.AFTER}))

    def forget(operation: str, key: str) -> None:
        if forgets and key in objects.held:
            data, facts = objects.held[key]
            objects.held[key] = data, replace(facts, metadata={})

    client.before = forget
    calls = calls_of(client)
    calls.put("a", b"mine")
    assert client.faults.steps > 1
    assert objects.held["a"][0] == b"mine"
    with pytest.raises(ObjectExistsError):
        calls.put("a", b"another")


def test_the_same_bytes_of_another_put_are_not_its_own() -> None:
    objects = MemoryObjects()
    calls_of(MemoryObjectClient(objects)).put("a", b"same")
    with pytest.raises(ObjectExistsError):
        calls_of(MemoryObjectClient(objects)).put("a", b"same")
