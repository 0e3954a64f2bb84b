"""One queue of the tier in a few figures.

What lives here: `QueueSummary` and how it is found out.
"""

from __future__ import annotations

from dataclasses import dataclass

from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.values import QueueKey


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary:
    """What the tier has of one queue; times as the catalogue has them, None while it is empty."""

    key: QueueKey
    path: str
    min_offset: int
    max_offset: int
    log_bytes: int
    begin_timestamp: int | None
    end_timestamp: int | None
    problem: str | None


def summary_of(file: FlatMessageFile) -> QueueSummary:
    """As of now. May take one small read."""
    records = [each.record for each in file.log.segments if each.record.size]
    begins = [each.begin_timestamp for each in records if each.begin_timestamp is not None]
    ends = [each.end_timestamp for each in records if each.end_timestamp is not None]
    return QueueSummary(
        key=file.key,
        path=file.path,
        min_offset=file.min_offset,
        max_offset=file.commit_offset,
        log_bytes=sum(each.size for each in records),
        begin_timestamp=min(begins, default=None),
        end_timestamp=max(ends, default=None),
        problem=file.problem,
    )
