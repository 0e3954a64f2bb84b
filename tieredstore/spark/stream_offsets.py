"""How far a stream has read each queue, and how far it reads next.

What lives here: `StreamOffsets`, which Spark keeps in its checkpoint as JSON, and `advanced`, which
shares a limit out among queues. Pure functions of numbers: no tier is asked.

    {"<topic>": {"<queue id>": next queue offset, "topic_id": number of the topic in the catalogue}}

A catalogue never gives the number of a topic twice: with another number, it is another topic of the
same name. Checkpoints that older versions wrote have no numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.values import QueueKey

_TOPIC_ID: Final = "topic_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffsets:
    """The queue offset that comes next in each queue, and the number of each topic if known."""

    offsets: Mapping[QueueKey, int] = field(default_factory=dict)
    topic_ids: Mapping[str, int] = field(default_factory=dict)

    def made_again(self, now: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Topics that have another number now: the one they had and the one they have."""
        return {
            topic: (number, now[topic])
            for topic, number in sorted(self.topic_ids.items())
            if topic in now and now[topic] != number
        }

    def without(self, topics: Collection[str]) -> StreamOffsets:
        return StreamOffsets(
            offsets={key: at for key, at in self.offsets.items() if key.topic not in topics},
            topic_ids={name: each for name, each in self.topic_ids.items() if name not in topics},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What a queue has that was not read: from `start` on up to `end`, of messages of this size."""

    start: int
    end: int
    bytes_each: float

    @property
    def count(self) -> int:
        return max(0, self.end - self.start)


def to_json(offsets: StreamOffsets) -> dict[str, dict[str, int]]:
    made: dict[str, dict[str, int]] = {}
    for key, offset in sorted(offsets.offsets.items()):
        made.setdefault(key.topic, {})[str(key.queue_id)] = offset
    for topic, queues in made.items():
        if topic in offsets.topic_ids:
            queues[_TOPIC_ID] = offsets.topic_ids[topic]
    return made


def from_json(document: object) -> StreamOffsets:
    """Raises InvalidConfigError for what is no offset of ours: another source's checkpoint."""
    offsets: dict[QueueKey, int] = {}
    topic_ids: dict[str, int] = {}
    if not isinstance(document, dict):
        raise _no_offset(document)
    for topic, queues in document.items():
        if not isinstance(queues, dict):
            raise _no_offset(document)
        for name, number in queues.items():
            if type(number) is not int:
                raise _no_offset(document)
            if name == _TOPIC_ID:
                topic_ids[topic] = number
            elif name.isascii() and name.isdigit():
                offsets[QueueKey(topic, int(name))] = number
            else:
                raise _no_offset(document)
    return StreamOffsets(offsets=offsets, topic_ids=topic_ids)


def _no_offset(document: object) -> InvalidConfigError:
    return InvalidConfigError(
        f"checkpoint: {str(document)[:60]!r} is no offset of a tieredstore stream"
    )


def advanced(
    backlogs: Mapping[QueueKey, Backlog], *, count_max: int | None, bytes_max: int | None
) -> dict[QueueKey, int]:
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
