"""The topics and queues that were meant, and saying which there are where they are not there.

What lives here: choosing among keys. It knows of no store.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from tieredstore.cli.failures import CommandError, ExitCode
from tieredstore.cli.output import printable

if TYPE_CHECKING:
    from tieredstore.model.values import QueueKey

_TOPICS_NAMED_MAX = 5
_QUEUES_NAMED_MAX = 10


def chosen(
    everything: Sequence[QueueKey],
    topic: str | None,
    queue_id: int | None,
    *,
    topics: Collection[str] = (),
    where: str = "store",
) -> list[QueueKey]:
    """The queues that are meant; naming one that is not there is an error.

    `topics` may be there without a queue.
    """
    keys = [key for key in everything if topic in (None, key.topic)]
    if topic is not None and not keys and topic not in topics:
        names = sorted({key.topic for key in everything}.union(topics))
        raise CommandError(
            f"no topic {printable(topic)!r} is in this {where}; there are: {known_names(names)}",
            ExitCode.NOT_THERE,
        )
    found = [key for key in keys if queue_id in (None, key.queue_id)]
    if queue_id is not None and not found:
        numbers = [str(number) for number in sorted({key.queue_id for key in keys})]
        raise CommandError(
            f"no queue {queue_id} is there; there are: {known_names(numbers, _QUEUES_NAMED_MAX)}",
            ExitCode.NOT_THERE,
        )
    return found


def known_names(names: Sequence[str], count_max: int = _TOPICS_NAMED_MAX) -> str:
    """The first of them, for an error."""
    more = ", ..." if len(names) > count_max else ""
    return ", ".join(map(printable, names[:count_max])) + more or "none"
