"""How far a stream has read each queue, and how far it reads next.

What lives here: `StreamOffsets`, which Spark keeps in its checkpoint as JSON, and `advanced`, which
shares a limit out among queues. Pure functions of numbers: no tier is asked.

    {"<topic>": {"<queue id>": next queue offset}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.values import QueueKey

StreamOffsets: TypeAlias = dict[QueueKey, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What a queue has that was not read: from `start` on up to `end`, of messages of this size."""

    start: int
    end: int
    bytes_each: float

    @property
    def count(self) -> int:
        return max(0, self.end - self.start)


def to_json(offsets: Mapping[QueueKey, int]) -> dict[str, dict[str, int]]:
    made: dict[str, dict[str, int]] = {}
    for key, offset in sorted(offsets.items()):
        made.setdefault(key.topic, {})[str(key.queue_id)] = offset
    return made


def from_json(document: object) -> StreamOffsets:
    """Raises InvalidConfigError for what is no offset of ours: another source's checkpoint."""
    found: StreamOffsets = {}
    if isinstance(document, dict):
        for topic, queues in document.items():
            if not isinstance(queues, dict):
                break
            for queue_id, offset in queues.items():
                if not queue_id.isdigit() or type(offset) is not int:
                    break
                found[QueueKey(topic, int(queue_id))] = offset
            else:
                continue
            break
        else:
            return found
    raise InvalidConfigError(
        f"checkpoint: {str(document)[:60]!r} is no offset of a tieredstore stream"
    )


def advanced(
    backlogs: Mapping[QueueKey, Backlog], *, count_max: int | None, bytes_max: int | None
) -> StreamOffsets:
    """Where each queue is read up to next, with at most so many messages and about so many bytes.

    A limit is shared out by what waits in each queue. At least one message is read where one
    waits, however large it is, and a queue that gets nothing comes first as its backlog grows.
    """
    counts = {key: backlog.count for key, backlog in backlogs.items()}
    if bytes_max is not None:
        costs = {key: max(1.0, backlog.bytes_each) for key, backlog in backlogs.items()}
        total = sum(counts[key] * costs[key] for key in counts)
        if total > bytes_max:
            within = {key: int(counts[key] * bytes_max / total) for key in counts}
            if not any(within.values()):
                within[max(counts, key=lambda key: counts[key])] = 1
            counts = within
    if count_max is not None:
        counts = _shared(counts, max(1, count_max))
    return {key: backlogs[key].start + counts[key] for key in backlogs}


def _shared(counts: Mapping[QueueKey, int], limit: int) -> dict[QueueKey, int]:
    total = sum(counts.values())
    if total <= limit:
        return dict(counts)
    shares = {key: count * limit // total for key, count in counts.items()}
    left = limit - sum(shares.values())
    # First those that got nothing, and of these the ones where most waits.
    hungry = sorted(counts, key=lambda key: (shares[key] > 0, -counts[key], key))
    for key in hungry:
        if not left:
            break
        if shares[key] < counts[key]:
            shares[key] += 1
            left -= 1
    return shares
