"""Names of segments, directories and files, and the message ids that a broker makes.

    segment name      h8(decimal base offset) + base offset in 20 digits: 28 characters
    cluster directory h8(cluster) + "_" + cluster
    queue path        <broker>/<topic>/<queue id>, nothing escaped
    local file name   offset in 20 digits
    local index name  local time as yyyyMMddHHmmssSSS: 17 digits
    h8                the first 8 hexadecimal digits of the MD5 of the UTF-8 text

    message id        hex, upper case: the broker's address (4 or 16 bytes), i32 port, i64 log
                      offset of the record; 32 or 56 characters

Parsers raise ValueError for any other text.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from hashlib import md5
from struct import Struct
from typing import Final

from tieredstore.codec.checks import pack_fields
from tieredstore.codec.java import encode_utf8
from tieredstore.model.values import INT64_MAX, Host

INDEX_TOPIC: Final = "rmq_sys_INDEX"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET_DIGITS: Final = 20
_SEGMENT_CHARACTERS: Final = 28


def h8(text: str) -> str:
    """The short hash. Its use is to spread names, not to protect anything."""
    return md5(encode_utf8(text), usedforsecurity=False).hexdigest()[:8]


def segment_name(base_offset: int) -> str:
    return h8(str(_checked(base_offset, "base_offset"))) + f"{base_offset:020d}"


def parse_segment_name(name: str) -> int:
    """The base offset; the hash in front must be its own."""
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


def index_queue_path(broker: str) -> str:
    return queue_path(broker, INDEX_TOPIC, 0)


def local_file_name(offset: int) -> str:
    return f"{_checked(offset, 'offset'):020d}"


def parse_local_file_name(name: str) -> int:
    if len(name) != _OFFSET_DIGITS or not (name.isascii() and name.isdigit()):
        raise ValueError(f"not 20 digits: {name!r:.80}")
    return _checked(int(name), "offset")


def local_index_name(timestamp: int, *, utc_offset: timedelta = timedelta(0)) -> str:
    """The name for a file made at this epoch millisecond where clocks are `utc_offset` ahead."""
    try:
        moment = (_EPOCH + timedelta(milliseconds=timestamp)).astimezone(timezone(utc_offset))
    except OverflowError:
        raise ValueError(f"timestamp: {timestamp} is not within the years 1 to 9999") from None
    return f"{moment.year:04d}{moment:%m%d%H%M%S}{moment.microsecond // 1000:03d}"


def parse_local_index_name(name: str, *, utc_offset: timedelta = timedelta(0)) -> int:
    """The epoch millisecond in the name."""
    if len(name) != 17 or not (name.isascii() and name.isdigit()):
        raise ValueError(f"not 17 digits: {name!r:.80}")
    try:
        moment = datetime.strptime(name[:14], "%Y%m%d%H%M%S").replace(tzinfo=timezone(utc_offset))
        return (moment - _EPOCH) // timedelta(milliseconds=1) + int(name[14:])
    except (ValueError, OverflowError):
        raise ValueError(f"no time: {name!r}") from None


def _checked(offset: int, field: str) -> int:
    if not 0 <= offset <= INT64_MAX:
        raise ValueError(f"{field}: {offset} is not within 0 to {INT64_MAX}")
    return offset


_TAIL: Final = Struct(">iq")
_FIELDS: Final = ("port", "log_offset")
_ADDRESS_BYTES: Final = {32: 4, 56: 16}


def encode_offset_id(store_host: Host, *, log_offset: int) -> str:
    if len(store_host.address) not in (4, 16):
        raise ValueError(f"store_host: {len(store_host.address)} bytes are no address")
    tail = pack_fields(_TAIL, _FIELDS, store_host.port, log_offset)
    return (store_host.address + tail).hex().upper()


def decode_offset_id(text: str) -> tuple[Host, int]:
    """The store host and the log offset. Raises ValueError for what is not such an id."""
    address_bytes = _ADDRESS_BYTES.get(len(text))
    if address_bytes is None or not text.isascii() or not text.isalnum():
        raise ValueError("an offset message id has 32 or 56 hexadecimal digits")
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raise ValueError("an offset message id has 32 or 56 hexadecimal digits") from None
    port, log_offset = _TAIL.unpack_from(raw, address_bytes)
    return Host(raw[:address_bytes], port), log_offset
