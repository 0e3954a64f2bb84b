"""Are the bodies of a commit log sound? Told while its bytes pass by, in blocks of any length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final

import numpy as np

from tieredstore.codec.checks import crc32
from tieredstore.codec.columns import Records
from tieredstore.codec.message import CODA_BYTES, is_coda
from tieredstore.codec.record import (
    BODY_CRC_POSITION,
    FIXED_BYTES,
    INT32,
    IPV6_BYTES,
    LOG_OFFSET_POSITION,
    MAGIC_POSITION,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGICS,
    RECORD_BYTES_MIN,
    fixed_bytes,
    peek_log_offset,
    peek_queue_offset,
    peek_sys_flag,
)
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import INT32_MAX

_HEAD: Final = Struct(">iI")  # size, magic
_HEAD_BYTES: Final = (
    FIXED_BYTES + 2 * IPV6_BYTES
)  # all that comes before a body, of a message with two addresses of IPv6
_MAGIC_START: Final = MESSAGE_MAGIC_V1.to_bytes(4, "big")[:3]  # the same in both


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenRecord:
    """A record of which a part has passed by."""

    queue_offset: int
    place: int
    wanted: int  # checksum of its body
    crc: int  # so far
    body_left: int
    left: int


class PassingBodies:
    """Checks every record of a segment whose bytes from `position` on it is given, up to `size`.

    Holds no more than one head between two blocks, whatever a record says of its length: a body
    that goes on in the next block is summed up as it comes. What is no record is passed over: who
    reads by the queue finds that out. A copy goes on from the same place.
    """

    def __init__(self, path: str, base: int, position: int, size: int) -> None:
        self._path = path
        self._base = base
        self._position = position  # of the first byte that is held, or comes next
        self._size = size
        self._held = b""
        self._open: _OpenRecord | None = None
        self._is_lost = False

    def take(self, block: bytes) -> None:
        """The next bytes. SegmentCorruptError for a body that is not what its record says."""
        start = 0
        if self._open is not None:
            start = self._gone_on(block)
            self._position += start
        data = self._held + block[start:] if start or self._held else block
        self._held = b""
        while data:
            starts, at = self._walked(data)
            self._check_whole(data, starts)
            if at == len(data):
                self._position += at
                return
            found = self._next_record(data, at)
            if found is None:
                kept = len(data) if self._open is not None else max(at, len(data) - _HEAD_BYTES)
                self._position += kept
                self._held = data[kept:]
                return
            self._position += found
            data = data[found:]

    def _walked(self, data: bytes) -> tuple[list[int], int]:
        """Where whole records begin that follow each other, and where that ends."""
        starts: list[int] = []
        at, end = 0, len(data)
        if self._is_lost:
            return starts, at
        while at + _HEAD_BYTES <= end:
            size, magic = _HEAD.unpack_from(data, at)
            if magic not in MESSAGE_MAGICS:
                if not is_coda(data, at):
                    break
                at += CODA_BYTES
                continue
            if size < RECORD_BYTES_MIN or at + size > end:
                break
            starts.append(at)
            at += size
        return starts, at

    def _next_record(self, data: bytes, at: int) -> int | None:
        """Where to go on; None where that takes more bytes, which `_open` may wait for."""
        rest = len(data) - at
        if self._position + len(data) >= self._size and rest < _HEAD_BYTES:
            return self._last_ones(data, at)
        if rest < _HEAD_BYTES:
            return None
        if not self._is_lost and self._begin(data, at):
            return None
        self._is_lost = True
        for found in _candidates(data, at):
            if self._says_here(data, found):
                self._is_lost = False
                return found
        return None

    def _last_ones(self, data: bytes, at: int) -> int | None:
        """Short records, or a rest, at the very end of the segment."""
        while not self._is_lost and at + RECORD_BYTES_MIN <= len(data):
            size, magic = _HEAD.unpack_from(data, at)
            if magic not in MESSAGE_MAGICS or not RECORD_BYTES_MIN <= size <= len(data) - at:
                break
            self._check_whole(data, [at])
            at += size
        return None

    def _begin(self, data: bytes, at: int) -> bool:
        """A record that goes on in the next block, if its head is that of one."""
        size, magic = _HEAD.unpack_from(data, at)
        place = self._position + at
        if magic not in MESSAGE_MAGICS or not len(data) - at < size <= self._size - place:
            return False
        body_at = at + fixed_bytes(peek_sys_flag(data, at))
        body_bytes: int = INT32.unpack_from(data, body_at - 4)[0]
        if not 0 <= body_bytes <= size - (body_at - at):
            return False
        body = data[body_at : body_at + body_bytes]
        self._open = _OpenRecord(
            queue_offset=peek_queue_offset(data, at),
            place=place,
            wanted=INT32.unpack_from(data, at + BODY_CRC_POSITION)[0],
            crc=crc32(body),
            body_left=body_bytes - len(body),
            left=size - (len(data) - at),
        )
        self._check_open(self._open)
        return True

    def _gone_on(self, block: bytes) -> int:
        """How much of the block belongs to the record that began before it."""
        known = self._open
        assert known is not None
        body = memoryview(block)[: known.body_left]
        taken = min(known.left, len(block))
        after = replace(
            known,
            crc=crc32(body, known.crc),
            body_left=known.body_left - len(body),
            left=known.left - taken,
        )
        if known.body_left:
            self._check_open(after)
        self._open = after if after.left else None
        return taken

    def _check_open(self, record: _OpenRecord) -> None:
        if not record.body_left and record.crc & INT32_MAX != record.wanted:
            raise self._damage(record.queue_offset, record.place)

    def _check_whole(self, data: bytes, starts: list[int]) -> None:
        if not starts:
            return
        at = np.array(starts, np.int64)
        sizes = np.array([_HEAD.unpack_from(data, start)[0] for start in starts], np.int64)
        sound = Records(data, at, sizes).sound_bodies()
        if not sound.all():
            first = starts[int(sound.argmin())]
            raise self._damage(peek_queue_offset(data, first), self._position + first)

    def _says_here(self, data: bytes, at: int) -> bool:
        """Old stores count an end marker before a record to it."""
        here = self._base + self._position + at
        return peek_log_offset(data, at) in (here, here - CODA_BYTES)

    def _damage(self, queue_offset: int, place: int) -> SegmentCorruptError:
        reason = (
            f"the body of message {queue_offset} has another checksum than it should; with "
            "crc_check_enabled = false it is copied as it is"
        )
        return SegmentCorruptError(self._path, reason, position=place)


def _candidates(data: bytes, at: int) -> Iterator[int]:
    """Where records may begin behind `at`, and all that is asked of their heads is there."""
    found = data.find(_MAGIC_START, at + 1 + MAGIC_POSITION)
    while found >= 0 and found - MAGIC_POSITION + LOG_OFFSET_POSITION + 8 <= len(data):
        yield found - MAGIC_POSITION
        found = data.find(_MAGIC_START, found + 1)
