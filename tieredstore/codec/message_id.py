"""Message ids that a broker makes of its host and the log offset of a record.

What lives here: both directions. The id says where a message is in the local store, so it does not
survive tiering.

    hex, upper case: address (4 or 16 bytes), i32 port, i64 log offset; 32 or 56 characters
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from tieredstore.codec.bounds import pack_fields
from tieredstore.model.values import Host

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
