"""The upload of one queue: its state, the rules in RocketMQ's order, and the steps they choose."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeAlias

from tieredstore.access.admission import PendingCounts, UploadBudget
from tieredstore.codec.record import LOG_OFFSET_POSITION
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.metadata import Change, DeleteNote, MetadataStore, Put, PutNote
from tieredstore.driver.runtime import Clock
from tieredstore.flat import recovery
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import HOUR_MS, FlatMessageFile
from tieredstore.flat.reading import DIRECT, ByteSource, read_run
from tieredstore.index.contract import CommittedRun, Index
from tieredstore.index.watermarks import QueueId, Watermarks
from tieredstore.model.config import MIB, StoreConfig
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentCorruptError, SegmentError
from tieredstore.model.messages import MessageRun
from tieredstore.model.printable import log_of
from tieredstore.model.topics import TopicFilter
from tieredstore.model.values import Boundary, GetStatus, QueueKey, SegmentRecord

log = log_of(__name__)


@dataclass(slots=True, eq=False)
class QueueWork:
    """The upload state of one queue.

    * `batches` were appended to the file; they are dropped when they are committed and the index
      has them.
    * `buffered_bytes` is their share of the budget.
    * `index_from`: the index still needs the committed messages from this queue offset on.
    * `rows` are true, but not in the catalogue yet.
    """

    key: QueueKey
    file: FlatMessageFile | None = None
    stopped: str | None = None  # why nothing more may be uploaded, also after a restart
    is_to_resume: bool = False  # an operator asked for another comparison
    is_checked: bool = False  # the tier's last message is the local store's
    is_gone_locally: bool = False  # at the last look the local store had no such queue
    is_index_known: bool = False  # whether the index was asked what it lacks
    batches: list[CommittedRun] = field(default_factory=list)
    buffered_bytes: int = 0
    index_from: int | None = None
    rows: list[SegmentRecord] = field(default_factory=list)
    first_waiting: tuple[int, int] | None = None  # queue offset and store time
    needed_from: tuple[int, int] | None = None  # queue offset and its place in the local log
    searched: tuple[int, int] = 0, 0  # between these queue offsets nothing can be read
    wanted_bytes: int = 0  # of the budget, for a batch that did not fit
    more_waits: bool = True  # as far as is known, messages follow the last appended one
    lost_count: int = 0  # messages of this file that were skipped since the start
    failure: str | None = None
    failure_count: int = 0

    def failed(self, error: BaseException) -> None:
        self.failure = str(error) or type(error).__name__
        self.failure_count += 1

    @property
    def batch_count(self) -> int:
        return sum(map(len, self.batches))


STOPPED_QUEUE: Final = "stopped-queue"
TRUSTED_SIDE: Final = "trusted-side"
TRUST_TIER: Final = "tier"
TRUST_LOCAL: Final = "local"
_HISTORY: Final = "history of broker "
_BEHIND_LOG_OFFSET: Final = LOG_OFFSET_POSITION + 8
_COMPARED_COUNT: Final = 1024
_COMPARED_BYTES: Final = 4 * MIB


def disagreement(store: MessageStore, file: FlatMessageFile) -> str | None:
    """Why the local queue is not the tiered one; None if it seems to be."""
    return disagreement_at(store, file, file.commit_offset - 1)


def disagreement_at(
    store: MessageStore, file: FlatMessageFile, offset: int, source: ByteSource = DIRECT
) -> str | None:
    """Why a message differs between the local store and the tier; None if no difference is found.

    Reads the message at this offset from both; if the offset is in a gap of either, the last one
    before it that both have. None also if there is none, or if it has just expired.
    """
    topic, queue_id = file.key
    first = store.min_offset(topic, queue_id) or 0
    last = file.queue.last_unit_to(offset)
    while True:
        if last is None or last < first:
            return None
        local = store.read_range(topic, queue_id, last, count_max=1, bytes_max=1)
        if len(local):
            break
        kept = _last_kept(store, file.key, first, last)
        if kept == last:
            return None
        last = file.queue.last_unit_to(kept)
    tiered = read_run(file, last, count_max=1, bytes_max=_COMPARED_BYTES, source=source)
    if not len(tiered):
        return None
    if _without_log_offset(local.record(0)) == _without_log_offset(tiered.record(0)):
        return None
    return f"message {last} is another one in the local store than in the tier"


def _last_kept(store: MessageStore, key: QueueKey, first: int, offset: int) -> int:
    """The last offset up to this one whose message the local store has not lost; before `first` if
    it lost all."""

    def is_lost(at: int) -> bool:
        behind = behind_lost(store, key, at)
        return behind is not None and behind > offset

    return first - 1 + bisect_left(range(first, offset + 1), True, key=is_lost)


def contradiction(store: MessageStore, file: FlatMessageFile) -> str | None:
    """Why tiered messages that the catalogue did not name are not those of the local store.

    None if they are, as far as the local store still has them. Messages beyond its end are not its
    own: when it gets them, they are uploaded or found in the tier.
    """
    topic, queue_id = file.key
    at = file.unconfirmed_from or 0
    maximum = store.max_offset(topic, queue_id) or 0
    if file.commit_offset > maximum:
        return f"the local store ends at {maximum}"
    while True:
        at = file.queue.first_unit_from(max(at, store.min_offset(topic, queue_id) or 0))
        if at >= file.commit_offset:
            return None
        local = store.read_range(
            topic, queue_id, at, count_max=_COMPARED_COUNT, bytes_max=_COMPARED_BYTES
        )
        if not len(local):
            if (store.min_offset(topic, queue_id) or 0) > at:
                continue  # it has just been deleted
            return f"the local store has no message {at}"
        try:
            tiered = read_run(file, at, count_max=len(local), bytes_max=_COMPARED_BYTES)
        except (SegmentError, OffsetOutOfRangeError) as error:
            return f"message {at} cannot be read: {error}"
        for row in range(min(len(local), len(tiered))):
            if _without_log_offset(local.record(row)) != _without_log_offset(tiered.record(row)):
                return f"message {at + row} is another one in the local store"
        at += max(1, min(len(local), len(tiered)))


def behind_lost(store: MessageStore, key: QueueKey, offset: int) -> int | None:
    """The offset where the local queue goes on, if its message at `offset` is gone; else None."""
    page = store.get_message(*key, offset, count_max=1)
    is_lost = page.status is GetStatus.MESSAGE_WAS_REMOVING and page.next_offset > offset
    return page.next_offset if is_lost else None


DAMAGED_MS: Final = 24 * HOUR_MS
"""How long the upload of a queue waits for somebody to repair a damaged local message."""
SEARCHED_MAX: Final = 1_024  # messages in one call


def first_sound(store: MessageStore, work: QueueWork, offset: int) -> MessageRun | None:
    """The first message at or after `offset` that is neither lost nor damaged; None if none is.

    None also if one call cannot search that far: `is_searched` is False then, and the next call
    continues the search.
    """
    first, end = work.searched
    at = end if first == offset else offset
    maximum = store.max_offset(*work.key) or 0
    for _ in range(SEARCHED_MAX):
        if at >= maximum:
            break
        behind: int | None = at + 1
        with suppress(SegmentCorruptError):
            run = store.read_range(*work.key, at, count_max=1, bytes_max=1)
            if len(run):
                return run
            behind = behind_lost(store, work.key, at)
        at = maximum if behind is None else behind
    work.searched = offset, at
    return None


def is_searched(work: QueueWork, offset: int, maximum: int) -> bool:
    """Whether `first_sound` has searched from `offset` to the end of the queue in vain."""
    return work.searched[0] == offset and work.searched[1] >= maximum


def behind_damaged(store: MessageStore, work: QueueWork, *, now_ms: int) -> int | None:
    """The offset where the upload goes on after unrepaired damage; None if it must wait.

    It goes on once the first sound message after the damage is a day old.
    """
    offset = 0 if work.file is None else work.file.append_offset
    run = first_sound(store, work, offset)
    if run is None or run.first_offset <= offset:
        return None
    stored_ms = store.store_time(*work.key, run.first_offset)
    is_time = stored_ms is None or stored_ms + DAMAGED_MS <= now_ms
    return run.first_offset if is_time else None


def _why_ahead(file: FlatMessageFile, local_max: int) -> str:
    return f"the tier has messages up to {file.append_offset}, the local store up to {local_max}"


def stop_queue(file: FlatMessageFile, reason: str, metadata: MetadataStore) -> None:
    """Stop the upload of this queue, also after a restart."""
    file.problem = file.problem or reason
    metadata.apply([PutNote(STOPPED_QUEUE, file.path, {"reason": reason})])


def ask_to_resume(path: str, metadata: MetadataStore) -> bool:
    """Have a stopped queue compared at the broker's next start; False if it is not stopped."""
    note = metadata.note(STOPPED_QUEUE, path)
    if note is None:
        return False
    reason = note.get("reason") if isinstance(note, dict) else None
    metadata.apply([PutNote(STOPPED_QUEUE, path, {"reason": reason or "stopped", "resume": True})])
    return True


