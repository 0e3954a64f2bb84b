"""Test modules that run a second time, with their tier in an object store instead of in memory.

What lives here: which modules, and the fixture that gives their kits the other backend. A folder
takes part by importing the names into its conftest. TIEREDSTORE_TIER_ON names other backends:
`s3fs` and `obstore` are these clients in front of moto's server, as in `make test-tier-s3`.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import uuid
from collections.abc import Iterator
from functools import partial

import pytest

from tests.s3.conftest import s3_endpoint, s3_environment
from tests.s3.s3_clients import CLIENTS, new_settings
from tieredstore.driver.object_client import ObjectClient
from tieredstore.driver.runtime import Runtime
from tieredstore.providers.memory import MemoryProvider
from tieredstore.providers.object_clients import open_client
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.providers.object_settings import ObjectStoreSettings
from tieredstore.testing.memory_objects import MemoryObjectClient

__all__ = ["backend", "pytest_generate_tests", "s3_endpoint", "s3_environment"]

BACKENDS = os.environ.get("TIEREDSTORE_TIER_ON", "memory objects").split()

MODULES = frozenset(
    {
        "tests.access.test_dispatch_ahead",
        "tests.access.test_dispatch_failures",
        "tests.access.test_dispatch_threads",
        "tests.access.test_fetcher",
        "tests.access.test_fetcher_faults",
        "tests.access.test_fetcher_keys",
        "tests.access.test_fetcher_random_reads",
        "tests.access.test_fetcher_times",
        "tests.access.test_tiered_keys",
        "tests.access.test_tiered_store",
        "tests.access.test_tiered_store_bad_input",
        "tests.access.test_tiered_store_levels",
        "tests.access.test_tiered_store_merged",
        "tests.access.test_tiered_store_threads",
        "tests.access.test_tiered_store_topics",
        "tests.flat.test_append_file",
        "tests.flat.test_commit_log",
        "tests.flat.test_consume_queue",
        "tests.flat.test_expiry",
        "tests.flat.test_expiry_faults",
        "tests.flat.test_file_store",
        "tests.flat.test_message_file",
        "tests.flat.test_queue_read",
        "tests.flat.test_readers_beside_a_writer",
        "tests.flat.test_recovery",
        "tests.flat.test_segment_times",
        "tests.flat.test_time_search",
        "tests.index.test_compaction",
        "tests.index.test_footer",
        "tests.index.test_index_questions",
        "tests.index.test_index_recovery",
        "tests.index.test_index_store",
        "tests.index.test_index_takeover",
        "tests.index.test_uploaded_file",
    }
)
KITS = (
    "tests.access.dispatch_kit",
    "tests.access.fetch_kit",
    "tests.access.tiered_kit",
    "tests.flat.store_kit",
    "tests.index.store_kit",
)


def on_objects(runtime: Runtime) -> ObjectProvider:
    return ObjectProvider(MemoryObjectClient(), "cluster-a", runtime)


def on_s3(
    settings: ObjectStoreSettings, opened: list[ObjectClient], runtime: Runtime
) -> ObjectProvider:
    """Each one below a prefix of its own, as each one in memory is a store of its own."""
    client = open_client(dataclasses.replace(settings, prefix=uuid.uuid4().hex))
    opened.append(client)
    return ObjectProvider(client, "cluster-a", runtime)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__ in MODULES:
        metafunc.parametrize("backend", BACKENDS, indirect=True)


@pytest.fixture(autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the kits, and the module itself, take for a backend in memory."""
    opened: list[ObjectClient] = []
    name = getattr(request, "param", "memory")  # of a module that runs once
    if name == "objects":
        replace(request, monkeypatch, on_objects)
    elif name in CLIENTS:
        settings = new_settings(request.getfixturevalue("s3_endpoint"), name)
        replace(request, monkeypatch, partial(on_s3, settings, opened))
    yield
    for client in opened:
        client.close()


def replace(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, provider: object
) -> None:
    modules = [sys.modules.get(name) for name in (*KITS, request.module.__name__)]
    found = [each for each in modules if getattr(each, "MemoryProvider", None) is MemoryProvider]
    assert found, "this module has no backend in memory: it would run twice on the same one"
    for module in found:
        monkeypatch.setattr(module, "MemoryProvider", provider)
