"""Every test of the local store shuts down the stores that it opened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.local import store_audit


@pytest.fixture(autouse=True)
def opened_stores_end() -> Iterator[None]:
    """A store that a fixture opened for several tests stays open."""
    count = len(store_audit.opened_stores)
    yield
    while len(store_audit.opened_stores) > count:
        store_audit.opened_stores.pop().shutdown()
