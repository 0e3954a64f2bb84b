"""Which catalogue a reader starts from: the writer's file, what it published, or the bytes alone.

What lives here: the order in which they are tried, and what is said where there is none, or where
the settings name another tier than the catalogue. How each is opened is for `wiring`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tieredstore.codec.names import cluster_directory
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import SegmentProvider
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError, UnknownNameError
from tieredstore.model.printable import log_of

_FILES: Final = ("", ".bak", ".journal")
_NAMED_MAX: Final = 8

log = log_of(__name__)


class NoCatalogueError(MetadataError):
    """There is none to start from.

    `names_file`: it was looked for as a file. `is_published_missing`: among what is published too.
    `there`: what tiers lie there instead, if that is known.
    """

    def __init__(
        self,
        path: str,
        reason: str,
        *,
        names_file: bool = False,
        is_published_missing: bool = False,
        there: str = "",
    ) -> None:
        told = f"{reason}; {there}" if there else reason
        if is_published_missing:
            told += "; none is published beside the tier: have one made by `rebuild`"
        super().__init__(path, told)
        self.reason = reason
        self.there = there
        self.names_file = names_file
        self.is_published_missing = is_published_missing

    @property
    def is_damage(self) -> bool:
        return False


class AnotherTierError(UnknownNameError):
    """The settings name another cluster, broker or root than the catalogue: all would seem lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueOpeners:
    """Each opens one for reading; `published` gives None where there is none. `there` says which
    tiers lie there instead of the one that is named."""

    file: Callable[[], MetadataStore]
    published: Callable[[], MetadataStore | None]
    rebuilt: Callable[[], MetadataStore]
    there: Callable[[], str]


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
            there=openers.there(),
        )
    if found is None:
        raise NoCatalogueError(
            config.broker_name, "no catalogue", is_published_missing=True, there=openers.there()
        )
    log.info("reading from the catalogue %s", found.facts.describe())
    return found


def check_broker(config: StoreConfig, metadata: MetadataStore) -> None:
    """AnotherTierError where the catalogue has brokers, and not the one that is named."""
    if any(row.broker_name == config.broker_name for row in metadata.queues()):
        return
    brokers = brokers_of(metadata)
    if brokers and config.broker_name not in brokers:
        raise AnotherTierError(
            f"broker_name: the catalogue {metadata.facts.place} has no broker"
            f" {config.broker_name!r}; it has {_named(brokers)}"
        )


def brokers_of(metadata: MetadataStore) -> list[str]:
    """The brokers that have segments or queues in this catalogue."""
    brokers = {row.path.partition("/")[0] for row in metadata.segments()}
    return sorted(brokers | {row.broker_name for row in metadata.queues()})


def check_place(config: StoreConfig, metadata: MetadataStore, provider: SegmentProvider) -> None:
    """AnotherTierError where nothing lies where the settings say; for who found nothing there.

    A broker that has its place there and no bytes in it has lost them: that is no mistake of the
    settings. Raises what the backend raises.
    """
    if metadata.facts.copy:
        return  # it was found there, so there the tier is
    if next(iter(provider.list(config.broker_name)), None) is not None:
        return
    there = lies_there(config, provider)
    if there:
        raise AnotherTierError(
            f"{metadata.facts.place} names segments of broker {config.broker_name}, and none of"
            f" them is there: {there}"
        )


def lies_there(config: StoreConfig, provider: SegmentProvider) -> str:
    """Which tiers lie there instead of the one that is named; empty where that is not known."""
    root = config.path if config.provider == "posix" else ""
    if root and not Path(root).is_dir():
        return f"path: there is no directory {root}"
    places = provider.places()
    if places is None:
        return ""
    clusters = sorted({cluster for cluster, _ in places})
    if config.cluster_name not in clusters:
        directory = cluster_directory(config.cluster_name)
        return (
            f"cluster_name: no cluster {config.cluster_name!r} ({directory}) lies"
            f" {f'in {root}' if root else 'there'}; there is {_named(clusters)}"
        )
    brokers = sorted(broker for cluster, broker in places if cluster == config.cluster_name)
    if config.broker_name not in brokers:
        return (
            f"broker_name: cluster {config.cluster_name!r} has no broker"
            f" {config.broker_name!r} there; it has {_named(brokers)}"
        )
    return ""


def _named(names: Sequence[str]) -> str:
    """The first of them, on one line."""
    shown = [name if name.isprintable() else repr(name) for name in names[:_NAMED_MAX]]
    return (", ".join(shown) or "none") + (", …" if len(names) > _NAMED_MAX else "")


def has_file(config: StoreConfig) -> bool:
    """Whether there is a catalogue's file. Of one that is no file only its own class can say."""
    path = config.catalogue_path
    return config.metadata != "json" or any(Path(path + end).exists() for end in _FILES)
