"""The properties of many messages as Arrow columns: tags, keys, unique key, and all of them.

What lives here: `PropertyColumns`. It gives what `codec.properties` gives for one message: an
entry counts if its name and its value are not empty, the last of equal names wins, what is no
UTF-8 is replaced as Java does.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tieredstore.codec.java import decode_utf8
from tieredstore.codec.properties import KEYS, TAGS, UNIQUE_KEY
from tieredstore.jobs.reading.arrow_spans import cut_spans, span_bytes

_NAME_END: Final = 1
_VALUE_END: Final = 2
_SPACE: Final = 32
_NAMES_IN_A_WORD: Final = 48  # a message has fewer than 2^13 entries: their bits add up in a word
MAP_TYPE: Final = pa.map_(pa.string(), pa.string())
KEYS_TYPE: Final = pa.list_(pa.field("element", pa.string()))  # named as Spark names it


class PropertyColumns:
    """The property texts of some messages, taken apart together.

    `texts` is a binary array with one value for each message; columns have as many rows.
    """

    def __init__(self, texts: pa.Array) -> None:
        self._count = len(texts)
        data, ends = span_bytes(texts)
        if not _is_utf8(data, ends):
            data, ends = span_bytes(_replaced_like_java(texts))
        self._data: NDArray[np.uint8] = data
        self._row_ends = ends
        self._find_entries()

    def _find_entries(self) -> None:
        """Row, name and value of each entry that counts, in the order of the texts."""
        data, row_ends = self._data, self._row_ends
        ends = row_ends[1:][row_ends[1:] > row_ends[:-1]]
        # A text may lack its last separator: then it ends where the row does.
        starts, stops = _pieces(
            np.flatnonzero(data == _VALUE_END),
            ends[data[ends - 1] != _VALUE_END] if len(ends) else ends,
        )
        marks = np.flatnonzero(data == _NAME_END)
        if len(marks) == len(stops) and bool(((marks > starts) & (marks < stops - 1)).all()):
            self._starts, self._marks, self._stops = starts, marks, stops
        else:
            padded = np.append(marks, len(data) + 1)
            first = padded[np.searchsorted(marks, starts)]
            counts = (first > starts) & (first < stops - 1)
            self._starts, self._stops = starts[counts], stops[counts]
            self._marks = first[counts]
        self._rows: NDArray[np.int64] = (
            np.searchsorted(row_ends, self._starts, side="right").astype(np.int64) - 1
        )

    # Columns

    def tags(self) -> pa.Array:
        return self._values_of(TAGS)

    def unique_keys(self) -> pa.Array:
        return self._values_of(UNIQUE_KEY)

    def keys(self) -> pa.Array:
        """The single keys: only U+0020 separates, empty pieces are dropped, doubles stay."""
        rows, starts, stops = self._found(KEYS)
        values = cut_spans(self._data, starts, stops - starts, pa.binary())
        data, ends = span_bytes(values)
        behind = ends[1:]
        starts, stops = _pieces(np.flatnonzero(data == _SPACE), behind)
        whole = stops > starts
        starts, stops = starts[whole], stops[whole]
        pieces = cut_spans(data, starts, stops - starts, pa.string())
        owners = rows[np.searchsorted(behind, starts, side="right")]
        return _lists(owners, self._count, pieces)

    def maps(self) -> pa.Array:
        """All properties, each name once."""
        names = self._names
        values = cut_spans(self._data, self._marks + 1, self._stops - self._marks - 1, pa.string())
        kept = self._last_of_each()
        rows = self._rows
        if kept is not None:
            taken = pa.array(kept)
            names, values, rows = names.take(taken), values.take(taken), rows[kept]
        offsets = _list_offsets(rows, self._count)
        return pa.MapArray.from_arrays(pa.array(offsets), names, values)

    @cached_property
    def _names(self) -> pa.Array:
        return cut_spans(self._data, self._starts, self._marks - self._starts, pa.string())

    def _values_of(self, name: str) -> pa.Array:
        rows, starts, stops = self._found(name)
        values = cut_spans(self._data, starts, stops - starts, pa.string())
        if len(rows) == self._count:
            return values
        places = np.full(self._count, -1, np.int64)
        places[rows] = np.arange(len(rows))
        return values.take(pa.array(places, mask=places < 0))

    def _found(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The messages that have this property, by row, and where its value begins and ends."""
        wanted = name.encode()
        entries = np.flatnonzero(self._marks - self._starts == len(wanted))
        for place, byte in enumerate(wanted):
            if not len(entries):
                break
            entries = entries[self._data[self._starts[entries] + place] == byte]
        rows = self._rows[entries]
        if len(rows) > 1 and bool((rows[1:] == rows[:-1]).any()):
            last = np.append(rows[1:] != rows[:-1], True)
            entries, rows = entries[last], rows[last]
        return rows, self._marks[entries] + 1, self._stops[entries]

    def _last_of_each(self) -> NDArray[np.int64] | None:
        """The entries that count where a message has a name twice; None where none has."""
        encoded = self._names.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        distinct = len(encoded.dictionary)
        if not len(codes):
            return None
        if distinct <= _NAMES_IN_A_WORD:
            bits = np.left_shift(1, codes)
            first = np.flatnonzero(np.append(True, self._rows[1:] != self._rows[:-1]))
            if bool((np.add.reduceat(bits, first) == np.bitwise_or.reduceat(bits, first)).all()):
                return None
        pairs = self._rows * distinct + codes
        _, backwards = np.unique(pairs[::-1], return_index=True)
        if len(backwards) == len(pairs):
            return None
        kept: NDArray[np.int64] = np.sort(len(pairs) - 1 - backwards)
        return kept


def _pieces(
    separators: NDArray[np.int64], borders: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where pieces begin and end that separators end, one byte each, or borders of no byte."""
    if not len(borders):
        stops = separators
        widths: Any = 1
    else:
        both = np.concatenate((borders, separators))
        order = np.argsort(both, kind="stable")  # a border comes before what lies behind it
        stops = both[order]
        widths = (order >= len(borders))[:-1]
    starts = np.zeros_like(stops)
    starts[1:] = stops[:-1] + widths
    return starts, stops


def _lists(rows: NDArray[np.int64], count: int, values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(_list_offsets(rows, count)), values, type=KEYS_TYPE)


def _list_offsets(rows: NDArray[np.int64], count: int) -> NDArray[np.int32]:
    """Where the values of each row begin and end, from the ascending rows that values belong to."""
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
    return offsets


def _is_utf8(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> bool:
    """Whether each of the texts is UTF-8."""
    if not len(data) or int(data.max()) < 0x80:
        return True
    heads = ends[:-1][ends[:-1] < len(data)]
    if bool(((data[heads] & 0xC0) == 0x80).any()):  # a text does not begin in a character's middle
        return False
    raw: Any = data.tobytes()
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _replaced_like_java(texts: pa.Array) -> pa.Array:
    return pa.array([decode_utf8(text).encode() for text in texts.to_pylist()], pa.binary())
