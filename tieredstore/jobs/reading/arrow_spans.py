"""Arrow arrays cut out of one buffer, without a Python object for a value.

What lives here: `cut_spans`. The buffer becomes an array whose every second value is wanted and
the others what lies in between; Arrow copies the wanted ones out, as fast as memory is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tieredstore.model.values import INT32_MAX


def cut_spans(
    data: Any, starts: NDArray[np.int64], sizes: NDArray[np.int64], kind: pa.DataType
) -> pa.Array:
    """`data[start : start + size]` of each row as an array of `kind`: binary or string.

    The spans lie within the data, all of which is shorter than 2 GiB. That texts are UTF-8 is for
    the caller to know.
    """
    count = len(starts)
    if not count:
        return pa.array([], kind)
    ends = starts + sizes
    if (starts[1:] < ends[:-1]).any():  # never, but for damage: then each is copied for itself
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
    """The bytes of all values of a binary array one behind the other, and where each ends.

    The second has one entry more than there are values, the first of them 0.
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


@lru_cache(maxsize=8)
def _counted(count: int) -> pa.Array:
    return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))


def _every_second(count: int) -> pa.Array:
    """0, 2, 4 and so on; from one long array, since runs are of any length."""
    return _counted(1 << (count - 1).bit_length()).slice(0, count)
