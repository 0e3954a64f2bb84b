"""The records of one log file, many at a time, and the damage between them.

RocketMQ ends a log at the first bytes that are not a record. This differs in three ways. A record
must contain its own place (its log offset). No CRC covers topic and properties, so a record whose
last text ends in zeros counts as torn. And after damage the scan continues with the next record
that proves itself by place, lengths, CRC and a store time that does not decrease; the store time
keeps it from accepting leftovers of an earlier crash. Only if a process was killed during the last
put, whose head is written last, does the log end at that head, as RocketMQ's does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from tieredstore.codec.checks import Buffer, crc32, property_crc_ok
from tieredstore.codec.columns import RecordColumns, sound_columns
from tieredstore.codec.message import BLANK_MAGIC
from tieredstore.codec.record import (
    INT16,
    INT32,
    RECORD_BYTES_MIN,
    TOPIC_LENGTHS,
    fixed_bytes,
    peek_store_timestamp,
)
from tieredstore.local.mapped_file import WRITE_BYTES_MIN
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import INT32_MAX, INT64_MAX

_FRAME: Final = Struct(">iI")  # size, magic
HEAD_BYTES: Final = _FRAME.size  # the head of a put, which is written last
_HEAD: Final = Struct(">iIi16xqi")  # size, magic, body CRC, log offset, system flag
BLOCK_RECORDS: Final = 4096
DAY_MS: Final = 86_400_000
_MAGICS: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]|\xcb\xd4\x31\x94")


class RecordState(Enum):
    """What is at a place of a log."""

    MESSAGE = "message"
    BLANK = "blank"
    DAMAGED = "damaged"


class RecordCheck(NamedTuple):
    """The verdict on one place.

    As in RocketMQ, `size` is 0 for a blank record, and -1 for damage that leaves no size to skip.
    """

    size: int
    state: RecordState
    reason: str = ""


def check_record(
    data: Buffer,
    position: int = 0,
    *,
    log_offset: int | None = None,
    check_crc: bool = True,
    check_property_crc: bool = False,
    property_crc_from: int = 0,
) -> RecordCheck:
    """What is at `position`. With `log_offset` the record must contain that log offset. A record
    before `property_crc_from` may lack a property CRC."""
    rest = len(data) - position
    if rest < 8:
        return _damaged(f"only {rest} bytes are left")
    size, magic = _FRAME.unpack_from(data, position)
    if size > rest:
        return _damaged(f"a record of {size} bytes where there are {rest}")
    if magic == BLANK_MAGIC:
        return RecordCheck(0, RecordState.BLANK)
    if magic not in TOPIC_LENGTHS:
        return _damaged("zeros" if magic == size == 0 else f"magic {magic:08X} is no message's")
    if size < RECORD_BYTES_MIN:
        return _damaged(f"a record of {size} bytes is too short")
    crc_from = property_crc_from if check_property_crc else None
    return _check_message(data, position, magic, log_offset, check_crc, crc_from)


def _check_message(
    data: Buffer,
    position: int,
    magic: int,
    log_offset: int | None,
    check_crc: bool,
    property_crc_from: int | None,
) -> RecordCheck:
    size, _, crc, own_offset, sys_flag = _HEAD.unpack_from(data, position)
    if log_offset is not None and own_offset != log_offset:
        return _damaged(f"the record says it lies at {own_offset}, but it lies at {log_offset}")
    end = position + size
    body_at = position + fixed_bytes(sys_flag)
    layout = TOPIC_LENGTHS[magic]
    if body_at + layout.size + 2 > end:
        return _damaged(f"a record of {size} bytes is too short for its hosts")
    body_bytes = INT32.unpack_from(data, body_at - 4)[0]
    topic_at = body_at + body_bytes + layout.size
    if body_bytes < 0 or topic_at + 2 > end:
        return _damaged(f"a body of {body_bytes} bytes does not fit the record")
    if check_crc and crc32(memoryview(data)[body_at : body_at + body_bytes]) & INT32_MAX != crc:
        return _damaged(f"the body does not have CRC {crc}")
    topic_bytes = layout.unpack_from(data, topic_at - layout.size)[0]
    topic_end = topic_at + topic_bytes
    if topic_bytes < 0 or topic_end + 2 > end:
        return RecordCheck(size, RecordState.DAMAGED, f"a topic of {topic_bytes} bytes")
    property_bytes = INT16.unpack_from(data, topic_end)[0]
    if property_bytes < 0 or topic_end + 2 + property_bytes != end:
        return RecordCheck(size, RecordState.DAMAGED, "the lengths do not add up")
    if data[end - 1 if property_bytes else topic_end - 1] == 0 and topic_bytes + property_bytes:
        return _damaged("the text at its end is zeros: it was never written whole")
    if property_crc_from is not None and not property_crc_ok(
        memoryview(data)[position:end], own_offset >= property_crc_from
    ):
        return _damaged("the record does not have the CRC of its last property")
    return RecordCheck(size, RecordState.MESSAGE)


def _damaged(reason: str) -> RecordCheck:
    return RecordCheck(-1, RecordState.DAMAGED, reason)


class Damage(NamedTuple):
    """Damaged bytes: not a record, or a queue unit that the log contradicts.

    `resumed_at` is the log offset where records continue, if they do. `mended` says that the damage
    was repaired from the log, so that nothing is missing.
    """

    path: str
    position: int
    log_offset: int
    reason: str
    unused: bool = False
    resumed_at: int | None = None
    mended: bool = False

    def error(self) -> SegmentCorruptError:
        return SegmentCorruptError(self.path, self.reason, position=self.position)


class RecordScan:
    """Every record of one file, in blocks of columns; iterate it once, then ask how it ended.

    `position` is where the last good record ends. `damages` were skipped on the way. `doubted` are
    sound records whose store time cannot be right. `blank` says that a blank record closes the
    file; otherwise `rest` describes the bytes after the last record:
    None for no bytes, `unused` zeros, or a torn tail.
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
        property_crc_from: int = 0,
        last_store_timestamp: int = 0,
        time_max: int = INT64_MAX,
        killed_from: int = INT64_MAX,
        data_end: Callable[[int], int] | None = None,
    ) -> None:
        """A put at or after the log offset `killed_from` may have been killed half way."""
        self.position = position
        self.damages: list[Damage] = []
        self.doubted: list[Damage] = []
        self.blank = False
        self.rest: Damage | None = None
        self.last_store_timestamp = last_store_timestamp
        self._data = memoryview(data)
        self._base = base_offset
        self._path = path
        self._check_crc = check_crc
        self._check_property_crc = check_property_crc
        self._property_crc_from = property_crc_from
        self._data_end = data_end
        self._time_max = time_max
        self._killed_from = killed_from

    def __iter__(self) -> Iterator[RecordColumns]:
        while self.position < len(self._data):
            columns = self._block()
            if len(columns):
                self.position = int(columns.positions[-1] + columns.sizes[-1])
                self.last_store_timestamp = self._last_time(columns)
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
            if found is None or (damage.unused and self._is_killed_put(self.position, found)):
                self.rest = damage
                return
            self.damages.append(damage._replace(unused=False, resumed_at=self._base + found))
            self.position = found

    def _is_killed_put(self, position: int, found: int) -> bool:
        """Whether these zeros are the head of a put that was killed, and nothing else is missing.

        Then the rest of the first record is there, followed by the rest of the batch or a part of
        it: with a single store time, no larger than what the process copies itself, and with no
        record after it.
        """
        first = self._data[position + HEAD_BYTES : min(found, position + RECORD_BYTES_MIN)]
        if self._base + position < self._killed_from or not any(first):
            return False
        scan = RecordScan(self._data, base_offset=self._base, position=found)
        times: set[int] = set()
        for columns in scan:
            times |= {int(columns.store_timestamps[0]), int(columns.store_timestamps[-1])}
            if scan.position - position >= WRITE_BYTES_MIN or len(times) > 1:
                return False
        return not scan.damages and scan.rest is not None

    def _last_time(self, columns: RecordColumns) -> int:
        """The last store time, or the one before if the last is far ahead of it and of the clock.

        Later messages must not get a time that comes from a flipped bit. If both times are ahead of
        the clock, the clock is wrong.
        """
        last = int(columns.store_timestamps[-1])
        before = self.last_store_timestamp
        if len(columns) > 1:
            before = int(columns.store_timestamps[-2])
        if last <= max(self._time_max, before + DAY_MS) or before > self._time_max:
            return last
        at = int(columns.positions[-1])
        reason = f"store time {last} is more than a day ahead of the clock and the record before"
        end = self._base + self.position
        self.doubted.append(Damage(self._path, at, self._base + at, reason, resumed_at=end))
        return before

    def _check(self, position: int) -> RecordCheck:
        return check_record(
            self._data,
            position,
            log_offset=self._base + position,
            check_crc=self._check_crc,
            check_property_crc=self._check_property_crc,
            property_crc_from=self._property_crc_from,
        )

    def _next_proven(self, position: int) -> int | None:
        """Where the next proven record or closing blank record begins. Rare, so not fast."""
        data = self._data
        end = len(data) if self._data_end is None else self._data_end(position)
        for match in _MAGICS.finditer(data[: min(end, len(data))], position + 5):
            at = match.start() - 4
            check = check_record(
                data,
                at,
                log_offset=self._base + at,
                check_property_crc=self._check_property_crc,
                property_crc_from=self._property_crc_from,
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
        """The next records, up to the first that is not sound."""
        data = self._data
        at, end = self.position, len(data)
        last = end - RECORD_BYTES_MIN
        unpack = INT32.unpack_from
        starts: list[int] = []
        while at <= last and len(starts) < BLOCK_RECORDS:
            size = unpack(data, at)[0]
            if size < RECORD_BYTES_MIN or size > end - at:
                break
            starts.append(at)
            at += size
        starts.append(at)
        bounds = np.array(starts, np.int64)
        return sound_columns(
            data,
            bounds,
            bounds[:-1] + self._base,
            base_offset=self._base,
            path=self._path,
            check_crc=self._check_crc,
            check_property_crc=self._check_property_crc,
            property_crc_from=self._property_crc_from,
        )
