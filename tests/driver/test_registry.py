"""Names lead to classes, built in, dotted or from entry points, or to clear errors."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tieredstore.driver import registry
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import SegmentProvider
from tieredstore.model.errors import InvalidConfigError
from tieredstore.providers.memory import MemoryProvider


def test_every_built_in_name_leads_to_a_class() -> None:
    for name in ("memory", "posix"):
        found = registry.resolve(registry.PROVIDERS, name, SegmentProvider)
        assert issubclass(found, SegmentProvider)
    json_store = registry.resolve(registry.METADATA_STORES, "json", MetadataStore)
    assert json_store.__name__ == "JsonMetadataStore"


@pytest.mark.parametrize(
    "dotted",
    ["tieredstore.providers.memory:MemoryProvider", "tieredstore.providers.memory.MemoryProvider"],
)
def test_a_dotted_path_leads_to_a_class(dotted: str) -> None:
    assert registry.resolve(registry.PROVIDERS, dotted, SegmentProvider) is MemoryProvider


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("memry", "did you mean 'memory'"),
        ("xyz", "known are fsspec, memory, posix, s3"),
        ("no.such.module:Class", "cannot be imported"),
        ("tieredstore.providers.memory:Nothing", "cannot be imported"),
        ("builtins:dict", "is no SegmentProvider"),
        ("os.path", "is no SegmentProvider"),
        (":Class", "cannot be imported"),
        ("..", "cannot be imported"),
        ("..a.b", "cannot be imported"),
        ("", "known are"),
    ],
)
def test_a_wrong_name_is_one_clear_error(name: str, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        registry.resolve(registry.PROVIDERS, name, SegmentProvider)


def test_an_entry_point_adds_a_name_but_cannot_take_one(monkeypatch: pytest.MonkeyPatch) -> None:
    added = {
        "mine": "tieredstore.providers.memory:MemoryProvider",
        "posix": "tieredstore.providers.memory:MemoryProvider",
    }
    monkeypatch.setattr(registry, "_installed", lambda group: added)
    assert registry.resolve(registry.PROVIDERS, "mine", SegmentProvider) is MemoryProvider
    posix = registry.resolve(registry.PROVIDERS, "posix", SegmentProvider)
    assert posix is not MemoryProvider
    assert registry.names(registry.PROVIDERS) == ["fsspec", "memory", "mine", "posix", "s3"]


def test_naming_a_backend_imports_none() -> None:
    code = (
        "import sys, tieredstore, tieredstore.driver.registry as r;"
        "r.names(r.PROVIDERS);"
        "assert not [m for m in sys.modules if m.startswith('tieredstore.providers')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
