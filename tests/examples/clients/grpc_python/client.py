"""PyPI's `rocketmq-python-client`, which speaks gRPC, as a program that prints a line per message.

The fields are number, queue, offset, SHA-256 of the body and the property "padding", tags, keys and
the property "shape".
"""

from __future__ import annotations

import hashlib
import random
import sys
import threading
import time
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
)

SHAPES = ("plain", "large", "random", "unicode", "untagged", "tiny", "long")
SECONDS = 120
INVISIBLE_SECONDS = 60
GROUPS = 3  # message groups, each of which keeps its order

_NEVER = threading.Event()
_from_protobuf = Message.fromProtobuf


def from_protobuf(self: Any, message: Any) -> Any:
    """Keep a message's place, which the client is told but does not expose."""
    system = message.system_properties
    self.place = system.queue_id, system.queue_offset
    return _from_protobuf(self, message)


Message.fromProtobuf = from_protobuf


def made(topic: str, number: int, shape: str = "") -> tuple[Any, list[str]]:
    shape = shape or SHAPES[number % len(SHAPES)]
    body = f"order {number}".encode()
    if shape == "large":
        body = f"body {number} ".encode() * 9_000
    elif shape == "random":
        body = random.Random(number).randbytes(20_000)
    elif shape == "unicode":
        body = f"заказ № {number} 订单 ✓ 𝄞".encode()
    elif shape == "tiny":
        body = bytes([number % 256])
    message = Message()
    message.topic = topic
    message.body = body
    message.keys = f"key-{number}"
    tags = "" if shape == "untagged" else ("even", "odd")[number % 2]
    if tags:
        message.tag = tags
    shown = "юникод 𝄞" if shape == "unicode" else shape
    message.add_property("number", str(number))
    message.add_property("shape", shown)
    padding = "x" * 9_000 if shape == "long" else ""
    if padding:
        message.add_property("padding", padding)
    if shape == "delayed":
        message.delivery_timestamp = int(time.time()) + 2
    if shape == "ordered":
        message.message_group = f"group-{number % GROUPS}"
    sha = hashlib.sha256(body + padding.encode()).hexdigest()
    return message, [str(number), sha, tags or "null", f"key-{number}", shown]


def line_of(message: Any) -> str:
    properties = message.properties
    body = message.body + properties.get("padding", "").encode()
    assert not message.corrupted, message
    fields = (
        properties["number"],
        *map(str, message.place),
        hashlib.sha256(body).hexdigest(),
        message.tag or "null",
        " ".join(sorted(message.keys)),  # the client keeps no order
        properties["shape"],
    )
    return "\t".join(fields)


def send(
    address: str, topic: str, first: int, count: int, *, shape: str = "", delays: bool = False
) -> None:
    """Send each message until it is acknowledged, then print its line at once."""
    producer = Producer(configuration(address), (topic,))
    producer.startup()
    for number in range(first, first + count):
        is_delayed = delays and number % 97 == 13
        message, (_, *told) = made(topic, number, "delayed" if is_delayed else shape)
        offset = until_sent(producer, message)
        print(number, "?", "?" if is_delayed else offset, *told, sep="\t", flush=True)
    producer.shutdown()


def until_sent(producer: Any, message: Any) -> int:
    last = time.monotonic() + SECONDS
    while True:
        try:
            return int(producer.send(message).offset)
        except Exception:
            if time.monotonic() > last:
                raise
            _NEVER.wait(0.1)


class Taken(MessageListener):  # type: ignore[misc]
    """Prints each consumed message once, as it comes, and is done after `count` of them."""

    def __init__(self, count: int) -> None:
        self._places: set[tuple[int, int]] = set()
        self.is_done = threading.Event()
        self._count = count
        self._guard = threading.Lock()

    def consume(self, message: Any) -> Any:
        with self._guard:
            if message.place not in self._places:
                print(line_of(message), flush=True)
            self._places.add(message.place)
            if len(self._places) >= self._count:
                self.is_done.set()
        return ConsumeResult.SUCCESS


class Failed(Taken):
    """Fails every message, prints each attempt, and is done after `count` attempts."""

    attempts = 0

    def consume(self, message: Any) -> Any:
        with self._guard:  # several threads consume
            print(message.properties["number"], message.delivery_attempt, sep="\t", flush=True)
            self.attempts += 1
            if self.attempts >= self._count:
                self.is_done.set()
        return ConsumeResult.FAILURE


def push(address: str, topic: str, group: str, tags: str, taken: Taken) -> None:
    wanted = {topic: FilterExpression(tags)}
    consumer = PushConsumer(configuration(address), group, taken, wanted)
    consumer.startup()
    taken.is_done.wait(SECONDS)
    if isinstance(taken, Failed):
        _NEVER.wait(3)  # a message that failed too often is buried when the group asks for more
    consumer.shutdown()  # waits for the messages in progress


def simple(address: str, topic: str, group: str, tags: str, taken: Taken) -> None:
    wanted = {topic: FilterExpression(tags)}
    consumer = SimpleConsumer(configuration(address), group, wanted, await_duration=5)
    consumer.startup()
    until = time.monotonic() + SECONDS
    while not taken.is_done.is_set() and time.monotonic() < until:
        for message in consumer.receive(32, INVISIBLE_SECONDS):
            taken.consume(message)
            consumer.ack(message)
    consumer.shutdown()


def configuration(address: str) -> Any:
    return ClientConfiguration(address, Credentials(), request_timeout=10)


def main() -> None:
    mode, address, topic, *rest = sys.argv[1:]
    if mode == "produce":
        send(address, topic, 0, int(rest[0]), shape=rest[1] if len(rest) > 1 else "")
        return
    if mode == "send":
        send(address, topic, int(rest[0]), int(rest[1]), delays=True)
        return
    group, count, tags = rest[0], int(rest[1]), rest[2] if len(rest) > 2 else "*"
    taken = Failed(count) if mode == "fail" else Taken(count)
    (simple if mode == "simple" else push)(address, topic, group, tags, taken)


if __name__ == "__main__":
    main()
