"""Which messages of a tier are wanted: by topic, queue, offset, time and key.

What lives here: `Selection`. How it becomes pieces of work is in `scan_plan`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.jobs.reading.record_fields import RecordFields
from tieredstore.model.values import INT64_MAX, QueueKey

EVER: Final = (-INT64_MAX - 1, INT64_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """All conditions hold at once; None means any.

    * Offsets and times are half open: from the first on, up to but without the second. Times are
      store times in milliseconds.
    * `keys`: UNIQ_KEY or one of KEYS is one of these. `unique_keys`: UNIQ_KEY is.
    """

    topics: frozenset[str] | None = None
    topic_pattern: str | None = None
    queue_ids: frozenset[int] | None = None
    offsets: tuple[int, int] = (0, INT64_MAX)
    times: tuple[int, int] = EVER
    keys: frozenset[str] | None = None
    unique_keys: frozenset[str] | None = None

    def wants(self, key: QueueKey) -> bool:
        return (
            (self.topics is None or key.topic in self.topics)
            and (self.queue_ids is None or key.queue_id in self.queue_ids)
            and (self.topic_pattern is None or bool(re.fullmatch(self.topic_pattern, key.topic)))
        )

    @property
    def is_timed(self) -> bool:
        return self.times != EVER

    @property
    def key_texts(self) -> frozenset[str] | None:
        """What an index can be asked for: every message that is wanted has one of these keys."""
        return self.unique_keys if self.unique_keys is not None else self.keys

    def rows(self, fields: RecordFields) -> NDArray[np.int64]:
        """The sound rows of a run within offsets and times; keys are not looked at."""
        chosen = fields.sound
        first, end = self.offsets
        run = fields.run
        if run.first_offset < first or run.end_offset > end:
            chosen = chosen & (fields.queue_offsets >= first) & (fields.queue_offsets < end)
        if self.is_timed:
            times = fields.store_times()
            chosen = chosen & (times >= self.times[0]) & (times < self.times[1])
        return np.flatnonzero(chosen)

    # Narrowing

    def with_topics(self, topics: frozenset[str]) -> Selection:
        held = self.topics
        return replace(self, topics=topics if held is None else held & topics)

    def with_queue_ids(self, queue_ids: frozenset[int]) -> Selection:
        held = self.queue_ids
        return replace(self, queue_ids=queue_ids if held is None else held & queue_ids)

    def with_offsets(self, first: int = 0, end: int = INT64_MAX) -> Selection:
        held = self.offsets
        return replace(self, offsets=(max(held[0], first), min(held[1], end)))

    def with_times(self, first: int = EVER[0], end: int = EVER[1]) -> Selection:
        held = self.times
        return replace(self, times=(max(held[0], first), min(held[1], end)))

    def with_keys(self, keys: frozenset[str]) -> Selection:
        """Only where no keys were chosen yet: a message has several keys, two sets do not meet."""
        return self if self.keys is not None else replace(self, keys=keys)

    def with_unique_keys(self, keys: frozenset[str]) -> Selection:
        held = self.unique_keys
        return replace(self, unique_keys=keys if held is None else held & keys)


EVERYTHING: Final = Selection()
