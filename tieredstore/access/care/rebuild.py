"""The catalogue is lost: what was in it is found out from the bytes of the tier alone.

What lives here: `rebuild`, and when it refuses. What cannot be known: how long topics are kept,
notes, the offsets of a queue that has no bytes left, and the ids of topics that no index file
names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from tieredstore.access.care.rebuild_index import FoundIndex, found_index
from tieredstore.access.care.rebuild_queues import FoundQueue, found_queue
from tieredstore.access.care.rebuild_topics import indexed_offsets, topic_ids_of
from tieredstore.codec.names import INDEX_TOPIC
from tieredstore.driver.metadata import Change, DeleteSegment, DeleteTopic, MetadataStore, Put
from tieredstore.driver.provider import ListedSegment, SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.flat import doomed
from tieredstore.index.watermarks import Watermarks
from tieredstore.model.catalogue import SegmentRecord, TopicRecord
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError
from tieredstore.model.values import SegmentType

_NOBODY = "\0rebuilt"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildReport:
    """What the catalogue has now.

    `new_ids` are topics whose id nobody knew: what the index has of them is put again, as is all
    that `is_index_whole` being False calls into question. `notes` are worth knowing; a sound tier
    may have them.
    """

    topics: Mapping[str, int]
    new_ids: tuple[str, ...]
    queue_count: int
    segment_count: int
    size: int
    is_index_whole: bool
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()


class NewerCatalogueError(MetadataError):
    """There is a catalogue that a rebuild would not make any better."""

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
) -> RebuildReport:
    """Restore topics, queues and segments of the configured broker, in one change.

    An empty catalogue is filled. One that has rows of this broker is written over only if it is
    older: if no file of the backend ends before the catalogue says, and some file goes further or
    is not in it. What such a one knows besides is kept: ids, reserve hours, notes. In any other
    case NewerCatalogueError, and nothing has changed.

    `known` is for an empty catalogue, which takes over all that this copy of a lost one says,
    before the bytes have their say. Files of which nothing is left have expired since.

    The catalogue must be open for writing. Raises BackendError where the backend cannot be asked,
    and InvalidConfigError where index files have another number of slots.
    """
    metadata.apply([])
    restored, known = ([], metadata) if known is None else (list(known.contents()), known)
    below = f"{config.broker_name}/"
    listed = [
        each
        for each in provider.list(config.broker_name)
        if f"{each.path}/{each.type.name}/{each.base}" not in known.notes(doomed.KIND)
    ]
    present = [row for row in known.segments() if row.path.startswith(below)]
    if known is metadata:
        _refuse_newer(present, listed)
    in_index = [each for each in listed if each.type is SegmentType.INDEX]
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
    changes += _expired(present, listed)
    if known is not metadata:
        changes += _wholly_expired(present, listed)
    is_whole = not index.problems and not new
    if not known.notes("index"):
        changes += _index_changes(queues, index, ids, config)
    metadata.apply(changes)
    problems = [f"{queue.file.path}: {queue.problem}" for queue in queues if queue.problem]
    if known is not metadata:
        problems += _shorter(present, listed)
    return RebuildReport(
        topics=topics,
        new_ids=tuple(new),
        queue_count=len(queues),
        segment_count=len(rows),
        size=sum(row.size for row in rows),
        is_index_whole=is_whole,
        problems=(*problems, *index.problems),
        notes=tuple(f"{queue.file.path}: {queue.note}" for queue in queues if queue.note),
    )


def _refuse_newer(present: Sequence[SegmentRecord], listed: Sequence[ListedSegment]) -> None:
    if not present:
        return
    ends, known = _ends(listed), _known_ends(present)
    rows = {(row.path, row.type) for row in present if row.size}
    for path, kind in sorted(rows):
        if ends.get((path, kind), 0) < known[path, kind]:
            raise NewerCatalogueError(
                f"{path}/{kind.name}",
                f"the catalogue goes to byte {known[path, kind]}, the backend only to "
                f"{ends.get((path, kind), 0)}: an audit says what is missing",
            )
    if all(end <= known.get(file, -1) for file, end in ends.items()):
        raise NewerCatalogueError("", "the catalogue knows all that the backend has")


def _ends(listed: Sequence[ListedSegment]) -> dict[tuple[str, SegmentType], int]:
    ends: dict[tuple[str, SegmentType], int] = {}
    for each in listed:
        file = each.path, each.type
        ends[file] = max(ends.get(file, 0), each.base + each.size)
    return ends


def _known_ends(present: Sequence[SegmentRecord]) -> dict[tuple[str, SegmentType], int]:
    known: dict[tuple[str, SegmentType], int] = {}
    for row in present:
        known[row.path, row.type] = max(known.get((row.path, row.type), 0), row.end_offset)
    return known


def _shorter(present: Sequence[SegmentRecord], listed: Sequence[ListedSegment]) -> list[str]:
    """Files that a copy knew to be longer than what is left of them."""
    known = _known_ends(present)
    return [
        f"{path}/{kind.name}: the published catalogue goes to byte {known[path, kind]}, the "
        f"backend only to {end}"
        for (path, kind), end in sorted(_ends(listed).items())
        if end < known.get((path, kind), 0)
    ]


def _wholly_expired(
    present: Sequence[SegmentRecord], listed: Sequence[ListedSegment]
) -> list[Change]:
    files = {(each.path, each.type) for each in listed}
    return [
        DeleteSegment(row.path, row.type, row.base_offset)
        for row in present
        if row.size and (row.path, row.type) not in files
    ]


def _queues(
    listed: Sequence[ListedSegment],
    provider: SegmentProvider,
    config: StoreConfig,
    runtime: Runtime,
) -> list[FoundQueue]:
    """Many at a time; what is no queue of messages is passed over."""
    wanted = sorted(
        (each for each in listed if each.type is not SegmentType.INDEX and _is_queue(each.path)),
        key=lambda each: (each.path, each.type, each.base),
    )
    futures = [
        runtime.fetch.submit(found_queue, list(together), provider, config, runtime)
        for _, together in groupby(wanted, key=lambda each: each.path)
    ]
    return [future.result() for future in futures]


def _is_queue(path: str) -> bool:
    _, topic, number = path.split("/", 2)
    return topic != INDEX_TOPIC and number.isascii() and number.isdigit()


def _numbered(
    queues: Sequence[FoundQueue],
    ids: Mapping[str, int],
    index: FoundIndex,
) -> tuple[dict[str, int], list[str]]:
    """An id for each topic; who had none gets one that was never given."""
    topics = dict.fromkeys(queue.topic for queue in queues)
    following = 1 + max([*ids.values(), *index.topic_ids], default=-1)
    numbered: dict[str, int] = {}
    new: list[str] = []
    for topic in topics:
        if topic not in ids:
            new.append(topic)
        numbered[topic] = ids.get(topic, following + len(new) - 1)
    return numbered, new


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
        # A topic that is no more had it: the next new topic must not get it again.
        changes += [Put(TopicRecord(topic=_NOBODY, topic_id=highest)), DeleteTopic(_NOBODY)]
    return changes


def _merged(rows: Sequence[SegmentRecord], present: Sequence[SegmentRecord]) -> list[SegmentRecord]:
    """What was found, but for rows that the catalogue has with as many bytes already."""
    known = {(row.path, row.type, row.base_offset): row for row in present}
    changed = []
    for row in rows:
        held = known.get((row.path, row.type, row.base_offset))
        if held is None or held.size < row.size:
            changed.append(row)
    return changed


def _expired(present: Sequence[SegmentRecord], listed: Sequence[ListedSegment]) -> list[Change]:
    """Rows of segments older than all that is there: they went since the catalogue was written."""
    first: dict[tuple[str, SegmentType], int] = {}
    for each in listed:
        file = each.path, each.type
        first[file] = min(first.get(file, each.base), each.base)
    return [
        DeleteSegment(row.path, row.type, row.base_offset)
        for row in present
        if row.end_offset <= first.get((row.path, row.type), 0) and row.size
    ]


def _index_changes(
    queues: Sequence[FoundQueue], index: FoundIndex, ids: Mapping[str, int], config: StoreConfig
) -> list[Change]:
    """From where on keys are put again: without these notes the index would be taken for whole."""
    changes: list[Change] = [
        Watermarks.sizes(slot_count=config.index_slot_count, item_capacity=config.index_item_count),
        Watermarks.end_at(max((row.end_offset for row in index.rows), default=0)),
    ]
    if not index.problems:
        changes += Watermarks.moved(indexed_offsets(queues, index, ids))
    return changes
