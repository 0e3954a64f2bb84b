"""The keys in the property texts of many messages, found in all of them at once.

What lives here: `keys_of_texts`. The texts are laid side by side and looked through as one: each
entry of each of them, and each key in a value. Only the keys themselves become texts of Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.java import decode_utf8
from tieredstore.codec.properties import KEYS, NAME_END, UNIQUE_KEY, VALUE_END
from tieredstore.index.key_hashes import Hashes, key_hashes

_ENTRY_END: Final = VALUE_END.encode()
_KEY_END: Final = b" "
_PADDING: Final = bytes(16)  # behind the last entry, where a name is looked for
_UNIQUE_MARK: Final = f"{UNIQUE_KEY}{NAME_END}".encode()
_KEYS_MARK: Final = f"{KEYS}{NAME_END}".encode()

_Spans = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Rows, in order; where a piece of each begins; where it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedKeys:
    """The keys of messages, those of the first one first, and how many each message has.

    `gaps` are the messages in whose KEYS a space begins, ends, or follows another one.
    """

    hashes: Hashes
    counts: NDArray[np.int64]
    gaps: NDArray[np.int64]


def keys_of_texts(texts: Sequence[bytes | bytearray], *, prefix: str) -> HashedKeys:
    """UNIQ_KEY and each of KEYS, each once for each text, hashed with `prefix` before it."""
    data = _ENTRY_END.join([*texts, _PADDING])
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    row_ends = np.cumsum(lengths + 1)
    units = np.frombuffer(data, np.uint8)
    entries = _entries(units, int(row_ends[-1]) if len(texts) else 0)
    unique = _values(data, entries, _UNIQUE_MARK, row_ends)
    keys, gaps = _pieces(units, _values(data, entries, _KEYS_MARK, row_ends))
    rows, starts, ends = _together(unique, keys)
    names = _texts(data, starts, ends)
    hashes = key_hashes(names, prefix=prefix)
    counts = np.bincount(rows, minlength=len(texts))
    again = _said_again(names, hashes, counts)
    if again:
        hashes = np.delete(hashes, again)
        counts = counts - np.bincount(rows[again], minlength=len(texts))
    return HashedKeys(hashes=hashes, counts=counts, gaps=gaps)


def _entries(units: NDArray[np.uint8], end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each entry of each text begins and ends; there are empty ones among them."""
    ends = np.flatnonzero(units[:end] == _ENTRY_END[0])
    starts = np.empty_like(ends)
    starts[:1] = 0
    np.add(ends[:-1], 1, out=starts[1:])
    return starts, ends


def _values(
    data: bytes,
    entries: tuple[NDArray[np.int64], NDArray[np.int64]],
    mark: bytes,
    row_ends: NDArray[np.int64],
) -> _Spans:
    """The value under a name in each text that has one: the last of those that are not empty."""
    starts, ends = entries
    width = len(mark)
    windows: NDArray[Any] = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    found = np.flatnonzero(ends - starts > width)
    found = found[windows[starts[found]].view(np.uint8).reshape(-1, width)[:, -1] == mark[-1]]
    named = windows[starts[found]].view(np.uint8).reshape(-1, width)
    found = found[(named == np.frombuffer(mark, np.uint8)).all(axis=1)]
    rows = np.searchsorted(row_ends, starts[found], side="right")
    last = np.ones(len(rows), np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=last[:-1])
    found = found[last]
    return rows[last], starts[found] + width, ends[found]


def _pieces(units: NDArray[np.uint8], values: _Spans) -> tuple[_Spans, NDArray[np.int64]]:
    """The single keys of each value, which only a space parts; and the rows where one is empty,
    which is none."""
    rows, starts, ends = values
    spaces = np.flatnonzero(units == _KEY_END[0])
    if not len(rows) or not len(spaces):
        return values, rows[:0]
    owners = np.searchsorted(starts, spaces, side="right") - 1
    inside = (owners >= 0) & (spaces < ends[owners])
    spaces, owners = spaces[inside], owners[inside]
    counts = np.bincount(owners, minlength=len(rows)) + 1
    behind = np.cumsum(counts)
    is_first = np.zeros(int(behind[-1]), np.bool_)
    is_first[behind - counts] = True
    is_last = np.zeros(len(is_first), np.bool_)
    is_last[behind - 1] = True
    firsts, lasts = np.empty(len(is_first), np.int64), np.empty(len(is_first), np.int64)
    firsts[is_first], firsts[~is_first] = starts, spaces + 1
    lasts[is_last], lasts[~is_last] = ends, spaces
    held, rows = lasts > firsts, np.repeat(rows, counts)
    return (rows[held], firsts[held], lasts[held]), np.unique(rows[~held])


def _together(first: _Spans, second: _Spans) -> _Spans:
    """Both in the order of the rows, and of one row the first before the second."""
    rows, starts, ends = (np.concatenate(both) for both in zip(first, second, strict=True))
    order = np.argsort(rows, kind="stable")
    return rows[order], starts[order], ends[order]


def _texts(data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[str]:
    places = zip(starts.tolist(), ends.tolist(), strict=True)
    if data.isascii():
        text = data.decode("ascii")
        return [text[start:end] for start, end in places]
    return [decode_utf8(data[start:end]) for start, end in places]


def _said_again(names: Sequence[str], hashes: Hashes, counts: NDArray[np.int64]) -> list[int]:
    """The keys that stand a second time in one message. Hashes alone do not tell."""
    starts = np.cumsum(counts) - counts
    pairs = np.flatnonzero(counts == 2)
    pairs = pairs[hashes[starts[pairs]] == hashes[starts[pairs] + 1]]
    again: list[int] = []
    for row in [*pairs.tolist(), *np.flatnonzero(counts > 2).tolist()]:
        start = int(starts[row])
        held = names[start : start + int(counts[row])]
        if len(set(held)) == len(held):
            continue
        seen: set[str] = set()
        for at, name in enumerate(held, start):
            if name in seen:
                again.append(at)
            seen.add(name)
    return again
