"""Reading messages by queue offset from whichever store has them.

What lives here: `MessageReads`: the decision carried out, the fallback to the next store, and the
same in a future. Everything but messages by offset is in `merged_reads`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Final, NamedTuple, Protocol, TypeVar

from tieredstore.access.read_decision import ReadDecision
from tieredstore.access.reads.fetcher import Fetcher
from tieredstore.driver.message_store import MessageFilter, MessageStore
from tieredstore.driver.metrics import API_LATENCY, GET_MESSAGE_FALLBACK, MESSAGES_OUT, Metrics
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.model.messages import GetResult
from tieredstore.model.printable import log_of
from tieredstore.model.values import GetStatus

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

log = log_of(__name__)

_NO_QUEUE: Final = frozenset({GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE})
# A store that answers so has not got the message: another one may have it.
_LACKING: Final = _NO_QUEUE | {
    GetStatus.OFFSET_FOUND_NULL,
    GetStatus.OFFSET_TOO_SMALL,
    GetStatus.MESSAGE_WAS_REMOVING,
}
# And so where it ends before the offset: another one may go on.
_ENDS: Final = _LACKING | {GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.OFFSET_OVERFLOW_BADLY}
_EXPECTED: Final = _ENDS | {GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE}
_TRIES: Final = 8  # of one read, while messages move from one store to the other under it


class GetMessage(Protocol[T_co]):
    """`get_message` of a store, or something that is called like it."""

    def __call__(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        bytes_max: int,
        message_filter: MessageFilter | None,
        group: str,
    ) -> T_co: ...


class MessageRequest(NamedTuple):
    """What one call of `get_message` asks for."""

    topic: str
    queue_id: int
    offset: int
    count_max: int
    bytes_max: int
    message_filter: MessageFilter | None
    group: str

    def ask(self, get_message: GetMessage[T]) -> T:
        return get_message(
            self.topic,
            self.queue_id,
            self.offset,
            count_max=self.count_max,
            bytes_max=self.bytes_max,
            message_filter=self.message_filter,
            group=self.group,
        )


class MessageReads:
    """Reads messages from the next store or from the tier.

    * A page's messages and its next offset never pass a message that one of the two stores has
      and that the filter did not leave out. Where the store that was asked first has not got the
      messages, the other one answers; where neither has them, the reader goes on at the first
      message that either of them has.
    * What waits for its upload is the next store's to give, at every level.
    * A tier that cannot be reached is no error while the next store still has the offset. Damage
      in the tier always is one.
    * The maximum of a page from the tier is the tier's: what it has not got yet is the next
      store's.
    """

    def __init__(
        self,
        next_store: MessageStore,
        fetcher: Fetcher,
        decision: ReadDecision,
        *,
        runtime: Runtime,
        metrics: Metrics,
        logs_outcomes: bool = False,
    ) -> None:
        self._next = next_store
        self._fetcher = fetcher
        self._decision = decision
        self._runtime = runtime
        self._metrics = metrics
        self._logs_outcomes = logs_outcomes

    def get(self, request: MessageRequest) -> GetResult:
        for _ in range(_TRIES):
            if not self._reads_tier(request):
                result = request.ask(self._next.get_message)
                if not self._tier_may_have(request, result):
                    return result
            started = self._runtime.clock.monotonic()
            answer = self._answer(request, lambda: request.ask(self._fetcher.get_message), started)
            if answer is not None:
                return answer
        return self._stay(request)

    def get_future(self, request: MessageRequest) -> Future[GetResult]:
        """The same; done at once where no backend and no disk has to be waited for."""
        try:
            if not self._reads_tier(request):
                if self._is_on_disk_only(request):
                    return self._runtime.fetch.submit(self.get, request)
                return _done(lambda: self.get(request))
        except Exception as error:  # noqa: BLE001 - whoever asks the future gets it
            return _failed(error)
        started = self._runtime.clock.monotonic()
        try:
            inner = request.ask(self._fetcher.get_message_future)
        except Exception as error:  # noqa: BLE001 - it may be one that is fallen back from
            inner = _failed(error)

        def answer() -> GetResult:
            return self._answer(request, inner.result, started) or self.get(request)

        if inner.done():
            return _done(answer)
        outer: Future[GetResult] = Future()
        outer.add_done_callback(lambda it: it.cancelled() and inner.cancel())
        inner.add_done_callback(lambda _: _settle(outer, answer))
        return outer

    def get_hot(self, request: MessageRequest) -> GetResult | None:
        """The same where no backend and no disk has to be waited for; None where one has."""
        if not self._reads_tier(request):
            return None if self._is_on_disk_only(request) else self._near_hot(request)
        started = self._runtime.clock.monotonic()
        result = request.ask(self._fetcher.get_message_hot)
        if result is None or (result.status in _ENDS and self._is_on_disk_only(request)):
            return None
        return self._answer(request, lambda: result, started)

    def _near_hot(self, request: MessageRequest) -> GetResult | None:
        result = request.ask(self._next.get_message)
        if self._tier_may_have(request, result):
            return None  # the other one has to be asked too
        return result

    def _reads_tier(self, request: MessageRequest) -> bool:
        return self._decision.reads_tier(
            self._fetcher,
            request.topic,
            request.queue_id,
            request.offset,
            count=request.count_max,
        )

    def _tier_may_have(self, request: MessageRequest, result: GetResult) -> bool:
        """Whether the next store had nothing and the tier is worth asking.

        Its own retention may have run since the decision, or it lost the queue.
        """
        if result.status not in _LACKING or not self._decision.may_read_tier(request.topic):
            return False
        commit_offset = self._fetcher.commit_offset(request.topic, request.queue_id)
        if commit_offset is None or not self._fetcher.has_messages(request.topic, request.queue_id):
            return False
        return request.offset < commit_offset or result.status in _NO_QUEUE

    def _is_on_disk_only(self, request: MessageRequest) -> bool:
        place = request.topic, request.queue_id, request.offset
        return self._next.contains(*place) and not self._next.in_memory(
            *place, max(1, request.count_max)
        )

    def _answer(
        self, request: MessageRequest, tier: Callable[[], GetResult], started: float
    ) -> GetResult | None:
        """What the tier says, or the next store where the tier cannot serve it; None where both
        changed meanwhile, so that they have to be asked again."""
        try:
            result = tier()
        except BackendUnavailableError as error:
            near = self._near_instead(request)
            if near is None:
                raise
            log.warning("read from the next store, the tier cannot be reached: %s", error)
            return near
        finally:
            spent_ms = (self._runtime.clock.monotonic() - started) * 1000
            labels = {
                "operation": "get_message",
                "topic": request.topic,
                "group": request.group,
            }
            self._metrics.record(API_LATENCY, spent_ms, labels)
        if self._logs_outcomes:
            log.info("%s: %s", request[:5], result.status.name)
        if result.status in _ENDS and self._next_goes_on(request, result):
            near = request.ask(self._next.get_message)
            if near.status not in _LACKING:
                self._count_fallback(request)
                return near
            if self._fetcher.contains(request.topic, request.queue_id, request.offset):
                return None  # uploaded after the tier was asked, and expired before the other was
            result = _nearer(request.offset, near, result)
        self._take_note(request, result)
        return self._with_next_minimum(request, result)

    def _next_goes_on(self, request: MessageRequest, result: GetResult) -> bool:
        """Whether the next store has messages behind this offset, or behind the tier's last."""
        maximum = self._next.max_offset(request.topic, request.queue_id)
        return maximum is not None and maximum > min(request.offset, result.max_offset)

    def _near_instead(self, request: MessageRequest) -> GetResult | None:
        """What the next store answers alone, if it has the very first message asked for."""
        if not self._next.contains(request.topic, request.queue_id, request.offset):
            return None
        near = request.ask(self._next.get_message)
        if near.status in _ENDS:  # it expired meanwhile: the tier may have it
            return None
        self._count_fallback(request)
        return near

    def _count_fallback(self, request: MessageRequest) -> None:
        labels = {"operation": "get_message", "topic": request.topic, "group": request.group}
        self._metrics.add(GET_MESSAGE_FALLBACK, 1, labels)

    def _take_note(self, request: MessageRequest, result: GetResult) -> None:
        if result.messages:
            labels = {"topic": request.topic, "group": request.group}
            self._metrics.add(MESSAGES_OUT, len(result.messages), labels)
        if result.status not in _EXPECTED:
            log.warning("%s: the tier answers %s", request[:5], result.status.name)

    def _with_next_minimum(self, request: MessageRequest, result: GetResult) -> GetResult:
        """The tier may begin later than the store before it."""
        minimum = self._next.min_offset(request.topic, request.queue_id)
        if minimum is None or not 0 <= minimum < result.min_offset:
            return result
        return replace(result, min_offset=minimum)

    def _stay(self, request: MessageRequest) -> GetResult:
        """Neither store kept still for long enough: ask again from the same offset."""
        return GetResult(
            status=GetStatus.MESSAGE_WAS_REMOVING,
            next_offset=request.offset,
            min_offset=self._next.min_offset(request.topic, request.queue_id) or 0,
            max_offset=self._next.max_offset(request.topic, request.queue_id) or 0,
        )


def _nearer(offset: int, near: GetResult, far: GetResult) -> GetResult:
    """Of two answers without messages the one that goes on at the first message behind `offset`."""
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


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    """Give a future its outcome, unless nobody waits for it any more."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)  # whoever asks the future gets it, and never waits in vain
        if not isinstance(error, Exception):
            raise
