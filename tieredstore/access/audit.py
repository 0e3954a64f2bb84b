"""Audit: compares the catalogue with the bytes of the tier, and repairs what can be repaired.

| compared | findings |
| --- | --- |
| a segment's row, its size in the backend, the next row | `segment_findings` |
| the catalogue's topics, queues and segments | `catalogue_findings` |
| the last units of a queue and its log, if no segment lacks bytes | `unit_findings` |
| the segments in the backend and those that rows name | `orphan_findings` |
| a log that the provider keeps, and the objects that it names or lacks | `log_findings` |
| notes: stopped queues, unfinished deletes | `noted_findings` |
| the published copy and the catalogue | `published_findings` |
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Final, TypeAlias

from tieredstore.access.queue_upload import STOPPED_QUEUE, is_asked_to_resume, is_history
from tieredstore.access.rebuild import fits_between
from tieredstore.codec.message import is_blank
from tieredstore.codec.names import INDEX_TOPIC, queue_path
from tieredstore.codec.queue_unit import UNIT_BYTES, QueueUnit, decode_unit
from tieredstore.codec.record import MESSAGE_MAGICS, peek_magic
from tieredstore.driver.metadata import LINEAGE, MetadataStore, was_published
from tieredstore.driver.provider import Leftover, ListedSegment, SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.flat import append_file
from tieredstore.flat.append_file import SegmentKey
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.recovery import borne_out, recover
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    MetadataError,
    OffsetOutOfRangeError,
    SegmentError,
    SegmentNotFoundError,
    TieredStoreError,
)
from tieredstore.model.findings import Finding, FindingKind, Place, Severity
from tieredstore.model.values import SegmentRecord, SegmentType

_Files: TypeAlias = Mapping[tuple[str, SegmentType], list[SegmentRecord]]  # by base
LOG, QUEUE, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX
_MAGIC_BYTES: Final = 8


class AuditKind(FindingKind):
    """What an audit can find."""

    MISSING = "missing"
    SHORT = "short"
    OVERLAPPING = "overlapping"
    HOLE = "hole"
    MISALIGNED = "misaligned"
    UNITS_BEYOND = "units-beyond-log"
    DISORDER = "units-in-disorder"
    NO_MESSAGE = "no-message"
    UNKNOWN_QUEUE = "unknown-queue"
    UNKNOWN_TOPIC = "unknown-topic"
    STOPPED = "stopped-queue"
    UNREADABLE = "unreadable"
    ORPHANED = "orphaned", Severity.LEFTOVER
    DOOMED = "doomed", Severity.LEFTOVER
    NOT_IN_LOG = "not-in-log", Severity.LEFTOVER
    ABANDONED_UPLOAD = "abandoned-upload", Severity.LEFTOVER
    UNNAMED = "orphan", Severity.LEFTOVER
    RELEASED = "released", Severity.LEFTOVER
    OLD_STATE = "state", Severity.LEFTOVER
    STAGED = "staged", Severity.LEFTOVER
    PUBLISHED_DAMAGED = "published-damaged"
    PUBLISHED_MISSING = "published-missing"
    PUBLISHED_DIFFERS = "published-differs"
    PUBLISHED_BEHIND = "published-behind", Severity.NOTE
    ADOPTED = "adopted-history", Severity.NOTE
    BEHIND = "catalogue-behind", Severity.NOTE
    GAP = "gap", Severity.NOTE
    TAIL = "tail", Severity.NOTE
    NO_UNITS = "no-units", Severity.NOTE  # after a lost disk, a crash looks like lost units


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """All findings by place, and how much was checked: `size` bytes of the catalogue's segments."""

    broker: str
    findings: tuple[Finding, ...]
    queue_count: int
    segment_count: int
    size: int

    @property
    def left(self) -> tuple[Finding, ...]:
        """What remains after the repair, if there was one."""
        return tuple(found for found in self.findings if not found.repaired)

    @property
    def damage(self) -> tuple[Finding, ...]:
        return tuple(found for found in self.left if found.is_damage)

    @property
    def is_clean(self) -> bool:
        """Nothing is wrong and nothing is left over."""
        return all(found.severity is Severity.NOTE for found in self.left)


