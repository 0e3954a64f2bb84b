"""Topics: which names are valid, which are RocketMQ's own, and which stay out of the tier."""

from __future__ import annotations

import re
from typing import Final

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"  # delayed messages: their tags codes are times
SYSTEM_TOPICS: Final = frozenset(
    {
        "TBW102",
        SCHEDULE_TOPIC,
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
LIGHT_QUEUE_PREFIX: Final = "%LMQ%"

NAME_BYTES_MAX: Final = 255  # for one part of a path, in every file system that matters

_APART: Final = re.compile(r"[/\\\0]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
# S3 lists keys as XML, which cannot hold the first range, nor the last two characters; obstore
# refuses the first range. No RocketMQ broker allows any of them in the name of a topic.
_UNLISTED: Final = re.compile("[\x01-\x1f\x7f-\x9f\ufffe\uffff]")


def is_system_topic(topic: str) -> bool:
    """Whether RocketMQ made the topic for itself, such as `rmq_sys_REVIVE_LOG_`."""
    return topic in SYSTEM_TOPICS or topic.startswith("rmq_sys_")


class TopicFilter:
    """Says which topics stay out of the tier: system topics, the cluster's and the broker's own,
    light queues, blank names, and topics rejected since the start.

    Retry and dead letter topics are tiered. Any thread may ask and reject.
    """

    def __init__(self, cluster: str, broker: str) -> None:
        self._own = frozenset({cluster, broker})
        self._rejected: frozenset[str] = frozenset()

    def reject(self, topic: str) -> None:
        """Keep this topic out from now on; the next check deletes what the tier has of it."""
        self._rejected = self._rejected | {topic}

    def rejects(self, topic: str) -> bool:
        return (
            not topic.strip()
            or is_system_topic(topic)
            or topic in self._own
            or topic.startswith(LIGHT_QUEUE_PREFIX)
            or topic in self._rejected
        )


def why_no_topic(name: object) -> str | None:
    """Why no message may have this topic; None if it may.

    * One part of a path: no `/`, `\\` or NUL, neither empty nor `.` nor `..`, valid Unicode of at
      most 255 bytes in UTF-8.
    * No control character, nor U+FFFE or U+FFFF: an object store could not list it.

    Everything else may be a topic, even with blanks or a dot at the end, or `%RETRY%group`. Topics
    that differ only in case are different topics.
    """
    if not isinstance(name, str):
        return f"it is {type(name).__name__}, and no text"
    found = _UNLISTED.search(name)
    if found is not None:
        return f"it holds U+{ord(found[0]):04X}, which no object store lists"
    return why_no_directory(name)


def why_no_directory(name: str) -> str | None:
    """Why the name cannot be that of one directory, here or elsewhere; None if it can."""
    if name in ("", ".", ".."):
        return f"{name!r} cannot name a directory"
    found = _APART.search(name)
    if found is not None:
        return f"it holds {found[0]!r}, which parts names in some store"
    if _SURROGATE.search(name):
        return "it is no valid Unicode"
    size = len(name.encode())
    if size > NAME_BYTES_MAX:
        return f"{size} bytes are more than {NAME_BYTES_MAX}"
    return None
