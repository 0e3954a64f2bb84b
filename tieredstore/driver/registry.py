"""Finds classes by name: built-in names, entry points and dotted paths."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final

from tieredstore.model.errors import InvalidConfigError

PROVIDERS: Final = "tieredstore.providers"
METADATA_STORES: Final = "tieredstore.metadata"
CATALOGUE_COPIES: Final = "tieredstore.catalogue_copies"
CATALOGUE_FILES: Final = "tieredstore.catalogue_files"
MESSAGE_STORES: Final = "tieredstore.message_stores"

_BUILT_IN: Final[Mapping[str, Mapping[str, str]]] = {
    PROVIDERS: {
        "memory": "tieredstore.providers.memory:MemoryProvider",
        "posix": "tieredstore.providers.posix:PosixProvider",
        "s3": "tieredstore.providers.object_provider:S3Provider",
        "fsspec": "tieredstore.providers.object_provider:FsspecProvider",
    },
    METADATA_STORES: {
        "json": "tieredstore.metadata.json_store:JsonMetadataStore",
    },
    CATALOGUE_COPIES: {
        "file": "tieredstore.metadata.local_copy:ReadCopy",
        "published": "tieredstore.metadata.published:PublishedMetadataStore",
        "rebuild": "tieredstore.metadata.memory_store:MemoryMetadataStore",
    },
    CATALOGUE_FILES: {
        "json": "tieredstore.metadata.local_copy:LocalCopy",
    },
    MESSAGE_STORES: {
        "tiered": "tieredstore.access.store:TieredMessageStore",
    },
}


def names(group: str) -> list[str]:
    """Every short name of a group: built-in ones and those of installed distributions."""
    return sorted({*_BUILT_IN[group], *_installed(group)})


def resolve(group: str, name: str, kind: type) -> Any:
    """The class for a short name or a dotted path (`package.module:Class`, `package.Class`).

    Another distribution cannot take over a built-in name. Raises InvalidConfigError if there is no
    such name, or the class cannot be imported or is no subclass of `kind`.
    """
    dotted = _BUILT_IN[group].get(name) or _installed(group).get(name) or name
    if "." not in dotted and ":" not in dotted:
        close = difflib.get_close_matches(name, names(group), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(names(group))}"
        raise InvalidConfigError(f"{group} has nothing called {name!r}: {hint}")
    found = _load(dotted)
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise InvalidConfigError(f"{dotted} is no {kind.__name__}")
    return found


@cache
def _installed(group: str) -> Mapping[str, str]:
    # entry_points() reads every distribution's metadata, about 3 ms: once is enough.
    return {point.name: point.value for point in entry_points(group=group)}


def _load(dotted: str) -> Any:
    module_name, colon, attribute = dotted.partition(":")
    if not colon:
        module_name, _, attribute = dotted.rpartition(".")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise InvalidConfigError(f"{dotted} cannot be imported: {error}") from error
    return found
