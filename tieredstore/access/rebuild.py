"""Rebuilds a lost catalogue from the bytes of the tier.

1. The backend is listed. If it keeps a log, the segments that the log does not name are added to
   it. A catalogue that exists and is not older than the bytes stays unchanged.
2. Each queue is recovered as at a start of the broker, from rows without sizes; the times of its
   segments come from the messages at their ends.
3. Each index file is read once. Its items show which topic ids were assigned, and to which topic:
   an item belongs to a topic if the record at its place has the topic and the key.
4. All rows are written in one change of the catalogue.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tieredstore.access.queue_upload import TRUSTED_SIDE
from tieredstore.codec.java import tiered_probes
from tieredstore.codec.message import CODA_BYTES, is_coda
from tieredstore.codec.names import queue_of
from tieredstore.codec.record import (
    KEYS,
    MESSAGE_MAGICS,
    UNIQUE_KEY,
    decode_properties,
    peek_magic,
    peek_message_bytes,
    peek_property_bytes,
    peek_queue_offset,
    peek_topic,
    split_keys,
)
from tieredstore.codec.tiered_index import (
    COMPACTED_ITEM_BYTES,
    HEADER_BYTES,
    SLOT_BYTES,
    CompactedItem,
    slot_position,
    view_compacted_items,
)
from tieredstore.driver.metadata import (
    Change,
    DeleteSegment,
    DeleteTopic,
    MetadataStore,
    Publisher,
    Put,
    PutNote,
    StaleCatalogueError,
)
from tieredstore.driver.provider import ListedSegment, SegmentProvider, TakenIn
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.flat import append_file
from tieredstore.flat.append_file import FlatSegment
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.recovery import recover
from tieredstore.flat.times import store_time, units_of
from tieredstore.index.footer import Footer, footer_or_header
from tieredstore.index.uploaded import first_row_below
from tieredstore.index.watermarks import QueueId, Watermarks
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendError,
    InvalidConfigError,
    MetadataError,
    OffsetOutOfRangeError,
    SegmentError,
)
from tieredstore.model.values import (
    INT32_MAX,
    Json,
    QueueRecord,
    SegmentRecord,
    SegmentType,
    TopicRecord,
)

_Ends: TypeAlias = dict[tuple[str, SegmentType], int]
SAMPLES_MAX: Final = 8
_ITEMS_AT_ONCE: Final = 1 << 17
_MANY_KEYS: Final = (-INT32_MAX - 1, 0)  # hashes that stand for several keys
_HEAD_BYTES: Final = 28  # up to and including the queue offset
_NOBODY: Final = "\0rebuilt"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildReport:
    """The contents of the catalogue after a rebuild.

    `new_ids` are topics whose id was unknown: their index items are put again, and so are all
    doubtful items if `is_index_whole` is False. `notes` are worth knowing; a sound tier may have
    them too.

    Call `told` once the problems were shown: until then the next rebuild reports again what was
    lost with a log.
    """

    topics: Mapping[str, int]
    new_ids: tuple[str, ...]
    queue_count: int
    segment_count: int
    size: int
    is_index_whole: bool
    problems: tuple[str, ...]
    told: Callable[[], None]
    notes: tuple[str, ...] = ()


class NewerCatalogueError(MetadataError):
    """There is a catalogue that a rebuild could not improve."""

    @property
    def is_damage(self) -> bool:
        return False


def rebuild(
    metadata: MetadataStore,
    provider: SegmentProvider,
    config: StoreConfig,
    runtime: Runtime,
    *,
    known: MetadataStore | None = None,
    takes_in: bool = False,
    apply: Callable[[Iterable[Change]], None] | None = None,
) -> RebuildReport:
    """Restore topics, queues and segments of the configured broker, in one change.

    An empty catalogue is filled. A catalogue with rows of this broker is overwritten only if it is
    older: if no file in the backend is shorter than the catalogue says, and some file is longer or
    missing from it; also if it names segments but not their queue or topic, or not one that lies
    between two others. Its ids, reserve hours and notes are kept. In any other case
    NewerCatalogueError is raised, and nothing changes.

    `known` is for an empty catalogue, which first takes over everything that this copy of a lost
    catalogue says; then the bytes are read. Files of which nothing is left have expired since.

    With `takes_in`, a provider that keeps a log first adds to it the segments that are in no log:
    sealed segments that were copied there, and those of a lost log. The provider must be the writer
    then. `apply` carries out the change; by default the catalogue's own does.

    The catalogue must be open for writing. Raises BackendError if the backend cannot be asked, and
    InvalidConfigError if all index files have another number of slots.
    """
    metadata.apply([])
    taken = provider.take_in(config.broker_name) if takes_in else TakenIn()
    restored, known = ([], metadata) if known is None else (_without_decisions(known), known)
    below = f"{config.broker_name}/"
    going = append_file.marks(known)
    listed = [
        segment
        for segment in provider.list(config.broker_name)
        if append_file.deletion_key(segment.path, segment.type, segment.base) not in going
    ]
    present = [row for row in known.segments() if row.path.startswith(below)]
    ends = _ends((found.path, found.type, found.base + found.size) for found in listed)
    known_ends = _ends((row.path, row.type, row.end_offset) for row in present)
    if known is metadata:
        _refuse_newer(present, listed, ends, known_ends, metadata, tells=bool(taken.losses))
    in_index = [segment for segment in listed if segment.type is SegmentType.INDEX]
    queues = _queues(listed, provider, config, runtime)
    slots = config.index_slot_count
    index = found_index(in_index, provider, slot_count=slots)
    known_ids = {record.topic: record.topic_id for record in known.topics()}
    ids = topic_ids_of(queues, index, slot_count=slots) | known_ids
    topics, new = _numbered(queues, ids, index)
    rows = [*(row for queue in queues for row in queue.rows), *index.rows]
    changes: list[Change] = [*restored, *_topic_changes(topics, index, known, runtime)]
    changes += [Put(queue.record) for queue in queues if known.queue(*queue.record.key) is None]
    changes += [Put(row) for row in _merged(rows, present)]
    expired = _expired(present, listed, wholly=known is not metadata)
    changes += [DeleteSegment(*row.key) for row in expired]
    kept = {(row.path, row.type) for row in (*rows, *(set(present) - set(expired)))}
    changes += _begun_behind(expired, kept, known_ends, now_ms=runtime.clock.now_ms())
    changes += _dropped_index(expired, Watermarks(known, config.broker_name))
    is_whole = not index.problems and not new
    if not known.notes("index"):
        changes += _index_changes(queues, index, ids, config)
    else:
        changes += _without_marks(queues, present, topics)
    (apply or metadata.apply)(changes)
    problems = [f"{queue.file.path}: {queue.problem}" for queue in queues if queue.problem]
    if known is not metadata:
        problems += _shorter(ends, known_ends)
    return RebuildReport(
        topics=topics,
        new_ids=tuple(new),
        queue_count=len(queues),
        segment_count=len(rows),
        size=sum(row.size for row in rows),
        is_index_whole=is_whole,
        problems=(*taken.losses, *problems, *index.problems),
        notes=tuple(f"{queue.file.path}: {queue.note}" for queue in queues if queue.note),
        told=taken.told,
    )


def rebuild_beside_published(
    metadata: MetadataStore,
    provider: SegmentProvider,
    config: StoreConfig,
    runtime: Runtime,
    *,
    publisher: Publisher,
    published: Callable[[], MetadataStore | None],
) -> RebuildReport:
    """Like `rebuild`, with the published catalogue: `published` opens it, or returns None if there
    is none.

    An empty catalogue starts from the published one, with its ids, reserve hours and notes, and the
    bytes add what came since. A catalogue that has rows is brought up to date only if nothing newer
    was published; otherwise NewerCatalogueError. If the published one is damaged, this is reported
    as a problem, and only the bytes are used. Afterwards this catalogue may replace the published
    one.
    """
    known: MetadataStore | None = None
    problems: tuple[str, ...] = ()
    try:
        if metadata.topics() or metadata.queues() or metadata.segments():
            publisher.check()
        else:
            known = published()
    except StaleCatalogueError as error:
        raise NewerCatalogueError(
            error.path,
            "what is published there is newer than this file: move the file away, and a rebuild "
            "starts from what is published",
        ) from error
    except MetadataError as error:
        problems = (f"what is published cannot be used: {error}",)
    try:
        report = rebuild(metadata, provider, config, runtime, known=known, apply=publisher.adopt)
    finally:
        if known is not None:
            known.close()
    return replace(report, problems=(*problems, *report.problems))


def _without_decisions(known: MetadataStore) -> list[Change]:
    """The contents of a copy without decisions on which of two histories is right.

    They were meant for the next start of a disk that is now lost, and may have been carried out
    after the copy was made.
    """
    return [
        change
        for change in known.contents()
        if not (isinstance(change, PutNote) and change.kind == TRUSTED_SIDE)
    ]


def _refuse_newer(
    present: Sequence[SegmentRecord],
    listed: Sequence[ListedSegment],
    ends: _Ends,
    known: _Ends,
    metadata: MetadataStore,
    *,
    tells: bool,
) -> None:
    """Raises NewerCatalogueError if a rebuild has nothing to add, nor `tells` of a loss."""
    if not present:
        return
    for path, kind in sorted({(row.path, row.type) for row in present if row.size}):
        end = ends.get((path, kind), 0)
        if end < known[path, kind]:
            raise NewerCatalogueError(
                f"{path}/{kind.name}",
                f"the catalogue goes to byte {known[path, kind]}, the backend only to {end}: "
                "an audit says what is missing",
            )
    keys = {key for row in present if (key := queue_of(row.path)) is not None}
    names_all = all(
        metadata.queue(*key) is not None and metadata.topic(key.topic) is not None for key in keys
    )
    is_longer = any(end > known.get(file, -1) for file, end in ends.items())
    if names_all and not (is_longer or tells or _fills_a_hole(present, listed)):
        raise NewerCatalogueError("", "the catalogue has everything that the backend has")


def _fills_a_hole(present: Sequence[SegmentRecord], listed: Sequence[ListedSegment]) -> bool:
    """Whether some segment without a row lies between two that have one."""
    rows: dict[tuple[str, SegmentType], list[SegmentRecord]] = {}
    for row in present:
        rows.setdefault((row.path, row.type), []).append(row)
    return any(
        fits_between(rows.get((found.path, found.type), ()), found.base, found.size)
        for found in listed
    )


def fits_between(rows: Sequence[SegmentRecord], base: int, size: int) -> bool:
    """Whether bytes without a row begin where one ends, and end before the next one begins. The
    rows are those of the file, by base."""
    at = bisect_left(rows, base, key=attrgetter("base_offset"))
    is_between = 0 < at < len(rows) and rows[at - 1].end_offset == base
    return size > 0 and is_between and base + size <= rows[at].base_offset


def _ends(files: Iterable[tuple[str, SegmentType, int]]) -> _Ends:
    """The end of each file, from the ends of its segments."""
    ends: _Ends = {}
    for path, kind, end in files:
        ends[path, kind] = max(ends.get((path, kind), 0), end)
    return ends


def _shorter(ends: _Ends, known: _Ends) -> list[str]:
    """Says which files are shorter now than a copy of the catalogue has them."""
    return [
        f"{path}/{kind.name}: the published catalogue goes to byte {known[path, kind]}, the "
        f"backend only to {end}"
        for (path, kind), end in sorted(ends.items())
        if end < known.get((path, kind), 0)
    ]


def _expired(
    present: Sequence[SegmentRecord], listed: Sequence[ListedSegment], *, wholly: bool
) -> list[SegmentRecord]:
    """Rows of segments older than everything that the backend has of their file: they expired after
    the catalogue was written, or never got a byte.

    Also all rows of a file of which nothing is left, if files may have expired `wholly`, but for
    empty ones, which say where the file goes on.
    """
    first: dict[tuple[str, SegmentType], int] = {}
    for segment in listed:
        file = segment.path, segment.type
        first[file] = min(first.get(file, segment.base), segment.base)
    return [
        row
        for row in present
        if row.end_offset <= first.get((row.path, row.type), row.end_offset if wholly else 0)
        and (row.size or row.base_offset < first.get((row.path, row.type), 0))
    ]


def _begun_behind(
    expired: Sequence[SegmentRecord],
    kept: Collection[tuple[str, SegmentType]],
    ends: _Ends,
    *,
    now_ms: int,
) -> list[Change]:
    """Empty rows at the end of files of which nothing is left, as expiry makes them: so their
    offsets and segment names are not used again.
    """
    files = {(row.path, row.type): None for row in expired if row.type is not SegmentType.INDEX}
    return [
        Put(
            SegmentRecord(
                path=path, type=kind, base_offset=ends[path, kind], create_timestamp=now_ms
            )
        )
        for path, kind in files
        if (path, kind) not in kept
    ]


def _dropped_index(expired: Sequence[SegmentRecord], known: Watermarks) -> list[Change]:
    """The notes that the broker writes when it drops index files: a message may outlive the file
    that has its keys, and no other file may take the place of that file.
    """
    gone = [row for row in expired if row.type is SegmentType.INDEX]
    if not gone:
        return []
    times = [row.end_timestamp + 1 for row in gone if row.end_timestamp is not None]
    return [
        Watermarks.end_at(max(known.end(), *(row.end_offset for row in gone))),
        Watermarks.dropped(max(known.dropped_before() or 0, *times, 0)),
    ]


def _without_marks(
    queues: Sequence[FoundQueue], present: Sequence[SegmentRecord], topics: Mapping[str, int]
) -> list[Change]:
    """Let the index take all of each queue of which no segment is left that the catalogue names.

    Such a queue was perhaps made again. The index tells this from the creation times of segments,
    which the bytes do not have.
    """
    named = {row.key for row in present if row.size}
    return [
        Watermarks.unmarked(QueueId(topics[queue.topic], queue.record.queue_id))
        for queue in queues
        if not any(row.key in named for row in queue.rows if row.type is SegmentType.CONSUME_QUEUE)
    ]


def _merged(rows: Sequence[SegmentRecord], present: Sequence[SegmentRecord]) -> list[SegmentRecord]:
    """The found rows without those that the catalogue already has with as many bytes."""
    known = {(row.path, row.type, row.base_offset): row for row in present}
    changed = []
    for row in rows:
        held = known.get((row.path, row.type, row.base_offset))
        if held is None or held.size < row.size:
            changed.append(row)
    return changed


def _numbered(
    queues: Sequence[FoundQueue],
    ids: Mapping[str, int],
    index: FoundIndex,
) -> tuple[dict[str, int], list[str]]:
    """An id for each topic; a topic without one gets an id that was never assigned."""
    topics = dict.fromkeys(queue.topic for queue in queues)
    new = [topic for topic in topics if topic not in ids]
    following = 1 + max([*ids.values(), *index.topic_ids], default=-1)
    given = {**ids, **{topic: following + at for at, topic in enumerate(new)}}
    return {topic: given[topic] for topic in topics}, new


def _topic_changes(
    topics: Mapping[str, int],
    index: FoundIndex,
    metadata: MetadataStore,
    runtime: Runtime,
) -> list[Change]:
    now_ms = runtime.clock.now_ms()
    changes: list[Change] = [
        Put(TopicRecord(topic=topic, topic_id=number, update_timestamp=now_ms))
        for topic, number in topics.items()
        if metadata.topic(topic) is None
    ]
    highest = max(index.topic_ids, default=-1)
    if highest > max(topics.values(), default=-1):
        # A deleted topic had this id: no new topic may get it.
        changes += [Put(TopicRecord(topic=_NOBODY, topic_id=highest)), DeleteTopic(_NOBODY)]
    return changes


def _index_changes(
    queues: Sequence[FoundQueue], index: FoundIndex, ids: Mapping[str, int], config: StoreConfig
) -> list[Change]:
    """Notes that say from where on keys are put again: without them the index would count as
    complete.
    """
    changes: list[Change] = [
        Watermarks.sizes(slot_count=config.index_slot_count, item_capacity=config.index_item_count),
        Watermarks.end_at(max((row.end_offset for row in index.rows), default=0)),
    ]
    if not index.problems:
        changes += Watermarks.moved(indexed_offsets(queues, index, ids))
    return changes


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundQueue:
    """A queue in the backend. `problem` says what is wrong with its bytes; a `note` may also be
    about a sound queue.
    """

    record: QueueRecord
    rows: tuple[SegmentRecord, ...]
    file: FlatMessageFile
    problem: str | None
    note: str | None = None

    @property
    def topic(self) -> str:
        return self.record.topic


def _queues(
    listed: Sequence[ListedSegment],
    provider: SegmentProvider,
    config: StoreConfig,
    runtime: Runtime,
) -> list[FoundQueue]:
    """Finds the message queues, in parallel; ignores everything else."""
    wanted = sorted(
        (
            segment
            for segment in listed
            if segment.type is not SegmentType.INDEX and queue_of(segment.path)
        ),
        key=lambda segment: (segment.path, segment.type, segment.base),
    )
    futures = [
        runtime.fetch.submit(found_queue, list(together), provider, config, runtime)
        for _, together in groupby(wanted, key=lambda segment: segment.path)
    ]
    return [future.result() for future in futures]


def found_queue(
    listed: Sequence[ListedSegment],
    provider: SegmentProvider,
    config: StoreConfig,
    runtime: Runtime,
) -> FoundQueue:
    """Finds all segments of one queue path, with their sizes and the times of their messages.

    Raises BackendError if the backend cannot be asked.
    """
    path = listed[0].path
    broker, topic, number = path.split("/", 2)
    record = QueueRecord(
        broker_name=broker,
        topic=topic,
        queue_id=int(number),
        update_timestamp=runtime.clock.now_ms(),
    )
    # Without sizes: recovery then requests all of them, and checks them against the units.
    rows = ReadOnlyRows(
        SegmentRecord(path=path, type=found.type, base_offset=found.base) for found in listed
    )
    file = FlatMessageFile(
        record,
        TopicRecord(topic=topic, topic_id=-1),
        config,
        path=path,
        provider=provider,
        metadata=rows,
        clock=runtime.clock,
    )
    problems: list[str] = []
    try:
        recover(file, rows, runtime.clock, read_only=True)
    except (SegmentError, OffsetOutOfRangeError) as error:
        problems.append(f"not recovered: {error}")
    if file.problem is not None:
        problems.append(file.problem)
    _count_coda(file)
    segments = (*file.log.segments, *file.queue.segments)
    timed = tuple(_with_times(file, segment, problems) for segment in segments)
    if not file.queue.segments and file.log.segments:
        problems.append("it has a log and no queue units")
    problem = "; ".join(dict.fromkeys(problems)) or None
    note = _expired_units(file)
    return FoundQueue(record=record, rows=timed, file=file, problem=problem, note=note)


def _count_coda(file: FlatMessageFile) -> None:
    """Count the mark after the last record of an old sealed segment, which no unit names."""
    last = file.log.segments[-1] if file.log.segments else None
    if last is None or last.backend_bytes() - last.record.size != CODA_BYTES:
        return
    if is_coda(last.segment.read(last.record.size, CODA_BYTES)):
        last.record = replace(last.record, size=last.record.size + CODA_BYTES)


def _with_times(file: FlatMessageFile, segment: FlatSegment, problems: list[str]) -> SegmentRecord:
    """The row, with the times of the segment's oldest and newest existing messages.

    The oldest queue segment may begin with units of messages that have expired with the log.
    """
    found, record = segment.record, segment.record
    begin, end = found.begin_timestamp, found.end_timestamp  # as the recovery read them
    try:
        held = units_of(file, record)
        first = max(held.start, file.min_offset)
        if first < held.stop:
            begin = store_time(file, first)
            end = store_time(file, held.stop - 1)
    except BackendError:
        raise
    except (SegmentError, OffsetOutOfRangeError) as error:
        if begin is None or end is None:
            problems.append(f"{segment.segment.path}: its times cannot be read: {error}")
    if begin is None or end is None:
        return replace(record, begin_timestamp=None, end_timestamp=None)
    # Its creation time is not stored; it is no earlier than the first message.
    return replace(
        record, create_timestamp=begin, begin_timestamp=begin, end_timestamp=max(begin, end)
    )


def _expired_units(file: FlatMessageFile) -> str | None:
    """A note if the queue begins with units of expired messages: segments expire as a whole, and
    those of the log and the queue end at different messages.
    """
    try:
        count = file.min_offset - file.queue.min_unit
    except BackendError:
        raise
    except (SegmentError, OffsetOutOfRangeError):
        return None  # a problem says why
    if count <= 0:
        return None
    return f"begins with {count} units of messages that have expired"


class ReadOnlyRows(MetadataStore):
    """A catalogue of segments only, which cannot be changed."""

    def __init__(self, rows: Iterable[SegmentRecord]) -> None:
        self._rows = sorted(rows, key=lambda row: (row.path, row.type, row.base_offset))

    def segment(self, path: str, type: SegmentType, base_offset: int) -> SegmentRecord | None:
        found = (row for row in self.segments(path, type) if row.base_offset == base_offset)
        return next(found, None)

    def segments(
        self, path: str | None = None, type: SegmentType | None = None
    ) -> Sequence[SegmentRecord]:
        return [row for row in self._rows if path in (None, row.path) and type in (None, row.type)]

    def topic(self, topic: str) -> TopicRecord | None:
        return None

    def topics(self) -> Sequence[TopicRecord]:
        return ()

    def queue(self, topic: str, queue_id: int) -> QueueRecord | None:
        return None

    def queues(self, topic: str | None = None) -> Sequence[QueueRecord]:
        return ()

    def note(self, kind: str, key: str) -> Json:
        return None

    def notes(self, kind: str) -> Mapping[str, Json]:
        return {}

    def apply(self, changes: Iterable[Change]) -> None:
        raise MetadataError("", "these rows are in no catalogue yet")

    def add_topic(self, topic: str, *, reserve_hours: int | None = None) -> TopicRecord:
        raise MetadataError("", "these rows are in no catalogue yet")

    def refresh(self) -> None:
        """Nobody else changes them."""

    def close(self) -> None:
        """There is nothing to release."""


@dataclass(slots=True, kw_only=True)
class FoundIndex:
    """All uploaded index files of a broker."""

    rows: list[SegmentRecord] = field(default_factory=list)
    topic_ids: set[int] = field(default_factory=set)
    samples: dict[QueueId, list[CompactedItem]] = field(default_factory=dict)
    newest: dict[QueueId, int] = field(default_factory=dict)  # the last log offset of each queue
    problems: list[str] = field(default_factory=list)

    def take(self, items: NDArray[Any]) -> None:
        ids = items["topic_id"].astype(np.int64)
        queues = (ids << 32) + items["queue_id"].astype(np.int64)
        self.topic_ids.update(np.unique(ids).tolist())
        for number in np.unique(queues).tolist():
            of_queue = items[queues == number]
            queue = QueueId(number >> 32, number & 0xFFFFFFFF)
            offsets = of_queue["log_offset"].astype(np.int64)
            self.newest[queue] = max(self.newest.get(queue, -1), int(offsets.max()))
            good = of_queue[~np.isin(of_queue["key_hash"], _MANY_KEYS)]
            # The newest ones, whose messages have not expired.
            order = np.argsort(good["log_offset"])[-SAMPLES_MAX:]
            more = [CompactedItem._make(good[at].item()) for at in order.tolist()]
            held = sorted([*self.samples.get(queue, []), *more], key=lambda item: item.log_offset)
            self.samples[queue] = held[-SAMPLES_MAX:]


def found_index(
    listed: Iterable[ListedSegment], provider: SegmentProvider, *, slot_count: int
) -> FoundIndex:
    """Reads every index file once. A damaged file is reported as a problem, and gets no row.

    Raises InvalidConfigError if all files were made with another number of slots. Only the length
    of a file of RocketMQ says how many it has: beside others that fit, one that does not is cut.
    """
    index = FoundIndex()
    other: InvalidConfigError | None = None
    for file in sorted(listed, key=lambda found: found.base):
        with provider.open(file.path, file.type, file.base) as segment:
            try:
                row, start, end = _opened(segment, file, slot_count)
                for items in _items(segment, start, end):
                    index.take(items)
            except (SegmentError, OffsetOutOfRangeError, InvalidConfigError) as error:
                if isinstance(error, InvalidConfigError):
                    other = error
                index.problems.append(f"an index file cannot be read: {error}")
                continue
        index.rows.append(row)
    if other is not None and not index.rows:
        raise other
    first = first_row_below(index.rows)
    if first is not None:
        index.rows[0] = first
    return index


class IndexLayout(NamedTuple):
    """How an uploaded index file was made."""

    slot_count: int
    begin_timestamp: int
    end_timestamp: int
    items_start: int
    items_end: int
    is_ours: bool


def layout_of(segment: FileSegment) -> IndexLayout:
    """The layout of an uploaded index file; raises if it cannot be read."""
    size = segment.size()
    found = footer_or_header(segment.read, size, path=segment.path)
    begin, end = found.begin_timestamp, found.end_timestamp
    if isinstance(found, Footer):
        place = found.items_position, found.position
        return IndexLayout(found.slot_count, begin, end, *place, is_ours=True)
    items = COMPACTED_ITEM_BYTES * found.item_count
    # RocketMQ 5.1 left 4 more bytes after the items.
    slots, rest = divmod(size - HEADER_BYTES - items, SLOT_BYTES)
    return IndexLayout(slots, begin, end, slot_position(slots), size - rest, is_ours=False)


def _opened(
    segment: FileSegment, file: ListedSegment, slot_count: int
) -> tuple[SegmentRecord, int, int]:
    """The file's row, and where its items begin and end."""
    slots, begin, end, start, behind, _ = layout_of(segment)
    if slots != slot_count:
        raise InvalidConfigError(
            f"index_slot_count: {slot_count}, but {segment.path} was made with {slots}, or is cut"
        )
    row = SegmentRecord(
        path=file.path,
        type=SegmentType.INDEX,
        base_offset=file.base,
        size=segment.size(),
        create_timestamp=end,
        begin_timestamp=begin,
        end_timestamp=end,
    )
    return row, start, behind


