"""Reads of a store with a tier: which of the two answers, and how answers are combined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import Final, TypeVar

from tieredstore.access.fetcher import Fetcher
from tieredstore.codec.record import (
    LOG_OFFSET_POSITION,
    SYS_FLAG_POSITION,
    peek_queue_id,
    peek_store_timestamp,
    peek_topic,
)
from tieredstore.driver.message_store import (
    MessageStore,
    ReadRequest,
    begun_time_of,
    read_from,
    run_from,
)
from tieredstore.driver.metrics import API_LATENCY, GET_MESSAGE_FALLBACK, MESSAGES_OUT, Metrics
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import BackendError, SegmentCorruptError, StoreClosedError
from tieredstore.model.messages import GetResult, MessageRun, QueryResult, SelectedMessage
from tieredstore.model.printable import log_of
from tieredstore.model.topics import TopicFilter
from tieredstore.model.values import (
    INT64_MAX,
    Boundary,
    GetStatus,
    QueueKey,
    StorageLevel,
)

log = log_of(__name__)


class ReadDecision:
    """Decides between a message store and the tier below it.

    | level | the tier is read |
    | --- | --- |
    | DISABLE | never |
    | NOT_IN_DISK | if it has the offset and the store does not |
    | NOT_IN_MEM | if it has the offset and the store has it on disk at best |
    | FORCE | always first |

    Messages that the tier does not have come from the next store, whatever the level. A topic that
    stays out of the tier is never read there. The level may change at any time.

    If both hold different messages (`forks`: from which number on), reads return the next store's
    until an operator decides, at every level; the tier is read only below the fork, and only if the
    next store has nothing there. So no reader sees two histories as one.
    """

    def __init__(
        self, next_store: MessageStore, topic_filter: TopicFilter, level: StorageLevel
    ) -> None:
        self._next = next_store
        self.topic_filter = topic_filter
        self.level = level
        self.forks: dict[QueueKey, int] = {}

    @property
    def is_forced(self) -> bool:
        return self.level is StorageLevel.FORCE

    def may_read_tier(self, topic: str) -> bool:
        """Whether reads of this topic may ask the tier at all."""
        return self.level is not StorageLevel.DISABLE and not self.topic_filter.rejects(topic)

    def fork_of(self, topic: str, queue_id: int) -> int | None:
        """The first queue offset where the stores hold different messages; None without a fork."""
        return self.forks.get(QueueKey(topic, queue_id))

    def reads_tier(
        self, fetcher: Fetcher, topic: str, queue_id: int, offset: int, *, count: int = 1
    ) -> bool:
        """Whether the tier is asked first for the messages from this offset on."""
        level = self.level
        if not self.may_read_tier(topic):
            return False
        if self.forks and (fork := self.fork_of(topic, queue_id)) is not None:
            return offset < fork and not self._next.contains(topic, queue_id, offset)
        if level is StorageLevel.FORCE:
            return True
        commit_offset = fetcher.commit_offset(topic, queue_id)
        if commit_offset is None or offset >= commit_offset:
            return False
        if not fetcher.has_messages(topic, queue_id):  # still empty, or all expired
            return False
        if self._next.min_log_offset() is None or not self._next.contains(topic, queue_id, offset):
            return True
        return level >= StorageLevel.NOT_IN_MEM and not self._next.in_memory(
            topic, queue_id, offset, max(1, count)
        )


T = TypeVar("T")

_TRIES: Final = 8  # for one read or search by time, while the stores change
_CLOCK_SLACK_MS: Final = 600_000  # how far the clock may have been set back, as in a local index

_NO_QUEUE: Final = frozenset({GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE})
# With these, a store does not have the message: the other one may.
_LACKING: Final = _NO_QUEUE | {
    GetStatus.OFFSET_FOUND_NULL,
    GetStatus.OFFSET_TOO_SMALL,
    GetStatus.MESSAGE_WAS_REMOVING,
}
# With these also, or it ends before the offset: the other one may go on.
_ENDS: Final = _LACKING | {GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.OFFSET_OVERFLOW_BADLY}
_EXPECTED: Final = _ENDS | {GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE}


class Answers:
    """Answers reads from the next store and the tier below it.

    * A store that does not know an answer never overrides one that does.
    * An answer without the tier's messages is never called complete. If the tier cannot be reached
      and the next store does not know the answer, the error is raised; a query by key says that it
      is not complete.
    * A page's messages and its next offset never pass a message that one of the two stores has and
      that the filter accepts. If the store that was asked first does not have the messages, the
      other one answers; if neither has them, the reader continues at the first message that either
      of them has.
    * Messages that wait for upload come from the next store, at every level.
    * A tier that cannot be reached is no error while the next store still has the offset. Damage
      in the tier always is one.
    * The maximum of a page from the tier is the tier's: later messages come from the next store.
    """

    def __init__(
        self,
        next_store: MessageStore,
        fetcher: Fetcher,
        decision: ReadDecision,
        *,
        runtime: Runtime,
        metrics: Metrics,
        kept_from: Callable[[str], int | None],
        logs_outcomes: bool = False,
    ) -> None:
        self._next = next_store
        self._fetcher = fetcher
        self._decision = decision
        self._runtime = runtime
        self._metrics = metrics
        self._kept_from = kept_from  # the store time from which on a topic's messages stay
        self._logs_outcomes = logs_outcomes

    # -- pages of messages ---------------------------------------------------------------------

    def get(self, request: ReadRequest) -> GetResult:
        fork = self._fork_of(request)
        if fork is not None:
            return self._get_forked(request, fork)
        for _ in range(_TRIES):
            if not self._reads_tier(request):
                result = read_from(self._next, request)
                if not self._tier_may_have(request, result):
                    return result
            started = self._runtime.clock.monotonic()
            answer = self._answer(request, lambda: self._fetcher.get_message(request), started)
            if answer is not None:
                return answer
        return self._stay(request)

    def get_future(self, request: ReadRequest) -> Future[GetResult]:
        """The same as a future, already done if the answer needs neither a backend nor a disk."""
        if self._fork_of(request) is not None:
            return self._got_by_pool(request)
        try:
            if not self._reads_tier(request):
                if self._is_on_disk_only(request):
                    return self._got_by_pool(request)
                return _done(lambda: self.get(request))
        except Exception as error:  # noqa: BLE001 - it is raised by the future
            return _failed(error)
        started = self._runtime.clock.monotonic()
        try:
            inner = self._fetcher.get_message_future(request)
        except Exception as error:  # noqa: BLE001 - the next store may answer instead
            inner = _failed(error)

        def answer() -> GetResult:
            return self._answer(request, inner.result, started) or self.get(request)

        return _following(inner, answer)

    def _got_by_pool(self, request: ReadRequest) -> Future[GetResult]:
        inner = self._runtime.fetch.submit(self.get, request)
        return _following(inner, inner.result)

    def get_hot(self, request: ReadRequest) -> GetResult | None:
        """The same if it needs neither a backend nor a disk; otherwise None."""
        if self._fork_of(request) is not None:
            return None
        if not self._reads_tier(request):
            if self._is_on_disk_only(request):
                return None
            result = read_from(self._next, request)
            return None if self._tier_may_have(request, result) else result
        started = self._runtime.clock.monotonic()
        hot = self._fetcher.get_message_hot(request)
        if hot is None or (hot.status in _ENDS and self._is_on_disk_only(request)):
            return None
        return self._answer(request, lambda: hot, started)

    def read_range(self, request: ReadRequest) -> MessageRun:
        """Consecutive messages of one store: the one that `get` asks first, or the other if the
        first has none at the offset. Empty if neither has it, else at least one."""
        run = self._run(request)
        for _ in range(_TRIES):
            if len(run) or request.count_max <= 0:
                break
            if not self.contains(request.topic, request.queue_id, request.offset):
                break
            run = self._run(request)  # it was uploaded, and expired locally, between the two reads
        return run

    def _run(self, request: ReadRequest) -> MessageRun:
        fork = self._fork_of(request)
        tier_first = self._reads_tier(request)
        if not tier_first:
            run = run_from(self._next, request)
            is_all = not self._decision.may_read_tier(request.topic)
            if len(run) or is_all or (fork is not None and request.offset >= fork):
                return run
        try:
            run = run_from(self._fetcher, request)
            if fork is not None:
                run = run.head(fork - request.offset)
        except BackendError as error:
            run = run_from(self._next, request)
            if not len(run):
                raise
            self._count_fallback("read_range", request.topic)
            log.warning("read from the next store, the tier cannot be read: %s", error)
        if tier_first and not len(run):
            run = run_from(self._next, request)
        return run

    # -- where queues begin and end, and what lies at a time or under a key --------------------

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        """The smaller one; a tier without messages of the queue counts only if the next store does
        not know the queue.
        """
        near = self._next.min_offset(topic, queue_id)
        if not self._decision.may_read_tier(topic):
            return near
        far = self._fetcher.min_offset(topic, queue_id)
        if near is None or far is None:
            return far if near is None else near
        end = self._fetcher.commit_offset(topic, queue_id)
        return min(near, far) if end is not None and far < end else near

    def max_offset(self, topic: str, queue_id: int) -> int | None:
        """The next store's, which the tier follows; the tier's if the next store does not know the
        queue, or not to its end.
        """
        near = self._next.max_offset(topic, queue_id)
        if not self._decision.may_read_tier(topic):
            return near
        if near is None:
            return self._fetcher.commit_offset(topic, queue_id)
        return max(near, self._served(topic, queue_id))

    def contains(self, topic: str, queue_id: int, offset: int) -> bool:
        if self._next.contains(topic, queue_id, offset):
            return True
        if not self._decision.may_read_tier(topic):
            return False
        fork = self._decision.fork_of(topic, queue_id)
        if fork is not None and offset >= fork:
            return False
        return self._fetcher.contains(topic, queue_id, offset)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """From the store that a read of this message would ask."""
        place = topic, queue_id, offset
        if not self._decision.reads_tier(self._fetcher, *place):
            time = self._next.store_time(*place)
            # Its own retention may have run since the decision.
            if time is not None or not self._decision.reads_tier(self._fetcher, *place):
                return time
        try:
            time = self._timed(
                "get_time_by_offset",
                topic,
                lambda: self._fetcher.store_time(*place),
            )
        except BackendError:
            if not self._next.contains(*place):
                raise
            self._count_fallback("get_time_by_offset", topic)
            time = None
        return self._next.store_time(*place) if time is None else time

    def earliest_time(self, topic: str | None, queue_id: int) -> int | None:
        """The smaller one for a queue; the next store's for the whole store, as in RocketMQ."""
        if topic is None:
            return self._next.earliest_time()
        near = self._next.earliest_time(topic, queue_id)
        if not self._decision.may_read_tier(topic):
            return near
        return _smaller(near, self._fetcher.earliest_time(topic, queue_id))

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary
    ) -> int | None:
        """Also asks the tier if only the tier may have messages that old.

        Then everything in the next store was stored at `timestamp` or later, so its first message
        is the answer unless the tier has an earlier one. Its minimum offset would be wrong: it may
        lag behind expired messages.
        """
        fork = self._decision.fork_of(topic, queue_id)
        if fork is not None:
            return self._forked_by_time(topic, queue_id, timestamp, boundary, fork)
        near = self._near_by_time(topic, queue_id, timestamp, boundary)
        if near is not None:
            return near
        if not self._decision.may_read_tier(topic):
            return self._first_of_next(topic, queue_id, timestamp, boundary)
        far = self._timed(
            "get_offset_by_time",
            topic,
            lambda: self._fetcher.offset_by_time(topic, queue_id, timestamp, boundary),
        )
        near = self._first_of_next(topic, queue_id, timestamp, boundary)
        if self._goes_on(topic, queue_id, near):
            return far
        is_end = far is not None and far == self._fetcher.commit_offset(topic, queue_id)
        return near if is_end and near is not None else _smaller(far, near)

    def query_message(
        self, topic: str, key: str, *, count_max: int, begin: int, end: int
    ) -> QueryResult:
        """Newest first, each message once; the tier adds what the next store lacks.

        With FORCE only the tier is asked. The answer lags while the next store has messages that
        wait for upload, or lie in a gap of the tier.
        """
        near = QueryResult()
        if count_max <= 0:
            return near
        if not self._decision.may_read_tier(topic):
            return self._next.query_message(topic, key, count_max=count_max, begin=begin, end=end)
        forced = self._decision.is_forced
        border = self._next.earliest_time()
        oldest_end = end
        if not forced and self._may_be_near(border, end):
            near = self._all_near(topic, key, count_max, begin, end)
            border = self._all_from(topic)  # again: what expired meanwhile must come from the tier
        if not forced and border is not None and not self._lacks_an_end(topic):
            # Messages of times near the border may be in either store.
            oldest_end = min(end, border + _CLOCK_SLACK_MS)
            if begin > oldest_end and near.complete:
                return near
            if len(near.messages) >= count_max and _oldest_time(near) > oldest_end:
                return near
        try:
            # Before the tier is asked: its answer may miss what is uploaded meanwhile.
            lags = forced and self._waits_for_upload(topic)
            far = self._far_by_key(
                topic, key, count_max, begin, oldest_end if near.complete else end
            )
            if lags and far.complete:
                far = replace(far, complete=False, lags=True)
        except BackendError:
            far = QueryResult(complete=False)
        return replace(
            near,
            messages=_newest_first(near.messages, far.messages)[:count_max],
            complete=near.complete and far.complete,
            is_cut=False,
            lags=near.complete and far.lags,
            tier_indexed_timestamp=far.tier_indexed_timestamp,
        )

    def _far_by_key(
        self, topic: str, key: str, count_max: int, begin: int, end: int
    ) -> QueryResult:
        """The tier's messages; it is asked for more while messages beyond a fork, which do not
        count, fill its answer.
        """
        asked = count_max
        while True:
            far = self._timed(
                "query_message",
                topic,
                lambda: self._fetcher.query_message(
                    topic,
                    key,
                    count_max=asked,  # noqa: B023 - called at once
                    begin=begin,
                    end=end,
                ),
            )
            if not self._decision.forks:
                return far
            found = [one for one in far.messages if not self._is_behind_fork(one)]
            if len(found) >= count_max or len(far.messages) < asked:
                return replace(far, messages=found)
            asked = min(4 * asked, INT64_MAX)

    def _all_from(self, topic: str) -> int | None:
        """The time after which the next store has every message of the topic; None if it is empty.

        Messages of a bulk load, for example, are only in the tier, however new they are.
        """
        earliest = self._next.earliest_time()
        return None if earliest is None else max(earliest, begun_time_of(self._next, topic))

    def _waits_for_upload(self, topic: str) -> bool:
        """Whether the next store has messages of the topic that the tier does not serve: it lacks
        them, perhaps in a gap or before its first one, or has others beyond a fork.
        """
        for key in self._next.queues():
            if key.topic != topic:
                continue
            begin, end = self._next.min_offset(*key) or 0, self._next.max_offset(*key) or 0
            if end > max(self._served(*key), begin):
                return True
            if any(self._next_has_some(key, gap) for gap in self._fetcher.gaps(*key, begin)):
                return True
            if self._has_young(key, range(begin, min(end, self._fetcher.min_offset(*key) or 0))):
                return True
        return False

    def _has_young(self, key: QueueKey, offsets: range) -> bool:
        """Whether the last message that the next store has there is too young to have expired in
        the tier: the tier never had it, or gave it up."""
        stored = self._next.store_time(*key, offsets[-1]) if offsets else None
        kept_from = self._kept_from(key.topic)
        return stored is not None and (kept_from is None or stored >= kept_from)

    def _next_has_some(self, key: QueueKey, offsets: range) -> bool:
        """Whether the next store has a message there. It may have lost the same ones."""
        at = offsets.start
        for _ in range(_TRIES):
            try:
                result = read_from(self._next, ReadRequest(*key, at, count_max=1))
            except SegmentCorruptError:
                return True  # it has one that is damaged
            if result.messages:
                return result.messages[0].queue_offset in offsets
            if not at < result.next_offset < offsets.stop:
                return False
            at = result.next_offset
        return True  # it may

    def _served(self, topic: str, queue_id: int) -> int:
        """The offset below which the tier serves the queue's messages."""
        committed = self._fetcher.commit_offset(topic, queue_id) or 0
        fork = self._decision.fork_of(topic, queue_id)
        return committed if fork is None else min(committed, fork)

    # -- parts of page reads -------------------------------------------------------------------

    def _fork_of(self, request: ReadRequest) -> int | None:
        if not self._decision.forks:
            return None
        return self._decision.fork_of(request.topic, request.queue_id)

    def _get_forked(self, request: ReadRequest, fork: int) -> GetResult:
        """The next store's messages; below its first one and below the fork, the tier's."""
        if not self._reads_tier(request):
            near = read_from(self._next, request)
            is_all = not self._decision.may_read_tier(request.topic) or request.offset >= fork
            if near.status not in _LACKING or is_all:
                return near
        far = self._fetcher.get_message(request)
        if far.status in _ENDS:
            near = read_from(self._next, request)
            if near.messages or _nearer(request.offset, near, far) is near:
                return near
        messages = [one for one in far.messages if one.queue_offset < fork]
        if far.messages and not messages:
            far = replace(far, status=GetStatus.NO_MATCHED_MESSAGE)
        maximum = self._next.max_offset(request.topic, request.queue_id)
        return replace(
            far,
            messages=messages,
            next_offset=min(far.next_offset, max(fork, request.offset)),
            max_offset=far.max_offset if maximum is None else maximum,
        )

    def _forked_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary, fork: int
    ) -> int | None:
        """The next store's answer, or an earlier one of the tier's from below the fork, if the next
        store lacks the message before its own answer.
        """
        near = self._first_of_next(topic, queue_id, timestamp, boundary)
        if not self._decision.may_read_tier(topic) or near == 0:
            return near
        if near is not None and self._next.store_time(topic, queue_id, near - 1) is not None:
            return near
        far = self._fetcher.offset_by_time(topic, queue_id, timestamp, boundary)
        return near if far is None or far >= fork else _smaller(far, near)

    def _is_behind_fork(self, one: SelectedMessage) -> bool:
        fork = self._decision.fork_of(peek_topic(one.record), peek_queue_id(one.record))
        return fork is not None and one.queue_offset >= fork

    def _reads_tier(self, request: ReadRequest) -> bool:
        return self._decision.reads_tier(
            self._fetcher,
            request.topic,
            request.queue_id,
            request.offset,
            count=request.count_max,
        )

    def _tier_may_have(self, request: ReadRequest, result: GetResult) -> bool:
        """Whether the next store had nothing, but the tier may.

        Local retention may have run since the decision, or the next store lost the queue or its
        end: a consumer would be kept there, or sent back there, for ever.
        """
        if not self._decision.may_read_tier(request.topic):
            return False
        if result.status in (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.OFFSET_OVERFLOW_BADLY):
            return self._lacks_end(request.key)
        if result.status not in _LACKING:
            return False
        commit_offset = self._fetcher.commit_offset(request.topic, request.queue_id)
        if not commit_offset:
            return False
        if result.status in _NO_QUEUE:  # only the tier knows the queue
            return True
        has_messages = self._fetcher.has_messages(request.topic, request.queue_id)
        return has_messages and request.offset < commit_offset

    def _lacks_end(self, key: QueueKey) -> bool:
        """Whether the queue goes on in the tier after the end that the next store knows: it was
        adopted, or the next store has lost its end and cannot continue it.
        """
        served = self._served(*key)  # first: what is uploaded meanwhile is in the next store
        return served > (self._next.max_offset(*key) or 0)

    def _lacks_an_end(self, topic: str) -> bool:
        return any(map(self._lacks_end, self._fetcher.queues(topic)))

    def _is_on_disk_only(self, request: ReadRequest) -> bool:
        place = request.topic, request.queue_id, request.offset
        return self._next.contains(*place) and not self._next.in_memory(
            *place, max(1, request.count_max)
        )

    def _answer(
        self, request: ReadRequest, tier: Callable[[], GetResult], started: float
    ) -> GetResult | None:
        """The tier's answer, or the next store's if the tier cannot serve the read; None if both
        changed meanwhile and must be asked again.
        """
        try:
            result = tier()
        except BackendError as error:
            near = self._near_instead(request)
            if near is None:
                raise
            log.warning("read from the next store, the tier cannot be read: %s", error)
            return near
        finally:
            self._measure("get_message", request.topic, started, request.group)
        if self._logs_outcomes:
            log.info("%s: %s", request, result.status.name)
        if result.status in _ENDS and self._next_goes_on(request, result):
            near = read_from(self._next, request)
            if near.status not in _LACKING:
                self._count_fallback("get_message", request.topic, request.group)
                return near
            commit_offset = self._fetcher.commit_offset(request.topic, request.queue_id) or 0
            if commit_offset != result.max_offset:
                return None  # uploaded after the tier was asked, but gone before the next store was
            result = _nearer(request.offset, near, result)
        self._take_note(request, result)
        return self._with_next_minimum(request, result)

    def _next_goes_on(self, request: ReadRequest, result: GetResult) -> bool:
        """Whether the next store has messages from this offset, or from the tier's end, on."""
        maximum = self._next.max_offset(request.topic, request.queue_id)
        return maximum is not None and maximum > min(request.offset, result.max_offset)

    def _near_instead(self, request: ReadRequest) -> GetResult | None:
        """The next store's answer alone, if it has the message at the requested offset."""
        if not self._next.contains(request.topic, request.queue_id, request.offset):
            return None
        near = read_from(self._next, request)
        if near.status in _ENDS:  # the message expired meanwhile: the tier may have it
            return None
        self._count_fallback("get_message", request.topic, request.group)
        return near

    def _take_note(self, request: ReadRequest, result: GetResult) -> None:
        if result.messages:
            labels = {"topic": request.topic, "group": request.group}
            self._metrics.add(MESSAGES_OUT, len(result.messages), labels)
        if result.status not in _EXPECTED:
            log.warning("%s: the tier answers %s", request, result.status.name)

    def _with_next_minimum(self, request: ReadRequest, result: GetResult) -> GetResult:
        """Lower the minimum if the next store begins before the tier."""
        minimum = self._next.min_offset(request.topic, request.queue_id)
        if minimum is None or not 0 <= minimum < result.min_offset:
            return result
        return replace(result, min_offset=minimum)

    def _stay(self, request: ReadRequest) -> GetResult:
        """The answer if the stores changed at every try: ask again from the same offset."""
        return GetResult(
            status=GetStatus.MESSAGE_WAS_REMOVING,
            next_offset=request.offset,
            min_offset=self._next.min_offset(request.topic, request.queue_id) or 0,
            max_offset=self._next.max_offset(request.topic, request.queue_id) or 0,
        )

    # -- parts of reads by time and by key -----------------------------------------------------

    def _near_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary
    ) -> int | None:
        """The next store's answer, if the tier cannot have a better one; otherwise None."""
        if self._decision.is_forced or not self._decision.may_read_tier(topic):
            return None
        for _ in range(_TRIES):
            earliest = self._all_from(topic)
            if earliest is None or timestamp < earliest:
                return None
            near = self._first_of_next(topic, queue_id, timestamp, boundary)
            if near is None or self._goes_on(topic, queue_id, near):
                return None
            if timestamp == earliest and not self._is_last_of(
                topic, queue_id, near, timestamp, boundary
            ):
                return None
            if self._all_from(topic) == earliest:
                return near  # else the message before it may have expired meanwhile
        return None

    def _first_of_next(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary
    ) -> int | None:
        """The next store's answer by the rules of the tier.

        With UPPER, if no message has exactly this time, a local store returns the last one before
        it, or its minimum, and the tier returns the first one after it. RocketMQ's two stores
        differ in the same way, and its tiered store as a whole answers like the tier.
        """
        near = self._next.offset_by_time(topic, queue_id, timestamp, boundary)
        if near is None or boundary is Boundary.LOWER:
            return near
        if self._next.store_time(topic, queue_id, near) == timestamp:
            return near
        return self._next.offset_by_time(topic, queue_id, timestamp, Boundary.LOWER)

    def _goes_on(self, topic: str, queue_id: int, near: int | None) -> bool:
        """Whether `near` is only the end of the next store's queue, which goes on in the tier."""
        is_end = near is not None and near == self._next.max_offset(topic, queue_id)
        return is_end and self._lacks_end(QueueKey(topic, queue_id))

    def _is_last_of(
        self, topic: str, queue_id: int, near: int, timestamp: int, boundary: Boundary
    ) -> bool:
        """Whether `near` is the answer even if only the tier has earlier messages of this same
        millisecond, at which the next store begins.
        """
        if near == 0:
            return True
        is_upper = boundary is Boundary.UPPER
        return is_upper and self._next.store_time(topic, queue_id, near) == timestamp

    def _may_be_near(self, border: int | None, end: int) -> bool:
        """Whether the next store may have messages stored by `end`. Its first sound one was stored
        at `border`: a damaged one before it may be older.
        """
        if border is not None and end >= border - _CLOCK_SLACK_MS:
            return True
        oldest = self._next.min_log_offset()
        try:
            if oldest is not None:
                self._next.message_at(oldest)
        except SegmentCorruptError:
            return True
        return False

    def _all_near(self, topic: str, key: str, count_max: int, begin: int, end: int) -> QueryResult:
        """The next store's messages; it is asked again for older ones while it cuts its answer."""
        found: dict[int, SelectedMessage] = {}  # by place in the log: half messages share offsets
        while True:
            answer = self._next.query_message(topic, key, count_max=count_max, begin=begin, end=end)
            before = len(found)
            found.update((one.log_offset, one) for one in answer.messages)
            is_full = len(found) >= count_max
            if is_full or not answer.is_cut or len(found) == before:
                return replace(
                    answer,
                    messages=list(found.values())[:count_max],
                    complete=answer.complete or (is_full and answer.is_cut),
                    is_cut=False,
                )
            # Includes that millisecond: the cut may separate messages of the same time.
            end = peek_store_timestamp(answer.messages[-1].record)

    # -- what is measured ----------------------------------------------------------------------

    def _timed(self, operation: str, topic: str, call: Callable[[], T]) -> T:
        started = self._runtime.clock.monotonic()
        try:
            return call()
        finally:
            self._measure(operation, topic, started)

    def _measure(self, operation: str, topic: str, started: float, group: str = "") -> None:
        spent_ms = (self._runtime.clock.monotonic() - started) * 1000
        labels = {"operation": operation, "topic": topic, "group": group}
        self._metrics.record(API_LATENCY, spent_ms, labels)

    def _count_fallback(self, operation: str, topic: str, group: str = "") -> None:
        labels = {"operation": operation, "topic": topic, "group": group}
        self._metrics.add(GET_MESSAGE_FALLBACK, 1, labels)


