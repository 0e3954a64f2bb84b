"""Turns names from the settings into parts: the tier, its catalogue and the chain of plugins.

No other module does this.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tieredstore.access.fetcher import Fetcher
from tieredstore.access.key_lookup import SCAN_BYTES_MAX
from tieredstore.access.rebuild import rebuild
from tieredstore.access.upkeep import PublishChore
from tieredstore.codec.names import cluster_directory, index_queue_path, queue_path
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.metadata import (
    LOG,
    CatalogueCopy,
    CatalogueUpkeep,
    Change,
    DeleteNote,
    DeleteQueue,
    DeleteSegment,
    DeleteTopic,
    MetadataStore,
    Publisher,
    Put,
    PutNote,
)
from tieredstore.driver.metrics import MeasuredProvider, Metrics, NoMetrics
from tieredstore.driver.one_process import OneProcess
from tieredstore.driver.provider import (
    LOST_LOG,
    Fence,
    ListedSegment,
    RoundSizes,
    SegmentProvider,
)
from tieredstore.driver.registry import (
    CATALOGUE_COPIES,
    CATALOGUE_FILES,
    MESSAGE_STORES,
    METADATA_STORES,
    PROVIDERS,
    resolve,
)
from tieredstore.driver.retry import RetryingProvider, RetryPolicy
from tieredstore.driver.runtime import Deadline, Runtime, with_deadline
from tieredstore.flat.append_file import Publish
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.index.contract import Index, NoIndex
from tieredstore.index.store import IndexStore
from tieredstore.index.uploaded import UploadedIndex
from tieredstore.index.writer import FOLDER
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    InvalidConfigError,
    MetadataError,
    TieredStoreError,
    UnknownNameError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.settings import JAVA_CLASSES
from tieredstore.model.values import QueueRecord, SegmentRecord, SegmentType, TopicRecord

log = log_of(__name__)

END_SECONDS_MIN = 5.0  # for each part to make its data durable, even after the timeout
_FILES: Final = ("", ".bak", ".journal")
_NAMED_MAX: Final = 8
_REBUILDS_MAX: Final = 8  # for a reader, while what is read expires
ENDS_WITH_PROCESS: Final = "tier", "ends-with-process"  # the kind and the key of a note
_OWN: Final = "json"  # the kind of catalogue that a provider may keep in its own way
_JAVA_PACKAGE: Final = "org.apache.rocketmq."


LOG_MISSING: Final = "sealed segments that lie there are taken in by `rebuild`"
LOG_LOST: Final = "a writer has claimed it, and no entry of its log is there: the log is lost"


class NoCatalogueError(MetadataError):
    """There is no catalogue to start from.

    `names_file`: a file was looked for. `is_published_missing`: a published copy too.
    `is_log_missing`: it was looked for with the bytes, where this provider keeps it. `there`: the
    tiers that exist there instead, if known.
    """

    def __init__(
        self,
        path: str,
        reason: str,
        *,
        names_file: bool = False,
        is_published_missing: bool = False,
        is_log_missing: bool = False,
        there: str = "",
    ) -> None:
        detail = f"{reason}; {there}" if there else reason
        if is_log_missing:
            detail += f"; {LOG_MISSING}"
        if is_published_missing:
            detail += "; none is published beside the tier: have one made by `rebuild`"
        super().__init__(path, detail)
        self.reason = reason
        self.there = there
        self.names_file = names_file
        self.is_published_missing = is_published_missing
        self.is_log_missing = is_log_missing

    @property
    def is_damage(self) -> bool:
        return False


class AnotherTierError(UnknownNameError):
    """The settings name another cluster, broker or root than the catalogue: everything would seem
    lost."""


@dataclass(slots=True)
class _Ending:
    """The time left for a close: set when it begins, and read by the parts that are released."""

    deadline: Deadline | None = None

    def left(self) -> float | None:
        return None if self.deadline is None else self.deadline.left()


class Tier:
    """An open tier: its parts, ready to use.

    `close` releases the parts that were not given, in the order index, files, catalogue, provider,
    runtime. A part that fails, or does not end in time, does not prevent the release of the others.
    Idempotent.
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        runtime: Runtime,
        provider: SegmentProvider,
        metadata: MetadataStore,
        copy: CatalogueCopy | None,
        index: Index,
        publishing: PublishChore,
        metrics: Metrics,
        read_only: bool,
        is_elsewhere: bool,
        ending: _Ending,
    ) -> None:
        self.process = OneProcess(f"the tier of {config.broker_name}")  # only this one may use it
        self._broker = config.broker_name
        self.runtime = runtime
        self.provider = provider
        self.metadata = metadata
        self.copy = copy
        self.index = index
        self.metrics = metrics
        self.publishing = publishing
        self.files = FlatFileStore(
            config,
            provider=provider,
            metadata=metadata,
            runtime=runtime,
            read_only=read_only,
            publish=publishing.announces,
        )
        self.fetcher = Fetcher(
            self.files,
            index,
            config,
            runtime,
            metrics,
            0 if is_elsewhere else SCAN_BYTES_MAX,
        )
        self._owned = ExitStack()
        self._ending = ending

    def own(self, opened: ExitStack) -> None:
        """Take over what was opened for these parts; it is released after them."""
        opened.callback(self._publish_last)
        opened.callback(self.files.close)
        opened.callback(self.fetcher.close)
        opened.callback(self._end_index)
        self._owned = opened.pop_all()

    def load(self) -> None:
        """Open every queue of the catalogue, and the index."""
        self.files.load()
        self.index.load()
        self.fetcher.start()

    def publish(self) -> None:
        """Publish changes for readers elsewhere, then delete what had to wait for that."""
        self.publishing.step()
        self.files.delete_in_background()

    @property
    def catalogue_upkeep(self) -> CatalogueUpkeep:
        """The state of the files on this machine: the catalogue, or its copy."""
        return self.metadata.upkeep if self.copy is None else self.copy.upkeep

    @property
    def fence(self) -> Fence | None:
        """The writer that took over from this one, if known; makes no request to the backend."""
        return self.provider.fence(self._broker)

    def close(self, timeout: float | None = None) -> None:
        self._ending.deadline = Deadline(self.runtime.clock, timeout)
        self._owned.close()

    def _publish_last(self) -> None:
        """Publish the last changes if there is time; otherwise the next open tier does."""
        left = self._ending.left()
        if not self.publishing.has_changes or left == 0:
            return
        if not with_deadline(self.runtime, "tier-catalogue-end", self.publishing.step, left).done():
            log.warning("the catalogue was not published in time")

    def _end_index(self) -> None:
        _end_in_time(self.runtime, self._ending, "key index", self.index.shutdown)


