"""Test modules that run a second time, with their tier in an object store instead of in memory.

What lives here: which modules, and the fixture that gives their kits the other backend. A folder
takes part by importing both names into its conftest.
"""

from __future__ import annotations

import sys

import pytest

from tieredstore.driver.runtime import Runtime
from tieredstore.providers.memory import MemoryProvider
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.testing.memory_objects import MemoryObjectClient

__all__ = ["backend", "pytest_generate_tests"]

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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__ in MODULES:
        metafunc.fixturenames.insert(0, "backend")
        metafunc.parametrize("backend", ["memory", "objects"], indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kits, and the module itself, take for a backend in memory."""
    if request.param == "objects":
        for name in (*KITS, request.module.__name__):
            module = sys.modules.get(name)
            if getattr(module, "MemoryProvider", None) is MemoryProvider:
                monkeypatch.setattr(module, "MemoryProvider", on_objects)
