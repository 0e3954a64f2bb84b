"""PyPI's `rocketmq`, which wraps the C++ client, as a program that prints a line per message.

The fields are number, queue, offset, SHA-256 of the body and the property "padding", tags, keys and
the property "shape".
"""

from __future__ import annotations

import hashlib
import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from rocketmq.client import Message, Producer, PushConsumer, RecvMessage, SendResult

SHAPES = ("plain", "large", "random", "unicode", "untagged", "tiny", "long")
SECONDS = 120
BATCH = 5


def made(topic: str, number: int, shape: str = "") -> tuple[Message, list[str]]:
    shape = shape or SHAPES[number % len(SHAPES)]
    body = f"order {number}".encode()
    if shape == "large":
        body = f"body {number} ".encode() * 9_000
    elif shape == "random":  # the client ends a body at its first zero
        body = bytes(random.Random(number).choices(range(1, 256), k=20_000))
    elif shape == "unicode":
        body = f"заказ № {number} 订单 ✓ 𝄞".encode()
    elif shape == "tiny":
        body = b"x"
    message = Message(topic)
    message.set_body(body)
    message.set_keys(f"key-{number}")
    tags = "" if shape == "untagged" else ("even", "odd")[number % 2]
    if tags:
        message.set_tags(tags)
    shown = "юникод 𝄞" if shape == "unicode" else shape
    message.set_property("number", str(number))
    message.set_property("shape", shown)
    padding = "x" * 9_000 if shape == "long" else ""
    if padding:
        message.set_property("padding", padding)
    if shape == "delayed":
        message.set_delay_time_level(1)
    sha = hashlib.sha256(body + padding.encode()).hexdigest()
    return message, [str(number), sha, tags or "null", f"key-{number}", shown]


def produce(address: str, topic: str, count: int) -> None:
    producer = Producer("python_producers")
    producer.set_namesrv_addr(address)
    producer.start()
    for number in range(count):
        message, (_, *told) = made(topic, number)
        result = producer.send_sync(message)
        print(number, "?", result.offset, *told, sep="\t")
    producer.shutdown()


def send(address: str, topic: str, first: int, count: int) -> None:
    """Send each message until it is acknowledged, then print its line at once.

    Every second five messages go in a batch, which reports the offset of its first message.
    """
    producer = Producer("python_producers")
    producer.set_namesrv_addr(address)
    producer.start()
    for start in range(first, first + count, BATCH):
        some = range(start, min(start + BATCH, first + count))
        if start // BATCH % 2 or any(number % 97 == 13 for number in some):
            for number in some:
                is_delayed = number % 97 == 13
                shape = "delayed" if is_delayed else ""
                message, (_, *told) = made(topic, number, shape)
                offset = until(partial(producer.send_sync, message))
                print(number, "?", "?" if is_delayed else offset, *told, sep="\t", flush=True)
        else:
            pairs = [made(topic, number) for number in some]
            offset = until(partial(producer.send_batch, [one for one, _ in pairs]))
            for at, (_, told) in enumerate(pairs):
                print(told[0], "?", offset + at, *told[1:], sep="\t", flush=True)
    producer.shutdown()


def until(call: Callable[[], SendResult]) -> int:
    last = time.monotonic() + SECONDS
    while True:
        try:
            return int(call().offset)
        except Exception:
            if time.monotonic() > last:
                raise
            threading.Event().wait(0.1)


def consume(address: str, topic: str, group: str, count: int, tags: str) -> None:
    found: dict[tuple[int, int], str] = {}
    is_done = threading.Event()

    def take(each: RecvMessage) -> None:
        fields = (
            each.get_property("number").decode(),
            str(each.queue_id),
            str(each.queue_offset),
            hashlib.sha256(each.body + (each.get_property("padding") or b"")).hexdigest(),
            each.tags.decode() if each.tags else "null",
            each.keys.decode(),
            each.get_property("shape").decode(),
        )
        found[each.queue_id, each.queue_offset] = "\t".join(fields)
        if len(found) >= count:
            is_done.set()

    consumer = PushConsumer(group)
    consumer.set_namesrv_addr(address)
    consumer.subscribe(topic, take, tags)
    consumer.start()
    is_done.wait(SECONDS)
    consumer.shutdown()
    print(*(found[place] for place in sorted(found)), sep="\n")


if __name__ == "__main__":
    mode, address, topic, *rest = sys.argv[1:]
    if mode == "produce":
        produce(address, topic, int(rest[0]))
    elif mode == "send":
        send(address, topic, int(rest[0]), int(rest[1]))
    else:
        consume(address, topic, rest[0], int(rest[1]), rest[2])
