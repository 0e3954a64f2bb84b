"""Which topics stay out of the tier.

What lives here: RocketMQ's own rule, and the topics rejected while the program runs.
"""

from __future__ import annotations

from typing import Final

from tieredstore.model.config import StoreConfig

SYSTEM_TOPICS: Final = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
# "rmq_sys_" covers "rmq_sys_REVIVE_LOG_" too, which RocketMQ asks for by itself.
REJECTED_PREFIXES: Final = ("rmq_sys_", "%LMQ%")


def is_system_topic(topic: str) -> bool:
    """Whether RocketMQ made the topic for itself."""
    return topic in SYSTEM_TOPICS or topic.startswith("rmq_sys_")


class TopicFilter:
    """Says of a topic whether it stays out: system topics, the cluster's and the broker's own,
    light queues, blank names, and what was rejected since the start.

    Retry and dead letter topics are tiered. Any thread may ask and reject.
    """

    def __init__(self, config: StoreConfig) -> None:
        self._own = frozenset({config.cluster_name, config.broker_name})
        self._rejected: frozenset[str] = frozenset()

    def reject(self, topic: str) -> None:
        """Keep this topic out from now on; what the tier has of it goes at the next look."""
        self._rejected = self._rejected | {topic}

    def rejects(self, topic: str) -> bool:
        return (
            not topic.strip()
            or topic in SYSTEM_TOPICS
            or topic in self._own
            or topic.startswith(REJECTED_PREFIXES)
            or topic in self._rejected
        )
