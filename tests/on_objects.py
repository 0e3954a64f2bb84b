"""Test modules that run again with their tier in an object store instead of in memory.

A fixture gives the kits of these modules the other backend. To use this, a folder imports the names
into its conftest. `objects` is a store in memory; `obstore` and `s3fs` are clients over moto's
server. All modules run on memory and objects, some over HTTP; TIEREDSTORE_TIER_ON names other
backends for all of them, as in `make test-tier-s3`. A test's own subclass of MemoryProvider is not
replaced.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from types import ModuleType

import pytest

from tests.s3.conftest import moto, s3_environment
from tests.s3.s3_clients import CLIENTS
from tests.s3_places import Place
from tieredstore.driver.runtime import Runtime
from tieredstore.providers.memory import MemoryProvider
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.testing.memory_objects import MemoryObjectClient

__all__ = ["backend", "moto", "pytest_generate_tests", "s3_environment"]

USUAL = ["memory", "objects"]
ASKED = os.environ.get("TIEREDSTORE_TIER_ON", "").split()

MODULES = frozenset(
    {
        "tests.access.test_answers",
        "tests.access.test_compared_queues",
        "tests.access.test_dispatch_crashes",
        "tests.access.test_dispatcher",
        "tests.access.test_fetcher",
        "tests.access.test_fetcher_cache",
        "tests.access.test_key_lookup",
        "tests.access.test_many_queues",
        "tests.access.test_queue_upload",
        "tests.access.test_reader_beside_writer",
        "tests.access.test_reader_elsewhere",
        "tests.access.test_rounds",
        "tests.access.test_tiered_store",
        "tests.access.test_tiered_store_end",
        "tests.access.test_tiered_store_restart",
        "tests.access.test_upkeep",
        "tests.flat.test_append_file",
        "tests.flat.test_file_store",
        "tests.flat.test_message_file",
        "tests.flat.test_recovery",
        "tests.flat.test_segment_writer",
        "tests.index.test_index_recovery",
        "tests.index.test_search",
        "tests.index.test_store",
    }
)
# These show what only an HTTP client can get wrong: acknowledged messages after crashes and
# restarts, beside other threads and other processes. `make test-tier-s3` also runs the others.
USUALLY_OVER_HTTP = frozenset(
    {
        "tests.access.test_compared_queues",
        "tests.access.test_dispatch_crashes",
        "tests.access.test_fetcher",
        "tests.access.test_reader_beside_writer",
        "tests.access.test_rounds",
        "tests.access.test_tiered_store_end",
        "tests.access.test_tiered_store_restart",
        "tests.flat.test_file_store",
        "tests.flat.test_recovery",
        "tests.index.test_index_recovery",
    }
)
# They measure the memory of this process, which also has moto's server and its buckets.
NOT_OVER_HTTP = frozenset({"tests.access.test_many_queues"})
KITS = (
    "tests.access.dispatch_kit",
    "tests.access.fetch_kit",
    "tests.access.tiered_kit",
    "tests.flat.store_kit",
    "tests.index.store_kit",
)


def on_objects(runtime: Runtime) -> ObjectProvider:
    return ObjectProvider(MemoryObjectClient(), "cluster-a", runtime)


def on_s3(endpoint: str, name: str, places: list[Place], runtime: Runtime) -> ObjectProvider:
    """A provider with its own bucket, as each MemoryProvider is a store of its own."""
    places.append(Place(endpoint, name))
    return ObjectProvider(places[-1].client(), "cluster-a", runtime)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.module.__name__
    if name in MODULES:
        wanted = [marked(each) for each in backends_of(name)]
        metafunc.parametrize("backend", wanted, indirect=True)


def backends_of(module: str) -> list[str]:
    wanted = ASKED or USUAL + ["obstore"] * (module in USUALLY_OVER_HTTP)
    left_out = CLIENTS if module in NOT_OVER_HTTP else ()
    return [each for each in wanted if each not in left_out] or ["memory"]


def marked(backend: str) -> object:
    return pytest.param(backend, marks=[pytest.mark.s3] if backend in CLIENTS else [])


@pytest.fixture(autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Replace MemoryProvider in the kits and in the module itself; give the name of the backend."""
    places: list[Place] = []
    name = getattr(request, "param", "memory")  # other modules run once, in memory
    if name == "objects":
        replace(request, monkeypatch, on_objects)
    elif name in CLIENTS:
        endpoint = request.getfixturevalue("moto")[0]
        replace(request, monkeypatch, partial(on_s3, endpoint, name, places))
    yield name
    for place in places:
        place.close()


def replace(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, provider: object
) -> None:
    modules = [module for name, module in used_by(request.module).items() if name in KITS]
    found = [
        module
        for module in (*modules, request.module)
        if getattr(module, "MemoryProvider", None) is MemoryProvider
    ]
    assert found, "this module has no backend in memory: it would run twice on the same one"
    for module in found:
        monkeypatch.setattr(module, "MemoryProvider", provider)


def used_by(module: ModuleType) -> dict[str, ModuleType]:
    """The test modules whose names this one uses, directly or through others."""
    found: dict[str, ModuleType] = {}
    left = [module]
    while left:
        names = {getattr(value, "__module__", None) or "" for value in vars(left.pop()).values()}
        for name in names - found.keys():
            if name.startswith("tests.") and name in sys.modules:
                found[name] = sys.modules[name]
                left.append(found[name])
    return found
