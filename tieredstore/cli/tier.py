"""Opens the tier that the options name, to read or to change it, and reports what is wrong with it.

`opened_provider` opens only the bytes, `opened_backend` also the catalogue if there is one, and
`opened_tier` both and a reader. `changing` locks the catalogue and publishes the changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tieredstore.access.reader import TieredReader
from tieredstore.access.upkeep import TendChore
from tieredstore.access.wiring import (
    LOG_LOST,
    LOG_MISSING,
    NoCatalogueError,
    brokers_of,
    catalogue_to_read,
    has_file,
    is_on_brokers_host,
    keeps_catalogue,
    provider_of,
    publisher_of,
    written_catalogue,
)
from tieredstore.cli.options import TierOptions, chosen, config_of, known_names
from tieredstore.cli.output import CommandError, ExitCode, note, printable, shown_time
from tieredstore.cli.progress import Work, shown_work
from tieredstore.codec.names import cluster_directory
from tieredstore.driver.metadata import (
    CatalogueFacts,
    MetadataStore,
    Publisher,
    StaleCatalogueError,
)
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.model.amounts import counted
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError, OffsetOutOfRangeError, SegmentError
from tieredstore.model.values import QueueKey

_NOT_FINISHED: Final = (
    "a migration to this tier is not finished: stop the broker and run `migrate` with --cut-over, "
    "which"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedTier:
    """A tier and its catalogue, both read only."""

    config: StoreConfig
    provider: SegmentProvider
    metadata: MetadataStore
    reader: TieredReader

    def keys(self, topic: str | None, queue_id: int | None = None) -> list[QueueKey]:
        """The named queues, or all; an error if a named one does not exist."""
        names = {record.topic for record in self.reader.topics()}
        return chosen(self.reader.queues(), topic, queue_id, topics=names, where="tier")

    def beginning(self, key: QueueKey) -> tuple[int | None, str | None]:
        """The smallest offset, None if it cannot be read, and what is wrong with the queue."""
        try:
            summary = self.reader.summary(*key)
        except (SegmentError, OffsetOutOfRangeError) as error:
            return None, f"its first message cannot be read: {error}"
        return (None, None) if summary is None else (summary.min_offset, summary.problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedProvider:
    """Where the bytes lie."""

    config: StoreConfig
    runtime: Runtime
    provider: SegmentProvider


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedBackend(OpenedProvider):
    """The bytes, and the catalogue or what is wrong with it."""

    metadata: MetadataStore | None
    failure: CommandError | MetadataError | None

    def catalogue(self) -> MetadataStore:
        """The catalogue; raises what is wrong with it."""
        if self.metadata is not None:
            return self.metadata
        raise self.failure or CommandError("there is no catalogue", ExitCode.NOT_THERE)


@contextmanager
def opened_tier(options: TierOptions, *, asks_local_index: bool = True) -> Iterator[OpenedTier]:
    """Open the tier, and check that it is the one that was meant.

    On the broker's host, the local key index is searched too, for keys that are not uploaded yet.
    Without `asks_local_index`, only what other machines see counts.
    """
    with opened_backend(options) as backend:
        metadata = backend.catalogue()
        check_broker(backend.config, metadata)
        with TieredReader(
            replace(backend.config, read_ahead_enabled=False),  # everything is read only once
            runtime=backend.runtime,
            provider=backend.provider,
            metadata=metadata,
            is_brokers_host=asks_local_index and is_on_brokers_host(backend.config, metadata),
        ) as reader:
            yield OpenedTier(
                config=backend.config,
                provider=backend.provider,
                metadata=metadata,
                reader=reader,
            )


@contextmanager
def opened_provider(options: TierOptions) -> Iterator[OpenedProvider]:
    """Open the place of the bytes, whether or not there is a catalogue."""
    config = config_of(options)
    with ExitStack() as opened:
        work = opened.enter_context(library_at_work())
        runtime = opened.enter_context(Runtime.threads())
        provider = provider_of(config, runtime, work)
        opened.callback(provider.close)
        check_root(config)
        yield OpenedProvider(config=config, runtime=runtime, provider=provider)


@contextmanager
def opened_backend(options: TierOptions) -> Iterator[OpenedBackend]:
    """Open the backend, even if the catalogue is missing or damaged."""
    with ExitStack() as opened:
        there = opened.enter_context(opened_provider(options))
        runtime, provider = there.runtime, there.provider
        config = config_to_read(there.config, options)
        metadata: MetadataStore | None = None
        failure: CommandError | MetadataError | None = None
        try:
            metadata = catalogue_to_read(config, runtime, provider)
            opened.callback(metadata.close)
            note_copy(metadata.facts)
            if not metadata.queues() and awaits_cut_over(config):
                # The log of a bucket begins with the first copy, and a directory has no catalogue.
                note(f"the catalogue is empty: {_NOT_FINISHED} fills it")
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
    """If the options name the catalogue's file, no other catalogue is read instead."""
    named = options.metadata_path is not None and options.catalogue is None
    return replace(config, catalogue="file") if named else config


