"""Requests of a log to its bucket, of which the replies may be lost."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.roundlog.log_kit import Tier
from tieredstore.driver.object_client import (
    ObjectClientWrapper,
    ObjectExistsError,
    ObjectFacts,
)
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.roundlog.object_calls import ObjectCalls
from tieredstore.testing.memory_objects import MemoryObjectClient


class Unheard(ObjectClientWrapper):
    """The first reply to a put is lost; `forgets` the metadata, as some clients do."""

    def __init__(self, tier: Tier, *, forgets: bool) -> None:
        super().__init__(MemoryObjectClient(tier.objects))
        self.forgets = forgets
        self.puts = 0

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
    ) -> ObjectFacts:
        kept = None if self.forgets else metadata
        facts = self.inner.put(key, data, metadata=kept, if_absent=if_absent)
        self.puts += 1
        if self.puts == 1:
            raise BackendUnavailableError(key, "put", "the reply was lost")
        return facts


@pytest.mark.parametrize("forgets", [False, True])
def test_a_put_whose_reply_was_lost_is_known_for_its_own(forgets: bool) -> None:
    tier = Tier()
    client = Unheard(tier, forgets=forgets)
    calls = ObjectCalls(client, Runtime.inline(), RetryPolicy(retries_max=2))
    calls.put("a", b"mine")
    assert tier.objects.held["a"][0] == b"mine"
    with pytest.raises(ObjectExistsError):
        calls.put("a", b"another")


def test_the_same_bytes_of_another_put_are_not_its_own() -> None:
    tier = Tier()
    first = ObjectCalls(MemoryObjectClient(tier.objects), Runtime.inline(), RetryPolicy())
    first.put("a", b"same")
    with pytest.raises(ObjectExistsError):
        ObjectCalls(MemoryObjectClient(tier.objects), Runtime.inline(), RetryPolicy()).put(
            "a", b"same"
        )
