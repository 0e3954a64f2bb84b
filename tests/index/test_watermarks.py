"""What the catalogue notes about the index: how far it goes, and what is put again."""

from __future__ import annotations

import pytest

from tests.flat.tiers import FaultyCatalogue
from tests.index.store_kit import BROKER, INDEX_PATH
from tieredstore.codec.names import index_queue_path
from tieredstore.driver.metadata import MetadataStore, Put
from tieredstore.index.watermarks import (
    FILE,
    QUEUE,
    START,
    STORE,
    IndexCoverage,
    QueueId,
    Watermarks,
    index_coverage,
    indexed_offset,
)
from tieredstore.metadata.tables import Tables
from tieredstore.model.values import Json, QueueRecord, SegmentRecord, SegmentType
from tieredstore.testing.faults import Faults
from tieredstore.testing.samples import STORE_TIMESTAMP as NOW
from tieredstore.testing.samples import TOPIC


@pytest.fixture
def catalogue() -> MetadataStore:
    return FaultyCatalogue(Tables(), Faults())


def index_file(base: int, begin: int | None, end: int | None) -> SegmentRecord:
    return SegmentRecord(
        path=INDEX_PATH,
        type=SegmentType.INDEX,
        base_offset=base,
        size=10,
        begin_timestamp=begin,
        end_timestamp=end,
    )


@pytest.mark.parametrize(
    ("rows", "dropped", "coverage"),
    [
        ([], None, None),
        ([(0, NOW - 9, NOW)], None, IndexCoverage(None, NOW)),
        ([(0, NOW - 9, NOW - 5), (10, NOW - 6, NOW)], 7, IndexCoverage(None, NOW)),
        ([(0, NOW - 9, NOW), (10, None, None)], None, None),
        ([(0, NOW - 9, NOW - 5), (10, NOW - 6, 5)], None, IndexCoverage(None, NOW - 5)),
        ([(0, NOW - 9, 5)], None, None),
        ([(10, NOW - 9, NOW)], None, IndexCoverage(NOW - 9, NOW)),
        ([(10, NOW - 9, NOW)], NOW - 3, IndexCoverage(NOW - 3, NOW)),
        ([(10, NOW - 9, NOW)], 5, None),
        ([(10, NOW - 9, NOW)], 0, None),
        ([(10, None, NOW)], None, None),
    ],
)
def test_files_cover_the_times_between_what_was_dropped_and_the_newest(
    catalogue: MetadataStore,
    rows: list[tuple[int, int | None, int | None]],
    dropped: int | None,
    coverage: IndexCoverage | None,
) -> None:
    catalogue.put(*(index_file(*row) for row in rows))
    if dropped is not None:
        catalogue.apply([Watermarks.dropped(dropped)])
    assert index_coverage(catalogue, BROKER, NOW) == coverage


def test_a_queue_is_indexed_up_to_the_first_message_of_a_local_file(
    catalogue: MetadataStore,
) -> None:
    topic_id = catalogue.add_topic(TOPIC).topic_id
    queue, other = QueueId(topic_id, 0), QueueId(topic_id, 1)
    for queue_id in (0, 1):
        catalogue.put(QueueRecord(broker_name=BROKER, topic=TOPIC, queue_id=queue_id))
    catalogue.put(
        *(
            SegmentRecord(
                path=f"{BROKER}/{TOPIC}/{queue_id}",
                type=SegmentType.CONSUME_QUEUE,
                base_offset=0,
                size=2000,
            )
            for queue_id in (0, 1)
        )
    )
    catalogue.apply(Watermarks.moved({queue: 90, other: 80}))
    assert indexed_offset(catalogue, BROKER, TOPIC, queue) == 0
    file = SegmentRecord(
        path=index_queue_path(BROKER), type=SegmentType.INDEX, base_offset=0, size=300
    )
    catalogue.apply([Put(file)])
    assert indexed_offset(catalogue, BROKER, TOPIC, queue) is None
    catalogue.apply([Watermarks.sizes(slot_count=5, item_capacity=9)])
    assert indexed_offset(catalogue, BROKER, TOPIC, queue) == 90
    catalogue.put_note(START, f"1000/{other.key}", 20)
    assert indexed_offset(catalogue, BROKER, TOPIC, queue) == 90
    catalogue.put_note(START, f"1000/{queue.key}", 60)
    catalogue.put_note(START, f"2000/{queue.key}", 70)
    assert indexed_offset(catalogue, BROKER, TOPIC, queue) == 60
    assert indexed_offset(catalogue, BROKER, TOPIC, other) == 20


@pytest.mark.parametrize(
    ("note", "sizes"),
    [
        ({"slots": 5, "items": 9}, (5, 9)),
        ({"slots": 5}, (5, None)),
        ({"slots": "5", "items": 9.0}, (None, None)),
        ({"slots": -1, "items": True}, (None, None)),
        ([5, 9], (None, None)),
        (None, (None, None)),
    ],
)
def test_sizes_that_make_no_sense_are_as_if_nobody_had_noted_them(
    catalogue: MetadataStore, note: Json, sizes: tuple[int | None, int | None]
) -> None:
    if note is not None:
        catalogue.put_note(STORE, "sizes", note)
    marks = Watermarks(catalogue, BROKER)
    assert (marks.slot_count(), marks.item_capacity()) == sizes


@pytest.mark.parametrize(
    ("mark", "put_at"), [([3, NOW + 5], NOW + 5), (3, 0), ([9, NOW], None), ([0, NOW], None)]
)
def test_a_queue_that_is_behind_says_when_it_was_put_to_last(
    catalogue: MetadataStore, mark: Json, put_at: int | None
) -> None:
    topic = catalogue.add_topic(TOPIC)
    catalogue.put(
        QueueRecord(broker_name=BROKER, topic=TOPIC, queue_id=0),
        SegmentRecord(
            path=f"{BROKER}/{TOPIC}/0",
            type=SegmentType.CONSUME_QUEUE,
            base_offset=0,
            size=9 * 20,
            create_timestamp=NOW,
        ),
    )
    catalogue.put_note(QUEUE, QueueId(topic.topic_id, 0).key, mark)
    found = [(lag.mark, lag.end, lag.put_at) for lag in Watermarks(catalogue, BROKER).behind()]
    assert found == ([] if put_at is None else [(3, 9, put_at)])


def test_starts_are_read_where_they_make_sense(catalogue: MetadataStore) -> None:
    notes: dict[str, Json] = {"7/1/2": 5, "8/1/2": "x", "9/1": 5, "9/1/x": 5, "9/1/2/3": 5}
    for key, at in notes.items():
        catalogue.put_note(START, key, at)
    place = QueueId(1, 2)
    assert Watermarks(catalogue, BROKER).starts() == {(7, place): 5, (8, place): 0}


def test_what_a_lost_file_held_is_put_again(catalogue: MetadataStore) -> None:
    old, dated, behind = (QueueId(1, queue_id) for queue_id in range(3))
    catalogue.apply(Watermarks.moved({old: 50, dated: 50, behind: 10}, {dated: NOW}))
    for queue in (old, dated, behind):
        catalogue.put_note(START, f"7/{queue.key}", 30)
    catalogue.put_note(START, f"8/{old.key}", 40)
    catalogue.put_note(FILE, "7", 1)
    catalogue.apply(Watermarks(catalogue, BROKER).lost(7))
    assert catalogue.notes(QUEUE) == {old.key: 30, dated.key: [30, NOW], behind.key: 10}
    assert catalogue.notes(START) == {f"8/{old.key}": 40}
    assert catalogue.notes(FILE) == {}
