"""The catalogue against the copy of it that is published for readers elsewhere.

What lives here: what of a copy its age explains, and what nothing explains. Of which catalogue it
is a copy is for its publisher to know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

from tieredstore.access.care.audit_report import Finding, FindingKind
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.published import LINEAGE
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.errors import MetadataError
from tieredstore.model.values import SegmentType

_Files: TypeAlias = Mapping[tuple[str, SegmentType], Sequence[SegmentRecord]]


def unusable_finding(error: MetadataError, broker: str) -> Finding:
    detail = f"readers elsewhere cannot start from it: {error}"
    return Finding(kind=FindingKind.PUBLISHED_DAMAGED, path=broker, detail=detail)


def missing_findings(metadata: MetadataStore, broker: str) -> Iterator[Finding]:
    """Where nothing is published: of a catalogue that was, this is a loss."""
    if metadata.note(LINEAGE, broker) is not None:
        detail = "it was published, and is gone: readers elsewhere have no catalogue"
        yield Finding(kind=FindingKind.PUBLISHED_MISSING, path=broker, detail=detail)


def published_findings(
    metadata: MetadataStore, published: MetadataStore, broker: str
) -> Iterator[Finding]:
    """What the copy says otherwise; it must have been read before the catalogue was.

    A copy is as of some time. It may lack what came since and name what has gone since: that is
    one note. Whatever it says that the catalogue never said is damage.
    """
    place = published.facts.describe()
    behind = 0
    ours, theirs = _files(metadata, broker), _files(published, broker)
    for file in sorted(ours.keys() | theirs.keys(), key=lambda file: (file[0], file[1].value)):
        path, kind = file
        wrong, lag = _compared(ours.get(file, ()), theirs.get(file, ()), kind)
        behind += lag
        if wrong:
            detail = f"{kind.name}: {place} {wrong}"
            yield Finding(kind=FindingKind.PUBLISHED_DIFFERS, path=path, detail=detail)
    for wrong, lag, path in _names(metadata, published, broker):
        behind += lag
        if wrong:
            yield Finding(kind=FindingKind.PUBLISHED_DIFFERS, path=path, detail=f"{place} {wrong}")
    if behind:
        detail = f"{place} is older than the catalogue: {behind} rows differ"
        yield Finding(kind=FindingKind.PUBLISHED_BEHIND, path=broker, detail=detail)


def _files(metadata: MetadataStore, broker: str) -> _Files:
    below = f"{broker}/"
    rows = [row for row in metadata.segments() if row.path.startswith(below)]
    rows.sort(key=lambda row: (row.path, row.type.value, row.base_offset))
    return {file: list(of) for file, of in groupby(rows, key=lambda row: (row.path, row.type))}


def _compared(
    ours: Sequence[SegmentRecord], theirs: Sequence[SegmentRecord], kind: SegmentType
) -> tuple[str, int]:
    """The first thing that age does not explain, and how many rows it explains."""
    known = {row.base_offset: row for row in ours}
    copied = {row.base_offset: row for row in theirs}
    is_index = kind is SegmentType.INDEX  # a reindex puts other files in the place of all
    behind = 0
    for base, row in copied.items():
        held = known.get(base)
        is_gone = not ours or base < ours[0].base_offset or is_index
        if held is None and not is_gone:
            return f"names a segment at {base}, and the catalogue none", behind
        if held is not None and held.size < row.size and not is_index:
            return f"goes to byte {row.end_offset}, the catalogue's segment to {held.end_offset}", 0
        behind += held is None or _told(held) != _told(row)
    for base in known.keys() - copied.keys():
        if theirs and base < theirs[-1].base_offset and not is_index:
            return f"lacks the segment at {base}", behind
        behind += 1
    return "", behind


def _told(row: SegmentRecord) -> tuple[int, int | None, int | None]:
    return row.size, row.begin_timestamp, row.end_timestamp


def _names(
    metadata: MetadataStore, published: MetadataStore, broker: str
) -> Iterator[tuple[str, int, str]]:
    """Topics and queues: what is wrong, how much age explains, and where."""
    copied = {record.topic: record for record in published.topics()}
    known = {record.topic: record for record in metadata.topics()}
    for topic in sorted(copied.keys() | known.keys()):
        old, new = copied.get(topic), known.get(topic)
        wrong = ""
        # A topic that was deleted and made again has a higher number.
        if old is not None and new is not None and old.topic_id > new.topic_id:
            wrong = f"has the topic as number {old.topic_id}, the catalogue as {new.topic_id}"
        is_same = (
            old is not None
            and new is not None
            and (old.topic_id, old.reserve_hours) == (new.topic_id, new.reserve_hours)
        )
        yield wrong, 0 if wrong or is_same else 1, f"{broker}/{topic}"
    queues = {each.key for each in published.queues()} ^ {each.key for each in metadata.queues()}
    for key in sorted(queues):
        yield "", 1, f"{broker}/{key.topic}/{key.queue_id}"
