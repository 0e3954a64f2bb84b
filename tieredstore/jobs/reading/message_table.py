"""Messages as Arrow batches: the columns, and runs of a queue made into them.

What lives here: `MESSAGE_COLUMNS` and `MessageTable`. Only the columns asked for are made, each for
all messages of a run together.

    | column       | type                | what                                                   |
    | ------------ | ------------------- | ------------------------------------------------------ |
    | topic        | string              | of the queue                                           |
    | queue_id     | int32               |                                                        |
    | queue_offset | int64               | number of the message in its queue                     |
    | log_offset   | int64               | byte in the queue's commit log in the tier             |
    | store_time   | timestamp[us, UTC]  | null outside of the years 1 to 9999                    |
    | born_time    | timestamp[us, UTC]  | likewise                                               |
    | born_host    | string              | 10.0.0.1:4711 or [2001:db8::1]:4711                    |
    | store_host   | string              | likewise                                               |
    | flag         | int32               | the sender's own                                       |
    | sys_flag     | int32               |                                                        |
    | tags         | string              | null without                                           |
    | keys         | list of string      | of the property KEYS, split at blanks; empty without   |
    | unique_key   | string              | null without                                           |
    | properties   | map string → string |                                                        |
    | body         | binary              | as stored: compressed where sys_flag says so           |
    | body_crc_ok  | bool                | computed for each message, and only when asked for     |
    | size         | int32               | bytes of the whole record                              |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tieredstore.jobs.reading.arrow_spans import cut_spans
from tieredstore.jobs.reading.host_column import host_column
from tieredstore.jobs.reading.property_columns import KEYS_TYPE, MAP_TYPE, PropertyColumns
from tieredstore.jobs.reading.record_fields import RecordFields
from tieredstore.model.values import QueueKey

TIME_TYPE: Final = pa.timestamp("us", tz="UTC")
MESSAGE_COLUMNS: Final[Mapping[str, pa.DataType]] = MappingProxyType(
    {
        "topic": pa.string(),
        "queue_id": pa.int32(),
        "queue_offset": pa.int64(),
        "log_offset": pa.int64(),
        "store_time": TIME_TYPE,
        "born_time": TIME_TYPE,
        "born_host": pa.string(),
        "store_host": pa.string(),
        "flag": pa.int32(),
        "sys_flag": pa.int32(),
        "tags": pa.string(),
        "keys": KEYS_TYPE,
        "unique_key": pa.string(),
        "properties": MAP_TYPE,
        "body": pa.binary(),
        "body_crc_ok": pa.bool_(),
        "size": pa.int32(),
    }
)

_TIME_MIN_MS: Final = -62_135_596_800_000  # year 1
_TIME_MAX_MS: Final = 253_402_300_799_999  # year 9999


class MessageTable:
    """The columns that are asked for, and how a run of messages becomes a batch of them."""

    def __init__(self, columns: Sequence[str] = tuple(MESSAGE_COLUMNS)) -> None:
        unknown = [name for name in columns if name not in MESSAGE_COLUMNS]
        if unknown:
            raise ValueError(f"columns: {unknown[0]!r} is none of {', '.join(MESSAGE_COLUMNS)}")
        self.columns = tuple(columns)
        self.schema = pa.schema([pa.field(name, MESSAGE_COLUMNS[name]) for name in self.columns])

    def batch(
        self, key: QueueKey, fields: RecordFields, rows: NDArray[np.int64] | None = None
    ) -> pa.RecordBatch:
        """These rows of a run of the queue, ascending; without `rows` all that are sound."""
        chosen = np.flatnonzero(fields.sound) if rows is None else rows
        made = _Columns(key, fields, chosen)
        return pa.RecordBatch.from_arrays(
            [_MAKERS[name](made) for name in self.columns], schema=self.schema
        )


class _Columns:
    """One batch being made: what several columns share is found once."""

    def __init__(self, key: QueueKey, fields: RecordFields, rows: NDArray[np.int64]) -> None:
        self.key = key
        self.fields = fields
        self.count = len(rows)
        self.rows = rows
        self._properties: PropertyColumns | None = None

    def numbers(self, values: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
        chosen = values if len(values) == self.count else values[self.rows]
        return pa.array(chosen.astype(kind.to_pandas_dtype(), copy=False), kind)

    def times(self, values: NDArray[np.int64]) -> pa.Array:
        chosen = values if len(values) == self.count else values[self.rows]
        wrong = (chosen < _TIME_MIN_MS) | (chosen > _TIME_MAX_MS)
        if not wrong.any():
            return pa.array(chosen * 1000, pa.int64()).view(TIME_TYPE)
        micros = np.where(wrong, 0, chosen) * 1000
        return pa.array(micros, pa.int64(), mask=wrong).cast(TIME_TYPE)

    def hosts(self, found: tuple[NDArray[np.int64], NDArray[np.bool_]]) -> pa.Array:
        starts, ipv6 = found
        return host_column(self.fields, starts[self.rows], ipv6[self.rows])

    def bodies(self) -> pa.Array:
        fields, rows = self.fields, self.rows
        return cut_spans(
            fields.records, fields.body_starts[rows], fields.body_bytes[rows], pa.binary()
        )

    @property
    def properties(self) -> PropertyColumns:
        found = self._properties
        if found is None:
            fields, rows = self.fields, self.rows
            texts = cut_spans(
                *(fields.records, fields.property_starts[rows], fields.property_bytes[rows]),
                pa.binary(),
            )
            found = self._properties = PropertyColumns(texts)
        return found


_MAKERS: Final[Mapping[str, Callable[[_Columns], pa.Array]]] = {
    "topic": lambda made: pa.repeat(pa.scalar(made.key.topic, pa.string()), made.count),
    "queue_id": lambda made: pa.repeat(pa.scalar(made.key.queue_id, pa.int32()), made.count),
    "queue_offset": lambda made: made.numbers(made.fields.queue_offsets, pa.int64()),
    "log_offset": lambda made: made.numbers(made.fields.run.log_offsets, pa.int64()),
    "store_time": lambda made: made.times(made.fields.store_times()),
    "born_time": lambda made: made.times(made.fields.born_times()),
    "born_host": lambda made: made.hosts(made.fields.born_hosts()),
    "store_host": lambda made: made.hosts(made.fields.store_hosts()),
    "flag": lambda made: made.numbers(made.fields.flags(), pa.int32()),
    "sys_flag": lambda made: made.numbers(made.fields.sys_flags, pa.int32()),
    "tags": lambda made: made.properties.tags(),
    "keys": lambda made: made.properties.keys(),
    "unique_key": lambda made: made.properties.unique_keys(),
    "properties": lambda made: made.properties.maps(),
    "body": lambda made: made.bodies(),
    "body_crc_ok": lambda made: pa.array(made.fields.body_crc_ok(made.rows)),
    "size": lambda made: made.numbers(made.fields.sizes(), pa.int32()),
}
