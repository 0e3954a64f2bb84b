"""Upload: decides which queue is due, and carries messages from the broker's store to the tier."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final

from tieredstore.access.admission import ROUND, PendingCounts, QueueClaims, UploadBudget
from tieredstore.access.log_mark import LogMark
from tieredstore.access.queue_upload import (
    Action,
    Decision,
    IndexFeed,
    QueueChores,
    QueueRules,
    QueueWork,
    first_sound,
    is_history,
    is_searched,
)
from tieredstore.access.rounds import Batches, BatchOutcome, Rounds
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.metrics import Metrics, NoMetrics
from tieredstore.driver.provider import Fence, SegmentProvider
from tieredstore.driver.runtime import (
    Deadline,
    InlinePool,
    Runtime,
    Service,
    when_cancelled,
    with_deadline,
)
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.index.contract import Index, NoIndex
from tieredstore.model.config import MIB, StoreConfig
from tieredstore.model.errors import FencedError, StoreClosedError
from tieredstore.model.messages import DispatchRequest
from tieredstore.model.printable import log_of
from tieredstore.model.topics import TopicFilter
from tieredstore.model.values import INT64_MAX, QueueKey

log = log_of(__name__)

ROUND_BYTES: Final = 32 * MIB  # a larger round is sent before other queues are gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchHealth:
    """What is wrong with the upload, by queue.

    * `stopped`: nothing is uploaded until an operator acts. Adopted history does not count.
    * `refused`: the stopped queues whose names the tier cannot hold, now or later. No flush waits
      for them.
    * `failing`: the last attempt failed; it is tried again.
    * `lost`: messages that the local store lost before they were uploaded: gaps in the tier.
    * `not_indexed`: committed messages that the key index still has to take, or has lost and takes
      again after a restart.
    """

    stopped: Mapping[QueueKey, str] = field(default_factory=dict)
    refused: Collection[QueueKey] = ()
    failing: Mapping[QueueKey, str] = field(default_factory=dict)
    lost: Mapping[QueueKey, int] = field(default_factory=dict)
    not_indexed: Mapping[QueueKey, int] = field(default_factory=dict)
    buffered_bytes: int = 0
    uploads: int = 0


CHORE_SECONDS: Final = 0.5  # a shared round no longer waits for chores if none ends in this time
CHORES_SECONDS: Final = 10.0  # the longest that a shared round waits for chores
TURNS_MAX: Final = 32  # in one walk: more than the chores that a queue needs before its upload


def _nobody() -> Collection[QueueKey]:
    return ()


@dataclass(slots=True)
class Pass:
    """One pass over some queues: how to make it, and its outcome."""

    force: bool = False
    targets: dict[QueueKey, int] | None = None  # upload to these offsets; None: to the end
    only_sound: bool = False  # leave out queues whose last attempt failed
    others: Callable[[], Collection[QueueKey]] = _nobody  # queues that may join a shared round
    patience_seconds: float = CHORES_SECONDS
    fence: Fence | None = None  # if set, nothing is begun
    may_send: bool = True
    is_full: bool = False  # there was no room for a batch
    is_due: bool = False  # a shared round is made: every queue that has messages joins it
    held: list[QueueKey] = field(default_factory=list)  # messages wait, but are not due
    chores: dict[QueueKey, Future[None]] = field(default_factory=dict)  # begun by this pass
    under_way: list[QueueKey] = field(default_factory=list)  # `ended` is called for them
    put_off: list[QueueKey] = field(default_factory=list)  # no room, or claimed by others
    unconfirmed: list[QueueKey] = field(default_factory=list)
    given_back: int = 0  # claims released by the walk itself: not a change to wait for


class QueueWalk:
    """Walks over queues in the caller's thread; several threads may walk at the same time.

    A queue is claimed while it is being worked on, here or in a pool. Each claim ends with `ended`,
    whatever the outcome. A queue that fails never stops the others.
    """

    def __init__(
        self,
        store: MessageStore,
        rules: QueueRules,
        chores: QueueChores,
        batches: Batches,
        rounds: Rounds,
        claims: QueueClaims,
        budget: UploadBudget,
        runtime: Runtime,
        *,
        fence: Callable[[], Fence | None],
        ended: Callable[[QueueWork], None],
    ) -> None:
        self._store = store
        self._rules = rules
        self._chores = chores
        self._batches = batches
        self._rounds = rounds
        self._claims = claims
        self._budget = budget
        self._runtime = runtime
        self._fence = fence
        self._ended = ended
        self.works: dict[QueueKey, QueueWork] = {}
        self.is_stopped = False

    def work_of(self, key: QueueKey) -> QueueWork:
        return self.works.get(key) or self.works.setdefault(key, QueueWork(key))

    def was_compared(self, key: QueueKey) -> None:
        work = self.work_of(key)
        self._chores.renew(work)
        work.is_checked = True

    def resume(self, key: QueueKey) -> str | None:
        """Resume a stopped queue, or return why not; the caller has its claim."""
        work = self.work_of(key)
        self._chores.renew(work)
        return self._chores.resume(work)

    def walk(self, keys: Iterable[QueueKey], this_pass: Pass) -> None:
        """Begin the chores that these queues need, and send their messages in rounds."""
        this_pass.fence = self._fence()
        if self._rounds.are_shared:
            self._walk_together(list(keys), this_pass)
        else:
            self._walk_apart(keys, this_pass)

    def _walk_apart(self, keys: Iterable[QueueKey], this_pass: Pass) -> None:
        """Send what is due, in rounds of about `ROUND_BYTES`."""
        gathered: list[QueueWork] = []
        gathered_bytes = 0
        try:
            for work in self._taken_of(keys, this_pass):
                gathered.append(work)
                gathered_bytes += work.buffered_bytes
                if gathered_bytes >= ROUND_BYTES:
                    full, gathered, gathered_bytes = gathered, [], 0
                    self._rounds.send(full)
        except StoreClosedError:
            log.info("the store is closed: nothing more is uploaded")
        except BaseException:
            self._let_go(gathered)
            raise
        if gathered:
            self._rounds.send(gathered)

    def _walk_together(self, keys: Sequence[QueueKey], this_pass: Pass) -> None:
        """Send everything in one round, if any of it is due. Only one round is under way."""
        this_pass.may_send = self._claims.take(ROUND)
        gathered: list[QueueWork] = []
        try:
            for work in self._taken_together(keys, this_pass):
                gathered.append(work)  # noqa: PERF402 - what is taken before an error is sent
        except StoreClosedError:
            log.info("the store is closed: nothing more is uploaded")
        except BaseException:
            self._let_go(gathered)
            if this_pass.may_send:
                self._give_back(ROUND, this_pass)
            raise
        if gathered:
            self._rounds.send_shared(gathered)
        elif this_pass.may_send:
            self._give_back(ROUND, this_pass)

    def _let_go(self, works: Sequence[QueueWork]) -> None:
        """Give back queues that are not sent; what was appended to them waits for the next walk."""
        self._budget.end_upload(len(works))
        self._claims.give(*(work.key for work in works))

    def _taken_together(self, keys: Sequence[QueueKey], this_pass: Pass) -> Iterator[QueueWork]:
        """Take the due queues, then those whose chores have ended: so queues that begin at the same
        time share their first round. If any was due, take the other queues that have messages.
        """
        patience = Deadline(self._runtime.clock, this_pass.patience_seconds)
        todo, seen = keys, set(keys)
        for _ in range(TURNS_MAX):
            yield from self._taken_of(todo, this_pass)
            if this_pass.is_full or self.is_stopped or not this_pass.may_send:
                return
            todo = self._done_with_chores(this_pass, patience)
            if not todo and this_pass.is_due:
                others = [key for key in this_pass.others() if key not in seen]
                todo, this_pass.held = [*this_pass.held, *others], []
                seen.update(others)
            if not todo:
                return

    def _done_with_chores(self, this_pass: Pass, patience: Deadline) -> list[QueueKey]:
        """Wait a little for chores; return the queues whose chore succeeded: they may be due."""
        wait(this_pass.chores.values(), min(CHORE_SECONDS, patience.left() or 0.0))
        done = [key for key, chore in this_pass.chores.items() if chore.done()]
        for key in done:
            del this_pass.chores[key]
        return [key for key in done if self.work_of(key).failure is None]

    def _taken_of(self, keys: Iterable[QueueKey], this_pass: Pass) -> Iterator[QueueWork]:
        """Take the queues that have something to send now; begin what the others need."""
        todo = deque(keys)
        while todo and not self.is_stopped:
            key = todo.popleft()
            work = self.work_of(key)
            if this_pass.only_sound and work.failure is not None:
                continue
            if not self._claims.take(key):
                this_pass.put_off.append(key)
                continue
            taken = self._look_at(work, this_pass)
            if taken is BatchOutcome.NO_ROOM:
                this_pass.is_full = True
                this_pass.put_off += [key, *todo]
                return
            if taken is BatchOutcome.APPENDED:
                this_pass.is_due = self._rounds.are_shared
                yield work

    def forget_others(self, keys: Collection[QueueKey]) -> None:
        """Forget all other queues: neither store has them."""
        for key in [known for known in list(self.works) if known not in keys]:
            if not self._claims.take(key):
                continue
            try:
                work = self.works.get(key)  # another thread may have looked just before
                if work is not None:
                    self._chores.renew(work)
                    if work.file is None:
                        del self.works[key]
            finally:
                self._claims.give(key)

    def _look_at(self, work: QueueWork, this_pass: Pass) -> BatchOutcome | None:
        """Do what the queue needs; return the outcome of its next batch, if one is due. The claim
        is given back unless a chore or an upload of the queue is then under way.
        """
        key = work.key
        under_way = False
        taken: BatchOutcome | None = None
        try:
            self._chores.renew(work)
            target = None
            if this_pass.targets is not None:
                target = this_pass.targets.setdefault(key, self._store.max_offset(*key) or 0)
            force = this_pass.force or this_pass.is_due
            decision = self._rules.decide(work, force=force, target=target)
            if decision is Action.NOTHING:
                work.failure = None
            elif decision is Action.HOLD:
                this_pass.held.append(key)
            elif this_pass.fence is not None:
                self._refuse(work, this_pass.fence)
            elif not isinstance(decision, Action):
                under_way = True
                this_pass.chores[key] = self._start_chore(work, decision)
            elif not this_pass.may_send:
                this_pass.put_off.append(key)
            else:
                taken = self._take(work, decision, this_pass)
                under_way = taken in (BatchOutcome.APPENDED, BatchOutcome.LOST)
                if taken is BatchOutcome.UNCONFIRMED:
                    this_pass.unconfirmed.append(key)
        except StoreClosedError:
            under_way = False
            raise
        except Exception as error:  # noqa: BLE001 - one queue never stops the others
            log.warning("%s/%s: %s", key.topic, key.queue_id, error)
            work.failed(error)
        finally:
            if not under_way:
                self._give_back(key, this_pass)
        if under_way:
            this_pass.under_way.append(key)
        return taken

    def _take(self, work: QueueWork, decision: Decision, this_pass: Pass) -> BatchOutcome:
        """Take a permit for an upload, and the next batch."""
        file = work.file
        assert file is not None
        if not self._budget.start_upload():
            return BatchOutcome.NO_ROOM
        taken = BatchOutcome.NO_ROOM
        try:
            if decision is Action.COMMIT:
                work.more_waits = True
                taken = BatchOutcome.APPENDED
            else:
                taken = self._batches.take(work, file)
                if taken is BatchOutcome.NO_ROOM and self._relieve(this_pass):
                    taken = self._batches.take(work, file)
        finally:
            if taken is not BatchOutcome.APPENDED:
                self._budget.end_upload()
        if taken is BatchOutcome.LOST:
            skip = partial(self._chores.skip_lost, work, file)
            this_pass.chores[work.key] = self._start_chore(work, skip)
        return taken

    def _refuse(self, work: QueueWork, fence: Fence) -> None:
        """Fail a queue because another writer has the tier: its batches leave the memory, and
        `health` shows why.
        """
        file = work.file
        if file is not None and file.waiting_bytes:
            self._batches.drop(work, file)
        path = f"{work.key.topic}/{work.key.queue_id}" if file is None else file.path
        work.failed(FencedError(path, "upload", epoch=fence.epoch))

    def _relieve(self, this_pass: Pass) -> bool:
        """Give back the memory of batches whose upload failed; they are read again later."""
        relieved = False
        for work in list(self.works.values()):
            if work.failure is None or not work.batches or not self._claims.take(work.key):
                continue
            if work.file is not None and work.file.waiting_bytes:
                relieved |= self._batches.drop(work, work.file)
            self._give_back(work.key, this_pass)
        return relieved

    def _give_back(self, key: QueueKey, this_pass: Pass) -> None:
        this_pass.given_back += 1
        self._claims.give(key)

    def _start_chore(self, work: QueueWork, chore: Callable[[], object]) -> Future[None]:
        future: Future[None] = self._runtime.dispatch.submit(self._do_chore, work, chore)
        when_cancelled(future, partial(self._never_begun, work))
        if future.done():
            future.result()  # raises what `_do_chore` does not catch, such as KeyboardInterrupt
        return future

    def _never_begun(self, work: QueueWork, error: StoreClosedError) -> None:
        work.failed(error)
        self._ended(work)

    def _do_chore(self, work: QueueWork, chore: Callable[[], object]) -> None:
        try:
            chore()
        except Exception as error:  # noqa: BLE001
            log.warning("%s/%s: %s", work.key.topic, work.key.queue_id, error)
            work.failed(error)
        finally:
            self._ended(work)


class LocalNeeds:
    """Finds the smallest local log offset that is still needed.

    Queues without uploads need nothing: those of filtered topics, and stopped ones, which would
    keep everything for ever. A queue that may still be recovered, or that is about to be resumed,
    is different: it needs everything that the catalogue does not have. Damaged messages are not
    needed, but the first sound message after them is: the upload continues there once the damaged
    ones have expired, or have waited long enough.
    """

    def __init__(
        self,
        store: MessageStore,
        files: FlatFileStore,
        topic_filter: TopicFilter,
        work_of: Callable[[QueueKey], QueueWork],
    ) -> None:
        self._store = store
        self._files = files
        self._filter = topic_filter
        self._work_of = work_of

    def needed_from(self) -> int | None:
        """The smallest local log offset that is needed; None if everything is in the tier."""
        return min(self.by_queue().values(), default=None)

    def by_queue(self) -> dict[QueueKey, int]:
        """The smallest needed offset of each queue that needs any."""
        keys = [QueueKey(*key) for key in self._store.queues()]
        return {
            key: offset
            for key in keys
            if not self._filter.rejects(key.topic) and (offset := self.of_queue(key)) is not None
        }

    def of_queue(self, key: QueueKey) -> int | None:
        """The smallest needed offset of one queue whose topic is not filtered."""
        work, file = self._work_of(key), self._files.get(key)
        is_stopped = work.stopped is not None and not work.is_to_resume
        if is_stopped or (file is not None and self._is_given_up(file)):
            return None
        minimum, maximum = self._store.min_offset(*key), self._store.max_offset(*key)
        if minimum is None or maximum is None:
            return None
        committed = file.sure_offset if file is not None and file.is_started else minimum
        first = max(committed, minimum)
        if first >= maximum:
            return None
        known = work.needed_from
        if known is None or known[0] != first:
            run = first_sound(self._store, work, first)
            if run is None:
                return None if is_searched(work, first, maximum) else 0
            known = work.needed_from = first, int(run.log_offsets[0])
        return known[1]

    def _is_given_up(self, file: FlatMessageFile) -> bool:
        if file.problem is None or self._files.may_recover(file.key):
            return False
        return file.problem is not None  # else it has just recovered


LOOK_AGAIN_MS: Final = 500  # how often unconfirmed messages are checked again


class Dispatcher:
    """Uploads what is due, queue by queue, within the bounds of the settings.

    * One thread at a time works on a queue, and at most one upload of it is under way.
    * If the provider shares rounds, a round takes all queues that have messages, and the next one
      begins when it is settled. Then the uploads under way are bounded by bytes only.
    * Once another writer has the tier, nothing is sent: each queue that has messages fails.
    * Bytes in memory never exceed `dispatch_buffer_bytes`, except for one larger batch alone;
      uploads under way never exceed a quarter of `pending_count_max`. No queue has a thread of its
      own.
    * If the next message of a queue is not confirmed, the queue is checked again when the confirmed
      offset changes, not when more messages come.
    * A queue that fails is logged, recorded with its reason and tried again at the next check of
      all queues. It never stops the others.
    * Nothing happens before `start`, except in the thread of a caller of `dispatch_once`.
    * The creator registers `on_messages` and `needed_from` with the store. A registration cannot
      be undone.
    """

    def __init__(
        self,
        store: MessageStore,
        files: FlatFileStore,
        provider: SegmentProvider,
        metadata: MetadataStore,
        index: Index,
        config: StoreConfig,
        runtime: Runtime,
        metrics: Metrics | None = None,
        topic_filter: TopicFilter | None = None,
    ) -> None:
        self._store = store
        self._files = files
        self._metadata = metadata
        self._index = index
        self._runtime = runtime
        self._metrics = metrics or NoMetrics()
        self._interval_ms = config.dispatch_interval_ms
        self._is_inline = isinstance(runtime.dispatch, InlinePool)
        self._fence = partial(provider.fence, config.broker_name)
        clock = runtime.clock
        self.mark = LogMark(metadata, config.broker_name)
        self.topic_filter = topic_filter or TopicFilter(config.cluster_name, config.broker_name)
        self.budget = UploadBudget(
            bytes_max=config.dispatch_buffer_bytes,
            uploads_max=INT64_MAX if provider.shares_rounds else config.pending_count_max // 4,
        )
        self._claims = QueueClaims()
        self._pending = PendingCounts(
            full_count=config.group_commit_count,
            full_bytes=config.group_commit_bytes,
            rejects=self.topic_filter.rejects,
        )
        feed = IndexFeed(index, self.budget, config)
        chores = QueueChores(store, files, metadata, feed, self.budget, config=config, clock=clock)
        self._chores = chores
        self._walk = QueueWalk(
            store,
            QueueRules(store, chores, self._pending, self.topic_filter, config=config, clock=clock),
            chores,
            Batches(
                store,
                self.budget,
                self._pending,
                config,
                self.mark,
                clock=clock,
                is_indexed=not isinstance(index, NoIndex),
            ),
            Rounds(
                files,
                provider,
                metadata,
                feed,
                self.budget,
                runtime=runtime,
                metrics=self._metrics,
                ended=self._upload_ended,
                round_ended=self._round_ended,
            ),
            self._claims,
            self.budget,
            runtime,
            fence=self._fence,
            ended=self._ended,
        )
        self._needs = LocalNeeds(store, files, self.topic_filter, self._walk.work_of)
        self._service: Service | None = None
        self._next_full_look = 0.0
        self._unconfirmed: dict[QueueKey, None] = {}  # due at the last look, but not confirmed
        self._confirmed_offset = -1  # at the last look
        self._recovering = threading.Lock()  # never waited for
        self._is_running = False  # between start and shutdown

    # Life

    def start(self) -> None:
        """Begin to upload existing and new messages. Idempotent."""
        self._walk.is_stopped = False
        if self._is_running:
            return
        self._is_running = True
        self._next_full_look = self._runtime.clock.monotonic()
        try:
            self._service = self._runtime.service(
                "dispatch", self._step, interval_ms=min(LOOK_AGAIN_MS, self._interval_ms)
            )
        except BaseException:
            self._is_running = False
            raise

    def shutdown(self, *, drain: bool = False, timeout: float | None = 30.0) -> bool:
        """End the uploads; with `drain`, first upload what is there. Idempotent.

        Waits for uploads under way, for `timeout` seconds in total. Returns whether the drain and
        all uploads ended in time. An error of the store is raised at the end.
        """
        deadline = Deadline(self._runtime.clock, timeout)
        self._is_running = False
        service, self._service = self._service, None
        ended = service is None or service.stop(deadline.left())
        try:
            if drain and not self._walk.is_stopped:
                ended = self._drain(deadline) and ended
        finally:  # a store is any class, and may raise anything
            ended = self._end_uploads(deadline) and ended
        return ended

    def _end_uploads(self, deadline: Deadline) -> bool:
        """Begin no more uploads; return whether those under way ended in time."""
        self._walk.is_stopped = True
        while not self._is_inline:
            seen = self._claims.changes  # first: the last claim may be given back just now
            if not self._claims.busy_count:
                break
            if not self._claims.wait_for_change(seen, deadline.left()):
                return not self._claims.busy_count
        return True

    def _drain(self, deadline: Deadline) -> bool:
        """Upload everything in another thread: while the pools are full, an upload runs in the
        thread that submits it, and a backend may never answer.
        """

        def drain() -> bool:
            return self.dispatch_once(force=True, timeout=deadline.left())

        draining = with_deadline(self._runtime, "drain", drain, deadline.left())
        return draining.done() and draining.result()

    # What others ask

    def committed_offset(self, topic: str, queue_id: int) -> int | None:
        """One more than the newest queue offset in the tier; None if it does not have the queue."""
        file = self._files.get(QueueKey(topic, queue_id))
        return None if file is None or not file.is_started else file.commit_offset

    def needed_from(self) -> int | None:
        """The local log offset from which on the tier still needs messages; None if it needs none.

        Also before `start` and during a shutdown: messages that the tier lacks are needed then too.
        """
        return self._needs.needed_from()

    def needed_by_queue(self) -> dict[QueueKey, int]:
        """The same for each queue that has messages which the tier needs."""
        return self._needs.by_queue()

    def needed_of(self, key: QueueKey) -> int | None:
        """The same for one of these queues."""
        return self._needs.of_queue(key)

    def alone_with(
        self, key: QueueKey, *, timeout: float | None = None
    ) -> AbstractContextManager[bool]:
        """Keep uploads off a queue while the caller expires or deletes: nothing is appended,
        committed or rolled.

        Yields False, and keeps nothing off, if the queue was busy for the whole `timeout`.
        """
        return self._claims.held(key, timeout=timeout)

    def alone_with_topics(
        self, topics: Collection[str], *, timeout: float | None = None
    ) -> AbstractContextManager[bool]:
        """The same for every queue of these topics, including queues that appear meanwhile."""
        return self._claims.held_topics(topics, timeout=timeout)

    def tell_conflicts(self, hear: Callable[[FlatMessageFile], None]) -> None:
        """Call `hear` for each queue whose last message in the tier differs from the local one."""
        self._chores.on_conflict = hear

    def was_compared(self, keys: Iterable[QueueKey]) -> None:
        """Note, before `start`, that the last tiered message of these queues is the local one."""
        for key in keys:
            self._walk.was_compared(key)

    def resume(self, key: QueueKey, *, timeout: float | None = None) -> str | None:
        """Resume a stopped queue if the tier and the store agree; otherwise return why not."""
        if (fence := self._fence()) is not None:
            return str(FencedError(f"{key.topic}/{key.queue_id}", "resume", epoch=fence.epoch))
        with self.alone_with(key, timeout=timeout) as is_alone:
            reason = self._walk.resume(key) if is_alone else "something of it is under way"
        if reason is None and self._is_running:
            self._pending.mark_due(key)
            self._wake_service()
        return reason

    def health(self) -> DispatchHealth:
        """What is wrong with the upload now; makes no request to the backend."""
        stopped: dict[QueueKey, str] = {}
        lost: dict[QueueKey, int] = {}
        not_indexed: dict[QueueKey, int] = {}
        for file in self._files.files():
            if count := _not_indexed_count(file, self._index):
                not_indexed[file.key] = count
            if file.problem is not None:
                stopped[file.key] = file.problem
            if count := _lost_count(file):
                lost[file.key] = count
        failing: dict[QueueKey, str] = {}
        for work in list(self._walk.works.values()):
            if work.stopped is not None:
                stopped[work.key] = work.stopped
            if work.lost_count > lost.get(work.key, 0):  # lost before its first upload
                lost[work.key] = work.lost_count
            if work.failure is not None:
                failing[work.key] = work.failure
            if work.file is not None and work.index_from is not None:  # an index may not know
                waiting = work.file.commit_offset - work.index_from
                not_indexed[work.key] = max(waiting, not_indexed.get(work.key, 0))
        stopped = {key: why for key, why in stopped.items() if not self._is_only_read(key)}
        return DispatchHealth(
            stopped=stopped,
            refused=frozenset(key for key in stopped if self._files.why_refused(key) is not None),
            failing=failing,
            lost=lost,
            not_indexed=not_indexed,
            buffered_bytes=self.budget.used_bytes,
            uploads=self.budget.uploads,
        )

    def _is_only_read(self, key: QueueKey) -> bool:
        """Whether the queue is adopted history and has no local messages that could be missing."""
        file = self._files.get(key)
        is_adopted = file is not None and is_history(file.path, self._metadata)
        return is_adopted and not self._store.max_offset(*key)

    # Looking at queues

    def dispatch_once(self, *, force: bool = False, timeout: float | None = None) -> bool:
        """Work on all queues in this thread until none of the messages that exist now is due.

        With `force`, every message is due that the local store can no longer lose. A queue is tried
        until its first failure. Returns whether every queue succeeded, in time.
        """
        deadline = Deadline(self._runtime.clock, timeout)
        self._retry_recovery()
        targets: dict[QueueKey, int] = {}
        work_of = self._walk.work_of
        todo = self._all_queues()
        failures = {key: work_of(key).failure_count for key in todo}
        while todo and not self._walk.is_stopped:
            seen = self._claims.changes
            left = deadline.left()
            patience = CHORES_SECONDS if left is None else min(left, CHORES_SECONDS)
            this_pass = Pass(force=force, targets=targets, patience_seconds=patience)
            self._walk.walk(todo, this_pass)
            todo = list(dict.fromkeys([*this_pass.under_way, *this_pass.put_off]))
            seen += this_pass.given_back
            is_still = not self._claims.busy_count and self._claims.changes == seen
            if todo and not (self._is_inline and this_pass.under_way):
                if self._is_inline or is_still:
                    return False  # nothing will change by itself
                many = min(len(todo), self._claims.busy_count)
                if not self._claims.wait_for_change(seen, deadline.left(), many=many):
                    return False
            todo = [key for key in todo if work_of(key).failure_count == failures[key]]
        return not todo and all(work_of(key).failure_count == failures[key] for key in failures)

    def _step(self) -> None:
        """Look at due queues, and from time to time at all queues."""
        if self._is_inline:
            self.dispatch_once()
            return
        now = self._runtime.clock.monotonic()
        try:
            confirmed = self._store.confirmed_offset()
        except StoreClosedError:
            return
        keys = self._pending.take_due()
        is_full = now >= self._next_full_look
        if is_full:
            self._next_full_look = now + self._interval_ms / 1000
            self._retry_recovery()
            keys = list(dict.fromkeys([*keys, *self._all_queues()]))
        if is_full or confirmed != self._confirmed_offset:
            self._unconfirmed = {}
        self._confirmed_offset = confirmed
        keys = [key for key in keys if key not in self._unconfirmed]
        this_pass = Pass(only_sound=not is_full, others=self._pending.waiting)
        self._walk.walk(keys, this_pass)
        self._unconfirmed.update(dict.fromkeys(this_pass.unconfirmed))
        # Marking these as due wakes no thread: they are for the next step, after its interval.
        for key in (*this_pass.put_off, *self._unconfirmed):
            self._pending.mark_due(key)

    def _all_queues(self) -> list[QueueKey]:
        """The queues of the store and of the tier; the state of all others is dropped."""
        try:
            keys = dict.fromkeys(QueueKey(*key) for key in self._store.queues())
        except StoreClosedError:
            return []
        keys.update(dict.fromkeys(file.key for file in self._files.files()))
        self._pending.keep(keys)
        self._walk.forget_others(keys)
        return list(keys)

    def _retry_recovery(self) -> None:
        """Try again, in the pool, to open queues that could not be opened."""
        if self._fence() is not None:
            return  # the tier now belongs to another writer
        if not self._recovering.acquire(blocking=False):
            return

        def recover() -> None:
            try:
                self._files.retry_recovery(partial(self._claims.held, timeout=0))
            except Exception as error:  # noqa: BLE001 - it is tried again
                log.warning("queues could not be recovered: %s", error)
            finally:
                self._recovering.release()

        try:
            self._runtime.dispatch.submit(recover)
        except StoreClosedError:
            self._recovering.release()

    # When something happens

    def on_messages(self, requests: Sequence[DispatchRequest]) -> None:
        """The store's callback: only counts in the store's thread."""
        if self._is_running and self._pending.note(requests):
            self._wake_service()

    def _upload_ended(self, work: QueueWork) -> None:
        self.budget.end_upload()
        self._ended(work)

    def _round_ended(self, works: Sequence[QueueWork]) -> None:
        """Release a shared round that is settled. A queue that still had messages is due again;
        otherwise the age of newer messages decides.
        """
        self.budget.end_upload(len(works))
        for work in works:
            if self._is_running and work.more_waits and work.failure is None:
                self._pending.mark_due(work.key)
        self._claims.give(ROUND, *(work.key for work in works))
        if self._pending.has_due:
            self._wake_service()

    def _ended(self, work: QueueWork) -> None:
        """Release a queue whose chore or upload has ended; more may be due."""
        self._claims.give(work.key)
        if self._is_running and work.failure is None:
            self._pending.mark_due(work.key)
        if self._pending.has_due:
            self._wake_service()

    def _wake_service(self) -> None:
        """Wake the service, unless it is inline: then it would run in this thread, which drives it
        anyway.
        """
        service = self._service
        if service is not None and not self._is_inline:
            service.wake()


def _lost_count(file: FlatMessageFile) -> int:
    """How many messages are missing in the gaps of a queue."""
    segments = file.queue.segments
    gaps = (after.base - before.end for before, after in pairwise(segments))
    return sum(gaps) // UNIT_BYTES


def _not_indexed_count(file: FlatMessageFile, index: Index) -> int:
    """How many committed messages of a queue the index lacks, by its own account."""
    if not file.is_started:
        return 0
    known = index.indexed_offset(file.key.topic, file.topic_id, file.key.queue_id)
    if known is None:
        return 0
    return max(0, file.commit_offset - max(known, file.queue.min_unit))