def _end_in_time(runtime: Runtime, ending: _Ending, what: str, end: Callable[[], None]) -> None:
    """End a part, without waiting for ever: it may wait for a backend that never answers."""
    left = ending.left()
    if left is None:
        end()
        return
    ended = with_deadline(runtime, f"tier-end-{what}", end, max(left, END_SECONDS_MIN))
    if not ended.done():
        log.warning("the %s did not end in time", what)
        return
    ended.result()


def open_tier(
    config: StoreConfig,
    *,
    runtime: Runtime | None = None,
    provider: SegmentProvider | None = None,
    metadata: MetadataStore | None = None,
    index: Index | None = None,
    metrics: Metrics | None = None,
    is_brokers_host: bool | None = None,
    read_only: bool = False,
) -> Tier:
    """A tier of the given parts; the settings name the others.

    * A given part is used as it is and belongs to the caller: it is never closed here.
    * The catalogue is opened, but not the queues: call `load`. After an error nothing is open.
    * Unless it is read only, it takes the tier over before it reads any of it, also with a given
      provider: see `SegmentProvider.claim`. The setting `claim_epoch` False prevents that.
    * `is_brokers_host`: whether a read-only tier is opened on the broker's own disk. None: it is if
      the broker's own catalogue, or its copy, is there. Elsewhere the index only says how far it
      reaches.
    """
    if is_brokers_host is None and metadata is not None:
        is_brokers_host = False
    ending = _Ending()
    copy: CatalogueCopy | None = None
    with ExitStack() as opened:
        if runtime is None:
            runtime = Runtime.threads()
            opened.callback(_end_runtime, runtime, ending)
        is_made_here = provider is None
        if provider is None:
            provider = provider_of(config, runtime, metrics or NoMetrics())
            opened.callback(provider.close)
            if read_only:
                provider.only_read()
        if metadata is None and not read_only:
            refuse_second_tier(config, provider)
        if metadata is None and read_only:
            metadata = catalogue_to_read(config, runtime, provider)
            opened.callback(metadata.close)
        elif metadata is None:
            end = partial(_end_in_time, runtime, ending, "catalogue")
            written = written_catalogue(config, runtime, provider, end=end)
            metadata, copy = opened.enter_context(written)
            if is_made_here and provider.ends_with_process and not metadata.segments():
                metadata.put_note(*ENDS_WITH_PROCESS, True)
            refuse_lost_log(config, provider, metadata)
        elif not read_only:
            claim(config, provider)
        if is_brokers_host is None:
            is_brokers_host = is_on_brokers_host(config, metadata)
        is_elsewhere = read_only and not is_brokers_host
        publishing = PublishChore(None if read_only else publisher_of(config, provider, metadata))
        if index is None:
            folder = local_index_of(config) if read_only and not is_elsewhere else None
            index = index_of(
                *(config, runtime, provider, metadata),
                read_only=read_only,
                local_folder=folder,
                publish=publishing.announces,
            )
        tier = Tier(
            config,
            runtime=runtime,
            provider=provider,
            metadata=metadata,
            copy=copy,
            index=index,
            publishing=publishing,
            metrics=metrics or NoMetrics(),
            read_only=read_only,
            is_elsewhere=is_elsewhere,
            ending=ending,
        )
        tier.own(opened)
        return tier