def trust(path: str, side: str, metadata: MetadataStore) -> None:
    """Note for the next load which of two histories is right."""
    metadata.apply([PutNote(TRUSTED_SIDE, path, side)])


def trusted_side(path: str, metadata: MetadataStore) -> str | None:
    note = metadata.note(TRUSTED_SIDE, path)
    return note if note in (TRUST_TIER, TRUST_LOCAL) else None


def forget_trust(file: FlatMessageFile, metadata: MetadataStore, *, also_stop: bool) -> None:
    """Delete the decision on a queue: it was carried out, or there is nothing to decide.

    If there was a decision, or with `also_stop`, the queue is uploaded again.
    """
    changes: list[Change] = []
    if metadata.note(TRUSTED_SIDE, file.path) is not None:  # perhaps of an interrupted load
        changes.append(DeleteNote(TRUSTED_SIDE, file.path))
        also_stop = True
    if also_stop:
        changes += _without_stops([file.path], metadata)
    if changes:
        metadata.apply(changes)


def is_asked_to_resume(path: str, metadata: MetadataStore) -> bool:
    note = metadata.note(STOPPED_QUEUE, path)
    return isinstance(note, dict) and note.get("resume") is True


def difference(store: MessageStore, file: FlatMessageFile) -> str | None:
    """Why a stopped queue must stay stopped; None if its upload can go on."""
    maximum = store.max_offset(*file.key)
    if maximum is None:
        return "the local store has no such queue"
    if file.append_offset > maximum:
        return _why_ahead(file, maximum)
    return disagreement(store, file)


