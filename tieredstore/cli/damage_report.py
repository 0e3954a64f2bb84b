"""What was wrong with a tier while it was looked at, gathered and told in one line.

What lives here: `TierDamage`.
"""

from __future__ import annotations

from tieredstore.cli.failures import CommandError, ExitCode
from tieredstore.cli.output import printable
from tieredstore.cli.tier import OpenedTier, check_answers
from tieredstore.model.errors import SegmentError
from tieredstore.model.values import QueueKey


class TierDamage:
    """Messages by number only, for there may be many, and queues with the first one's problem."""

    def __init__(self) -> None:
        self._message_count = 0
        self._first: SegmentError | None = None
        self._queue_count = 0
        self._problem = ""

    def add_messages(self, key: QueueKey, count: int, error: SegmentError) -> None:
        self._message_count += count
        self._first = self._first or error

    def add_queue(self, tier: OpenedTier, key: QueueKey, problem: str | None) -> None:
        """A queue of which something is missing; nothing where there is no problem."""
        if problem is not None:
            if not self._queue_count:
                check_answers(tier)
            self._queue_count += 1
            self._problem = self._problem or f"{key.topic}/{key.queue_id}: {problem}"

    def tell(self) -> None:
        """Raise what there is to say, when all that is sound was shown."""
        told = []
        if self._message_count:
            told.append(
                f"{self._message_count} damaged messages were not shown, the first: {self._first}"
            )
        if self._queue_count:
            queues = "1 queue has" if self._queue_count == 1 else f"{self._queue_count} queues have"
            told.append(f"{queues} lost something, the first: {self._problem}")
        if told:
            text = printable("; ".join(told))
            raise CommandError(f"{text}; restore the segment from a copy", ExitCode.DAMAGE)
