"""What a bulk load takes: the columns, their types and what stands in for those that are missing.

What lives here: `LoadColumns`, which checks a schema once and then hands out the columns of batches
in one form each. How they become records is in `load_records`.

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

A null is as good as no column. What a read of a tier gives beside these is passed over: offsets,
sizes and checksums are made anew. But where `body_crc_ok` is false the load is refused: a new
checksum would make a damaged body look sound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from numpy.typing import NDArray

from tieredstore.codec.names import INDEX_TOPIC
from tieredstore.codec.record_fields import HOSTS_IPV6, TRANSACTION_PREPARED
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.topics import why_no_topic
from tieredstore.model.values import INT32_MAX

BODY_CRC_OK: Final = "body_crc_ok"
IGNORED: Final = frozenset({"queue_offset", "log_offset", "size", BODY_CRC_OK})
_STRING: Final = pa.string()
_MAP: Final = pa.map_(pa.string(), pa.string())


class LoadRefusedError(TieredStoreError, ValueError):
    """What is to be loaded cannot be messages; nothing was loaded."""


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _is_integer(kind: pa.DataType) -> bool:
    return bool(kinds.is_integer(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind) or _is_text(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(kinds.is_timestamp(kind) or kinds.is_integer(kind))


def _is_keys(kind: pa.DataType) -> bool:
    is_list = kinds.is_list(kind) or kinds.is_large_list(kind)
    return _is_text(kind) or bool(is_list and _is_text(kind.value_type))


def _is_map(kind: pa.DataType) -> bool:
    return bool(kinds.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type))


_Rule = tuple[str, Callable[[pa.DataType], bool]]
_TEXT: Final[_Rule] = ("a string", _is_text)
_INTEGER: Final[_Rule] = ("an integer", _is_integer)
_TIME: Final[_Rule] = ("a timestamp, or an integer of milliseconds", _is_time)
_RULES: Final[Mapping[str, _Rule]] = MappingProxyType(
    {
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
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadDefaults:
    """What stands in for columns that are missing."""

    topic: str | None = None
    queue_id: int | None = None
    store_time_ms: int = 0


class LoadColumns:
    """The columns of one load, checked; it pickles."""

    def __init__(self, schema: pa.Schema, defaults: LoadDefaults) -> None:
        self.defaults = defaults
        self.names = frozenset(each.name for each in schema if not _is_nothing(each))
        _check(schema, defaults)

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
        """A read of a tier has marked these bodies: their new records would not."""
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
        """None where there is no such column, or nothing in it; null where a message has none."""
        given = self._column(batch, name, _STRING)
        return None if given is None or given.null_count == len(given) else given

    def keys(self, batch: pa.RecordBatch) -> pa.Array | None:
        """As one text for each message: the keys with a blank between them."""
        if "keys" not in self.names or _is_text(batch.schema.field("keys").type):
            return self.text(batch, "keys")
        lists = batch.column("keys").cast(pa.list_(_STRING))
        each = lists.flatten()
        if each.null_count or pc.any(pc.match_substring(each, " ")).as_py():
            raise LoadRefusedError("column keys: a key is null, or holds a blank, which parts keys")
        return pc.binary_join(lists, " ")

    def properties(self, batch: pa.RecordBatch) -> pa.MapArray | None:
        return self._column(batch, "properties", _MAP)

    def store_times(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        return self._times(batch, "store_time", self.defaults.store_time_ms)

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
    """LoadRefusedError for what can be no topic of a tier."""
    if reason := why_no_topic(topic):
        raise LoadRefusedError(f"column topic: {topic!r:.80} is none: {reason}")
    if topic == INDEX_TOPIC:
        raise LoadRefusedError(f"column topic: {topic} is where the key index lies")


def _check(schema: pa.Schema, defaults: LoadDefaults) -> None:
    """One line for the first thing that is wrong."""
    for field in schema:
        if _is_nothing(field):
            continue
        if field.name not in _RULES:
            near = get_close_matches(field.name, _RULES, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_RULES)}"
            raise LoadRefusedError(f"column {field.name}: a message has no such field; {hint}")
        wanted, is_right = _RULES[field.name]
        if not is_right(field.type):
            raise LoadRefusedError(f"column {field.name}: it is {field.type}, not {wanted}")
    for name in ("topic", "queue_id"):
        is_given = name in schema.names and not _is_nothing(schema.field(name))
        if not is_given and getattr(defaults, name) is None:
            raise LoadRefusedError(f"there is no column {name}: add it, or give it as an option")
    if defaults.topic is not None:
        check_topic(defaults.topic)
    if defaults.queue_id is not None and not 0 <= defaults.queue_id <= INT32_MAX:
        raise LoadRefusedError(f"queue_id: {defaults.queue_id} is not within 0 to {INT32_MAX}")