def stopped_before(file: FlatMessageFile, metadata: MetadataStore) -> str | None:
    """Why the queue was stopped, now or before a restart; None if it was not."""
    note = metadata.note(STOPPED_QUEUE, file.path)
    if isinstance(note, dict):
        return str(note.get("reason", "stopped"))
    return None


def history_note(path: str, broker: str) -> PutNote:
    """The note of a queue adopted from another broker's tier: it is read, but takes no messages."""
    reason = f"{_HISTORY}{broker}: it can be read, nothing is added"
    return PutNote(STOPPED_QUEUE, path, {"reason": reason})


def is_history(path: str, metadata: MetadataStore) -> bool:
    """Whether the queue was adopted, and no broker has since stopped it for another reason."""
    note = metadata.note(STOPPED_QUEUE, path)
    return isinstance(note, dict) and str(note.get("reason", "")).startswith(_HISTORY)


def forget_stops(paths: Iterable[str], metadata: MetadataStore) -> None:
    """Delete the stops and decisions of queues that are gone or begin anew.

    The deletions are only staged: if a crash loses them, they are made again later.
    """
    paths = list(paths)
    trusted = (path for path in paths if metadata.note(TRUSTED_SIDE, path) is not None)
    decisions = [DeleteNote(TRUSTED_SIDE, path) for path in trusted]
    metadata.stage([*_without_stops(paths, metadata), *decisions])


def without_mark(key: QueueKey, metadata: MetadataStore) -> list[Change]:
    """The change that lets the key index take all of this queue if it is made again. Creation times
    do not always tell: the clock may be set back."""
    topic = metadata.topic(key.topic)
    return [] if topic is None else [Watermarks.unmarked(QueueId(topic.topic_id, key.queue_id))]


def _without_stops(paths: Iterable[str], metadata: MetadataStore) -> list[Change]:
    noted = (path for path in paths if metadata.note(STOPPED_QUEUE, path) is not None)
    return [DeleteNote(STOPPED_QUEUE, path) for path in noted]


def _without_log_offset(record: memoryview) -> tuple[bytes, bytes]:
    return bytes(record[:LOG_OFFSET_POSITION]), bytes(record[_BEHIND_LOG_OFFSET:])


CATCH_UP_BYTES: Final = 512 * 1024  # of one read: the budget does not count them


