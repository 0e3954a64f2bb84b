"""Opening the tier that was named.

What lives here: `opened_tier` and `opened_backend`, for looking at it only, `opened_provider`, for
its bytes alone, and what is said when the name was a wrong one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tieredstore.access.reader import TieredReader
from tieredstore.access.wiring import NoCatalogueError, catalogue_to_read, provider_of
from tieredstore.cli.choice import known_names
from tieredstore.cli.failures import CommandError, ExitCode
from tieredstore.cli.output import note, printable
from tieredstore.cli.tier_options import TierOptions, config_of
from tieredstore.cli.times import shown_time
from tieredstore.codec.names import cluster_directory
from tieredstore.driver.metadata import CatalogueFacts, MetadataStore
from tieredstore.driver.metrics import NoMetrics
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedTier:
    """A tier and its catalogue, both read only."""

    config: StoreConfig
    provider: SegmentProvider
    metadata: MetadataStore
    reader: TieredReader


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedProvider:
    """Where the bytes lie."""

    config: StoreConfig
    runtime: Runtime
    provider: SegmentProvider


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedBackend:
    """Where the bytes lie, and the catalogue or what is wrong with it."""

    config: StoreConfig
    runtime: Runtime
    provider: SegmentProvider
    metadata: MetadataStore | None
    failure: CommandError | MetadataError | None

    def catalogue(self) -> MetadataStore:
        """The catalogue; raises what is wrong with it."""
        if self.metadata is not None:
            return self.metadata
        raise self.failure or CommandError("there is no catalogue", ExitCode.NOT_THERE)


@contextmanager
def opened_tier(options: TierOptions, *, asks_local_index: bool = True) -> Iterator[OpenedTier]:
    """The tier, checked to be the one that was meant.

    On the broker's host its key index is asked for what is not uploaded yet too, unless only what
    others see matters.
    """
    with opened_backend(options) as backend:
        metadata = backend.catalogue()
        check_broker(backend.config, metadata)
        with TieredReader(
            # Each thing is read once, and who walks checks what it shows.
            replace(backend.config, read_ahead_enabled=False, crc_check_enabled=False),
            runtime=backend.runtime,
            provider=backend.provider,
            metadata=metadata,
            is_brokers_host=asks_local_index and not metadata.facts.copy,
        ) as reader:
            yield OpenedTier(
                config=backend.config,
                provider=backend.provider,
                metadata=metadata,
                reader=reader,
            )


@contextmanager
def opened_provider(options: TierOptions) -> Iterator[OpenedProvider]:
    """Where the bytes lie, whatever catalogue there is."""
    config = config_of(options)
    with ExitStack() as opened:
        opened.enter_context(notes_of_the_library())
        runtime = opened.enter_context(Runtime.threads())
        provider = provider_of(config, runtime, NoMetrics())
        opened.callback(provider.close)
        check_root(config)
        yield OpenedProvider(config=config, runtime=runtime, provider=provider)


@contextmanager
def opened_backend(options: TierOptions) -> Iterator[OpenedBackend]:
    """The backend, also where the catalogue is missing or damaged."""
    with ExitStack() as opened:
        there = opened.enter_context(opened_provider(options))
        runtime, provider = there.runtime, there.provider
        config = config_to_read(there.config, options)
        metadata: MetadataStore | None = None
        failure: CommandError | MetadataError | None = None
        try:
            metadata = catalogue_to_read(config, runtime, provider)
            opened.callback(metadata.close)
            tell_copy(metadata.facts)
        except NoCatalogueError as error:
            failure = no_catalogue(error, config)
        except MetadataError as error:
            failure = error
        if metadata is not None:
            check_cluster(config, metadata)
        yield OpenedBackend(
            config=config, runtime=runtime, provider=provider, metadata=metadata, failure=failure
        )


def config_to_read(config: StoreConfig, options: TierOptions) -> StoreConfig:
    """Whoever names a catalogue's file means that file: where it is not there, no other one."""
    named = options.metadata_path is not None and options.catalogue is None
    return replace(config, catalogue="file") if named else config


def check_answers(tier: OpenedTier) -> None:
    """Where something could not be read: a backend that refuses says so itself, and damage is
    told of only where it answers."""
    next(iter(tier.provider.list(tier.config.broker_name)), None)


