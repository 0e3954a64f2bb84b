"""What an append to a queue took, and what a commit of it sends.

What lives here: values only; `message_file` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tieredstore.driver.provider import WritePair
from tieredstore.flat.segment_writer import Upload


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAttempt:
    """Both files' share of one commit, to be sent as a pair and then settled."""

    log: Upload | None
    queue: Upload | None

    @property
    def pair(self) -> WritePair:
        return WritePair(
            log=None if self.log is None else self.log.write,
            queue=None if self.queue is None else self.queue.write,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """How many messages of a run were taken, where each lies in the tier's commit log, and their
    records as they lie there, one behind the other."""

    count: int
    log_offsets: NDArray[np.int64]
    records: memoryview