def check_answers(config: StoreConfig, provider: SegmentProvider) -> None:
    """Raise if the backend refuses a listing: unreadable data is damage only if it answers."""
    next(iter(provider.list(config.broker_name)), None)


def check_tier(options: TierOptions) -> StoreConfig:
    """The settings of a tier, checked to exist and to have the named broker, for a job that opens
    it again.

    Without these checks, the job would report the whole tier as damaged. Checks that read much are
    left to the job.
    """
    config = config_to_read(config_of(options), options)
    if config.catalogue == "rebuild":
        check_root(config)
        return config
    with opened_backend(options) as backend:
        check_broker(config, backend.catalogue())
    return config


def check_root(config: StoreConfig) -> None:
    """Raise if the root is missing: it would look like an empty tier."""
    if config.provider != "posix" or Path(config.path).is_dir():
        return
    raise CommandError(
        f"no such directory: {config.path}; --path is the root of the tier, the "
        "directory that holds those of the clusters",
        ExitCode.NOT_THERE,
    )


def awaits_cut_over(config: StoreConfig) -> bool:
    """Whether a migration from this machine has copied to this tier and not finished."""
    from tieredstore.jobs.migrate_copy import journal_path

    return journal_path(config).is_file()


def no_catalogue(error: NoCatalogueError, config: StoreConfig) -> CommandError:
    """The error for a missing catalogue, which says what to do."""
    text = f"{error.path}: {error.reason}"
    if error.names_file and awaits_cut_over(config):
        text += f"; {_NOT_FINISHED} makes it"
        return CommandError(printable(text), ExitCode.NOT_THERE)
    if error.names_file:
        text += (
            "; name the catalogue with --catalogue-file, or with --store-path the directory whose "
            "config/ has it"
        )
    if error.there:
        text += f"; {error.there}"
    if error.is_log_missing and error.reason != LOG_LOST:
        text += "; name another broker with --broker"
    if error.is_log_missing:
        text += f"; {LOG_MISSING}"
    if error.names_file and not error.is_published_missing:
        text += "; `rebuild` makes one from the bytes, and --catalogue rebuild does without"
    if error.is_published_missing:
        text += (
            f"; none of a broker {config.broker_name!r} is published beside the tier either: name "
            "another with --broker; or `rebuild` makes one from the bytes, and --catalogue rebuild "
            "does without"
        )
    return CommandError(printable(text), ExitCode.NOT_THERE)


def note_copy(facts: CatalogueFacts) -> None:
    """Print a note about the age of a published copy."""
    if facts.source == "published":
        note(
            f"from the published catalogue, generation {facts.generation} of "
            f"{shown_time(facts.written_ms or 0)}: newer segments are not in it"
        )


def check_cluster(config: StoreConfig, metadata: MetadataStore) -> None:
    """Raise if the directory of the cluster is missing: else every committed byte would be reported
    as lost."""
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
    """Raise if the named broker is not in the catalogue, and say which ones are."""
    brokers = brokers_of(metadata)
    if not brokers:
        return
    others = known_names([name for name in brokers if name != config.broker_name])
    if config.broker_name not in brokers:
        raise CommandError(
            f"no broker {printable(config.broker_name)!r} is in this catalogue; there are: "
            f"{others}; name one with --broker",
            ExitCode.NOT_THERE,
        )
    if len(brokers) > 1:
        note(f"the catalogue has other brokers too: {others}; --broker shows them")


@contextmanager
def library_at_work() -> Iterator[Work]:
    """Shows the catalogue's warnings as notes and the progress of long work, and silences all other
    log records.

    The verbs report everything else as damage, in one line.
    """
    everything = logging.getLogger("tieredstore")
    catalogue = logging.getLogger("tieredstore.metadata.files")
    silent, shown = logging.NullHandler(), _Notes(logging.WARNING)
    everything.addHandler(silent)
    catalogue.addHandler(shown)
    try:
        with shown_work() as work:
            yield work
    finally:
        catalogue.removeHandler(shown)
        everything.removeHandler(silent)