class IndexFeed:
    """Gives each committed message to the index at least once, in queue order for each queue."""

    def __init__(self, index: Index, budget: UploadBudget, config: StoreConfig) -> None:
        self._index = index
        self._budget = budget
        self._count_max = config.group_commit_count

    def opened(self, work: QueueWork, file: FlatMessageFile) -> None:
        """Ask the index what it lacks of an existing queue."""
        topic, queue_id = file.key
        known = self._index.indexed_offset(topic, file.topic_id, queue_id)
        if known is not None and known < file.commit_offset:
            work.index_from = known

    def put_batches(self, work: QueueWork) -> None:
        """Give the index the committed batches in memory. Raises what the index raises; then
        `index_from` says what it still needs.
        """
        batches, work.batches = work.batches, []
        try:
            if work.index_from is None and work.file is not None:
                for at, batch in enumerate(batches):
                    try:
                        self._put(work.file, batch)
                    except BaseException:
                        work.index_from = batches[at].run.first_offset
                        raise
        finally:
            self._budget.give(work.buffered_bytes)
            work.buffered_bytes = 0

    def catch_up(self, work: QueueWork, file: FlatMessageFile) -> None:
        """Give the index what it lacks, read from the tier."""
        if work.batches:
            self.put_batches(work)
        while work.index_from is not None:
            at = max(work.index_from, file.min_offset)
            run = self._read(file, at)
            if run is None:
                work.index_from = at + 1
            elif len(run):
                self._put(file, CommittedRun(run=run, log_offsets=run.log_offsets))
                work.index_from = run.end_offset
            elif at < (behind := file.queue.first_unit_from(at)):
                work.index_from = behind  # after a gap
            else:
                work.index_from = None

    def _read(self, file: FlatMessageFile, at: int) -> MessageRun | None:
        """Messages from `at` on; None if the first is damaged: no search could return it, so the
        index does not need it.
        """
        try:
            return read_run(file, at, count_max=self._count_max, bytes_max=CATCH_UP_BYTES)
        except SegmentCorruptError as error:
            log.error("message %d of %s is not indexed: %s", at, file.path, error)
            return None

    def _put(self, file: FlatMessageFile, run: CommittedRun) -> None:
        self._index.put(file.key.topic, file.topic_id, file.key.queue_id, run)


RECENT_MS = 120_000


