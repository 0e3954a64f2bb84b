"""All queues of a tier: opened from the catalogue, created and destroyed."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from tieredstore.codec.names import INDEX_TOPIC, index_queue_path, queue_of, queue_path
from tieredstore.driver.metadata import (
    LINEAGE,
    Change,
    DeleteNote,
    DeleteQueue,
    DeleteTopic,
    MetadataStore,
    Put,
    PutNote,
)
from tieredstore.driver.one_process import OneProcess
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.append_file import (
    WAIT_SECONDS,
    Announcement,
    PendingDeletions,
    Publish,
    SegmentKey,
    mark_for_deletion,
)
from tieredstore.flat.message_file import LOG_START_NOTE, FlatMessageFile
from tieredstore.flat.recovery import forget_unconfirmed, load_unread, recover
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    MetadataError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    StoreClosedError,
    TieredStoreError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.topics import why_no_topic
from tieredstore.model.values import QueueKey, QueueRecord, SegmentType, TopicRecord

log = log_of(__name__)

AGAIN_SECONDS: Final = 10  # until what seems damaged is read again; doubled each time
AGAIN_SECONDS_MAX: Final = 3600
STRETCH_QUEUES: Final = 16  # recovered by a thread in one go, if there are thousands
NEAR_SECONDS: Final = 0.001  # per queue; more means a network or a slow disk
BELIEVED_TRIES: Final = 6  # in five minutes or more: until then local retention waits

Alone: TypeAlias = Callable[[QueueKey], AbstractContextManager[bool]]


def _undisturbed(_key: QueueKey) -> AbstractContextManager[bool]:
    """For stores that nobody writes to."""
    return nullcontext(True)


class FlatFileStore:
    """All queues of one broker in the tier.

    * Queues lie under the broker's configured name, as in RocketMQ.
    * The table includes queues that could not be recovered: reads see what the catalogue knows of
      them, `problem` says why nothing is uploaded, and `retry_recovery` tries again. What seems
      damaged is read again at once, because the read may be at fault, then at growing intervals.
    * A read-only store changes nothing; `refresh` shows what a writer has done since.
    * `publish` shows the catalogue to readers elsewhere and returns whether it succeeded. Only then
      are the bytes of destroyed queues and expired segments deleted, as a reader with an older
      catalogue would take a half-deleted queue for damage. See `Announcement`.
    * Any thread may call `files` and `get`; only the thread that writes the queues may call the
      rest.
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        provider: SegmentProvider,
        metadata: MetadataStore,
        runtime: Runtime,
        read_only: bool = False,
        publish: Publish | None = None,
    ) -> None:
        self._config = config
        self._provider = provider
        self._metadata = metadata
        self._runtime = runtime
        self._read_only = read_only
        self._announcement = Announcement(publish, runtime.clock)
        # Queue paths with marks in the published catalogue. None if it is from an earlier process,
        # which may have marked any; these have waited long enough once any deletion has.
        self._doomed_elsewhere: set[str] | None = None
        self._files: dict[QueueKey, FlatMessageFile] = {}
        self._unrecovered: dict[QueueKey, _Unrecovered] = {}
        self._guard = threading.Lock()  # of both tables; never held during I/O
        # The key index deletes its own segments, because it uses offsets again, and must know that
        # no delete is under way there.
        indexed = index_queue_path(config.broker_name) if config.index_enabled else ""
        self._pending_deletions = PendingDeletions(
            provider, metadata, left_out=indexed, is_shown=self._shows
        )
        self._closed = False
        self._process = OneProcess(f"the queues of {config.broker_name}")

    def load(self) -> None:
        """Open every queue of the catalogue, many at a time, and delete marked segments.

        Raises MetadataError, and BackendUnavailableError if not one queue could be reached.
        """
        self._check_open()
        if not self._metadata.notes(LINEAGE):
            self._doomed_elsewhere = set()
        if not self._read_only:
            self._runtime.dispatch.submit(self.delete_in_background)
        rows = self._rows()
        self._warn_of_other_brokers(rows)
        self._open([self._made(record) for record in rows])
        failures = [unrecovered.error for unrecovered in self._unrecovered.values()]
        lost = [error for error in failures if _is_transient(error)]
        if lost and len(lost) == len(self._files):
            raise lost[0]

    def retry_recovery(self, alone: Alone = _undisturbed) -> int:
        """Try again to recover those queues that are due; return how many are not recovered.

        Each queue is recovered inside `alone`, so that nothing else appends to it or expires it. A
        queue that `alone` does not grant is left for the next time.
        """
        with self._guard:
            now = self._runtime.clock.monotonic()
            due = [key for key, failed in self._unrecovered.items() if failed.due <= now]
            again = [self._files[key] for key in due]
        for future in [self._runtime.fetch.submit(self._retry, file, alone) for file in again]:
            future.result()
        return len(self._unrecovered)

    def is_out_of_reach(self, key: QueueKey) -> bool:
        """Whether a queue is not recovered because the backend was unreachable, which will pass."""
        with self._guard:  # its outcome may be noted just now
            failure = self._unrecovered.get(key)
        return failure is not None and _is_transient(failure.error)

    def may_recover(self, key: QueueKey) -> bool:
        """Whether a queue with a problem may still recover: the backend was unreachable, or what
        seems damaged has not been read often enough to be believed."""
        with self._guard:  # its outcome may be noted just now
            failure = self._unrecovered.get(key)
        if failure is None:
            return False
        if isinstance(failure.error, BackendError):
            return _is_transient(failure.error)
        return failure.tries < BELIEVED_TRIES

    def look_again(self, file: FlatMessageFile) -> None:
        """Recover a queue again now. Nobody else may work on it. Raises what the backend and the
        catalogue raise; what seems damaged becomes its `problem`, and is read again later."""
        begun = _Unrecovered(TieredStoreError(f"{file.path} is being read"), tries=0, due=math.inf)
        with self._guard:  # first: no single reading may pass for the truth
            self._unrecovered.setdefault(file.key, begun)
        failure: TieredStoreError | None = None
        try:
            self._recover(file)
        except TieredStoreError as error:
            failure = error
            raise
        finally:  # the first reading may have found a problem before the second one failed
            problem = _problem_of(file)
            with self._guard:
                self._settle(file, problem and (failure or problem))

    def refresh(self) -> None:
        """Show what a writer has done since. Only for read-only stores."""
        self._check_open()
        self._metadata.refresh()
        self._provider.refresh()  # otherwise bytes that the newer catalogue names seem missing
        rows = {record.key: record for record in self._rows()}
        numbers = {record.topic: record.topic_id for record in self._metadata.topics()}
        with self._guard:
            gone = self._taken_out(self._files.keys() - rows.keys())
            known = dict(self._files)
            for key, file in known.items():  # a topic that was created again has another number
                file.topic_id = numbers.get(key.topic, -1)
        for file in gone:
            file.close()
        self._open([known.get(key) or self._made(row) for key, row in rows.items()])

    def files(self) -> list[FlatMessageFile]:
        """All queues at present."""
        with self._guard:
            return list(self._files.values())

    def of_topic(self, topic: str) -> list[FlatMessageFile]:
        """The queues of one topic, without a walk through all others."""
        found = (self._files.get(row.key) for row in self._metadata.queues(topic))
        return [file for file in found if file is not None]

    def get(self, key: QueueKey) -> FlatMessageFile | None:
        return self._files.get(key)

    def why_refused(self, key: QueueKey) -> str | None:
        """Why no queue can have this name; None if one can. Does not ask the backend.

        A queue that is older than our rule for names continues, if the provider can hold it.
        """
        file = self.get(key)
        is_new = file is None or not file.is_started
        if is_new and (reason := why_no_topic(key.topic)):
            return f"no tier holds a topic of this name: {reason}"
        try:
            self._provider.open(self._path(key), SegmentType.COMMIT_LOG, 0).close()
        except BackendRefusedError as error:
            return f"this provider holds no topic of this name: {error}"
        return None

    def create(self, topic: str, queue_id: int) -> FlatMessageFile:
        """Return the queue, created if there is none. Raises what the backend and the catalogue
        raise."""
        self._check_open()
        key = QueueKey(topic, queue_id)
        file = self.get(key)
        if file is not None:
            return file
        if reason := self.why_refused(key):  # before it gets into the catalogue
            raise BackendRefusedError(self._path(key), "create", reason)
        record = self._metadata.queue(topic, queue_id)
        self._metadata.add_topic(topic)
        if record is None:
            record = QueueRecord(
                broker_name=self._config.broker_name,
                topic=topic,
                queue_id=queue_id,
                update_timestamp=self._runtime.clock.now_ms(),
            )
            self._metadata.stage([Put(record)])
        file = self._made(record)
        # The new queue cannot write where bytes of a destroyed queue of its name still lie.
        left = self._pending_deletions.count(file.path)
        if left and (told := self._told()) is not None:
            pending = self._pending_deletions
            left = pending.delete_path(file.path, seconds=WAIT_SECONDS, only=told)
        if left:
            raise BackendUnavailableError(file.path, "create", "an older queue is still there")
        is_told = not self._is_doomed_elsewhere(file.path) or self._told() is not None
        if not (is_told or self._announcement.is_stale):
            raise BackendUnavailableError(file.path, "create", "an older queue is still published")
        self._recover(file)
        with self._guard:
            if self._metadata.queue(topic, queue_id) is None:
                raise BackendUnavailableError(file.path, "create", "it was deleted just now")
            file = self._files.setdefault(key, file)
            self._settle(file, _problem_of(file))
            return file

    def destroy(self, key: QueueKey, *also: Change) -> None:
        """Remove a queue, from the catalogue first, where `also` changes too. Bytes that cannot be
        deleted stay marked.

        Its topic stays. A later queue of this name has another log, which begins after this one's.
        """
        self._check_open()
        path = self._path(key)
        rows = self._metadata.segments(path, SegmentType.COMMIT_LOG)
        end = max((row.end_offset for row in rows), default=0)
        self._destroy([key], *([PutNote(LOG_START_NOTE, path, end)] if end else []), *also)

    def delete_topics(self, topics: Iterable[str]) -> int:
        """Remove topics with all their queues; return how many of the topics existed."""
        self._check_open()
        count = 0
        for topic in topics:
            if topic == INDEX_TOPIC:
                continue
            keys = {record.key for record in self._metadata.queues(topic)}
            # Also queues whose deletion had failed, but took effect later.
            keys |= {file.key for file in self.files() if file.key.topic == topic}
            if keys or self._metadata.topic(topic) is not None:
                prefix = self._path(QueueKey(topic, 0)).removesuffix("0")
                noted = self._metadata.notes(LOG_START_NOTE)
                anew = [DeleteNote(LOG_START_NOTE, it) for it in noted if it.startswith(prefix)]
                self._destroy(sorted(keys), DeleteTopic(topic), *anew)
                count += 1
        return count

    @property
    def tells_first(self) -> bool:
        """Whether readers elsewhere have to be told before bytes are deleted. `delete_pending` does
        both."""
        return self._announcement.is_needed

    def delete_pending(self, *, is_stopped: Callable[[], bool]) -> int:
        """Try again to delete marked segments; return how many are still marked."""
        left = self._pending_deletions.count()
        told = self._told() if left else None
        if told is None:
            return left
        return self._pending_deletions.delete(only=told, is_stopped=is_stopped)

    def delete_in_background(self) -> None:
        """The same without a caller that waits: at the start, and whenever readers elsewhere may
        have been told."""
        try:
            self.delete_pending(is_stopped=lambda: self._closed)
        except TieredStoreError as error:
            log.warning("unused segments could not be deleted: %s", error)

    def close(self) -> None:
        """Release the handles of all queues. Idempotent."""
        self._process.require()
        self._closed = True
        for file in self.files():
            file.close()

    def _rows(self) -> list[QueueRecord]:
        """The catalogue's queues. The key index has a queue's place but is not a queue: it would be
        dropped together with topics that stay out of the tier."""
        return [row for row in self._metadata.queues() if row.topic != INDEX_TOPIC]

    def _destroy(self, keys: list[QueueKey], *also: Change) -> None:
        changes = list(also)
        paths = [self._path(key) for key in keys]
        for key, path in zip(keys, paths, strict=True):
            changes.append(DeleteQueue(key.topic, key.queue_id))
            changes += mark_for_deletion(self._metadata.segments(path))
            changes += forget_unconfirmed(path, self._metadata)
        try:
            self._metadata.apply(changes)
        except TieredStoreError as error:
            self._doubt(keys, error)
            raise
        with self._guard:
            closing = self._taken_out(keys)
        for file in closing:
            file.close()
        self._forget_late(paths)
        told = self._told()  # only once, because each deletion changes what has to be published
        if told is not None:
            mine = set(paths)
            self._pending_deletions.delete(only={key for key in told if key[0] in mine})

    def _shows(self, segment: SegmentKey) -> bool:
        """Whether readers find this segment in the table."""
        path, kind, base = segment
        key = queue_of(path)
        file = None if key is None else self.get(key)
        if file is None or file.path != path:
            return False
        of_kind = file.log if kind is SegmentType.COMMIT_LOG else file.queue
        return any(each.base == base for each in of_kind.segments)

    def _is_doomed_elsewhere(self, path: str) -> bool:
        """Whether the published catalogue may have marks at this path. A broker that continues from
        it after losing its disk would delete new segments in place of the old ones."""
        return self._doomed_elsewhere is None or path in self._doomed_elsewhere

    def _told(self) -> frozenset[SegmentKey] | None:
        """The marked segments, if they may be deleted: readers elsewhere know of the deletion, or
        it has waited long enough. None if it has to wait."""
        marked = self._pending_deletions.marked()
        before = {path for path, _, _ in marked}
        if self._announcement.make():
            self._doomed_elsewhere = before | self._pending_deletions.paths()
            return marked
        if not self._announcement.is_overdue():
            return None
        if self._doomed_elsewhere is None:  # otherwise new queues wait as long, one after another
            self._doomed_elsewhere = before
        return marked

    def _doubt(self, keys: Collection[QueueKey], error: TieredStoreError) -> None:
        """Stop writing to these queues while nobody knows whether their deletion took effect or
        still will: what is written could belong to a queue that the catalogue no longer has."""
        with self._guard:
            doubtful = self._taken_out(keys)
        for file in doubtful:
            file.close()
            record = self._metadata.queue(*file.key)
            if record is None:
                continue
            again = self._made(record)
            again.problem = f"not recovered: {error}"
            with suppress(TieredStoreError):
                load_unread(again, self._metadata)
            with self._guard:
                self._files[again.key] = again
                self._settle(again, error)

    def _is_gone(self, file: FlatMessageFile) -> bool:
        """Whether a deletion that had failed took effect later. If so, the queue is removed here
        too."""
        self._metadata.apply([])  # makes the catalogue find out what became of its changes
        if self._metadata.queue(*file.key) is not None:
            return False
        with self._guard:
            gone = self._taken_out([file.key])
        for each in gone:
            each.close()
        self._forget_late([file.path])
        return True

    def _forget_late(self, paths: Sequence[str]) -> None:
        """Mark the segments of queues that were being created while they were deleted."""
        rows = [row for path in paths for row in self._metadata.segments(path)]
        if rows:
            self._metadata.apply(mark_for_deletion(rows))

    def _taken_out(self, keys: Collection[QueueKey]) -> list[FlatMessageFile]:
        """Remove files from the table. Hold the guard."""
        for key in keys:
            self._unrecovered.pop(key, None)
        return [self._files.pop(key) for key in keys if key in self._files]

    def _open(self, files: Sequence[FlatMessageFile]) -> None:
        """Recover queues, in parallel if that is faster, and put all of them into the table,
        recovered or not."""
        failures = [] if self._provider.reads_together else self._recovered_near(files)
        left = files[len(failures) :]
        step = max(1, min(STRETCH_QUEUES, len(left) // STRETCH_QUEUES**2))
        futures = [
            self._runtime.fetch.submit(self._all_recovered, left[at : at + step])
            for at in range(0, len(left), step)
        ]
        failures += [failure for future in futures for failure in future.result()]
        with self._guard:
            for file, failure in zip(files, failures, strict=True):
                self._files[file.key] = file
                self._settle(file, failure)

    def _retry(self, file: FlatMessageFile, alone: Alone) -> None:
        with alone(file.key) as is_alone:
            if not is_alone or self._files.get(file.key) is not file or file.waiting_bytes:
                return
            failure: TieredStoreError | None
            try:
                if self._is_gone(file):
                    return
                failure = self._recovered(file)
            except BackendUnavailableError as error:
                failure = error
            with self._guard:
                self._settle(file, failure)

    def _settle(self, file: FlatMessageFile, failure: TieredStoreError | None) -> None:
        """Note the outcome of a recovery, and when the next one is due. Hold the guard."""
        known = self._unrecovered.pop(file.key, None)
        if failure is None or self._files.get(file.key) is not file:  # destroyed meanwhile
            return
        now = self._runtime.clock.monotonic()
        tries, due = (known.tries, known.due) if known and known.tries else (0, now)
        if isinstance(failure, (BackendError, MetadataError)):  # this says nothing of damage
            due = now
        elif due <= now:  # else somebody could not wait
            due = now + min(AGAIN_SECONDS * 2 ** min(tries, 20), AGAIN_SECONDS_MAX)
            tries += 1
        self._unrecovered[file.key] = _Unrecovered(failure, tries, due)

    def _recover(self, file: FlatMessageFile) -> None:
        """Recover a queue. What seems damaged is read once more, as the read may be at fault."""
        for is_last in (False, True):
            try:
                recover(file, self._metadata, self._runtime.clock, read_only=self._read_only)
            except (SegmentCorruptError, OffsetOutOfRangeError):
                if is_last:
                    raise
                continue
            if file.problem is None:
                return

    def _recovered_near(self, files: Sequence[FlatMessageFile]) -> list[TieredStoreError | None]:
        """Recover the first queues here, and if they took almost no time, all the others too:
        threads would only compete for the interpreter."""
        clock = self._runtime.clock
        started = clock.monotonic()
        failures = self._all_recovered(files[:STRETCH_QUEUES])
        if clock.monotonic() - started <= len(failures) * NEAR_SECONDS:
            failures += self._all_recovered(files[STRETCH_QUEUES:])
        return failures

    def _all_recovered(self, files: Sequence[FlatMessageFile]) -> list[TieredStoreError | None]:
        return [self._recovered(file) for file in files]

    def _recovered(self, file: FlatMessageFile) -> TieredStoreError | None:
        try:
            self._recover(file)
        except MetadataError:
            raise
        except TieredStoreError as error:
            log.warning("%s could not be recovered: %s", file.path, error)
            file.problem = f"not recovered: {error}"
            if not file.is_started:
                with suppress(TieredStoreError):  # a row may name no segment
                    load_unread(file, self._metadata)
            return error
        return _problem_of(file)

    def _warn_of_other_brokers(self, rows: Sequence[QueueRecord]) -> None:
        """Warn that the broker seems to have been renamed: what it tiered before is not found."""
        name = self._config.broker_name
        others = {record.broker_name for record in rows} - {name}
        if others:
            log.warning("the catalogue has queues of %s; looked for below %s", others, name)

    def _made(self, record: QueueRecord) -> FlatMessageFile:
        topic = self._metadata.topic(record.topic)
        if topic is None:  # lost from the catalogue, and its number with it
            topic = (
                TopicRecord(topic=record.topic, topic_id=-1)
                if self._read_only
                else self._metadata.add_topic(record.topic)
            )
        return FlatMessageFile(
            record,
            topic,
            self._config,
            path=self._path(record.key),
            provider=self._provider,
            metadata=self._metadata,
            clock=self._runtime.clock,
        )

    def _path(self, key: QueueKey) -> str:
        return queue_path(self._config.broker_name, key.topic, key.queue_id)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the store of flat files is closed")
        self._process.require()


@dataclass(frozen=True, slots=True)
class _Unrecovered:
    """Why a queue could not be recovered, how often it seemed damaged, and when it is due again."""

    error: TieredStoreError
    tries: int
    due: float


def _problem_of(file: FlatMessageFile) -> TieredStoreError | None:
    return None if file.problem is None else TieredStoreError(file.problem)


def _is_transient(error: TieredStoreError) -> bool:
    return isinstance(error, BackendUnavailableError)