def refuse_second_tier(config: StoreConfig, provider: SegmentProvider) -> None:
    """Raises NoCatalogueError if this machine has no catalogue, but the broker already has a tier.

    An empty catalogue would begin a second tier in place of the first, and assign the same offsets
    again. Makes at most two requests, and only if there is no file yet.
    """
    if config.metadata != _OWN or keeps_catalogue(config, provider) or has_file(config):
        return
    if has_tier(config, provider):
        raise _second_tier(config, "there is no such file")


def _second_tier(config: StoreConfig, why: str) -> NoCatalogueError:
    return NoCatalogueError(
        config.catalogue_path,
        f"{why}, but broker {config.broker_name} has a tier already:"
        " `tieredstore recover --apply` makes this machine ready for it",
        names_file=True,
    )


def _forget_ended_tier(
    config: StoreConfig, provider: SegmentProvider, metadata: MetadataStore
) -> None:
    """Empty a catalogue in a file whose tier ended with a process, as one in memory does. The next
    tier gets what the local store still has.

    Raises NoCatalogueError where the tier of the settings exists already: this catalogue knows
    nothing of it.
    """
    if metadata.note(*ENDS_WITH_PROCESS) is None:
        return
    if not provider.ends_with_process and has_tier(config, provider):
        why = "it is of a tier in memory (move it away, with all files of its name)"
        raise _second_tier(config, why)
    # Not every catalogue counts its notes among its contents.
    gone = DeleteNote(*ENDS_WITH_PROCESS)
    metadata.apply([*map(_undone, metadata.contents()), gone])


def _undone(change: Change) -> Change:
    match change:
        case Put(TopicRecord() as row):
            return DeleteTopic(row.topic)
        case Put(QueueRecord() as row):
            return DeleteQueue(*row.key)
        case Put(SegmentRecord() as row):
            return DeleteSegment(*row.key)
        case PutNote(kind, key):
            return DeleteNote(kind, key)
    return change


