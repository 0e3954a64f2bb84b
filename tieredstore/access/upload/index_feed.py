"""Handing committed messages to the key index, at once or later.

What lives here: the two ways. A batch that was just committed is still in memory. What the index
refused, or what a crash came before, is read back from the tier: nothing is kept for it but an
offset.
"""

from __future__ import annotations

from typing import Final

from tieredstore.access.index_protocol import CommittedRun, Index
from tieredstore.access.upload.queue_work import QueueWork
from tieredstore.access.upload.upload_budget import UploadBudget
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.queue_read import read_run
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.messages import MessageRun
from tieredstore.model.printable import log_of

log = log_of(__name__)

CATCH_UP_BYTES: Final = 512 * 1024  # of one read: they are outside of the budget


class IndexFeed:
    """Gives each committed message to the index at least once, in queue order for each queue."""

    def __init__(self, index: Index, budget: UploadBudget, config: StoreConfig) -> None:
        self._index = index
        self._budget = budget
        self._count_max = config.group_commit_count

    def opened(self, work: QueueWork, file: FlatMessageFile) -> None:
        """Find out what the index lacks of a queue that was there before."""
        topic, queue_id = file.key
        known = self._index.indexed_offset(topic, file.topic_id, queue_id)
        if known is not None and known < file.commit_offset:
            work.index_from = known

    def put_batches(self, work: QueueWork) -> None:
        """What was committed, from memory. Raises what the index raises; the work is kept."""
        batches, work.batches = work.batches, []
        try:
            if work.index_from is None and work.file is not None:
                for at, batch in enumerate(batches):
                    try:
                        self._put(work.file, batch)
                    except BaseException:
                        work.index_from = batches[at].run.first_offset
                        raise
        finally:
            self._budget.give(work.buffered_bytes)
            work.buffered_bytes = 0

    def catch_up(self, work: QueueWork, file: FlatMessageFile) -> None:
        """What the index did not take, from the tier."""
        if work.batches:
            self.put_batches(work)
        while work.index_from is not None:
            at = max(work.index_from, file.min_offset)
            run = self._read(file, at)
            if run is None:
                work.index_from = at + 1
            elif len(run):
                self._put(file, CommittedRun(run=run, log_offsets=run.log_offsets))
                work.index_from = run.end_offset
            elif at < (behind := file.queue.first_unit_from(at)):
                work.index_from = behind  # behind a gap
            else:
                work.index_from = None

    def _read(self, file: FlatMessageFile, at: int) -> MessageRun | None:
        """None where the message is damaged: nothing could find it, so it needs no index."""
        try:
            return read_run(file, at, count_max=self._count_max, bytes_max=CATCH_UP_BYTES)
        except SegmentCorruptError as error:
            log.error("message %d of %s is not indexed: %s", at, file.path, error)
            return None

    def _put(self, file: FlatMessageFile, run: CommittedRun) -> None:
        self._index.put(file.key.topic, file.topic_id, file.key.queue_id, run)
