"""Random histories of a JsonMetadataStore, with crashes and RocketMQ, against plain dicts."""

from __future__ import annotations

import copy
import itertools
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tieredstore.codec import fastjson
from tieredstore.driver.metadata import (
    Change,
    DeleteNote,
    DeleteQueue,
    DeleteSegment,
    DeleteTopic,
    Put,
    PutNote,
)
from tieredstore.metadata import JsonMetadataStore
from tieredstore.metadata.journal import commit_line
from tieredstore.metadata.tables import Tables
from tieredstore.model.values import Json, QueueRecord, SegmentRecord, SegmentType, TopicRecord

NAME = "tieredStoreMetadata.json"

names = st.sampled_from(["A", "主题", 'a"{0:', "%RETRY%g\\"])
small = st.integers(0, 3)
times = st.none() | st.integers(-5, 10**13)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=3),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(names, below, max_size=2),
    max_leaves=4,
)
topics = st.builds(
    TopicRecord,
    topic=names,
    topic_id=st.integers(0, 9),
    reserve_hours=st.none() | small,
    status=small,
    update_timestamp=small,
)
queues = st.builds(
    QueueRecord, broker_name=names, topic=names, queue_id=small, max_offset=st.integers(-1, 5)
)
segments = st.builds(
    SegmentRecord,
    path=names,
    type=st.sampled_from(SegmentType),
    base_offset=small,
    size=st.integers(0, 2**40),
    begin_timestamp=times,
    end_timestamp=times,
    status=small,
    seal_timestamp=small,
)
changes = (
    st.builds(Put, topics | queues | segments)
    | st.builds(DeleteTopic, names)
    | st.builds(DeleteQueue, names, small)
    | st.builds(DeleteSegment, names, st.sampled_from(SegmentType), small)
    | st.builds(PutNote, names, names, values)
    | st.builds(DeleteNote, names, names)
)


@dataclass
class Model:
    """The catalogue as plain dicts."""

    topics: dict[str, TopicRecord] = field(default_factory=dict)
    queues: dict[tuple[str, int], QueueRecord] = field(default_factory=dict)
    segments: dict[tuple[str, SegmentType, int], SegmentRecord] = field(default_factory=dict)
    notes: dict[tuple[str, str], Json] = field(default_factory=dict)
    serial: int = -1

    def apply(self, change: Change) -> None:
        match change:
            case Put(TopicRecord() as row):
                self.topics[row.topic] = row
                self.serial = max(self.serial, row.topic_id)
            case Put(QueueRecord() as row):
                self.queues[row.topic, row.queue_id] = row
            case Put(SegmentRecord() as row):
                self.segments[row.path, row.type, row.base_offset] = row
            case DeleteTopic(topic):
                self.topics.pop(topic, None)
            case DeleteQueue(topic, queue_id):
                self.queues.pop((topic, queue_id), None)
            case DeleteSegment(path, type, base_offset):
                self.segments.pop((path, type, base_offset), None)
            case PutNote(kind, key, value):
                self.notes[kind, key] = value
            case DeleteNote(kind, key):
                self.notes.pop((kind, key), None)


