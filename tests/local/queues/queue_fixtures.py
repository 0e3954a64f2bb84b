"""What the tests of one consume queue share: a queue of short files, and messages for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tieredstore.codec.queue_unit import QueueUnit, QueueUnits
from tieredstore.local.consume_queue import ConsumeQueue
from tieredstore.local.mapped_file import MappedFiles

FILE_BYTES = 200  # ten units
SIZE = 100
Opener = Callable[[], ConsumeQueue]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "T" / "0"


@pytest.fixture
def reopen(directory: Path) -> Iterator[Opener]:
    queues: list[ConsumeQueue] = []

    def open_again() -> ConsumeQueue:
        queue = ConsumeQueue.open(directory, file_bytes=FILE_BYTES, files=MappedFiles(open_max=2))
        queues.append(queue)
        return queue

    yield open_again
    for queue in queues:
        queue.close()


def put(queue: ConsumeQueue, first: int, count: int = 1, *, at: int | None = None) -> int:
    """Messages of 100 bytes one behind the other: number k is at 100 * k of the log."""
    log_offsets = [(first if at is None else at) * SIZE + SIZE * n for n in range(count)]
    return queue.put(first, log_offsets, [SIZE] * count, [first + n for n in range(count)])


def rows(units: QueueUnits) -> list[QueueUnit]:
    columns = (units.log_offsets, units.message_bytes, units.tags_codes)
    return [QueueUnit(*row) for row in zip(*(one.tolist() for one in columns), strict=True)]


def whole(queue: ConsumeQueue) -> list[QueueUnit]:
    return rows(queue.units(queue.min_offset, queue.max_offset - queue.min_offset))


def numbers(*offsets: int) -> list[QueueUnit]:
    return [QueueUnit(offset * SIZE, SIZE, offset) for offset in offsets]
