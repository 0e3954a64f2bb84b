"""What recovery finds in the files of one consume queue.

What lives here: where the units end, and vectorised looks at many units. Nothing is written.

A unit is valid while its log offset is not negative and its size is positive, as in Java; and its
record must begin where the one before ends, or behind. Without the second rule units that a cut had
left behind come back: they are valid, but of an older history.

A search by halves meets single units that may be damaged. It looks beside the place that it found
and goes on where these say otherwise, so that one wrong unit does not hide its neighbours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.queue_unit import (
    UNIT_BYTES,
    QueueUnit,
    QueueUnits,
    decode_unit,
    decode_units,
)
from tieredstore.local.files.mapped_file import MappedFile
from tieredstore.model.values import INT32_MAX, INT64_MAX

_FILES_SCANNED: Final = 3
_BLOCK_BYTES: Final = UNIT_BYTES << 14
_FIRST_BLOCK_BYTES: Final = UNIT_BYTES << 9
_EXTENSION_ADDRESS_MAX: Final = -(2**31) - 1


class Found(NamedTuple):
    """What there is, in queue offsets; `last_log_end` is 0 where there is no message."""

    first_message: int
    end: int
    last_log_end: int


def scan(files: Sequence[MappedFile]) -> Found:
    """Find the end of a queue, looking at its last files only.

    The files are read, not mapped: opening a store comes here once for each of its queues, and
    most of those are not touched again for a long time.
    """
    if not files:
        return Found(0, 0, 0)
    number = max(0, len(files) - _FILES_SCANNED)
    while number > 0 and not _begins_well(files[number]):
        number -= 1
    end, last = _end_of_units(files[number:])
    if last is None and number > 0:
        last = _last_unit(files[number - 1])
    first_file = files[0]
    first = first_where(
        first_file.start_offset // UNIT_BYTES,
        min(end, first_file.end_offset) // UNIT_BYTES,
        lambda unit: not _unit_in(first_file, unit).is_prefill,
    )
    known = last is not None and not last.is_prefill
    return Found(first, end // UNIT_BYTES, _log_end(last) if last and known else 0)


def first_where(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number in [low, high) from which on something holds, or `high`.

    One number that lies about it changes the answer by one at most: where two on one side of the
    place that was found gainsay it, the search goes on there.
    """
    first, end = low, high
    while True:
        found = _halved(first, end, holds)
        if found - 2 >= first and holds(found - 2) and (found - 3 < first or holds(found - 3)):
            end = found - 2
        elif found + 2 < end and not holds(found + 1) and not holds(found + 2):
            first = found + 1
        else:
            return found


def _halved(low: int, high: int, holds: Callable[[int], bool]) -> int:
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def matching_tags(units: QueueUnits, codes: Collection[int]) -> NDArray[np.bool_]:
    """Which units may hold a message with one of these 32-bit tag hashes.

    As in Java the low 32 bits are compared, and a unit whose tags code is an address in an
    extended queue matches everything: what it stands for is not known here.
    """
    tags_codes = units.tags_codes
    low = tags_codes.astype(np.int32)  # keeps the low 32 bits, with their sign
    wanted = np.array(sorted({_int32(code) for code in codes}), np.int32)
    mask: NDArray[np.bool_] = tags_codes <= _EXTENSION_ADDRESS_MAX
    if len(wanted) > 8:
        return mask | np.isin(low, wanted)
    for code in wanted:
        mask |= low == code
    return mask


def _int32(code: int) -> int:
    return (code & 0xFFFFFFFF) - ((code & 0x80000000) << 1)


def _log_end(unit: QueueUnit) -> int:
    return unit.log_offset + unit.message_bytes


def _begins_well(file: MappedFile) -> bool:
    unit = _unit_in(file, file.start_offset // UNIT_BYTES)
    return unit.log_offset >= 0 and unit.message_bytes > 0


def _last_unit(file: MappedFile) -> QueueUnit:
    return _unit_in(file, file.end_offset // UNIT_BYTES - 1)


def _unit_in(file: MappedFile, unit: int) -> QueueUnit:
    position = unit * UNIT_BYTES - file.start_offset
    descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return decode_unit(os.pread(descriptor, UNIT_BYTES, position), path=file.path)
    finally:
        os.close(descriptor)


def _end_of_units(files: Sequence[MappedFile]) -> tuple[int, QueueUnit | None]:
    """The byte at which the valid units end, and the last of them."""
    last: QueueUnit | None = None
    for before, file in zip((None, *files), files, strict=False):
        if before is not None and before.end_offset != file.start_offset:
            return before.end_offset, last
        position, last = _end_within(file, last)
        if position < file.size:
            return file.start_offset + position, last
    return files[-1].end_offset, last


def _end_within(file: MappedFile, last: QueueUnit | None) -> tuple[int, QueueUnit | None]:
    position, block_bytes = 0, _FIRST_BLOCK_BYTES  # most queues are short
    descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while position < file.size:
            length = min(block_bytes, file.size - position)
            data = os.pread(descriptor, length, position)
            units = decode_units(data[: len(data) - len(data) % UNIT_BYTES])
            previous_end = 0 if last is None or last.is_prefill else _log_end(last)
            valid = _valid_prefix(units, previous_end)
            position += valid * UNIT_BYTES
            if valid:
                last = decode_unit(data, (valid - 1) * UNIT_BYTES)
            if valid * UNIT_BYTES < length:
                break
            block_bytes = _BLOCK_BYTES
    finally:
        os.close(descriptor)
    return position, last


def _valid_prefix(units: QueueUnits, previous_end: int) -> int:
    """How many of the units are valid, up to the first that is not."""
    if len(units) == 0:
        return 0
    log_offsets, sizes = units.log_offsets, units.message_bytes
    ends = np.empty_like(log_offsets)
    ends[0] = previous_end
    ends[1:] = log_offsets[:-1] + sizes[:-1]
    # A unit that only fills a place has log offset 0, which the first message may have as well.
    ends[1:][(sizes[:-1] == INT32_MAX) & (log_offsets[:-1] == 0)] = 0
    invalid = (log_offsets < ends) | (log_offsets < 0) | (sizes <= 0)
    invalid |= log_offsets > INT64_MAX - INT32_MAX
    first = int(invalid.argmax())
    return first if invalid[first] else len(log_offsets)
