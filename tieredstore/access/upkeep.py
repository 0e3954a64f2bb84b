"""The chores of a running tier: flush, sealing, publishing and the expiry of old segments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tieredstore.access.dispatcher import Dispatcher
from tieredstore.codec.message import CODA_BYTES
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.metadata import MetadataStore, Publisher, StaleCatalogueError
from tieredstore.driver.provider import ProviderWrapper, SegmentProvider
from tieredstore.driver.runtime import Clock, Deadline, InlinePool, Pool, Runtime, with_deadline
from tieredstore.driver.segment import FileSegment
from tieredstore.flat.append_file import FlatAppendFile, FlatSegment, Publish
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import HOUR_MS, FlatMessageFile, UnitSpans
from tieredstore.flat.reading import DIRECT, ByteSource
from tieredstore.flat.times import (
    UNITS_AT_ONCE,
    believed_times,
    first_unit_from,
    log_offsets_of,
    queue_offset_at,
)
from tieredstore.index.contract import Index
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendUnavailableError,
    FencedError,
    OffsetOutOfRangeError,
    SegmentError,
    SegmentNotFoundError,
    StoreClosedError,
    TieredStoreError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import QueueKey, TopicRecord

log = log_of(__name__)

TENDED_AT_ONCE: Final = 1_000
SEALED_AT_ONCE: Final = 64  # queues
EXPIRED_SIDE_BY_SIDE: Final = 16  # queues, so that they share entries
NAMED_MAX: Final = 8  # queues in one line of the log
SEALING_MS: Final = 900_000  # between two rounds of sealing, if rounds are shared


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueHealth:
    """The state of the published catalogue, which readers elsewhere use."""

    published_count: int = 0
    failure_count: int = 0
    error: str | None = None
    """Why the last attempt to publish changes failed."""


class PublishChore:
    """Publishes changes of the catalogue, one step at a time; idle without changes.

    A failure is logged and counted, and the next step tries again. Once another writer has
    published, no step does anything more.
    """

    def __init__(self, publisher: Publisher | None) -> None:
        self._publisher = publisher
        self._is_stale = False
        self._is_checked = False

    @property
    def is_enabled(self) -> bool:
        return self._publisher is not None

    @property
    def has_changes(self) -> bool:
        """Whether another step has anything to publish."""
        publisher = self._publisher
        return publisher is not None and not self._is_stale and publisher.has_changes

    def step(self) -> bool | None:
        """Publish changes; return whether readers elsewhere can see them now. None if they never
        will: a newer catalogue than this one says what is in the tier."""
        publisher = self._publisher
        if publisher is None:
            return True
        if self._is_stale:
            return None
        try:
            publisher.publish()
        except StaleCatalogueError as error:
            self._is_stale = True
            log.error("the catalogue is no longer published: %s", error)
            return None
        except TieredStoreError as error:
            log.warning("the catalogue could not be published: %s", error)
            return publisher.is_unheard
        return True

    def tell(self) -> bool | None:
        """The same before bytes are deleted. It first makes sure, once, that what is published is
        from this catalogue, which an unchanged one does not ask: it may be an older copy."""
        publisher = self._publisher
        if publisher is not None and not self._is_checked:
            try:
                publisher.check()
                self._is_checked = True
            except StaleCatalogueError:
                pass  # `step` says so
            except TieredStoreError as error:
                log.warning("what is published could not be compared: %s", error)
                return False
        return self.step()

    @property
    def announces(self) -> Publish | None:
        """What the parts that delete bytes call first; None if nothing is ever published."""
        return self.tell if self.is_enabled else None

    def health(self) -> CatalogueHealth:
        publisher = self._publisher
        if publisher is None:
            return CatalogueHealth()
        return CatalogueHealth(
            published_count=publisher.published_count,
            failure_count=publisher.failure_count,
            error=publisher.problem,
        )


class TendChore:
    """Lets the provider maintain its objects other than segments, in bounded steps.

    A failure is logged, and the next round tries again. Once another writer has taken over, it does
    nothing more.
    """

    def __init__(self, provider: SegmentProvider, broker: str) -> None:
        self._provider = provider
        self._broker = broker
        self._is_stopped = False

    @property
    def is_needed(self) -> bool:
        """Whether this provider has such maintenance at all."""
        provider = self._provider
        while isinstance(provider, ProviderWrapper):
            provider = provider.inner
        return type(provider).tend is not SegmentProvider.tend

    def step(self) -> None:
        """Do one round: until nothing is left to do, at most TENDED_AT_ONCE steps.

        Damaged or missing bytes end only their step: the provider then passes them over. The same
        error twice is of something else, perhaps a bucket that is gone.
        """
        told = ""
        try:
            for _ in range(TENDED_AT_ONCE):
                try:
                    if self._is_stopped or not self._provider.tend(self._broker):
                        return
                except (OffsetOutOfRangeError, SegmentError) as error:
                    if str(error) == told:
                        return
                    told = str(error)
                    self._warn(error)
        except FencedError as error:
            self._is_stopped = True
            log.error("%s: its upkeep has ended: %s", self._broker, error)
        except TieredStoreError as error:
            self._warn(error)

    def _warn(self, error: TieredStoreError) -> None:
        log.warning("%s: its upkeep failed in part: %s", self._broker, error)

    def stop(self) -> None:
        """Begin no further step."""
        self._is_stopped = True


def seal_full(
    files: Iterable[FlatMessageFile], provider: SegmentProvider
) -> dict[str, TieredStoreError]:
    """Seal the segments that these queues have rolled; return the failures, by path.

    Any thread may call it, whatever else happens to the queues meanwhile.
    """
    full = [segment for file in files for segment in _left_behind(file)]
    failures: dict[str, TieredStoreError] = {}
    for segment, error in zip(full, provider.seal_many(full), strict=True):
        if error is None or isinstance(error, (StoreClosedError, SegmentNotFoundError)):
            continue  # the segment was dropped meanwhile
        log.warning("%s could not be sealed: %s", segment.path, error)
        failures[segment.path] = error
    return failures


def _left_behind(file: FlatMessageFile) -> list[FileSegment]:
    """The segments that the file has rolled and that must be sealed."""
    parts = (file.log, file.queue)
    full = [found.segment for part in parts for found in part.segments[:-1]]
    return [segment for segment in full if segment.wants_seal]


def roll_unsealed(file: FlatMessageFile) -> bool:
    """Begin new segments if the current ones must be sealed.

    The caller has the claim of the queue. False if messages wait or are in doubt: they must be
    committed first. Also False if messages must still be compared: they may be taken back, which
    is possible only at the end of the queue.
    """
    if file.waiting_bytes or file.is_in_doubt or file.problem is not None:
        return False
    if file.unconfirmed_from is not None:
        return False
    for part in (file.log, file.queue):
        if part.is_started and _is_unsealed(part):
            part.roll()
    return True


def _is_unsealed(file: FlatAppendFile) -> bool:
    last = file.segments[-1]
    return bool(last.record.size) and last.segment.wants_seal


class SealChore:
    """Seals, round by round, the segments that queues have rolled, for many queues together.

    A failed segment is tried again in the next round, where the failed queues come last. A round
    ends if the backend cannot be reached, or if another writer has taken over. `errors` has the
    failures by path, and `failing` one of each queue.
    """

    def __init__(
        self,
        files: FlatFileStore,
        dispatcher: Dispatcher,
        provider: SegmentProvider,
        clock: Clock,
    ) -> None:
        self._files = files
        self._dispatcher = dispatcher
        self._provider = provider
        self._clock = clock
        self._is_stopped = False
        self.errors: dict[str, str] = {}  # replaced, never changed
        self.failing: dict[QueueKey, str] = {}  # replaced, never changed

    def step(self) -> dict[str, str]:
        """Do one round; return its failures, by path."""
        errors: dict[str, str] = {}
        last = self.failing
        wanting = [file for file in self._files.files() if _left_behind(file)]
        wanting.sort(key=lambda file: file.key in last)
        # What the last round said of a queue holds until it is tried again.
        failing = {file.key: last[file.key] for file in wanting if file.key in last}
        for start in range(0, len(wanting), SEALED_AT_ONCE):
            if self._is_stopped:
                break
            together = wanting[start : start + SEALED_AT_ONCE]
            failures = seal_full(together, self._provider)
            errors.update((path, str(error)) for path, error in failures.items())
            for file in together:
                failing.pop(file.key, None)
                for segment in _left_behind(file) if failures else ():
                    if (error := failures.get(segment.path)) is not None:
                        failing[file.key] = f"could not be sealed: {error}"
            ending = (BackendUnavailableError, FencedError)
            if any(isinstance(error, ending) for error in failures.values()):
                break
        self.failing, self.errors = failing, errors
        return errors

    def seal_all(self, timeout: float | None = None) -> bool:
        """Roll the current segments and seal everything; return whether all of it is sealed."""
        clock = self._clock
        deadline = None if timeout is None else clock.monotonic() + timeout
        rolled = True
        for key in [file.key for file in self._files.files()]:
            left = None if deadline is None else max(0.0, deadline - clock.monotonic())
            with self._dispatcher.alone_with(key, timeout=left) as alone:
                file = self._files.get(key)  # only now: a deletion that failed replaces it
                if file is None:
                    continue  # destroyed meanwhile
                try:
                    rolled = bool(alone) and roll_unsealed(file) and rolled
                except TieredStoreError as error:
                    log.warning("%s: could not roll: %s", file.path, error)
                    rolled = False
        errors = self.step()
        return rolled and not errors and not self._is_stopped  # else it may have left some out

    def stop(self) -> None:
        """Look after no further queue."""
        self._is_stopped = True


class TierFlush:
    """Uploads everything, and seals and publishes it on request.

    * No caller waits longer than its timeout. A flush that is still under way then is abandoned;
      the next flush first waits for it, so there is at most one.
    * The lock for this one flush is the only thing held during I/O.
    """

    def __init__(
        self,
        next_store: MessageStore,
        dispatcher: Dispatcher,
        index: Index,
        sealing: SealChore,
        publishing: PublishChore,
        runtime: Runtime,
    ) -> None:
        self._next = next_store
        self._dispatcher = dispatcher
        self._index = index
        self._sealing = sealing
        self._publishing = publishing
        self._runtime = runtime
        self._alone = threading.Lock()  # given back by the thread that does the work

    def flush(self, timeout: float | None, *, seal: bool) -> bool:
        """Upload everything, and with `seal` seal and publish it; return whether all that the store
        had is in the tier, and with `seal` published. False also if this is late.
        """
        deadline = Deadline(self._runtime.clock, timeout)
        if not self._alone.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            log.warning("a flush did not begin in time: another one is under way")
            return False

        def flush() -> bool:
            try:
                done = self._flush(deadline, seal=seal)
                if seal:
                    self._publishing.step()
                    done = done and self._publishing.health().error is None
                return done
            finally:
                self._alone.release()

        try:
            flushing = with_deadline(self._runtime, "tier-flush", flush, deadline.left())
        except RuntimeError:  # its thread cannot be started
            self._alone.release()
            raise
        if not flushing.done():
            log.warning("a flush is late: the backend or the broker's store does not answer")
            return False
        return flushing.result()

    def make_durable(self, timeout: float | None) -> bool:
        """Have the broker's store confirm its messages, without an upload; False if it fails or is
        late.
        """
        flushing = with_deadline(
            self._runtime, "local-flush", lambda: ask_to_confirm(self._next), timeout
        )
        return flushing.done() and flushing.result()

    def _flush(self, deadline: Deadline, *, seal: bool) -> bool:
        is_durable = ask_to_confirm(self._next)
        try:
            confirmed = self._next.confirmed_offset()
            is_done = self._dispatcher.dispatch_once(force=True, timeout=deadline.left())
        except Exception as error:  # noqa: BLE001 - see `ask_to_confirm`
            log.warning("the broker's store could not say what it has: %s", error)
            return False
        if not is_done:
            failing = self._dispatcher.health().failing
            log.warning(
                "a flush is not complete: %s", _named("uploads failed or are late", failing)
            )
            return False
        if seal:
            self._index.seal()
        sealed = not seal or self._sealing.seal_all(deadline.left())
        behind = self._behind(confirmed, deadline)
        health = self._dispatcher.health()
        stopped = health.stopped.keys() - set(health.refused)
        if not sealed:
            log.warning("a flush is not complete: not every segment could be sealed")
        if behind:
            log.warning("a flush is not complete: %s", _named("queues are behind", behind))
        if stopped:
            log.warning("a flush is not complete: %s", _named("queues are stopped", stopped))
        return is_durable and sealed and not behind and not stopped

    def _behind(self, confirmed: int, deadline: Deadline) -> list[QueueKey]:
        """The queues with messages below `confirmed` that the tier lacks."""
        found = [key for key, at in self._dispatcher.needed_by_queue().items() if at < confirmed]
        return [key for key in found if self._is_behind(key, confirmed, deadline)]

    def _is_behind(self, key: QueueKey, confirmed: int, deadline: Deadline) -> bool:
        # A topic that is being deleted is gone from the tier first: wait until it is from both.
        with self._dispatcher.alone_with(key, timeout=deadline.left()):
            needed = self._dispatcher.needed_of(key)
        return needed is not None and needed < confirmed


def _named(what: str, keys: Collection[QueueKey]) -> str:
    """What is wrong, and with which queues; only the first are named."""
    names = [f"{key.topic}/{key.queue_id}" for key in sorted(keys)]
    more = ["..."] if len(names) > NAMED_MAX else []
    return f"{what}: {', '.join([*names[:NAMED_MAX], *more])}" if names else what


def ask_to_confirm(store: MessageStore) -> bool:
    """Ask a store that has `flush` to make durable what it took; False if that failed.

    A store without `flush` confirms in its own time.
    """
    flush = getattr(store, "flush", None)
    if flush is None:
        return True
    try:
        flush()
    except Exception as error:  # noqa: BLE001 - a store is any class, and may raise anything
        log.warning("the broker's store could not make its messages durable: %s", error)
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What expired; `undeleted` are paths whose bytes are still there and marked for deletion."""

    segment_count: int
    dropped_bytes: int
    min_offset: int
    undeleted: tuple[str, ...] = ()


