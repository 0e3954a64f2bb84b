"""Many records parsed at once into columns: their fields, their properties and their keys.

Row i of a column belongs to record i. Only `Records` decides which records are sound: those whose
lengths add up, so that `decode_message` can raise only for the CRC of a body. An index, a scan of
the local log, a job and a check all use it, so none accepts a record that another refuses.

`Properties` accepts the same entries as `decode_properties`. No object is created per message,
except texts that a caller asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, starmap
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.body_checks import bodies_match
from tieredstore.codec.checks import Buffer, property_crc_ok
from tieredstore.codec.java import decode_utf8
from tieredstore.codec.key_hashes import (
    Hashes,
    hashes_behind,
    key_hash,
    key_hashes,
    span_hashes,
    utf16_lengths,
)
from tieredstore.codec.record import (
    BODY_CRC_POSITION,
    BORN_HOST_IPV6,
    BORN_HOST_POSITION,
    BORN_TIMESTAMP_POSITION,
    FIXED_BYTES,
    FLAG_POSITION,
    HOSTS_IPV6,
    IPV6_BYTES,
    KEYS,
    LOG_OFFSET_POSITION,
    MAGIC_POSITION,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    QUEUE_ID_POSITION,
    QUEUE_OFFSET_POSITION,
    STORE_HOST_IPV6,
    STORE_HOST_POSITION,
    STORE_TIMESTAMP_POSITION,
    SYS_FLAG_POSITION,
    TAGS,
    UNIQUE_KEY,
    decode_properties,
)
from tieredstore.model.messages import MessageRun
from tieredstore.model.property_text import NAME_END, VALUE_END

_NAME_END: Final = ord(NAME_END)
_VALUE_END: Final = ord(VALUE_END)
_KEY_END: Final = ord(" ")
_MANY_TEXTS: Final = 128  # fewer texts are faster one by one

Spans = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Rows, in order; where a piece of each begins; where it ends. A row may have none, or several."""