@dataclass(slots=True, kw_only=True)
class Changing:
    """A locked catalogue, and the generation under which it was published after the change; None if
    nothing had been published before."""

    metadata: MetadataStore
    publisher: Publisher | None = None
    generation: int | None = None


@contextmanager
def changing(backend: OpenedBackend) -> Iterator[Changing]:
    """Lock the catalogue. If it was published before, publish it again when the block succeeds. If
    another writer publishes, raise before anything is written."""
    with locked(backend) as metadata:
        publisher = checked_publisher(backend, metadata)
        change = Changing(metadata=metadata, publisher=publisher)
        yield change
        if publisher is not None:
            change.generation = publisher.publish()


@contextmanager
def locked(backend: OpenedBackend) -> Iterator[MetadataStore]:
    """Reopen the catalogue, which was opened for reading, for writing; the broker must be in it."""
    to_read = backend.catalogue()
    check_broker(backend.config, to_read)
    to_read.close()
    with for_writing(backend) as metadata:
        yield metadata


@contextmanager
def for_writing(there: OpenedProvider, *, create: bool = False) -> Iterator[MetadataStore]:
    """Open the catalogue and lock it: no broker may be running on it. A copy cannot be written.

    If the catalogue lies with the bytes, the tier is taken over: a broker elsewhere is fenced.
    """
    config, provider = there.config, there.provider
    if not create and not keeps_catalogue(config, provider) and not has_file(config):
        missing = NoCatalogueError(config.catalogue_path, "there is no such file", names_file=True)
        raise no_catalogue(missing, config)
    with ExitStack() as opened:
        try:
            written = written_catalogue(config, there.runtime, provider)
            metadata, _ = opened.enter_context(written)
        except MetadataError as error:
            if not create or not error.is_damage:
                raise
            text = f"{error}; move it away, with all files of its name, and a new one is made"
            raise CommandError(printable(text), ExitCode.DAMAGE) from error
        yield metadata
        # No broker may ever run here. It may take minutes, in which others may take over.
        TendChore(provider, config.broker_name).step()


def checked_publisher(backend: OpenedBackend, metadata: MetadataStore) -> Publisher | None:
    """The publisher; None if nothing was published yet. Raises if what is published is another
    writer's."""
    generations = backend.provider.generations(backend.config.broker_name)
    if generations is None or not generations.listed():
        return None
    publisher = publisher_of(backend.config, backend.provider, metadata)
    if publisher is not None:
        try:
            publisher.check()
        except StaleCatalogueError as error:
            raise CommandError(printable(str(error)), ExitCode.REFUSED) from error
    return publisher


class TierDamage:
    """Counts damaged messages, of which there may be many, and damaged queues; keeps the first
    problem of each."""

    def __init__(self) -> None:
        self._message_count = 0
        self._first: SegmentError | None = None
        self._queue_count = 0
        self._problem = ""

    def add_messages(self, key: QueueKey, count: int, error: SegmentError) -> None:
        self._message_count += count
        self._first = self._first or error

    def add_queue(self, tier: OpenedTier, key: QueueKey, problem: str | None) -> None:
        """Count a queue that lacks something; does nothing if there is no problem."""
        if problem is not None:
            if not self._queue_count:
                check_answers(tier.config, tier.provider)
            self._queue_count += 1
            self._problem = self._problem or f"{key.topic}/{key.queue_id}: {problem}"

    def raise_error(self) -> None:
        """Raise what is wrong, if anything. Called after all that is sound was shown."""
        found = []
        if self._message_count:
            damaged = counted(self._message_count, "damaged message")
            found.append(f"not shown: {damaged}, the first: {self._first}")
        if self._queue_count:
            has = "has" if self._queue_count == 1 else "have"
            queues = counted(self._queue_count, "queue")
            found.append(f"{queues} {has} lost something, the first: {self._problem}")
        if found:
            text = printable("; ".join(found))
            raise CommandError(f"{text}; restore the segment from a copy", ExitCode.DAMAGE)


class _Notes(logging.Handler):
    """Prints log records as notes on stderr, each once, as a catalogue may be opened twice."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._noted: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._noted:
            self._noted.add(text)
            note(printable(text))
