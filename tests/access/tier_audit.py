"""What must be true of a whole tier at any time, found out from its bytes and its catalogue alone.

What lives here: `audit`, an index that outlives its process, and `Ledger`, which remembers what
was put and what the tier has shown. No store is asked, so none can hide anything. No tests.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import NamedTuple, TypeAlias

from tests.access.dispatch_kit import bare
from tests.access.tiered_kit import ListIndex
from tieredstore.codec.message import decode_message
from tieredstore.codec.names import queue_path
from tieredstore.codec.queue_unit import UNIT_BYTES, decode_units
from tieredstore.codec.record import peek_log_offset, peek_store_timestamp
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import SegmentProvider
from tieredstore.flat import append_file
from tieredstore.index.contract import CommittedRun
from tieredstore.model.messages import SelectedMessage
from tieredstore.model.values import QueueKey, QueueRecord, SegmentRecord, SegmentType

LOG, QUEUE = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE
HOUR_MS = 3_600_000

Segment: TypeAlias = tuple[str, SegmentType, int]


class Held(NamedTuple):
    """A message of the tier: where it lies, and its record without that."""

    log_offset: int
    record: bytes
    time: int


Contents: TypeAlias = dict[QueueKey, dict[int, Held]]


def audit(provider: SegmentProvider, metadata: MetadataStore) -> Contents:
    """Every message that the tier holds, after a look at all that must be so.

    * Every row has its bytes, segments follow each other, and every row is a queue's.
    * Bytes that no row names are noted to be deleted.
    * Every live unit names a whole record of its own that has its queue offset.
    """
    sizes = {(each.path, each.type, each.base): each.size for each in provider.list()}
    rows = {(row.path, row.type, row.base_offset): row for row in metadata.segments()}
    doomed_keys = set(metadata.notes(append_file.DELETION_NOTE))
    for place, row in rows.items():
        assert row.size <= sizes.get(place, 0), f"{row}: {sizes.get(place, 0)} bytes are there"
    for path, kind, base in sizes.keys() - rows.keys():
        assert f"{path}/{kind.name}/{base}" in doomed_keys, f"nobody names {path} {kind} {base}"
    topics = {record.topic for record in metadata.topics()}
    found: Contents = {}
    paths = set()
    for queue in metadata.queues():
        assert queue.topic in topics, f"{queue} is of no topic"
        path = queue_path(queue.broker_name, queue.topic, queue.queue_id)
        paths.add(path)
        found[queue.key] = _messages_of(path, queue, provider, metadata)
    assert {row.path for row in rows.values()} <= paths, "rows of no queue"
    return found


def check_nothing_is_left_over(provider: SegmentProvider, metadata: MetadataStore) -> None:
    """Nothing waits to be deleted; for a tier without faults after a round of retention."""
    assert not metadata.notes(append_file.DELETION_NOTE)
    named = {(row.path, row.type, row.base_offset) for row in metadata.segments()}
    assert {(each.path, each.type, each.base) for each in provider.list()} <= named


def _messages_of(
    path: str, queue: QueueRecord, provider: SegmentProvider, metadata: MetadataStore
) -> dict[int, Held]:
    logs, names = metadata.segments(path, LOG), metadata.segments(path, QUEUE)
    for before, after in itertools.pairwise(logs):
        assert before.end_offset == after.base_offset, f"{path}: a hole in the log"
    for before, after in itertools.pairwise(names):
        assert before.end_offset <= after.base_offset, f"{path}: units twice"
    data = {row.base_offset: _bytes_of(provider, row) for row in logs}
    found: dict[int, Held] = {}
    behind = 0
    for row in names:
        assert row.base_offset % UNIT_BYTES == row.size % UNIT_BYTES == 0
        units = decode_units(_bytes_of(provider, row), path=path)
        places = zip(units.log_offsets.tolist(), units.message_bytes.tolist(), strict=True)
        for offset, (log_offset, size) in enumerate(places, start=row.base_offset // UNIT_BYTES):
            assert log_offset >= behind, f"{path}: unit {offset} goes back"
            behind = log_offset + size
            if log_offset < (logs[0].base_offset if logs else 0):
                continue  # its record has expired; other units of its segment live
            found[offset] = _record_at(data, log_offset, size, queue, offset)
    return found


def _record_at(
    data: dict[int, bytes], log_offset: int, size: int, queue: QueueRecord, offset: int
) -> Held:
    base = max((base for base in data if base <= log_offset), default=-1)
    assert base >= 0, f"{queue.key}: unit {offset} names {log_offset}, where there is no segment"
    record = data[base][log_offset - base :][:size]
    assert len(record) == size, f"{queue.key}: the record of unit {offset} is cut"
    message = decode_message(record)  # checks its size, its magic and its checksum
    assert (message.topic, message.queue_id, message.queue_offset) == (*queue.key, offset)
    assert peek_log_offset(record) == log_offset
    return Held(log_offset, bare(record), peek_store_timestamp(record))


def _bytes_of(provider: SegmentProvider, row: SegmentRecord) -> bytes:
    if not row.size:
        return b""
    with provider.open(row.path, row.type, row.base_offset) as segment:
        return segment.read(0, row.size)


class DurableIndex(ListIndex):
    """Keeps which messages it was given, over restarts; it fails when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[tuple[int, int], dict[int, set[int]]] = defaultdict(
            lambda: defaultdict(set)
        )
        self._taken: dict[tuple[int, int], int] = {}
        self.fails = False

    def put(self, topic: str, topic_id: int, queue_id: int, run: CommittedRun) -> None:
        if self.fails:
            raise OSError("the index is full")
        super().put(topic, topic_id, queue_id, run)
        places = self.places[topic_id, queue_id]
        for row, log_offset in enumerate(run.log_offsets.tolist()):
            places[run.run.first_offset + row].add(log_offset)
        self._taken[topic_id, queue_id] = run.run.end_offset

    def indexed_offset(self, topic: str, topic_id: int, queue_id: int) -> int | None:
        return self._taken.get((topic_id, queue_id), 0)

    def check(self, contents: Contents, metadata: MetadataStore) -> None:
        """It has each message of the tier, where it lies and nowhere else."""
        for key, messages in contents.items():
            topic = metadata.topic(key.topic)
            assert topic is not None
            places = self.places[topic.topic_id, key.queue_id]
            for offset, held in messages.items():
                assert places.get(offset) == {held.log_offset}, (key, offset)


