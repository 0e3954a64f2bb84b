"""Reading a queue from one end to the other: run after run, message after message.

What lives here: the next run of a queue, and the messages of a run. Which queues are read, and
what happens where one is gone meanwhile, is for the reader.
"""

from __future__ import annotations

from collections.abc import Iterator

from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.queue_read import read_run
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.messages import MessageRun, SelectedMessage


def next_run(file: FlatMessageFile, config: StoreConfig, start: int, end: int) -> MessageRun | None:
    """The next messages from `start` on, gaps stepped over; None where there are none before `end`.

    Of `read_ahead_bytes` at most, or a single message. Raises SegmentCorruptError for damage.
    """
    end = min(end, file.commit_offset)
    if start >= end:
        return None
    offset = file.queue.first_unit_from(max(start, file.min_offset))
    if offset >= end:
        return None
    run = read_run(
        file,
        offset,
        count_max=min(config.read_ahead_count, end - offset),
        bytes_max=config.read_ahead_bytes,
        checks_bodies=config.checks_bulk_reads,
    )
    if not len(run):
        raise SegmentCorruptError(file.path, f"message {offset} cannot be read", position=0)
    return run


def messages_of(run: MessageRun) -> Iterator[SelectedMessage]:
    for row in range(len(run)):
        yield SelectedMessage(
            queue_offset=run.first_offset + row,
            log_offset=int(run.log_offsets[row]),
            tags_code=int(run.tags_codes[row]),
            record=bytes(run.record(row)),
        )
