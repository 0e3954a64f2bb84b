"""What each queue held at a moment when all of them were on disk.

What lives here: `QueueEnds` and its file, `config/tieredstore-queues.json`, and the comparison with
what is there now. A queue tells where it ends, but not where it should: one that lost its files
looks like one that never had more, and RocketMQ, which goes by the queue that came furthest, leaves
it so. The table is written at each clean end, after each load, and once for each file of the log:
cheap, and after a crash everything behind it is dispatched again anyway.

    {"version": 1, "logEnd": .., "logMin": .., "queues": {topic: {number: [first, end, last]}},
     "crc32": ".."}

`first` is the queue offset where the first file starts, `end` the next queue offset, `last` where
the newest message ends in the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from tieredstore.local.files.side_file import read_document, write_document
from tieredstore.local.queues.consume_queue import QueueEnd
from tieredstore.local.queues.consume_queues import ConsumeQueues
from tieredstore.local.queues.deleted_topics import DeletedTopics
from tieredstore.model.printable import log_of
from tieredstore.model.values import QueueKey

log = log_of(__name__)

ENDS_FILE: Final = "tieredstore-queues.json"
_NAMES: Final = ("version", "logEnd", "logMin", "queues")
_VERSION: Final = 1


class Lacking(NamedTuple):
    """What queues lack: dispatch from `replay_from` on, after `broken` ones are taken away."""

    replay_from: int
    broken: list[QueueKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEnds:
    """Every queue had every message below `log_end`, and this table says where each one ended."""

    log_end: int = 0
    log_min: int = 0
    queues: dict[QueueKey, QueueEnd] = field(default_factory=dict)

    @classmethod
    def of(cls, queues: ConsumeQueues, *, log_min: int) -> QueueEnds:
        """As it is now. True on disk after a dispatch, and then a flush of the queues."""
        ends = queues.ends()
        log_end = max((end.last_log_end for end in ends.values()), default=0)
        return cls(log_end=log_end, log_min=log_min, queues=ends)

    def save(self, path: Path) -> None:
        topics: dict[str, dict[str, list[int]]] = {}
        for (topic, queue_id), end in sorted(self.queues.items()):
            topics.setdefault(topic, {})[str(queue_id)] = list(end)
        document = {
            "version": _VERSION,
            "logEnd": self.log_end,
            "logMin": self.log_min,
            "queues": topics,
        }
        write_document(path, document)

    @classmethod
    def load(cls, path: Path) -> QueueEnds | None:
        """The table; None without one. A damaged one proves nothing: as if there was none."""
        try:
            return _decode(read_document(path, names=_NAMES))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s: damaged, all queues are compared with the log: %s", path, error)
            return None

    def lacking(self, queues: ConsumeQueues, deleted: DeletedTopics, *, log_min: int) -> Lacking:
        """Compare with what is there.

        The first file of a queue goes with the log's files, so its absence tells something only
        while the log begins where it did.
        """
        replay_from = 1 << 62
        broken = queues.with_gaps()
        for key, known in self.queues.items():
            needed = max(log_min, deleted.end_of(key.topic))
            if known.last_log_end <= needed:
                continue
            queue = queues.queue(*key)
            if queue is None:
                replay_from = log_min
                log.warning("queue %s: its files have gone, it is made again", key)
            elif log_min == self.log_min and queue.first_kept > known.first:
                broken.append(key)
            elif queue.last_log_end < known.last_log_end:
                replay_from = min(replay_from, max(needed, queue.last_log_end))
        if broken:
            log.warning("queues %s: files have gone, they are made again", sorted(set(broken)))
            replay_from = log_min
        return Lacking(replay_from, sorted(set(broken)))


def _decode(document: Any) -> QueueEnds:
    if document["version"] != _VERSION:
        raise ValueError(f"version {document['version']}")
    queues: dict[QueueKey, QueueEnd] = {}
    for topic, numbers in document["queues"].items():
        for number, values in numbers.items():
            end = QueueEnd(*map(_whole, values))
            queues[QueueKey(topic, int(number))] = end
    return QueueEnds(
        log_end=_whole(document["logEnd"]), log_min=_whole(document["logMin"]), queues=queues
    )


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no offset")
    return value
