"""One stored record: decoded to a `StoredMessage`, and encoded to bytes.

Two other things may be where a record could begin. A blank record fills a file of the local log up
to its end. Only these 8 bytes are defined:

    | offset | width | field                                   |
    | ------ | ----- | --------------------------------------- |
    |      0 | i32   | bytes left in the file, these included  |
    |      4 | u32   | magic CBD43194                          |

A coda closes a segment that RocketMQ 5.1.0 to 5.2.0 sealed. It is included in the segment's size:

    | offset | width | field                                   |
    | ------ | ----- | --------------------------------------- |
    |      0 | i32   | 16                                      |
    |      4 | u32   | magic CBD43194                          |
    |      8 | i64   | largest store timestamp of the segment  |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct
from types import MappingProxyType
from typing import Final, NoReturn

from tieredstore.codec.checks import (
    PROPERTY_CRC_BYTES,
    Buffer,
    encode_property_crc,
    pack_fields,
    require,
    reserve_property_crc,
)
from tieredstore.codec.checks import body_crc as crc_of
from tieredstore.codec.java import decode_utf8, encode_utf8
from tieredstore.codec.names import encode_offset_id
from tieredstore.codec.record import (
    BORN_HOST_IPV6,
    HOSTS_IPV6,
    INT16,
    INT32,
    KEYS,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    RECORD_BYTES_MIN,
    STORE_HOST_IPV6,
    SYS_FLAG_POSITION,
    TAGS,
    TOPIC_LENGTHS,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    UINT32,
    UNIQUE_KEY,
    decode_properties,
    fixed_bytes,
    split_keys,
)
from tieredstore.codec.record import tags_code as code_of_tags
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.message_body import PLAIN_BYTES_MAX, plain_body
from tieredstore.model.values import Host

BLANK_MAGIC: Final = 0xCBD43194
BLANK_BYTES: Final = 8
CODA_BYTES: Final = 16

_BLANK: Final = Struct(">iI")
_CODA: Final = Struct(">iIq")
TOPIC_BYTES_MAX_V1: Final = 127
TOPIC_BYTES_MAX: Final = 32767
PROPERTY_BYTES_MAX: Final = 32767
FIXED_LAYOUTS: Final = {
    0: Struct(">iIiiiqqiq4siq4siiqi"),
    BORN_HOST_IPV6: Struct(">iIiiiqqiq16siq4siiqi"),
    STORE_HOST_IPV6: Struct(">iIiiiqqiq4siq16siiqi"),
    HOSTS_IPV6: Struct(">iIiiiqqiq16siq16siiqi"),
}
_FIELDS: Final = (
    *("total size", "magic", "body_crc", "queue_id", "flag", "queue_offset", "log_offset"),
    *("sys_flag", "born_timestamp", "born_host", "born_host port", "store_timestamp"),
    *("store_host", "store_host port", "reconsume_times", "prepared_transaction_offset"),
    "body",
)
_MAGICS: Final = {1: MESSAGE_MAGIC_V1, 2: MESSAGE_MAGIC_V2}
_ADDRESS_BITS: Final = {4: 0, 16: HOSTS_IPV6}
_NO_OFFSET: Final = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


def encode_blank(rest_bytes: int) -> bytes:
    """The 8 bytes that mark the rest of a file as empty."""
    if rest_bytes < BLANK_BYTES:
        raise ValueError(f"rest_bytes: {rest_bytes} leave no room for a blank record")
    return pack_fields(_BLANK, ("rest_bytes", "magic"), rest_bytes, BLANK_MAGIC)


def is_blank(data: Buffer, position: int = 0) -> bool:
    """Whether a blank record or a coda starts here; False if too few bytes are left."""
    if position < 0 or position + BLANK_BYTES > len(data):
        return False
    magic: int = _BLANK.unpack_from(data, position)[1]
    return magic == BLANK_MAGIC


def is_coda(data: Buffer, position: int = 0) -> bool:
    if position < 0 or position + CODA_BYTES > len(data):
        return False
    size, magic, _ = _CODA.unpack_from(data, position)
    return bool(size == CODA_BYTES and magic == BLANK_MAGIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """One record of a commit log, field by field.

    `property_bytes` is authoritative; `properties` is decoded from it on first use.
    """

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    born_timestamp: int
    born_host: Host
    store_timestamp: int
    store_host: Host
    body: bytes = field(repr=False)
    property_bytes: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int = 0
    version: int = 1
    _properties: dict[str, str] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def properties(self) -> Mapping[str, str]:
        known = self._properties
        if known is None:
            known = decode_properties(self.property_bytes)
            object.__setattr__(self, "_properties", known)
        return MappingProxyType(known)

    def body_decompressed(self, limit: int = PLAIN_BYTES_MAX) -> bytes:
        """The body as its producer made it; see `message_body.plain_body` for limit and errors."""
        return plain_body(self.body, self.sys_flag, limit=limit)

    @property
    def tags(self) -> str | None:
        return self.properties.get(TAGS)

    @property
    def tags_code(self) -> int:
        return code_of_tags(self.tags)

    @property
    def keys(self) -> tuple[str, ...]:
        return split_keys(self.properties.get(KEYS))

    @property
    def unique_key(self) -> str | None:
        return self.properties.get(UNIQUE_KEY)

    @property
    def transaction(self) -> int:
        """0, TRANSACTION_PREPARED, TRANSACTION_COMMIT or TRANSACTION_ROLLBACK."""
        return self.sys_flag & TRANSACTION_MASK

    @property
    def offset_id(self) -> str:
        return encode_offset_id(self.store_host, log_offset=self.log_offset)


def encode_message(
    *,
    topic: str,
    queue_id: int,
    queue_offset: int,
    log_offset: int,
    born_timestamp: int,
    born_host: Host,
    store_timestamp: int,
    store_host: Host,
    body: bytes = b"",
    property_bytes: bytes = b"",
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    body_crc: int | None = None,
    version: int | None = None,
    append_property_crc: bool = False,
) -> bytes:
    """One record. Raises ValueError, with the field's name, for a value that does not fit.

    The host bits of `sys_flag` follow from the addresses. The queue offset of a prepared or
    rolled-back message is written as 0. `version` and `body_crc` are computed if not given.
    """
    crc = crc_of(body) if body_crc is None else body_crc
    topic_bytes = encode_utf8(topic)
    version = _version_of(topic_bytes, version)
    if append_property_crc:
        property_bytes = reserve_property_crc(property_bytes)
    if len(property_bytes) > PROPERTY_BYTES_MAX:
        raise ValueError(f"property_bytes: {len(property_bytes)} are more than 32767")
    sys_flag = sys_flag & ~HOSTS_IPV6 | _host_bits(born_host, store_host)
    if sys_flag & TRANSACTION_MASK in _NO_OFFSET:
        queue_offset = 0
    total_bytes = fixed_bytes(sys_flag) + len(body) + version + len(topic_bytes)
    total_bytes += 2 + len(property_bytes)
    fixed = pack_fields(
        *(FIXED_LAYOUTS[sys_flag & HOSTS_IPV6], _FIELDS, total_bytes, _MAGICS[version], crc),
        *(queue_id, flag, queue_offset, log_offset, sys_flag, born_timestamp),
        *(born_host.address, born_host.port, store_timestamp),
        *(store_host.address, store_host.port, reconsume_times, prepared_transaction_offset),
        len(body),
    )
    topic_length = TOPIC_LENGTHS[_MAGICS[version]].pack(len(topic_bytes))
    property_length = INT16.pack(len(property_bytes))
    record = b"".join((fixed, body, topic_length, topic_bytes, property_length, property_bytes))
    if append_property_crc:
        covered = record[:-PROPERTY_CRC_BYTES]
        record = covered + encode_property_crc(crc_of(covered))
    return record


def _version_of(topic_bytes: bytes, version: int | None) -> int:
    if version is None:
        version = 1 if len(topic_bytes) <= TOPIC_BYTES_MAX_V1 else 2
    if version not in _MAGICS:
        raise ValueError(f"version: {version} is neither 1 nor 2")
    most = TOPIC_BYTES_MAX_V1 if version == 1 else TOPIC_BYTES_MAX
    if len(topic_bytes) > most:
        raise ValueError(f"topic: {len(topic_bytes)} bytes are more than {most}")
    return version


def _host_bits(born_host: Host, store_host: Host) -> int:
    born, store = len(born_host.address), len(store_host.address)
    if born not in _ADDRESS_BITS:
        raise ValueError(f"born_host: {born} bytes are no address")
    if store not in _ADDRESS_BITS:
        raise ValueError(f"store_host: {store} bytes are no address")
    return _ADDRESS_BITS[born] & BORN_HOST_IPV6 | _ADDRESS_BITS[store] & STORE_HOST_IPV6


def decode_message(
    data: Buffer, position: int = 0, *, path: str = "", check_crc: bool = True
) -> StoredMessage:
    """The record that starts at `position`; bytes after it are ignored.

    Raises SegmentCorruptError unless it is a whole record whose lengths add up and, with
    `check_crc`, whose body has the right CRC.
    """
    sys_flag, end = _check_frame(data, position, path)
    fixed = FIXED_LAYOUTS[sys_flag & HOSTS_IPV6]
    (_, magic, crc, queue_id, flag, queue_offset, log_offset, _, born_timestamp, *rest) = (
        fixed.unpack_from(data, position)
    )
    born, born_port, store_timestamp, store, store_port, reconsume_times, prepared, size = rest
    body_at = position + fixed.size
    if not 0 <= size <= end - body_at:
        _damaged(path, body_at - 4, f"a body of {size} bytes does not fit the record")
    body = bytes(data[body_at : body_at + size])
    topic, property_bytes = _decode_tail(data, body_at + size, end, magic, path)
    if check_crc and crc_of(body) != crc:
        _damaged(path, body_at, f"the body has CRC {crc_of(body)}, not {crc}")
    return StoredMessage(
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        log_offset=log_offset,
        born_timestamp=born_timestamp,
        born_host=Host(born, born_port),
        store_timestamp=store_timestamp,
        store_host=Host(store, store_port),
        body=body,
        property_bytes=property_bytes,
        flag=flag,
        sys_flag=sys_flag,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        body_crc=crc,
        version=1 if magic == MESSAGE_MAGIC_V1 else 2,
    )


def _check_frame(data: Buffer, position: int, path: str) -> tuple[int, int]:
    """The system flag and the end of a record; checks that its fixed part is complete."""
    require(data, position=position, size=8, path=path, what="a record")
    total_bytes: int = INT32.unpack_from(data, position)[0]
    magic: int = UINT32.unpack_from(data, position + 4)[0]
    if magic not in TOPIC_LENGTHS:
        blank = "a blank record" if magic == BLANK_MAGIC else f"magic {magic:08X}"
        _damaged(path, position + 4, f"{blank}, not a message")
    if not RECORD_BYTES_MIN <= total_bytes <= len(data) - position:
        held = len(data) - position
        _damaged(path, position, f"a record of {total_bytes} bytes where there are {held}")
    sys_flag: int = INT32.unpack_from(data, position + SYS_FLAG_POSITION)[0]
    if total_bytes < fixed_bytes(sys_flag):
        _damaged(path, position, f"a record of {total_bytes} bytes is too short for its hosts")
    return sys_flag, position + total_bytes


def _decode_tail(data: Buffer, position: int, end: int, magic: int, path: str) -> tuple[str, bytes]:
    """The topic and the property bytes, which must end where the record ends."""
    layout = TOPIC_LENGTHS[magic]
    topic_at = position + layout.size
    if topic_at > end:
        _damaged(path, position, "the record ends before its topic")
    topic_bytes: int = layout.unpack_from(data, position)[0]
    topic_end = topic_at + topic_bytes
    if topic_bytes < 0 or topic_end + 2 > end:
        _damaged(path, position, f"a topic of {topic_bytes} bytes does not fit the record")
    property_bytes: int = INT16.unpack_from(data, topic_end)[0]
    if property_bytes < 0 or topic_end + 2 + property_bytes != end:
        _damaged(path, topic_end, f"{property_bytes} property bytes do not end with the record")
    return decode_utf8(data[topic_at:topic_end]), bytes(data[topic_end + 2 : end])


def _damaged(path: str, position: int, reason: str) -> NoReturn:
    raise SegmentCorruptError(path, reason, position=position)
