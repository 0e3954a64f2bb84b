"""The keys of many messages: which message has which, as columns.

What lives here: `key_pairs`. What the keys of one message are is told in `codec.properties`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tieredstore.jobs.reading.arrow_spans import cut_spans
from tieredstore.jobs.reading.property_columns import PropertyColumns
from tieredstore.jobs.reading.record_fields import RecordFields
from tieredstore.jobs.reading.selection import Selection


@dataclass(frozen=True, slots=True, eq=False)
class KeyPairs:
    """Pair i: the message in row `rows[i]` has the key `keys[i]`, null where it has none at all.

    Rows ascend; a message has each of its keys once.
    """

    rows: NDArray[np.int64]
    keys: pa.Array

    def of(self, rows: NDArray[np.int64]) -> KeyPairs:
        """The pairs of these rows, which are neighbours in the run and ascend."""
        first = int(np.searchsorted(self.rows, rows[0]))
        end = int(np.searchsorted(self.rows, rows[-1], side="right"))
        return KeyPairs(self.rows[first:end], self.keys.slice(first, end - first))

    def distinct_rows(self) -> NDArray[np.int64]:
        return np.unique(self.rows)


def key_pairs(fields: RecordFields, rows: NDArray[np.int64], selection: Selection) -> KeyPairs:
    """UNIQ_KEY and each of KEYS of these rows, as far as they are wanted.

    With keys to choose by, only pairs with one of them; else also one pair without a key for each
    message that has none.
    """
    texts = cut_spans(
        fields.records, fields.property_starts[rows], fields.property_bytes[rows], pa.binary()
    )
    properties = PropertyColumns(texts)
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
    if len(owners) > 1:
        owners, keys = _each_once(owners, keys)
    return KeyPairs(rows[owners], keys)


def _are_in(values: pa.Array, wanted: frozenset[str]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.is_in(
        values, value_set=pa.array(sorted(wanted), pa.string()), skip_nulls=True
    ).to_numpy(zero_copy_only=False)
    return found


def _each_once(owners: NDArray[np.int64], keys: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    codes = keys.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    pairs = owners * (len(keys) + 1) + codes
    _, first = np.unique(pairs, return_index=True)
    if len(first) == len(owners):
        return owners, keys
    first.sort()
    return owners[first], keys.take(pa.array(first))
