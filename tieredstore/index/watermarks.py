"""How far the index durably holds each queue, as notes in the catalogue:

| kind           | key                            | value                                     |
| -------------- | ------------------------------ | ----------------------------------------- |
| index          | sizes                          | slots and items of every file             |
| index          | end                            | offset where the next uploaded file       |
|                |                                | begins                                    |
| index          | dropped                        | all messages of dropped files were stored |
|                |                                | before this time                          |
| index-queue    | <topic id>/<queue id>          | queue offset below which all is durable;  |
|                |                                | or that, and when it was put              |
| index-file     | <begin>                        | number of durable items of a local file   |
|                |                                | and two CRC32C; or only the number        |
| index-start    | <begin>/<topic id>/<queue id>  | queue offset from which on the file may   |
|                |                                | hold messages                             |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tieredstore.codec.names import index_queue_path, queue_path
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.metadata import Change, DeleteNote, MetadataStore, PutNote
from tieredstore.flat.message_file import is_believed
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.values import Json, SegmentRecord, SegmentType

STORE: Final = "index"
QUEUE: Final = "index-queue"
FILE: Final = "index-file"
START: Final = "index-start"


class QueueId(NamedTuple):
    """A queue as index items name it: a topic that is created again gets another number."""

    topic_id: int
    queue_id: int

    @property
    def key(self) -> str:
        return f"{self.topic_id}/{self.queue_id}"


class QueueLag(NamedTuple):
    """The index has everything below `mark`, and had it at `put_at`; the queue ends at `end`."""

    queue: QueueId
    path: str
    mark: int
    end: int
    put_at: int


class Durable(NamedTuple):
    """The first items of a local file: how many, and the checksums of them and of the hashes beside
    them, if these were noted."""

    item_count: int
    items: int | None = None
    hashes: int | None = None


class Watermarks:
    """The durable state of the index, as the catalogue has it; reads are served from memory."""

    def __init__(self, metadata: MetadataStore, broker_name: str) -> None:
        self._metadata = metadata
        self._broker_name = broker_name

    # Of the store

    def check_sizes(self, *, slot_count: int, item_capacity: int) -> bool:
        """Whether the store has sizes noted yet; InvalidConfigError if they differ from these."""
        held = self._metadata.note(STORE, "sizes")
        if not isinstance(held, dict):
            return False
        for name, key, wanted in (
            ("index_slot_count", "slots", slot_count),
            ("index_item_count", "items", item_capacity),
        ):
            if held.get(key) != wanted:
                raise InvalidConfigError(
                    f"{name}: {wanted}, but the index of this store was made with "
                    f"{held.get(key)}: it must never change"
                )
        return True

    def slot_count(self) -> int | None:
        """The slots of every file of the store, if that was noted."""
        return self._made_with().get("index_slot_count")

    def item_capacity(self) -> int | None:
        """The items that every local file has room for, if that was noted."""
        return self._made_with().get("index_item_count")

    def _made_with(self) -> dict[str, int]:
        return self.made_with({"sizes": self._metadata.note(STORE, "sizes")})

    @staticmethod
    def made_with(notes: Mapping[str, Json]) -> dict[str, int]:
        """The fixed settings by name, from the notes of kind STORE; empty if none were noted."""
        held = notes.get("sizes")
        if not isinstance(held, dict):
            return {}
        found = {
            "index_slot_count": _number(held.get("slots")),
            "index_item_count": _number(held.get("items")),
        }
        return {name: value for name, value in found.items() if value}

    @staticmethod
    def sizes(*, slot_count: int, item_capacity: int) -> Change:
        return PutNote(STORE, "sizes", {"slots": slot_count, "items": item_capacity})

    def adopted(self, *, now_ms: int) -> list[Change]:
        """Changes that take over another program's index, which is assumed to hold all committed
        messages."""
        found: list[Change] = []
        for record in self._metadata.queues():
            topic = self._metadata.topic(record.topic)
            if topic is not None:
                queue = QueueId(topic.topic_id, record.queue_id)
                end = self.committed(record.topic, record.queue_id)
                found.append(PutNote(QUEUE, queue.key, [end, now_ms]))
        return found

    def end(self) -> int:
        return _number(self._metadata.note(STORE, "end")) or 0

    @staticmethod
    def end_at(offset: int) -> Change:
        return PutNote(STORE, "end", offset)

    def dropped_before(self) -> int | None:
        """Messages stored before this time may have been in files that were dropped by age."""
        return _number(self._metadata.note(STORE, "dropped"))

    @staticmethod
    def dropped(before_ms: int) -> Change:
        return PutNote(STORE, "dropped", before_ms)

    def has_dropped(self, base: int) -> bool:
        """Whether files before this base may have been dropped, and not only replaced."""
        return base > (_number(self._metadata.note(STORE, "anew")) or 0)

    @staticmethod
    def made_anew(base: int) -> list[Change]:
        """Changes for an index that was made anew from this base on, with the keys of all
        messages."""
        return [DeleteNote(STORE, "dropped"), PutNote(STORE, "anew", base)]

    # Of a queue

    def of_queue(self, topic: str, queue: QueueId) -> int:
        """All is durable below this offset; 0 for a queue that was made again. Such a queue ends
        below its mark, or all its segments were begun after the last put."""
        held, put_at = _mark(self._metadata.note(QUEUE, queue.key))
        rows = self._rows(topic, queue.queue_id)
        if put_at is not None and all(row.create_timestamp > put_at for row in rows):
            return 0
        return held if held <= self.committed(topic, queue.queue_id) else 0

    def behind(self) -> list[QueueLag]:
        """Queues of which something is durable, but not all that the catalogue calls committed."""
        found = []
        for record in self._metadata.queues():
            topic = self._metadata.topic(record.topic)
            if topic is None:
                continue
            queue = QueueId(topic.topic_id, record.queue_id)
            mark, end = (
                self.of_queue(record.topic, queue),
                self.committed(record.topic, record.queue_id),
            )
            if 0 < mark < end:
                put_at = _mark(self._metadata.note(QUEUE, queue.key))[1]
                path = queue_path(self._broker_name, record.topic, record.queue_id)
                found.append(QueueLag(queue, path, mark, end, put_at or 0))
        return found

    def held(self, queue: QueueId) -> int:
        """What the note says, even if the queue was made again since."""
        return _mark(self._metadata.note(QUEUE, queue.key))[0]

    def committed(self, topic: str, queue_id: int) -> int:
        """Where the queue ends, according to the catalogue."""
        rows = self._rows(topic, queue_id)
        return max((row.end_offset for row in rows), default=0) // UNIT_BYTES

    def _rows(self, topic: str, queue_id: int) -> Sequence[SegmentRecord]:
        path = queue_path(self._broker_name, topic, queue_id)
        return self._metadata.segments(path, SegmentType.CONSUME_QUEUE)

    @staticmethod
    def moved(
        queues: Mapping[QueueId, int], put_at: Mapping[QueueId, int] | None = None
    ) -> list[Change]:
        """Notes, with the time of the last put if it is known: a queue made again began later."""
        times = put_at or {}
        return [
            PutNote(QUEUE, queue.key, [offset, times[queue]] if queue in times else offset)
            for queue, offset in queues.items()
        ]

    @staticmethod
    def unmarked(queue: QueueId) -> Change:
        return DeleteNote(QUEUE, queue.key)

    # Of a local file

    def durable(self, begin: int) -> Durable | None:
        """The items of a local file that are known to be on disk."""
        value = self._metadata.note(FILE, str(begin))
        numbers = [_number(count) for count in (value if isinstance(value, list) else [value])]
        count, items, hashes, *_ = *numbers, None, None, None
        return None if count is None else Durable(count, items, hashes)

    def begins(self) -> list[int]:
        """Files that have durable items."""
        return [int(key) for key in self._metadata.notes(FILE) if _is_digits(key)]

    @staticmethod
    def filled(
        durable: Mapping[int, Durable], starts: Mapping[tuple[int, QueueId], int]
    ) -> list[Change]:
        changes: list[Change] = [
            PutNote(FILE, str(begin), list(held)) for begin, held in durable.items()
        ]
        for (begin, queue), offset in starts.items():
            changes.append(PutNote(START, f"{begin}/{queue.key}", offset))
        return changes

    def starts(self) -> dict[tuple[int, QueueId], int]:
        """The queue offset from which on each local file may hold messages of each queue."""
        found = {}
        for key, at in self._metadata.notes(START).items():
            numbers = key.split("/")
            if len(numbers) == 3 and all(map(_is_digits, numbers)):
                begin, topic_id, queue_id = map(int, numbers)
                found[begin, QueueId(topic_id, queue_id)] = _number(at) or 0
        return found

    def forgotten(self, begin: int) -> list[Change]:
        """Changes for a file that is no longer local."""
        changes: list[Change] = [DeleteNote(FILE, str(begin))]
        changes += [DeleteNote(START, key) for key in self._starts(begin)]
        return changes

    def lost(self, begin: int, *, is_ours: bool = True) -> list[Change]:
        """Changes for a lost file: all that it may have held is to be put again.

        What a file that was not ours held is unknown: then everything is put again.
        """
        held = self._metadata.notes(QUEUE)
        starts = {key.partition("/")[2]: at for key, at in self._starts(begin).items()}
        if not starts and self.durable(begin) is None and not is_ours:
            starts = dict.fromkeys(held, 0)
        changes = self.forgotten(begin)
        for key, start in starts.items():
            offset, put_at = _mark(held.get(key))
            if start < offset:
                value: Json = start if put_at is None else [start, put_at]
                changes.append(PutNote(QUEUE, key, value))
        return changes

    def queues(self) -> set[QueueId]:
        """The queues that the catalogue names."""
        topics = {record.topic: record.topic_id for record in self._metadata.topics()}
        return {
            QueueId(topics[record.topic], record.queue_id)
            for record in self._metadata.queues()
            if record.topic in topics
        }

    def unknown(self) -> list[Change]:
        """Changes that delete notes of queues which no longer exist, without a row or segment."""
        # First: the catalogue names a queue before its first note.
        noted = self._metadata.notes(QUEUE).keys()
        known = {queue.key for queue in self.queues()}
        names = {record.topic_id: record.topic for record in self._metadata.topics()}
        gone: list[Change] = []
        for key in noted - known:
            topic_id, _, queue_id = key.partition("/")
            numbers = _is_digits(topic_id) and _is_digits(queue_id)
            topic = names.get(int(topic_id)) if numbers else None
            if topic is None or not self._rows(topic, int(queue_id)):
                gone.append(DeleteNote(QUEUE, key))
        return gone

    def everything(self) -> list[Change]:
        """Changes that delete all notes of the index."""
        return [
            DeleteNote(kind, key)
            for kind in (STORE, QUEUE, FILE, START)
            for key in self._metadata.notes(kind)
        ]

    def _starts(self, begin: int) -> dict[str, int]:
        prefix = f"{begin}/"
        notes = self._metadata.notes(START)
        return {key: _number(at) or 0 for key, at in notes.items() if key.startswith(prefix)}


class IndexCoverage(NamedTuple):
    """The store times that the uploaded files cover. `begin` is None if no file was dropped."""

    begin: int | None
    end: int


def index_coverage(metadata: MetadataStore, broker_name: str, now_ms: int) -> IndexCoverage | None:
    """What the catalogue says; None if there is no file, or the times cannot be trusted.

    Old files are dropped by age, and a message may outlive its index file.
    """
    rows = metadata.segments(index_queue_path(broker_name), SegmentType.INDEX)
    ends = [row.end_timestamp for row in rows if row.end_timestamp is not None]
    if not rows or len(ends) < len(rows) or not is_believed(max(ends), now_ms):
        return None
    marks = Watermarks(metadata, broker_name)
    if not marks.has_dropped(rows[0].base_offset):
        return IndexCoverage(None, max(ends))
    # Files overlap: the begin of the first file says less than the time of the last drop.
    dropped = marks.dropped_before()
    begin = rows[0].begin_timestamp if dropped is None else dropped
    return IndexCoverage(begin, max(ends)) if begin and is_believed(begin, now_ms) else None


def indexed_offset(
    metadata: MetadataStore, broker_name: str, topic: str, queue: QueueId
) -> int | None:
    """The uploaded files alone have every message below this queue offset. Without notes: 0 if
    there is no file, as the broker keeps no index or has uploaded none of it; else None."""
    marks = Watermarks(metadata, broker_name)
    if marks.slot_count() is None:
        path = index_queue_path(broker_name)
        return None if metadata.segments(path, SegmentType.INDEX) else 0
    starts = [at for (_, held), at in marks.starts().items() if held == queue]
    return min([marks.of_queue(topic, queue), *starts])


def _mark(value: Json) -> tuple[int, int | None]:
    """A queue offset, and when the messages below it were put."""
    if isinstance(value, list) and len(value) == 2:
        return _number(value[0]) or 0, _number(value[1])
    return _number(value) or 0, None


def _number(value: Json) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()
