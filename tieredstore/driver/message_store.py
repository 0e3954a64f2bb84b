"""The protocol of a message store: what a broker calls, and what the tier wraps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from tieredstore.driver.arrivals import Arrival, ArrivalCallback, Arrivals
from tieredstore.driver.runtime import done_future
from tieredstore.model.errors import BackendRefusedError, InvalidArgumentError
from tieredstore.model.messages import (
    DispatchRequest,
    GetResult,
    Message,
    MessageRun,
    PutResult,
    QueryResult,
    SelectedMessage,
)
from tieredstore.model.values import INT64_MAX, Boundary, QueueKey, require_place, require_text

if TYPE_CHECKING:
    from tieredstore.model.config import StoreConfig

COUNT_MAX = 32
BYTES_MAX = 256 * 1024

_NUMBERS = "queue_id", "offset", "count_max", "bytes_max"

Dispatcher: TypeAlias = Callable[[Sequence[DispatchRequest]], None]
RetentionGuard: TypeAlias = Callable[[], int | None]


class MessageFilter(Protocol):
    """Selects messages: first cheaply by tags code, then by the record.

    A filter whose first choice depends only on tags may also have an attribute `tags_codes`, the
    hashes of those tags. It promises that `matches_tags_code` is True exactly for codes whose low
    32 bits equal one of them, and for codes that are no hash: codes below -2**31 are addresses of
    Java's extended queues. A store may then select many messages at once without a call. None
    means the same as no such attribute.
    """

    def matches_tags_code(self, tags_code: int) -> bool:
        """Whether a message with this tags code may be wanted."""

    def matches_record(self, record: bytes) -> bool:
        """Whether the message of this record is wanted."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The arguments of one call of `get_message`. The method creates it and passes it on whole.

    Raises InvalidArgumentError for a topic or group that is not text, for numbers that are not
    whole, and for a filter that lacks one of its two methods.
    """

    topic: str
    queue_id: int
    offset: int
    count_max: int = COUNT_MAX
    bytes_max: int = BYTES_MAX
    message_filter: MessageFilter | None = None
    group: str = ""

    def __post_init__(self) -> None:
        numbers = self.queue_id, self.offset, self.count_max, self.bytes_max
        require_place(self.topic, *numbers)
        require_text("group", self.group)
        if {*map(type, numbers)} != {int}:  # NumPy's would overflow when offsets become bytes
            for name, number in zip(_NUMBERS, numbers, strict=True):
                object.__setattr__(self, name, int(number))
        wanted = self.message_filter
        if wanted is not None and not (
            hasattr(wanted, "matches_tags_code") and hasattr(wanted, "matches_record")
        ):
            raise InvalidArgumentError(
                f"message_filter: want a filter, such as filter_of makes, not {wanted!r:.80}"
            )

    @property
    def key(self) -> QueueKey:
        return QueueKey(self.topic, self.queue_id)

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id} from {self.offset}, {self.count_max} at most"


@runtime_checkable
class MessageStore(Protocol):
    """A broker's message store.

    * Lifecycle: `load`, `start`, then reads and puts, then `shutdown`; each is idempotent. Before
      `load` and after `shutdown` everything else raises StoreClosedError. `destroy` deletes the
      data and is never part of `shutdown`.
    * Offsets count the messages of one queue from 0; an interval ends before its maximum. A crash
      loses nothing below `confirmed_offset`.
    * Absence is None, a status or an empty answer; failure is an exception. Unknown topics and
      queues are absence.
    * Any thread may call anything at any time. What is returned does not change later.
    * A store that confirms late may also have `flush()`, which makes all earlier puts durable and
      confirms them. Callers that need it look for it; a store without one confirms in its own time.
    * A store whose queues can begin anywhere may have `begin_queues(ends, *, log_offset,
      store_timestamp)`. The tier calls it after `load` and before `start`, to continue queues whose
      end this store has lost. Durably on return, each of these queues gives out its next offset
      from here, and this store has no messages below it; new log offsets begin at or after
      `log_offset`, and new store times at or after `store_timestamp`, but at most a day ahead of
      the clock: otherwise a clock behind that of the previous machine would put new messages before
      old ones. A queue that is already further raises OffsetOutOfRangeError. Calling it again
      changes nothing. Such a store may also have `begun_time(topic)`: up to this store time,
      messages of the topic may be in the tier alone, as some of its queues begin after them; 0 if
      none does. And `lost_ends`: the former ends of queues that it found shorter when it was
      opened.
    * A store whose puts need not wait may have `put_at_once(message)`: the result of `put_message`,
      or None, with nothing done, if that would wait for a disk, a backend or a busy lock. A caller
      that must not block, such as an event loop, tries it first. `put_messages_at_once(messages)`
      is the same for batches: all of the results of `put_messages`, or None.
    * A store that looks for damage may have `damages`: what it found since it was opened, each with
      `path`, `position`, `reason` and `mended`. Health shows them.
    * A class that inherits from this one gets the methods that have a body here: `put_message` is
      enough, and a store that can do more at a time overrides the rest.

    Raises: StoreClosedError, InvalidConfigError (load), SegmentCorruptError, BackendError.
    """

    def load(self) -> None:
        """Open the store."""

    def start(self) -> None:
        """Begin to take puts and to serve."""

    def shutdown(self) -> None:
        """End everything; idempotent."""

    def destroy(self) -> None:
        """Delete the data."""

    def put_message(self, message: Message) -> PutResult:
        """Store one message; after PUT_OK it is as durable as the store promises."""

    def put_messages(self, messages: Sequence[Message]) -> Sequence[PutResult]:
        """Store messages in this order; each is stored or refused by itself.

        `MessageColumns` are such a sequence: a store that knows them needs no object per message.
        """
        return [self.put_message(message) for message in messages]

    def put_message_future(self, message: Message) -> Future[PutResult]:
        """Take one message now; done when `put_message` would have returned or raised.

        * Later puts come after it, and it cannot be cancelled.
        * A store that waits for its disk holds no thread for each put that waits. A store that
          cannot do that waits here, so call it where waiting is allowed.
        * Callbacks of the future run in a thread of the store and may not wait for another put.
        * A closed store may raise here or in the future.
        """
        return done_future(self.put_message, message)

    def put_messages_future(self, messages: Sequence[Message]) -> Future[Sequence[PutResult]]:
        """The same for `put_messages`."""
        return done_future(self.put_messages, messages)

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
        """Messages from `offset` on, in order; if there are any at least one, however large.

        * An offset that the messages and `next_offset` skip exists nowhere, or the filter left it
          out. So the messages begin at `offset`, are consecutive but for what the filter left out,
          and end before the first one that cannot be given now, because it has gone or is damaged.
          "Nowhere" means in no part of the store: a tier and the store before it ask each other.
        * If there is no message at `offset`, the answer is a status without messages, and its
          `next_offset` is the first message that exists. Damage right at `offset` is raised.
        * A `count_max` of zero or less gives no messages and moves nowhere.
        """

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        """The oldest queue offset that can be read; None for a queue that does not exist."""

    def max_offset(self, topic: str, queue_id: int) -> int | None:
        """One more than the newest queue offset; None for a queue that does not exist."""

    def confirmed_offset(self) -> int:
        """Below this log offset messages are fsynced and replicated: only they may be uploaded."""

    def min_log_offset(self) -> int | None:
        """The oldest log offset; None while the log is empty."""

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> int | None:
        """The queue offset to start from for a store time.

        LOWER: the first message stored then or later, or the queue's end if there is none. UPPER:
        the last message stored exactly then. If none was, UPPER gives what LOWER gives, or the
        message before that one, as RocketMQ's tier and its local store do.
        """

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """When the message at this offset was stored, in ms; None if there is none."""

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int | None:
        """Store time of the oldest message of a queue, or of the whole store without a topic."""

    def query_message(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = COUNT_MAX,
        begin: int = 0,
        end: int = INT64_MAX,
    ) -> QueryResult:
        """Messages of a topic that have the key, stored within [begin, end], newest first."""

    def message_at(self, log_offset: int, size: int | None = None) -> SelectedMessage | None:
        """The message whose record starts at this log offset; None if none does, or if its size is
        not `size`. A record that starts there and is damaged is an error."""

    def contains(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether there is a message at this queue offset."""

    def in_memory(self, topic: str, queue_id: int, offset: int, count: int = 1) -> bool:
        """Whether these messages can be read without waiting for a disk."""

    def read_range(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int
    ) -> MessageRun:
        """Consecutive messages as columns; empty if there is none, else at least one.

        A run ends before a gap, before damage, and where the messages of one tier end: go on at
        its `end_offset`. Its log offsets are those of the store that the messages come from.
        """

    def add_dispatcher(self, dispatcher: Dispatcher) -> None:
        """Call it with every message after its queue unit exists, in log order, in batches."""

    def on_arrival(self, callback: ArrivalCallback) -> Arrival:
        """Call it with new messages until it is cancelled: one batch per call, as for dispatchers.

        * Each message is announced once, when it can be read, with topic, queue, queue offset, tags
          code and store time. Messages of one queue come in order.
        * The callback runs in a thread that puts, reads or serves: it may call the store, and must
          be quick. What it raises is logged and stops nothing else.
        * A callback may be added before `load`, and stays when the store is closed and reopened.
        """
        arrivals = Arrivals()
        self.add_dispatcher(arrivals)  # stays, without a callback, after the cancellation
        return arrivals.add(callback)

    def add_retention_guard(self, guard: RetentionGuard) -> None:
        """Ask it before deleting: log bytes at or above what it returns are kept."""

    def queues(self) -> Iterable[QueueKey]:
        """Every queue that has or had messages."""

    def delete_topics(self, topics: Iterable[str]) -> int:
        """Delete topics; returns how many of them existed."""

    def clean_unused_topics(self, retained: Iterable[str]) -> int:
        """Delete every topic but the retained and the system's; returns how many there were."""


