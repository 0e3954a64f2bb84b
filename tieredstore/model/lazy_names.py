"""Names of a package that are imported when they are first asked for.

A package that gives its public names so imports none of its modules, and nothing heavy:

    __getattr__, __dir__ = lazy_names(__name__, {"IndexStore": "store.IndexStore"})
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


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
