"""Which topics exist, what may be sent to them, and which names are valid; the store keeps them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from examples.broker.commands import Code, RefusedError
from examples.broker.storage import Storage
from tieredstore import QueueKey, TopicConfig

QUEUES_MAX: Final = 1_024
TOPICS_MAX: Final = 10_000
READ: Final = 4
WRITE: Final = 2
INHERIT: Final = 1

DEFAULT_TOPIC: Final = "TBW102"  # clients use its route for a topic that does not exist yet
RETRY: Final = "%RETRY%"
DEAD: Final = "%DLQ%"
SCHEDULE: Final = "SCHEDULE_TOPIC_XXXX"

_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
_GROUP: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,120}")


class Topics:
    """The topics of this broker: the store's table, and what a broker allows."""

    def __init__(self, storage: Storage, *, creates: bool = True, default_queues: int = 8) -> None:
        """`creates`: a message for a topic that does not exist creates it."""
        self._storage = storage
        self._table = storage.tier.topic_table
        self._creates = creates
        self._changes = self._kept = 0
        self._keeping = asyncio.Lock()
        if creates and self.get(DEFAULT_TOPIC) is None:
            self._put(topic_of(DEFAULT_TOPIC, default_queues, perm=READ | WRITE | INHERIT))

    def all(self) -> list[TopicConfig]:
        return self._table.all()

    def get(self, name: str) -> TopicConfig | None:
        return self._table.get(name)

    def set(self, topic: TopicConfig) -> None:
        """Create or change a topic; it never has fewer queues than it had."""
        known = self.get(topic.name)
        if known is not None:
            topic = replace(
                known,
                read_queue_count=max(topic.read_queue_count, known.read_queue_count),
                write_queue_count=max(topic.write_queue_count, known.write_queue_count),
                perm=topic.perm,
            )
        elif len(self.all()) >= TOPICS_MAX:
            raise RefusedError(Code.SYSTEM_ERROR, f"there are {TOPICS_MAX} topics already")
        if topic != known:
            self._put(topic)

    def _put(self, topic: TopicConfig) -> None:
        self._table.put(topic)
        self._changes += 1

    def found(self, queues: Iterable[QueueKey]) -> None:
        """Add the topics and queues of a store, in case the table of topics was lost, or is older.

        Messages reach the tier sooner than the table: after a lost disk, a topic that had just
        got more queues has them in the store, but not in the table. What is there already is added
        whatever the number of topics.
        """
        counts: dict[str, int] = {}
        for name, queue_id in queues:
            counts[name] = max(counts.get(name, 0), min(queue_id + 1, QUEUES_MAX))
        for name, count in counts.items():
            known = self.get(name)
            if known is not None:
                self.set(replace(known, read_queue_count=max(known.read_queue_count, count)))
            elif _TOPIC.fullmatch(name):
                self._put(topic_of(name, count))

    def to_write(self, name: str, *, wanted_queues: int) -> TopicConfig:
        """The topic of a message that is sent; created if that is allowed."""
        topic = self.get(name)
        if topic is None:
            template = self.get(DEFAULT_TOPIC)
            if name.startswith((RETRY, DEAD)):
                count = 1
            elif self._creates and template is not None:
                count = max(1, min(wanted_queues, template.write_queue_count))
            else:
                raise RefusedError(Code.TOPIC_NOT_EXIST, f"there is no topic {name!r:.140}")
            topic = topic_of(name, count)
            self.set(topic)
        if not topic.perm & WRITE or not topic.write_queue_count:  # as RocketMQ's tools may say it
            raise RefusedError(Code.NO_PERMISSION, f"{name}: sending is forbidden")
        return topic

    async def keep(self) -> None:
        """When this returns, all earlier changes are on disk. Raises OSError.

        The first caller continues first, so messages of a new topic stay in order.
        """
        async with self._keeping:
            changes = self._changes
            if changes > self._kept:
                await self._storage.call(self._table.write)
                self._kept = changes


def topic_of(
    name: str, read_queues: int, write_queues: int | None = None, *, perm: int = READ | WRITE
) -> TopicConfig:
    """A topic with as many queues to write as to read, by default. Raises RefusedError."""
    if write_queues is None:
        write_queues = read_queues
    if not _TOPIC.fullmatch(name):
        raise RefusedError(Code.SYSTEM_ERROR, f"{name!r:.140} cannot name a topic")
    if max(read_queues, write_queues) > QUEUES_MAX:
        raise RefusedError(Code.SYSTEM_ERROR, f"more than {QUEUES_MAX} queues")
    return TopicConfig(
        name=name, read_queue_count=read_queues, write_queue_count=write_queues, perm=perm
    )


def require_group(group: str) -> str:
    if not _GROUP.fullmatch(group):
        raise RefusedError(Code.SYSTEM_ERROR, f"{group!r:.140} cannot name a group")
    return group