def read_from(store: MessageStore, request: ReadRequest) -> GetResult:
    """Call `get_message` with the arguments of this request."""
    return store.get_message(
        request.topic,
        request.queue_id,
        request.offset,
        count_max=request.count_max,
        bytes_max=request.bytes_max,
        message_filter=request.message_filter,
        group=request.group,
    )


class RunReads(Protocol):
    """Anything that returns messages as runs: a store, or a tier alone."""

    def read_range(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int
    ) -> MessageRun: ...


def run_from(store: RunReads, request: ReadRequest) -> MessageRun:
    """Call `read_range` with the arguments of this request, which has no filter."""
    return store.read_range(
        request.topic,
        request.queue_id,
        request.offset,
        count_max=request.count_max,
        bytes_max=request.bytes_max,
    )


def begun_time_of(store: MessageStore, topic: str) -> int:
    """The `begun_time` of a store; 0 if it has none."""
    begun_time = getattr(store, "begun_time", None)
    return 0 if begun_time is None else int(begun_time(topic))


def puts_at_once(store: MessageStore) -> Callable[[Message], PutResult | None] | None:
    """The `put_at_once` of a store, if its class has one. If `__getattr__` forwarded it to another
    store, it would bypass the `put_message` of this one."""
    return getattr(store, "put_at_once") if hasattr(type(store), "put_at_once") else None  # noqa: B009


