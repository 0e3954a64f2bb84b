"""The gRPC front's answers, request by request, over a local socket.

Skipped if grpcio or the messages of `rocketmq-python-client` are not installed; `make clients`
has both.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from examples.broker import grpc_stubs
from examples.broker.grpc_front import REQUEST_BYTES_MAX, SERVICE, GrpcFront, host_of
from examples.broker.receive import Retries
from examples.broker.schedule import Schedule
from examples.broker.storage import Storage
from examples.broker.tables import READ, Topics, topic_of
from tests.examples.broker.broker_kit import cold_config, running, until
from tests.examples.example_kit import environment
from tieredstore import Host, InvalidConfigError, Message, StoreConfig, decode_message
from tieredstore.local import LocalConfig
from tieredstore.local.config import DelayLevels

try:
    GRPC, PB, CALLS = grpc_stubs.load()
except InvalidConfigError as error:
    pytest.skip(str(error), allow_module_level=True)

TOPIC, GROUP, CLIENT = "Orders", "readers", "client@1"
NOW = 1_700_000_000_000
HOST = Host(b"\x7f\x00\x00\x01", 1)


class Client:
    """Calls methods by their names."""

    def __init__(self, channel: Any, name: str = CLIENT) -> None:
        self._channel = channel
        self._metadata = (("x-mq-client-id", name),) if name else ()
        self._methods = CALLS.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name

    def call(self, name: str, request: Any = None) -> Any:
        method = self._methods[name]
        kinds = {True: "stream", False: "unary"}
        kind = f"{kinds[method.client_streaming]}_{kinds[method.server_streaming]}"
        made = getattr(self._channel, kind)(
            f"/{SERVICE}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(CALLS, method.output_type.name).FromString,
        )
        if method.client_streaming:
            return made(metadata=self._metadata)
        return made(request, metadata=self._metadata, timeout=50)

    async def send(self, *messages: Any) -> Any:
        return await self.call("SendMessage", CALLS.SendMessageRequest(messages=messages))

    async def receive(self, queue_id: int = 0, **fields: Any) -> tuple[str, list[Any]]:
        """Receive messages; return the status and the messages."""
        parts = [part async for part in self.call("ReceiveMessage", asking(queue_id, **fields))]
        assert parts[0].HasField("status")
        assert parts[-1].HasField("delivery_timestamp")
        return code(parts[0]), [part.message for part in parts[1:-1]]

    async def ack(self, *handles: str, group: str = GROUP) -> Any:
        request = CALLS.AckMessageRequest(group={"name": group}, topic={"name": TOPIC})
        for handle in handles:
            request.entries.add(message_id="m", receipt_handle=handle)
        return await self.call("AckMessage", request)


def code(response: Any) -> str:
    return str(PB.Code.Name(response.status.code))


def made(body: bytes = b"body", topic: str = TOPIC, **system: Any) -> Any:
    message = PB.Message(topic={"name": topic}, body=body)
    system = {"message_id": "ID", "message_type": PB.NORMAL, "body_encoding": PB.IDENTITY} | system
    message.system_properties.CopyFrom(PB.SystemProperties(**system))
    return message


def asking(queue_id: int = 0, **fields: Any) -> Any:
    request = CALLS.ReceiveMessageRequest(
        group={"name": GROUP},
        message_queue={"topic": {"name": TOPIC}, "id": queue_id},
        batch_size=32,
        invisible_duration={"seconds": 100},
        long_polling_timeout={},
        filter_expression={"type": PB.TAG, "expression": "*"},
    )
    request.MergeFrom(CALLS.ReceiveMessageRequest(**fields))
    return request


class Bench:
    """A front over a store whose topics have one queue unless a test says otherwise."""

    def __init__(self, folder: Path, *, creates: bool = True, **settings: Any) -> None:
        path = str(folder / "store")
        self.storage = Storage(
            LocalConfig(store_path=path), StoreConfig(store_path=path, provider="memory")
        )
        self.storage.open()
        self.topics = Topics(self.storage, creates=creates)
        self.topics.set(topic_of(TOPIC, 1))
        self.offsets = self.storage.tier.consumer_offsets
        schedule = Schedule(DelayLevels(LocalConfig().message_delay_levels), lambda: NOW)
        settings = {"retries": Retries(attempts_max=2, first_seconds=0.0)} | settings
        self.front = GrpcFront(
            self.storage,
            schedule,
            self.topics,
            self.offsets,
            broker="example",
            host="127.0.0.1",
            **settings,
        )

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[Any]:
        port = await self.front.start("127.0.0.1", 0)
        try:
            async with GRPC.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield channel
        finally:
            await self.front.stop(1)
            await asyncio.to_thread(self.storage.close)

    async def stored(self, topic: str, queue_id: int = 0) -> list[Any]:
        found = await self.storage.get(
            topic, queue_id, 0, count_max=32, message_filter=None, group=""
        )
        return [decode_message(message.record) for message in found.messages]


def with_front(
    folder: Path, body: Callable[[Bench, Client], Awaitable[None]], **settings: Any
) -> None:
    async def run() -> None:
        bench = Bench(folder, **settings)
        async with bench.channel() as channel:
            await asyncio.wait_for(body(bench, Client(channel)), 60)

    asyncio.run(run())


# -- routes and clients -----------------------------------------------------------------------


def test_a_route_says_what_may_be_done_with_each_queue(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        bench.topics.set(topic_of("Half", 2, 1))
        bench.topics.set(topic_of("Old", 1, perm=READ))

        async def route(name: str, space: str = "") -> Any:
            topic = {"name": name, "resource_namespace": space}
            return await client.call("QueryRoute", CALLS.QueryRouteRequest(topic=topic))

        found = await route("Half")
        assert code(found) == "OK"
        assert [queue.permission for queue in found.message_queues] == [PB.READ_WRITE, PB.READ]
        assert [queue.id for queue in found.message_queues] == [0, 1]
        (address,) = found.message_queues[0].broker.endpoints.addresses
        assert (address.host, address.port) == ("127.0.0.1", bench.front._port)
        assert (await route("Old")).message_queues[0].permission == PB.READ
        assert len((await route("New")).message_queues) == 8
        assert bench.topics.get("New") is None
        assert len((await route("New", "space")).message_queues) == 8
        for name in ("", "no name", "x" * 200, "../x"):
            assert code(await route(name)) == "ILLEGAL_TOPIC"

    with_front(tmp_path, body)


def test_a_topic_that_nobody_may_make_is_not_found(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        request = CALLS.QueryRouteRequest(topic={"name": "New"})
        assert code(await client.call("QueryRoute", request)) == "TOPIC_NOT_FOUND"
        assert code(await client.send(made(topic="New"))) == "TOPIC_NOT_FOUND"

    with_front(tmp_path, body, creates=False)


def test_each_consumer_is_given_all_queues(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        bench.topics.set(topic_of("Three", 3, 1))
        request = CALLS.QueryAssignmentRequest(topic={"name": "Three"}, group={"name": GROUP})
        found = await client.call("QueryAssignment", request)
        assert [each.message_queue.id for each in found.assignments] == [0, 1, 2]
        request.group.name = "no group"
        found = await client.call("QueryAssignment", request)
        assert code(found) == "ILLEGAL_CONSUMER_GROUP"

    with_front(tmp_path, body)


def test_who_says_that_it_is_there_is_until_it_leaves(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        request = CALLS.HeartbeatRequest(group={"name": GROUP}, client_type=PB.PUSH_CONSUMER)
        assert code(await client.call("Heartbeat", request)) == "OK"
        assert bench.front.clients.is_there(CLIENT)
        leaving = CALLS.NotifyClientTerminationRequest(group={"name": GROUP})
        assert code(await client.call("NotifyClientTermination", leaving)) == "OK"
        assert not bench.front.clients.is_there(CLIENT)
        for name in ("", "x" * 300):
            nobody = Client(client._channel, name)
            assert code(await nobody.call("Heartbeat", request)) == "CLIENT_ID_REQUIRED"

    with_front(tmp_path, body)


def test_clients_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.broker.grpc_front.CLIENTS_MAX", 1)

    async def body(bench: Bench, client: Client) -> None:
        request = CALLS.HeartbeatRequest()
        assert code(await client.call("Heartbeat", request)) == "OK"
        other = Client(client._channel, "other")
        assert code(await other.call("Heartbeat", request)) == "TOO_MANY_REQUESTS"
        monkeypatch.setattr("examples.broker.grpc_front.SILENT_SECONDS", -1.0)
        assert code(await other.call("Heartbeat", request)) == "OK"
        assert len(bench.front.clients) == 1

    with_front(tmp_path, body)


def test_settings_are_answered_with_those_that_hold(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        stream = client.call("Telemetry")

        async def settings(**given: Any) -> Any:
            await stream.write(CALLS.TelemetryCommand(settings=given))
            return await stream.read()

        answer = await settings(client_type=PB.PRODUCER, publishing={"topics": [{"name": TOPIC}]})
        assert code(answer) == "OK"
        assert answer.settings.publishing.max_body_size == 4 << 20
        assert answer.settings.backoff_policy.max_attempts == 2
        assert answer.settings.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
        for group, is_fifo in ((GROUP, False), ("orderly", True)):
            subscription = {
                "group": {"name": group},
                "subscriptions": [
                    {"topic": {"name": TOPIC}, "expression": {"type": PB.TAG, "expression": "a"}}
                ],
            }
            answer = await settings(client_type=PB.PUSH_CONSUMER, subscription=subscription)
            assert code(answer) == "OK"
            assert answer.settings.subscription.fifo is is_fifo
            assert answer.settings.subscription.receive_batch_size == 32
            assert answer.settings.subscription.long_polling_timeout.seconds == 20
            answer = await settings(client_type=PB.LITE_PUSH_CONSUMER, subscription=subscription)
            assert code(answer) == "UNSUPPORTED"
        answer = await settings(subscription={"group": {"name": "no group"}})
        assert code(answer) == "ILLEGAL_CONSUMER_GROUP"
        assert code(await settings()) == "UNRECOGNIZED_CLIENT_TYPE"
        await stream.write(CALLS.TelemetryCommand(thread_stack_trace={"nonce": "1"}))
        bench.front.end()
        assert await stream.read() is GRPC.aio.EOF

    with_front(tmp_path, body, fifo_groups=frozenset({"orderly"}))


def test_what_the_broker_cannot_do_is_said_to_be_so(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        service = CALLS.DESCRIPTOR.services_by_name["MessagingService"]
        refused = {}
        for method in service.methods:
            if method.client_streaming:
                continue
            answer = client.call(method.name, getattr(CALLS, method.input_type.name)())
            try:
                if method.server_streaming:
                    _ = [part async for part in answer]
                else:
                    await answer
            except GRPC.aio.AioRpcError as error:
                refused[method.name] = error.code(), error.details()
        names = "PullMessage UpdateOffset GetOffset QueryOffset EndTransaction RecallMessage"
        assert refused == {
            name: (GRPC.StatusCode.UNIMPLEMENTED, f"{name} is not supported by this broker")
            for name in [*names.split(), "SyncLiteSubscription"]
        }

    with_front(tmp_path, body)


# -- messages ---------------------------------------------------------------------------------


def test_what_is_sent_is_received_with_all_that_was_said_of_it(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        message = made(
            bytes(range(256)),
            message_id="0102",
            tag="red",
            keys=["one", "two"],
            message_type=PB.FIFO,
            message_group="buyer-7",
            born_timestamp={"seconds": 1_600_000_000, "nanos": 5_000_000},
            trace_context="trace",
        )
        message.user_properties["имя"] = "значение 𝄞\n"
        answer = await client.send(message)
        assert code(answer) == "OK"
        (entry,) = answer.entries
        assert (entry.message_id, entry.offset, entry.status.code) == ("0102", 0, PB.OK)
        status, (found,) = await client.receive()
        system = found.system_properties
        assert status == "OK"
        assert (found.topic.name, found.body) == (TOPIC, bytes(range(256)))
        assert dict(found.user_properties) == {"имя": "значение 𝄞\n"}
        assert (system.message_id, system.tag, list(system.keys)) == ("0102", "red", ["one", "two"])
        assert (system.message_type, system.message_group) == (PB.FIFO, "buyer-7")
        assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (0, 0, 1)
        assert system.born_timestamp.ToMilliseconds() == 1_600_000_000_005
        assert (system.born_host, system.store_host) == ("127.0.0.1", "127.0.0.1")
        assert system.trace_context == "trace"
        assert system.invisible_duration.seconds == 100
        checksum = hashlib.md5(found.body, usedforsecurity=False).hexdigest().upper()
        assert (system.body_digest.type, system.body_digest.checksum) == (PB.MD5, checksum)
        (stored,) = await bench.stored(TOPIC)
        assert (stored.tags, stored.keys, stored.unique_key) == ("red", ("one", "two"), "0102")
        assert stored.store_host == Host(b"\x7f\x00\x00\x01", bench.front._port)

    with_front(tmp_path, body)


def test_messages_of_one_request_are_stored_side_by_side(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        bench.topics.set(topic_of(TOPIC, 4))
        answer = await client.send(*(made(f"{number}".encode()) for number in range(9)))
        assert [entry.offset for entry in answer.entries] == list(range(9))
        queues = set()
        for group in ("a", "a", "b", "a"):
            answer = await client.send(made(message_group=group, message_type=PB.FIFO))
            assert code(answer) == "OK"
        for queue_id in range(4):
            for stored in await bench.stored(TOPIC, queue_id):
                if stored.properties.get("__SHARDINGKEY") == "a":
                    queues.add(queue_id)
        assert len(queues) == 1
        assert code(await client.send()) == "BAD_REQUEST"
        assert code(await client.send(made(), made(topic="Other"))) == "BAD_REQUEST"

    with_front(tmp_path, body)


def test_packed_bodies_count_as_large_as_they_are(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        packed = [made(zlib.compress(bytes(4 << 20)), body_encoding=PB.GZIP)] * 64
        assert code(await client.send(*packed)) == "TOO_MANY_REQUESTS"
        assert await bench.stored(TOPIC) == []
        assert code(await client.send(*packed[:2])) == "OK"
        assert bench.front._pending_bytes == 0

    with_front(tmp_path, body)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_packed_body_is_stored_plain(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    async def body(bench: Bench, client: Client) -> None:
        assert code(await client.send(made(pack(b"long" * 99), body_encoding=PB.GZIP))) == "OK"
        _, (found,) = await client.receive()
        assert found.body == b"long" * 99
        for bad, name in (
            (b"no", "MESSAGE_CORRUPTED"),
            (pack(b"long" * 99)[:-6], "MESSAGE_CORRUPTED"),
            (pack(b""), "MESSAGE_BODY_EMPTY"),
            (pack(b"x" * (5 << 20)), "MESSAGE_BODY_TOO_LARGE"),
        ):
            assert code(await client.send(made(bad, body_encoding=PB.GZIP))) == name

    with_front(tmp_path, body)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MESSAGE_BODY_EMPTY", made(b"")),
        ("MESSAGE_BODY_TOO_LARGE", made(b"x" * (5 << 20))),
        ("ILLEGAL_TOPIC", made(topic="")),
        ("ILLEGAL_TOPIC", made(topic="a/b")),
        ("ILLEGAL_TOPIC", made(topic="SCHEDULE_TOPIC_XXXX")),
        ("ILLEGAL_MESSAGE_ID", made(message_id="")),
        ("ILLEGAL_MESSAGE_ID", made(message_id="a\x01b")),
        ("ILLEGAL_MESSAGE_TAG", made(tag="a|b")),
        ("ILLEGAL_MESSAGE_TAG", made(tag="")),
        ("ILLEGAL_MESSAGE_KEY", made(keys=["a", "\x02"])),
        ("ILLEGAL_MESSAGE_GROUP", made(message_group=" ")),
        ("UNSUPPORTED", made(message_type=PB.TRANSACTION)),
        ("UNSUPPORTED", made(message_type=PB.LITE)),
        ("MESSAGE_PROPERTIES_TOO_LARGE", made(keys=["k" * 1_000] * 40)),
        ("BAD_REQUEST", made(delivery_timestamp={"seconds": NOW // 1_000 + 10_000_000})),
        (
            "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
            made(delivery_timestamp={"seconds": 1}, message_group="g"),
        ),
    ],
)
def test_a_message_that_is_none_is_refused(tmp_path: Path, name: str, message: Any) -> None:
    async def body(bench: Bench, client: Client) -> None:
        assert code(await client.send(message)) == name
        assert code(await client.send(made(), message)) in (name, "BAD_REQUEST")
        assert await bench.stored(TOPIC) == []

    with_front(tmp_path, body)


def test_properties_that_are_rocketmqs_own_are_refused(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        for key, text in (
            ("TAGS", "x"),
            ("", "x"),
            ("a\x01", "x"),
            ("a", "\x02"),
            ("REAL_QID", "1"),
        ):
            message = made()
            message.user_properties[key] = text
            assert code(await client.send(message)) == "ILLEGAL_MESSAGE_PROPERTY_KEY"

    with_front(tmp_path, body)


def test_a_request_that_is_too_large_or_one_too_many_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(bench: Bench, client: Client) -> None:
        with pytest.raises(GRPC.aio.AioRpcError) as caught:
            await client.send(made(b"x" * (REQUEST_BYTES_MAX + 1)))
        assert caught.value.code() is GRPC.StatusCode.RESOURCE_EXHAUSTED
        monkeypatch.setattr("examples.broker.grpc_front.PENDING_BYTES_MAX", 10)
        assert code(await client.send(made(b"x" * 11))) == "TOO_MANY_REQUESTS"

    with_front(tmp_path, body)


def test_what_a_receive_holds_while_it_waits_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may have megabytes, and ten thousand may wait."""
    monkeypatch.setattr("examples.broker.grpc_front.PENDING_BYTES_MAX", 10_000)

    async def body(bench: Bench, client: Client) -> None:
        large: dict[str, Any] = {"attempt_id": "x" * 6_000}
        first = asyncio.create_task(client.receive(long_polling_timeout={"seconds": 40}, **large))
        await until(lambda: bench.front.receives.waiting > 0)
        assert await client.receive(**large) == ("TOO_MANY_REQUESTS", [])
        assert code(await client.send(made())) == "OK"
        status, found = await first
        assert (status, len(found)) == ("OK", 1)
        assert await client.receive(**large) == ("MESSAGE_NOT_FOUND", [])

    with_front(tmp_path, body)


