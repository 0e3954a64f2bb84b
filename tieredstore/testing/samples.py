"""Sample messages, and hypothesis strategies for every input of a store."""

from __future__ import annotations

from collections.abc import Mapping

from tieredstore.model.extras import brought_by

with brought_by("testing"):
    from hypothesis import strategies as st

from tieredstore.codec.message import encode_message
from tieredstore.codec.record import property_bytes_of
from tieredstore.model.messages import Message
from tieredstore.model.values import (
    INT32_MAX,
    INT64_MAX,
    Host,
)

BORN_HOST = Host(bytes([192, 168, 1, 10]), 54321)
STORE_HOST = Host(bytes([10, 0, 0, 5]), 10911)
STORE_TIMESTAMP = 1_700_000_000_000
TOPIC = "TopicTest"


def a_body(number: int, size: int = 100) -> bytes:
    """`size` bytes, different for each message."""
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
    """A message as a producer sends it."""
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
    """The same message as a store keeps it; by default its queue offset is its number."""
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
        property_bytes=property_bytes_of(message),
        sys_flag=sys_flag,
    )


_TOPIC_LETTERS = "abcXYZ019_-%|"


def texts(*, min_size: int = 0, max_size: int = 40) -> st.SearchStrategy[str]:
    """Any text that has UTF-8 bytes."""
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=min_size, max_size=max_size)


def java_texts(*, max_size: int = 40) -> st.SearchStrategy[str]:
    """Any text that a Java string can hold, even halves of surrogate pairs."""
    return st.text(st.characters(), max_size=max_size)


def topics() -> st.SearchStrategy[str]:
    """Names that RocketMQ accepts, and a few with other characters."""
    plain = st.text(_TOPIC_LETTERS, min_size=1, max_size=127)
    return plain | st.sampled_from(["%RETRY%group", "%DLQ%group", "主题", "T😀", "t" * 200])


def keys() -> st.SearchStrategy[str]:
    """One key: any characters but a space, which separates keys, and the separators of
    properties."""
    letters = st.characters(exclude_categories=["Cs"], exclude_characters=" \x01\x02")
    return st.text(letters, min_size=1, max_size=40)


def properties() -> st.SearchStrategy[dict[str, str]]:
    """Properties that survive the property string, which escapes nothing and drops empty values."""
    letters = st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02")
    words = st.text(letters, min_size=1, max_size=30)
    return st.dictionaries(words, words, max_size=6)


def hosts() -> st.SearchStrategy[Host]:
    """IPv4 and IPv6 addresses with any port."""
    addresses = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)
    return st.builds(Host, addresses, st.integers(0, 65535))


def int32s() -> st.SearchStrategy[int]:
    return st.integers(-INT32_MAX - 1, INT32_MAX)


def int64s() -> st.SearchStrategy[int]:
    return st.integers(-INT64_MAX - 1, INT64_MAX)


def offsets() -> st.SearchStrategy[int]:
    return st.integers(0, INT64_MAX)


def messages() -> st.SearchStrategy[Message]:
    return st.builds(
        Message,
        topic=topics(),
        queue_id=st.integers(0, 16),
        body=st.binary(max_size=200),
        properties=properties(),
        flag=int32s(),
        born_timestamp=offsets(),
        born_host=hosts(),
        store_host=hosts(),
        reconsume_times=st.integers(0, 16),
        prepared_transaction_offset=offsets(),
    )