def refuse_lost_log(
    config: StoreConfig, provider: SegmentProvider, metadata: MetadataStore
) -> None:
    """Raises MetadataError if the catalogue in a bucket is empty because its log is lost.

    A new log would assign the same offsets again, and what is left of the lost one would count as
    leftovers. Makes requests only if the catalogue is empty.
    """
    if not keeps_catalogue(config, provider) or metadata.segments():
        return
    for found in provider.damage(config.broker_name):
        if found.kind == LOST_LOG:  # with other damage, the log can still be written
            text = (
                f"{found.detail}; `tieredstore rebuild` saves what is left of the log; if it saves"
                " nothing, move these objects away"
            )
            raise MetadataError(found.where, text)


def has_tier(config: StoreConfig, provider: SegmentProvider) -> bool:
    """Whether this broker has segments in the backend, or has published its catalogue.

    After all messages have expired, only the published catalogue says which offsets were assigned.
    """
    if next(iter(provider.list(config.broker_name)), None) is not None:
        return True
    generations = provider.generations(config.broker_name)
    return generations is not None and bool(generations.listed())


def _end_runtime(runtime: Runtime, ending: _Ending) -> None:
    if not runtime.close(ending.left()):
        log.warning("calls of the backend are still under way: they are abandoned")


def provider_of(config: StoreConfig, runtime: Runtime, metrics: Metrics) -> SegmentProvider:
    """The provider of the settings; its requests are measured, and retried if needed."""
    found: type[SegmentProvider] = resolve(PROVIDERS, config.provider, SegmentProvider)
    made: SegmentProvider = MeasuredProvider(found.from_config(config, runtime), metrics, runtime)
    if not made.retries_itself:
        made = RetryingProvider(made, RetryPolicy(), runtime)
    made.report_to(metrics)
    return made


def round_sizes_of(config: StoreConfig) -> RoundSizes:
    """How the provider of the settings packs shared rounds; if it does not, how S3 would."""
    for name in (config.provider, "s3"):
        kind: type[SegmentProvider] = resolve(PROVIDERS, name, SegmentProvider)
        if kind.round_sizes is not None:
            return kind.round_sizes
    raise InvalidConfigError(f"provider {config.provider!r} does not say what its rounds cost")


def claim(config: StoreConfig, provider: SegmentProvider) -> None:
    """Become the writer of this tier, unless `claim_epoch` is off."""
    if config.claim_epoch:
        provider.claim(config.broker_name)


@contextmanager
def written_catalogue(
    config: StoreConfig,
    runtime: Runtime,
    provider: SegmentProvider,
    *,
    end: Callable[[Callable[[], None]], None] = lambda close: close(),
    forgets: bool = True,
) -> Iterator[tuple[MetadataStore, CatalogueCopy | None]]:
    """Claims the tier and opens its catalogue for writing; also its copy on this machine, if the
    provider keeps the catalogue itself.

    `end` is given the call that closes the catalogue: one in a bucket then appends what is still
    staged. A tier in memory that has ended is forgotten, unless `forgets` is False: then the caller
    deletes the note of it together with its first changes.

    CatalogueLockedError is raised before the claim: a process that holds the lock of the file keeps
    its tier.
    """
    with ExitStack() as opened:
        copy = _locked_copy(config) if config.metadata == _OWN else None
        if copy is not None:
            opened.callback(copy.close)
        claim(config, provider)
        metadata = own_catalogue(config, provider, read_only=False)
        if metadata is None:  # the file is the catalogue, and takes the lock itself
            opened.close()
            copy = None
            metadata = catalogue_of(config, runtime, read_only=False)
        opened.callback(end, metadata.close)
        if copy is not None:
            copy.follow(metadata)
            opened.callback(copy.step)
        elif forgets:
            _forget_ended_tier(config, provider, metadata)
        yield metadata, copy


