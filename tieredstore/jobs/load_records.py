"""Rows of Arrow batches encoded as records, many at once, and staged for a bulk load.

A load takes these columns, or the replacement of each:

    | column     | type                      | without it                                     |
    | ---------- | ------------------------- | ---------------------------------------------- |
    | topic      | string                    | the option of that name                        |
    | queue_id   | integer                   | the option of that name                        |
    | body       | binary or string          | empty                                          |
    | tags       | string                    | what the properties say                        |
    | keys       | array of string or string | likewise                                       |
    | unique_key | string                    | likewise                                       |
    | properties | map of string to string   | none but those three                           |
    | store_time | timestamp, or integer: ms | when the load began                            |
    | born_time  | timestamp, or integer: ms | the store time                                 |
    | born_host  | string                    | 127.0.0.1:0                                    |
    | store_host | string                    | 127.0.0.1:0                                    |
    | flag       | integer                   | 0                                              |
    | sys_flag   | integer                   | 0; bits for addresses follow from the hosts    |

A null counts as a missing column. A store time before 1970 or after the year 9999 is refused: a
search by key would not find it, or it is not in milliseconds.

The other columns that a read of a tier returns are ignored: offsets, sizes and checksums are
computed anew. If `body_crc_ok` is false, the load is refused, because a new checksum would make a
damaged body look sound.

`load_segments` shows what a task does with them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.model.extras import brought_by

with brought_by("jobs"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds

from tieredstore.codec.checks import PROPERTY_CRC_NAME, Buffer, crc32
from tieredstore.codec.columns import HashedKeys, Properties, hashed_keys
from tieredstore.codec.key_hashes import key_hashes
from tieredstore.codec.message import PROPERTY_BYTES_MAX, TOPIC_BYTES_MAX, TOPIC_BYTES_MAX_V1
from tieredstore.codec.names import INDEX_TOPIC
from tieredstore.codec.record import (
    BORN_HOST_IPV6,
    FIXED_BYTES,
    HOSTS_IPV6,
    INT8,
    INT16,
    IPV6_BYTES,
    KEYS,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    STORE_HOST_IPV6,
    TAGS,
    TRANSACTION_PREPARED,
    UNIQUE_KEY,
)
from tieredstore.jobs.arrow import span_bytes
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.messages import LOOPBACK
from tieredstore.model.property_text import NAME_END, VALUE_END
from tieredstore.model.topics import why_no_topic
from tieredstore.model.values import INT32_MAX, Host, QueueKey

BODY_CRC_OK: Final = "body_crc_ok"
IGNORED: Final = frozenset({"queue_offset", "log_offset", "size", BODY_CRC_OK})
_STRING: Final = pa.string()
_MAP: Final = pa.map_(pa.string(), pa.string())
_Rule = tuple[str, Callable[[pa.DataType], bool]]
_COLUMNS: Final[Mapping[str, str]] = {TAGS: "tags", KEYS: "keys", UNIQUE_KEY: "unique_key"}
_NO_TEXTS: Final = ""
BATCH_BYTES_MAX: Final = 64 << 20  # encoded at a time, or a single larger message
STORE_TIME_MAX: Final = 253_402_300_799_999  # the year 9999: later ones are in another unit
_NOTHING: Final = pa.scalar(b"")
_KEYS_BYTES: Final = 1 << 20  # of properties parsed at a time, or those of one message
_COPIED_BYTES_MAX: Final = 512  # up to this size, copying a body is faster than a view of it


class LoadRefusedError(TieredStoreError, ValueError):
    """The rows cannot be messages; nothing was loaded."""


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind) or _is_text(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(kinds.is_timestamp(kind) or kinds.is_integer(kind))


def _is_keys(kind: pa.DataType) -> bool:
    is_list = kinds.is_list(kind) or kinds.is_large_list(kind)
    return _is_text(kind) or bool(is_list and _is_text(kind.value_type))


def _is_map(kind: pa.DataType) -> bool:
    return bool(kinds.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type))


_TEXT: Final[_Rule] = ("a string", _is_text)
_INTEGER: Final[_Rule] = ("an integer", kinds.is_integer)
_TIME: Final[_Rule] = ("a timestamp, or an integer of milliseconds", _is_time)
_RULES: Final[Mapping[str, _Rule]] = {
    "topic": _TEXT,
    "queue_id": _INTEGER,
    "body": ("binary or a string", _is_bytes),
    "tags": _TEXT,
    "keys": ("an array of strings, or a string", _is_keys),
    "unique_key": _TEXT,
    "properties": ("a map of string to string", _is_map),
    "store_time": _TIME,
    "born_time": _TIME,
    "born_host": _TEXT,
    "store_host": _TEXT,
    "flag": _INTEGER,
    "sys_flag": _INTEGER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadDefaults:
    """The replacements of missing columns."""

    topic: str | None = None
    queue_id: int | None = None
    store_time_ms: int = 0


class LoadColumns:
    """The checked columns of one load. Can be pickled."""

    def __init__(self, schema: pa.Schema, defaults: LoadDefaults) -> None:
        _check(schema, defaults)
        self.defaults = defaults
        self.names = frozenset(column.name for column in schema if not _is_nothing(column))

    def topics(self, batch: pa.RecordBatch) -> pa.DictionaryArray:
        given = self._column(batch, "topic", _STRING)
        if given is None:
            given = pa.repeat(pa.scalar(self.defaults.topic, _STRING), len(batch))
        elif self.defaults.topic is not None:
            given = given.fill_null(self.defaults.topic)
        if given.null_count:
            raise LoadRefusedError("column topic: a message has none")
        found = given.dictionary_encode()
        for topic in found.dictionary.to_pylist():
            check_topic(topic)
        return found

    def queue_ids(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        default = self.defaults.queue_id
        return self._numbers(batch, "queue_id", least=0, default=default)

    def bodies(self, batch: pa.RecordBatch) -> pa.Array:
        given = self._column(batch, "body", pa.binary())
        return pa.repeat(pa.scalar(b""), len(batch)) if given is None else given.fill_null(b"")

    def refuse_damaged(self, batch: pa.RecordBatch) -> None:
        """Refuse bodies that a read of a tier marked as damaged: new records would hide that."""
        place = batch.schema.get_field_index(BODY_CRC_OK)
        if place < 0 or not kinds.is_boolean(batch.schema.field(place).type):
            return
        damaged = pc.index(batch.column(place), pa.scalar(False)).as_py()
        if damaged < 0:
            return
        where = ", ".join(
            f"{name} {batch.column(name)[damaged].as_py()}"
            for name in ("topic", "queue_id", "queue_offset")
            if name in batch.schema.names
        )
        raise LoadRefusedError(
            f"column {BODY_CRC_OK}: the body of a message is damaged ({where or 'of no name'}); "
            "leave out the row, or the column to load it as it is"
        )

    def text(self, batch: pa.RecordBatch, name: str) -> pa.Array | None:
        """A column of texts; None if it is missing or all null. Null if a message has no text."""
        given = self._column(batch, name, _STRING)
        return None if given is None or given.null_count == len(given) else given

    def keys(self, batch: pa.RecordBatch) -> pa.Array | None:
        """One text for each message: its keys, separated by blanks."""
        if "keys" not in self.names or _is_text(batch.schema.field("keys").type):
            return self.text(batch, "keys")
        lists = batch.column("keys").cast(pa.list_(_STRING))
        keys = lists.flatten()
        if keys.null_count or (
            _may_hold(keys, " ") and pc.any(pc.match_substring(keys, " ")).as_py()
        ):
            raise LoadRefusedError("column keys: a key is null, or holds a blank, which parts keys")
        return pc.binary_join(lists, " ")

    def properties(self, batch: pa.RecordBatch) -> pa.MapArray | None:
        return self._column(batch, "properties", _MAP)

    def store_times(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        times = self._times(batch, "store_time", self.defaults.store_time_ms)
        wrong = np.flatnonzero((times < 0) | (times > STORE_TIME_MAX))
        if len(wrong):
            raise LoadRefusedError(
                f"column store_time: {times[wrong[0]]} is not within 0 to {STORE_TIME_MAX}, in "
                "milliseconds"
            )
        return times

    def born_times(
        self, batch: pa.RecordBatch, store_times: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        return self._times(batch, "born_time", store_times)

    def flags(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        return self._numbers(batch, "flag", least=-INT32_MAX - 1, default=0)

    def sys_flags(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        flags = self._numbers(batch, "sys_flag", least=-INT32_MAX - 1, default=0)
        # A rolled back message has this bit too.
        if (flags & TRANSACTION_PREPARED).any():
            raise LoadRefusedError("column sys_flag: a prepared message is in no queue")
        return flags & ~HOSTS_IPV6

    def _column(self, batch: pa.RecordBatch, name: str, kind: pa.DataType) -> Any:
        if name not in self.names:
            return None
        given = batch.column(name)
        return given if given.type.equals(kind) else given.cast(kind)

    def _numbers(
        self, batch: pa.RecordBatch, name: str, *, least: int, default: int | None
    ) -> NDArray[np.int64]:
        given = self._column(batch, name, pa.int64())
        if given is None:
            return np.full(len(batch), default, np.int64)
        if given.null_count:
            if default is None:
                raise LoadRefusedError(f"column {name}: a message has none")
            given = given.fill_null(default)
        numbers: NDArray[np.int64] = given.to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero((numbers < least) | (numbers > INT32_MAX))
        if len(wrong):
            first = int(numbers[wrong[0]])
            raise LoadRefusedError(f"column {name}: {first} is not within {least} to {INT32_MAX}")
        return numbers

    def _times(
        self, batch: pa.RecordBatch, name: str, default: NDArray[np.int64] | int
    ) -> NDArray[np.int64]:
        """In milliseconds."""
        if name not in self.names:
            return np.broadcast_to(np.asarray(default, np.int64), len(batch)).copy()
        given = batch.column(name)
        if kinds.is_timestamp(given.type):
            given = given.cast(pa.timestamp("ms", given.type.tz), safe=False)
        times: NDArray[np.int64] = (
            given.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        )
        if given.null_count:
            return np.where(given.is_null().to_numpy(zero_copy_only=False), default, times)
        return times


def _is_nothing(field: pa.Field) -> bool:
    return field.name in IGNORED or bool(kinds.is_null(field.type))


def check_topic(topic: str) -> None:
    """Raise LoadRefusedError for a name that cannot be a topic of a tier."""
    if reason := why_no_topic(topic):
        raise LoadRefusedError(f"column topic: {topic!r:.80} is none: {reason}")
    if topic == INDEX_TOPIC:
        raise LoadRefusedError(f"column topic: {topic} is where the key index lies")


def _check(schema: pa.Schema, defaults: LoadDefaults) -> None:
    """Raise LoadRefusedError for the first thing that is wrong."""
    for column in schema:
        if len(schema.get_all_field_indices(column.name)) > 1:
            raise LoadRefusedError(f"column {column.name}: it is there twice")
        if _is_nothing(column):
            continue
        if column.name not in _RULES:
            near = get_close_matches(column.name, _RULES, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_RULES)}"
            raise LoadRefusedError(f"column {column.name}: a message has no such field; {hint}")
        wanted, is_right = _RULES[column.name]
        if not is_right(column.type):
            raise LoadRefusedError(f"column {column.name}: it is {column.type}, not {wanted}")
    for name in ("topic", "queue_id"):
        is_given = name in schema.names and not _is_nothing(schema.field(name))
        if not is_given and getattr(defaults, name) is None:
            raise LoadRefusedError(f"there is no column {name}: add it, or give it as an option")
    if defaults.topic is not None:
        check_topic(defaults.topic)
    if defaults.queue_id is not None and not 0 <= defaults.queue_id <= INT32_MAX:
        raise LoadRefusedError(f"queue_id: {defaults.queue_id} is not within 0 to {INT32_MAX}")


class PropertyTexts:
    """The property texts of one batch, and the codes of its tags.

    A separate column overrides the map's entry in place; if the map has no such entry, it is added
    after the others. The checksum of a whole record is dropped, because its offsets change.
    """

    def __init__(self, columns: LoadColumns, batch: pa.RecordBatch) -> None:
        self._count = len(batch)
        own = {
            TAGS: columns.text(batch, "tags"),
            KEYS: columns.keys(batch),
            UNIQUE_KEY: columns.text(batch, "unique_key"),
        }
        self._own = {name: values for name, values in own.items() if values is not None}
        for name, values in self._own.items():
            _refuse(values, VALUE_END, f"column {_COLUMNS[name]}")
        self._tags = self._own.get(TAGS)
        given = columns.properties(batch)
        pieces = [] if given is None else [self._of_maps(given)]
        if KEYS in self._own:
            # A read returns an empty list for a message without keys. Unless the map has KEYS to
            # override, do not add an empty entry: readers ignore it, and copies would grow by it.
            keys = self._own[KEYS]
            self._own[KEYS] = pc.if_else(pc.equal(keys, ""), pa.scalar(None, pa.string()), keys)
        for name, values in self._own.items():
            entry = [name + NAME_END, values, VALUE_END]
            if values.null_count:
                entry = [pc.binary_join_element_wise(*entry, _NO_TEXTS).fill_null("")]
            pieces += entry
        self.texts = self._joined(pieces)

    def keys(self, before: NDArray[np.uint64]) -> Iterator[HashedKeys]:
        """The key hashes for an index, some rows at a time. `before` are the hashes of what comes
        before the keys of each row."""
        data, ends = span_bytes(self.texts)
        start = 0
        while start < self._count:
            first = int(ends[start])
            stop = int(np.searchsorted(ends, first + _KEYS_BYTES, side="right")) - 1
            stop = max(start + 1, stop)
            properties = Properties(
                data[first : int(ends[stop])], ends[start + 1 : stop + 1] - first
            )
            yield hashed_keys(properties, before[start:stop])
            start = stop

    def tags_codes(self) -> NDArray[np.int64]:
        """What a consume queue stores for the tags."""
        codes = np.zeros(self._count, np.int64)
        if self._tags is None:
            return codes
        found = self._tags.dictionary_encode()
        hashes = key_hashes(found.dictionary.to_pylist())
        of_text = hashes.astype(np.uint32).view(np.int32).astype(np.int64)
        rows = np.flatnonzero(found.indices.is_valid().to_numpy(zero_copy_only=False))
        codes[rows] = of_text[found.indices.drop_null().to_numpy()]
        return codes

    def _of_maps(self, maps: pa.MapArray) -> pa.Array:
        offsets = maps.offsets.to_numpy().astype(np.int64)
        first, end = int(offsets[0]), int(offsets[-1])
        names, values = maps.keys[first:end], maps.items[first:end]
        rows = np.repeat(np.arange(self._count), np.diff(offsets))
        kept = values.is_valid().to_numpy(zero_copy_only=False)
        kept = kept & maps.is_valid().to_numpy(zero_copy_only=False)[rows]
        kept &= pc.not_equal(names, PROPERTY_CRC_NAME).to_numpy(zero_copy_only=False)
        if not kept.all():
            names, values, rows = names.filter(kept), values.filter(kept), rows[kept]
        _refuse(names, NAME_END, "column properties, a name")
        _refuse(names, VALUE_END, "column properties, a name")
        _refuse(values, VALUE_END, "column properties, a value")
        if pc.any(pc.equal(names, "")).as_py():
            raise LoadRefusedError("column properties: a name is empty")
        for name in _COLUMNS:
            values = self._merged(name, names, values, rows)
        texts = pc.binary_join_element_wise(names, NAME_END, values, VALUE_END, _NO_TEXTS)
        starts = np.searchsorted(rows, np.arange(self._count + 1)).astype(np.int32)
        return pc.binary_join(pa.ListArray.from_arrays(starts, texts), _NO_TEXTS)

    def _merged(
        self, name: str, names: pa.Array, values: pa.Array, rows: NDArray[np.int64]
    ) -> pa.Array:
        """The map values, overridden by those of the column. The column keeps only values whose
        maps have no such entry."""
        here = np.flatnonzero(pc.equal(names, name).to_numpy(zero_copy_only=False))
        own = self._own.get(name)
        if not len(here):
            return values
        owners = rows[here]
        if own is not None:
            given = own.take(pa.array(owners))
            replaced = pc.coalesce(given, values.take(pa.array(here)))
            mask = np.zeros(len(values), np.bool_)
            mask[here] = True
            values = pc.replace_with_mask(values, mask, replaced)
            has = np.zeros(self._count, np.bool_)
            has[owners] = True
            self._own[name] = pc.if_else(pa.array(has), pa.scalar(None, pa.string()), own)
        if name == TAGS:
            places = np.full(self._count, -1, np.int64)
            places[owners] = here
            from_map = values.take(pa.array(places, mask=places < 0))
            self._tags = from_map if own is None else pc.coalesce(from_map, own)
        return values

    def _joined(self, pieces: Sequence[pa.Array]) -> pa.Array:
        if not pieces:
            return pa.repeat(pa.scalar(b""), self._count)
        texts = pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, _NO_TEXTS)
        longest = pc.max(pc.binary_length(texts)).as_py() or 0
        if longest > PROPERTY_BYTES_MAX:
            raise LoadRefusedError(
                f"the properties of a message have {longest} bytes, more than {PROPERTY_BYTES_MAX}"
            )
        return texts.cast(pa.binary())


def _may_hold(texts: pa.Array, mark: str) -> bool:
    """False if no text holds this one-byte character. Scans the bytes of all texts at once."""
    return bool(len(texts)) and bool((span_bytes(texts)[0] == ord(mark)).any())


def _refuse(texts: pa.Array, mark: str, what: str) -> None:
    if not _may_hold(texts, mark):
        return
    found = pc.match_substring(texts, mark)
    if pc.any(found).as_py():
        text = texts.filter(found)[0].as_py()
        raise LoadRefusedError(f"{what}: {text!r:.80} holds 0x{ord(mark):02X}, which parts them")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EncodedRun:
    """Messages of one queue in the order of their rows. Their records are concatenated, and so are
    the hashes of their keys."""

    key: QueueKey
    records: memoryview
    message_bytes: NDArray[np.int64]
    tags_codes: NDArray[np.int64]
    store_times: NDArray[np.int64]
    key_counts: NDArray[np.int64]
    key_hashes: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.message_bytes)

    @property
    def held_bytes(self) -> int:
        return len(self.records) + self.key_hashes.nbytes


def encode_batch(
    batch: pa.RecordBatch, columns: LoadColumns, *, with_keys: bool = True
) -> Iterator[EncodedRun]:
    """One run for each queue of the batch. LoadRefusedError for a row that cannot be a message."""
    if not len(batch):
        return
    if batch.nbytes > BATCH_BYTES_MAX and len(batch) > 1:
        half = len(batch) // 2
        yield from encode_batch(batch.slice(0, half), columns, with_keys=with_keys)
        yield from encode_batch(batch.slice(half), columns, with_keys=with_keys)
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
    encoded = _Encoded(batch, columns, names, places, with_keys=with_keys)
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
        *,
        with_keys: bool,
    ) -> None:
        count = len(batch)
        bodies = columns.bodies(batch)
        properties = PropertyTexts(columns, batch)
        self._tags_codes = properties.tags_codes()
        self._times = columns.store_times(batch)
        fields, magics = _topic_fields(names)
        topic_codes = places >> 32
        topics = fields.take(pa.array(topic_codes))
        self._key_counts = np.zeros(count, np.int64)
        self._key_hashes = np.empty(0, np.uint64)
        if with_keys:
            before = key_hashes([f"{name}#" for name in names])
            found = list(properties.keys(before[topic_codes]))
            self._key_counts = np.concatenate([keys.counts for keys in found])
            self._key_hashes = np.concatenate([keys.hashes for keys in found])
        self._key_ends = np.concatenate(([0], np.cumsum(self._key_counts)))
        born = _Hosts(columns.text(batch, "born_host"), count, "born_host")
        store = _Hosts(columns.text(batch, "store_host"), count, "store_host")
        bits = born.is_ipv6 * np.int64(BORN_HOST_IPV6) + store.is_ipv6 * np.int64(STORE_HOST_IPV6)
        body_bytes, property_bytes = _lengths(bodies), _lengths(properties.texts)
        fixed = FIXED_BYTES + IPV6_BYTES * (born.is_ipv6.astype(np.int64) + store.is_ipv6)
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
            key_counts=self._key_counts[start:end],
            key_hashes=self._key_hashes[self._key_ends[start] : self._key_ends[end]],
        )


def _topic_fields(names: list[str]) -> tuple[pa.Array, NDArray[np.uint32]]:
    """The field of each topic in a record, and the magic number of such a record."""
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
    """The records up to their bodies. Those with the same kinds of addresses are made together."""
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
    size = int(ends[1]) if len(bodies) else 0
    pieces: Iterable[Buffer]
    if 0 < size <= _COPIED_BYTES_MAX and (np.diff(ends) == size).all():
        pieces = data.view(f"V{size}").tolist()
    else:
        spans = map(slice, ends[:-1].tolist(), ends[1:].tolist())
        pieces = map(data.data.__getitem__, spans)
    found = np.fromiter(map(crc32, pieces), np.uint32, len(bodies))
    return (found & INT32_MAX).astype(np.int64)
