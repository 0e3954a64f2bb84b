"""The consume queue of one tiered queue: 20 bytes a message, in queue order.

What lives here: `FlatConsumeQueueFile`, which counts in messages where its base counts in bytes.
"""

from __future__ import annotations

from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Clock
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import SegmentType


class FlatConsumeQueueFile(FlatAppendFile):
    """The units of one queue; unit number k is at byte 20 * k. There may be gaps before segments:
    messages that the broker's store lost before they were tiered."""

    def __init__(
        self,
        path: str,
        config: StoreConfig,
        *,
        provider: SegmentProvider,
        metadata: MetadataStore,
        clock: Clock,
    ) -> None:
        whole_units = config.consume_queue_segment_bytes // UNIT_BYTES * UNIT_BYTES
        super().__init__(
            path,
            SegmentType.CONSUME_QUEUE,
            provider=provider,
            metadata=metadata,
            clock=clock,
            segment_bytes_max=whole_units,
        )

    @property
    def min_unit(self) -> int:
        return self.min_offset // UNIT_BYTES

    @property
    def commit_unit(self) -> int:
        return self.commit_offset // UNIT_BYTES

    @property
    def append_unit(self) -> int:
        return self.append_offset // UNIT_BYTES

    def first_unit_from(self, unit: int) -> int:
        """The first unit that there is at or behind this one: the end of the gap it lies in."""
        found = self.segment_at(unit * UNIT_BYTES)
        if found is not None and unit * UNIT_BYTES < found.end:
            return unit
        later = [each.base for each in self.segments if each.base >= unit * UNIT_BYTES]
        return min([*later, self.commit_offset]) // UNIT_BYTES

    def units_in_a_row(self, unit: int) -> int:
        """How many committed units follow each other from this one on, without a gap."""
        at = end = unit * UNIT_BYTES
        for each in self.segments:
            if each.base <= end < each.end:
                end = each.end
        return (end - at) // UNIT_BYTES
