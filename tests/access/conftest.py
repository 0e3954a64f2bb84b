"""Fixtures. Some of these tests also run on an object store, and some die at its requests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.access.tiered_kit import Broker
from tests.crash_stores import stores
from tests.on_objects import backend, moto, pytest_generate_tests, s3_environment

__all__ = ["backend", "moto", "pytest_generate_tests", "s3_environment", "stores"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """An open, empty store with a tier."""
    broker = Broker(tmp_path)
    broker.open()
    yield broker
    broker.faults.always = None
    broker.store.shutdown()


@pytest.fixture
def tiered(broker: Broker) -> Broker:
    """Ten messages in the tier; the next store has lost the first six."""
    broker.open()  # a module's own `broker` fixture may not be open
    broker.fill(10, kept_from=6)
    return broker
