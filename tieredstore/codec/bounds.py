"""The checks that all codecs share: is there enough to read, does a value fit.

What lives here: `Buffer`, the length check of decoders, and the errors of encoders. No format.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Sequence
from struct import Struct, error, pack
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import INT64_MAX

Buffer: TypeAlias = bytes | bytearray | memoryview
"""What decoders accept; a memoryview must be one of single bytes."""

INT64_MIN: Final = -INT64_MAX - 1

_FIELD = re.compile(r"\d*[a-zA-Z]")
_WIDTHS: Final = {
    "b": "a signed byte",
    "h": "16 signed bits",
    "i": "32 signed bits",
    "I": "32 unsigned bits",
    "q": "64 signed bits",
}


def require(data: Buffer, *, position: int, size: int, path: str, what: str) -> None:
    """Raise SegmentCorruptError unless `size` bytes can be read from `position` on."""
    if position < 0 or size < 0 or position + size > len(data):
        held = max(0, len(data) - max(0, position))
        raise SegmentCorruptError(
            path, f"{what} needs {size} bytes, but there are {held}", position=position
        )


def require_multiple(data: Buffer, *, size: int, path: str, what: str) -> None:
    """Raise SegmentCorruptError unless the data are whole entries of `size` bytes."""
    rest = len(data) % size
    if rest:
        raise SegmentCorruptError(
            path, f"{what}: {rest} bytes are left over", position=len(data) - rest
        )


def pack_fields(layout: Struct, names: Sequence[str], *values: Any) -> bytes:
    """Pack the values; one that does not fit raises a ValueError with the name of its field."""
    try:
        return layout.pack(*values)
    except error:
        raise misfit(layout, names, values) from None


def misfit(layout: Struct, names: Sequence[str], values: Sequence[Any]) -> ValueError:
    """The ValueError for the first value that the layout refuses."""
    for kind, name, value in zip(_FIELD.findall(layout.format), names, values, strict=True):
        try:
            pack(">" + kind, value)
        except error:
            # Python refuses to print numbers of thousands of digits.
            vast = isinstance(value, int) and value.bit_length() > 128
            shown = "a vast number" if vast else reprlib.repr(value)
            return ValueError(f"{name}: {shown} does not fit {_WIDTHS.get(kind, kind)}")
    return ValueError("the values do not fit")


def column(name: str, values: ArrayLike, *, bits: int = 64) -> NDArray[np.int64]:
    """The values as one column of int64; ValueError if one is not a whole number of `bits` bits."""
    try:
        array = np.asarray(values)
    except OverflowError:
        raise ValueError(f"{name}: a value does not fit 64 signed bits") from None
    if array.ndim != 1:
        raise ValueError(f"{name}: one dimension is needed, not {array.ndim}")
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name}: whole numbers of at most 64 signed bits are needed")
    top = 1 << (bits - 1)
    if int(array.max()) >= top or int(array.min()) < -top:
        raise ValueError(f"{name}: a value does not fit {bits} signed bits")
    return array.astype(np.int64, copy=False)


def view_entries(
    data: Buffer, layout: np.dtype[Any], *, position: int, count: int, path: str, what: str
) -> NDArray[Any]:
    """A read-only view of `count` entries, without a copy."""
    require(data, position=position, size=count * layout.itemsize, path=path, what=what)
    if count == 0:
        return np.empty(0, layout)
    view: NDArray[Any] = np.frombuffer(data, layout, count=count, offset=position)
    view.flags.writeable = False
    return view


def encode_entries(layout: np.dtype[np.void], **columns: tuple[ArrayLike, int]) -> bytes:
    """Entries packed from columns given as (values, bits); all must be of one length."""
    checked = {name: column(name, values, bits=bits) for name, (values, bits) in columns.items()}
    counts = {len(values) for values in checked.values()}
    if len(counts) != 1:
        raise ValueError(f"columns of different lengths: {sorted(counts)}")
    entries = np.zeros(counts.pop(), layout)
    for name, values in checked.items():
        entries[name] = values
    return entries.tobytes()
