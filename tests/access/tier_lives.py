"""A broker with a tier that dies and comes back, and what must always be true of its tier.

`Lives` has what outlives a process (the backend, the catalogue, the index and the local store), and
the tiered store of the current process. `audit` looks only at the bytes of the tier and at its
catalogue.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tests.access.dispatch_kit import bare
from tests.access.tiered_kit import ListIndex, a_config
from tests.flat.tiers import FaultyCatalogue
from tieredstore.access.store import TieredMessageStore
from tieredstore.codec.message import decode_message
from tieredstore.codec.names import queue_path
from tieredstore.codec.queue_unit import UNIT_BYTES, decode_units
from tieredstore.codec.record import peek_log_offset, peek_store_timestamp
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.flat import append_file
from tieredstore.index.contract import CommittedRun
from tieredstore.metadata.memory_store import MemoryMetadataStore
from tieredstore.metadata.tables import Tables
from tieredstore.model.messages import SelectedMessage
from tieredstore.model.values import GetStatus, QueueKey, QueueRecord, SegmentRecord, SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.faults import Faults, FaultyProvider
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import STORE_TIMESTAMP, a_message

LOG, QUEUE = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE
HOUR_MS = 3_600_000

Segment: TypeAlias = tuple[str, SegmentType, int]


class Held(NamedTuple):
    """A message of the tier: its log offset, and its record without the log offset."""

    log_offset: int
    record: bytes
    time: int


Contents: TypeAlias = dict[QueueKey, dict[int, Held]]


def audit(provider: SegmentProvider, metadata: MetadataStore) -> Contents:
    """Check the tier, and return every message that it holds.

    * Every row has its bytes and belongs to a queue, and segments are in order.
    * Bytes that no row names are marked for deletion.
    * Every live unit names a whole record with its queue offset, and no two units the same bytes.
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
    """Nothing waits for deletion. True after a round of retention without faults."""
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
                continue  # its record has expired; other units of the segment are live
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
    """Records which messages it was given, across restarts; fails on demand."""

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
        """Each message of the tier is indexed at its log offset and at no other."""
        for key, messages in contents.items():
            topic = metadata.topic(key.topic)
            assert topic is not None
            places = self.places[topic.topic_id, key.queue_id]
            for offset, held in messages.items():
                assert places.get(offset) == {held.log_offset}, (key, offset)


class Ledger:
    """What was put, and what the tier has held so far; asserts that they agree."""

    def __init__(self, *, reserve_hours: int) -> None:
        self._reserve_ms = reserve_hours * HOUR_MS
        self._put: dict[QueueKey, dict[int, set[bytes]]] = defaultdict(lambda: defaultdict(set))
        self.tiered: Contents = {}
        self.promised: dict[QueueKey, int] = {}  # the last committed offset that the tier named
        self.deleting: set[str] = set()  # topics that may be gone or not

    def put(self, key: QueueKey, message: SelectedMessage) -> None:
        """Note a put. After a power cut, another message may get the same queue offset."""
        self._put[key][message.queue_offset].add(bare(message.record))

    def promise(self, key: QueueKey, committed: int | None) -> None:
        if committed is not None:
            assert committed >= self.promised.get(key, 0), f"{key} went back"
            self.promised[key] = committed

    def forget(self, topic: str) -> None:
        """Forget a topic that is gone for good."""
        for table in (self.tiered, self.promised):
            for key in [key for key in table if key.topic == topic]:
                del table[key]
        self.deleting.discard(topic)

    def follow(self, contents: Contents, now_ms: int) -> None:
        """Check that the tier still has all that it ever had, but for expired messages."""
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


RESERVE_HOURS = 2
SETTINGS: dict[str, Any] = {
    "commit_log_segment_bytes": 1_400,
    "consume_queue_segment_bytes": 100,
    "commit_log_rolling_hours": 1,
    "commit_log_rolling_min_bytes": 1,
    "group_commit_count": 4,
    "reserve_hours": RESERVE_HOURS,
}
ENDS = {
    GetStatus.OFFSET_OVERFLOW_ONE,
    GetStatus.NO_MESSAGE_IN_QUEUE,
    GetStatus.NO_MATCHED_LOGIC_QUEUE,
}
Processes = Callable[[Runtime, Faults], SegmentProvider]
Catalogues = Callable[[Faults], MetadataStore]


