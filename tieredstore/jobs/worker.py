"""The parts that a worker opens to read or write a tier, once per process and settings."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from tieredstore.access.audit import TierFacts, orphan_findings
from tieredstore.access.upkeep import TendChore
from tieredstore.access.wiring import (
    check_queues,
    file_catalogue,
    keeps_catalogue,
    provider_of,
    published_catalogue,
    publisher_of,
    written_catalogue,
)
from tieredstore.codec.names import index_queue_path
from tieredstore.driver.metadata import MetadataStore, Publisher, StaleCatalogueError
from tieredstore.driver.metrics import GaugeRead, Labels, Metric, Metrics, NoMetrics
from tieredstore.driver.provider import Scratch, SegmentProvider, refuse_existing
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer
from tieredstore.flat import append_file
from tieredstore.flat.append_file import FlatSegment
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.index.watermarks import Watermarks
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendError,
    BackendUnavailableError,
    InvalidConfigError,
    MetadataError,
    PositionMismatchError,
    SegmentCorruptError,
    TieredStoreError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import (
    QueueKey,
    QueueRecord,
    SegmentRecord,
    SegmentType,
    TopicRecord,
)

log = log_of(__name__)

PROVIDERS_MAX: Final = 8  # that one worker keeps open; the least recently used one is closed
FETCH_THREADS: Final = 4  # for reads in one worker; a machine has several workers
DISPATCH_THREADS: Final = 4
DELETED_AT_ONCE: Final = 1_000


class _Measured:
    """Passes measurements of this process on to the metrics that are current. Providers keep this
    object, because they stay open longer than any of these metrics."""

    def __init__(self) -> None:
        self.by: Metrics = NoMetrics()

    def add(self, metric: Metric, amount: int, labels: Labels) -> None:
        self.by.add(metric, amount, labels)

    def record(self, metric: Metric, value: float, labels: Labels) -> None:
        self.by.record(metric, value, labels)

    def observe(self, metric: Metric, read: GaugeRead) -> None:
        """Ignored: a gauge would keep alive what it reads."""

    def forget(self, label: str, values: Collection[str]) -> None:
        self.by.forget(label, values)


_MEASURED: Final = _Measured()


@contextmanager
def measured_by(metrics: Metrics) -> Iterator[None]:
    """Within the block, record in these metrics what this process's workers read and write."""
    before, _MEASURED.by = _MEASURED.by, metrics
    try:
        yield
    finally:
        _MEASURED.by = before


@dataclass(slots=True)
class _Parts:
    """What this process has made. Clients do not survive a fork, so a child makes its own."""

    runtime: Runtime | None = None
    providers: OrderedDict[tuple[StoreConfig, str], SegmentProvider] = field(
        default_factory=OrderedDict
    )
    # Two providers of one object store would be two writers, and fence each other off.
    guard: threading.RLock = field(default_factory=threading.RLock)

    def forget(self) -> None:
        """Drop everything without closing it: it belongs to the parent process."""
        self.guard = threading.RLock()
        self.runtime = None
        self.providers = OrderedDict()


_PARTS: Final = _Parts()
os.register_at_fork(after_in_child=_PARTS.forget)


def worker_runtime() -> Runtime:
    """The runtime of this process; its threads end with the process."""
    with _PARTS.guard:
        if _PARTS.runtime is None:
            _PARTS.runtime = Runtime.threads(
                dispatch_threads=DISPATCH_THREADS, fetch_threads=FETCH_THREADS
            )
        return _PARTS.runtime


def worker_provider(config: StoreConfig, *, run: str = "") -> SegmentProvider:
    """The provider of these settings in this process. It stays open for the next item.

    A job that writes names its run, and so gets a new provider: one that has written takes itself
    for the only writer, and would not see what others have written since.
    """
    place = config.with_full_paths(), run
    with _PARTS.guard:
        provider = _PARTS.providers.get(place)
        if provider is None:
            provider = provider_of(config, worker_runtime(), _MEASURED)
            _PARTS.providers[place] = provider
            if len(_PARTS.providers) > PROVIDERS_MAX:
                _PARTS.providers.popitem(last=False)[1].close()
        else:
            _PARTS.providers.move_to_end(place)
        return provider


