"""The records of one file, many at a time, and what is found where none is.

What lives here: `RecordScan` over the bytes of one file. One place alone is `record_check`, going
from file to file is `log_scan`.

Three things are stricter than RocketMQ, which ends a log at the first bytes that are no record. A
record must say that it lies where it lies (its log offset). No CRC covers topic and properties, so
a record whose last text ends in zeros counts as torn. And behind damage the scan goes on with
the next record that proves itself by place, lengths, CRC and a store time that does not go back:
the last keeps it from taking up what an earlier crash left behind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise, starmap
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.bounds import Buffer
from tieredstore.codec.checksum import matches_property_crc
from tieredstore.codec.message import MESSAGE_BYTES_MIN
from tieredstore.codec.record_fields import (
    BORN_HOST_IPV6,
    INT32,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    STORE_HOST_IPV6,
    peek_store_timestamp,
)
from tieredstore.local.record_check import RecordCheck, RecordState, check_record
from tieredstore.local.record_columns import RecordColumns, Words
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import INT32_MAX

BLOCK_RECORDS: Final = 4096
_MAGICS: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]|\xcb\xd4\x31\x94")


class Damage(NamedTuple):
    """Bytes that are no record. `resumed_at` is the log offset where records go on, if they do."""

    path: str
    position: int
    log_offset: int
    reason: str
    unused: bool = False
    resumed_at: int | None = None

    def error(self) -> SegmentCorruptError:
        return SegmentCorruptError(self.path, self.reason, position=self.position)


class RecordScan:
    """Every record of one file, in blocks of columns; iterate it once, then ask how it ended.

    `position` is where the last good record ends. `damages` is what was passed over to get there.
    `blank` says that a blank record closes the file; else `rest` says what stands behind the last
    record: None if nothing does, `unused` zeros, or a torn tail.
    """

    def __init__(
        self,
        data: Buffer,
        *,
        base_offset: int,
        path: str = "",
        position: int = 0,
        check_crc: bool = True,
        check_property_crc: bool = False,
        last_store_timestamp: int = 0,
        data_end: Callable[[int], int] | None = None,
    ) -> None:
        self.position = position
        self.damages: list[Damage] = []
        self.blank = False
        self.rest: Damage | None = None
        self.last_store_timestamp = last_store_timestamp
        self._data = memoryview(data)
        self._base = base_offset
        self._path = path
        self._check_crc = check_crc
        self._check_property_crc = check_property_crc
        self._data_end = data_end

    def __iter__(self) -> Iterator[RecordColumns]:
        while self.position < len(self._data):
            columns = self._block()
            if len(columns):
                self.position = int(columns.positions[-1] + columns.sizes[-1])
                self.last_store_timestamp = int(columns.store_timestamps[-1])
                yield columns
                continue
            check = self._check(self.position)
            if check.state is RecordState.BLANK:
                self.blank = True
                return
            damage = Damage(
                self._path,
                self.position,
                self._base + self.position,
                check.reason or "the record cannot be read",
                unused=check.reason == "zeros",
            )
            found = self._next_proven(self.position)
            if found is None:
                self.rest = damage
                return
            self.damages.append(damage._replace(unused=False, resumed_at=self._base + found))
            self.position = found

    def _check(self, position: int) -> RecordCheck:
        return check_record(
            self._data,
            position,
            log_offset=self._base + position,
            check_crc=self._check_crc,
            check_property_crc=self._check_property_crc,
        )

    def _next_proven(self, position: int) -> int | None:
        """Where the next record or the closing blank record proves itself; rare, so not fast."""
        data = self._data
        end = len(data) if self._data_end is None else self._data_end(position)
        for match in _MAGICS.finditer(data[: min(end, len(data))], position + 5):
            at = match.start() - 4
            check = check_record(
                data,
                at,
                log_offset=self._base + at,
                check_property_crc=self._check_property_crc,
            )
            if check.state is RecordState.MESSAGE:
                if peek_store_timestamp(data, at) >= self.last_store_timestamp:
                    return at
            elif (
                check.state is RecordState.BLANK
                and INT32.unpack_from(data, at)[0] == len(data) - at
            ):
                return at
        return None

    def _block(self) -> RecordColumns:
        """The next records, as far as they are sound."""
        data = self._data
        at, end = self.position, len(data)
        last = end - MESSAGE_BYTES_MIN
        unpack = INT32.unpack_from
        starts: list[int] = []
        while at <= last and len(starts) < BLOCK_RECORDS:
            size = unpack(data, at)[0]
            if size < MESSAGE_BYTES_MIN or size > end - at:
                break
            starts.append(at)
            at += size
        starts.append(at)
        return self._sound(np.array(starts, np.int64))

    def _sound(self, bounds: NDArray[np.int64]) -> RecordColumns:
        """The columns of the records between these bounds, up to the first that is not sound."""
        words = Words(self._data)
        starts, ends = bounds[:-1], bounds[1:]
        magics = words.int32(starts + 4)
        second = magics == MESSAGE_MAGIC_V2 - (1 << 32)
        sys_flags = words.int32(starts + 36)
        born_ipv6 = (sys_flags & BORN_HOST_IPV6) != 0
        fixed = 88 + 12 * born_ipv6 + 12 * ((sys_flags & STORE_HOST_IPV6) != 0)
        ok = second | (magics == MESSAGE_MAGIC_V1 - (1 << 32))
        ok &= words.int64(starts + 28) == starts + self._base
        ok &= starts + fixed + 4 + second - 1 <= ends
        count = _sound_count(ok)
        bodies = starts[:count] + fixed[:count]
        body_bytes = words.int32(bodies - 4)
        second = second[:count]
        topic_at = bodies + body_bytes + 1 + second
        count = _sound_count((body_bytes >= 0) & (topic_at + 2 <= ends[:count]))
        topic_at, second = topic_at[:count], second[:count]
        topic_bytes = np.where(second, words.int16(topic_at - 2), words.int8(topic_at - 1))
        topic_ends = topic_at + topic_bytes
        count = _sound_count((topic_bytes >= 0) & (topic_ends + 2 <= ends[:count]))
        topic_ends = topic_ends[:count]
        property_bytes = words.int16(topic_ends)
        ok = (property_bytes >= 0) & (topic_ends + 2 + property_bytes == ends[:count])
        text_ends = np.where(property_bytes > 0, ends[:count], topic_ends)
        ok &= (words.int8(text_ends - 1) != 0) | (property_bytes + topic_bytes[:count] == 0)
        count = _sound_count(ok)
        if self._check_crc:
            body_ends = bodies[:count] + body_bytes[:count]
            count = self._crcs_hold(bodies[:count], body_ends, words.int32(starts[:count] + 8))
        if self._check_property_crc:
            count = self._property_crcs_hold(bounds[: count + 1])
        starts = starts[:count]
        return RecordColumns(
            data=self._data,
            base_offset=self._base,
            path=self._path,
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

    def _crcs_hold(
        self, starts: NDArray[np.int64], ends: NDArray[np.int64], crcs: NDArray[np.int64]
    ) -> int:
        bodies = map(self._data.__getitem__, map(slice, starts.tolist(), ends.tolist()))
        found = np.fromiter(map(crc32, bodies), np.uint32, len(starts))
        return _sound_count((found & INT32_MAX) == crcs)

    def _property_crcs_hold(self, bounds: NDArray[np.int64]) -> int:
        records = map(self._data.__getitem__, starmap(slice, pairwise(bounds.tolist())))
        return _sound_count(np.fromiter(map(matches_property_crc, records), np.bool_))


def _sound_count(ok: NDArray[np.bool_]) -> int:
    """How many there are before the first that is not."""
    return len(ok) if ok.all() else int(ok.argmin())
