"""Where processes die at their requests: object stores in memory, and moto's over HTTP.

What lives here: `Stores`, as the fixture `stores`. In memory every step of a test is tried; over
HTTP a share, another one for each client, and a larger one where TIEREDSTORE_TIER_ON names it.
A folder takes part by importing the names into its conftest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.s3.conftest import moto, s3_environment
from tests.s3.s3_clients import CLIENTS
from tests.s3_places import Place
from tieredstore.driver.object_client import ObjectClient
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects

__all__ = ["moto", "s3_environment", "stores"]

Clients = Callable[[], ObjectClient]  # each is what a new process has in front of one store
WHOLE = os.environ.get("TIEREDSTORE_TIER_ON", "").split()


class Stores:
    """Empty stores of one kind, as many as a test wants."""

    def __init__(self, name: str, endpoint: str = "") -> None:
        self.name = name
        self._endpoint = endpoint
        self._places: list[Place] = []

    @property
    def is_remote(self) -> bool:
        return self.name in CLIENTS

    def new(self) -> Clients:
        """An empty store. Clients of the one before are closed: their test is through."""
        self.close()
        if self.is_remote:
            self._places.append(Place(self._endpoint, self.name))
            return self._places[-1].client
        objects = MemoryObjects()
        return lambda: MemoryObjectClient(objects)

    def sample(self, steps: range, *, every: int, share: int = 1) -> range:
        """All steps in memory; over HTTP one of `every`, or of `every` / `share` if asked."""
        if not self.is_remote:
            return steps
        stride = max(1, every // share) if self.name in WHOLE else every
        return steps[CLIENTS.index(self.name) * stride // len(CLIENTS) :: stride]

    def close(self) -> None:
        while self._places:
            self._places.pop().close()


REMOTE = [pytest.param(name, marks=[pytest.mark.s3, pytest.mark.slow]) for name in CLIENTS]


@pytest.fixture(params=["memory", *REMOTE])
def stores(request: pytest.FixtureRequest) -> Iterator[Stores]:
    name = request.param
    endpoint = request.getfixturevalue("moto")[0] if name in CLIENTS else ""
    found = Stores(name, endpoint)
    yield found
    found.close()