def _items(segment: FileSegment, start: int, end: int) -> Iterator[NDArray[Any]]:
    step = _ITEMS_AT_ONCE * COMPACTED_ITEM_BYTES
    for at in range(start, end, step):
        count = (min(step, end - at)) // COMPACTED_ITEM_BYTES
        if count:
            data = segment.read(at, count * COMPACTED_ITEM_BYTES)
            yield view_compacted_items(data, path=segment.path)


def topic_ids_of(
    queues: Sequence[FoundQueue], index: FoundIndex, *, slot_count: int
) -> dict[str, int]:
    """The id of each topic of which an index item names an existing record with the item's key."""
    by_number: dict[int, list[FoundQueue]] = {}
    for queue in queues:
        by_number.setdefault(queue.record.queue_id, []).append(queue)
    found: dict[str, int] = {}
    # If a topic has two ids, which should be impossible, the newer one counts.
    for queue_id in sorted(index.samples, reverse=True):
        if queue_id.topic_id in found.values():
            continue
        for queue in by_number.get(queue_id.queue_id, []):
            if queue.topic in found:
                continue
            items = index.samples[queue_id]
            if any(_is_of(queue, item, slot_count) for item in reversed(items)):
                found[queue.topic] = queue_id.topic_id
                break
    return found


def indexed_offsets(
    queues: Sequence[FoundQueue], index: FoundIndex, ids: Mapping[str, int]
) -> dict[QueueId, int]:
    """For each queue the offset below which the uploaded files have everything: messages are
    indexed in queue order.
    """
    found: dict[QueueId, int] = {}
    for queue in queues:
        topic_id = ids.get(queue.topic)
        if topic_id is None:
            continue
        number = QueueId(topic_id, queue.record.queue_id)
        log_offset = index.newest.get(number)
        if log_offset is None:
            continue
        head = _read(queue.file, log_offset, _HEAD_BYTES)
        if head is not None:
            found[number] = min(peek_queue_offset(head) + 1, queue.file.commit_offset)
    return found


def _is_of(queue: FoundQueue, item: CompactedItem, slot_count: int) -> bool:
    record = _read(queue.file, item.log_offset, item.message_bytes)
    if record is None or peek_message_bytes(record) != item.message_bytes:
        return False
    try:
        if peek_topic(record) != queue.topic:
            return False
        properties = decode_properties(peek_property_bytes(record))
    except SegmentError:
        return False
    keys = {properties.get(UNIQUE_KEY, ""), *split_keys(properties.get(KEYS, ""))} - {""}
    texts = [f"{queue.topic}#{key}" for key in keys]
    return any(
        item.key_hash == hash_ for text in texts for hash_, _ in tiered_probes(text, slot_count)
    )


def _read(file: FlatMessageFile, log_offset: int, length: int) -> bytes | None:
    """A record's bytes; None if no record begins there."""
    try:
        data = file.log.read(log_offset, length)
        is_message = peek_magic(data) in MESSAGE_MAGICS
    except (SegmentError, OffsetOutOfRangeError):
        return None
    return data if is_message else None
