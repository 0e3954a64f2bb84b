"""The ends of each queue's segments: do their units name records that are there?

What lives here: a few small reads for each segment of a queue. Every message is read by nobody
here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from tieredstore.access.care.audit_facts import TierFacts
from tieredstore.access.care.audit_report import Finding, FindingKind
from tieredstore.codec.end_marks import is_blank
from tieredstore.codec.queue_unit import UNIT_BYTES, QueueUnit, decode_unit
from tieredstore.codec.record_fields import MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2, peek_magic
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.segment import FileSegment
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentError
from tieredstore.model.values import SegmentType

LOG, QUEUE = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE
_MAGIC_BYTES = 8


def unit_findings(facts: TierFacts, provider: SegmentProvider, path: str) -> list[Finding]:
    """Of one queue whose segments are all there."""
    return list(_Queue(facts, provider, path).findings())


class _Queue:
    def __init__(self, facts: TierFacts, provider: SegmentProvider, path: str) -> None:
        self._facts = facts
        self._provider = provider
        self._logs: Sequence[SegmentRecord] = facts.files.get((path, LOG), [])
        self._queues: Sequence[SegmentRecord] = facts.files.get((path, QUEUE), [])

    def findings(self) -> Iterator[Finding]:
        last: tuple[SegmentRecord, int, QueueUnit] | None = None
        before = 0
        for row in self._queues:
            count = max(row.size, self._held(row)) // UNIT_BYTES
            if not count:
                continue
            with self._provider.open(row.path, row.type, row.base_offset) as segment:
                try:
                    first, final = _unit(segment, 0), _unit(segment, count - 1)
                    named = self._named(segment, count, final)
                    if 0 < named < count:
                        final = _unit(segment, named - 1)
                except (SegmentError, OffsetOutOfRangeError) as error:
                    yield _of(row, FindingKind.UNREADABLE, str(error))
                    return
            if first.log_offset < before and not first.is_prefill:
                detail = "its first unit names bytes before those of the segment before it"
                yield _of(row, FindingKind.DISORDER, detail)
            if named < count:
                detail = f"{count - named} of {count} units name bytes that the log has not"
                yield _of(row, FindingKind.UNITS_BEYOND, detail)
            if named and not final.is_prefill:
                before = final.log_offset + final.message_bytes
                last = row, named - 1, final
        if last is not None:
            yield from self._no_message(*last)

    def _held(self, row: SegmentRecord) -> int:
        """Units that may be taken in at the next start count here too."""
        following = [each for each in self._queues if each.base_offset > row.base_offset]
        there = self._facts.size(row)
        return min(there, following[0].base_offset - row.base_offset) if following else there

    @property
    def _log_end(self) -> int:
        if not self._logs:
            return 0
        last = self._logs[-1]
        return last.base_offset + max(last.size, self._facts.size(last))

    def _named(self, segment: FileSegment, count: int, final: QueueUnit) -> int:
        """How many units of a segment the log bears out; their records lie in their order."""

        def end(number: int) -> int:
            unit = _unit(segment, number)
            return 0 if unit.is_prefill else unit.log_offset + unit.message_bytes

        if final.is_prefill or final.log_offset + final.message_bytes <= self._log_end:
            return count
        return bisect_right(range(count), self._log_end, key=end)

    def _no_message(self, row: SegmentRecord, number: int, unit: QueueUnit) -> Iterator[Finding]:
        """The last unit's record, as far as it can be told from its first bytes."""
        bases = [each.base_offset for each in self._logs]
        at = bisect_left(bases, unit.log_offset + 1) - 1
        if at < 0:
            return  # it has expired
        held = self._logs[at]
        with self._provider.open(held.path, held.type, held.base_offset) as segment:
            try:
                data = segment.read(unit.log_offset - held.base_offset, _MAGIC_BYTES)
                is_message = peek_magic(data) in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2)
            except (SegmentError, OffsetOutOfRangeError):
                is_message, data = False, b""
        if not is_message and not is_blank(data):
            offset = row.base_offset // UNIT_BYTES + number
            detail = f"message {offset} is not where its unit says, at byte {unit.log_offset}"
            yield _of(row, FindingKind.NO_MESSAGE, detail)


def _unit(segment: FileSegment, number: int) -> QueueUnit:
    return decode_unit(segment.read(number * UNIT_BYTES, UNIT_BYTES), path=segment.path)


def _of(row: SegmentRecord, kind: FindingKind, detail: str) -> Finding:
    return Finding(kind=kind, path=row.path, type=row.type, base=row.base_offset, detail=detail)
