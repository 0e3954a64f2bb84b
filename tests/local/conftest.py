"""Every test of the local store ends the stores that it opened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.local import store_audit


@pytest.fixture(autouse=True)
def opened_stores_end() -> Iterator[None]:
    """What a fixture of more than one test opened goes on."""
    count = len(store_audit.opened_stores)
    yield
    while len(store_audit.opened_stores) > count:
        store_audit.opened_stores.pop().shutdown()
