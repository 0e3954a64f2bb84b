"""Messages for tests: each one different, each one the same in every run."""

from __future__ import annotations

from collections.abc import Mapping

from tieredstore.codec.message import encode_message
from tieredstore.codec.properties import encode_properties
from tieredstore.model.messages import Message
from tieredstore.model.values import Host

BORN_HOST = Host(bytes([192, 168, 1, 10]), 54321)
STORE_HOST = Host(bytes([10, 0, 0, 5]), 10911)
STORE_TIMESTAMP = 1_700_000_000_000
TOPIC = "TopicTest"


def a_body(number: int, size: int = 100) -> bytes:
    """`size` bytes that tell which message they belong to."""
    stamp = b"body-%d|" % number
    return (stamp * (size // len(stamp) + 1))[:size]


def some_properties(number: int) -> dict[str, str]:
    return {
        "TAGS": f"Tag{number % 3}",
        "KEYS": f"key-{number} shared",
        "UNIQ_KEY": f"UNIQ-{number:08d}",
    }


def a_message(
    number: int = 0,
    *,
    topic: str = TOPIC,
    queue_id: int = 0,
    body_bytes: int = 100,
    properties: Mapping[str, str] | None = None,
) -> Message:
    """A message as a producer hands it over."""
    return Message(
        topic=topic,
        queue_id=queue_id,
        body=a_body(number, body_bytes),
        properties=some_properties(number) if properties is None else properties,
        born_timestamp=STORE_TIMESTAMP + 10 * number - 1,
        born_host=BORN_HOST,
        store_host=STORE_HOST,
    )


def a_record(
    number: int = 0,
    *,
    topic: str = TOPIC,
    queue_id: int = 0,
    queue_offset: int | None = None,
    log_offset: int = 0,
    body_bytes: int = 100,
    store_timestamp: int | None = None,
    properties: Mapping[str, str] | None = None,
    born_host: Host = BORN_HOST,
    store_host: Host = STORE_HOST,
    sys_flag: int = 0,
) -> bytes:
    """The same message as a store keeps it; its queue offset is its number unless given."""
    message = a_message(
        number, topic=topic, queue_id=queue_id, body_bytes=body_bytes, properties=properties
    )
    return encode_message(
        topic=topic,
        queue_id=queue_id,
        queue_offset=number if queue_offset is None else queue_offset,
        log_offset=log_offset,
        born_timestamp=message.born_timestamp,
        born_host=born_host,
        store_timestamp=(
            STORE_TIMESTAMP + 10 * number if store_timestamp is None else store_timestamp
        ),
        store_host=store_host,
        body=message.body,
        property_bytes=encode_properties(message.properties),
        sys_flag=sys_flag,
    )
