"""What a dispatcher knows of one queue beside its file.

What lives here: `QueueWork`. Whoever holds the claim of the queue may change it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tieredstore.access.index_protocol import CommittedRun
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.values import QueueKey


@dataclass(slots=True, eq=False)
class QueueWork:
    """One queue on its way to the tier.

    * `batches` were appended to the file; they go when they are committed and the index has them.
    * `buffered_bytes` is what they take of the budget.
    * `index_from`: what is committed from this queue offset on the index still has to take.
    * `rows` are true, but the catalogue does not say so yet.
    """

    key: QueueKey
    file: FlatMessageFile | None = None
    stopped: str | None = None  # why nothing more may be uploaded, also after a restart
    is_to_resume: bool = False  # somebody asked: it is to be compared once more
    is_checked: bool = False  # the tier's last message is the local store's
    is_gone_locally: bool = False  # at the last look the local store had no such queue
    is_index_known: bool = False  # what the index has of it
    batches: list[CommittedRun] = field(default_factory=list)
    buffered_bytes: int = 0
    index_from: int | None = None
    rows: list[SegmentRecord] = field(default_factory=list)
    first_waiting: tuple[int, int] | None = None  # queue offset and store time
    needed_from: tuple[int, int] | None = None  # queue offset and its place in the local log
    wanted_bytes: int = 0  # of the budget, for a batch that did not fit
    lost_count: int = 0  # messages skipped since the start
    failure: str | None = None
    failure_count: int = 0

    def failed(self, error: BaseException) -> None:
        self.failure = str(error) or type(error).__name__
        self.failure_count += 1

    @property
    def batch_count(self) -> int:
        return sum(map(len, self.batches))