class Lives:
    """One process after the other over the same bytes; faults strike backend and catalogue.

    `inner` makes one backend that outlives the processes; `processes` makes a backend for each
    process, with faults at its requests.
    """

    def __init__(
        self,
        folder: Path,
        *,
        inner: Callable[[Runtime], SegmentProvider] | None = None,
        processes: Processes | None = None,
        catalogues: Catalogues | None = None,
        **settings: Any,
    ) -> None:
        self.runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        self._processes = processes
        if processes is not None:
            self.inner = processes(self.runtime, Faults())
        else:
            self.inner = (inner or MemoryProvider)(self.runtime)
        self.local = ListMessageStore(self.runtime)
        self.index = DurableIndex()
        self.ledger = Ledger(reserve_hours=RESERVE_HOURS)
        self.config = a_config(folder, **{**SETTINGS, **settings})
        self.faults = Faults()
        tables = Tables()
        self._catalogues = catalogues or (lambda faults: FaultyCatalogue(tables, faults))
        self._metadata: MetadataStore | None = None
        self._store: TieredMessageStore | None = None
        self._number = 0

    @property
    def clock(self) -> ManualClock:
        clock = self.runtime.clock
        assert isinstance(clock, ManualClock)
        return clock

    @property
    def store(self) -> TieredMessageStore:
        assert self._store is not None
        return self._store

    @property
    def metadata(self) -> MetadataStore:
        assert self._metadata is not None
        return self._metadata

    # Life and death

    def open(self, faults: Faults | None = None) -> TieredMessageStore:
        """Start a new process; the previous one counts as dead even if it did not end."""
        self.local.restart()
        self.faults = faults or Faults()
        provider = self._backend()
        self._metadata = self._catalogue_of(provider)
        self._store = TieredMessageStore(
            self.local,
            self.config,
            runtime=self.runtime,
            provider=provider,
            metadata=self._metadata,
            index=self.index,
        )
        self._store.load()
        self._store.start()
        return self._store

    def _backend(self) -> SegmentProvider:
        if self._processes is None:
            return FaultyProvider(self.inner, self.faults, self.runtime)
        return self._processes(self.runtime, self.faults)

    def _catalogue_of(self, provider: SegmentProvider) -> MetadataStore:
        """Open the catalogue as a writer does, but without a file lock: its holder is dead."""
        provider.claim(self.config.broker_name)
        own = provider.catalogue(self.config.broker_name, read_only=False)
        return self._catalogues(self.faults) if own is None else own

    def _as_it_lies(self) -> MetadataStore:
        """The catalogue that the next process will find if it is stored with the bytes."""
        own = self.inner.catalogue(self.config.broker_name, read_only=True)
        if own is None:
            return (
                self.metadata
                if self._processes is None
                else MemoryMetadataStore(place="no log", clock_ms=self.clock.now_ms)
            )
        return own

    # What a broker does

    def put(self, topic: str, queue_id: int = 0, *, body_bytes: int = 100) -> None:
        """Put a message, one millisecond after the last."""
        self.clock.advance(1)
        message = a_message(self._number, topic=topic, queue_id=queue_id, body_bytes=body_bytes)
        self._number += 1
        put = self.store.put_message(message)
        found = self.local.message_at(put.log_offset)
        assert found is not None
        self.ledger.put(QueueKey(topic, queue_id), found)

    def upload(self) -> None:
        self.store.flush()

    def expire(self) -> None:
        self.store._loaded().retention.step()

    def delete_topic(self, topic: str) -> None:
        self.ledger.deleting.add(topic)
        self.store.delete_topics([topic])
        self.ledger.forget(topic)

    # What must be so

    def promises(self) -> None:
        """The committed offset of a queue never decreases."""
        for key in self.store.queues():
            if key.topic not in self.ledger.deleting:
                self.ledger.promise(key, self.store.committed_offset(*key))

    def check(self) -> Contents:
        """Check the bytes and the catalogue, without the store."""
        if self._processes is not None:  # the check is a process of its own
            self.inner = self._processes(self.runtime, Faults())
        contents = audit(self.inner, self._as_it_lies())
        self.ledger.follow(contents, self.clock.now_ms())
        return contents

    def check_reopened(self) -> None:
        """Check, right after a start without faults, that all promised messages are there."""
        self.promises()
        contents = self.check()
        too_old = self.clock.now_ms() - RESERVE_HOURS * HOUR_MS
        stopped = {(q.topic, q.queue_id) for q in self.store.health().queues if q.problem}
        for key, committed in self.ledger.promised.items():
            if key in stopped:
                continue  # the local store has another history
            for one in self.local.kept(key):
                is_old = peek_store_timestamp(one.record) < too_old
                is_there = is_old or one.queue_offset in contents.get(key, {})
                assert is_there or one.queue_offset >= committed, (key, one.queue_offset)

    def check_whole(self, but: Callable[[], Container[QueueKey]] = tuple) -> Contents:
        """Upload all, and check that each message is found once in either store, and in the index.

        `but` names, after the upload, queues that take no more messages.
        """
        is_complete = self.store.flush()
        self.expire()
        left_out = but()
        for each in self.store.health().queues:
            if (each.topic, each.queue_id) not in left_out:
                assert each.problem is None
                assert each.last_error is None
        contents = self.check()
        check_nothing_is_left_over(self.inner, self.metadata)
        self.index.check(contents, self.metadata)
        for key in self.store.queues():
            if key not in left_out:
                self._check_whole_queue(key, contents)
            else:
                is_complete = True
        assert is_complete
        return contents

    def _check_whole_queue(self, key: QueueKey, contents: Contents) -> None:
        tiered = {n: held.record for n, held in contents.get(key, {}).items()}
        local = {one.queue_offset: bare(one.record) for one in self.local.kept(key)}
        local_end = self.local.max_offset(*key)
        if local and local_end is not None:
            assert self.store.committed_offset(*key) == local_end
        assert all(tiered[n] == local[n] for n in tiered.keys() & local.keys())
        assert self.consumed(key) == tiered | local

    def consumed(self, key: QueueKey, *, first: int = 0) -> dict[int, bytes]:
        """What a consumer that follows each next offset gets, from an offset to the end."""
        found: dict[int, bytes] = {}
        at = first
        for _ in range(1_000):
            result = self.store.get_message(*key, at, count_max=7)
            if result.status in ENDS:
                return found
            for one in result.messages:
                assert one.queue_offset >= at
                at = one.queue_offset + 1
                found[one.queue_offset] = bare(one.record)
            assert result.status is GetStatus.FOUND or not result.messages, result.status
            assert result.next_offset >= at, result
            assert result.next_offset > at or result.messages, result
            at = result.next_offset
        raise AssertionError(f"{key}: no end")