class QueueChores:
    """Begins, checks, stops, skips, rolls and destroys queues of the tier."""

    def __init__(
        self,
        store: MessageStore,
        files: FlatFileStore,
        metadata: MetadataStore,
        feed: IndexFeed,
        budget: UploadBudget,
        *,
        config: StoreConfig,
        clock: Clock,
    ) -> None:
        self._store = store
        self._files = files
        self._metadata = metadata
        self._feed = feed
        self._budget = budget
        self._clock = clock
        self._begins_recent = config.initial_offset == "recent"
        self.on_conflict: Callable[[FlatMessageFile], None] = lambda _: None

    def renew(self, work: QueueWork) -> None:
        """Reset the state if the queue's file came, went or was replaced since. No I/O."""
        file = self._files.get(work.key)
        if file is work.file:
            return
        self._budget.give(work.buffered_bytes)
        work.file, work.batches, work.rows, work.buffered_bytes = file, [], [], 0
        work.is_checked, work.is_index_known = False, False
        work.index_from = work.failure = work.first_waiting = work.needed_from = None
        work.searched = 0, 0
        work.lost_count = 0
        work.stopped = None if file is None else stopped_before(file, self._metadata)
        work.is_to_resume = file is not None and is_asked_to_resume(file.path, self._metadata)

    def open_index(self, work: QueueWork, file: FlatMessageFile) -> None:
        """Ask the index what it lacks of the queue."""
        self._feed.opened(work, file)
        work.is_index_known = True

    def begin(self, work: QueueWork, minimum: int, maximum: int) -> None:
        """Begin a queue in the tier, at the oldest local message or at one of two minutes ago.

        A queue whose name the tier can never hold is stopped.
        """
        file = work.file
        work.stopped = self._files.why_refused(work.key)
        if work.stopped is not None:
            log.error("%s is not uploaded: %s", work.key, work.stopped)
            return
        if file is None:
            file = self._files.create(*work.key)
            forget_stops([file.path], self._metadata)  # what stopped an earlier queue of this name
            self.renew(work)
            if file.problem is not None:
                return
        first = minimum
        if self._begins_recent:
            since = self._clock.now_ms() - RECENT_MS
            found = self._store.offset_by_time(*work.key, since, Boundary.LOWER)
            first = minimum if found is None else min(max(found, minimum), maximum)
        file.start_at(first)
        work.is_checked = work.is_index_known = True  # the tier has none of its messages yet

    def destroy(self, work: QueueWork) -> None:
        """Delete a queue of a filtered topic from the tier."""
        file = work.file
        self._files.destroy(work.key, *without_mark(work.key, self._metadata))
        if file is not None:
            forget_stops([file.path], self._metadata)
        self.renew(work)

    def save_rows(self, work: QueueWork) -> None:
        """Save rows that could not be saved before; their segments may be gone or longer by now."""
        if work.file is not None:
            self._metadata.apply([Put(row) for row in work.file.current_rows(work.rows)])
        work.rows = []

    def index(self, work: QueueWork, file: FlatMessageFile) -> None:
        self._feed.catch_up(work, file)

    def skip_lost(self, work: QueueWork, file: FlatMessageFile) -> None:
        """Skip messages that the local store has lost, or that have been damaged for long."""
        behind: int | None = None
        with suppress(SegmentCorruptError):
            behind = behind_lost(self._store, work.key, file.append_offset)
        if behind is None:
            behind = behind_damaged(self._store, work, now_ms=self._clock.now_ms())
        if behind is not None:
            self.skip(work, file, behind)

    def skip(self, work: QueueWork, file: FlatMessageFile, minimum: int) -> None:
        """Leave a gap for messages that the local store lost before they were uploaded."""
        lost = minimum - file.append_offset
        log.error("%s: %d messages from %d were lost", file.path, lost, file.append_offset)
        file.skip_to(minimum)
        work.lost_count += lost
        work.is_checked = True  # the last tiered message is older than all local ones

    def stop_ahead(self, work: QueueWork, file: FlatMessageFile, maximum: int) -> None:
        self._stop(work, file, _why_ahead(file, maximum))

    def check(self, work: QueueWork, file: FlatMessageFile) -> None:
        reason = disagreement(self._store, file)
        if reason is not None:
            self.on_conflict(file)  # first: the catalogue may not take the stop
            self._stop(work, file, reason)
        work.is_checked = True

    def confirm(self, file: FlatMessageFile) -> None:
        """Check messages that the catalogue did not name; drop those that are not the local
        store's.
        """
        reason = contradiction(self._store, file)
        if reason is None:
            recovery.confirm(file, self._metadata)
            return
        first = file.unconfirmed_from
        log.warning("%s: its messages from %s on do not count: %s", file.path, first, reason)
        recovery.take_back(file, self._metadata)

    def resume(self, work: QueueWork) -> str | None:
        """Resume a stopped queue if both sides hold the same message; else return why it stays
        stopped."""
        file = work.file
        if file is None:
            return work.stopped or "the tier has no such queue"
        if reason := self._files.why_refused(work.key):
            return reason
        if is_history(file.path, self._metadata):
            return stopped_before(file, self._metadata)
        if work.stopped is None and file.problem is None:
            return work.failure and f"every retry fails: {work.failure}"
        if file.waiting_bytes:
            return "it has messages that wait for upload"
        work.is_index_known = False
        self._files.look_again(file)  # what was wrong may have been repaired
        if file.problem is not None:
            return file.problem
        if reason := difference(self._store, file):
            self._stop(work, file, reason)
            return reason
        # Applied, not staged: the caller is told that the queue goes on, and the local store keeps
        # its messages again.
        self._metadata.apply(_without_stops([file.path], self._metadata))
        work.stopped = work.failure = work.needed_from = None
        work.is_gone_locally = work.is_index_known = False
        work.is_checked = True
        log.info("%s: it is uploaded again", file.path)
        return None

    def try_to_resume(self, work: QueueWork, file: FlatMessageFile) -> None:
        reason = self.resume(work)
        work.is_to_resume = False  # only now: if the backend fails, it is compared again
        if reason is not None:
            log.error("%s: it stays stopped: %s", file.path, reason)

    def settle(self, work: QueueWork, file: FlatMessageFile) -> None:
        """Take in what a failed upload wrote to the backend: the memory does not know of it."""
        work.is_index_known = False
        self._files.look_again(file)

    def _stop(self, work: QueueWork, file: FlatMessageFile, reason: str) -> None:
        log.error("%s: nothing more is uploaded: %s", file.path, reason)
        work.stopped = reason
        stop_queue(file, reason, self._metadata)


