"""Is this a record: one place of a log, looked at once.

What lives here: `check_record`. Whole files are walked in `record_scan`.
"""

from __future__ import annotations

from enum import Enum
from struct import Struct
from typing import Final, NamedTuple

from tieredstore.codec.bounds import Buffer
from tieredstore.codec.checksum import matches_property_crc
from tieredstore.codec.crc32 import crc32
from tieredstore.codec.end_marks import BLANK_MAGIC
from tieredstore.codec.message import MESSAGE_BYTES_MIN
from tieredstore.codec.record_fields import INT16, INT32, TOPIC_LENGTHS, fixed_bytes
from tieredstore.model.values import INT32_MAX

_FRAME: Final = Struct(">iI")  # size, magic
_HEAD: Final = Struct(">iIi16xqi")  # size, magic, body CRC, log offset, system flag


class RecordState(Enum):
    """What stands at a place of a log."""

    MESSAGE = "message"
    BLANK = "blank"
    DAMAGED = "damaged"


class RecordCheck(NamedTuple):
    """The verdict on one place.

    As RocketMQ has it: `size` is 0 for a blank record, and -1 for damage that does not even leave
    a size to skip.
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
) -> RecordCheck:
    """What stands at `position`. With `log_offset` the record must say that it lies there."""
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
    if size < MESSAGE_BYTES_MIN:
        return _damaged(f"a record of {size} bytes is too short")
    return _check_message(data, position, magic, log_offset, check_crc, check_property_crc)


def _check_message(
    data: Buffer,
    position: int,
    magic: int,
    log_offset: int | None,
    check_crc: bool,
    check_property_crc: bool,
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
    if check_property_crc and not matches_property_crc(memoryview(data)[position:end]):
        return _damaged("the record does not have the CRC of its last property")
    return RecordCheck(size, RecordState.MESSAGE)


def _damaged(reason: str) -> RecordCheck:
    return RecordCheck(-1, RecordState.DAMAGED, reason)