class Ledger:
    """What was put, and what the tier has shown of it; says where one contradicts the other."""

    def __init__(self, *, reserve_hours: int) -> None:
        self._reserve_ms = reserve_hours * HOUR_MS
        self._put: dict[QueueKey, dict[int, set[bytes]]] = defaultdict(lambda: defaultdict(set))
        self.tiered: Contents = {}
        self.promised: dict[QueueKey, int] = {}  # below it the tier said that it has everything
        self.deleting: set[str] = set()  # topics: whether they are gone is not known

    def put(self, key: QueueKey, message: SelectedMessage) -> None:
        """A queue offset comes again with another message after a power cut."""
        self._put[key][message.queue_offset].add(bare(message.record))

    def promise(self, key: QueueKey, committed: int | None) -> None:
        if committed is not None:
            assert committed >= self.promised.get(key, 0), f"{key} went back"
            self.promised[key] = committed

    def forget(self, topic: str) -> None:
        """The topic is gone for good."""
        for table in (self.tiered, self.promised):
            for key in [key for key in table if key.topic == topic]:
                del table[key]
        self.deleting.discard(topic)

    def follow(self, contents: Contents, now_ms: int) -> None:
        """What the tier has shown it has for ever, but for what is too old by now."""
        for topic in list(self.deleting):
            if not any(key.topic == topic for key in contents):
                self.forget(topic)
        for key in self.tiered.keys() - contents.keys():
            raise AssertionError(f"{key} is gone")
        for key, found in contents.items():
            self._follow(key, found, now_ms - self._reserve_ms)

    def _follow(self, key: QueueKey, found: dict[int, Held], too_old: int) -> None:
        known = self.tiered.setdefault(key, {})
        for offset in known.keys() - found.keys():
            assert known[offset].time < too_old, f"{key}: message {offset} is lost"
            assert offset < min(found, default=offset + 1), f"{key}: a hole at {offset}"
            del known[offset]
        for offset in found.keys() - known.keys():
            assert found[offset].record in self._put[key][offset], f"{key}: who put {offset}?"
        for offset, held in known.items():
            assert found[offset] == held, f"{key}: message {offset} has changed"
        known.update(found)
