"""Many records parsed at once into columns: fields, properties and keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.checks import Buffer, bodies_match, crc32, matches_property_crc
from tieredstore.codec.java import decode_utf8
from tieredstore.codec.key_hashes import Hashes, key_hashes
from tieredstore.codec.record import (
    BORN_HOST_IPV6,
    BORN_TIMESTAMP_POSITION,
    HOSTS_IPV6,
    KEYS,
    MAGIC_POSITION,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    NAME_END,
    STORE_HOST_IPV6,
    SYS_FLAG_POSITION,
    UNIQUE_KEY,
    VALUE_END,
    decode_properties,
)
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import INT32_MAX


class Words:
    """Big-endian numbers gathered from any place of a buffer."""

    def __init__(self, data: Buffer) -> None:
        self._data = data

    def int8(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._gather(">i1", 1, at)

    def int16(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._gather(">i2", 2, at)

    def int32(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._gather(">i4", 4, at)

    def int64(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._gather(">i8", 8, at)

    def _gather(self, layout: str, width: int, at: NDArray[np.int64]) -> NDArray[np.int64]:
        # Overlapping entries, one for each byte: numpy then reads words that are not aligned.
        count = max(0, len(self._data) - width + 1)
        every: NDArray[Any] = np.ndarray((count,), layout, self._data, strides=(1,))
        return every[at].astype(np.int64)


class WordsWithin(Words):
    """The same; any number where the place is not within the bytes."""

    def _gather(self, layout: str, width: int, at: NDArray[np.int64]) -> NDArray[np.int64]:
        count = len(self._data) - width + 1
        if count <= 0:
            return np.zeros(len(at), np.int64)
        return super()._gather(layout, width, np.clip(at, 0, count - 1))


FIXED_BYTES: Final = 88
IPV6_BYTES: Final = 12  # so much longer is an address of IPv6
BORN_HOST_POSITION: Final = 48

_V1: Final = MESSAGE_MAGIC_V1 - (1 << 32)
_V2: Final = MESSAGE_MAGIC_V2 - (1 << 32)


class RecordFields(WordsWithin):
    """The records of a run, and where in its bytes their parts of any length are.

    * `sound` says of each row whether its lengths add up to the record, and nothing in a row that
      is not sound counts. Nothing is read beyond a record, whatever it says.
    * Checksums are not looked at, but by `body_crc_ok` and `leave_out_damaged_bodies`.
    """

    def __init__(self, run: MessageRun) -> None:
        super().__init__(run.records)
        self.run = run
        self.records = run.records
        self.starts: NDArray[np.int64] = run.starts.astype(np.int64, copy=False)
        self.ends = self.starts + run.message_bytes
        self.queue_offsets: NDArray[np.int64] = np.arange(run.first_offset, run.end_offset)
        self._find()

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def is_sound(self) -> bool:
        return bool(self.sound.all())

    def _find(self) -> None:
        inside = (self.starts >= 0) & (self.ends <= len(self.records))
        inside &= self.ends - self.starts > FIXED_BYTES
        if not inside.all():
            self.starts = np.where(inside, self.starts, 0)
            self.ends = np.where(inside, self.ends, 0)
        starts, ends = self.starts, self.ends
        self.sys_flags = self.int32(starts + SYS_FLAG_POSITION)
        self.born_ipv6: NDArray[np.int64] | None = None  # extra bytes of each; None: of none
        fixed: Any = FIXED_BYTES
        self._store_extra: Any = 0
        if (self.sys_flags & HOSTS_IPV6).any():
            self.born_ipv6 = np.where(self.sys_flags & BORN_HOST_IPV6, IPV6_BYTES, 0)
            self._store_extra = np.where(self.sys_flags & STORE_HOST_IPV6, IPV6_BYTES, 0)
            fixed = FIXED_BYTES + self.born_ipv6 + self._store_extra
        magics = self.int32(starts + MAGIC_POSITION)
        wide = magics == _V2
        self.sound: NDArray[np.bool_] = inside & (wide | (magics == _V1))
        self.body_starts = starts + fixed
        self.body_bytes = self.int32(self.body_starts - 4)
        topic_at = self.body_starts + self.body_bytes
        self.sound &= (self.body_bytes >= 0) & (topic_at + 1 <= ends)
        topic_bytes = self.int8(topic_at)
        if wide.any():
            topic_bytes = np.where(wide, self.int16(topic_at), topic_bytes)
        topic_ends = topic_at + 1 + wide + topic_bytes
        self.sound &= (topic_bytes >= 0) & (topic_ends + 2 <= ends)
        self.property_bytes = self.int16(topic_ends)
        self.property_starts = topic_ends + 2
        self.sound &= (self.property_bytes >= 0) & (
            self.property_starts + self.property_bytes == ends
        )

    # Columns of numbers

    def sizes(self) -> NDArray[np.int64]:
        return self.ends - self.starts

    def store_times(self) -> NDArray[np.int64]:
        born = 0 if self.born_ipv6 is None else self.born_ipv6
        return self.int64(self.starts + (BORN_HOST_POSITION + 8) + born)

    def born_times(self) -> NDArray[np.int64]:
        return self.int64(self.starts + BORN_TIMESTAMP_POSITION)

    def body_crcs(self) -> NDArray[np.int64]:
        return self.int32(self.starts + 8)

    def flags(self) -> NDArray[np.int64]:
        return self.int32(self.starts + 16)

    def born_hosts(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where the address begins, and whether it is one of IPv6."""
        return self.starts + BORN_HOST_POSITION, (self.sys_flags & BORN_HOST_IPV6) != 0

    def store_hosts(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        born = 0 if self.born_ipv6 is None else self.born_ipv6
        at = self.starts + (BORN_HOST_POSITION + 16) + born
        return at, (self.sys_flags & STORE_HOST_IPV6) != 0

    def body_crc_ok(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the bodies have the checksum that their records say. One call for each."""
        starts, sizes = self.body_starts[rows], self.body_bytes[rows]
        return bodies_match(self.records, starts, sizes, self.body_crcs()[rows])

    def leave_out_damaged_bodies(self) -> NDArray[np.int64]:
        """The rows that were sound but for their bodies; they are so no more."""
        rows = np.flatnonzero(self.sound)
        damaged: NDArray[np.int64] = rows[~self.body_crc_ok(rows)]
        self.sound[damaged] = False
        return damaged


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordColumns:
    """Row i is one sound record: `data[positions[i] : positions[i] + sizes[i]]`.

    The numbers are copies; `data` is a view and keeps the file mapped while it is held.
    """

    data: memoryview
    base_offset: int
    path: str
    positions: NDArray[np.int64]
    sizes: NDArray[np.int64]
    queue_ids: NDArray[np.int64]
    queue_offsets: NDArray[np.int64]
    sys_flags: NDArray[np.int64]
    store_timestamps: NDArray[np.int64]
    topic_starts: NDArray[np.int64]
    topic_bytes: NDArray[np.int64]
    property_starts: NDArray[np.int64]
    property_bytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def log_offsets(self) -> NDArray[np.int64]:
        return self.positions + self.base_offset

    def record(self, row: int) -> bytes:
        start = int(self.positions[row])
        return bytes(self.data[start : start + int(self.sizes[row])])

    def topic(self, row: int) -> str:
        start = int(self.topic_starts[row])
        return decode_utf8(self.data[start : start + int(self.topic_bytes[row])])

    def topics(self) -> list[str]:
        """All topics; one text for all rows that have it."""
        known: dict[bytes, str] = {}
        texts = []
        ends = self.topic_starts + self.topic_bytes
        for start, end in zip(self.topic_starts.tolist(), ends.tolist(), strict=True):
            raw = bytes(self.data[start:end])
            text = known.get(raw)
            if text is None:
                text = known[raw] = decode_utf8(raw)
            texts.append(text)
        return texts

    def raw_properties(self, row: int) -> bytes:
        start = int(self.property_starts[row])
        return bytes(self.data[start : start + int(self.property_bytes[row])])

    def rows_with(self, text: bytes) -> list[int]:
        """The rows whose properties hold this text somewhere: cheaper than to decode them all."""
        starts, ends = self.property_starts, self.property_starts + self.property_bytes
        return [
            row
            for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True))
            if text in bytes(self.data[start:end])
        ]

    def properties(self, row: int) -> dict[str, str]:
        return decode_properties(self.raw_properties(row))


def sound_columns(
    data: memoryview,
    bounds: NDArray[np.int64],
    log_offsets: NDArray[np.int64],
    *,
    base_offset: int = 0,
    path: str = "",
    check_crc: bool = True,
    check_property_crc: bool = False,
) -> RecordColumns:
    """The records between these bounds, up to the first that is not sound.

    Each must say that it lies at its log offset. Their sizes are not held against the bounds, which
    are at least MESSAGE_BYTES_MIN apart.
    """
    words = Words(data)
    starts, ends = bounds[:-1], bounds[1:]
    magics = words.int32(starts + 4)
    second = magics == MESSAGE_MAGIC_V2 - (1 << 32)
    sys_flags = words.int32(starts + 36)
    born_ipv6 = (sys_flags & BORN_HOST_IPV6) != 0
    fixed = 88 + 12 * born_ipv6 + 12 * ((sys_flags & STORE_HOST_IPV6) != 0)
    ok = second | (magics == MESSAGE_MAGIC_V1 - (1 << 32))
    ok &= words.int64(starts + 28) == log_offsets
    ok &= starts + fixed + 4 + second - 1 <= ends
    count = sound_count(ok)
    bodies = starts[:count] + fixed[:count]
    body_bytes = words.int32(bodies - 4)
    second = second[:count]
    topic_at = bodies + body_bytes + 1 + second
    count = sound_count((body_bytes >= 0) & (topic_at + 2 <= ends[:count]))
    topic_at, second = topic_at[:count], second[:count]
    topic_bytes = np.where(second, words.int16(topic_at - 2), words.int8(topic_at - 1))
    topic_ends = topic_at + topic_bytes
    count = sound_count((topic_bytes >= 0) & (topic_ends + 2 <= ends[:count]))
    topic_ends = topic_ends[:count]
    property_bytes = words.int16(topic_ends)
    ok = (property_bytes >= 0) & (topic_ends + 2 + property_bytes == ends[:count])
    text_ends = np.where(property_bytes > 0, ends[:count], topic_ends)
    ok &= (words.int8(text_ends - 1) != 0) | (property_bytes + topic_bytes[:count] == 0)
    count = sound_count(ok)
    if check_crc:
        body_ends = bodies[:count] + body_bytes[:count]
        count = _crcs_hold(data, bodies[:count], body_ends, words.int32(starts[:count] + 8))
    if check_property_crc:
        count = _property_crcs_hold(data, bounds[: count + 1])
    starts = starts[:count]
    return RecordColumns(
        data=data,
        base_offset=base_offset,
        path=path,
        positions=starts,
        sizes=(ends - bounds[:-1])[:count],
        queue_ids=words.int32(starts + 12),
        queue_offsets=words.int64(starts + 20),
        sys_flags=sys_flags[:count],
        store_timestamps=words.int64(starts + 56 + 12 * born_ipv6[:count]),
        topic_starts=topic_at[:count],
        topic_bytes=topic_bytes[:count],
        property_starts=topic_ends[:count] + 2,
        property_bytes=property_bytes[:count],
    )


def sound_count(ok: NDArray[np.bool_]) -> int:
    """How many there are before the first that is not."""
    return len(ok) if ok.all() else int(ok.argmin())


def _crcs_hold(
    data: memoryview, starts: NDArray[np.int64], ends: NDArray[np.int64], crcs: NDArray[np.int64]
) -> int:
    bodies = map(data.__getitem__, map(slice, starts.tolist(), ends.tolist()))
    found = np.fromiter(map(crc32, bodies), np.uint32, len(starts))
    return sound_count((found & INT32_MAX) == crcs)


def _property_crcs_hold(data: memoryview, bounds: NDArray[np.int64]) -> int:
    records = map(data.__getitem__, starmap(slice, pairwise(bounds.tolist())))
    return sound_count(np.fromiter(map(matches_property_crc, records), np.bool_))
