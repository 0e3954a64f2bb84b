"""Rows of the catalogue against what lies in the backend, without a read.

What lives here: what is missing, short, overlapping, apart or named by nobody. What the bytes say
is looked at in `audit_units`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tieredstore.access.care.audit_facts import SegmentKey, TierFacts
from tieredstore.access.care.audit_report import Finding, FindingKind
from tieredstore.codec.names import INDEX_TOPIC
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.metadata import MetadataStore
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.values import SegmentType

LOG, QUEUE, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX


def segment_findings(facts: TierFacts) -> Iterator[Finding]:
    """Each segment's own, and what is wrong between it and the next one."""
    begins = set(facts.unnamed)
    for rows in facts.files.values():
        for row, following in zip(rows, [*rows[1:], None], strict=True):
            yield from _of_row(row, following, facts.size(row))
        for row, following in pairwise(rows):
            lost = facts.size(row) < min(row.size, following.base_offset - row.base_offset)
            end = row.base_offset + max(row.size, facts.size(row))
            filled = any((row.path, row.type, at) in begins for at in (row.end_offset, end))
            if end < following.base_offset and not lost and not filled:
                yield from _apart(row, end, following.base_offset)


def _of_row(row: SegmentRecord, following: SegmentRecord | None, there: int) -> Iterator[Finding]:
    room = there if following is None else following.base_offset - row.base_offset
    if row.type is QUEUE and row.base_offset % UNIT_BYTES:
        yield _of(row, FindingKind.MISALIGNED, "it begins within a unit")
    if following is not None and row.size > room:
        yield _of(
            row,
            FindingKind.OVERLAPPING,
            f"{row.size - room} bytes are the next segment's too, which begins at "
            f"{following.base_offset}",
        )
    if row.size and not there:
        yield _of(row, FindingKind.MISSING, f"{row.size} bytes that were committed are gone")
    elif there < row.size:
        gone = row.size - there
        yield _of(row, FindingKind.SHORT, f"{gone} of {row.size} bytes are gone")
    elif min(there, room) > row.size:
        more = min(there, room) - row.size
        yield _of(
            row,
            FindingKind.BEHIND,
            f"the backend has {more} bytes more than the catalogue's {row.size}",
            repairable=row.type is not INDEX,  # those settle themselves when they are opened
        )
    if there > max(room, row.size):
        detail = f"{there - max(room, row.size)} bytes lie behind its end, and are nobody's"
        yield _of(row, FindingKind.TAIL, detail)


def _apart(row: SegmentRecord, end: int, begin: int) -> Iterator[Finding]:
    if row.type is LOG:
        detail = f"no segment has bytes {end} to {begin} of the log"
        yield _of(row, FindingKind.HOLE, detail)
    elif row.type is QUEUE:
        first, behind = end // UNIT_BYTES, begin // UNIT_BYTES
        if first == behind:
            return  # a part of a unit
        detail = f"the tier never had messages {first} to {behind - 1}"
        yield _of(row, FindingKind.GAP, detail)


def orphan_findings(facts: TierFacts) -> Iterator[Finding]:
    """What no row names. What may be data that an older catalogue has forgotten is not deleted."""
    for key in facts.unnamed:
        path, kind, base = key
        size = facts.sizes[key]
        reason, is_spare = _spare(key, size, facts)
        yield Finding(
            kind=FindingKind.ORPHANED,
            path=path,
            type=kind,
            base=base,
            detail=f"{size} bytes that no row names: {reason}",
            repairable=is_spare,
        )


def _spare(key: SegmentKey, size: int, facts: TierFacts) -> tuple[str, bool]:
    """Where it lies, and whether nobody can miss it."""
    path, kind, base = key
    rows = facts.files.get((path, kind))
    if not rows:
        return "the catalogue knows nothing here; a rebuild would take it in", False
    if base + size <= rows[0].base_offset:
        return "older than what the queue keeps", True
    covered = base
    for row in rows:
        if row.base_offset <= covered < row.base_offset + min(row.size, facts.size(row)):
            covered = row.end_offset
    if covered >= base + size and facts.size(rows[-1]) >= rows[-1].size:
        return "other segments have all of these bytes", True
    if base >= rows[-1].end_offset:
        return "newer than what the catalogue knows; a rebuild would take it in", False
    return "between what other segments have; a rebuild would take it in", False


def catalogue_findings(facts: TierFacts, metadata: MetadataStore, broker: str) -> Iterator[Finding]:
    """Segments of no queue, and queues of no topic."""
    topics = {record.topic for record in metadata.topics()}
    queues = {(record.topic, record.queue_id) for record in metadata.queues()}
    lost = set()
    for path in dict.fromkeys(path for path, _ in facts.files):
        _, topic, number = path.split("/", 2)
        if topic == INDEX_TOPIC:
            continue
        if not number.isdigit() or (topic, int(number)) not in queues:
            detail = "its segments are in the catalogue, and the queue is not"
            yield Finding(kind=FindingKind.UNKNOWN_QUEUE, path=path, detail=detail)
    for topic, _ in sorted(queues):
        if topic not in topics and topic not in lost:
            lost.add(topic)
            detail = "its queues are in the catalogue, and the topic is not"
            path = f"{broker}/{topic}"
            yield Finding(kind=FindingKind.UNKNOWN_TOPIC, path=path, detail=detail)


def _of(row: SegmentRecord, kind: FindingKind, detail: str, *, repairable: bool = False) -> Finding:
    return Finding(
        kind=kind,
        path=row.path,
        type=row.type,
        base=row.base_offset,
        detail=detail,
        repairable=repairable,
    )