def _locked_copy(config: StoreConfig) -> CatalogueCopy:
    kind: Any = resolve(CATALOGUE_FILES, _OWN, CatalogueCopy)
    copy: CatalogueCopy = kind.locked(config.catalogue_path)
    return copy


@contextmanager
def catalogue_lock(config: StoreConfig) -> Iterator[None]:
    """Holds the lock of the catalogue's file, which excludes other writers on this machine."""
    with closing(_locked_copy(config)):
        yield


def own_catalogue(
    config: StoreConfig, provider: SegmentProvider, *, read_only: bool
) -> MetadataStore | None:
    """The catalogue that the provider keeps with the bytes; None if it keeps none, or if the
    settings name another kind.
    """
    if config.metadata != _OWN:
        return None
    return provider.catalogue(config.broker_name, read_only=read_only)


def keeps_catalogue(config: StoreConfig, provider: SegmentProvider) -> bool:
    """Whether the provider keeps, or will keep, this tier's catalogue; asks no backend.

    Queues share a round only if the round also has their rows.
    """
    return config.metadata == _OWN and provider.shares_rounds


def is_on_brokers_host(config: StoreConfig, metadata: MetadataStore) -> bool:
    """Whether this disk has the broker's own catalogue, or the broker's copy of it."""
    facts = metadata.facts
    return not facts.copy or (facts.source in (LOG, "file") and has_file(config))


def catalogue_of(config: StoreConfig, runtime: Runtime, *, read_only: bool) -> MetadataStore:
    """Opens the catalogue of the settings; its class has `open(path, *, read_only, clock_ms)`."""
    found: Any = resolve(METADATA_STORES, config.metadata, MetadataStore)
    opening = getattr(found, "open", None)
    if opening is None:
        raise InvalidConfigError(f"{config.metadata} cannot be opened: it has no method `open`")
    catalogue: MetadataStore = opening(
        config.catalogue_path, read_only=read_only, clock_ms=runtime.clock.now_ms
    )
    return catalogue


def catalogue_to_read(
    config: StoreConfig, runtime: Runtime, provider: SegmentProvider
) -> MetadataStore:
    """The catalogue that a reader starts from. The setting `catalogue` chooses: the provider's own
    or the file, the published one, or one rebuilt from the bytes. Raises NoCatalogueError if there
    is none.
    """
    choice = config.catalogue
    if choice == "rebuild":
        return _rebuilt_catalogue(config, runtime, provider)
    if choice != "file":
        own = own_catalogue(config, provider, read_only=True)
        if own is not None:
            log.info("reading from the catalogue %s", own.facts.describe())
            return own
        if keeps_catalogue(config, provider):
            # A file on this disk would be a copy of a lost catalogue, or of another tier's.
            there = lies_there(config, provider)
            is_known = not there and provider.places()  # a claim stays when the rest is deleted
            reason = LOG_LOST if is_known else "no log was written there"
            raise NoCatalogueError(config.broker_name, reason, is_log_missing=True, there=there)
    names_file = choice != "published"
    if names_file:
        is_copy = keeps_catalogue(config, provider)
        file = file_catalogue(config, runtime, is_copy=is_copy)
        if file is not None:
            return file
        if choice == "file":
            raise NoCatalogueError(config.catalogue_path, "there is no such file", names_file=True)
    found = published_catalogue(config, provider)
    if found is None:
        raise NoCatalogueError(
            config.catalogue_path if names_file else config.broker_name,
            "there is no such file" if names_file else "no catalogue",
            names_file=names_file,
            is_published_missing=True,
            there=lies_there(config, provider),
        )
    log.info("reading from the catalogue %s", found.facts.describe())
    return found


def published_catalogue(config: StoreConfig, provider: SegmentProvider) -> MetadataStore | None:
    """The catalogue that the broker last published beside its tier; None if it published none."""
    generations = provider.generations(config.broker_name)
    if generations is None:
        return None
    kind: Any = resolve(CATALOGUE_COPIES, "published", MetadataStore)
    found: MetadataStore | None = kind.open(generations)
    return found


