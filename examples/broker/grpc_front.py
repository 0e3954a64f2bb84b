"""RocketMQ's gRPC protocol, apache.rocketmq.v2, over the same stores, topics and consumer offsets.

Consumers pop here: the broker remembers which messages are out and delivers them again, so any
client may ask for any queue. Unsupported calls are answered as unimplemented.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import logging
import re
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from examples.broker import grpc_stubs
from examples.broker.commands import Code, RefusedError
from examples.broker.consume import chosen_by
from examples.broker.grpc_messages import (
    NAME_CHARACTERS_MAX,
    GrpcRefusal,
    Messages,
    full_name,
)
from examples.broker.pop import RENEW_SECONDS
from examples.broker.produce import BODY_BYTES_MAX, check
from examples.broker.receive import (
    COUNT_MAX,
    INVISIBLE_SECONDS_MAX,
    Delivery,
    Receives,
    Retries,
    Wanted,
)
from examples.broker.schedule import Schedule
from examples.broker.storage import Storage
from examples.broker.tables import (
    DEFAULT_TOPIC,
    READ,
    SCHEDULE,
    WRITE,
    Topics,
    require_group,
    topic_of,
)
from tieredstore import (
    ConsumerOffsets,
    Host,
    Message,
    PutResult,
    PutStatus,
    StoreClosedError,
    TieredStoreError,
    TopicConfig,
)

log = logging.getLogger(__name__)

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
CALLS_MAX: Final = 10_000
REQUEST_BYTES_MAX: Final = 16 << 20
PENDING_BYTES_MAX: Final = 128 << 20
BATCH_MAX: Final = 1_024
CLIENTS_MAX: Final = 10_000
SILENT_SECONDS: Final = 35.0  # clients send a heartbeat every ten seconds
POLL_SECONDS: Final = 20
POLL_MARGIN_SECONDS: Final = 0.5  # before a client's own deadline

_REFUSALS: Final[Mapping[Code, str]] = {
    Code.SYSTEM_ERROR: "BAD_REQUEST",
    Code.SYSTEM_BUSY: "TOO_MANY_REQUESTS",
    Code.MESSAGE_ILLEGAL: "BAD_REQUEST",
    Code.SERVICE_NOT_AVAILABLE: "HA_NOT_AVAILABLE",
    Code.NO_PERMISSION: "FORBIDDEN",
    Code.TOPIC_NOT_EXIST: "TOPIC_NOT_FOUND",
    Code.SUBSCRIPTION_PARSE_FAILED: "ILLEGAL_FILTER_EXPRESSION",
}
_RESULTS: Final[Mapping[PutStatus, str]] = {
    PutStatus.PUT_OK: "OK",
    PutStatus.FLUSH_DISK_TIMEOUT: "MASTER_PERSISTENCE_TIMEOUT",
    PutStatus.MESSAGE_ILLEGAL: "BAD_REQUEST",
    PutStatus.PROPERTIES_SIZE_EXCEEDED: "MESSAGE_PROPERTIES_TOO_LARGE",
    PutStatus.SERVICE_NOT_AVAILABLE: "HA_NOT_AVAILABLE",
}
_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
_PEER: Final = re.compile(r"ipv[46]:\[?([0-9a-fA-F.:]+)\]?:([0-9]{1,5})")


class Clients:
    """Live clients, by the ids that they give themselves."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._heard_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._heard_at)

    def heard(self, client: str) -> None:
        if not client or len(client) > NAME_CHARACTERS_MAX:
            raise GrpcRefusal("CLIENT_ID_REQUIRED", "the metadata have no x-mq-client-id")
        if client not in self._heard_at and len(self._heard_at) >= CLIENTS_MAX:
            self._heard_at = {
                each: at for each, at in self._heard_at.items() if self.is_there(each)
            }
            if len(self._heard_at) >= CLIENTS_MAX:
                raise GrpcRefusal("TOO_MANY_REQUESTS", f"there are {CLIENTS_MAX} clients already")
        self._heard_at[client] = self._now()

    def left(self, client: str) -> None:
        self._heard_at.pop(client, None)

    def is_there(self, client: str) -> bool:
        return self._heard_at.get(client, float("-inf")) + SILENT_SECONDS > self._now()