def audit(
    metadata: MetadataStore,
    provider: SegmentProvider,
    config: StoreConfig,
    runtime: Runtime,
    *,
    repair: bool = False,
    published: Callable[[], MetadataStore | None] | None = None,
) -> AuditReport:
    """Check all segments of the configured broker, with one listing and a few small reads a queue.

    Without `repair` it may run beside a live writer. A repair needs the catalogue open for writing,
    whose lock excludes other writers. It claims the tier before it reads any of it: by then it
    knows what another writer acknowledged, and that writer writes nothing more. It does only what
    loses nothing: it finishes deletes, deletes segments that nobody can miss and remains of
    uploads, and adds sound bytes to the catalogue. `published` opens the copy for readers
    elsewhere, which is compared with the catalogue. Raises MetadataError, FencedError, and
    BackendError if the backend cannot be listed.
    """
    broker = config.broker_name
    if repair:
        provider.claim(broker)
        metadata.apply([])  # a read-only catalogue refuses here, before anything is done
    findings_of_copy = _read_copy(metadata, published, broker)
    facts = TierFacts.gather(metadata, provider, broker)
    findings = [*segment_findings(facts), *catalogue_findings(facts, metadata, broker)]
    broken = {found.place.path for found in findings if found.is_damage}
    paths = [path for path in dict.fromkeys(path for path, _ in facts.files) if not _index(path)]
    whole = [path for path in paths if path not in broken]
    reads = [runtime.fetch.submit(unit_findings, facts, provider, path) for path in whole]
    for read in reads:
        findings += read.result()
    findings = still_there(findings, metadata, facts)
    findings += orphan_findings(facts)
    findings += log_findings(provider, broker)
    findings += noted_findings(facts, metadata, broker)
    findings += findings_of_copy()
    leftovers = provider.leftovers(broker)
    findings += map(_left_over, leftovers)
    if repair:
        findings = repaired(findings, leftovers, metadata, provider, config, runtime)
    return AuditReport(
        broker=broker,
        findings=tuple(sorted(findings, key=_order)),
        queue_count=len(paths),
        segment_count=sum(map(len, facts.files.values())),
        size=sum(row.size for rows in facts.files.values() for row in rows),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFacts:
    """The segments of one broker.

    The catalogue is read before and after the backend is listed. The second reading counts: all
    rows are of that one moment. The sizes of segments that have grown since the listing are
    requested again. A segment that either reading names is no orphan, nor is one of which either
    says that it is being deleted.
    """

    files: _Files
    sizes: Mapping[SegmentKey, int]
    unnamed: frozenset[SegmentKey]  # in the backend, but in no row and not doomed
    doomed: tuple[str, ...]

    @classmethod
    def gather(cls, metadata: MetadataStore, provider: SegmentProvider, broker: str) -> TierFacts:
        metadata.refresh()
        before = {_key(row): row.create_timestamp for row in _rows(metadata, broker)}
        going = set(append_file.marks(metadata))
        provider.refresh()
        sizes = {
            (found.path, found.type, found.base): found.size for found in provider.list(broker)
        }
        metadata.refresh()
        rows = _rows(metadata, broker)
        notes = [key for key in append_file.marks(metadata) if key.startswith(f"{broker}/")]
        going.update(notes)
        short = [
            row
            for row in rows
            if sizes.get(_key(row), 0) < row.size
            or before.get(_key(row), row.create_timestamp) != row.create_timestamp  # replaced
        ]
        provider.catch_up(short)
        for row in short:
            sizes[_key(row)] = _size(provider, row)
        if any(sizes[_key(row)] < row.size for row in short):  # it may be deleted since
            metadata.refresh()
            there = {_key(row) for row in _rows(metadata, broker)}
            rows = [row for row in rows if _key(row) in there]
        named = {*before, *map(_key, rows), *map(_key, short)}
        return cls(
            files=_by_file(rows),
            sizes=sizes,
            unnamed=frozenset(
                key for key in sizes.keys() - named if append_file.deletion_key(*key) not in going
            ),
            doomed=tuple(sorted(notes)),
        )

    def size(self, row: SegmentRecord) -> int:
        """The segment's size in the backend."""
        return self.sizes.get(_key(row), 0)


def _by_file(rows: Iterable[SegmentRecord]) -> _Files:
    ordered = sorted(rows, key=lambda row: (row.path, row.type, row.base_offset))
    grouped = groupby(ordered, key=lambda row: (row.path, row.type))
    return {file: list(of_file) for file, of_file in grouped}


def _rows(metadata: MetadataStore, broker: str) -> list[SegmentRecord]:
    return [row for row in metadata.segments() if row.path.startswith(f"{broker}/")]


def _key(row: SegmentRecord) -> SegmentKey:
    return row.path, row.type, row.base_offset


def _size(provider: SegmentProvider, row: SegmentRecord) -> int:
    with provider.open(row.path, row.type, row.base_offset) as segment:
        try:
            return segment.size()
        except SegmentNotFoundError:
            return 0


def segment_findings(facts: TierFacts) -> Iterator[Finding]:
    """What is wrong with each segment, and between it and the next one."""
    for rows in facts.files.values():
        for row, following in zip(rows, [*rows[1:], None], strict=True):
            yield from _of_row(row, following, facts.size(row))
        for row, following in pairwise(rows):
            lost = facts.size(row) < min(row.size, following.base_offset - row.base_offset)
            end = _end_with_unnamed(row, facts)
            if end < following.base_offset and not lost:
                yield from _apart(row, end, following.base_offset)


def _end_with_unnamed(row: SegmentRecord, facts: TierFacts) -> int:
    """Where the bytes of the segment end, and of those behind it that no row names."""
    end = at = row.base_offset + max(row.size, facts.size(row))
    if (row.path, row.type, row.end_offset) in facts.unnamed:
        at = row.end_offset
    while (key := (row.path, row.type, at)) in facts.unnamed and facts.sizes[key]:
        at += facts.sizes[key]
    return max(end, at)


def _of_row(row: SegmentRecord, following: SegmentRecord | None, there: int) -> Iterator[Finding]:
    room = there if following is None else following.base_offset - row.base_offset
    if row.type is QUEUE and row.base_offset % UNIT_BYTES:
        yield _about_segment(row, AuditKind.MISALIGNED, "it begins within a unit")
    if following is not None and row.size > room:
        yield _about_segment(
            row,
            AuditKind.OVERLAPPING,
            f"{row.size - room} bytes are the next segment's too, which begins at "
            f"{following.base_offset}",
        )
    if row.size and not there:
        yield _about_segment(
            row, AuditKind.MISSING, f"{row.size} bytes that were committed are gone"
        )
    elif there < row.size:
        gone = row.size - there
        yield _about_segment(row, AuditKind.SHORT, f"{gone} of {row.size} bytes are gone")
    elif min(there, room) > row.size:
        more = min(there, room) - row.size
        yield _about_segment(
            row,
            AuditKind.BEHIND,
            f"the backend has {more} bytes more than the catalogue's {row.size}",
            repairable=row.type is not INDEX,  # an index is settled when it is opened
        )
    if there > max(room, row.size):
        detail = f"{there - max(room, row.size)} bytes after its end belong to no segment"
        yield _about_segment(row, AuditKind.TAIL, detail)


def _apart(row: SegmentRecord, end: int, begin: int) -> Iterator[Finding]:
    if row.type is LOG:
        detail = f"no segment has bytes {end} to {begin} of the log"
        yield _about_segment(row, AuditKind.HOLE, detail)
    elif row.type is QUEUE:
        first, behind = end // UNIT_BYTES, begin // UNIT_BYTES
        if first == behind:
            return  # only part of a unit
        detail = f"the tier never had messages {first} to {behind - 1}"
        yield _about_segment(row, AuditKind.GAP, detail)


def still_there(
    findings: list[Finding], metadata: MetadataStore, facts: TierFacts
) -> list[Finding]:
    """The findings without damage of segments that have expired or were deleted since: their rows
    are deleted before their bytes.
    """
    if not any(found.is_damage for found in findings):
        return findings
    metadata.refresh()
    now = {_key(row): row.create_timestamp for row in metadata.segments()}
    gone = {
        _key(row)
        for rows in facts.files.values()
        for row in rows
        if now.get(_key(row)) != row.create_timestamp
    }
    places = [(found.place.path, found.place.type, found.place.base) for found in findings]
    return [
        found
        for found, place in zip(findings, places, strict=True)
        if not (found.is_damage and place in gone)
    ]


def orphan_findings(facts: TierFacts) -> Iterator[Finding]:
    """Segments that no row names. Those that may be data, unknown to an older catalogue, are never
    deleted.
    """
    for key in sorted(facts.unnamed):
        path, kind, base = key
        size = facts.sizes[key]
        reason, is_spare = _spare(key, size, facts)
        detail = f"{size} bytes that no row names: {reason}"
        yield _about(AuditKind.ORPHANED, path, detail, type=kind, base=base, repairable=is_spare)


def _spare(key: SegmentKey, size: int, facts: TierFacts) -> tuple[str, bool]:
    """Where the segment lies among the queue's others, and whether nobody can miss it."""
    path, kind, base = key
    rows = facts.files.get((path, kind))
    if not rows:
        return "the catalogue has no row here; a rebuild would add it", False
    if base + size <= rows[0].base_offset:
        return "older than what the queue keeps", True
    covered = base
    for row in rows:
        end = row.base_offset + min(row.size, facts.size(row))
        if row.base_offset <= covered < end:
            covered = end
    if covered >= base + size and facts.size(rows[-1]) >= rows[-1].size:
        return "other segments have all of these bytes", True
    if base >= rows[-1].end_offset:
        return "newer than what the catalogue has; a rebuild would add it", False
    begin = _begin_of_lost(key, rows, facts)
    if fits_between(rows, begin, base + size - begin):
        return "between what other segments have; a rebuild would add it", False
    return "between what other segments have, but not next to them", False


def _begin_of_lost(key: SegmentKey, rows: Sequence[SegmentRecord], facts: TierFacts) -> int:
    """Where the segments without a row begin of which this one is the last: where the row before
    them ends, or this one's base if they do not join there."""
    path, kind, base = key
    at = begin = max((row.end_offset for row in rows if row.base_offset < base), default=base)
    while at < base and (found := (path, kind, at)) in facts.unnamed and facts.sizes[found]:
        at += facts.sizes[found]
    return begin if at == base else base


def log_findings(provider: SegmentProvider, broker: str) -> Iterator[Finding]:
    """What is wrong with the provider's own log; nothing if it keeps none.

    Segments that are in no log are never deleted: they may be all of a tier that was copied there.
    """
    yield from provider.damage(broker)
    for found in provider.untaken(broker):
        detail = f"{found.size} bytes that are in no log: a rebuild would add them"
        yield _about(AuditKind.NOT_IN_LOG, found.path, detail, type=found.type, base=found.base)


def catalogue_findings(facts: TierFacts, metadata: MetadataStore, broker: str) -> Iterator[Finding]:
    """Segments whose queue or units are missing, and queues whose topic is missing."""
    topics = {record.topic for record in metadata.topics()}
    queues = {(record.topic, record.queue_id) for record in metadata.queues()}
    for path in dict.fromkeys(path for path, _ in facts.files):
        _, topic, number = path.split("/", 2)
        if topic == INDEX_TOPIC:
            continue
        if not number.isdigit() or (topic, int(number)) not in queues:
            detail = "the catalogue has its segments, but not the queue"
            yield _about(AuditKind.UNKNOWN_QUEUE, path, detail)
        log = next((row for row in facts.files.get((path, LOG), []) if facts.size(row)), None)
        # Even a queue whose messages have all expired keeps a row, for its offsets: a new one, so
        # `facts` may know only the earlier ones.
        if log is not None and not metadata.segments(path, QUEUE):
            detail = "it has a log and no queue units: they are lost, or a crash came between both"
            yield _about_segment(log, AuditKind.NO_UNITS, detail)
    for topic in sorted({topic for topic, _ in queues} - topics):
        detail = "the catalogue has its queues, but not the topic"
        yield _about(AuditKind.UNKNOWN_TOPIC, f"{broker}/{topic}", detail)


def noted_findings(facts: TierFacts, metadata: MetadataStore, broker: str) -> Iterator[Finding]:
    paths = {queue_path(broker, *record.key) for record in metadata.queues()}
    for path, note in metadata.notes(STOPPED_QUEUE).items():
        if path in paths:  # a crash may have kept the stop of a queue that was deleted
            reason = str(note.get("reason", "")) if isinstance(note, dict) else ""
            asked = "; is compared at the next start" if is_asked_to_resume(path, metadata) else ""
            is_adopted = is_history(path, metadata)
            detail = reason if is_adopted else f"takes no more: {reason}{asked}"
            kind = AuditKind.ADOPTED if is_adopted else AuditKind.STOPPED
            yield _about(kind, path, detail)
    for key in facts.doomed:
        detail = "no longer used and still to be deleted"
        yield _about(AuditKind.DOOMED, key, detail, repairable=True)


def _left_over(found: Leftover) -> Finding:
    kind = AuditKind(found.kind)
    detail = f"{found.size} bytes that never count" if found.size else "an upload without an end"
    if kind is AuditKind.STAGED:
        detail = f"{found.size} bytes that a job staged: the job still runs, or was interrupted"
    elif kind is AuditKind.UNNAMED:
        detail = f"{found.size} bytes that no entry names"
    elif kind in (AuditKind.RELEASED, AuditKind.OLD_STATE):
        detail = f"{found.size} bytes that are no longer needed"
    return _about(kind, found.name, detail, repairable=True)


def unit_findings(facts: TierFacts, provider: SegmentProvider, path: str) -> list[Finding]:
    """What is wrong with the units of a queue whose segments are all there."""
    return list(_Queue(facts, provider, path).findings())


class _Queue:
    def __init__(self, facts: TierFacts, provider: SegmentProvider, path: str) -> None:
        self._facts = facts
        self._provider = provider
        self._path = path
        self._there: list[ListedSegment] = []  # segments of the log, from a second listing
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
                    yield _about_segment(row, AuditKind.UNREADABLE, str(error))
                    return
            if first.log_offset < before and not first.is_prefill:
                detail = "its first unit names bytes before those of the segment before it"
                yield _about_segment(row, AuditKind.DISORDER, detail)
            if named < count:
                detail = f"{count - named} of {count} units name bytes that the log does not have"
                yield _about_segment(row, AuditKind.UNITS_BEYOND, detail)
            if named and not final.is_prefill:
                before = final.log_offset + final.message_bytes
                last = row, named - 1, final
        if last is not None:
            yield from self._no_message(*last)

    def _held(self, row: SegmentRecord) -> int:
        """The segment's bytes in the backend, including units that the next start may add."""
        following = [later for later in self._queues if later.base_offset > row.base_offset]
        there = self._facts.size(row)
        return min(there, following[0].base_offset - row.base_offset) if following else there

    @property
    def _log_end(self) -> int:
        ends = [each.base + each.size for each in self._there]
        if self._logs:
            last = self._logs[-1]
            ends.append(last.base_offset + max(last.size, self._facts.size(last)))
        return max(ends, default=0)

    def _named(self, segment: FileSegment, count: int, final: QueueUnit) -> int:
        """How many units of a segment the log confirms; `final` is the last unit."""

        def end(number: int) -> int:
            unit = final if number == count - 1 else _unit(segment, number)
            return 0 if unit.is_prefill else unit.log_offset + unit.message_bytes

        held = borne_out(count, end, self._log_end)
        if held < count and not self._there:
            # A writer may have appended to the log, and then to the queue, during the listing.
            self._there = [each for each in self._provider.list(self._path) if each.type is LOG]
            held = borne_out(count, end, self._log_end)
        return held

    def _no_message(self, row: SegmentRecord, number: int, unit: QueueUnit) -> Iterator[Finding]:
        """A finding if the first bytes where the last unit points are not those of a message."""
        bases = sorted({*(log.base_offset for log in self._logs), *(at.base for at in self._there)})
        at = bisect_left(bases, unit.log_offset + 1) - 1
        if at < 0:
            return  # the message has expired
        with self._provider.open(self._path, LOG, bases[at]) as segment:
            try:
                data = segment.read(unit.log_offset - bases[at], _MAGIC_BYTES)
                is_message = peek_magic(data) in MESSAGE_MAGICS
            except (SegmentError, OffsetOutOfRangeError):
                is_message, data = False, b""
        if not is_message and not is_blank(data):
            offset = row.base_offset // UNIT_BYTES + number
            detail = f"message {offset} is not where its unit says, at byte {unit.log_offset}"
            yield _about_segment(row, AuditKind.NO_MESSAGE, detail)


def _unit(segment: FileSegment, number: int) -> QueueUnit:
    return decode_unit(segment.read(number * UNIT_BYTES, UNIT_BYTES), path=segment.path)


def _read_copy(
    metadata: MetadataStore,
    published: Callable[[], MetadataStore | None] | None,
    broker: str,
) -> Callable[[], Iterable[Finding]]:
    """Read the copy now; the result compares it later with the catalogue as it is then."""
    if published is None or metadata.facts.copy:
        return list
    try:
        copy = published()
    except MetadataError as error:
        found = _copy_damaged(broker, error)
        return lambda: [found]

    def findings() -> Iterator[Finding]:
        if copy is not None:
            with copy:
                yield from published_findings(metadata, copy, broker)
            return
        if not was_published(metadata.note(LINEAGE, broker)):
            return
        try:
            late = published()  # again: the first copy may have been published meanwhile
        except MetadataError as error:
            yield _copy_damaged(broker, error)
            return
        if late is not None:
            late.close()
            return
        detail = "it was published and is missing: readers elsewhere have no catalogue"
        yield _about(AuditKind.PUBLISHED_MISSING, broker, detail)

    return findings


def _copy_damaged(broker: str, error: MetadataError) -> Finding:
    detail = f"readers elsewhere cannot start from it: {error}"
    return _about(AuditKind.PUBLISHED_DAMAGED, broker, detail)


def published_findings(
    metadata: MetadataStore, published: MetadataStore, broker: str
) -> Iterator[Finding]:
    """Where the copy differs from the catalogue; it must have been read before the catalogue.

    A copy shows an earlier state. It may lack what came since and name what has gone since: that is
    one note. Anything in it that the catalogue never said is damage.
    """
    place = published.facts.describe()
    behind = 0
    ours, theirs = _by_file(_rows(metadata, broker)), _by_file(_rows(published, broker))
    renewed = set(_renewed(metadata, published))
    for file in sorted(ours.keys() | theirs.keys()):
        path, kind = file
        if path.split("/")[1] in renewed:
            behind += len(theirs.get(file, ()))
            continue
        wrong, lag = _compared(ours.get(file, ()), theirs.get(file, ()), kind)
        behind += lag
        if wrong:
            detail = f"{kind.name}: {place} {wrong}"
            yield _about(AuditKind.PUBLISHED_DIFFERS, path, detail)
    for wrong, lag, path in _names(metadata, published, broker):
        behind += lag
        if wrong:
            yield _about(AuditKind.PUBLISHED_DIFFERS, path, f"{place} {wrong}")
    if behind:
        detail = f"{place} is older than the catalogue: {behind} rows differ"
        yield _about(AuditKind.PUBLISHED_BEHIND, broker, detail)


def _compared(
    ours: Sequence[SegmentRecord], theirs: Sequence[SegmentRecord], kind: SegmentType
) -> tuple[str, int]:
    """The first difference that the copy's age does not explain, and how many rows it does."""
    known = {row.base_offset: row for row in ours}
    copied = {row.base_offset: row for row in theirs}
    is_index = kind is SegmentType.INDEX  # a reindex replaces all its files
    behind = 0
    for base, row in copied.items():
        held = known.get(base)
        is_gone = not (ours and row.size) or base < ours[0].base_offset or is_index
        if held is None and not is_gone:
            return f"names a segment at {base}, and the catalogue none", behind
        if held is not None and held.size < row.size and not is_index:
            return f"goes to byte {row.end_offset}, the catalogue's segment to {held.end_offset}", 0
        behind += held is None or _facts_of(held) != _facts_of(row)
    for base in known.keys() - copied.keys():
        if theirs and base < theirs[-1].base_offset and not is_index:
            return f"lacks the segment at {base}", behind
        behind += 1
    return "", behind


def _facts_of(row: SegmentRecord) -> tuple[int, int | None, int | None]:
    return row.size, row.begin_timestamp, row.end_timestamp


def _renewed(metadata: MetadataStore, published: MetadataStore) -> Iterator[str]:
    """Topics that were deleted and created again: the copy has segments of the earlier topic."""
    for old in published.topics():
        new = metadata.topic(old.topic)
        if new is not None and old.topic_id < new.topic_id:
            yield old.topic


def _names(
    metadata: MetadataStore, published: MetadataStore, broker: str
) -> Iterator[tuple[str, int, str]]:
    """Compares topics and queues: what is wrong, how many rows age explains, and where."""
    copied = {record.topic: record for record in published.topics()}
    known = {record.topic: record for record in metadata.topics()}
    for topic in sorted(copied.keys() | known.keys()):
        old, new = copied.get(topic), known.get(topic)
        wrong = ""
        # A topic that was deleted and created again has a higher number.
        if old is not None and new is not None and old.topic_id > new.topic_id:
            wrong = f"has the topic as number {old.topic_id}, the catalogue as {new.topic_id}"
        is_same = (
            old is not None
            and new is not None
            and (old.topic_id, old.reserve_hours) == (new.topic_id, new.reserve_hours)
        )
        yield wrong, 0 if wrong or is_same else 1, f"{broker}/{topic}"
    queues = {row.key for row in published.queues()} ^ {row.key for row in metadata.queues()}
    for key in sorted(queues):
        yield "", 1, f"{broker}/{key.topic}/{key.queue_id}"


def repaired(
    findings: Sequence[Finding],
    leftovers: Sequence[Leftover],
    metadata: MetadataStore,
    provider: SegmentProvider,
    config: StoreConfig,
    runtime: Runtime,
) -> list[Finding]:
    """The findings after their repair: marked as repaired, or with what went wrong.

    A failure of one queue or object does not prevent the other repairs; a catalogue that cannot be
    written does.
    """
    repair = _Repair(leftovers, metadata, provider, config, runtime)
    if any(found.kind is AuditKind.DOOMED for found in findings):
        append_file.delete_pending(provider, metadata)
    return [repair.done(found) if found.repairable else found for found in findings]


class _Repair:
    def __init__(
        self,
        leftovers: Sequence[Leftover],
        metadata: MetadataStore,
        provider: SegmentProvider,
        config: StoreConfig,
        runtime: Runtime,
    ) -> None:
        self._leftovers: dict[tuple[str, str], list[Leftover]] = {}
        for each in leftovers:
            self._leftovers.setdefault((each.kind, each.name), []).append(each)
        self._metadata = metadata
        self._provider = provider
        self._config = config
        self._runtime = runtime
        self._steps: dict[str, Callable[[Finding], str]] = {
            AuditKind.DOOMED: self._finish,
            AuditKind.ORPHANED: self._delete,
            AuditKind.ABANDONED_UPLOAD: self._remove,
            AuditKind.UNNAMED: self._remove,
            AuditKind.RELEASED: self._remove,
            AuditKind.OLD_STATE: self._remove,
            AuditKind.STAGED: self._remove,
            AuditKind.BEHIND: self._catch_up,
        }

    def done(self, finding: Finding) -> Finding:
        try:
            failure = self._steps[finding.kind](finding)
        except MetadataError:
            raise
        except TieredStoreError as error:
            failure = str(error)
        return replace(finding, repaired=not failure, failure=failure)

    # Each step returns why it failed, or an empty text.

    def _finish(self, finding: Finding) -> str:
        is_left = append_file.has_mark(self._metadata, finding.where)
        return "the backend has not deleted it" if is_left else ""

    def _delete(self, finding: Finding) -> str:
        place = _segment(finding)
        if self._metadata.segment(*place) is not None:
            return "a row names it now"
        with self._provider.open(*place) as segment:
            segment.delete()
        return ""

    def _remove(self, finding: Finding) -> str:
        self._provider.remove_leftovers(self._leftovers.get((finding.kind, finding.where), []))
        return ""

    def _catch_up(self, finding: Finding) -> str:
        """Add bytes as a start of the broker does: those that units confirm."""
        path = finding.place.path
        _, topic, number = path.split("/", 2)
        row = self._metadata.queue(topic, int(number))
        record = self._metadata.topic(topic)
        if row is None or record is None:
            return "the queue or its topic is not in the catalogue"
        file = FlatMessageFile(
            row,
            record,
            self._config,
            path=path,
            provider=self._provider,
            metadata=self._metadata,
            clock=self._runtime.clock,
        )
        try:
            recover(file, self._metadata, self._runtime.clock)
            known = self._metadata.segment(*_segment(finding))
            with self._provider.open(*_segment(finding)) as segment:
                more = segment.size() - (known.size if known is not None else 0)
            unnamed = f"no unit names the last {more} bytes: they stay as they are" if more else ""
            return file.problem or unnamed
        finally:
            file.close()


def _segment(finding: Finding) -> SegmentKey:
    place = finding.place
    if place.type is None or place.base is None:
        raise ValueError(f"{finding.where} is no segment")
    return place.path, place.type, place.base


def _about_segment(
    row: SegmentRecord, kind: AuditKind, detail: str, *, repairable: bool = False
) -> Finding:
    return _about(
        kind, row.path, detail, type=row.type, base=row.base_offset, repairable=repairable
    )


def _about(
    kind: AuditKind,
    path: str,
    detail: str,
    *,
    type: SegmentType | None = None,
    base: int | None = None,
    repairable: bool = False,
) -> Finding:
    """A finding about a segment; without `type` and `base`, about a whole queue or one object."""
    parts = path.split("/")
    is_queue = len(parts) == 3 and parts[2].isdigit()
    return Finding(
        severity=kind.severity,
        kind=kind,
        where=path if type is None else f"{path}/{type.name}/{base}",
        detail=detail,
        place=Place(
            path=path,
            type=type,
            base=base,
            topic=parts[1] if is_queue else None,
            queue_id=int(parts[2]) if is_queue else None,
        ),
        repairable=repairable,
    )


def _index(path: str) -> bool:
    return path.split("/")[1] == INDEX_TOPIC


def _order(finding: Finding) -> tuple[str, int, int, str]:
    place = finding.place
    kind = -1 if place.type is None else place.type.value
    return place.path, kind, place.base or 0, finding.kind