def file_catalogue(
    config: StoreConfig, runtime: Runtime, *, is_copy: bool = False
) -> MetadataStore | None:
    """The catalogue's file, or the copy of the log's catalogue, opened to read; None if there is
    none."""
    if not has_file(config):
        return None
    found = _copy_here(config) if is_copy else catalogue_of(config, runtime, read_only=True)
    if has_file(config):
        return found
    found.close()  # it went meanwhile: what was read may be nothing, and means nothing
    return None


def _copy_here(config: StoreConfig) -> MetadataStore:
    """The copy that a writer on this machine last made of the log's catalogue."""
    kind: Any = resolve(CATALOGUE_COPIES, "file", MetadataStore)
    found: MetadataStore = kind.open(config.catalogue_path)
    return found


def _rebuilt_catalogue(
    config: StoreConfig, runtime: Runtime, provider: SegmentProvider
) -> MetadataStore:
    kind: Any = resolve(CATALOGUE_COPIES, "rebuild", MetadataStore)
    place = f"the bytes of {config.broker_name}"
    unread: list[object] | None = None
    for _ in range(_REBUILDS_MAX):
        made: MetadataStore = kind(place=place, clock_ms=runtime.clock.now_ms)
        listed = _keys_of(provider.list(config.broker_name))
        report = rebuild(made, provider, config, runtime)
        before, rows = unread, made.segments()
        unread = [*report.problems, *(row.key for row in rows if not row.size)]
        if unread == before or (rows and not unread):
            break
        if listed <= _keys_of(provider.list(config.broker_name)):
            break  # what could not be read has not gone meanwhile
    else:
        raise MetadataError(place, f"segments went while they were read, {_REBUILDS_MAX} times")
    if not report.segment_count:
        there = lies_there(config, provider)
        raise NoCatalogueError(place, "there is not one segment", there=there)
    return made


def _keys_of(listed: Iterable[ListedSegment]) -> set[tuple[str, SegmentType, int]]:
    return {(found.path, found.type, found.base) for found in listed}


def publisher_of(
    config: StoreConfig, provider: SegmentProvider, metadata: MetadataStore
) -> Publisher | None:
    """The publisher of this catalogue, which is open for writing; None if the provider or the
    settings do not publish.
    """
    generations = provider.generations(config.broker_name)
    if generations is None or not config.publish_interval_ms:
        return None
    return metadata.publisher(generations, cluster=config.cluster_name, broker=config.broker_name)


def index_of(
    config: StoreConfig,
    runtime: Runtime,
    provider: SegmentProvider,
    metadata: MetadataStore,
    *,
    read_only: bool,
    local_folder: Path | None = None,
    publish: Publish | None = None,
) -> Index:
    """The key index of the settings, not opened. `local_folder` is for readers only, `publish` for
    the writer only.
    """
    if not config.index_enabled:
        return NoIndex()
    if not read_only:
        return IndexStore(
            config, provider=provider, metadata=metadata, runtime=runtime, publish=publish
        )
    return UploadedIndex(
        config, provider=provider, metadata=metadata, runtime=runtime, local_folder=local_folder
    )


def local_index_of(config: StoreConfig) -> Path:
    """The folder of the index files that the broker of this catalogue has not uploaded."""
    if config.metadata_path:
        beside = Path(config.metadata_path).absolute().parent.parent / FOLDER
        if beside.is_dir():
            return beside
    return Path(config.store_path) / FOLDER


def check_broker(config: StoreConfig, metadata: MetadataStore) -> None:
    """Raises AnotherTierError if the catalogue has brokers, but not the one of the settings."""
    if any(row.broker_name == config.broker_name for row in metadata.queues()):
        return
    brokers = brokers_of(metadata)
    if brokers and config.broker_name not in brokers:
        raise AnotherTierError(
            f"broker_name: the catalogue {metadata.facts.place} has no broker"
            f" {config.broker_name!r}; it has {_named(brokers)}"
        )


