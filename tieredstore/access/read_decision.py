"""Which store answers a read: the broker's own or the tier.

What lives here: the storage levels as decisions. Reading itself is in `message_reads` and
`merged_reads`.
"""

from __future__ import annotations

from tieredstore.access.reads.fetcher import Fetcher
from tieredstore.access.upload.topic_filter import TopicFilter
from tieredstore.driver.message_store import MessageStore
from tieredstore.model.values import StorageLevel


class ReadDecision:
    """Decides between a message store and the tier below it.

    | level | the tier is read |
    | --- | --- |
    | DISABLE | never |
    | NOT_IN_DISK | where it has the offset and the store has not |
    | NOT_IN_MEM | where it has the offset and the store has it on disk at best |
    | FORCE | always first |

    What the tier has not got is the next store's, whatever the level. A topic that stays out of
    the tier is never read there. The level may change at any time.
    """

    def __init__(
        self, next_store: MessageStore, topic_filter: TopicFilter, level: StorageLevel
    ) -> None:
        self._next = next_store
        self.topic_filter = topic_filter
        self.level = level

    @property
    def is_forced(self) -> bool:
        return self.level is StorageLevel.FORCE

    def may_read_tier(self, topic: str) -> bool:
        """Whether the tier has a say in this topic at all."""
        return self.level is not StorageLevel.DISABLE and not self.topic_filter.rejects(topic)

    def reads_tier(
        self, fetcher: Fetcher, topic: str, queue_id: int, offset: int, *, count: int = 1
    ) -> bool:
        """Whether the tier is asked first for the messages from this offset on."""
        level = self.level
        if not self.may_read_tier(topic):
            return False
        if level is StorageLevel.FORCE:
            return True
        commit_offset = fetcher.commit_offset(topic, queue_id)
        if commit_offset is None or offset >= commit_offset:
            return False
        if not fetcher.has_messages(topic, queue_id):  # started, or all of it has expired
            return False
        if self._next.min_log_offset() is None or not self._next.contains(topic, queue_id, offset):
            return True
        return level >= StorageLevel.NOT_IN_MEM and not self._next.in_memory(
            topic, queue_id, offset, max(1, count)
        )
