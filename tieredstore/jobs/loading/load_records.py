"""Rows of Arrow batches made into records of a commit log, many at once.

What lives here: `encode_batch`. The table of the bytes is in `codec.record_fields`; which columns
there are is told in `load_columns`. Queue offsets and log offsets are 0: nobody knows them yet.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tieredstore.codec.crc32 import crc32
from tieredstore.codec.message import TOPIC_BYTES_MAX, TOPIC_BYTES_MAX_V1
from tieredstore.codec.record_fields import (
    BORN_HOST_IPV6,
    INT8,
    INT16,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    STORE_HOST_IPV6,
)
from tieredstore.jobs.loading.load_columns import LoadColumns, LoadRefusedError
from tieredstore.jobs.loading.load_properties import PropertyTexts
from tieredstore.jobs.reading.arrow_spans import span_bytes
from tieredstore.model.messages import LOOPBACK
from tieredstore.model.values import INT32_MAX, Host, QueueKey

BATCH_BYTES_MAX: Final = 64 << 20  # of what is encoded at a time, or a single message
_NOTHING: Final = pa.scalar(b"")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EncodedRun:
    """Messages of one queue in the order of their rows: their records one behind the other."""

    key: QueueKey
    records: memoryview
    message_bytes: NDArray[np.int64]
    tags_codes: NDArray[np.int64]
    store_times: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.message_bytes)


def encode_batch(batch: pa.RecordBatch, columns: LoadColumns) -> Iterator[EncodedRun]:
    """The messages of all queues of the batch. LoadRefusedError for what can be no message."""
    if not len(batch):
        return
    if batch.nbytes > BATCH_BYTES_MAX and len(batch) > 1:
        half = len(batch) // 2
        yield from encode_batch(batch.slice(0, half), columns)
        yield from encode_batch(batch.slice(half), columns)
        return
    columns.refuse_damaged(batch)
    topics, queue_ids = columns.topics(batch), columns.queue_ids(batch)
    codes = topics.indices.to_numpy().astype(np.int64)
    places = codes << 32 | queue_ids
    order = np.argsort(places, kind="stable")
    if (order[1:] < order[:-1]).any():
        batch = batch.take(pa.array(order))
        places = places[order]
    names = topics.dictionary.to_pylist()
    encoded = _Encoded(batch, columns, names, places)
    bounds = [0, *(np.flatnonzero(places[1:] != places[:-1]) + 1).tolist(), len(batch)]
    for start, end in pairwise(bounds):
        place = int(places[start])
        yield encoded.run(QueueKey(names[place >> 32], place & INT32_MAX), start, end)


class _Encoded:
    """The records of a batch whose rows are sorted by queue."""

    def __init__(
        self,
        batch: pa.RecordBatch,
        columns: LoadColumns,
        names: list[str],
        places: NDArray[np.int64],
    ) -> None:
        count = len(batch)
        bodies = columns.bodies(batch)
        properties = PropertyTexts(columns, batch)
        self._tags_codes = properties.tags_codes()
        self._times = columns.store_times(batch)
        fields, magics = _topic_fields(names)
        topic_codes = places >> 32
        topics = fields.take(pa.array(topic_codes))
        born = _Hosts(columns.text(batch, "born_host"), count, "born_host")
        store = _Hosts(columns.text(batch, "store_host"), count, "store_host")
        bits = born.is_ipv6 * np.int64(BORN_HOST_IPV6) + store.is_ipv6 * np.int64(STORE_HOST_IPV6)
        body_bytes, property_bytes = _lengths(bodies), _lengths(properties.texts)
        fixed = 88 + 12 * (born.is_ipv6.astype(np.int64) + store.is_ipv6)
        self._sizes = fixed + body_bytes + _lengths(topics) + 2 + property_bytes
        values = {
            "size": self._sizes,
            "magic": magics[topic_codes],
            "crc": _checksums(bodies),
            "queue_id": places & INT32_MAX,
            "flag": columns.flags(batch),
            "sys_flag": columns.sys_flags(batch) | bits,
            "born_time": columns.born_times(batch, self._times),
            "born_address": born.addresses,
            "born_port": born.ports,
            "store_time": self._times,
            "store_address": store.addresses,
            "store_port": store.ports,
            "body_bytes": body_bytes,
        }
        joined = pc.binary_join_element_wise(
            _headers(values, bits, fixed),
            bodies,
            topics,
            _fixed(property_bytes.astype(">i2").view(np.uint8), 2, count),
            properties.texts,
            _NOTHING,
        )
        self._data, self._ends = span_bytes(joined)

    def run(self, key: QueueKey, start: int, end: int) -> EncodedRun:
        return EncodedRun(
            key=key,
            records=self._data[int(self._ends[start]) : int(self._ends[end])].data,
            message_bytes=self._sizes[start:end],
            tags_codes=self._tags_codes[start:end],
            store_times=self._times[start:end],
        )


def _topic_fields(names: list[str]) -> tuple[pa.Array, NDArray[np.uint32]]:
    """What stands for each topic in a record, and the magic number of such a record."""
    fields, magics = [], []
    for name in names:
        data = name.encode()
        if len(data) > TOPIC_BYTES_MAX:
            raise LoadRefusedError(f"column topic: {len(data)} bytes are too many")
        is_short = len(data) <= TOPIC_BYTES_MAX_V1
        fields.append((INT8 if is_short else INT16).pack(len(data)) + data)
        magics.append(MESSAGE_MAGIC_V1 if is_short else MESSAGE_MAGIC_V2)
    return pa.array(fields, pa.binary()), np.array(magics, np.uint32)


class _Hosts:
    """The addresses of a column of texts such as 10.0.0.1:4711 or [2001:db8::1]:4711."""

    def __init__(self, texts: pa.Array | None, count: int, name: str) -> None:
        codes: Any = np.zeros(count, np.int64)
        found = [LOOPBACK]
        if texts is not None:
            encoded = texts.dictionary_encode()
            found += [_host(text, name) for text in encoded.dictionary.to_pylist()]
            codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False) + 1
        table = np.zeros((len(found), 16), np.uint8)
        for row, host in enumerate(found):
            table[row, : len(host.address)] = np.frombuffer(host.address, np.uint8)
        self.addresses = table[codes]
        self.ports = np.array([host.port for host in found], np.int64)[codes]
        self.is_ipv6 = np.array([host.is_ipv6 for host in found], np.bool_)[codes]


def _host(text: str, column: str) -> Host:
    address, _, port = text.rpartition(":")
    try:
        packed = ipaddress.ip_address(address.removeprefix("[").removesuffix("]")).packed
        number = int(port)
        if not 0 <= number <= INT32_MAX:
            raise ValueError(port)
    except ValueError:
        raise LoadRefusedError(
            f"column {column}: {text!r:.80} is no address and port, such as 10.0.0.1:4711"
        ) from None
    return Host(packed, number)


def _headers(values: dict[str, Any], bits: NDArray[np.int64], fixed: NDArray[np.int64]) -> pa.Array:
    """The records up to their bodies; those with like addresses are made together."""
    kinds = np.unique(bits).tolist()
    if len(kinds) == 1:
        made = _made(values, kinds[0], slice(None))
        return _fixed(made, int(fixed[0]), len(fixed))
    ends = np.cumsum(fixed)
    data = np.empty(int(ends[-1]), np.uint8)
    for kind in kinds:
        rows = np.flatnonzero(bits == kind)
        width = int(fixed[rows[0]])
        starts = ends[rows] - width
        data[starts[:, None] + np.arange(width)] = _made(values, kind, rows).reshape(-1, width)
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(fixed), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _made(values: dict[str, Any], kind: int, rows: Any) -> NDArray[np.uint8]:
    born = 16 if kind & BORN_HOST_IPV6 else 4
    store = 16 if kind & STORE_HOST_IPV6 else 4
    layout = _LAYOUTS[born, store]
    chosen = {name: column[rows] for name, column in values.items()}
    made = np.zeros(len(chosen["size"]), layout)
    for name, column in chosen.items():
        if name == "born_address":
            made[name] = column[:, :born]
        elif name == "store_address":
            made[name] = column[:, :store]
        else:
            made[name] = column
    return made.view(np.uint8)


def _layout(born: int, store: int) -> np.dtype[Any]:
    return np.dtype(
        [
            *(("size", ">i4"), ("magic", ">u4"), ("crc", ">i4"), ("queue_id", ">i4")),
            *(("flag", ">i4"), ("queue_offset", ">i8"), ("log_offset", ">i8")),
            *(("sys_flag", ">i4"), ("born_time", ">i8"), ("born_address", "u1", (born,))),
            *(("born_port", ">i4"), ("store_time", ">i8"), ("store_address", "u1", (store,))),
            *(("store_port", ">i4"), ("reconsume_times", ">i4"), ("prepared", ">i8")),
            ("body_bytes", ">i4"),
        ]
    )


_LAYOUTS: Final = {(born, store): _layout(born, store) for born in (4, 16) for store in (4, 16)}


def _fixed(data: NDArray[np.uint8], width: int, count: int) -> pa.Array:
    """Values of one width as a binary array."""
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _lengths(values: pa.Array) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = pc.binary_length(values).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)


def _checksums(bodies: pa.Array) -> NDArray[np.int64]:
    data, ends = span_bytes(bodies)
    view = data.data
    spans = map(slice, ends[:-1].tolist(), ends[1:].tolist())
    found = np.fromiter(map(crc32, map(view.__getitem__, spans)), np.uint32, len(bodies))
    return (found & INT32_MAX).astype(np.int64)
