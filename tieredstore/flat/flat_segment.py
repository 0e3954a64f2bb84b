"""One segment of a tiered file, as memory has it.

What lives here: `FlatSegment`: the handle and its row. The list of them is in `append_file`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tieredstore.driver.segment import FileSegment
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.errors import SegmentNotFoundError


@dataclass(slots=True, eq=False)
class FlatSegment:
    """One segment of a file and what the catalogue says of it, kept up to date in memory.

    `record.size` is what is committed: readers see no byte beyond it.
    """

    segment: FileSegment
    record: SegmentRecord
    # Where the catalogue is not believed: what the records say, and at which size they said it.
    times_read: tuple[int, int, int] | None = None

    @property
    def base(self) -> int:
        return self.record.base_offset

    @property
    def end(self) -> int:
        return self.record.end_offset

    def backend_bytes(self) -> int:
        """How long it is in the backend; 0 where it is not there."""
        try:
            return self.segment.size()
        except SegmentNotFoundError:
            return 0

    def widen(self, begin: int | None, end: int | None, *, size: int) -> None:
        """More is committed, stored within [begin, end]."""
        begins = [time for time in (self.record.begin_timestamp, begin) if time is not None]
        ends = [time for time in (self.record.end_timestamp, end) if time is not None]
        self.record = replace(
            self.record,
            size=size,
            begin_timestamp=min(begins, default=None),
            end_timestamp=max(ends, default=None),
        )


def goes_on(known: Sequence[FlatSegment], segments: Sequence[FlatSegment]) -> bool:
    """Whether all that was committed before is still there as it was, but for what has expired."""
    if not known or not segments:
        return True
    rows = {each.base: each.record for each in segments}
    return known[-1].end <= segments[-1].end and all(
        each.record.create_timestamp == rows[each.base].create_timestamp
        and each.record.size <= rows[each.base].size
        for each in known
        if each.base in rows
    )
