"""Which catalogue a reader starts from: the writer's file, what it published, or the bytes alone.

What lives here: the order in which they are tried, and what is said where there is none. How each
is opened is for `wiring`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tieredstore.driver.metadata import MetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError

_FILES: Final = ("", ".bak", ".journal")

log = logging.getLogger(__name__)


class NoCatalogueError(MetadataError):
    """There is none to start from.

    `names_file`: it was looked for as a file. `is_published_missing`: among what is published too.
    """

    def __init__(
        self,
        path: str,
        reason: str,
        *,
        names_file: bool = False,
        is_published_missing: bool = False,
    ) -> None:
        told = reason
        if is_published_missing:
            told += "; none is published beside the tier: have one made by `rebuild`"
        super().__init__(path, told)
        self.reason = reason
        self.names_file = names_file
        self.is_published_missing = is_published_missing

    @property
    def is_damage(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueOpeners:
    """Each opens one for reading; `published` gives None where there is none."""

    file: Callable[[], MetadataStore]
    published: Callable[[], MetadataStore | None]
    rebuilt: Callable[[], MetadataStore]


def chosen_catalogue(config: StoreConfig, openers: CatalogueOpeners) -> MetadataStore:
    """As the setting `catalogue` says. Raises NoCatalogueError, and what the openers raise."""
    choice = config.catalogue
    if choice == "rebuild":
        return openers.rebuilt()
    names_file = choice != "published"
    if names_file:
        if has_file(config):
            return openers.file()
        if choice == "file":
            raise NoCatalogueError(config.catalogue_path, "there is no such file", names_file=True)
    found = openers.published()
    if found is None and names_file:
        raise NoCatalogueError(
            config.catalogue_path,
            "there is no such file",
            names_file=True,
            is_published_missing=True,
        )
    if found is None:
        raise NoCatalogueError(config.broker_name, "no catalogue", is_published_missing=True)
    log.info("reading from the catalogue %s", found.facts.describe())
    return found


def has_file(config: StoreConfig) -> bool:
    """Whether there is a catalogue's file. Of one that is no file only its own class can say."""
    path = config.catalogue_path
    return config.metadata != "json" or any(Path(path + end).exists() for end in _FILES)
