"""A tier in an object store: S3 and its kin, and anything else with an `ObjectClient`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, Self

from tieredstore.codec.names import cluster_directory
from tieredstore.driver.metrics import Metrics
from tieredstore.driver.object_client import AbandonedUpload, ListedKey, ObjectClient
from tieredstore.driver.object_requests import CountedClient, PriceTable
from tieredstore.driver.provider import (
    CATALOGUES,
    STAGED,
    Leftover,
    ListedSegment,
    SegmentProvider,
    WritePair,
    refuse_existing,
    remove_staged,
    staged_leftovers,
)
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer, CountedBlocks, FileSegment, check_queue_path
from tieredstore.model.errors import BackendRefusedError, InvalidConfigError
from tieredstore.model.printable import log_of
from tieredstore.model.values import SegmentType
from tieredstore.providers.broker_objects import BrokerParts, sealed_of, segments_of
from tieredstore.providers.certified import Certification
from tieredstore.providers.fsspec import FsspecClient
from tieredstore.providers.object_calls import ObjectCalls
from tieredstore.providers.object_layout import ObjectLayout, part_of, parts_below
from tieredstore.providers.object_segment import ObjectFileSegment, ObjectRound, bare
from tieredstore.providers.object_shelf import ObjectFolder, ObjectGenerations, ObjectScratch
from tieredstore.providers.obstore import obstore_can, obstore_installed
from tieredstore.providers.s3_settings import ObjectStoreSettings
from tieredstore.providers.sealing import create, end_deletion
from tieredstore.providers.writer_epoch import Boundary, newest_boundary

if TYPE_CHECKING:
    from tieredstore.model.config import StoreConfig

log = log_of(__name__)

UPLOAD: Final = "abandoned-upload"
PART: Final = "stray-part"


def leftovers(requests: ObjectCalls, layout: ObjectLayout, prefix: str) -> list[Leftover]:
    """Parts only of epochs that are over: no later boundary lets them count again."""
    below = layout.below(prefix)
    found = [
        Leftover(kind=UPLOAD, name=upload.key, id=upload.upload_id)
        for upload in requests.client.abandoned_uploads(below)
    ]
    # The listing before the boundary: what a newer one fences is then fenced here too.
    listed = requests.listed(parts_below(below))
    sizes = {each.key: each.size for each in listed}
    by_broker: dict[str, list[int]] = {}
    for number, each in enumerate(listed):
        name = part_of(each.key)
        segment = None if name is None else layout.segment_of(name.segment_key)
        if segment is not None:
            by_broker.setdefault(segment.broker, []).append(number)
    for broker, numbers in by_broker.items():
        boundary = newest_boundary(requests, layout, broker)
        for parts in segments_of((listed[n] for n in numbers), boundary).segments.values():
            for key in parts.strays:
                name = part_of(key)
                if name is not None and name.epoch < boundary.epoch:
                    found.append(Leftover(kind=PART, name=key, size=sizes[key]))
    return found


def remove(requests: ObjectCalls, leftovers: Sequence[Leftover]) -> None:
    for each in leftovers:
        if each.kind == UPLOAD:
            requests.client.abort_upload(AbandonedUpload(each.name, each.id))
    parts = [each.name for each in leftovers if each.kind == PART]
    if parts:
        requests.delete(parts)


PARTS_MAX: Final = 1_000
LISTING_MS: Final = 1_000  # a reader's listing that is older is made anew


class ObjectProvider(SegmentProvider):
    """Segments of one cluster in one object store.

    * Requests are tried again here, one by one: a wrapper that retries is not needed around it.
    * Nothing is shared with a process that was forked off: that one lists, and claims, for itself.
    * A writer that another one has taken over from raises WriterStalledError from then on.
    * `certification` asks the store for proof before the first write; without it none is asked.
    * `counted` knows how many requests were made, and about what they cost.
    """

    retries_itself = True

    def __init__(
        self,
        client: ObjectClient,
        cluster: str,
        runtime: Runtime,
        *,
        retry: RetryPolicy | None = None,
        prices: PriceTable | None = None,
        certification: Certification | None = None,
        parts_max: int = PARTS_MAX,
        listing_ms: int = LISTING_MS,
        joins_epoch: bool = False,
    ) -> None:
        super().__init__(runtime)
        self.counted = CountedClient(client, prices=prices)
        self._certification = certification or Certification("off")
        self._layout = ObjectLayout(cluster)
        self._requests = ObjectCalls(self.counted, runtime, retry or RetryPolicy())
        self._parts_max = parts_max
        self._listing_ms = listing_ms
        self._joins_epoch = joins_epoch
        self._brokers: dict[tuple[int, str], BrokerParts] = {}

    def open(self, path: str, type: SegmentType, base: int) -> ObjectFileSegment:
        check_queue_path(path, base)
        return ObjectFileSegment(
            self._broker_of(path),
            self._layout.segment_key(path, type, base),
            path,
            type,
            base,
            parts_max=self._parts_max,
        )

    def list(self, prefix: str = "") -> Iterator[ListedSegment]:
        wanted = [part for part in prefix.split("/") if part]
        try:
            check_queue_path("/".join([*wanted, *["0"] * (3 - len(wanted))]), base=0)
        except BackendRefusedError:
            return  # no segment has such a path
        below = self._layout.below(prefix)
        # The parts before the sealed objects: what is sealed in between is seen twice, not never.
        parts = self._requests.listed(parts_below(below))
        sealed = self._requests.listed(below)
        boundaries: dict[str, Boundary] = {}
        found: dict[str, int] = {}
        gone: dict[str, int] = {}
        for broker, listed in self._by_broker(parts):
            boundary = boundaries.setdefault(broker, self._boundary(broker))
            for key, segment in segments_of(listed, boundary).segments.items():
                found[key], gone[key] = segment.end, segment.gone
        for each in sealed:
            name = self._layout.segment_of(each.key)
            if name is None:
                continue
            if name.broker not in boundaries:
                boundaries[name.broker] = self._boundary(name.broker)
            if self._counts(each, boundaries[name.broker], gone.get(each.key, 0)):
                found[each.key] = each.size
        for key, size in found.items():
            name = self._layout.segment_of(key)
            if name is not None and size:
                yield ListedSegment(name.path, name.type, name.base, size)

    def write_many(self, pairs: Sequence[WritePair]) -> Sequence[Future[None]]:
        """One put a write, and a few looks for all of them."""
        return ObjectRound(self._runtime.dispatch, pairs).send()

    def create(self, segment: FileSegment, blocks: Iterable[Buffer]) -> int:
        """Straight to its sealed key, by multipart where it is long."""
        inner = bare(segment)
        broker = self._broker_of(inner.queue_path)()
        broker.claimed()  # before anything is looked at: what an older writer doomed is gone by now
        refuse_existing(inner)
        parts = broker.segment(inner.path)
        with parts.guard:
            end_deletion(broker, parts)
            counted = CountedBlocks(blocks)
            create(broker, parts, counted)
        return counted.bytes

    def refresh(self) -> None:
        for (process, _), broker in [*self._brokers.items()]:
            if process == os.getpid():
                broker.refresh()

    def report_to(self, metrics: Metrics) -> None:
        self.counted.report_to(metrics)
        self._requests.client.report_to(metrics)

    def leftovers(self, prefix: str = "") -> Sequence[Leftover]:
        found = leftovers(self._requests, self._layout, prefix)
        return [*found, *staged_leftovers(prefix, self.scratch)]

    def remove_leftovers(self, leftovers: Sequence[Leftover]) -> None:
        remove(self._requests, leftovers)
        remove_staged(leftovers, self.scratch)

    def generations(self, broker: str) -> ObjectGenerations:
        return ObjectGenerations(
            self._folder(CATALOGUES, broker, lambda: self._check_publisher(broker))
        )

    def places(self) -> Sequence[tuple[str, str]] | None:
        """Those that published a catalogue: a listing of the segments could take very long."""
        found = set()
        for listed in self._requests.listed(f"{CATALOGUES}/"):
            directory, _, rest = listed.key.removeprefix(f"{CATALOGUES}/").partition("/")
            cluster, broker = directory.partition("_")[2], rest.partition("/")[0]
            if cluster and broker and directory == cluster_directory(cluster):
                found.add((cluster, broker))
        return sorted(found) or None

    def scratch(self, broker: str) -> ObjectScratch:
        return ObjectScratch(self._folder(STAGED, broker, self._check_store))

    def close(self) -> None:
        self.counted.close()

    def _folder(self, kind: str, broker: str, before_put: Callable[[], None]) -> ObjectFolder:
        prefix = f"{kind}/{self._layout.directory}/{broker}/"
        return ObjectFolder(self._requests, prefix, before_put=before_put)

    def _broker_of(self, path: str) -> Callable[[], BrokerParts]:
        """The table of the broker, of whichever process asks."""
        broker = path.split("/", 1)[0]

        def table() -> BrokerParts:
            place = os.getpid(), broker
            return self._brokers.get(place) or self._brokers.setdefault(
                place,
                BrokerParts(
                    self._requests,
                    self._layout,
                    broker,
                    self._runtime.clock,
                    listing_ms=self._listing_ms,
                    before_claim=self._check_store,
                    joins=self._joins_epoch,
                ),
            )

        return table

    def _check_store(self) -> None:
        self._certification.check(self._requests.client)

    def _check_publisher(self, broker: str) -> None:
        """Raises where another writer has taken over: what this one knows is history."""
        self._check_store()
        table = self._brokers.get((os.getpid(), broker))
        if table is not None and table.is_writer:
            table.looks.now()

    def _by_broker(self, listed: Iterable[ListedKey]) -> Iterator[tuple[str, Sequence[ListedKey]]]:
        grouped: dict[str, list[ListedKey]] = {}
        start = len(parts_below(self._layout.below("")))
        for each in listed:
            grouped.setdefault(each.key[start:].split("/", 1)[0], []).append(each)
        yield from grouped.items()

    def _boundary(self, broker: str) -> Boundary:
        return newest_boundary(self._requests, self._layout, broker)

    def _counts(self, listed: ListedKey, boundary: Boundary, gone: int) -> bool:
        if not listed.size:
            return False
        if not gone and not boundary.is_fenced(listed.key):
            return True
        facts = self._requests.head(listed.key)
        return facts is not None and sealed_of(facts, boundary, gone) is not None


def open_client(settings: ObjectStoreSettings) -> ObjectClient:
    """A client for S3 without a connection yet. InvalidConfigError where none is installed."""
    client = _chosen(settings)
    log.info("object store client: %s", client.describe())
    if not settings.conditional_put:
        log.warning(
            "%s: conditional_put is off: a look before each put stands for the condition, and of"
            " two writers at once both may win; run one writer only",
            settings.place(),
        )
    return client


def _chosen(settings: ObjectStoreSettings) -> ObjectClient:
    fast, s3fs = obstore_installed(), importlib.util.find_spec("s3fs") is not None
    if settings.client == "obstore":
        if not fast:
            raise InvalidConfigError("object_client: obstore: pip install 'tieredstore[fast]'")
        if not obstore_can(settings):
            raise InvalidConfigError(f"checksum: obstore has no {settings.checksum!r}")
    if settings.client == "obstore" or (
        settings.client == "auto" and fast and obstore_can(settings)
    ):
        from tieredstore.providers.obstore import ObstoreClient

        return ObstoreClient(settings, _s3fs_client(settings) if s3fs else None)
    if not s3fs:
        raise InvalidConfigError(
            "provider: S3 needs a client: pip install 'tieredstore[fast]' or 'tieredstore[s3]'"
        )
    return _s3fs_client(settings)


def _s3fs_client(settings: ObjectStoreSettings) -> ObjectClient:
    from tieredstore.providers.s3fs import S3fsClient

    return S3fsClient(settings)


class S3Provider(ObjectProvider):
    """Segments in a bucket of S3 or of a store that speaks its protocol."""

    @classmethod
    def from_config(cls, config: StoreConfig, runtime: Runtime) -> Self:
        settings = ObjectStoreSettings.from_config(config)
        certification = Certification(config.certify)
        return cls(
            open_client(settings),
            config.cluster_name,
            runtime,
            prices=settings.prices,
            certification=certification,
            joins_epoch=not config.claim_epoch,
        )


class FsspecProvider(ObjectProvider):
    """Segments in any filesystem of fsspec, as objects."""

    @classmethod
    def from_config(cls, config: StoreConfig, runtime: Runtime) -> Self:
        prices = PriceTable.parse(config.request_prices)
        certification = Certification(config.certify)
        return cls(
            FsspecClient(config.url),
            config.cluster_name,
            runtime,
            prices=prices,
            certification=certification,
            joins_epoch=not config.claim_epoch,
        )