def batches_at_once(
    store: MessageStore,
) -> Callable[[Sequence[Message]], Sequence[PutResult] | None] | None:
    """The same for `put_messages_at_once`."""
    name = "put_messages_at_once"
    return getattr(store, name) if hasattr(type(store), name) else None


class AbstractPluginMessageStore:
    """A message store that wraps another and passes every call on unchanged.

    For plugins: override the methods that should differ, and call `super()` or `self.next_store`
    for the rest. A plugin that overrides only `put_message` still sees every message: batches and
    futures then go through it, one message after the other, and wait as it does. `load_plugins`
    builds one from the store that it wraps and the settings. The name is RocketMQ's.

    Every method passes on the errors of the next store.
    """

    def __init__(self, next_store: MessageStore, config: StoreConfig) -> None:
        self.next_store = next_store
        self.config = config

    def load(self) -> None:
        """Open the store."""
        self.next_store.load()

    def start(self) -> None:
        """Begin to take puts and to serve."""
        self.next_store.start()

    def shutdown(self) -> None:
        """End everything; idempotent."""
        self.next_store.shutdown()

    def destroy(self) -> None:
        """Delete the data."""
        self.next_store.destroy()

    def flush(self, *arguments: Any, **named: Any) -> Any:
        """Flush the next store; None if it has no `flush` and confirms in its own time."""
        flush = getattr(self.next_store, "flush", None)
        return None if flush is None else flush(*arguments, **named)

    def begin_queues(
        self, ends: Mapping[QueueKey, int], *, log_offset: int, store_timestamp: int = 0
    ) -> None:
        """Let each of these queues give out its next offset from here: see MessageStore.

        Raises BackendRefusedError if the next store has no `begin_queues`.
        """
        begin = getattr(self.next_store, "begin_queues", None)
        if begin is None:
            name = type(self.next_store).__name__
            raise BackendRefusedError(name, "begin queues", "it has no begin_queues")
        begin(ends, log_offset=log_offset, store_timestamp=store_timestamp)

    def begun_time(self, topic: str) -> int:
        """That of the next store; 0 if its queues cannot begin anywhere."""
        return begun_time_of(self.next_store, topic)

    @property
    def lost_ends(self) -> Mapping[QueueKey, int]:
        """Those of the next store; empty if it does not know where its queues ended."""
        ends: Mapping[QueueKey, int] = getattr(self.next_store, "lost_ends", {})
        return ends

    @property
    def damages(self) -> Sequence[Any]:
        """Those of the next store; empty if it does not look for damage."""
        damages: Sequence[Any] = getattr(self.next_store, "damages", ())
        return damages

    def put_message(self, message: Message) -> PutResult:
        """Store one message. The result says where, or by its status why not."""
        return self.next_store.put_message(message)

    def put_messages(self, messages: Sequence[Message]) -> Sequence[PutResult]:
        """Store messages in this order; each is stored or refused by itself."""
        if self._overrides("put_message"):
            return [self.put_message(message) for message in messages]
        return self.next_store.put_messages(messages)

    def put_at_once(self, message: Message) -> PutResult | None:
        """Store one message without waiting; None, with nothing done, if that is impossible."""
        put = puts_at_once(self.next_store)
        if put is None or self._overrides("put_message", "put_message_future"):
            return None
        return put(message)

    def put_messages_at_once(self, messages: Sequence[Message]) -> Sequence[PutResult] | None:
        """Store messages without waiting; None, with nothing done, if that is impossible."""
        put = batches_at_once(self.next_store)
        if put is None or self._overrides("put_message", "put_messages", "put_messages_future"):
            return None
        return put(messages)

    def put_message_future(self, message: Message) -> Future[PutResult]:
        """Take one message now; the future is done when it is stored or refused."""
        if self._overrides("put_message"):
            return done_future(self.put_message, message)
        return self.next_store.put_message_future(message)

    def put_messages_future(self, messages: Sequence[Message]) -> Future[Sequence[PutResult]]:
        """Take messages now; the future is done when all are stored or refused."""
        if self._overrides("put_message", "put_messages"):
            return done_future(self.put_messages, messages)
        return self.next_store.put_messages_future(messages)

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
        """Messages from `offset` on, in order; `next_offset` says where to go on.

        At most `count_max` messages and about `bytes_max` bytes, but if there is a message at
        least one, however large. An unknown queue, or an offset without a message, is a status.
        """
        return self.next_store.get_message(
            topic,
            queue_id,
            offset,
            count_max=count_max,
            bytes_max=bytes_max,
            message_filter=message_filter,
            group=group,
        )

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        """The oldest queue offset that can be read; None for a queue that does not exist."""
        return self.next_store.min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int | None:
        """One more than the newest queue offset; None for a queue that does not exist."""
        return self.next_store.max_offset(topic, queue_id)

    def confirmed_offset(self) -> int:
        """Below this log offset messages are durable, and may be uploaded."""
        return self.next_store.confirmed_offset()

    def min_log_offset(self) -> int | None:
        """The oldest log offset; None while the log is empty."""
        return self.next_store.min_log_offset()

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> int | None:
        """The queue offset to start from for a store time; None for a queue that does not exist."""
        return self.next_store.offset_by_time(topic, queue_id, timestamp, boundary)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """When the message at this offset was stored, in ms; None if there is none."""
        return self.next_store.store_time(topic, queue_id, offset)

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int | None:
        """Store time of a queue's oldest message, in ms; None if there is none.

        Without a topic, of the whole store's oldest message.
        """
        return self.next_store.earliest_time(topic, queue_id)

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

        `complete` is False if a hit may be missing.
        """
        return self.next_store.query_message(topic, key, count_max=count_max, begin=begin, end=end)

    def message_at(self, log_offset: int, size: int | None = None) -> SelectedMessage | None:
        """The message whose record starts at this log offset; None if none does."""
        return self.next_store.message_at(log_offset, size)

    def contains(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether there is a message at this queue offset."""
        return self.next_store.contains(topic, queue_id, offset)

    def in_memory(self, topic: str, queue_id: int, offset: int, count: int = 1) -> bool:
        """Whether these messages can be read without waiting for a disk."""
        return self.next_store.in_memory(topic, queue_id, offset, count)

    def read_range(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int
    ) -> MessageRun:
        """Consecutive messages as columns; empty if there is none, else at least one."""
        return self.next_store.read_range(
            topic, queue_id, offset, count_max=count_max, bytes_max=bytes_max
        )

    def add_dispatcher(self, dispatcher: Dispatcher) -> None:
        """Call it with every message that can be read, in log order, in batches."""
        self.next_store.add_dispatcher(dispatcher)

    def on_arrival(self, callback: ArrivalCallback) -> Arrival:
        """Call it with new messages until the returned arrival is cancelled."""
        return self.next_store.on_arrival(callback)

    def add_retention_guard(self, guard: RetentionGuard) -> None:
        """Ask it before deleting: log bytes at or above what it returns are kept."""
        self.next_store.add_retention_guard(guard)

    def queues(self) -> Iterable[QueueKey]:
        """Every queue that has or had messages."""
        return self.next_store.queues()

    def delete_topics(self, topics: Iterable[str]) -> int:
        """Delete topics; returns how many of them existed."""
        return self.next_store.delete_topics(topics)

    def clean_unused_topics(self, retained: Iterable[str]) -> int:
        """Delete every topic but the retained and the system's; returns how many there were."""
        return self.next_store.clean_unused_topics(retained)

    def _overrides(self, *names: str) -> bool:
        ours = AbstractPluginMessageStore
        return any(getattr(type(self), name) is not getattr(ours, name) for name in names)
