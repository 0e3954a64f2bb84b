"""Names of packages and modules: names that are imported on first use, and old names of modules,
which can be imported for one more release.

A package with lazy public names imports none of its modules, and nothing heavy:

    __getattr__, __dir__ = lazy_names(__name__, {"IndexStore": "store.IndexStore"})
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

MOVED: Final = {
    "tieredstore.access.tiered_store": "tieredstore.access.store",
    "tieredstore.codec.properties": "tieredstore.codec.record",
    "tieredstore.codec.record_fields": "tieredstore.codec.record",
    "tieredstore.driver.generations": "tieredstore.driver.provider",
    "tieredstore.driver.object_wrapper": "tieredstore.driver.object_client",
    "tieredstore.driver.published": "tieredstore.driver.metadata",
    "tieredstore.driver.scratch": "tieredstore.driver.provider",
    "tieredstore.driver.wrapper": "tieredstore.driver.provider",
    "tieredstore.flat.commit_log": "tieredstore.flat.message_file",
    "tieredstore.flat.consume_queue": "tieredstore.flat.message_file",
    "tieredstore.index.index_store": "tieredstore.index.store",
    "tieredstore.index.store_file": "tieredstore.index.local_file",
    "tieredstore.jobs.local_engine": "tieredstore.jobs.job",
    "tieredstore.local.local_message_store": "tieredstore.local.store",
    "tieredstore.local.local_reader": "tieredstore.local.reader",
    "tieredstore.metadata.changes": "tieredstore.metadata.journal",
    "tieredstore.metadata.memory_reads": "tieredstore.metadata.memory_store",
    "tieredstore.model.catalogue": "tieredstore.model.values",
    "tieredstore.providers.object_settings": "tieredstore.providers.s3_settings",
    "tieredstore.testing.generations_contract": "tieredstore.testing.provider_contract",
    "tieredstore.testing.messages": "tieredstore.testing.samples",
    "tieredstore.testing.object_faults": "tieredstore.testing.faults",
    "tieredstore.testing.one_at_a_time": "tieredstore.testing.memory_objects",
    "tieredstore.testing.scratch_contract": "tieredstore.testing.provider_contract",
    "tieredstore.testing.segment_machine": "tieredstore.testing.segment_contract",
    "tieredstore.testing.strategies": "tieredstore.testing.samples",
}
"""Modules that documents, contracts and public names were imported from before."""


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package; `homes` maps a name to `<module>.<its name there>`,
    the module below the package."""
    names = vars(sys.modules[package])

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, real = homes[name].rpartition(".")
        names[name] = getattr(import_module(f"{package}.{module}"), real)
        return names[name]

    def list_names() -> list[str]:
        return sorted({*names, *homes})

    return find, list_names


def find_moved_modules() -> None:
    """Let imports fall back on old names, after all other finders. Idempotent."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())


class MovedModules(MetaPathFinder, Loader):
    """Finds a module under its old name if no module has that name: the module itself, not a
    copy."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        new = MOVED[old]
        warnings.warn(
            f"{old} is {new} now; the old name goes with the next release",
            DeprecationWarning,
            stacklevel=2,
        )
        sys.modules[old] = import_module(new)
