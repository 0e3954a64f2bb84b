"""The rows of the catalogue: topics, queues and segments.

Unset times are None here and 9223372036854775807 only in RocketMQ's JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

from tieredstore.model.values import QueueKey, SegmentType


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic and its number in the key index; `reserve_hours` None means the store's default."""

    topic: str
    topic_id: int
    reserve_hours: int | None = None
    status: int = 0
    update_timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRecord:
    """A queue as RocketMQ's catalogue knows it; its broker leaves both offsets at -1."""

    broker_name: str
    topic: str
    queue_id: int
    min_offset: int = -1
    max_offset: int = -1
    update_timestamp: int = 0

    @property
    def key(self) -> QueueKey:
        return QueueKey(self.topic, self.queue_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord:
    """One segment: `size` bytes from byte `base_offset` of its file on.

    `path` is the queue path `<broker>/<topic>/<queue id>`. `status` and `seal_timestamp` are
    never set by RocketMQ 5.3.3: we keep what we read and write zeros for what is new.
    """

    path: str
    type: SegmentType
    base_offset: int
    size: int = 0
    create_timestamp: int = 0
    begin_timestamp: int | None = None
    end_timestamp: int | None = None
    status: int = 0
    seal_timestamp: int = 0

    @property
    def key(self) -> tuple[str, SegmentType, int]:
        return self.path, self.type, self.base_offset

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size
