"""Addresses of records as texts, each made once.

What lives here: `host_column`. Few hosts send many messages.
"""

from __future__ import annotations

import socket
from struct import Struct
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tieredstore.jobs.reading.record_fields import IPV6_BYTES, RecordFields

_PORT: Final = Struct(">i")


def host_column(
    fields: RecordFields, starts: NDArray[np.int64], ipv6: NDArray[np.bool_]
) -> pa.Array:
    """`10.0.0.1:4711` or `[2001:db8::1]:4711` for each address that begins there."""
    if not ipv6.any():
        return _texts(fields, starts)
    short, long = np.flatnonzero(~ipv6), np.flatnonzero(ipv6)
    texts = pa.concat_arrays(
        [_texts(fields, starts[short]), pa.array(_long_texts(fields, starts[long]), pa.string())]
    )
    places = np.empty(len(starts), np.int64)
    places[np.concatenate((short, long))] = np.arange(len(starts))
    return texts.take(pa.array(places))


def _texts(fields: RecordFields, starts: NDArray[np.int64]) -> pa.Array:
    packed = pa.array(fields.int64(starts)).dictionary_encode()
    made = [
        host_text(value.to_bytes(8, "big", signed=True)) for value in packed.dictionary.to_pylist()
    ]
    return pa.array(made, pa.string()).take(packed.indices)


def _long_texts(fields: RecordFields, starts: NDArray[np.int64]) -> list[str]:
    data = memoryview(fields.records)
    size = 8 + IPV6_BYTES
    return [host_text(bytes(data[start : start + size])) for start in starts.tolist()]


def host_text(packed: bytes) -> str:
    """From the bytes of a record: 4 or 16 of an address, then a port."""
    address, port = packed[:-4], _PORT.unpack(packed[-4:])[0]
    if len(address) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, address)}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, address)}]:{port}"
