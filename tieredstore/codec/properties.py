"""The property string of a message, and what is made of its KEYS and TAGS.

What lives here: names, encoding, decoding, keys, tags code. The raw bytes stay the truth: their
order is that of a Java hash map, so records are copied with the bytes they came with.

    name 0x01 value 0x02, repeated; UTF-8; nothing is escaped; the last 0x02 may be missing

An entry counts only if its name and its value are not empty. The last of equal names wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tieredstore.codec.java import decode_utf8, encode_utf8, string_hash

TAGS: Final = "TAGS"
KEYS: Final = "KEYS"
UNIQUE_KEY: Final = "UNIQ_KEY"
DELAY_LEVEL: Final = "DELAY"
WAIT_STORE_OK: Final = "WAIT"
INNER_COUNT: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
LIGHT_QUEUES: Final = "INNER_MULTI_DISPATCH"
LIGHT_OFFSETS: Final = "INNER_MULTI_QUEUE_OFFSET"

NAME_END: Final = "\x01"
VALUE_END: Final = "\x02"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The property string, in the order of the mapping. Empty values are written, as Java does.

    A name that is empty or holds a separator, or a value that holds 0x02, is a ValueError: it
    would come back as something else.
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
    """The properties by name. Never raises: Java skips entries that are not whole, so do we."""
    properties = {}
    for entry in decode_utf8(data).split(VALUE_END):
        name, _, value = entry.partition(NAME_END)
        if name and value:
            properties[name] = value
    return properties


def split_keys(keys: str | None) -> tuple[str, ...]:
    """The single keys: only U+0020 separates, empty pieces are dropped, doubles stay."""
    if not keys:
        return ()
    return tuple([key for key in keys.split(" ") if key])


def tags_code(tags: str | None) -> int:
    """What a consume queue stores for these tags: the hash of the whole string, 0 for none.

    Delayed messages (topic SCHEDULE_TOPIC_XXXX) carry their delivery time instead: that is for
    the store, which knows the delays.
    """
    return string_hash(tags) if tags else 0