class Histories(RuleBasedStateMachine):
    """`now` is what the store must show, and `compacted` is what its snapshot holds.

    Every acknowledged change survives a crash. If RocketMQ starts after a crash, it sees and keeps
    only the snapshot, and what it then writes is the truth.
    """

    journal_bytes_max: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.folders = itertools.count()
        self.folder = self.root / "first"
        self.now = Model()
        self.compacted = Model()
        self.stale = 0
        self.store = self.open()
        self.reader = JsonMetadataStore.open(self.folder / NAME, read_only=True)

    def open(self) -> JsonMetadataStore:
        return JsonMetadataStore.open(
            self.folder / NAME, clock_ms=lambda: 1, journal_bytes_max=self.journal_bytes_max
        )

    def teardown(self) -> None:
        self.store.close()
        self.reader.close()
        shutil.rmtree(self.root)

    @rule(batch=st.lists(changes, max_size=4))
    def apply(self, batch: list[Change]) -> None:
        self.store.apply(batch)
        for change in batch:
            self.now.apply(change)

    @rule(topic=names, reserve_hours=st.none() | small)
    def add_topic(self, topic: str, reserve_hours: int | None) -> None:
        row = self.store.add_topic(topic, reserve_hours=reserve_hours)
        if topic not in self.now.topics:
            expected = TopicRecord(
                topic=topic,
                topic_id=self.now.serial + 1,
                reserve_hours=reserve_hours,
                update_timestamp=1,
            )
            self.now.apply(Put(expected))
        assert row == self.now.topics[topic]

    @rule()
    def compact(self) -> None:
        self.store.compact()
        self.compacted = copy.deepcopy(self.now)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.compacted = copy.deepcopy(self.now)
        self.store = self.open()
        assert self.store.report.replayed_lines == 0

    @rule(torn=st.binary(max_size=40) | st.integers(1, 60))
    def crash(self, torn: bytes | int) -> None:
        """The process stops; any part of a line in progress may have been written."""
        self.crashed_folder()
        journal = self.folder / f"{NAME}.journal"
        if journal.exists():
            line = commit_line(journal.read_bytes().count(b"\n"), [b'{"delete":"topic"}'])
            tail = line[: min(torn, len(line) - 1)] if isinstance(torn, int) else torn
            with journal.open("ab") as file:
                file.write(tail)
        self.store = self.open()

    @rule(topic=names, segment=segments)
    def crash_and_let_rocketmq_write(self, topic: str, segment: SegmentRecord) -> None:
        self.crashed_folder()
        journal_counts = (self.folder / f"{NAME}.journal").exists()
        path = self.folder / NAME
        content = Tables()
        if path.exists():
            content = Tables.from_document(fastjson.decode(path.read_bytes()))
            shutil.copy(path, path.with_name(f"{NAME}.bak"))
        java = [Put(TopicRecord(topic=topic, topic_id=10 + content.topic_serial)), Put(segment)]
        content.apply(java)
        path.write_bytes(fastjson.encode(content.document()))

        self.now = copy.deepcopy(self.compacted)
        for change in java:
            self.now.apply(change)
        self.compacted = copy.deepcopy(self.now)
        self.store = self.open()
        assert (self.store.report.stale_journal is not None) == journal_counts

    def crashed_folder(self) -> None:
        """Go on in a copy of the folder as it is now, where nothing was closed."""
        folder = self.root / str(next(self.folders))
        shutil.copytree(self.folder, folder)
        self.store.close()
        self.reader.close()
        self.folder = folder
        self.reader = JsonMetadataStore.open(folder / NAME, read_only=True)

    @rule()
    def reader_refreshes(self) -> None:
        self.reader.refresh()
        self.check(self.reader)

    @invariant()
    def the_store_shows_the_model(self) -> None:
        self.check(self.store)

    def check(self, store: JsonMetadataStore) -> None:
        model = self.now
        assert {row.topic: row for row in store.topics()} == model.topics
        assert {(row.topic, row.queue_id): row for row in store.queues()} == model.queues
        found = {(row.path, row.type, row.base_offset): row for row in store.segments()}
        assert found == model.segments
        kinds = {kind for kind, _ in model.notes}
        assert {(k, key): v for k in kinds for key, v in store.notes(k).items()} == model.notes


class HistoriesWithAShortJournal(Histories):
    """The same with constant compaction, so the test cannot know what the snapshot holds."""

    journal_bytes_max = 300
    crash_and_let_rocketmq_write = None  # type: ignore[assignment]


TestHistories = Histories.TestCase
TestHistoriesWithAShortJournal = HistoriesWithAShortJournal.TestCase
TestHistories.settings = settings(max_examples=20)
TestHistoriesWithAShortJournal.settings = settings(max_examples=20)


@pytest.mark.torture
@pytest.mark.parametrize("machine", [Histories, HistoriesWithAShortJournal])
def test_long_histories(machine: type[Histories]) -> None:
    """Run the same histories, as long and as often as the profile says."""
    run_state_machine_as_test(machine, settings=settings())
