"""The layout of a stored record, and single fields read without decoding the rest.

    | offset    | width  | field                     | remarks                              |
    | --------- | ------ | ------------------------- | ------------------------------------ |
    | 0         | i32    | total size                | the whole record                     |
    | 4         | u32    | magic                     | V1 DAA320A7, V2 DAA320AB             |
    | 8         | i32    | body CRC                  |                                      |
    | 12        | i32    | queue id                  |                                      |
    | 16        | i32    | flag                      | the sender's own                     |
    | 20        | i64    | queue offset              | 0 if prepared or rolled back         |
    | 28        | i64    | log offset                | rewritten when a record is tiered    |
    | 36        | i32    | system flag               | 0x10, 0x20: IPv6 born and store host |
    | 40        | i64    | born timestamp            | ms                                   |
    | 48        | b      | born host                 | b = 8 or 20: address, i32 port       |
    | 48+b      | i64    | store timestamp           | ms                                   |
    | 56+b      | s      | store host                | s = 8 or 20                          |
    | 56+b+s    | i32    | reconsume times           |                                      |
    | 60+b+s    | i64    | prepared transaction      | log offset                           |
    | 68+b+s    | i32, n | body                      | length, bytes                        |
    | 72+b+s+n  | t      | topic                     | length i8 (V1) or i16 (V2), UTF-8    |
    | …         | i16, p | properties                | length, bytes                        |

The property string is that of `model/property_text.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final

from tieredstore.codec.checks import Buffer, require
from tieredstore.codec.java import decode_utf8, encode_utf8, string_hash
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.messages import Message
from tieredstore.model.property_text import NAME_END, VALUE_END, split_property_text

MESSAGE_MAGIC_V1: Final = 0xDAA320A7
MESSAGE_MAGIC_V2: Final = 0xDAA320AB
MESSAGE_MAGICS: Final = frozenset({MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2})

FIXED_BYTES: Final = 88  # up to the body, if both hosts are IPv4
IPV6_BYTES: Final = 12  # how much longer an IPv6 address is
RECORD_BYTES_MIN: Final = FIXED_BYTES + 3  # no body, no topic, no properties

MAGIC_POSITION: Final = 4
BODY_CRC_POSITION: Final = 8
QUEUE_ID_POSITION: Final = 12
FLAG_POSITION: Final = 16
QUEUE_OFFSET_POSITION: Final = 20
LOG_OFFSET_POSITION: Final = 28
SYS_FLAG_POSITION: Final = 36
BORN_TIMESTAMP_POSITION: Final = 40
BORN_HOST_POSITION: Final = 48
STORE_TIMESTAMP_POSITION: Final = 56  # plus IPV6_BYTES if the born host is IPv6
STORE_HOST_POSITION: Final = 64  # likewise

TRANSACTION_MASK: Final = 0x0C
TRANSACTION_PREPARED: Final = 0x04
TRANSACTION_COMMIT: Final = 0x08
TRANSACTION_ROLLBACK: Final = 0x0C
BORN_HOST_IPV6: Final = 0x10
STORE_HOST_IPV6: Final = 0x20
HOSTS_IPV6: Final = BORN_HOST_IPV6 | STORE_HOST_IPV6
INNER_BATCH: Final = 0x80

INT8: Final = Struct(">b")
INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
UINT32: Final = Struct(">I")
INT64: Final = Struct(">q")
TOPIC_LENGTHS: Final = {MESSAGE_MAGIC_V1: INT8, MESSAGE_MAGIC_V2: INT16}
TAGS: Final = "TAGS"
KEYS: Final = "KEYS"
UNIQUE_KEY: Final = "UNIQ_KEY"
DELAY_LEVEL: Final = "DELAY"
WAIT_STORE_OK: Final = "WAIT"
INNER_COUNT: Final = "INNER_NUM"
LIGHT_QUEUES: Final = "INNER_MULTI_DISPATCH"
LIGHT_OFFSETS: Final = "INNER_MULTI_QUEUE_OFFSET"


def _peek(layout: Struct, data: Buffer, position: int, offset: int, path: str, what: str) -> int:
    require(data, position=position, size=offset + layout.size, path=path, what=what)
    value: int = layout.unpack_from(data, position + offset)[0]
    return value


def peek_message_bytes(data: Buffer, position: int = 0, *, path: str = "") -> int:
    """The total size that the record claims, not checked against the data."""
    return _peek(INT32, data, position, 0, path, "total size")


def peek_magic(data: Buffer, position: int = 0, *, path: str = "") -> int:
    """The magic number, unsigned."""
    return _peek(UINT32, data, position, MAGIC_POSITION, path, "magic")


def peek_queue_id(data: Buffer, position: int = 0, *, path: str = "") -> int:
    return _peek(INT32, data, position, QUEUE_ID_POSITION, path, "queue id")


def peek_queue_offset(data: Buffer, position: int = 0, *, path: str = "") -> int:
    return _peek(INT64, data, position, QUEUE_OFFSET_POSITION, path, "queue offset")


def peek_log_offset(data: Buffer, position: int = 0, *, path: str = "") -> int:
    return _peek(INT64, data, position, LOG_OFFSET_POSITION, path, "log offset")


def peek_sys_flag(data: Buffer, position: int = 0, *, path: str = "") -> int:
    return _peek(INT32, data, position, SYS_FLAG_POSITION, path, "system flag")


def peek_store_timestamp(data: Buffer, position: int = 0, *, path: str = "") -> int:
    """The store timestamp, whose place depends on the born host."""
    born_ipv6 = peek_sys_flag(data, position, path=path) & BORN_HOST_IPV6
    offset = STORE_TIMESTAMP_POSITION + (IPV6_BYTES if born_ipv6 else 0)
    return _peek(INT64, data, position, offset, path, "store timestamp")


def peek_topic(data: Buffer, position: int = 0, *, path: str = "") -> str:
    start, end = _topic_span(data, position, path)
    return decode_utf8(data[start:end])


def peek_property_bytes(data: Buffer, position: int = 0, *, path: str = "") -> bytes:
    """The raw property string: enough to index a message without decoding it."""
    _, end = _topic_span(data, position, path)
    size = _peek(INT16, data, end, 0, path, "property length")
    require(data, position=end + 2, size=size, path=path, what="properties")
    return bytes(data[end + 2 : end + 2 + size])


def _topic_span(data: Buffer, position: int, path: str) -> tuple[int, int]:
    """Where the text of the topic begins and ends."""
    sys_flag = peek_sys_flag(data, position, path=path)
    at = position + fixed_bytes(sys_flag)
    body_bytes = _peek(INT32, data, at - 4, 0, path, "body length")
    require(data, position=at, size=body_bytes, path=path, what="body")
    layout = TOPIC_LENGTHS.get(peek_magic(data, position, path=path))
    if layout is None:
        raise SegmentCorruptError(path, "no message starts here", position=position)
    start = at + body_bytes + layout.size
    topic_bytes = _peek(layout, data, at + body_bytes, 0, path, "topic length")
    require(data, position=start, size=topic_bytes, path=path, what="topic")
    return start, start + topic_bytes


def fixed_bytes(sys_flag: int) -> int:
    """The size of a record up to its body."""
    return FIXED_BYTES + IPV6_BYTES * (sys_flag & HOSTS_IPV6).bit_count()


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The property string, in the order of the mapping. Empty values are written, as in Java.

    Raises ValueError for a name that is empty or holds a separator, and for a value that holds
    0x02: they would decode to something else.
    """
    pieces = []
    for name, value in properties.items():
        if not name or NAME_END in name or VALUE_END in name:
            raise ValueError(f"property name: {name!r} is empty or holds 0x01 or 0x02")
        if VALUE_END in value:
            raise ValueError(f"property {name}: the value holds 0x02")
        pieces.append(f"{name}{NAME_END}{value}{VALUE_END}")
    return encode_utf8("".join(pieces))


def decode_properties(data: bytes | bytearray | memoryview) -> dict[str, str]:
    """The properties by name. Never raises: like Java, it skips incomplete entries."""
    return split_property_text(decode_utf8(data))


def property_bytes_of(message: Message) -> bytes:
    """The property string of a message to be stored: its own text, if it has one."""
    text = message.properties_text
    if text is None:
        return encode_properties(message.properties)
    return text if isinstance(text, bytes) else encode_utf8(text)


def split_keys(keys: str | None) -> tuple[str, ...]:
    """The single keys: only U+0020 separates them; empty ones are dropped, duplicates stay."""
    if not keys:
        return ()
    return tuple([key for key in keys.split(" ") if key])


def tags_code(tags: str | None) -> int:
    """What a consume queue stores for these tags: the hash of the whole string, 0 for none.

    For delayed messages (topic SCHEDULE_TOPIC_XXXX) a queue stores the delivery time instead; only
    the store, which knows the delays, can compute it.
    """
    return string_hash(tags) if tags else 0