class GrpcFront:
    """Serves clients from `start` until `end` and `stop`."""

    def __init__(
        self,
        storage: Storage,
        schedule: Schedule,
        topics: Topics,
        offsets: ConsumerOffsets,
        *,
        broker: str,
        host: str,
        retries: Retries,
        fifo_groups: frozenset[str] = frozenset(),
    ) -> None:
        """Clients are told the IPv4 address `host`. Groups of `fifo_groups` consume in order."""
        self._grpc, self._pb, self._calls = grpc_stubs.load()
        self._storage = storage
        self._schedule = schedule
        self._topics = topics
        self._broker = broker
        self._host = host
        self._retries = retries
        self._fifo_groups = fifo_groups
        self._turns = itertools.count()
        self._pending_bytes = 0
        self._over = asyncio.Event()
        self._server: Any = None
        self._messages = Messages(self._pb, Host(ipaddress.IPv4Address(host).packed, 0))
        self._port = 0
        self.counts: Counter[tuple[str, str]] = Counter()
        self.clients = Clients(asyncio.get_running_loop().time)
        self.receives = Receives(
            storage,
            topics,
            offsets,
            retries=retries,
            is_fifo=fifo_groups.__contains__,
            is_alive=self.clients.is_there,
        )

    # -- life ---------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> int:
        """Returns the port, which the system chooses for 0. OSError if the port is taken."""
        options = [
            ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]
        self._server = self._grpc.aio.server(options=options, maximum_concurrent_rpcs=CALLS_MAX)
        self._server.add_generic_rpc_handlers([self._handlers()])
        try:
            self._port = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise OSError(f"gRPC: {host}:{port} cannot be listened at: {error}") from error
        self._messages = Messages(
            self._pb, Host(ipaddress.IPv4Address(self._host).packed, self._port)
        )
        await self._server.start()
        return self._port

    def end(self) -> None:
        """End all waits: every request is answered with what there is."""
        self._over.set()
        self.receives.end()

    async def stop(self, seconds: float) -> None:
        """Accept nothing more, and answer the requests in flight."""
        self.end()
        if self._server is not None:
            await self._server.stop(seconds)

    # -- routes -------------------------------------------------------------------------------

    async def query_route(self, request: Any, client: str) -> Any:
        topic = self._topic(request.topic)
        queues = [
            self._queue(request.topic, queue_id, topic)
            for queue_id in range(max(topic.read_queue_count, topic.write_queue_count))
        ]
        return self._calls.QueryRouteResponse(status=self._status(), message_queues=queues)

    async def query_assignment(self, request: Any, client: str) -> Any:
        """All queues, for each consumer of a group: each message is given to only one of them."""
        require_group_of(request.group)
        topic = self._topic(request.topic)
        assignments = [
            self._pb.Assignment(message_queue=self._queue(request.topic, queue_id, topic))
            for queue_id in range(topic.read_queue_count)
        ]
        return self._calls.QueryAssignmentResponse(status=self._status(), assignments=assignments)

    def _topic(self, resource: Any) -> TopicConfig:
        """A topic that does not exist is shown as its first message will make it."""
        name = full_name(resource)
        if not _TOPIC.fullmatch(name):
            raise GrpcRefusal("ILLEGAL_TOPIC", f"{name!r:.140} cannot name a topic")
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        template = self._topics.get(DEFAULT_TOPIC)
        if template is None:
            raise GrpcRefusal("TOPIC_NOT_FOUND", f"there is no topic {name}")
        count = template.write_queue_count
        return topic_of(name, count)

    def _queue(self, resource: Any, queue_id: int, topic: TopicConfig) -> Any:
        pb = self._pb
        reads = bool(topic.perm & READ) and queue_id < topic.read_queue_count
        writes = bool(topic.perm & WRITE) and queue_id < topic.write_queue_count
        permissions = {
            (True, True): pb.READ_WRITE,
            (True, False): pb.READ,
            (False, True): pb.WRITE,
            (False, False): pb.NONE,
        }
        address = pb.Address(host=self._host, port=self._port)
        endpoints = pb.Endpoints(scheme=pb.IPv4, addresses=[address])
        return pb.MessageQueue(
            topic=resource,
            id=queue_id,
            permission=permissions[reads, writes],
            broker=pb.Broker(name=self._broker, id=0, endpoints=endpoints),
            accept_message_types=[pb.NORMAL, pb.FIFO, pb.DELAY],
        )

    # -- clients ------------------------------------------------------------------------------

    async def heartbeat(self, request: Any, client: str) -> Any:
        if request.HasField("group"):
            require_group_of(request.group)
        return self._calls.HeartbeatResponse(status=self._status())

    async def notify_client_termination(self, request: Any, client: str) -> Any:
        self.clients.left(client)
        return self._calls.NotifyClientTerminationResponse(status=self._status())

    async def telemetry(self, _: Any, context: Any) -> None:
        """Answers the settings of a client with those that apply."""
        client = client_of(context)
        while (command := await self._command(context)) is not None:
            if command.WhichOneof("command") != "settings":
                continue
            try:
                self.clients.heard(client)
                answer = self._calls.TelemetryCommand(
                    status=self._status(), settings=self._settings(command.settings)
                )
            except RefusedError as error:
                answer = self._calls.TelemetryCommand(status=self._refusal(error, "Telemetry"))
            await context.write(answer)

    async def _command(self, context: Any) -> Any:
        """The client's next command; None when the client or the broker ends."""
        reading = asyncio.ensure_future(context.read())
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait([reading, over], return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                return None
            command = await reading
            return None if command is self._grpc.aio.EOF else command
        finally:
            reading.cancel()
            over.cancel()

    def _settings(self, given: Any) -> Any:
        pb, settings = self._pb, self._pb.Settings()
        settings.CopyFrom(given)
        policy = settings.backoff_policy
        policy.max_attempts = self._retries.attempts_max
        policy.exponential_backoff.initial.FromNanoseconds(int(self._retries.first_seconds * 1e9))
        policy.exponential_backoff.max.FromNanoseconds(int(self._retries.longest_seconds * 1e9))
        policy.exponential_backoff.multiplier = 2.0
        settings.metric.on = False
        kind = settings.WhichOneof("pub_sub")
        if kind == "publishing":
            settings.publishing.max_body_size = BODY_BYTES_MAX
            settings.publishing.validate_message_type = True
        elif kind == "subscription":
            subscription = settings.subscription
            group = require_group_of(subscription.group)
            subscription.fifo = group in self._fifo_groups
            subscription.receive_batch_size = COUNT_MAX
            if not subscription.HasField("long_polling_timeout"):
                subscription.long_polling_timeout.seconds = POLL_SECONDS
            for entry in subscription.subscriptions:
                self._chosen(entry.expression)
        else:
            raise GrpcRefusal("UNRECOGNIZED_CLIENT_TYPE", "settings of no producer or consumer")
        if settings.client_type in (pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER):
            raise GrpcRefusal("UNSUPPORTED", "lite consumers are not supported")
        return settings

    def _chosen(self, expression: Any) -> Any:
        pb = self._pb
        kinds = {pb.FILTER_TYPE_UNSPECIFIED: "TAG", pb.TAG: "TAG", pb.SQL: "SQL92"}
        return chosen_by(expression.expression, kinds.get(expression.type, "?"))

    # -- messages -----------------------------------------------------------------------------

    async def send_message(self, request: Any, client: str, born_host: Host) -> Any:
        with self._room(request.ByteSize()):
            results = await self._stored(request.messages, born_host)
        entries = [
            self._calls.SendResultEntry(
                status=self._status(_RESULTS.get(result.status, "INTERNAL_ERROR"), result.reason),
                message_id=given.system_properties.message_id,
                offset=max(result.queue_offset, 0) if result.stored else 0,
            )
            for given, result in zip(request.messages, results, strict=True)
        ]
        statuses = {entry.status.code: entry.status for entry in entries}
        status = entries[0].status if len(statuses) == 1 else self._status("MULTIPLE_RESULTS")
        return self._calls.SendMessageResponse(status=status, entries=entries)

    async def _stored(self, given: Sequence[Any], born_host: Host) -> Sequence[PutResult]:
        """Store all in one queue, side by side; a message group, if given, decides which."""
        if not 1 <= len(given) <= BATCH_MAX:
            raise GrpcRefusal("BAD_REQUEST", f"{len(given)} messages, and not 1 to {BATCH_MAX}")
        names = {full_name(each.topic) for each in given}
        groups = {each.system_properties.message_group for each in given}
        if len(names) > 1 or len(groups) > 1:
            raise GrpcRefusal("BAD_REQUEST", "messages of several topics or orders")
        (name,), (group,) = names, groups
        if not _TOPIC.fullmatch(name) or name == SCHEDULE or name.startswith("rmq_sys_"):
            raise GrpcRefusal("ILLEGAL_TOPIC", f"nobody may send to {name!r:.140}")
        topic = self._topics.to_write(name, wanted_queues=2**31)
        turn = zlib.crc32(group.encode()) if group else next(self._turns)
        queue_id = turn % max(topic.write_queue_count, 1)
        messages: list[Message] = []
        unpacked = 0  # what packed bodies take besides the bytes that came
        for each in given:
            message = self._messages.taken(each, name, queue_id, born_host)
            unpacked += max(0, len(message.body) - len(each.body))
            self._require_room(unpacked)
            messages.append(self._schedule.place(message))
        for message in messages:
            check(message)
        with self._room(unpacked):
            await self._topics.keep()  # if it is new
            return await self._storage.put(messages)

    def _require_room(self, size: int) -> None:
        if self._pending_bytes + size > PENDING_BYTES_MAX:
            raise GrpcRefusal("TOO_MANY_REQUESTS", "too many bytes wait for an answer")

    @contextmanager
    def _room(self, size: int) -> Iterator[None]:
        """Room for the bytes of a request that waits."""
        self._require_room(size)
        self._pending_bytes += size
        try:
            yield
        finally:
            self._pending_bytes -= size

    async def receive_message(self, request: Any, context: Any) -> None:
        """A status, messages, and the time."""
        wanted: Wanted | None = None
        found: list[Delivery] = []
        try:
            with self._room(request.ByteSize()):
                wanted = self._wanted(request, context)
                found = await self.receives.receive(wanted)
            status = self._status("OK" if found else "MESSAGE_NOT_FOUND")
        except Exception as error:  # noqa: BLE001 - what it was is in the status
            status = self._refusal(error, "ReceiveMessage")
        self.counts["ReceiveMessage", self._pb.Code.Name(status.code)] += 1
        response = self._calls.ReceiveMessageResponse
        written = 0
        try:
            await context.write(response(status=status))
            for delivery in found:
                message = self._shown(delivery, request.message_queue.topic, wanted)
                if message is not None:
                    await context.write(response(message=message))
                written += 1
            time = response()
            time.delivery_timestamp.GetCurrentTime()
            await context.write(time)
        finally:
            if wanted is not None and written < len(found):  # the client is gone
                self.receives.take_back(wanted.group, wanted.topic, found[written:])

    def _shown(self, delivery: Delivery, topic: Any, wanted: Wanted | None) -> Any:
        """The message; None if it cannot be shown, in which case it is out until it is dead."""
        try:
            return self._messages.given(delivery, topic, wanted.seconds if wanted else 0.0)
        except (TieredStoreError, TypeError, ValueError):
            log.exception("%s: offset %d", topic.name, delivery.message.queue_offset)
            return None

    def _wanted(self, request: Any, context: Any) -> Wanted:
        client = client_of(context)
        self.clients.heard(client)
        group = require_group_of(request.group)
        topic = self._topic(request.message_queue.topic)
        if not topic.perm & READ:
            raise GrpcRefusal("FORBIDDEN", f"{topic.name}: reading is forbidden")
        first = request.message_queue.id
        if not 0 <= first < topic.read_queue_count:
            raise GrpcRefusal("BAD_REQUEST", f"{topic.name} has no queue {first}")
        # A client that waits at each queue separately gets that queue's messages, others those of
        # the first queue that has some.
        others = range(1) if request.auto_renew else range(topic.read_queue_count)
        seconds, owner = RENEW_SECONDS, client
        if not request.auto_renew:
            seconds, owner = invisible(request.invisible_duration, minimum=0.001), ""
        wait = float(POLL_SECONDS)
        if request.HasField("long_polling_timeout"):
            wait = max(0.0, duration(request.long_polling_timeout))
        rest = context.time_remaining()
        if rest is not None:
            wait = min(wait, max(0.0, rest - POLL_MARGIN_SECONDS))
        return Wanted(
            group=group,
            topic=topic.name,
            queue_ids=[(first + other) % topic.read_queue_count for other in others],
            count=min(max(request.batch_size, 1), COUNT_MAX),
            seconds=seconds,
            wait_seconds=wait,
            chosen=self._chosen(request.filter_expression),
            owner=owner,
            attempt_id=request.attempt_id[:NAME_CHARACTERS_MAX],
        )

    async def ack_message(self, request: Any, client: str) -> Any:
        group, topic = require_group_of(request.group), full_name(request.topic)
        if not 1 <= len(request.entries) <= BATCH_MAX:
            raise GrpcRefusal(
                "BAD_REQUEST", f"{len(request.entries)} handles, not 1 to {BATCH_MAX}"
            )
        entries = []
        for entry in request.entries:
            is_done = self.receives.ack(group, topic, entry.receipt_handle)
            status = self._status() if is_done else self._no_handle()
            entries.append(
                self._calls.AckMessageResultEntry(
                    message_id=entry.message_id,
                    receipt_handle=entry.receipt_handle,
                    status=status,
                )
            )
        codes = {entry.status.code for entry in entries}
        status = entries[0].status if len(codes) == 1 else self._status("MULTIPLE_RESULTS")
        return self._calls.AckMessageResponse(status=status, entries=entries)

    async def change_invisible_duration(self, request: Any, client: str) -> Any:
        handle = self.receives.change(
            require_group_of(request.group),
            full_name(request.topic),
            request.receipt_handle,
            invisible(request.invisible_duration, minimum=0.0),
        )
        return self._calls.ChangeInvisibleDurationResponse(
            status=self._no_handle() if handle is None else self._status(), receipt_handle=handle
        )

    async def forward_message_to_dead_letter_queue(self, request: Any, client: str) -> Any:
        is_dead = await self.receives.bury(
            require_group_of(request.group), full_name(request.topic), request.receipt_handle
        )
        return self._calls.ForwardMessageToDeadLetterQueueResponse(
            status=self._status() if is_dead else self._no_handle()
        )

    # -----------------------------------------------------------------------------------------

    def _status(self, name: str = "OK", message: str = "") -> Any:
        return self._pb.Status(code=self._pb.Code.Value(name), message=message or name)

    def _no_handle(self) -> Any:
        return self._status("INVALID_RECEIPT_HANDLE", "the message is done, or was given again")

    def _refusal(self, error: Exception, name: str) -> Any:
        if isinstance(error, GrpcRefusal):
            return self._status(error.name, error.reason)
        if isinstance(error, RefusedError):
            return self._status(_REFUSALS.get(error.code, "INTERNAL_SERVER_ERROR"), error.reason)
        if isinstance(error, StoreClosedError):
            return self._status("HA_NOT_AVAILABLE", str(error))
        if isinstance(error, TieredStoreError):
            log.warning("%s: %s: %s", name, type(error).__name__, error)
            return self._status("INTERNAL_SERVER_ERROR", f"{type(error).__name__}: {error}")
        log.error("request %s failed", name, exc_info=error)
        return self._status("INTERNAL_SERVER_ERROR", f"{type(error).__name__}, see the log")

    def _handlers(self) -> Any:
        """A handler for each method of the service, including unsupported ones."""
        grpc = self._grpc

        def bytes_of(message: Any) -> bytes:
            found: bytes = message.SerializeToString()
            return found

        handlers = {}
        service = self._calls.DESCRIPTOR.services_by_name["MessagingService"]
        for method in service.methods:
            asked = getattr(self._calls, method.input_type.name).FromString
            function: Callable[[Any, Any], Any] = self._answering(method)
            how = grpc.unary_unary_rpc_method_handler
            if method.name == "ReceiveMessage":
                function = self.receive_message
            elif method.name == "Telemetry":
                function = self.telemetry
            if method.client_streaming:
                how = grpc.stream_stream_rpc_method_handler
            elif method.server_streaming:
                how = grpc.unary_stream_rpc_method_handler
            handlers[method.name] = how(
                function, request_deserializer=asked, response_serializer=bytes_of
            )
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _answering(self, method: Any) -> Callable[[Any, Any], Awaitable[Any]]:
        """The handler of a method; an error becomes the status of its answer."""
        name, response = method.name, getattr(self._calls, method.output_type.name)
        handler = getattr(self, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(), None)

        async def refuse(_: Any, context: Any) -> None:
            code = self._grpc.StatusCode.UNIMPLEMENTED
            await context.abort(code, f"{name} is not supported by this broker")

        if handler is None:
            return refuse

        async def answer(request: Any, context: Any) -> Any:
            client = client_of(context)
            try:
                self.clients.heard(client)
                if name == "SendMessage":
                    found = await handler(request, client, host_of(context.peer()))
                else:
                    found = await handler(request, client)
            except Exception as error:  # noqa: BLE001 - what it was is in the status
                found = response(status=self._refusal(error, name))
            self.counts[name, self._pb.Code.Name(found.status.code)] += 1
            return found

        return answer


def require_group_of(resource: Any) -> str:
    try:
        return require_group(full_name(resource))
    except RefusedError as error:
        raise GrpcRefusal("ILLEGAL_CONSUMER_GROUP", error.reason) from error


def client_of(context: Any) -> str:
    """The id that a client gives itself; empty if it gives none."""
    for name, text in context.invocation_metadata() or ():
        if name == "x-mq-client-id" and isinstance(text, str):
            return text
    return ""


def host_of(peer: str) -> Host:
    found = _PEER.fullmatch(peer)
    try:
        if found is not None:
            return Host(ipaddress.ip_address(found[1]).packed, int(found[2]) & 0xFFFF)
    except ValueError:
        pass
    return Host(b"\x7f\x00\x00\x01", 0)


def duration(given: Any) -> float:
    return float(given.seconds + given.nanos / 1e9)


def invisible(given: Any, *, minimum: float) -> float:
    seconds = duration(given)
    if not minimum <= seconds <= INVISIBLE_SECONDS_MAX:
        raise GrpcRefusal(
            "ILLEGAL_INVISIBLE_TIME", f"{seconds} s are not {minimum} to {INVISIBLE_SECONDS_MAX}"
        )
    return seconds
