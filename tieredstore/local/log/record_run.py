"""The records that units name, read from the log many at a time.

What lives here: `read_records`. One alone is read by `CommitLog.message_bytes`, which takes the
same ones for sound and says what is wrong with others.
"""

from __future__ import annotations

from itertools import pairwise, starmap

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.checksum import gainsays_property_crc
from tieredstore.codec.message import MESSAGE_BYTES_MIN
from tieredstore.codec.words import Words
from tieredstore.local.files.mapped_file_queue import MappedFileQueue
from tieredstore.local.records.record_columns import RecordColumns
from tieredstore.local.records.sound_columns import sound_columns, sound_count
from tieredstore.model.errors import SegmentNotFoundError
from tieredstore.model.values import INT64_MAX


def read_records(
    files: MappedFileQueue,
    log_offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    *,
    check_property_crc: bool = False,
) -> tuple[RecordColumns, bytearray]:
    """Those that are there and sound, up to the first that is not, as columns of the bytes beside.

    The bytes are copied once, neighbours in the log together.
    """
    count = sound_count((sizes >= MESSAGE_BYTES_MIN) & (log_offsets <= INT64_MAX - sizes))
    log_offsets, sizes = log_offsets[:count], sizes[:count]
    ends = log_offsets + sizes
    pieces: list[memoryview] = []
    row = 0
    while row < count:
        file = files.find(int(log_offsets[row]))
        if file is None:
            break
        start, stop = file.start_offset, file.start_offset + file.wrote
        inside = sound_count((log_offsets[row:] >= start) & (ends[row:] <= stop))
        if not inside:
            break
        try:
            whole = file.view(0, stop - start)
        except SegmentNotFoundError:  # deleted just now
            break
        rows = slice(row, row + inside)
        pieces += _pieces(whole, log_offsets[rows] - start, ends[rows] - start)
        row += inside
    records = bytearray().join(pieces)
    columns = _sound_rows(records, log_offsets[:row], sizes[:row], check_property_crc)
    return columns, records


def _pieces(
    whole: memoryview, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> map[memoryview]:
    """The parts of a file between these places, as few as can be."""
    parted = starts[1:] != ends[:-1]
    firsts = starts[np.append(True, parted)].tolist()
    lasts = ends[np.append(parted, True)].tolist()
    return map(whole.__getitem__, map(slice, firsts, lasts))


def _sound_rows(
    records: bytearray,
    log_offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    check_property_crc: bool,
) -> RecordColumns:
    bounds = np.append(0, np.cumsum(sizes))
    data = memoryview(records)
    count = sound_count(Words(data).int32(bounds[:-1]) == sizes)
    if check_property_crc:
        spans = starmap(slice, pairwise(bounds[: count + 1].tolist()))
        wrong = map(gainsays_property_crc, map(data.__getitem__, spans))
        count = next((row for row, is_wrong in enumerate(wrong) if is_wrong), count)
    return sound_columns(data, bounds[: count + 1], log_offsets[:count])