def worker_scratch(config: StoreConfig) -> Scratch:
    """Where a worker stages data for this tier. InvalidConfigError if there is no such place."""
    return scratch_of(config, worker_provider(config))


def newest_catalogue(config: StoreConfig) -> MetadataStore | None:
    """The newest catalogue that can be read here: a bucket's log, the broker's file, or what is
    published. None if there is none, or if the catalogue is rebuilt from the bytes. The copy of a
    bucket's catalogue, which may be old, is read only if the settings say so. The caller closes
    it."""
    provider = worker_provider(config)
    found = provider.catalogue(config.broker_name, read_only=True)
    if found is not None or config.catalogue == "rebuild":
        return found
    is_copy = keeps_catalogue(config, provider)
    if is_copy and config.catalogue != "file":
        return None
    file = file_catalogue(config, worker_runtime(), is_copy=is_copy)
    return published_catalogue(config, provider) if file is None else file


def check_catalogue(config: StoreConfig, *, wanted: Callable[[str], bool]) -> None:
    """Raise MetadataError if the newest catalogue has segments of `wanted` topics without their
    queues, or names no segment at all of a broker that has some."""
    catalogue = newest_catalogue(config)
    if catalogue is not None:
        with closing(catalogue):
            check_queues(config, catalogue, wanted=wanted)
            _check_segments(config, catalogue)


def _check_segments(config: StoreConfig, catalogue: MetadataStore) -> None:
    below = f"{config.broker_name}/"
    is_older = catalogue.facts.copy  # the broker may have made its first segment since
    if is_older or any(row.path.startswith(below) for row in catalogue.segments()):
        return
    facts = TierFacts.gather(catalogue, worker_provider(config), config.broker_name)
    left = next((found for found in orphan_findings(facts) if not found.repairable), None)
    if left is not None:
        reason = f"it names no segment of the broker {config.broker_name!r}, and {left.where} is"
        raise MetadataError(catalogue.facts.place, f"{reason} there: a rebuild adds it")


def queue_file(
    config: StoreConfig,
    key: QueueKey,
    path: str,
    rows: Sequence[SegmentRecord],
    *,
    provider: SegmentProvider | None = None,
) -> FlatMessageFile:
    """A queue as these rows of the catalogue show it, for reading only. Makes no request unless
    this process remembers an older state of the tier.

    The rows are those of its commit log and its consume queue, in any order, with true sizes.
    """
    opened = worker_provider(config) if provider is None else provider
    opened.catch_up(rows)
    file = FlatMessageFile(
        QueueRecord(broker_name=path.partition("/")[0], topic=key.topic, queue_id=key.queue_id),
        TopicRecord(topic=key.topic, topic_id=-1),
        config,
        path=path,
        provider=opened,
        metadata=_NO_CATALOGUE,  # type: ignore[arg-type]
        clock=worker_runtime().clock,
    )
    for part in (file.log, file.queue):
        part.take_over(
            tuple(
                FlatSegment(opened.open(path, row.type, row.base_offset), row)
                for row in sorted(rows, key=lambda row: row.base_offset)
                if row.type is part.type
            )
        )
    file.problem = "a worker only reads"
    return file


class _NoCatalogue:
    """Takes the place of a queue's catalogue. A worker that uses it has a bug."""

    def __getattr__(self, name: str) -> NoReturn:
        raise MetadataError("", f"a worker has no catalogue to {name}")