class Words:
    """Big-endian numbers gathered from any place of a buffer.

    If the place is not within the bytes, the number is undefined.
    """

    def __init__(self, data: Buffer) -> None:
        self.data = data

    def int8(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._gather(">i1", 1, at)

    def int16(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._gather(">i2", 2, at)

    def int32(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._gather(">i4", 4, at)

    def uint32(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._gather(">u4", 4, at)

    def int64(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._gather(">i8", 8, at)

    def _gather(self, layout: str, width: int, at: NDArray[np.int64]) -> NDArray[np.int64]:
        count = len(self.data) - width + 1
        if count <= 0:
            return np.zeros(len(at), np.int64)
        # Overlapping entries, one per byte, let numpy read unaligned words.
        words: NDArray[Any] = np.ndarray((count,), layout, self.data, strides=(1,))
        try:
            found = words[at]
        except IndexError:  # only damage leads here
            found = words[np.clip(at, 0, count - 1)]
        return found.astype(np.int64)


class Bodies(Words):
    """Many records in one buffer, up to their bodies; the rest is not examined.

    `has_body` says for each row whether a record of this size, with its body, may lie there.
    """

    def __init__(
        self, data: Buffer, starts: NDArray[np.int64], sizes: NDArray[np.integer[Any]]
    ) -> None:
        super().__init__(data)
        sizes = sizes.astype(np.int64, copy=False)
        self.starts: NDArray[np.int64] = starts.astype(np.int64, copy=False)
        self.ends: NDArray[np.int64] = self.starts + sizes
        self.has_body = (self.starts >= 0) & (self.starts <= len(data) - sizes)
        self.has_body &= sizes > FIXED_BYTES
        if not self.has_body.all():
            self.starts = np.where(self.has_body, self.starts, 0)
            self.ends = np.where(self.has_body, self.ends, 0)
        self._find_heads()
        self.sys_flags = self._head(">i4", SYS_FLAG_POSITION)
        self.born_ipv6: NDArray[np.int64] | None = None  # extra bytes per row; None if all are 0
        self._find_body()

    def _find_heads(self) -> None:
        """Copy the fixed parts of all records side by side, so that fields have fixed places."""
        data = self.data if len(self.data) >= FIXED_BYTES else bytes(FIXED_BYTES)
        count = len(data) - FIXED_BYTES + 1
        windows: NDArray[Any] = np.ndarray((count,), f"V{FIXED_BYTES}", data, strides=(1,))
        self._heads = windows[self.starts]

    def _head(self, layout: str, position: int) -> NDArray[np.int64]:
        """One field of all records; the fields before it must have fixed lengths."""
        field = np.dtype(
            {
                "names": ["value"],
                "formats": [layout],
                "offsets": [position],
                "itemsize": FIXED_BYTES,
            }
        )
        return self._heads.view(field)["value"].astype(np.int64)

    def _find_body(self) -> None:
        fixed: Any = FIXED_BYTES
        if (self.sys_flags & HOSTS_IPV6).any():
            self.born_ipv6 = np.where(self.sys_flags & BORN_HOST_IPV6, IPV6_BYTES, 0)
            store_ipv6 = np.where(self.sys_flags & STORE_HOST_IPV6, IPV6_BYTES, 0)
            fixed = FIXED_BYTES + self.born_ipv6 + store_ipv6
        self.body_starts = self.starts + fixed
        if self.born_ipv6 is None:
            self.body_bytes = self._head(">i4", FIXED_BYTES - 4)
        else:
            self.body_bytes = self.int32(self.body_starts - 4)
        self.has_body &= self.body_bytes >= 0
        self.has_body &= self.body_starts + self.body_bytes <= self.ends

    def __len__(self) -> int:
        return len(self.starts)

    def body_crcs(self) -> NDArray[np.int64]:
        return self._head(">i4", BODY_CRC_POSITION)

    def body_crc_ok(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each body has the checksum in its record."""
        starts, sizes = self.body_starts[rows], self.body_bytes[rows]
        return bodies_match(self.data, starts, sizes, self.body_crcs()[rows])

    def sound_bodies(self) -> NDArray[np.bool_]:
        """For each row, whether its body lies within the record and has the checksum in it; the
        rest of the record does not matter."""
        sound = self.has_body.copy()
        rows = np.flatnonzero(sound)
        sound[rows] = self.body_crc_ok(rows)
        return sound


class Records(Bodies):
    """Many records in one buffer, and where their parts of variable length are.

    * `sound` says for each row whether exactly one whole record is there: magic and size are those
      of a message, and its lengths add up to the size. Other fields of an unsound row are
      meaningless. Nothing is read beyond a record, whatever its lengths say.
    * Only `sound_bodies` and `body_crc_ok` check checksums.
    """

    def __init__(
        self, data: Buffer, starts: NDArray[np.int64], sizes: NDArray[np.integer[Any]]
    ) -> None:
        super().__init__(data, starts, sizes)
        self._only_checked_are_sound = False
        self._find_texts()

    def _find_texts(self) -> None:
        ends = self.ends
        magics = self._head(">u4", MAGIC_POSITION)
        wide = magics == MESSAGE_MAGIC_V2
        self.sound = self.has_body & (wide | (magics == MESSAGE_MAGIC_V1))
        self.sound &= self._head(">i4", 0) == self.sizes()
        topic_at = self.body_starts + self.body_bytes
        self.topic_starts = topic_at + 1 + wide
        self.topic_bytes = self.int8(topic_at)
        if wide.any():
            self.topic_bytes = np.where(wide, self.int16(topic_at), self.topic_bytes)
        topic_ends = self.topic_starts + self.topic_bytes
        self.sound &= (self.topic_bytes >= 0) & (topic_ends + 2 <= ends)
        self.property_bytes = self.int16(topic_ends)
        self.property_starts = topic_ends + 2
        self.sound &= self.property_bytes >= 0
        self.sound &= self.property_starts + self.property_bytes == ends
        if not self.sound.all():
            for name in ("topic_starts", "topic_bytes", "property_starts", "property_bytes"):
                setattr(self, name, np.where(self.sound, getattr(self, name), 0))

    @property
    def is_sound(self) -> bool:
        return bool(self.sound.all())

    # Columns

    def sizes(self) -> NDArray[np.int64]:
        return self.ends - self.starts

    def queue_ids(self) -> NDArray[np.int64]:
        return self._head(">i4", QUEUE_ID_POSITION)

    def flags(self) -> NDArray[np.int64]:
        return self._head(">i4", FLAG_POSITION)

    def own_queue_offsets(self) -> NDArray[np.int64]:
        """The queue offset that each record contains."""
        return self._head(">i8", QUEUE_OFFSET_POSITION)

    def own_log_offsets(self) -> NDArray[np.int64]:
        """The log offset that each record contains."""
        return self._head(">i8", LOG_OFFSET_POSITION)

    def born_times(self) -> NDArray[np.int64]:
        return self._head(">i8", BORN_TIMESTAMP_POSITION)

    def store_times(self) -> NDArray[np.int64]:
        if self.born_ipv6 is None:
            return self._head(">i8", STORE_TIMESTAMP_POSITION)
        return self.int64(self._behind_born_host(STORE_TIMESTAMP_POSITION))

    def born_hosts(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where each address begins, and whether it is an IPv6 address."""
        return self.starts + BORN_HOST_POSITION, (self.sys_flags & BORN_HOST_IPV6) != 0

    def store_hosts(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        at = self._behind_born_host(STORE_HOST_POSITION)
        return at, (self.sys_flags & STORE_HOST_IPV6) != 0

    def _behind_born_host(self, position: int) -> NDArray[np.int64]:
        at = self.starts + position
        return at if self.born_ipv6 is None else at + self.born_ipv6

    # Checks

    def body_crc_ok(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """As in `Bodies`; after `leave_out_damaged_bodies` bodies are not checked again."""
        if self._only_checked_are_sound and self.sound[rows].all():
            return np.ones(len(rows), np.bool_)
        return super().body_crc_ok(rows)

    def leave_out_damaged_bodies(self) -> NDArray[np.int64]:
        """Mark the sound rows with a damaged body as unsound; returns them."""
        rows = np.flatnonzero(self.sound)
        damaged: NDArray[np.int64] = rows[~self.body_crc_ok(rows)]
        self.sound[damaged] = False
        self._only_checked_are_sound = True
        return damaged

    def properties(self, rows: NDArray[np.int64]) -> Properties:
        """The properties of these rows, all of which must be sound."""
        return Properties.within(self.data, self.property_starts[rows], self.property_bytes[rows])


class RecordFields(Records):
    """The records of a run."""

    def __init__(self, run: MessageRun) -> None:
        super().__init__(run.records, run.starts, run.message_bytes)
        self.run = run
        self.queue_offsets: NDArray[np.int64] = np.arange(run.first_offset, run.end_offset)


class Properties:
    """The property texts of many messages, parsed together.

    Text i ends at `ends[i]`, where the next one begins. It may lack its last separator.
    """

    def __init__(self, data: Any, ends: NDArray[np.int64]) -> None:
        self.data = data
        self._units = np.frombuffer(data, np.uint8)
        self._row_ends = ends
        self._starts, self._marks, self._ends = _entries(self._units, ends)

    @classmethod
    def of_texts(cls, texts: Sequence[Buffer]) -> Properties:
        return cls(b"".join(texts), np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts))))

    @classmethod
    def within(
        cls, data: Buffer, starts: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> Properties:
        """The properties of the texts `data[start : start + size]`, all of them within the data."""
        return cls(joined_texts(data, starts, sizes), sizes.cumsum())

    def __len__(self) -> int:
        return len(self._row_ends)

    def values(self, name: str) -> Spans:
        """The value under this name in each text that has one; the last one if several."""
        text = name.encode()
        if self._columns is not None:
            column = self._columns.get(text)
            each = slice(0, 0) if column is None else slice(column, None, self._each)
            starts = self._marks[each] + 1
            return np.arange(len(starts)), starts, self._ends[each]
        found = np.flatnonzero(self._marks - self._starts == len(text))
        found = found[_begins(self.data, self._starts[found], text)]
        rows = self._rows[found]
        last = rows[1:] != rows[:-1]
        if not last.all():
            found = found[np.append(last, True)]
            rows = self._rows[found]
        return rows, self._marks[found] + 1, self._ends[found]

    def keys(self) -> tuple[Spans, NDArray[np.int64]]:
        """The single keys of KEYS with duplicates but without empty ones, and the rows that have
        an empty one."""
        return _pieces(self._units, self.values(KEYS))

    def entries(self) -> tuple[Spans, NDArray[np.int64]]:
        """All valid entries, even those that a later one replaces; and where each name ends."""
        return (self._rows, self._starts, self._ends), self._marks

    def tags_codes(self) -> NDArray[np.int64]:
        """The tags code of each message, as a consume queue stores it: see `record.tags_code`."""
        rows, starts, ends = self.values(TAGS)
        codes = np.zeros(len(self), np.int64)
        codes[rows] = self._hashes(starts, ends, np.uint32).astype(np.uint32).view(np.int32)
        return codes

    def texts(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[str]:
        places = zip(starts.tolist(), ends.tolist(), strict=True)
        if self._is_ascii:
            text = str(self.data, "ascii")
            return [text[start:end] for start, end in places]
        data = bytes(self.data)  # copies nothing if it is bytes already
        return [decode_utf8(data[start:end]) for start, end in places]

    def hashes_behind(
        self,
        before: Hashes,
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        kind: type[np.unsignedinteger[Any]] = np.uint64,
    ) -> Hashes:
        """The hash of each of these texts with another text before it; `before` has the hashes of
        those. A narrower `kind` gives the lower bits."""
        lengths = ends - starts if self._is_ascii else utf16_lengths(self.texts(starts, ends))
        return hashes_behind(before, self._hashes(starts, ends, kind), lengths)

    def _hashes(
        self,
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        kind: type[np.unsignedinteger[Any]],
    ) -> NDArray[np.unsignedinteger[Any]]:
        if self._is_ascii:
            return span_hashes(self.data, starts, ends, kind)
        return key_hashes(self.texts(starts, ends))

    @cached_property
    def _is_ascii(self) -> bool:
        return not len(self._units) or int(self._units.max()) < 0x80

    @property
    def _each(self) -> int:
        """How many entries a text has on average."""
        return len(self._starts) // max(1, len(self))

    @cached_property
    def _columns(self) -> Mapping[bytes, int] | None:
        """If all texts have the same names in the same order, as is usual: the position of each
        name in a text. Otherwise None."""
        each, ends = self._each, self._row_ends
        if not 0 < each <= len(self) or each * len(self) != len(self._starts):
            return None
        firsts, lasts = self._starts[::each], self._starts[each - 1 :: each]
        if (firsts[1:] < ends[:-1]).any() or (lasts >= ends).any():
            return None
        columns: dict[bytes, int] = {}
        for column in range(each):
            starts, marks = self._starts[column::each], self._marks[column::each]
            name = bytes(self.data[int(starts[0]) : int(marks[0])])
            if (marks - starts != len(name)).any() or not _begins(self.data, starts, name).all():
                return None
            columns[name] = column
        return columns

    @cached_property
    def _rows(self) -> NDArray[np.int64]:
        """The row of each entry."""
        ends = np.searchsorted(self._starts, self._row_ends)  # fewer searches than one per entry
        return np.repeat(np.arange(len(self)), np.diff(ends, prepend=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedKeys:
    """The keys of messages, in the order of the messages, and how many keys each message has.

    `gaps` are the messages whose KEYS begin or end with a space, or have two in a row.
    """

    hashes: Hashes
    counts: NDArray[np.int64]
    gaps: NDArray[np.int64]


def keys_behind(prefix: str, properties: Properties) -> HashedKeys:
    """UNIQ_KEY and each of KEYS, once per message, hashed with `prefix` before it."""
    return hashed_keys(properties, np.full(len(properties), key_hash(prefix), np.uint64))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRun(MessageRun):
    """A run whose reader has already found each record sound and parsed its properties."""

    properties: Properties
    store_timestamps: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundKeys:
    """The keys of a parsed run in few bytes, so that the properties need not be kept."""

    keys: HashedKeys
    store_timestamps: NDArray[np.int64]

    @classmethod
    def of(cls, topic: str, run: MessageRun) -> FoundKeys | None:
        """None for a run that is not parsed yet, or is only a part of a parsed one."""
        if not isinstance(run, ParsedRun) or len(run) != len(run.properties):
            return None
        keys = keys_behind(f"{topic}#", run.properties)
        return cls(keys=keys, store_timestamps=run.store_timestamps)

    @property
    def held_bytes(self) -> int:
        return self.keys.hashes.nbytes + self.keys.counts.nbytes + self.store_timestamps.nbytes


def hashed_keys(
    properties: Properties, before: Hashes, kind: type[np.unsignedinteger[Any]] = np.uint64
) -> HashedKeys:
    """Like `keys_behind`; `before` has, for each message, the hash of the prefix of its keys. A
    narrower `kind` gives the lower bits of the hashes."""
    keys, gaps = properties.keys()
    unique = properties.values(UNIQUE_KEY)
    rows, starts, ends = spans = _together(unique, keys) if len(unique[0]) else keys
    hashes = properties.hashes_behind(before[rows], starts, ends, kind)
    counts = np.bincount(rows, minlength=len(properties))
    again = _said_again(properties, spans, hashes, counts)
    if again:
        hashes = np.delete(hashes, again)
        counts = counts - np.bincount(rows[again], minlength=len(properties))
    return HashedKeys(hashes=hashes, counts=counts, gaps=gaps)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordColumns:
    """Row i is one sound record: `data[positions[i] : positions[i] + sizes[i]]`.

    The numbers are copies; `data` is a view that keeps the file mapped.
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
        """The topic of each row; rows with the same topic share one string."""
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
        """The rows whose properties contain this text: cheaper than decoding all of them."""
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
    property_crc_from: int = 0,
) -> RecordColumns:
    """The records between these bounds, up to the first that is not sound. Records before
    `property_crc_from` may lack a property CRC: they are older than the setting.

    Two conditions go beyond `Records.sound`: each record must contain its own log offset, and its
    last text must not end in zeros, which a crash leaves where bytes were not written.
    """
    records = Records(data, bounds[:-1], np.diff(bounds))
    texts = records.topic_bytes + records.property_bytes
    text_ends = records.ends - np.where(records.property_bytes > 0, 0, 2)
    ok = records.sound & (records.own_log_offsets() == log_offsets)
    ok &= (records.int8(text_ends - 1) != 0) | (texts == 0)
    count = sound_count(ok)
    if check_crc:
        count = sound_count(records.body_crc_ok(np.arange(count)))
    if check_property_crc:
        spans = starmap(slice, pairwise(bounds[: count + 1].tolist()))
        has_crc = map(property_crc_from.__le__, log_offsets[:count].tolist())
        ok_crc = map(property_crc_ok, map(data.__getitem__, spans), has_crc)
        count = sound_count(np.fromiter(ok_crc, np.bool_, count))
    return RecordColumns(
        data=data,
        base_offset=base_offset,
        path=path,
        positions=records.starts[:count],
        sizes=records.sizes()[:count],
        queue_ids=records.queue_ids()[:count],
        queue_offsets=records.own_queue_offsets()[:count],
        sys_flags=records.sys_flags[:count],
        store_timestamps=records.store_times()[:count],
        topic_starts=records.topic_starts[:count],
        topic_bytes=records.topic_bytes[:count],
        property_starts=records.property_starts[:count],
        property_bytes=records.property_bytes[:count],
    )


def sound_count(ok: NDArray[np.bool_]) -> int:
    """How many rows come before the first that is not ok."""
    return len(ok) if ok.all() else int(ok.argmin())


def joined_texts(data: Buffer, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> bytes:
    """The texts `data[start : start + size]`, all within the data, joined.

    Many texts of similar length are read as windows of one width with the same ends; the bytes
    before each text are then cut off. This makes no object per text and is mostly done by numpy.
    """
    count, ends = len(starts), starts + sizes
    width = int(sizes.max()) if count >= _MANY_TEXTS else 0
    if not 0 < width * count <= 2 * int(sizes.sum()) or int(ends.min()) < width:
        places = map(slice, starts.tolist(), ends.tolist())
        return b"".join(map(memoryview(data).__getitem__, places))
    windows: NDArray[Any] = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    units: NDArray[np.uint8] = windows[ends - width].view(np.uint8).reshape(count, width)
    if int(sizes.min()) < width:
        units = units[np.arange(width) >= (width - sizes)[:, None]]
    return units.tobytes()


def texts_are(
    data: Any, starts: NDArray[np.int64], sizes: NDArray[np.int64], text: bytes
) -> NDArray[np.bool_]:
    """Whether each `data[start : start + size]`, all of them within the data, is this text."""
    same: NDArray[np.bool_] = sizes == len(text)
    rows = np.flatnonzero(same)
    if text and len(rows):
        same[rows] = _begins(data, starts[rows], text)
    return same


def _begins(data: Any, starts: NDArray[np.int64], text: bytes) -> NDArray[np.bool_]:
    """Whether this text begins at each of these places; it is not empty and fits there."""
    if not len(starts):
        return np.zeros(0, np.bool_)
    found = np.ones(len(starts), np.bool_)
    at, left = 0, len(text)
    for width in (8, 4, 2, 1):  # compare as numbers: numpy compares texts byte by byte
        while left >= width:
            layout = f"u{width}"
            count = len(data) - width + 1
            words: NDArray[Any] = np.ndarray((count,), layout, data, strides=(1,))
            found &= words[starts + at] == np.frombuffer(text, layout, 1, at)
            at, left = at + width, left - width
    return found


def _entries(
    units: NDArray[np.uint8], row_ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Where each valid entry begins, where its name ends, and where its value ends."""
    ends = np.flatnonzero(units == _VALUE_END)
    widths: Any = 1  # of the separator after each entry
    # The ends of texts without a last separator. An empty text may look like one: its entry is
    # empty too, and not valid.
    borders = row_ends[units[row_ends - 1] != _VALUE_END] if len(units) else row_ends[:0]
    if len(borders):
        both = np.concatenate((borders, ends))
        order = np.argsort(both, kind="stable")  # a border sorts before a separator at its place
        ends = both[order]
        widths = (order >= len(borders))[:-1]
    starts = np.zeros_like(ends)
    np.add(ends[:-1], widths, out=starts[1:])
    marks = np.flatnonzero(units == _NAME_END)
    if len(marks) != len(ends) or not ((marks > starts) & (marks < ends - 1)).all():
        # A value contains the mark that ends names, or an entry lacks its name, mark or value.
        marks = np.append(marks, len(units) + 1)
        marks = marks[np.searchsorted(marks, starts)]
        counts = (marks > starts) & (marks < ends - 1)
        starts, marks, ends = starts[counts], marks[counts], ends[counts]
    return starts, marks, ends


def _pieces(units: NDArray[np.uint8], values: Spans) -> tuple[Spans, NDArray[np.int64]]:
    """The single keys of each value, separated by spaces only, without empty ones; and the rows
    that have an empty one."""
    rows, starts, ends = values
    spaces = np.flatnonzero(units == _KEY_END)
    if not len(rows) or not len(spaces):
        return values, rows[:0]
    owners = np.searchsorted(starts, spaces, side="right") - 1
    inside = (owners >= 0) & (spaces < ends[owners])
    spaces, owners = spaces[inside], owners[inside]
    # Values do not overlap, so sorting the bounds puts the pieces in order. Each input is two
    # sorted halves, which a stable sort merges in a tenth of the time.
    firsts = np.sort(np.concatenate((starts, spaces + 1)), kind="stable")
    lasts = np.sort(np.concatenate((spaces, ends)), kind="stable")
    rows = np.repeat(rows, np.bincount(owners, minlength=len(rows)) + 1)
    held = lasts > firsts
    if held.all():
        return (rows, firsts, lasts), rows[:0]
    gaps = rows[~held]
    gaps = gaps[np.diff(gaps, prepend=-1) > 0]  # np.unique imports all of numpy.ma: 0.1 s
    return (rows[held], firsts[held], lasts[held]), gaps


def _together(first: Spans, second: Spans) -> Spans:
    """Both spans merged in the order of the rows; within a row `first` comes before `second`."""
    rows, starts, ends = (np.concatenate(both) for both in zip(first, second, strict=True))
    order = np.argsort(rows, kind="stable")
    return rows[order], starts[order], ends[order]


def _said_again(
    properties: Properties, spans: Spans, hashes: Hashes, counts: NDArray[np.int64]
) -> list[int]:
    """The keys that repeat an earlier key of the same message. Equal hashes are not enough: the
    texts are compared."""
    rows, starts, ends = spans
    firsts = np.cumsum(counts) - counts
    pairs = np.flatnonzero(counts == 2)
    alike = [pairs[hashes[firsts[pairs]] == hashes[firsts[pairs] + 1]]]
    held = np.flatnonzero(counts[rows] > 2)
    if len(held):
        held = held[np.lexsort((hashes[held], rows[held]))]
        same = (rows[held[1:]] == rows[held[:-1]]) & (hashes[held[1:]] == hashes[held[:-1]])
        alike.append(rows[held[1:][same]])
    is_alike = np.zeros(len(counts), np.bool_)
    is_alike[np.concatenate(alike)] = True
    places = np.flatnonzero(is_alike[rows])
    seen: set[tuple[int, str]] = set()
    again: list[int] = []
    for at, row, name in zip(
        places.tolist(),
        rows[places].tolist(),
        properties.texts(starts[places], ends[places]) if len(places) else (),
        strict=True,
    ):
        if (row, name) in seen:
            again.append(at)
        seen.add((row, name))
    return again
