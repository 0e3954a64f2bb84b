"""Object stores at whose requests processes die: in memory, and moto's over HTTP.

The fixture `stores` gives `Stores`. In memory a test always tries every step. Over HTTP it tries a
few, the same ones in each run; more with a client that TIEREDSTORE_TIER_ON names, as in
`make test-tier-s3`; and every one in `make torture`. To use this, a folder imports the names into
its conftest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.s3.conftest import moto, s3_environment
from tests.s3.s3_clients import CLIENTS
from tests.s3_places import Place
from tieredstore.driver.object_client import ObjectClient
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects

__all__ = ["moto", "s3_environment", "stores"]

Clients = Callable[[], ObjectClient]  # makes the client of each new process on one store
WHOLE = os.environ.get("TIEREDSTORE_TIER_ON", "").split()


class Stores:
    """Empty stores of one kind, as many as a test wants."""

    def __init__(self, name: str, endpoint: str = "", *, every_step: bool = True) -> None:
        self.name = name
        self._every_step = every_step
        self._endpoint = endpoint
        self._places: list[Place] = []

    @property
    def is_remote(self) -> bool:
        return self.name in CLIENTS

    def new(self) -> Clients:
        """Make an empty store; close the clients of the last one, which is no longer used."""
        self.close()
        if self.is_remote:
            self._places.append(Place(self._endpoint, self.name))
            return self._places[-1].client
        objects = MemoryObjects()
        return lambda: MemoryObjectClient(objects)

    def sample(
        self,
        steps: Sequence[int],
        *,
        over_http: int,
        at_length: int,
        share: tuple[int, int] = (0, 1),
    ) -> Sequence[int]:
        """All steps, or over HTTP only `over_http` of them: the first, the last, some in between.

        Each client takes other steps in between. A client that TIEREDSTORE_TIER_ON names takes
        `at_length` steps. Similar tests share a sample: the first of three takes `(0, 3)` of it.
        """
        count = min(at_length if self.name in WHOLE else over_http, len(steps))
        if self._every_step:
            return steps
        first, stride = share
        if count < 3:
            return steps[first:count:stride]
        last, shift = len(steps) - 1, CLIENTS.index(self.name) / len(CLIENTS)
        between = [int((number + shift) * last / (count - 1)) for number in range(1, count - 1)]
        return [steps[at] for at in (0, *between, last)][first::stride]

    def close(self) -> None:
        while self._places:
            self._places.pop().close()


REMOTE = [pytest.param(name, marks=[pytest.mark.s3, pytest.mark.slow]) for name in CLIENTS]
EVERY_STEP = [
    pytest.param(f"{name} at every step", marks=[pytest.mark.s3, pytest.mark.torture])
    for name in CLIENTS
]


@pytest.fixture(params=["memory", *REMOTE, *EVERY_STEP])
def stores(request: pytest.FixtureRequest) -> Iterator[Stores]:
    name, at_every_step, _ = request.param.partition(" at every step")
    if name in CLIENTS:
        endpoint = request.getfixturevalue("moto")[0]
        found = Stores(name, endpoint, every_step=bool(at_every_step))
    else:
        found = Stores(name)
    yield found
    found.close()
