"""The key index of the tier: files that are filled, compacted, uploaded and searched."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.index.local_file import IndexStoreFile
    from tieredstore.index.store import IndexStore
    from tieredstore.index.store import IndexStore as IndexStoreService

__all__ = ["IndexStore", "IndexStoreFile", "IndexStoreService"]

_HOMES = {
    "IndexStore": "store",
    "IndexStoreFile": "local_file",
    "IndexStoreService": "store",
}

_REAL = {"IndexStoreService": "IndexStore"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), _REAL.get(name, name))
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