def test_a_message_for_a_moment_waits_in_the_schedule(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        moment = NOW // 1_000 + 7
        message = made(message_type=PB.DELAY, delivery_timestamp={"seconds": moment})
        assert code(await client.send(message)) == "OK"
        (stored,) = await bench.stored("SCHEDULE_TOPIC_XXXX", 1)
        assert stored.properties["TIMER_DELIVER_MS"] == str(moment * 1_000)
        assert await client.receive() == ("MESSAGE_NOT_FOUND", [])
        past = made(message_type=PB.DELAY, delivery_timestamp={"seconds": 5})
        assert code(await client.send(past)) == "OK"
        _, (found,) = await client.receive()
        assert found.system_properties.message_type == PB.DELAY
        assert found.system_properties.delivery_timestamp.seconds == 5

    with_front(tmp_path, body)


def test_what_others_stored_is_shown_whatever_it_holds(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        def stored(data: bytes, **fields: Any) -> Message:
            fields = {"born_timestamp": 2**62} | fields
            return Message(
                topic=TOPIC, queue_id=0, body=data, born_host=HOST, store_host=HOST, **fields
            )

        await bench.storage.put(
            [
                stored(zlib.compress(b"packed"), sys_flag=1),
                stored(b"no zlib", sys_flag=1, born_timestamp=-5),
                stored(b"x", properties={"TIMER_DELIVER_MS": "9" * 18, "KEYS": "  a  b "}),
            ]
        )
        status, found = await client.receive()
        assert (status, [each.body for each in found]) == (
            "OK",
            [b"packed", b"no zlib", b"x"],
        )
        encodings = [each.system_properties.body_encoding for each in found]
        assert encodings == [PB.IDENTITY, PB.GZIP, PB.IDENTITY]
        assert list(found[2].system_properties.keys) == ["a", "b"]
        assert all(each.system_properties.message_id for each in found)

    with_front(tmp_path, body)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ILLEGAL_CONSUMER_GROUP", {"group": {"name": "no group"}}),
        ("ILLEGAL_TOPIC", {"message_queue": {"topic": {"name": "no topic"}}}),
        ("BAD_REQUEST", {"message_queue": {"id": 1}}),
        ("BAD_REQUEST", {"message_queue": {"id": -1}}),
        ("ILLEGAL_INVISIBLE_TIME", {"invisible_duration": {"seconds": -1}}),
        ("ILLEGAL_INVISIBLE_TIME", {"invisible_duration": {"seconds": 2**40}}),
        ("ILLEGAL_FILTER_EXPRESSION", {"filter_expression": {"expression": " || "}}),
        (
            "ILLEGAL_FILTER_EXPRESSION",
            {"filter_expression": {"type": PB.SQL, "expression": "a >"}},
        ),
    ],
)
def test_a_wish_that_is_none_is_refused(tmp_path: Path, name: str, fields: dict[str, Any]) -> None:
    async def body(bench: Bench, client: Client) -> None:
        assert await client.receive(**fields) == (name, [])

    with_front(tmp_path, body)


