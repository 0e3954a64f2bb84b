"""A queue whose messages expire, and what must be true of it, for tests."""

from __future__ import annotations

from tests.flat.tiers import OneQueue, fill
from tieredstore.flat import append_file
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.reading import read_run
from tieredstore.model.values import SegmentType
from tieredstore.testing.samples import STORE_TIMESTAMP, a_record

LOG, QUEUE = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE


def timed(first: int, times: list[int]) -> list[bytes]:
    return [a_record(first + n, store_timestamp=time) for n, time in enumerate(times)]


def a_tier(count: int = 30, *, log_bytes: int = 1000, queue_units: int = 4) -> OneQueue:
    """Messages a millisecond apart, in many segments of both kinds."""
    tier = OneQueue(log_bytes=log_bytes, queue_units=queue_units)
    fill(tier.open(), timed(0, [STORE_TIMESTAMP + n for n in range(count)]))
    return tier


def live(file: FlatMessageFile) -> list[int]:
    """The queue offsets that can be read, each of them read."""
    found: list[int] = []
    at = file.min_offset
    while at < file.commit_offset:
        run = read_run(file, at, count_max=7, bytes_max=1 << 20)
        if not len(run):
            at = file.queue.first_unit_from(at + 1)
            continue
        for row in range(len(run)):
            assert int.from_bytes(run.record(row)[20:28]) == at + row
        found += range(at, run.end_offset)
        at = run.end_offset
    return found


def check_sound(tier: OneQueue) -> None:
    """No row without bytes, no bytes without a row, nothing left to be deleted."""
    rows = {(row.type, row.base_offset): row for row in tier.metadata.segments()}
    for key, row in rows.items():
        assert len(tier.provider.held.get(key, b"")) == row.size
    assert set(tier.provider.held) <= set(rows)
    assert not tier.metadata.notes(append_file.DELETION_NOTE)
