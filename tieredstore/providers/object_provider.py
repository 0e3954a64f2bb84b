"""A tier in an object store: S3, stores like it, and anything else with an `ObjectClient`.

The brokers' logs name all segments. Staged data of jobs lies next to them.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, Self

from tieredstore.codec.names import cluster_directory
from tieredstore.driver.metadata import Change, MetadataStore, PutNote
from tieredstore.driver.metrics import Metrics
from tieredstore.driver.object_client import (
    UPLOAD_PART_BYTES,
    AbandonedUpload,
    ObjectClient,
    ObjectExistsError,
    Range,
)
from tieredstore.driver.object_requests import CountedClient, PriceTable
from tieredstore.driver.provider import (
    LOADED,
    LOADS,
    PROBE_PATH,
    STAGED,
    STREAMED,
    Adoption,
    Appended,
    Fence,
    Leftover,
    ListedSegment,
    RoundSizes,
    Scratch,
    SegmentProvider,
    SegmentRead,
    SegmentWrapper,
    StagedObject,
    TakenIn,
    WritePair,
    check_staged_name,
    may_be_loaded,
    refuse_existing,
    remove_staged,
    staged_leftovers,
)
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime, when_cancelled
from tieredstore.driver.segment import Buffer, CountedBlocks, FileSegment, check_queue_path
from tieredstore.model.errors import (
    BackendRefusedError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    TieredStoreError,
)
from tieredstore.model.findings import Finding
from tieredstore.model.printable import log_of
from tieredstore.model.values import SegmentRecord, SegmentType
from tieredstore.providers.certified import Certification
from tieredstore.providers.fsspec import FsspecClient
from tieredstore.providers.obstore import obstore_can, obstore_installed
from tieredstore.providers.s3_settings import ObjectStoreSettings
from tieredstore.roundlog import adopted, inspection, taking, together, upkeep
from tieredstore.roundlog.catalogue import LogCatalogue
from tieredstore.roundlog.draft import DATA_BYTES_MAX, Draft
from tieredstore.roundlog.entry import Sealed
from tieredstore.roundlog.layout import ROUNDS, ObjectLayout
from tieredstore.roundlog.log import INLINE_BYTES_MAX, BrokerLog
from tieredstore.roundlog.object_calls import ObjectCalls
from tieredstore.roundlog.recent import RECENT_BYTES_MAX
from tieredstore.roundlog.segment import LogSegment, lost_to_another, seal_together

if TYPE_CHECKING:
    from tieredstore.model.config import StoreConfig

log = log_of(__name__)

_QUEUE_PARTS: Final = 3  # broker, topic and queue id
UPLOAD: Final = "abandoned-upload"
LISTING_MS: Final = 1_000  # a reader lists the log again after this time


class ObjectProvider(SegmentProvider):
    """Segments of one cluster in one object store, a log for each broker.

    * Every request is retried here, so no retrying wrapper is needed.
    * Nothing is shared with a forked process, which reads and claims for itself.
    * Once another writer has taken over, this one raises FencedError.
    * `certification` tests the store before the first write; without it, no test is made.
    * `counted` knows how many requests were made, and roughly what they cost.
    """

    retries_itself = True
    shares_rounds = True
    reads_together = True
    round_sizes = RoundSizes(
        inline_bytes=INLINE_BYTES_MAX,
        data_bytes=DATA_BYTES_MAX,
        recent_bytes=RECENT_BYTES_MAX,
        rounds_merged=upkeep.ROUNDS_MERGED,
        merged_bytes=upkeep.MERGED_BYTES,
        chunks_merged=upkeep.CHUNKS_MERGED,
        range_bytes=upkeep.SPAN_BYTES,
        one_put_bytes=upkeep.ONE_PUT_BYTES,
        part_bytes=UPLOAD_PART_BYTES,
        state_every=upkeep.STATE_EVERY,
        grace_ms=upkeep.GRACE_MS,
    )

    def __init__(
        self,
        client: ObjectClient,
        cluster: str,
        runtime: Runtime,
        *,
        retry: RetryPolicy | None = None,
        prices: PriceTable | None = None,
        certification: Certification | None = None,
        listing_ms: int = LISTING_MS,
        joins_epoch: bool = False,
    ) -> None:
        super().__init__(runtime)
        self.counted = CountedClient(client, prices=prices)
        self._certification = certification or Certification("off")
        self._layout = ObjectLayout(cluster)
        self._calls = ObjectCalls(self.counted, runtime, retry or RetryPolicy())
        self._listing_ms = listing_ms
        self._joins_epoch = joins_epoch
        self._logs: dict[tuple[int, str], BrokerLog] = {}
        self._chores: dict[tuple[int, str], upkeep.Upkeep] = {}

    def open(self, path: str, type: SegmentType, base: int) -> LogSegment:
        check_queue_path(path, base)
        return LogSegment(partial(self._log_of, path.split("/", 1)[0]), path, type, base)

    def list(self, prefix: str = "") -> Iterator[ListedSegment]:
        wanted = [part for part in prefix.split("/") if part]
        try:
            check_queue_path("/".join([*wanted, *["0"] * (3 - len(wanted))]), base=0)
        except BackendRefusedError:
            return  # no segment has such a path
        below = "/".join(wanted)
        for broker in wanted[:1] or self._brokers():
            broker_log = self._log_of(broker)
            state = broker_log.settled() if broker_log.is_writer else broker_log.follow()
            with broker_log.guard:
                is_queue = len(wanted) == _QUEUE_PARTS  # each of ten thousand is asked for alone
                segments = state.of_path(below) if is_queue else state.segments.values()
                found = [
                    ListedSegment(*each.key, each.size)
                    for each in segments
                    if each.size and (not below or f"{each.path}/".startswith(f"{below}/"))
                ]
            yield from found

    def read_together(self, reads: Sequence[SegmentRead]) -> Sequence[bytes | TieredStoreError]:
        """Reads each object once, front to back, for all segments that lie in it."""
        return together.read_together(self._log_of, reads)

    def reading_order(self, segments: Sequence[SegmentRecord]) -> Sequence[int]:
        return together.reading_order(self._log_of, segments)

    def write_many(self, pairs: Sequence[WritePair]) -> Sequence[Future[None]]:
        """Writes all pairs of a broker in one entry of its log. It contains each pair in full, or
        not at all."""
        futures: list[Future[None]] = [Future() for _ in pairs]
        rounds: dict[str, list[tuple[Draft, Future[None]]]] = {}
        for pair, future in zip(pairs, futures, strict=True):
            writes = [
                (bare(write.segment), write)
                for write in (pair.log, pair.queue)
                if write is not None
            ]
            try:
                draft = Draft(
                    writes=[each.draft(write.position, write.data) for each, write in writes],
                    rows=pair.rows,
                )
            except BaseException as error:  # noqa: BLE001 - the pair's future raises it
                future.set_exception(error)
                continue
            if not writes:
                future.set_result(None)
                continue
            rounds.setdefault(writes[0][0].key[0].split("/", 1)[0], []).append((draft, future))
        for broker, drafts in rounds.items():
            try:
                writing = self._runtime.dispatch.submit(self._write_round, broker, drafts)
            except BaseException as error:  # noqa: BLE001
                _refuse(drafts, error)
            else:
                when_cancelled(writing, partial(_refuse, drafts))
        return futures

    def _write_round(self, broker: str, drafts: Sequence[tuple[Draft, Future[None]]]) -> None:
        failure: BaseException | None = None
        try:
            self._log_of(broker).append([draft for draft, _ in drafts])
        except BaseException as error:  # noqa: BLE001 - the futures raise it
            failure = error
        for draft, future in drafts:
            reason = failure or draft.error
            if reason is None:
                future.set_result(None)
            else:
                future.set_exception(reason)

    def seal_many(self, segments: Sequence[FileSegment]) -> Sequence[TieredStoreError | None]:
        """Seals segments of the same broker together, so that they share reads and entries."""
        bare_ones = [bare(segment) for segment in segments]
        brokers: dict[str, list[LogSegment]] = {}
        for each in bare_ones:
            brokers.setdefault(each.queue_path.split("/", 1)[0], []).append(each)
        errors = {
            id(each): error
            for broker, those in brokers.items()
            for each, error in zip(those, seal_together(self._log_of(broker), those), strict=True)
        }
        return [errors[id(each)] for each in bare_ones]

    def create(self, segment: FileSegment, blocks: Iterable[Buffer]) -> int:
        """Writes directly to the sealed key, by multipart upload if it is long."""
        inner = bare(segment)
        broker_log = self._log_of(inner.queue_path.split("/", 1)[0])
        broker_log.claim()
        refuse_existing(inner)
        return upkeep.seal_stream(broker_log, inner.key, blocks)

    # The logs

    def claim(self, broker: str) -> None:
        self._log_of(broker).claim()

    def fence(self, broker: str) -> Fence | None:
        found = self._logs.get((os.getpid(), broker))
        return None if found is None else found.fence

    def catalogue(self, broker: str, *, read_only: bool) -> MetadataStore | None:
        broker_log = self._log_of(broker)
        if not read_only:
            broker_log.claim()
        elif not broker_log.follow().sequence:
            return None
        return LogCatalogue(broker_log, read_only=read_only)

    def catch_up(self, rows: Sequence[SegmentRecord]) -> None:
        if not rows:
            return
        log = self._log_of(rows[0].path.partition("/")[0])
        with log.guard:
            if log.known is None:
                return  # no state is held, so none can be old
            tables = log.known.tables.segments
            known = [tables[row.type].get(row.path, {}).get(row.base_offset) for row in rows]
        if any(
            now is None or now.create_timestamp != row.create_timestamp or now.size < row.size
            for row, now in zip(rows, known, strict=True)
        ):
            log.follow()

    def tend(self, broker: str) -> bool:
        broker_log = self._log_of(broker)
        chores = self._chores.setdefault((os.getpid(), broker), upkeep.Upkeep(broker_log))
        with lost_to_another(broker_log):
            return chores.step()

    def untaken(self, broker: str) -> Sequence[ListedSegment]:
        found = taking.untaken(self._log_of(broker))
        return [ListedSegment(*key, listed.size) for key, listed in found]

    def take_in(self, broker: str) -> TakenIn:
        return taking.take_in(self._log_of(broker))

    def damage(self, broker: str) -> Sequence[Finding]:
        return inspection.damage(self._log_of(broker))

    def appended(self, broker: str) -> Sequence[Appended]:
        return inspection.appended(self._log_of(broker))

    def refresh(self) -> None:
        for (process, _), broker_log in [*self._logs.items()]:
            if process == os.getpid():
                broker_log.expire()

    def report_to(self, metrics: Metrics) -> None:
        self.counted.report_to(metrics)
        self._calls.client.report_to(metrics)

    def leftovers(self, prefix: str = "") -> Sequence[Leftover]:
        wanted = [part for part in prefix.split("/") if part]
        brokers = wanted or self._brokers()
        places = [self._layout.below(prefix)]
        if len(wanted) < 2:
            for broker in brokers:
                places += [self._layout.rounds(broker), self._staged_below(broker)]
        now_ms = self._runtime.clock.now_ms()
        found = [
            Leftover(kind=UPLOAD, name=upload.key, id=upload.upload_id)
            for below in places
            for upload in self._calls.client.abandoned_uploads(below)
            if not may_be_loaded(upload.key.removeprefix(below), now_ms)
        ]
        if len(wanted) < 2:
            for broker in brokers:
                found += inspection.leftovers(self._log_of(broker))
        return [*found, *staged_leftovers(prefix, self.scratch, now_ms=now_ms)]

    def remove_leftovers(self, leftovers: Sequence[Leftover]) -> None:
        for each in leftovers:
            if each.kind == UPLOAD:
                self._calls.client.abort_upload(AbandonedUpload(each.name, each.id))
        inspection.remove(self._calls, leftovers)
        remove_staged(leftovers, self.scratch)

    def places(self) -> Sequence[tuple[str, str]] | None:
        """The brokers that have a log."""
        found = []
        for directory in inspection.names_below(self._calls, ROUNDS):
            cluster = directory.partition("_")[2]
            if cluster and directory == cluster_directory(cluster):
                brokers = inspection.names_below(self._calls, f"{ROUNDS}{directory}/")
                found += [(cluster, broker) for broker in brokers if broker != _PROBE]
        return sorted(found) or None

    def scratch(self, broker: str) -> ObjectScratch:
        return ObjectScratch(self._calls, self._staged_below(broker), self._check_store)

    def _staged_below(self, broker: str) -> str:
        return f"{STAGED}/{self._layout.directory}/{broker}/"

    def staged_segments(self, broker: str) -> LoadedObjects:
        """They lie beside the log, which names them in place once they are adopted."""
        return LoadedObjects(self._calls, self._log_of(broker), self._check_store)

    def adopt(self, broker: str, adoptions: Sequence[Adoption], changes: Sequence[Change]) -> bool:
        """Adopts everything in one entry, without reading any bytes. Then writes a second copy of
        what was adopted, in case the log is lost. If that fails, the load has succeeded all the
        same, and the next one tries it again."""
        broker_log = self._log_of(broker)
        catalogue = self.catalogue(broker, read_only=False)
        assert isinstance(catalogue, LogCatalogue)
        adopted.settle(broker_log)
        if not adoptions:
            catalogue.apply(changes)
            return True
        taken = [
            ((each.path, each.type, each.base), Sealed(0, each.name, each.size, each.crc))
            for each in adoptions
        ]
        notes = [
            each
            for each in changes
            if isinstance(each, PutNote) and each.kind in (LOADED, STREAMED)
        ]
        catalogue.apply_with([*changes, adopted.announcement(broker_log, notes)], taken)
        try:
            adopted.settle(broker_log)
        except TieredStoreError as error:
            log.warning(
                "the load is done, but its copy next to the log is not written yet: %s",
                error,
            )
        return True

    def close(self) -> None:
        self.counted.close()

    def _log_of(self, broker: str) -> BrokerLog:
        """The log of a broker, one for each process."""
        place = os.getpid(), broker
        return self._logs.get(place) or self._logs.setdefault(
            place,
            BrokerLog(
                self._calls,
                self._layout,
                broker,
                self._runtime,
                before_write=self._check_store,
                taken_in=partial(
                    taking.into, calls=self._calls, layout=self._layout, broker=broker
                ),
                listing_ms=self._listing_ms,
                joins=self._joins_epoch,
            ),
        )

    def _brokers(self) -> Sequence[str]:
        """The brokers with a log, and those with only sealed segments."""
        with_log = inspection.names_below(self._calls, f"{ROUNDS}{self._layout.directory}/")
        others = inspection.names_below(self._calls, self._layout.below(""))
        return [*dict.fromkeys(chain(with_log, filter(_is_broker, others)))]

    def _check_store(self) -> None:
        self._certification.check(self._calls.client)


def _refuse(drafts: Sequence[tuple[Draft, Future[None]]], error: BaseException) -> None:
    """Answer the pairs of a round that does not begin."""
    for _, future in drafts:
        future.set_exception(error)


_PROBE: Final = PROBE_PATH.split("/", 1)[0]


def _is_broker(name: str) -> bool:
    try:
        check_queue_path(f"{name}/0/0", base=0)
    except BackendRefusedError:
        return False
    return True


def bare(segment: FileSegment) -> LogSegment:
    """The segment within its wrappers."""
    while isinstance(segment, SegmentWrapper):
        segment = segment.inner
    if not isinstance(segment, LogSegment):
        raise TypeError(f"{segment!r} is no segment of an object store")
    return segment


_ONE_PUT_BYTES: Final = 16 << 20  # a longer object is sent in parts


class ObjectScratch(Scratch):
    """Staged data below `.staged/` in the tier's own bucket and prefix.

    `before_put` raises if this process must not write.
    """

    def __init__(self, calls: ObjectCalls, prefix: str, before_put: Callable[[], None]) -> None:
        self._calls = calls
        self._prefix = prefix
        self._before_put = before_put

    def describe(self) -> str:
        return self._prefix

    def put(self, name: str, blocks: Iterable[Buffer]) -> int:
        key = self._prefix + check_staged_name(name)
        counted = CountedBlocks(blocks)
        beginning, is_all = _beginning(counted)
        self._before_put()
        try:
            if is_all:
                self._calls.put(key, b"".join(beginning))
            else:
                self._calls.put_stream(key, chain(beginning, counted), metadata={})
        except ObjectExistsError:
            facts = self._calls.head(key)
            if facts is None:
                raise BackendRefusedError(key, "stage", "it was deleted meanwhile") from None
            return facts.size
        return counted.bytes

    def read(self, name: str, position: int, length: int) -> bytes:
        key = self._prefix + check_staged_name(name)
        data = self._calls.ranges([Range(key, position, length)])[0]
        if len(data) != length:
            raise OffsetOutOfRangeError(key, offset=length, minimum=0, maximum=len(data))
        return data

    def listed(self, folder: str = "") -> Sequence[StagedObject]:
        below = self._prefix + (f"{folder}/" if folder else "")
        return [
            StagedObject(each.key.removeprefix(self._prefix), each.size)
            for each in self._calls.client.list(below)
        ]

    def delete(self, names: Sequence[str]) -> None:
        if names:
            self._calls.delete([self._prefix + check_staged_name(name) for name in names])


class LoadedObjects(ObjectScratch):
    """What tasks stage beside a broker's log. An object that an entry names no longer counts as
    staged, and is not deleted here. Nor is one that the log has used: its own upkeep does that."""

    def __init__(
        self, calls: ObjectCalls, broker_log: BrokerLog, before_put: Callable[[], None]
    ) -> None:
        super().__init__(calls, broker_log.prefix, before_put)
        self._log = broker_log

    def listed(self, folder: str = "") -> Sequence[StagedObject]:
        found = super().listed(folder or LOADS)
        named = self._state_names()  # after the listing, so that it has all adopted by then
        return [each for each in found if each.name not in named]

    def delete(self, names: Sequence[str]) -> None:
        named = self._state_names(dead=True)
        super().delete([name for name in names if name not in named])

    def _state_names(self, *, dead: bool = False) -> set[str]:
        if not self._log.is_writer:
            self._log.expire()
        state = self._log.settled() if self._log.is_writer else self._log.follow()
        with self._log.guard:
            return state.names() | (set(state.dead) if dead else set())


def _beginning(blocks: CountedBlocks) -> tuple[Sequence[Buffer], bool]:
    """The blocks up to the first one that makes them too large for one put; and whether these are
    all."""
    taken: list[Buffer] = []
    for block in blocks:
        taken.append(block)
        if blocks.bytes > _ONE_PUT_BYTES:
            return taken, False
    return taken, True


def open_client(settings: ObjectStoreSettings) -> ObjectClient:
    """A client for S3, not yet connected. InvalidConfigError if none is installed."""
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
