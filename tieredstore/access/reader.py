"""`TieredReader`: a tier read without a broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Final, Self, TypeAlias, TypeVar

from tieredstore.access.tables import copied
from tieredstore.access.wiring import Tier, check_broker, check_place, open_tier
from tieredstore.codec.broker_tables import CONSUMER_OFFSETS, TOPICS, TopicConfig
from tieredstore.codec.names import INDEX_TOPIC
from tieredstore.codec.selected import SelectedRecord
from tieredstore.driver.message_store import BYTES_MAX, COUNT_MAX, MessageFilter, ReadRequest
from tieredstore.driver.metadata import CatalogueFacts, MetadataStore
from tieredstore.driver.metrics import Metrics
from tieredstore.driver.provider import ListedSegment, SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.reading import read_run
from tieredstore.index.contract import Index, IndexAnswer
from tieredstore.index.watermarks import IndexCoverage, QueueId, index_coverage, indexed_offset
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendUnavailableError,
    MetadataError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentNotFoundError,
    StoreClosedError,
    TieredStoreError,
    refused_by_system,
)
from tieredstore.model.messages import GetResult, MessageRun, QueryResult, SelectedMessage
from tieredstore.model.values import (
    INT64_MAX,
    Boundary,
    QueueKey,
    SegmentRecord,
    SegmentType,
    TopicRecord,
    require_place,
    require_seconds,
    require_text,
    require_whole,
)

T = TypeVar("T")
_File: TypeAlias = tuple[str, SegmentType]
# OffsetOutOfRangeError: a segment is shorter than before, so the queue may have begun anew.
_MISSING: Final = (
    SegmentNotFoundError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    StoreClosedError,
)
LISTINGS_MAX: Final = 8  # for more queues, all of their broker are listed at once
LOOKS_MAX: Final = 8  # at what is missing or has a problem, while that changes
CLOSE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary:
    """One queue of the tier; times are the catalogue's, None while the queue is empty.

    `named_offset` is beyond `max_offset` if the end of what the catalogue names is lost.
    """

    key: QueueKey
    path: str
    min_offset: int
    max_offset: int
    named_offset: int
    log_bytes: int
    begin_timestamp: int | None
    end_timestamp: int | None
    problem: str | None


class TieredReader:
    """Reads a tier and its catalogue, and changes neither.

    * It may run while a writer does, in the same process or another. It sees the segments that the
      catalogue named when it was opened; `refresh` shows newer ones. Segments that expired or were
      deleted since then are not damage: if bytes are missing, it reads the catalogue again.
    * On the broker's host it also searches the key index on the broker's disk, and reads messages
      that the index lacks. Elsewhere an answer by key that may lack hits `lags`, and
      `indexed_offset` says how far the index reaches. `is_brokers_host` None: this is the broker's
      host if the disk has the broker's own catalogue, or its copy.
    * Missing parts are made from the settings and released by `close`; given parts belong to the
      caller. Absence is None, a status or an empty answer, as everywhere.
    * Any thread may call anything. Before `load` and after `close` everything raises
      StoreClosedError; in a forked process, OtherProcessError: open another reader there.
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        runtime: Runtime | None = None,
        provider: SegmentProvider | None = None,
        metadata: MetadataStore | None = None,
        index: Index | None = None,
        metrics: Metrics | None = None,
        is_brokers_host: bool | None = None,
    ) -> None:
        self.config = config
        self._open_tier = partial(
            open_tier,
            config,
            runtime=runtime,
            provider=provider,
            metadata=metadata,
            index=index,
            metrics=metrics,
            is_brokers_host=is_brokers_host,
            read_only=True,
        )
        self._is_place_named = provider is None  # by the settings, which may be wrong
        self._tier: Tier | None = None
        self._life_guard = threading.RLock()

    @classmethod
    def open(cls, config: StoreConfig) -> Self:
        """An open reader of the tier that these settings name. Raises what `load` raises."""
        reader = cls(config)
        reader.load()
        return reader

    def load(self) -> None:
        """Open the catalogue and its queues; idempotent. After an error nothing is open.

        Raises AnotherTierError where the catalogue has other brokers only, or nothing of it lies
        where the settings say; InvalidConfigError for settings that name no tier; MetadataError
        where the catalogue cannot be read, and BackendError where the backend cannot.
        """
        self._refuse_a_fork()
        with self._life_guard, refused_by_system(self.config.store_path, "open"):
            if self._tier is not None:
                return
            tier = self._open_tier()
            try:
                check_broker(self.config, tier.metadata)
                tier.load()
                amend_problems(tier.files, tier.metadata, tier.provider)
                if self._is_place_named and _seems_lost(tier):
                    check_place(self.config, tier.metadata, tier.provider)
            except BaseException:
                tier.close()
                raise
            self._tier = tier

    def refresh(self) -> None:
        """Show changes that a writer has made since.

        Raises StoreClosedError while the reader is not open, MetadataError where the
        catalogue cannot be read, and BackendError where the backend cannot.
        """
        self._refuse_a_fork()
        with self._life_guard:
            self._freshen()

    def close(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Release everything that was opened, within the timeout; idempotent.

        A part that does not stop in time is abandoned; this is logged.

        Raises OtherProcessError in a process that was forked off, and BackendRefusedError where
        the system refuses.
        """
        require_seconds("timeout", timeout)
        self._refuse_a_fork()
        with self._life_guard:
            tier, self._tier = self._tier, None
        if tier is not None:
            with refused_by_system(self.config.store_path, "close"):
                tier.close(timeout)

    def __enter__(self) -> Self:
        self.load()
        return self

    def __exit__(self, kind: object = None, *exception: object) -> None:
        if self._tier is None or not self._tier.process.is_left_by(kind):
            self.close()

    # -- what there is ------------------------------------------------------------------------

    @property
    def catalogue(self) -> CatalogueFacts:
        """The source of the catalogue: the writer's own file, a bucket's log, or an older copy.

        Raises StoreClosedError while the reader is not open.
        """
        return self._loaded().metadata.facts

    def topics(self) -> Sequence[TopicRecord]:
        """The topics of the tier, by name.

        Raises StoreClosedError while the reader is not open.
        """
        return sorted(self._loaded().metadata.topics(), key=lambda record: record.topic)

    def queues(self, topic: str | None = None) -> list[QueueKey]:
        """The queues of a topic, or of all, by topic and queue id.

        Raises InvalidArgumentError for an argument of the wrong kind, and StoreClosedError
        while the reader is not open.
        """
        return [file.key for file in self._files(topic)]

    def consumer_offsets(self) -> dict[str, dict[QueueKey, int]]:
        """The next message of each group, as the broker last copied it to the tier.

        Raises StoreClosedError while the reader is not open, and MetadataError for a copy
        that cannot be read.
        """
        found: dict[str, dict[QueueKey, int]] = {}
        contents = copied(CONSUMER_OFFSETS, self._loaded().metadata)
        for name, row in contents.rows.items() if contents is not None else ():
            topic, _, group = name.partition("@")
            for queue_id, offset in row.items():
                found.setdefault(group, {})[QueueKey(topic, queue_id)] = offset
        return found

    def topic_configs(self) -> dict[str, TopicConfig]:
        """The topics of the broker, as it last copied them to the tier.

        Raises StoreClosedError while the reader is not open, and MetadataError for a copy
        that cannot be read.
        """
        contents = copied(TOPICS, self._loaded().metadata)
        return {} if contents is None else dict(contents.rows)

    def summary(self, topic: str, queue_id: int) -> QueueSummary | None:
        """The tier's part of one queue. May take a few small reads.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the reader is not open, SegmentCorruptError where what has to be read is
        damaged, and BackendError where it cannot be read.
        """
        require_place(topic, queue_id)
        key = QueueKey(topic, queue_id)

        def ask(tier: Tier) -> QueueSummary | None:
            file = tier.files.get(key)
            return None if file is None else summary_of(file)

        return self._asked(key, ask)

    def segments(
        self, topic: str | None = None, queue_id: int | None = None
    ) -> list[SegmentRecord]:
        """The catalogue's rows of these queues, by queue, type and base; sizes as they are.

        Raises InvalidArgumentError for an argument of the wrong kind, and StoreClosedError
        while the reader is not open.
        """
        found: list[SegmentRecord] = []
        for file in self._files(topic, queue_id):
            found += [segment.record for segment in (*file.log.segments, *file.queue.segments)]
        return found

    # -- as a store answers -------------------------------------------------------------------

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int = COUNT_MAX,
        bytes_max: int = BYTES_MAX,
        message_filter: MessageFilter | None = None,
        group: str = "",
    ) -> GetResult:
        """Messages from `offset` on, in order; continue at `next_offset`.

        At most `count_max` messages and about `bytes_max` bytes; where there is a message,
        at least one, however large. An unknown queue, or an offset without a message, is a
        status.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the reader is not open, SegmentCorruptError where the message at `offset` is
        damaged, and BackendError where it cannot be read.
        """
        request = ReadRequest(topic, queue_id, offset, count_max, bytes_max, message_filter, group)
        return self._asked(request.key, lambda tier: tier.fetcher.get_message(request))

    def query_message(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = COUNT_MAX,
        begin: int = 0,
        end: int = INT64_MAX,
    ) -> QueryResult:
        """Messages of a topic that have the key, stored within [begin, end], newest first.

        `complete` is False where a hit may be missing.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the reader is not open, and BackendError where the key index cannot be asked.
        """
        require_place(topic, count_max, begin, end)
        require_text("key", key)

        def ask() -> QueryResult:
            return self._loaded().fetcher.query_message(
                topic, key, count_max=count_max, begin=begin, end=end
            )

        result = ask()
        if result.complete or result.lags or not self.config.index_enabled:
            return result
        self._freshen(INDEX_TOPIC, topic)  # what is missing may have expired
        return ask()

    def key_hits(
        self, topic: str, key: str, *, count_max: int, begin: int = 0, end: int = INT64_MAX
    ) -> IndexAnswer:
        """Places of messages that may have the key, from the key index: no message is read, and
        messages that the index lacks are not covered.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the reader is not open, and BackendError where the key index cannot be asked.
        """
        require_place(topic, count_max, begin, end)
        require_text("key", key)

        def ask() -> IndexAnswer:
            return self._loaded().fetcher.key_hits(
                topic, key, count_max=count_max, begin=begin, end=end
            )

        answer = ask()
        if answer.complete or len(answer.hits) >= count_max or not self.config.index_enabled:
            return answer
        self._freshen(INDEX_TOPIC, topic)  # what is missing may have expired
        return ask()

    def indexed_offset(self, topic: str, queue_id: int) -> int | None:
        """Below this offset the uploaded index has every message; 0 if there is no index. None if
        that was never noted, for RocketMQ's files.

        On the broker's host `query_message` also finds later messages.

        Raises InvalidArgumentError for an argument of the wrong kind, and StoreClosedError
        while the reader is not open.
        """
        require_place(topic, queue_id)
        tier = self._loaded()
        file = tier.files.get(QueueKey(topic, queue_id))
        if file is None:
            return None
        queue = QueueId(file.topic_id, queue_id)
        return indexed_offset(tier.metadata, self.config.broker_name, topic, queue)

    def indexed_times(self) -> IndexCoverage | None:
        """The store times that `query_message` covers; None if unknown.

        Raises StoreClosedError while the reader is not open.
        """
        tier = self._loaded()
        now = tier.runtime.clock.now_ms()
        return index_coverage(tier.metadata, self.config.broker_name, now)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> int | None:
        """The queue offset to start from for a store time; None for a queue that is not there.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the reader is not open, SegmentCorruptError where what has to be read is
        damaged, and BackendError where it cannot be read.
        """
        require_place(topic, queue_id, timestamp)
        return self._asked(
            QueueKey(topic, queue_id),
            lambda tier: tier.fetcher.offset_by_time(topic, queue_id, timestamp, boundary),
        )

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """When the message at this offset was stored, in ms; None where there is none.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the reader is not open, SegmentCorruptError where what has to be read is
        damaged, and BackendError where it cannot be read.
        """
        require_place(topic, queue_id, offset)
        return self._asked(
            QueueKey(topic, queue_id),
            lambda tier: tier.fetcher.store_time(topic, queue_id, offset),
        )

    def earliest_time(self, topic: str, queue_id: int) -> int | None:
        """Store time of a queue's oldest message, in ms; None where there is none.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the reader is not open, SegmentCorruptError where what has to be read is
        damaged, and BackendError where it cannot be read.
        """
        require_place(topic, queue_id)
        return self._asked(
            QueueKey(topic, queue_id), lambda tier: tier.fetcher.earliest_time(topic, queue_id)
        )

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        """The oldest queue offset that can be read; None for a queue that is not there.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the reader is not open, SegmentCorruptError where what has to be read is
        damaged, and BackendError where it cannot be read.
        """
        require_place(topic, queue_id)
        return self._asked(
            QueueKey(topic, queue_id), lambda tier: tier.fetcher.min_offset(topic, queue_id)
        )

    def max_offset(self, topic: str, queue_id: int) -> int | None:
        """One more than the newest queue offset that can be read.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the reader is not open, and BackendError where the queue was not reached yet.
        """
        require_place(topic, queue_id)
        tier = self._loaded()
        self._reach(tier, QueueKey(topic, queue_id))
        return tier.fetcher.commit_offset(topic, queue_id)

    def problem(self, topic: str, queue_id: int) -> str | None:
        """Why the end of a queue cannot be read, or None; as in its `summary`, but without a read.

        Raises InvalidArgumentError for an argument of the wrong kind, StoreClosedError
        while the reader is not open, and BackendError where the queue was not reached yet.
        """
        require_place(topic, queue_id)
        tier, key = self._loaded(), QueueKey(topic, queue_id)
        self._reach(tier, key)
        file = tier.files.get(key)
        return None if file is None else file.problem

    # -- all of it ----------------------------------------------------------------------------

    def runs(
        self, topic: str | None = None, queue_id: int | None = None, *, start: int = 0
    ) -> Iterator[tuple[QueueKey, MessageRun]]:
        """Messages from queue offset `start` on, queue after queue, as runs.

        One run is in memory at a time, of `read_ahead_bytes` at most or a single message. Each
        queue ends where it ended when its turn came; gaps are skipped. Damage raises
        SegmentCorruptError after everything before it was returned, and an argument of the wrong
        kind raises InvalidArgumentError.
        """
        require_whole(start)
        files = self._files(topic, queue_id)
        return ((file.key, run) for file in files for run in self._runs_of(file, start))

    def messages(
        self, topic: str | None = None, queue_id: int | None = None, *, start: int = 0
    ) -> Iterator[SelectedMessage]:
        """The messages of `runs`, one by one; raises the same errors."""
        runs = self.runs(topic, queue_id, start=start)
        return (message for _, run in runs for message in messages_of(run))

    def _runs_of(self, file: FlatMessageFile, start: int) -> Iterator[MessageRun]:
        self._reach(self._loaded(), file.key)
        end = file.commit_offset
        offset = start
        while offset < end:
            run = self._asked(file.key, partial(self._run_at, file, offset, end))
            if run is None:
                return
            yield run
            offset = run.end_offset

    def _run_at(self, file: FlatMessageFile, start: int, end: int, tier: Tier) -> MessageRun | None:
        """The next messages from `start` on, without gaps; None if there are none before `end`, or
        the queue was deleted."""
        end = min(end, file.commit_offset)
        if tier.files.get(file.key) is not file or start >= end:
            return None
        offset = file.queue.first_unit_from(max(start, file.min_offset))
        if offset >= end:
            return None
        run = read_run(
            file,
            offset,
            count_max=min(self.config.read_ahead_count, end - offset),
            bytes_max=self.config.read_ahead_bytes,
            checks_bodies=self.config.checks_bulk_reads,
        )
        if not len(run):
            raise SegmentCorruptError(file.path, f"message {offset} cannot be read", position=0)
        return run

    def _asked(self, key: QueueKey, call: Callable[[Tier], T]) -> T:
        def state() -> object:
            tier = self._loaded()
            file = tier.files.get(key)
            if file is None:
                return None
            both = file.log, file.queue  # another cache key means that bytes are gone
            shown = ((one.is_started, one.min_offset, one.cache_key) for one in both)
            # A newer catalogue may have come after the comparison with the backend.
            return file, tier.metadata.facts.generation, *shown

        def ask() -> T:
            tier = self._loaded()
            self._reach(tier, key)
            return call(tier)

        queue = f"{key.topic}/{key.queue_id}"
        return retry_after_refresh(ask, state=state, refresh=lambda: self._freshen(queue))

    def _reach(self, tier: Tier, key: QueueKey) -> None:
        """Recover a queue that the last refresh could not reach: it shows an older end. Raises what
        the backend raises."""
        if not tier.files.is_out_of_reach(key):
            return
        with self._life_guard:
            file = tier.files.get(key)
            if file is not None and tier.files.is_out_of_reach(key):
                tier.files.look_again(file)

    def _freshen(self, *places: str) -> None:
        with self._life_guard:
            tier, broker = self._loaded(), self.config.broker_name
            paths = [f"{broker}/{place}" for place in places]
            tier.files.refresh()
            amend_problems(tier.files, tier.metadata, tier.provider, *paths)

    def _files(
        self, topic: str | None = None, queue_id: int | None = None
    ) -> list[FlatMessageFile]:
        if topic is not None:
            require_text("topic", topic)
        if queue_id is not None:
            require_whole(queue_id)
        files = sorted(self._loaded().files.files(), key=lambda file: file.key)
        return [
            file
            for file in files
            if topic in (None, file.key.topic) and queue_id in (None, file.key.queue_id)
        ]

    def _loaded(self) -> Tier:
        tier = self._tier
        if tier is None:
            raise StoreClosedError("the reader is not open")
        tier.process.require()
        return tier

    def _refuse_a_fork(self) -> None:
        """Called before any lock is taken: a thread of the parent may have held it at the fork."""
        if self._tier is not None:
            self._tier.process.require()


def summary_of(file: FlatMessageFile) -> QueueSummary:
    """The queue's current summary. May take a few small reads."""
    records = [segment.record for segment in file.log.segments if segment.record.size]
    begins = [row.begin_timestamp for row in records if row.begin_timestamp is not None]
    ends = [row.end_timestamp for row in records if row.end_timestamp is not None]
    return QueueSummary(
        key=file.key,
        path=file.path,
        min_offset=file.min_offset,
        max_offset=file.commit_offset,
        named_offset=file.named_offset,
        log_bytes=sum(row.size for row in records),
        begin_timestamp=min(begins, default=None),
        end_timestamp=max(ends, default=None),
        problem=file.problem,
    )


def messages_of(run: MessageRun) -> Iterator[SelectedMessage]:
    for row in range(len(run)):
        yield SelectedRecord(
            queue_offset=run.first_offset + row,
            log_offset=int(run.log_offsets[row]),
            tags_code=int(run.tags_codes[row]),
            record=bytes(run.record(row)),
        )


def retry_after_refresh(
    call: Callable[[], T], *, state: Callable[[], object], refresh: Callable[[], None]
) -> T:
    """The result of `call`; repeated after a refresh as long as that shows another `state`.

    An outdated catalogue names segments that have expired since: that is no damage. Real damage
    stays, and its error is raised, no later than after LOOKS_MAX refreshes: a writer may change the
    state all the time. If the backend cannot be reached for a refresh, or the catalogue cannot be
    read, that is the error.
    """
    for _ in range(LOOKS_MAX):
        before = state()
        try:
            return call()
        except _MISSING as error:
            try:
                refresh()
            except (BackendUnavailableError, MetadataError) as unknown:
                raise unknown from error  # it may only have gone
            except TieredStoreError:
                pass  # the first error says more
            if state() == before:
                raise
    return call()


def amend_problems(
    files: FlatFileStore, metadata: MetadataStore, provider: SegmentProvider, *paths: str
) -> None:
    """Compare a copy's rows of these queue paths, and of queues that have a problem, with the
    backend: only other segments in the backend can explain such a problem.

    The writer's own catalogue explains it when it is read again: it no longer names expired
    segments. A problem that stays the same is damage.
    """
    if not metadata.facts.copy:
        found = _problems(files)
        for _ in range(LOOKS_MAX):
            if not found:
                break
            files.refresh()
            before, found = found, _problems(files)
            if found == before:
                break
        return
    known = [*files.files()]
    near = [file for file in known if not files.is_out_of_reach(file.key)]
    doubtful = {*paths, *(file.path for file in near if file.problem is not None)}
    if len(doubtful) > LISTINGS_MAX:
        # One disk that is out of reach, with a topic on it, fails a listing of all in a directory.
        parts = 1 if provider.shares_rounds or len(near) == len(known) else 2
        doubtful = {"/".join(path.split("/")[:parts]) for path in doubtful}
    if doubtful and reconcile(metadata, provider, sorted(doubtful)):
        files.refresh()


def _problems(files: FlatFileStore) -> dict[QueueKey, str]:
    return {file.key: file.problem for file in files.files() if file.problem is not None}


def reconcile(metadata: MetadataStore, provider: SegmentProvider, paths: Sequence[str]) -> int:
    """Bring a copy up to date at or below these paths; returns how many rows changed.

    Makes one listing for each path. Segments missing before the first existing one have expired,
    and those after the last known one are new; a hole is damage. Does nothing, and returns 0, if
    the catalogue is not a copy. Raises MetadataError if the place is gone: nothing has expired.
    """
    if not metadata.facts.copy:
        return 0
    listed = _by_file(segment for path in paths for segment in provider.list(path))
    below = tuple(f"{path}/" for path in paths)
    rows: dict[_File, list[SegmentRecord]] = {}
    for row in metadata.segments():
        if f"{row.path}/".startswith(below):
            rows.setdefault((row.path, row.type), []).append(row)
    gone: list[SegmentRecord] = []
    come: list[SegmentRecord] = []
    for file, known in rows.items():
        bases = listed.get(file, [])
        expired = list(_expired(known, bases))
        gone += expired
        if file[1] is not SegmentType.INDEX:
            come += _younger(file, known[len(expired) :], bases)
    if gone and not _is_still(metadata, provider, gone[0].path.split("/", 1)[0]):
        return 0
    metadata.amend(gone=gone, come=come)
    return len(gone) + len(come)


def _is_still(metadata: MetadataStore, provider: SegmentProvider, broker: str) -> bool:
    """Whether a listing tells what has expired: something of the broker is there, or at least the
    copy itself is, unchanged. MetadataError if neither is."""
    before = metadata.facts
    try:
        if next(iter(provider.list(broker)), None) is not None:
            return True
    except BackendUnavailableError:  # what the copy says can be asked all the same
        if before.source == "rebuild":
            raise
    if before.source == "rebuild":  # from bytes that were there
        raise MetadataError(before.place, "not one of the segments is there any more")
    metadata.refresh()
    return metadata.facts == before


def _by_file(listed: Iterable[ListedSegment]) -> dict[_File, list[int]]:
    found: dict[_File, list[int]] = {}
    for segment in listed:
        found.setdefault((segment.path, segment.type), []).append(segment.base)
    return found


def _expired(rows: Sequence[SegmentRecord], bases: Sequence[int]) -> Iterator[SegmentRecord]:
    there, last = set(bases), max(bases, default=-1)

    def has_gone(row: SegmentRecord) -> bool:
        # The last row may be of a segment that does not exist yet, if the row is empty. Other empty
        # rows were added by an amendment, which does not know sizes.
        was_there = row.size > 0 or row.base_offset < last or row is not rows[-1]
        return was_there and row.base_offset not in there

    return takewhile(has_gone, rows)


def _younger(
    file: _File, rows: Sequence[SegmentRecord], bases: Sequence[int]
) -> Iterator[SegmentRecord]:
    """Rows of new segments, without sizes: opening the queue requests the sizes, and checks them
    against the units.
    """
    path, kind = file
    last = max((row.base_offset for row in rows), default=-1)
    return (
        SegmentRecord(path=path, type=kind, base_offset=base)
        for base in sorted(bases)
        if base > last
    )


def _seems_lost(tier: Tier) -> bool:
    """Whether every queue that should have bytes lacks some, as if the place were wrong."""
    files = [file for file in tier.files.files() if file.log.is_started or file.queue.is_started]
    return bool(files) and all(file.problem is not None for file in files)