def _nearer(offset: int, near: GetResult, far: GetResult) -> GetResult:
    """Of two answers without messages, the one whose next message is closer to `offset`."""
    if near.status in _NO_QUEUE or near.next_offset <= offset:
        return far
    if far.next_offset <= offset or near.next_offset < far.next_offset:
        return near
    return far


def _done(call: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()
    _settle(future, call)
    return future


def _failed(error: BaseException) -> Future[GetResult]:
    future: Future[GetResult] = Future()
    future.set_exception(error)
    return future


def _following(inner: Future[T], answer: Callable[[], T]) -> Future[T]:
    """A future that has the answer once the inner one is done; to cancel it cancels that one."""
    if inner.done():
        return _done(answer)
    outer: Future[T] = Future()
    outer.add_done_callback(lambda it: it.cancelled() and inner.cancel())
    inner.add_done_callback(lambda _: _settle(outer, answer))
    return outer


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    """Give a future its outcome, unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except CancelledError:  # a shutdown closed the pool before the call began
        future.set_exception(StoreClosedError("the store is closed"))
    except BaseException as error:
        future.set_exception(error)  # otherwise a waiter would wait for ever
        if not isinstance(error, Exception):
            raise


def _oldest_time(found: QueryResult) -> int:
    return peek_store_timestamp(found.messages[-1].record)


def _smaller(near: int | None, far: int | None) -> int | None:
    known = [value for value in (near, far) if value is not None]
    return min(known, default=None)


def _newest_first(
    near: Sequence[SelectedMessage], far: Sequence[SelectedMessage]
) -> list[SelectedMessage]:
    """Merge both, newest first; the next store's copy of a message counts, and of equal times its
    messages come first.

    Offsets do not identify messages: half messages of a transaction all have offset 0.
    """
    known = {_without_place(one.record) for one in near}
    only_far = [one for one in far if _without_place(one.record) not in known]
    return sorted([*near, *only_far], key=lambda one: -peek_store_timestamp(one.record))


def _without_place(record: bytes) -> bytes:
    """A record without its log offset, which differs in the tier."""
    return record[:LOG_OFFSET_POSITION] + record[SYS_FLAG_POSITION:]
