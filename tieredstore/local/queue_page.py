"""Checks the records of a few units together: sound records cost little more than reading their
bytes.

Every record gets all checks of `check_record` and `UnitTruth.misfit`. For so few rows Python's own
sequences, in loops that run in C, are fastest; numpy's calls would cost more than the rows.

The only positive answer is that the whole page is sound. If it is not, or if it is unusual (a light
queue, records of several magics, a topic that is not plain text), None tells the reader to check
each record alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import accumulate, pairwise, repeat
from operator import add, ne, or_, sub
from struct import Struct
from typing import Final, NamedTuple

from tieredstore.codec.checks import crc32, gainsays_property_crc
from tieredstore.codec.java import decode_utf8, encode_utf8
from tieredstore.codec.queue_unit import is_extension_address
from tieredstore.codec.record import (
    FIXED_BYTES,
    HOSTS_IPV6,
    INT16,
    INT32,
    RECORD_BYTES_MIN,
    TAGS,
    TOPIC_LENGTHS,
    fixed_bytes,
    tags_code,
)
from tieredstore.codec.selected import selected_records
from tieredstore.local.commit_log import CommitLog
from tieredstore.model.messages import SelectedMessage
from tieredstore.model.property_text import NAME_END, VALUE_END, value_in
from tieredstore.model.topics import SCHEDULE_TOPIC
from tieredstore.model.values import INT32_MAX, QueueKey

# size, magic, body CRC, queue id, queue offset, log offset, system flag, body length
_BEFORE_TAGS: Final = f"{VALUE_END}{TAGS}{NAME_END}".encode()
_HEAD: Final = Struct(">iIii4xqqi44xi")


class PageRows(NamedTuple):
    """Units of one queue, at least one, as columns."""

    queue_offsets: Sequence[int]
    log_offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    tags_codes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """The sound records of these units, one after another."""

    rows: PageRows
    data: bytes

    def __len__(self) -> int:
        return len(self.rows.sizes)

    def records(self) -> bytes:
        return self.data

    def messages(self) -> list[SelectedMessage]:
        rows = self.rows
        return selected_records(
            queue_offsets=rows.queue_offsets,
            log_offsets=rows.log_offsets,
            tags_codes=rows.tags_codes,
            records=self.split(),
        )

    def split(self) -> list[bytes]:
        ends = accumulate(self.rows.sizes, initial=0)
        return [self.data[start:end] for start, end in pairwise(ends)]


def read_page(log: CommitLog, key: QueueKey, rows: PageRows) -> Page | None:
    """The records of these units; None unless each is present, sound, and matches its unit."""
    sizes = rows.sizes
    if min(sizes) < RECORD_BYTES_MIN or INT32_MAX in sizes:  # INT32_MAX: a fill unit
        return None
    data = None if log.lost.has_any(rows.log_offsets) else _read(log, rows.log_offsets, sizes)
    if data is None or not _are_sound(data, key, rows):
        return None
    page = Page(rows, data)
    if log.check_property_crc and any(map(gainsays_property_crc, page.split())):
        return None
    return page


def _read(log: CommitLog, log_offsets: tuple[int, ...], sizes: tuple[int, ...]) -> bytes | None:
    """The bytes of these records; neighbours, which lie in one file, are read together."""
    read = log.queue.read
    ends = tuple(map(add, log_offsets, sizes))
    if ends[:-1] == log_offsets[1:]:
        return read(log_offsets[0], ends[-1] - log_offsets[0])
    parted = map(ne, ends, log_offsets[1:])
    cuts = [row for row, is_parted in enumerate(parted, 1) if is_parted]
    pieces = []
    for first, behind in pairwise((0, *cuts, len(sizes))):
        piece = read(log_offsets[first], ends[behind - 1] - log_offsets[first])
        if piece is None:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _are_sound(data: bytes, key: QueueKey, rows: PageRows) -> bool:
    sizes, count = rows.sizes, len(rows.sizes)
    ends = list(accumulate(sizes))
    starts = [0, *ends[:-1]]
    heads = map(_HEAD.unpack_from, repeat(data), starts)
    own_sizes, magics, crcs, queue_ids, offsets, places, flags, lengths = zip(*heads, strict=True)
    topic = _topic_field(key.topic, magics[0])
    if (
        topic is None
        or own_sizes != sizes
        or magics.count(magics[0]) != count
        or queue_ids.count(key.queue_id) != count
        or offsets != tuple(rows.queue_offsets)
        or places != rows.log_offsets
    ):
        return False
    fixed, body_bytes = _before_bodies(data, starts, sizes, flags, lengths)
    body_starts = list(map(add, starts, fixed))
    body_ends = list(map(add, body_starts, body_bytes))
    text_starts = list(map(add, body_ends, repeat(len(topic) + INT16.size)))
    text_bytes = list(map(sub, ends, text_starts))
    if min(body_bytes) < 0 or min(text_bytes) < 0:
        return False
    said = map(INT16.unpack_from, repeat(data), map(sub, text_starts, repeat(INT16.size)))
    if not all(map(data.startswith, repeat(topic), body_ends)) or list(said) != list(
        zip(text_bytes, strict=True)
    ):
        return False
    bodies = map(memoryview(data).__getitem__, map(slice, body_starts, body_ends))
    if [crc & INT32_MAX for crc in map(crc32, bodies)] != list(crcs):
        return False
    texts = list(map(data.__getitem__, map(slice, text_starts, ends)))
    if any(map(bytes.endswith, texts, repeat(b"\0"))):  # a text was never written completely
        return False
    return key.topic == SCHEDULE_TOPIC or _have_tags(texts, rows.tags_codes)


def _before_bodies(
    data: bytes,
    starts: Sequence[int],
    sizes: Sequence[int],
    flags: Sequence[int],
    body_bytes: Sequence[int],
) -> tuple[Sequence[int], Sequence[int]]:
    """The bytes before each body, and the length of the body: `body_bytes` if all hosts are IPv4.

    For a record that is too short for its hosts the length is -1.
    """
    if not reduce(or_, flags) & HOSTS_IPV6:
        return (FIXED_BYTES,) * len(sizes), body_bytes
    fixed = list(map(fixed_bytes, flags))
    return fixed, [
        INT32.unpack_from(data, start + before - INT32.size)[0] if before < size else -1
        for start, size, before in zip(starts, sizes, fixed, strict=True)
    ]


def _have_tags(texts: list[bytes], tags_codes: tuple[int, ...]) -> bool:
    """Whether each text has the tags of its code.

    Usually all texts are equal from their tags on: then all have the tags of the first.
    """
    first = value_in(decode_utf8(texts[0]), TAGS)
    tail = texts[0][texts[0].rfind(_BEFORE_TAGS) :]
    if first and tail.startswith(_BEFORE_TAGS + encode_utf8(first)):
        code = _tags_code(first)
        alike = tags_codes.count(code) == len(texts)
        if alike and all(map(bytes.endswith, texts, repeat(tail))):
            return True
    tags = map(value_in, map(decode_utf8, texts), repeat(TAGS))
    own = list(map(_tags_code, tags))
    return own == list(tags_codes) or all(
        code == said or is_extension_address(said)
        for code, said in zip(own, tags_codes, strict=True)
    )


_tags_code = lru_cache(maxsize=256)(tags_code)


@lru_cache(maxsize=256)
def _topic_field(topic: str, magic: int) -> bytes | None:
    """The topic as in a record, after its length; None if these bytes may not identify it."""
    layout, text = TOPIC_LENGTHS.get(magic), encode_utf8(topic)
    if layout is None or not text or text.endswith(b"\0") or decode_utf8(text) != topic:
        return None
    return None if len(text) >> (8 * layout.size - 1) else layout.pack(len(text)) + text