def kept_from(config: StoreConfig, topic: TopicRecord | None, now_ms: int) -> int | None:
    """The store time from which on messages of a topic are kept; None if all are kept for ever.

    Messages of a topic that the catalogue does not know are kept for ever.
    """
    if topic is None or not config.expiry_enabled:
        return None
    hours = topic.reserve_hours
    if hours is None or hours <= 0:
        hours = config.reserve_hours
    return now_ms - hours * HOUR_MS


def expire(
    file: FlatMessageFile,
    before_ms: int,
    *,
    source: ByteSource = DIRECT,
    keep_bytes: bool = False,
) -> Expired:
    """Drop the oldest segments, whose messages were all stored before a time.

    * The log's segments decide. The units of their messages are dropped before them, so every
      message that can be found has its record.
    * The catalogue forgets a segment before its bytes are deleted, and notes the deletion: what a
      crash or an error leaves behind is deleted later, and with `keep_bytes` everything is. Nothing
      is tried twice here.
    * The last segment is dropped only as a whole, if nothing waits or may have landed. An empty one
      takes its place, so the queue always keeps its offsets.

    The caller is the only one that appends to this queue, and no commit of it is under way. Raises
    what the backend raises if times must be read, and what the catalogue raises.
    """
    going = _going(file, before_ms, source)
    if not going.log:
        return going.foretold
    for part, segments in ((file.log, going.log), (file.queue, going.queue)):
        if segments and segments[-1] is part.segments[-1]:
            part.roll()
    undeleted = [
        *file.queue.drop(going.queue, keep_bytes=keep_bytes),
        *file.log.drop(going.log, keep_bytes=keep_bytes),
    ]
    return replace(going.foretold, min_offset=file.min_offset, undeleted=tuple(undeleted))