def check_queues(
    config: StoreConfig,
    metadata: MetadataStore,
    *,
    wanted: Callable[[str], bool] = lambda _topic: True,
) -> None:
    """Raises MetadataError if the catalogue names segments of a `wanted` topic but not their queue.

    A job that goes from queue to queue would silently leave these messages out.
    """
    below = f"{config.broker_name}/"
    paths = {row.path for row in metadata.segments() if row.path.startswith(below)}
    named = {queue_path(config.broker_name, *row.key) for row in metadata.queues()}
    for path in sorted(paths - named - {index_queue_path(config.broker_name)}):
        if wanted(path.split("/")[1]):
            raise MetadataError(
                metadata.facts.place,
                f"it names segments of {path}, and not the queue: a rebuild adds it",
            )


def brokers_of(metadata: MetadataStore) -> list[str]:
    """The brokers that have segments or queues in this catalogue."""
    brokers = {row.path.partition("/")[0] for row in metadata.segments()}
    return sorted(brokers | {row.broker_name for row in metadata.queues()})


def check_place(config: StoreConfig, metadata: MetadataStore, provider: SegmentProvider) -> None:
    """Raises AnotherTierError if the settings point to no tier; for a reader that found no bytes.

    A broker with an existing but empty folder has lost its bytes: the settings are right. Raises
    what the backend raises.
    """
    if metadata.facts.copy:
        return  # the copy was found beside the tier, so this is the place
    if next(iter(provider.list(config.broker_name)), None) is not None:
        return
    there = lies_there(config, provider)
    if there:
        raise AnotherTierError(
            f"{metadata.facts.place} names segments of broker {config.broker_name}, and none of"
            f" them is there: {there}"
        )


def lies_there(config: StoreConfig, provider: SegmentProvider) -> str:
    """Which tiers exist there instead of the one of the settings; empty if unknown."""
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
    """The first few names, on one line."""
    shown = [name if name.isprintable() else repr(name) for name in names[:_NAMED_MAX]]
    return (", ".join(shown) or "none") + (", …" if len(names) > _NAMED_MAX else "")


def has_file(config: StoreConfig) -> bool:
    """Whether the catalogue's file exists; True for other kinds, since only their class knows."""
    path = config.catalogue_path
    return config.metadata != "json" or any(Path(path + end).exists() for end in _FILES)


def load_plugins(
    base_store: MessageStore,
    config: StoreConfig,
    *,
    runtime: Runtime | None = None,
    metrics: Metrics | None = None,
) -> MessageStore:
    """The broker's own store, wrapped in the message stores of `plugins`, the first one outermost.

    Each plugin is a class, given as a name or a dotted path. It is called with the store that it
    wraps and the settings; also with `runtime` and `metrics`, if they are given and its constructor
    names them. Raises InvalidConfigError if one cannot be imported or built. Opens nothing.
    """
    store = base_store
    classes = [(name, _message_store(name)) for name in config.plugins]
    shared = {"runtime": runtime, "metrics": metrics}
    for name, found in reversed(classes):
        try:
            named = inspect.signature(found).parameters
            given = {each: one for each, one in shared.items() if one is not None and each in named}
            store = found(store, config, **given)
        except TieredStoreError:
            raise
        except Exception as error:
            raise InvalidConfigError(
                f"plugins: {name} cannot be built from a store and settings: {error}"
            ) from error
    return store


def _message_store(name: str) -> Any:
    if name.startswith(_JAVA_PACKAGE):
        ours = JAVA_CLASSES.get(name.rpartition(".")[2])
        if ours is None:
            raise InvalidConfigError(f"plugins: this project has nothing for the Java class {name}")
        name = ours
    try:
        return resolve(MESSAGE_STORES, name, MessageStore)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"plugins: {error}") from error