def test_tags_and_conditions_choose(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        for number in range(6):
            message = made(f"{number}".encode(), tag=("even", "odd")[number % 2])
            message.user_properties["number"] = str(number)
            await client.send(message)
        _, found = await client.receive(filter_expression={"expression": "odd || none"})
        assert [each.body for each in found] == [b"1", b"3", b"5"]
        wanted = {"type": PB.SQL, "expression": "number > 3 OR number = 0"}
        _, found = await client.receive(group={"name": "sql"}, filter_expression=wanted)
        assert [each.body for each in found] == [b"0", b"4", b"5"]

    with_front(tmp_path, body)


def test_handles_say_what_is_done_and_no_others_do(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        await client.send(made(b"a"), made(b"b"))
        _, (a, b) = await client.receive()
        first, second = (each.system_properties.receipt_handle for each in (a, b))
        forged = second[:-1] + ("0" if second[-1] != "0" else "1")
        for handle in (forged, "", "junk", second.replace("0.1.", "0.0.")):
            assert code(await client.ack(handle)) == "INVALID_RECEIPT_HANDLE"
        assert code(await client.ack(second, group="others")) == "INVALID_RECEIPT_HANDLE"
        answer = await client.ack(first, forged)
        assert code(answer) == "MULTIPLE_RESULTS"
        assert [entry.status.code for entry in answer.entries] == [
            PB.OK,
            PB.INVALID_RECEIPT_HANDLE,
        ]
        assert code(await client.ack(second)) == "OK"
        assert code(await client.ack()) == "BAD_REQUEST"
        assert bench.offsets.get(GROUP, TOPIC, 0) == 2

    with_front(tmp_path, body)


def test_another_time_and_too_many_attempts(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        async def change(handle: str, **fields: Any) -> Any:
            request = CALLS.ChangeInvisibleDurationRequest(
                group={"name": GROUP}, topic={"name": TOPIC}, receipt_handle=handle, **fields
            )
            return await client.call("ChangeInvisibleDuration", request)

        await client.send(made(b"bad"))
        for attempt in (1, 2):
            _, (found,) = await client.receive()
            system = found.system_properties
            assert system.delivery_attempt == attempt
            answer = await change(system.receipt_handle, invisible_duration={"seconds": 50})
            assert code(answer) == "OK"
            again = await change(answer.receipt_handle, invisible_duration={})
            assert code(again) == "OK"
            stale = await change(answer.receipt_handle, invisible_duration={})
            assert code(stale) == "INVALID_RECEIPT_HANDLE"
            wrong = await change(again.receipt_handle, invisible_duration={"seconds": -1})
            assert code(wrong) == "ILLEGAL_INVISIBLE_TIME"
        assert await client.receive() == ("MESSAGE_NOT_FOUND", [])
        (dead,) = await bench.stored(f"%DLQ%{GROUP}")
        assert dead.body == b"bad"
        assert bench.offsets.get(GROUP, TOPIC, 0) == 1

    with_front(tmp_path, body)


def test_a_consumer_sends_a_message_to_the_dead(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        await client.send(made(b"bad", message_id="ID-1"))
        _, (found,) = await client.receive()
        request = CALLS.ForwardMessageToDeadLetterQueueRequest(
            group={"name": GROUP},
            topic={"name": TOPIC},
            receipt_handle=found.system_properties.receipt_handle,
        )
        name = "ForwardMessageToDeadLetterQueue"
        assert code(await client.call(name, request)) == "OK"
        assert code(await client.call(name, request)) == "INVALID_RECEIPT_HANDLE"
        dead = {"topic": {"name": f"%DLQ%{GROUP}"}}
        _, (found,) = await client.receive(message_queue=dead, group={"name": "undertakers"})
        assert found.system_properties.dead_letter_queue.topic == TOPIC
        assert found.system_properties.dead_letter_queue.message_id == "ID-1"

    with_front(tmp_path, body)


def test_who_asks_of_any_queue_gets_the_first_that_has_some(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        bench.topics.set(topic_of(TOPIC, 4))
        waits = asyncio.create_task(client.receive(2, long_polling_timeout={"seconds": 40}))
        pushes = client.receive(2, auto_renew=True)
        await until(lambda: bench.front.receives.waiting > 0)
        assert await pushes == ("MESSAGE_NOT_FOUND", [])
        await client.send(made(b"here"))
        status, (found,) = await waits
        assert (status, found.body) == ("OK", b"here")

    with_front(tmp_path, body)


def test_what_a_client_that_has_gone_was_to_get_others_get(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        for _ in range(12):
            await client.send(made(b"x" * (3 << 20)))
        call = client.call("ReceiveMessage", asking())
        assert (await call.read()).HasField("status")
        call.cancel()  # more is unread than a connection holds
        found: list[Any] = []
        while len(found) < 12 - 2:
            found += (await client.receive(long_polling_timeout={"seconds": 1}))[1]
        assert {each.system_properties.delivery_attempt for each in found} == {1}

    with_front(tmp_path, body)


def test_the_broker_ends_while_consumers_wait(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        waits = asyncio.create_task(client.receive(long_polling_timeout={"seconds": 45}))
        await until(lambda: bench.front.receives.waiting > 0)
        bench.front.end()
        assert await waits == ("MESSAGE_NOT_FOUND", [])

    with_front(tmp_path, body)


def test_a_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    async def body(bench: Bench, client: Client) -> None:
        other = Bench(tmp_path / "other")
        with pytest.raises(OSError, match="cannot be listened at"):
            await other.front.start("127.0.0.1", bench.front._port)
        await other.front.stop(0)
        await asyncio.to_thread(other.storage.close)

    with_front(tmp_path, body)


def test_addresses_of_clients() -> None:
    assert host_of("ipv4:10.1.2.3:77") == Host(b"\x0a\x01\x02\x03", 77)
    assert host_of("ipv6:[::1]:77") == Host(b"\0" * 15 + b"\1", 77)
    for odd in ("", "unix:/x", "ipv4:999.1.1.1:5"):
        assert host_of(odd) == Host(b"\x7f\x00\x00\x01", 0)


# -- a broker that dies -----------------------------------------------------------------------


def test_after_a_kill_what_is_done_stays_done_and_the_rest_comes_again(tmp_path: Path) -> None:
    words = ("--config", cold_config(tmp_path), "--grpc-port", 0)
    modules = os.pathsep.join([environment()["PYTHONPATH"], str(Path(CALLS.__file__).parents[2])])
    kept = tmp_path / "store" / "config" / "consumerOffset.json"

    async def first(port: int) -> None:
        async with GRPC.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            client = Client(channel)
            for number in range(10):
                message = made(f"{number}".encode(), message_group="g", message_type=PB.FIFO)
                assert code(await client.send(message)) == "OK"
            (found,) = [
                messages
                for queue_id in range(8)
                if (messages := (await client.receive(queue_id, auto_renew=True))[1])
            ]
            handles = [each.system_properties.receipt_handle for each in found]
            assert code(await client.ack(*handles[:5], *handles[6:])) == "OK"
        await until(
            lambda: kept.exists() and f"{TOPIC}@{GROUP}" in kept.read_text(encoding="utf-8")
        )

    async def second(port: int) -> list[bytes]:
        async with GRPC.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            _, found = await Client(channel).receive()
            return [each.body for each in found]

    with running(tmp_path, *words, PYTHONPATH=modules) as broker:
        asyncio.run(first(broker.grpc_port))
        broker.kill()
    with running(tmp_path, *words, PYTHONPATH=modules) as broker:
        assert asyncio.run(second(broker.grpc_port)) == [b"5", b"6", b"7", b"8", b"9"]
