"""PyPI's `rocketmq`, over the C++ client, as a program: a line of fields for each message.

Number, queue, offset, SHA-256 of the body, tags, keys, the property "shape".
"""

from __future__ import annotations

import hashlib
import random
import sys
import threading

from rocketmq.client import Message, Producer, PushConsumer, RecvMessage

SHAPES = ("plain", "large", "random", "unicode", "untagged")


def made(topic: str, number: int) -> tuple[Message, list[str]]:
    shape = SHAPES[number % len(SHAPES)]
    body = f"order {number}".encode()
    if shape == "large":
        body = f"body {number} ".encode() * 9_000
    elif shape == "random":  # the client ends a body at its first zero
        body = bytes(random.Random(number).choices(range(1, 256), k=20_000))
    elif shape == "unicode":
        body = f"заказ № {number} 订单 ✓ 𝄞".encode()
    message = Message(topic)
    message.set_body(body)
    message.set_keys(f"key-{number}")
    tags = "" if shape == "untagged" else ("even", "odd")[number % 2]
    if tags:
        message.set_tags(tags)
    shown = "юникод 𝄞" if shape == "unicode" else shape
    message.set_property("number", str(number))
    message.set_property("shape", shown)
    sha = hashlib.sha256(body).hexdigest()
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


def consume(address: str, topic: str, group: str, count: int, tags: str) -> None:
    found: dict[tuple[int, int], str] = {}
    is_done = threading.Event()

    def take(each: RecvMessage) -> None:
        fields = (
            each.get_property("number").decode(),
            str(each.queue_id),
            str(each.queue_offset),
            hashlib.sha256(each.body).hexdigest(),
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
    is_done.wait(60)
    consumer.shutdown()
    print(*(found[place] for place in sorted(found)), sep="\n")


if __name__ == "__main__":
    mode, address, topic, *rest = sys.argv[1:]
    if mode == "produce":
        produce(address, topic, int(rest[0]))
    else:
        consume(address, topic, rest[0], int(rest[1]), rest[2])