_NO_CATALOGUE: Final = _NoCatalogue()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedTier:
    """The parts of a tier whose catalogue is locked: no other process writes it.

    No row names what a job puts into the backend until the job changes the catalogue. A note
    announces it first; after a crash in between, the next process that opens the tier deletes it.
    The lock stays in the process that holds it: pickling a job turns its tier into None.
    """

    config: StoreConfig
    runtime: Runtime
    provider: SegmentProvider
    metadata: MetadataStore
    scratch: Scratch
    publisher: Publisher | None

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_tier, ()

    @contextmanager
    def installing(self, paths: Sequence[str]) -> Iterator[None]:
        """Enter this to announce, make and install segments below these paths. If the block fails,
        what it made is deleted again. If it succeeds, segments no longer in use are deleted, once
        readers elsewhere have been told.

        If the catalogue fails, or Ctrl-C interrupts, it is unknown what the catalogue says. If
        publishing fails, readers elsewhere do not know of the change. In these cases everything
        stays until the tier is opened next.
        """
        try:
            yield
        except MetadataError:
            raise
        except Exception:
            self._withdraw(paths)
            raise
        try:
            for path in paths:
                self._tell(path)
        except TieredStoreError as error:
            log.warning("unused segments stay until the tier is opened next: %s", error)
        else:
            self._withdraw(paths)

    def _tell(self, path: str | None) -> None:
        """Tell readers elsewhere, by publishing, what is about to be deleted at `path` or anywhere.
        Marked segments that the catalogue names are not deleted: they only lose the mark. No reader
        knows those that were only announced."""
        marked = append_file.PendingDeletions(self.provider, self.metadata).marked()
        going = (key for key in marked if path in (None, key[0]))
        if self.publisher is not None and any(map(self._was_named, going)):
            try:
                self.publisher.publish()
            except BackendError as error:
                if not self.publisher.is_unheard:
                    raise
                log.warning("nobody elsewhere reads this tier's catalogue: %s", error)

    def _was_named(self, segment: append_file.SegmentKey) -> bool:
        """Whether the catalogue has forgotten this segment, which it named before."""
        mark = self.metadata.note(append_file.DELETION_NOTE, append_file.deletion_key(*segment))
        return mark is not None and self.metadata.segment(*segment) is None

    def _publish_for(self, rows: Sequence[SegmentRecord]) -> None:
        """Publish, unless that fails and what is published does not mark these names. It may still
        mark older segments: whoever restored a lost catalogue from it would delete the new ones."""
        if self.publisher is None:
            return
        try:
            self.publisher.publish()
        except StaleCatalogueError:
            raise
        except TieredStoreError as error:
            published = published_catalogue(self.config, self.provider)
            if published is not None:
                with closing(published):
                    if any(append_file.is_marked(published, row.key) for row in rows):
                        raise
            log.warning("the catalogue could not be published: %s", error)

    def announce(self, rows: Sequence[SegmentRecord]) -> None:
        """Note that segments of these names are about to be made. Unless installed, they are
        deleted.

        MetadataError if one exists already: an old catalogue may not name it, and it may be data.
        BackendUnavailableError if an older one of that name is still to be deleted.
        """
        self._publish_for(rows)
        for row in rows:
            if append_file.is_marked(self.metadata, row.key):
                raise BackendUnavailableError(
                    row.path, "create", "a deleted segment is still there"
                )
            with self.provider.open(*row.key) as segment:
                try:
                    refuse_existing(segment)
                except PositionMismatchError as error:
                    raise MetadataError(
                        self.metadata.facts.place,
                        f"it does not name {segment.path}, which is there: rebuild it first",
                    ) from error
        self.metadata.apply(append_file.announce(rows))

    def _withdraw(self, paths: Sequence[str]) -> None:
        try:
            self.metadata.apply([])  # a bucket's catalogue finds out what became of its changes
        except TieredStoreError as error:
            log.warning("what was made stays until the tier is opened next: %s", error)
            return
        for path in paths:
            append_file.delete_pending(self.provider, self.metadata, path)

    def create(self, row: SegmentRecord, blocks: Iterable[Buffer]) -> int:
        """Make a segment of these bytes. If the row has a size, there must be as many."""
        with self.provider.open(row.path, row.type, row.base_offset) as segment:
            size = self.provider.create(segment, blocks)
            if row.size and size != row.size:
                reason = f"{size} bytes were made instead of {row.size}"
                raise SegmentCorruptError(segment.path, reason, position=0)
        return size

    def delete_pending(self, path: str | None = None) -> None:
        """Delete what an earlier writer left to be deleted at `path`, or anywhere, after telling
        readers elsewhere. If that fails, what they may know stays; `announce` refuses its names.
        BackendUnavailableError if something else remains: its name is needed."""
        pending = append_file.PendingDeletions(self.provider, self.metadata)
        going = {key for key in pending.marked() if path in (None, key[0])}
        try:
            self._tell(path)
        except StaleCatalogueError:
            raise
        except TieredStoreError as error:
            log.warning("deleted segments that readers elsewhere may know stay: %s", error)
            going = {key for key in going if not self._was_named(key)}
        pending.delete(only=going)
        if going & pending.marked():
            place = path or self.config.broker_name
            raise BackendUnavailableError(place, "create", "a deleted segment is still there")

    def drop_unfinished_index(self) -> None:
        """Delete a broker's uploads that were cut short: their names are needed, and the local
        files that they were made from are still on the broker's disk."""
        rows = [row for row in self.index_rows if not row.size]
        if rows:
            self.metadata.apply(append_file.mark_for_deletion(rows))
            self.delete_pending(self.index_path)

    @property
    def index_path(self) -> str:
        return index_queue_path(self.config.broker_name)

    @property
    def index_rows(self) -> Sequence[SegmentRecord]:
        """The index files that the catalogue has now."""
        return self.metadata.segments(self.index_path, SegmentType.INDEX)

    @property
    def watermarks(self) -> Watermarks:
        return Watermarks(self.metadata, self.config.broker_name)

    def check_index_sizes(self) -> bool:
        """Whether the tier has an index of ours. InvalidConfigError if that has other sizes."""
        return self.watermarks.check_sizes(
            slot_count=self.config.index_slot_count, item_capacity=self.config.index_item_count
        )

    def settle(self, folder: str) -> None:
        """Publish the catalogue for readers that have only the tier, and remove what was staged. A
        failure here is only logged: everything is in the tier, and the next writer makes up for
        it."""
        try:
            if self.publisher is not None:
                self.publisher.publish()
            self.remove_staged(folder)
        except TieredStoreError as error:
            log.warning("everything is installed, but the cleanup is not complete: %s", error)

    def remove_staged(self, folder: str) -> None:
        segments = self.provider.staged_segments(self.config.broker_name)
        for scratch in (self.scratch, segments):
            names = [] if scratch is None else [each.name for each in scratch.listed(folder)]
            for start in range(0, len(names), DELETED_AT_ONCE):
                assert scratch is not None
                scratch.delete(names[start : start + DELETED_AT_ONCE])