class Action(Enum):
    """What to do with a queue that needs no chore."""

    NOTHING = auto()
    HOLD = auto()  # messages wait, but no batch is due
    COMMIT = auto()  # what was appended before
    UPLOAD = auto()  # the next batch


Decision: TypeAlias = Action | Callable[[], object]  # a call is a chore


class QueueRules:
    """The rules, in order: the first that applies decides. The caller has the queue's claim."""

    def __init__(
        self,
        store: MessageStore,
        chores: QueueChores,
        pending: PendingCounts,
        topic_filter: TopicFilter,
        *,
        config: StoreConfig,
        clock: Clock,
    ) -> None:
        self._store = store
        self._chores = chores
        self._pending = pending
        self._filter = topic_filter
        self._clock = clock
        self._timeout_ms = config.group_commit_timeout_ms
        self._count = config.group_commit_count
        self._always_due = not config.group_commit_enabled

    def decide(self, work: QueueWork, *, force: bool, target: int | None = None) -> Decision:
        """Decide what to do now; messages from queue offset `target` on are left for later."""
        file = work.file
        if self._filter.rejects(work.key.topic):
            return Action.NOTHING if file is None else lambda: self._chores.destroy(work)
        if file is not None and work.is_to_resume:
            return lambda: self._chores.try_to_resume(work, file)
        if file is not None and (work.stopped or file.problem) is not None:
            return Action.NOTHING
        if file is None or not file.is_started:
            return self._beginning(work)
        if self._can_be_compared(file):
            return lambda: self._chores.confirm(file)
        if not work.is_index_known:
            return lambda: self._chores.open_index(work, file)
        if work.rows:
            return lambda: self._chores.save_rows(work)
        if file.waiting_bytes:
            return Action.COMMIT
        if file.is_in_doubt:  # the batches of a failed upload were dropped
            return lambda: self._chores.settle(work, file)
        if work.batches or work.index_from is not None:
            return lambda: self._chores.index(work, file)
        return self._next_batch(work, file, force=force, target=target)

    def _can_be_compared(self, file: FlatMessageFile) -> bool:
        """Whether there are messages to compare that the catalogue did not name. Not if the local
        store ends before them: then it lost messages that the catalogue names.
        """
        first = file.unconfirmed_from
        if first is None:
            return False
        maximum = self._store.max_offset(*file.key)
        return maximum is not None and maximum >= first

    def _beginning(self, work: QueueWork) -> Decision:
        """A queue begins when there is something to upload, and the tier can hold its name."""
        if work.stopped is not None:
            return Action.NOTHING
        minimum = self._store.min_offset(*work.key)
        maximum = self._store.max_offset(*work.key)
        if minimum is None or maximum is None or minimum >= maximum:
            return Action.NOTHING
        low, high = minimum, maximum
        return lambda: self._chores.begin(work, low, high)

    def _next_batch(
        self, work: QueueWork, file: FlatMessageFile, *, force: bool, target: int | None
    ) -> Decision:
        maximum = self._store.max_offset(*work.key)
        was_gone, work.is_gone_locally = work.is_gone_locally, maximum is None
        if maximum is None:
            return Action.NOTHING
        current = file.append_offset
        minimum = self._store.min_offset(*work.key) or 0
        if current < minimum:
            return lambda: self._chores.skip(work, file, minimum)
        # A queue that came back with offsets that the tier already has is another queue.
        if current > maximum or (was_gone and minimum < current):
            return lambda: self._chores.stop_ahead(work, file, maximum)
        if not work.is_checked:  # even if nothing waits: retention deletes what the tier has
            return lambda: self._chores.check(work, file)
        if file.log.is_due_to_roll():
            return file.roll_if_due
        if current == maximum:
            self._pending.none_wait(work.key)
            return Action.NOTHING
        if target is not None and current >= target:
            return Action.NOTHING
        if force or self._always_due or self._is_due(work, current, maximum):
            return Action.UPLOAD
        return Action.HOLD

    def _is_due(self, work: QueueWork, current: int, maximum: int) -> bool:
        if maximum - current >= self._count or self._pending.is_full(work.key):
            return True
        known = work.first_waiting
        if known is None or known[0] != current:
            time = self._store.store_time(*work.key, current)
            if time is None:
                return True  # reading it shows what is wrong
            known = current, time
        now = self._clock.now_ms()
        work.first_waiting = current, min(known[1], now)  # the clock may have been set back
        return known[1] + self._timeout_ms < now
