"""What a queue may need beside uploads: whatever takes the catalogue, or the backend's answer.

What lives here: `QueueChores`. Each runs in a pool with the queue claimed; one that raises counts
as a failure of the queue and comes again.
"""

from __future__ import annotations

from tieredstore.access.upload.agreement import (
    contradiction,
    difference,
    disagreement,
    forget_stop,
    is_ahead,
    is_asked_to_resume,
    stop_queue,
    stopped_before,
)
from tieredstore.access.upload.index_feed import IndexFeed
from tieredstore.access.upload.queue_work import QueueWork
from tieredstore.access.upload.upload_budget import UploadBudget
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.metadata import MetadataStore, Put
from tieredstore.driver.runtime import Clock
from tieredstore.flat import unconfirmed
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.config import StoreConfig
from tieredstore.model.printable import log_of
from tieredstore.model.values import Boundary

log = log_of(__name__)

RECENT_MS = 120_000


class QueueChores:
    """Begins, checks, stops, skips, rolls and destroys queues of the tier."""

    def __init__(
        self,
        store: MessageStore,
        files: FlatFileStore,
        metadata: MetadataStore,
        feed: IndexFeed,
        budget: UploadBudget,
        *,
        config: StoreConfig,
        clock: Clock,
    ) -> None:
        self._store = store
        self._files = files
        self._metadata = metadata
        self._feed = feed
        self._budget = budget
        self._clock = clock
        self._begins_recent = config.initial_offset == "recent"

    def renew(self, work: QueueWork) -> None:
        """Take note of a file that came, went or is another one since the last look. No I/O."""
        file = self._files.get(work.key)
        if file is work.file:
            return
        self._budget.give(work.buffered_bytes)
        work.file, work.batches, work.rows, work.buffered_bytes = file, [], [], 0
        work.is_checked, work.is_index_known = False, False
        work.index_from = work.failure = work.first_waiting = work.needed_from = None
        work.stopped = None if file is None else stopped_before(file, self._metadata)
        work.is_to_resume = file is not None and is_asked_to_resume(file.path, self._metadata)

    def open_index(self, work: QueueWork, file: FlatMessageFile) -> None:
        """Find out what the index lacks."""
        self._feed.opened(work, file)
        work.is_index_known = True

    def begin(self, work: QueueWork, minimum: int, maximum: int) -> None:
        """The first message of the tier: the oldest local one, or one of two minutes ago.

        A queue whose name the tier can never hold is stopped: its messages wait for nothing.
        """
        file = work.file
        work.stopped = self._files.why_refused(work.key)
        if work.stopped is not None:
            log.error("%s is not uploaded: %s", work.key, work.stopped)
            return
        if file is None:
            file = self._files.create(*work.key)
            forget_stop(file, self._metadata)  # what stopped an earlier queue of this name
            self.renew(work)
            if file.problem is not None:
                return
        first = minimum
        if self._begins_recent:
            since = self._clock.now_ms() - RECENT_MS
            found = self._store.offset_by_time(*work.key, since, Boundary.LOWER)
            first = minimum if found is None else min(max(found, minimum), maximum)
        file.start_at(first)
        work.is_checked = work.is_index_known = True  # there is nothing yet

    def destroy(self, work: QueueWork) -> None:
        """A topic that is kept out: what the tier has of it goes."""
        file = work.file
        self._files.destroy(work.key)
        if file is not None:
            forget_stop(file, self._metadata)
        self.renew(work)

    def save_rows(self, work: QueueWork) -> None:
        """Late: some of the segments may be gone, and the others longer."""
        if work.file is not None:
            self._metadata.apply([Put(row) for row in work.file.current_rows(work.rows)])
        work.rows = []

    def index(self, work: QueueWork, file: FlatMessageFile) -> None:
        self._feed.catch_up(work, file)

    def skip(self, work: QueueWork, file: FlatMessageFile, minimum: int) -> None:
        """The local store lost messages before they were uploaded: a gap, and not the end."""
        lost = minimum - file.append_offset
        log.error("%s: %d messages from %d were lost", file.path, lost, file.append_offset)
        file.skip_to(minimum)
        work.lost_count += lost
        work.is_checked = True  # the last tiered message is older than all local ones

    def stop_ahead(self, work: QueueWork, file: FlatMessageFile, maximum: int) -> None:
        self._stop(work, file, is_ahead(file, maximum))

    def check(self, work: QueueWork, file: FlatMessageFile) -> None:
        reason = disagreement(self._store, file)
        if reason is not None:
            self._stop(work, file, reason)
        work.is_checked = True

    def confirm(self, file: FlatMessageFile) -> None:
        """Are messages ours that the catalogue did not name? If not, the queue is without them."""
        reason = contradiction(self._store, file)
        if reason is None:
            unconfirmed.confirm(file, self._metadata)
            return
        first = file.unconfirmed_from
        log.warning("%s: what lies there from %s on does not count: %s", file.path, first, reason)
        unconfirmed.take_back(file, self._metadata)

    def resume(self, work: QueueWork) -> str | None:
        """Go on with a stopped queue, where both sides hold the same; else why it stays stopped."""
        file = work.file
        if file is None:
            return work.stopped or "the tier has no such queue"
        if reason := self._files.why_refused(work.key):
            return reason
        if work.stopped is None and file.problem is None:
            return work.failure and f"it is tried again and again, and fails: {work.failure}"
        if file.waiting_bytes:
            return "messages of it wait for their upload"
        work.is_index_known = False
        self._files.look_again(file)  # what was amiss may have been put right
        work.is_to_resume = False
        if file.problem is not None:
            return file.problem
        if reason := difference(self._store, file):
            self._stop(work, file, reason)
            return reason
        forget_stop(file, self._metadata)
        work.stopped = work.failure = work.needed_from = None
        work.is_gone_locally = work.is_index_known = False
        work.is_checked = True
        log.info("%s: it is uploaded again", file.path)
        return None

    def try_to_resume(self, work: QueueWork, file: FlatMessageFile) -> None:
        reason = self.resume(work)
        if reason is not None:
            log.error("%s: it stays stopped: %s", file.path, reason)

    def settle(self, work: QueueWork, file: FlatMessageFile) -> None:
        """Take in what a failed upload has landed: nothing that is in memory knows of it."""
        work.is_index_known = False
        self._files.look_again(file)

    def roll(self, file: FlatMessageFile) -> None:
        file.roll_if_due()

    def _stop(self, work: QueueWork, file: FlatMessageFile, reason: str) -> None:
        log.error("%s: nothing more is uploaded: %s", file.path, reason)
        work.stopped = reason
        stop_queue(file, reason, self._metadata)