def _no_tier() -> None:
    return None


@contextmanager
def owned_tier(config: StoreConfig, *, threads: int) -> Iterator[OwnedTier]:
    """Lock and open a tier. In a bucket, this fences off a writer elsewhere.

    Raises CatalogueLockedError if a writer is alive on this machine, and StaleCatalogueError if
    what is published is not from this catalogue.
    """
    with ExitStack() as opened:
        runtime = Runtime.threads(dispatch_threads=threads, fetch_threads=threads)
        opened.callback(runtime.close)
        made = provider_of(config, runtime, _MEASURED)
        opened.callback(made.close)
        metadata, _ = opened.enter_context(written_catalogue(config, runtime, made))
        publisher = publisher_of(config, made, metadata)
        if publisher is not None:
            publisher.check()
        yield OwnedTier(
            config=config,
            runtime=runtime,
            provider=made,
            metadata=metadata,
            scratch=scratch_of(config, made),
            publisher=publisher,
        )
        # No broker may ever run here. It may take minutes, in which others may take over.
        TendChore(made, config.broker_name).step()


@contextmanager
def owned_already(
    tier: OwnedTier | None, config: StoreConfig, *, threads: int
) -> Iterator[OwnedTier]:
    """The tier that the whole run holds or, without one, a tier opened for this block."""
    if tier is not None:
        yield tier
        return
    with owned_tier(config, threads=threads) as opened:
        yield opened


def scratch_of(config: StoreConfig, provider: SegmentProvider) -> Scratch:
    """The scratch of this provider; InvalidConfigError if it has none."""
    return given_scratch(config, provider.scratch(config.broker_name))


def given_scratch(config: StoreConfig, found: Scratch | None) -> Scratch:
    if found is None:
        raise InvalidConfigError(
            f"provider: {config.provider} has no place to stage what is on its way into the tier"
        )
    return found
