"""Names of segments, directories and files, and the message ids that a broker makes.

    segment name      h8(decimal base offset) + base offset in 20 digits: 28 characters
    cluster directory h8(cluster) + "_" + cluster
    queue path        <broker>/<topic>/<queue id>, nothing escaped
    local file name   offset in 20 digits
    h8                the first 8 hexadecimal digits of the MD5 of the UTF-8 text

    message id        hex, upper case: the broker's address (4 or 16 bytes), i32 port, i64 log
                      offset of the record; 32 or 56 characters

Parsers raise ValueError for any other text.
"""

from __future__ import annotations

from hashlib import md5
from struct import Struct, error
from typing import Final

from tieredstore.codec.checks import misfit
from tieredstore.codec.java import encode_utf8
from tieredstore.model.values import INT64_MAX, Host, QueueKey

INDEX_TOPIC: Final = "rmq_sys_INDEX"

_OFFSET_DIGITS: Final = 20
_SEGMENT_CHARACTERS: Final = 28
_TAIL: Final = Struct(">iq")
_FIELDS: Final = ("port", "log_offset")


def h8(text: str) -> str:
    """The short hash, used to spread names, not to protect anything."""
    return md5(encode_utf8(text), usedforsecurity=False).hexdigest()[:8]


def segment_name(base_offset: int) -> str:
    return h8(str(_checked(base_offset, "base_offset"))) + f"{base_offset:020d}"


def parse_segment_name(name: str) -> int:
    """The base offset of a segment; raises ValueError if the hash before it does not match."""
    if len(name) != _SEGMENT_CHARACTERS:
        raise ValueError(f"no segment name: {name!r:.80}")
    base_offset = parse_local_file_name(name[-_OFFSET_DIGITS:])
    if segment_name(base_offset) != name:
        raise ValueError(f"no segment name, its hash is another: {name!r}")
    return base_offset


def cluster_directory(cluster: str) -> str:
    return f"{h8(cluster)}_{cluster}"


def queue_path(broker: str, topic: str, queue_id: int) -> str:
    return f"{broker}/{topic}/{queue_id}"


def queue_of(path: str) -> QueueKey | None:
    """The message queue whose segments have this path; None for any other path."""
    _, topic, number = [*path.split("/", 2), "", ""][:3]
    if topic == INDEX_TOPIC or not (number.isascii() and number.isdigit()):
        return None
    return QueueKey(topic, int(number))


def index_queue_path(broker: str) -> str:
    return queue_path(broker, INDEX_TOPIC, 0)


def local_file_name(offset: int) -> str:
    return f"{_checked(offset, 'offset'):020d}"


def parse_local_file_name(name: str) -> int:
    if len(name) != _OFFSET_DIGITS or not (name.isascii() and name.isdigit()):
        raise ValueError(f"not 20 digits: {name!r:.80}")
    return _checked(int(name), "offset")


def _checked(offset: int, field: str) -> int:
    if not 0 <= offset <= INT64_MAX:
        raise ValueError(f"{field}: {offset} is not within 0 to {INT64_MAX}")
    return offset


def encode_offset_id(store_host: Host, *, log_offset: int) -> str:
    address, port = store_host
    if len(address) not in (4, 16):
        raise ValueError(f"store_host: {len(address)} bytes are no address")
    try:
        return (address + _TAIL.pack(port, log_offset)).hex().upper()
    except error:
        raise misfit(_TAIL, _FIELDS, (port, log_offset)) from None