def check_tier(options: TierOptions) -> StoreConfig:
    """The settings of a tier that is there and has such a broker: for a job, which opens it again.

    Else it would tell of all the tier as damaged. What needs much reading is left to the job.
    """
    config = config_to_read(config_of(options), options)
    if config.catalogue == "rebuild":
        check_root(config)
        return config
    with opened_backend(options) as backend:
        check_broker(config, backend.catalogue())
    return config


def check_root(config: StoreConfig) -> None:
    """A root that is not there would be an empty tier."""
    if config.provider != "posix" or Path(config.path).is_dir():
        return
    raise CommandError(
        f"{config.path}: there is no such directory; --path is the root of the tier, the "
        "directory that holds those of the clusters",
        ExitCode.NOT_THERE,
    )


def no_catalogue(error: NoCatalogueError, config: StoreConfig) -> CommandError:
    """What to do where there is none."""
    from tieredstore.jobs.migrate_copy import journal_path

    text = f"{error.path}: {error.reason}"
    if error.names_file and journal_path(config).is_file():
        text += (
            "; a migration to this tier is not finished: stop the broker and run `migrate` with "
            "--cut-over, which makes it"
        )
        return CommandError(printable(text), ExitCode.NOT_THERE)
    if error.names_file:
        text += (
            "; name the catalogue with --metadata, or with --store-path the directory whose "
            "config/ has it"
        )
    if error.there:
        text += f"; {error.there}"
    if error.names_file and not error.is_published_missing:
        text += "; `rebuild` makes one from the bytes, and --catalogue rebuild does without"
    if error.is_published_missing:
        text += (
            f"; none of a broker {config.broker_name!r} is published beside the tier either: name "
            "another with --broker; or `rebuild` makes one from the bytes, and --catalogue rebuild "
            "does without"
        )
    return CommandError(printable(text), ExitCode.NOT_THERE)


def tell_copy(facts: CatalogueFacts) -> None:
    """Who reads a copy is told how old it is."""
    if facts.source == "published":
        note(
            f"from the published catalogue, generation {facts.generation} of "
            f"{shown_time(facts.written_ms or 0)}: newer segments are not in it"
        )


def check_cluster(config: StoreConfig, metadata: MetadataStore) -> None:
    """Without its cluster's directory every committed byte would be told of as lost."""
    if config.provider != "posix":
        return
    root = Path(config.path)
    wanted = cluster_directory(config.cluster_name)
    if (root / wanted).is_dir() or not any(row.size for row in metadata.segments()):
        return
    names = [path.name.partition("_")[2] for path in sorted(root.iterdir()) if path.is_dir()]
    clusters = [name for name in names if (root / cluster_directory(name)).is_dir() and name]
    if not clusters:
        raise CommandError(
            f"{config.path}: no cluster lies here; --path is the directory that holds {wanted}",
            ExitCode.NOT_THERE,
        )
    raise CommandError(
        f"no cluster {printable(config.cluster_name)!r} is in this tier; there are: "
        f"{known_names(clusters)}; name one with --cluster",
        ExitCode.NOT_THERE,
    )


def check_broker(config: StoreConfig, metadata: MetadataStore) -> None:
    """Say which brokers there are, where the one that was named is none of them."""
    brokers = {row.path.partition("/")[0] for row in metadata.segments()}
    brokers |= {row.broker_name for row in metadata.queues()}
    if not brokers:
        return
    others = known_names(sorted(brokers - {config.broker_name}))
    if config.broker_name not in brokers:
        raise CommandError(
            f"no broker {printable(config.broker_name)!r} is in this catalogue; there are: "
            f"{others}; name one with --broker",
            ExitCode.NOT_THERE,
        )
    if len(brokers) > 1:
        note(f"the catalogue has other brokers too: {others}; --broker shows them")


@contextmanager
def notes_of_the_library() -> Iterator[None]:
    """What the library warns of: what the catalogue had to deal with is told as a note.

    All else is told by the verbs, as damage, in one line.
    """
    everything = logging.getLogger("tieredstore")
    catalogue = logging.getLogger("tieredstore.metadata.files")
    silent, told = logging.NullHandler(), _Notes(logging.WARNING)
    everything.addHandler(silent)
    catalogue.addHandler(told)
    try:
        yield
    finally:
        catalogue.removeHandler(told)
        everything.removeHandler(silent)


class _Notes(logging.Handler):
    """Log records as notes on stderr, each once: a catalogue may be opened twice."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._told:
            self._told.add(text)
            note(printable(text))
