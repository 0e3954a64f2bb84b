"""Searches over all index files, newest first: as Java answers, and so that none is missed.

What lives here: functions over a list of files, the oldest first. One file is `index_file`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tieredstore.local.keys.index_chain import CLOCK_SLACK_MS
from tieredstore.local.keys.index_file import IndexFile
from tieredstore.model.errors import SegmentCorruptError

NOTHING_INDEXED: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexAnswer:
    """What Java answers to a query by key; the last update is the end of the newest file."""

    log_offsets: list[int]
    last_update_timestamp: int
    last_update_log_offset: int


def answer_like_java(
    files: Sequence[IndexFile], key_hash: int, *, count_max: int, begin: int, end: int
) -> IndexAnswer:
    """Java's answer: a file whose header does not touch the times is passed over."""
    found: list[int] = []
    for file in reversed(files):
        if file.is_time_matched(begin, end):
            room = count_max - len(found)
            found += file.query_like_java(key_hash, begin=begin, end=end, count_max=room)
        if file.header.begin_timestamp < begin or len(found) >= count_max:
            break
    newest = files[-1].header if files else None
    return IndexAnswer(
        log_offsets=found,
        last_update_timestamp=newest.end_timestamp if newest else 0,
        last_update_log_offset=newest.end_log_offset if newest else 0,
    )


def all_candidates(
    files: Sequence[IndexFile], key_hash: int, *, begin: int, end: int
) -> Iterator[int]:
    """Every log offset that may answer, newest first, each once.

    A damaged file hides nothing of the others; SegmentCorruptError comes after all of them.
    """
    last = NOTHING_INDEXED
    damaged: SegmentCorruptError | None = None
    for file in reversed(files):
        if file.may_hold(begin, end):
            try:
                for log_offset in file.candidates(key_hash, begin=begin, end=end):
                    if log_offset != last:  # the order of the log brings equal ones together
                        yield log_offset
                    last = log_offset
            except SegmentCorruptError as error:
                damaged = damaged or error
        if 0 < file.header.begin_timestamp < begin - CLOCK_SLACK_MS:
            break
    if damaged is not None:
        raise damaged
