"""Sealing what is full, where that takes its time: in the background, and again after a failure.

What lives here: which segments of a queue are to be sealed, and rolling those that are written so
that they can be. Nothing remembers them: every segment but the last whose backend still has work
to do is one, after a crash too. What sealing is, is for the provider to say.
"""

from __future__ import annotations

from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.errors import (
    SegmentNotFoundError,
    StoreClosedError,
    TieredStoreError,
)
from tieredstore.model.printable import log_of

log = log_of(__name__)


def seal_full(file: FlatMessageFile) -> dict[str, TieredStoreError]:
    """Seal the segments behind which the queue has gone on; those that could not be, and why.

    Any thread, beside everything else that goes on with the queue.
    """
    failures: dict[str, TieredStoreError] = {}
    for each in (file.log, file.queue):
        for full in each.segments[:-1]:
            if not full.segment.wants_seal:
                continue
            try:
                full.segment.seal()
            except (StoreClosedError, SegmentNotFoundError):
                continue  # dropped meanwhile
            except TieredStoreError as error:
                log.warning("%s could not be sealed: %s", full.segment.path, error)
                failures[full.segment.path] = error
    return failures


def roll_unsealed(file: FlatMessageFile) -> bool:
    """Begin new segments where those that are written would have to be sealed; for who claims the
    queue. False where something waits or is in doubt: it must be committed first. And where
    messages are to be compared: they may be taken back, and what follows them not."""
    if file.waiting_bytes or file.is_in_doubt or file.problem is not None:
        return False
    if file.unconfirmed_from is not None:
        return False
    for each in (file.log, file.queue):
        if each.is_started and _is_unsealed(each):
            each.roll()
    return True


def _is_unsealed(file: FlatAppendFile) -> bool:
    last = file.segments[-1]
    return bool(last.record.size) and last.segment.wants_seal
