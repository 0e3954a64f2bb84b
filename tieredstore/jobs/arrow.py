"""Runs of messages as Arrow batches, with these columns:

    | column       | type                | what                                                   |
    | ------------ | ------------------- | ------------------------------------------------------ |
    | topic        | string              | of the queue                                           |
    | queue_id     | int32               |                                                        |
    | queue_offset | int64               | number of the message in its queue                     |
    | log_offset   | int64               | byte in the queue's commit log in the tier             |
    | store_time   | timestamp[us, UTC]  | null outside the years 1 to 9999                       |
    | born_time    | timestamp[us, UTC]  | likewise                                               |
    | born_host    | string              | 10.0.0.1:4711 or [2001:db8::1]:4711                    |
    | store_host   | string              | likewise                                               |
    | flag         | int32               | set by the sender                                      |
    | sys_flag     | int32               |                                                        |
    | tags         | string              | null if the message has none                           |
    | keys         | list of string      | the property KEYS, split at blanks; may be empty       |
    | unique_key   | string              | null if the message has none                           |
    | properties   | map string → string |                                                        |
    | body         | binary              | as stored: compressed where sys_flag says so           |
    | body_crc_ok  | bool                | computed for each message, and only if requested       |
    | size         | int32               | bytes of the whole record                              |

A batch has only the requested columns; no others are computed.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from struct import Struct
from types import MappingProxyType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from tieredstore.model.extras import brought_by

with brought_by("jobs"):
    import pyarrow as pa
    import pyarrow.compute as pc

from tieredstore.codec.columns import Properties, RecordFields
from tieredstore.codec.java import decode_utf8
from tieredstore.codec.record import IPV6_BYTES, TAGS, UNIQUE_KEY
from tieredstore.jobs.slices import Selection
from tieredstore.model.values import INT32_MAX, QueueKey

_PORT: Final = Struct(">i")
_IPV4: Final = Struct(">q")
_NAMES_IN_A_WORD: Final = 48  # the bits of the fewer than 2^13 entries of a message fit in a sum
MAP_TYPE: Final = pa.map_(pa.string(), pa.string())
KEYS_TYPE: Final = pa.list_(pa.field("element", pa.string()))  # named as Spark names it
TIME_TYPE: Final = pa.timestamp("us", tz="UTC")
_TIME_MIN_MS: Final = -62_135_596_800_000  # year 1
_TIME_MAX_MS: Final = 253_402_300_799_999  # year 9999


class _Columns:
    """One batch being made. What several columns share is computed once."""

    def __init__(self, key: QueueKey, fields: RecordFields, rows: NDArray[np.int64]) -> None:
        self.key = key
        self.fields = fields
        self.rows = rows

    def same(self, value: str | int) -> pa.Array:
        return _same(value, len(self.rows))

    def numbers(self, values: NDArray[np.int64]) -> pa.Array:
        return pa.array(values if len(values) == len(self.rows) else values[self.rows])

    def times(self, values: NDArray[np.int64]) -> pa.Array:
        chosen = values if len(values) == len(self.rows) else values[self.rows]
        wrong = (chosen < _TIME_MIN_MS) | (chosen > _TIME_MAX_MS)
        if not wrong.any():
            return pa.array(chosen * 1000, pa.int64()).view(TIME_TYPE)
        micros = np.where(wrong, 0, chosen) * 1000
        return pa.array(micros, pa.int64(), mask=wrong)

    def hosts(self, found: tuple[NDArray[np.int64], NDArray[np.bool_]]) -> pa.Array:
        starts, is_ipv6 = found[0][self.rows], found[1][self.rows]
        if is_ipv6.any():
            sizes = np.where(is_ipv6, 8 + IPV6_BYTES, 8)
            packed = cut_spans(self.fields.data, starts, sizes, pa.binary()).dictionary_encode()
            hosts = packed.dictionary.to_pylist()
        else:  # compare a 4-byte address and its port as one number, which is faster
            packed = pa.array(self.fields.int64(starts)).dictionary_encode()
            hosts = [_IPV4.pack(number) for number in packed.dictionary.to_pylist()]
        texts = [_host_text(host) for host in hosts]
        if len(texts) == 1:
            return self.same(texts[0])
        return pa.array(texts, pa.string()).take(packed.indices)

    def bodies(self) -> pa.Array:
        fields, rows = self.fields, self.rows
        return cut_spans(
            fields.data, fields.body_starts[rows], fields.body_bytes[rows], pa.binary()
        )

    @cached_property
    def properties(self) -> PropertyColumns:
        return PropertyColumns.of(self.fields, self.rows)


_COLUMNS: Final[Mapping[str, tuple[pa.DataType, Callable[[_Columns], pa.Array]]]] = {
    "topic": (pa.string(), lambda made: made.same(made.key.topic)),
    "queue_id": (pa.int32(), lambda made: made.same(made.key.queue_id)),
    "queue_offset": (pa.int64(), lambda made: made.numbers(made.fields.queue_offsets)),
    "log_offset": (pa.int64(), lambda made: made.numbers(made.fields.run.log_offsets)),
    "store_time": (TIME_TYPE, lambda made: made.times(made.fields.store_times())),
    "born_time": (TIME_TYPE, lambda made: made.times(made.fields.born_times())),
    "born_host": (pa.string(), lambda made: made.hosts(made.fields.born_hosts())),
    "store_host": (pa.string(), lambda made: made.hosts(made.fields.store_hosts())),
    "flag": (pa.int32(), lambda made: made.numbers(made.fields.flags())),
    "sys_flag": (pa.int32(), lambda made: made.numbers(made.fields.sys_flags)),
    "tags": (pa.string(), lambda made: made.properties.tags()),
    "keys": (KEYS_TYPE, lambda made: made.properties.keys()),
    "unique_key": (pa.string(), lambda made: made.properties.unique_keys()),
    "properties": (MAP_TYPE, lambda made: made.properties.maps()),
    "body": (pa.binary(), lambda made: made.bodies()),
    "body_crc_ok": (pa.bool_(), lambda made: pa.array(made.fields.body_crc_ok(made.rows))),
    "size": (pa.int32(), lambda made: made.numbers(made.fields.sizes())),
}
MESSAGE_COLUMNS: Final[Mapping[str, pa.DataType]] = MappingProxyType(
    {name: kind for name, (kind, _) in _COLUMNS.items()}
)


class MessageTable:
    """The requested columns. Turns runs of messages into batches of them."""

    def __init__(self, columns: Sequence[str] = tuple(MESSAGE_COLUMNS)) -> None:
        unknown = [name for name in columns if name not in MESSAGE_COLUMNS]
        if unknown:
            raise ValueError(f"columns: {unknown[0]!r} is none of {', '.join(MESSAGE_COLUMNS)}")
        self.columns = tuple(columns)
        self.schema = pa.schema([pa.field(name, MESSAGE_COLUMNS[name]) for name in self.columns])

    def batch(
        self, key: QueueKey, fields: RecordFields, rows: NDArray[np.int64] | None = None
    ) -> pa.RecordBatch:
        """These rows of a run of the queue, in ascending order; by default all sound ones."""
        chosen = np.flatnonzero(fields.sound) if rows is None else rows
        made = _Columns(key, fields, chosen)
        arrays = [_of_kind(_COLUMNS[name][1](made), MESSAGE_COLUMNS[name]) for name in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


@dataclass(frozen=True, slots=True, eq=False)
class KeyPairs:
    """Pair i: the message in row `rows[i]` has the key `keys[i]`, which is null if it has no key.

    Rows ascend; a message has each of its keys once.
    """

    rows: NDArray[np.int64]
    keys: pa.Array

    def of(self, rows: NDArray[np.int64]) -> KeyPairs:
        """The pairs of these rows, which are neighbours in the run and ascend."""
        first = int(np.searchsorted(self.rows, rows[0]))
        end = int(np.searchsorted(self.rows, rows[-1], side="right"))
        return KeyPairs(self.rows[first:end], self.keys.slice(first, end - first))


def key_pairs(fields: RecordFields, rows: NDArray[np.int64], selection: Selection) -> KeyPairs:
    """The pairs of UNIQ_KEY and of each of KEYS of these rows, as far as they are wanted.

    If the selection has keys, only pairs with one of them; otherwise also one pair with a null key
    for each message that has none.
    """
    properties = PropertyColumns.of(fields, rows)
    uniques, lists = properties.unique_keys(), properties.keys()
    if selection.unique_keys is not None:
        kept = _are_in(uniques, selection.unique_keys)
        rows, uniques, lists = rows[kept], uniques.filter(kept), lists.filter(kept)
    numbers = np.arange(len(rows))
    counts = np.diff(lists.offsets.to_numpy()) if len(lists) else np.empty(0, np.int64)
    owners = np.concatenate((numbers, np.repeat(numbers, counts)))
    keys = pa.concat_arrays([uniques, lists.flatten()])
    if selection.keys is not None:
        found = _are_in(keys, selection.keys)
        owners, keys = owners[found], keys.filter(found)
    else:
        idle = ~(keys.is_null().to_numpy(zero_copy_only=False)) | (counts == 0)[owners]
        owners, keys = owners[idle], keys.filter(idle)
    order = np.argsort(owners, kind="stable")
    owners, keys = owners[order], keys.take(pa.array(order))
    first = _once_each(owners, keys)
    if first is not None:
        owners, keys = owners[first], keys.take(pa.array(first))
    return KeyPairs(rows[owners], keys)


def _are_in(values: pa.Array, wanted: frozenset[str]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.is_in(
        values, value_set=pa.array(sorted(wanted), pa.string()), skip_nulls=True
    ).to_numpy(zero_copy_only=False)
    return found


def _once_each(owners: NDArray[np.int64], keys: pa.Array) -> NDArray[np.int64] | None:
    """The first pair of each owner and key; None if no pair occurs twice."""
    codes = keys.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    _, first = np.unique(owners * (len(keys) + 1) + codes, return_index=True)
    return None if len(first) == len(owners) else np.sort(first)


class PropertyColumns:
    """The property texts of some messages, parsed together.

    `texts` is a binary array with one value for each message; columns have as many rows.
    """

    def __init__(self, texts: pa.Array) -> None:
        self._count = len(texts)
        data, ends = span_bytes(texts)
        if not _is_utf8(data, ends):
            data, ends = span_bytes(_replaced_like_java(texts))
        self._data = data
        self._properties = Properties(data, ends[1:])

    @classmethod
    def of(cls, fields: RecordFields, rows: NDArray[np.int64]) -> Self:
        starts, sizes = fields.property_starts[rows], fields.property_bytes[rows]
        return cls(cut_spans(fields.data, starts, sizes, pa.binary()))

    # Columns

    def tags(self) -> pa.Array:
        return self._values_of(TAGS)

    def unique_keys(self) -> pa.Array:
        return self._values_of(UNIQUE_KEY)

    def keys(self) -> pa.Array:
        """The single keys. Only U+0020 separates them; empty ones are dropped, doubles stay."""
        (rows, starts, ends), _ = self._properties.keys()
        pieces = cut_spans(self._data, starts, ends - starts, pa.string())
        offsets = pa.array(_list_offsets(rows, self._count))
        return pa.ListArray.from_arrays(offsets, pieces, type=KEYS_TYPE)

    def maps(self) -> pa.Array:
        """All properties, each name once."""
        (rows, starts, ends), marks = self._properties.entries()
        names = cut_spans(self._data, starts, marks - starts, pa.string())
        values = cut_spans(self._data, marks + 1, ends - marks - 1, pa.string())
        kept = _last_of_each(rows, names)
        if kept is not None:
            taken = pa.array(kept)
            names, values, rows = names.take(taken), values.take(taken), rows[kept]
        offsets = _list_offsets(rows, self._count)
        return pa.MapArray.from_arrays(pa.array(offsets), names, values)

    def _values_of(self, name: str) -> pa.Array:
        rows, starts, ends = self._properties.values(name)
        values = cut_spans(self._data, starts, ends - starts, pa.string())
        if len(rows) == self._count:
            return values
        places = np.full(self._count, -1, np.int64)
        places[rows] = np.arange(len(rows))
        return values.take(pa.array(places, mask=places < 0))


def _last_of_each(rows: NDArray[np.int64], names: pa.Array) -> NDArray[np.int64] | None:
    """The entries that count: of a name that a message has twice, the last. None if there is no
    such message."""
    encoded = names.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    distinct = len(encoded.dictionary)
    if not len(codes):
        return None
    if distinct <= _NAMES_IN_A_WORD:
        bits = np.left_shift(1, codes)
        first = np.flatnonzero(np.append(True, rows[1:] != rows[:-1]))
        if bool((np.add.reduceat(bits, first) == np.bitwise_or.reduceat(bits, first)).all()):
            return None
    pairs = rows * distinct + codes
    _, backwards = np.unique(pairs[::-1], return_index=True)
    if len(backwards) == len(pairs):
        return None
    kept: NDArray[np.int64] = np.sort(len(pairs) - 1 - backwards)
    return kept


def _list_offsets(rows: NDArray[np.int64], count: int) -> NDArray[np.int32]:
    """Where the values of each row begin and end. `rows`: the row of each value, ascending."""
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
    return offsets


def _is_utf8(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> bool:
    """Whether each of the texts is UTF-8."""
    if not len(data) or int(data.max()) < 0x80:
        return True
    heads = ends[:-1][ends[:-1] < len(data)]
    if bool(((data[heads] & 0xC0) == 0x80).any()):  # a text begins within a character
        return False
    raw: Any = data.tobytes()
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _replaced_like_java(texts: pa.Array) -> pa.Array:
    return pa.array([decode_utf8(text).encode() for text in texts.to_pylist()], pa.binary())


def cut_spans(
    data: Any, starts: NDArray[np.int64], sizes: NDArray[np.int64], kind: pa.DataType
) -> pa.Array:
    """`data[start : start + size]` of each row as an array of `kind`: binary or string.

    The spans lie within the data, which is shorter than 2 GiB. The caller makes sure that texts are
    UTF-8.
    """
    count = len(starts)
    if not count:
        return pa.array([], kind)
    ends = starts + sizes
    if (starts[1:] < ends[:-1]).any():  # only if damaged: then copy each by itself
        return _cut_one_by_one(data, starts, ends, kind)
    if int(ends[-1]) > INT32_MAX:
        raise ValueError(f"data: {len(data)} bytes are too many for one array")
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = starts
    offsets[1::2] = ends
    every = pa.Array.from_buffers(
        kind, 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    return every.take(_every_second(count))


def span_bytes(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The concatenated bytes of all values of a binary array, and where each value ends.

    The ends have one entry more than there are values: the first is 0.
    """
    offsets = np.frombuffer(array.buffers()[1], np.int32)[
        array.offset : array.offset + len(array) + 1
    ].astype(np.int64)
    held = array.buffers()[2]
    data = np.frombuffer(held, np.uint8) if held is not None else np.empty(0, np.uint8)
    first = int(offsets[0]) if len(offsets) else 0
    return data[first : int(offsets[-1])], offsets - first


def _cut_one_by_one(
    data: Any, starts: NDArray[np.int64], ends: NDArray[np.int64], kind: pa.DataType
) -> pa.Array:
    view = memoryview(data)
    pieces = [
        bytes(view[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    return pa.array(pieces, pa.binary()).cast(kind)


def _of_kind(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


# Runs have any length: their arrays are cut from longer ones, which are made once.


def _same(value: str | int, count: int) -> pa.Array:
    return _repeated(value, _rounded(count)).slice(0, count)


def _every_second(count: int) -> pa.Array:
    """0, 2, 4 and so on."""
    return _counted(_rounded(count)).slice(0, count)


def _rounded(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


@lru_cache(maxsize=8)
def _repeated(value: str | int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value), count)


@lru_cache(maxsize=8)
def _counted(count: int) -> pa.Array:
    return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))


def _host_text(packed: bytes) -> str:
    """10.0.0.1:4711 or [2001:db8::1]:4711, from 4 or 16 bytes of address and 4 of port."""
    address, port = packed[:-4], _PORT.unpack(packed[-4:])[0]
    if len(address) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, address)}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, address)}]:{port}"