def would_expire(file: FlatMessageFile, before_ms: int, *, source: ByteSource = DIRECT) -> Expired:
    """What `expire` would return now; changes nothing."""
    return _going(file, before_ms, source).foretold


BUSY_SECONDS_MAX: Final = 5.0  # the longest wait for a queue that is being uploaded


class Retention:
    """Drops the segments of every queue that are older than the retention of its topic.

    A queue that fails is logged, recorded in `errors` and tried again in the next round, and so is
    one that is always being uploaded; neither delays other queues.
    """

    def __init__(
        self,
        files: FlatFileStore,
        dispatcher: Dispatcher,
        *,
        forget: Callable[[QueueKey], None],
        metadata: MetadataStore,
        config: StoreConfig,
        clock: Clock,
        pool: Callable[[], Pool] = InlinePool,
    ) -> None:
        self._files = files
        self._dispatcher = dispatcher
        self._pool = pool  # for one round: queues that expire in parallel share entries
        self._forget = forget  # drops what is cached of expired messages
        self._metadata = metadata
        self._config = config
        self._clock = clock
        self._is_stopped = False
        self.errors: dict[QueueKey, str] = {}  # replaced, never changed

    def step(self) -> None:
        """Do one round; does nothing if `expiry_enabled` is off."""
        if not self._config.expiry_enabled:
            return
        self._files.delete_pending(is_stopped=lambda: self._is_stopped)
        errors: dict[QueueKey, str] = {}

        def look_after(file: FlatMessageFile) -> None:
            if self._is_stopped:
                return
            try:
                self._expire(file)
            except TieredStoreError as error:
                log.warning("%s: could not drop expired segments: %s", file.path, error)
                errors[file.key] = str(error)

        pool = self._pool()
        try:
            for future in [pool.submit(look_after, file) for file in self._files.files()]:
                future.result()
        finally:
            pool.close()
        self.errors = errors
        if self._files.tells_first:
            self._files.delete_pending(is_stopped=lambda: self._is_stopped)

    def stop(self) -> None:
        """Look after no further queue."""
        self._is_stopped = True

    def _expire(self, file: FlatMessageFile) -> None:
        topic = self._metadata.topic(file.key.topic)
        before_ms = kept_from(self._config, topic, self._clock.now_ms())
        if before_ms is None:
            return
        with self._dispatcher.alone_with(file.key, timeout=BUSY_SECONDS_MAX) as alone:
            if not alone:
                log.info("%s: is being uploaded, expired in the next round", file.path)
            elif self._files.get(file.key) is file:
                expire(file, before_ms, keep_bytes=self._files.tells_first)
                self._forget(file.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredQueue:
    """What expired in one queue, or would expire; or why that is unknown."""

    key: QueueKey
    expired: Expired | None
    failure: str | None = None


def expire_tier(
    files: FlatFileStore,
    metadata: MetadataStore,
    config: StoreConfig,
    *,
    now_ms: int,
    dry_run: bool = False,
) -> Iterator[ExpiredQueue]:
    """Expire queue by queue; yields the queues that had anything too old. A failure affects only
    its own queue.

    The caller holds the catalogue's lock, unless it is a dry run. The key index is left unchanged:
    its items of dropped messages find nothing. See `IndexStore.expire_unopened`.

    Raises at the end what the catalogue raises if it cannot keep what was yielded.
    """
    for file in sorted(files.files(), key=lambda file: file.key):
        topic = metadata.topic(file.key.topic)
        before_ms = kept_from(config, topic, now_ms)
        if before_ms is None:
            continue
        try:
            if dry_run:
                expired = would_expire(file, before_ms)
            else:
                expired = expire(file, before_ms, keep_bytes=files.tells_first)
        except TieredStoreError as error:
            yield ExpiredQueue(key=file.key, expired=None, failure=str(error))
            continue
        if expired.segment_count:
            yield ExpiredQueue(key=file.key, expired=expired)
    if dry_run:
        return
    metadata.apply([])  # what is staged was not written yet if the bytes could not be deleted
    if files.tells_first:
        files.delete_pending(is_stopped=lambda: False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Going:
    """The segments to drop: those of the log decide, and those of the queue follow."""

    log: Sequence[FlatSegment]
    queue: Sequence[FlatSegment]
    foretold: Expired


def _going(file: FlatMessageFile, before_ms: int, source: ByteSource) -> _Going:
    may_roll = _may_roll(file)
    old = _expired(file, before_ms, may_roll, source)
    minimum = None
    while old and (minimum := _first_behind(file, old[-1].end, source)) is None:
        old.pop()
    if minimum is None:
        nothing = Expired(segment_count=0, dropped_bytes=0, min_offset=file.min_offset)
        return _Going(log=(), queue=(), foretold=nothing)
    names = [found for found in file.queue.segments if found.end <= minimum * UNIT_BYTES]
    if names and names[-1] is file.queue.segments[-1] and not (may_roll and names[-1].record.size):
        names.pop()
    foretold = Expired(
        segment_count=len(names) + len(old),
        dropped_bytes=sum(segment.record.size for segment in [*names, *old]),
        min_offset=max(minimum, file.queue.min_unit),
    )
    return _Going(log=old, queue=names, foretold=foretold)


def _may_roll(file: FlatMessageFile) -> bool:
    """Whether the queue may roll: not while its last messages may have to be taken back, nor while
    it is not known whether others have landed: their records would go, and their units stay."""
    is_sure = file.problem is None and file.unconfirmed_from is None
    return is_sure and not (file.waiting_bytes or file.is_in_doubt)


def _expired(
    file: FlatMessageFile, before_ms: int, may_roll: bool, source: ByteSource
) -> list[FlatSegment]:
    """The log segments at the beginning whose messages are all too old."""
    old: list[FlatSegment] = []
    for segment in file.log.segments:
        # Nothing is committed after it: the queue must roll too, or its units would dangle.
        if segment.end == file.log.commit_offset and not (may_roll and segment.record.size):
            break
        times = believed_times(file, segment, source=source)
        # Without times it holds no message, and its bytes are as old as the segment.
        if (segment.record.create_timestamp if times is None else times[1]) >= before_ms:
            break
        old.append(segment)
    return old


def _first_behind(file: FlatMessageFile, border: int, source: ByteSource) -> int | None:
    """The first message after the end of a log segment; None if later messages need the bytes
    before it.

    That happens only in a log that another broker wrote: its units may not ascend, or it may have a
    copy of a record that no unit names. The queue's minimum is read from the record at the border,
    so a record must begin there, and no unit from it on may name bytes that would be gone.
    """
    if border == file.log.commit_offset:
        return first_unit_from(file, border, source=source)
    head = queue_offset_at(file, border, source)
    if head is None:
        return None
    found = first_unit_from(file, border, source=source)
    first = min(head, found)
    behind = [each for each in file.queue.segments if each.end > first * UNIT_BYTES]
    if all(each.segment.wants_seal for each in behind):
        return found  # open in a log: this writer wrote these units, so they ascend
    spans = UnitSpans.of(file.queue, first, file.queue.commit_unit)
    count = min(spans.count, UNITS_AT_ONCE)
    if not count:
        return found
    places = log_offsets_of(file.queue, spans, 0, count, source)
    return None if (places < border - CODA_BYTES).any() else found
