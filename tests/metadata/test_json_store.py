"""JsonMetadataStore keeps the contract, and what it says about files beyond that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tieredstore.driver.metadata import (
    Change,
    DeleteQueue,
    DeleteTopic,
    MetadataStore,
    Put,
    PutNote,
)
from tieredstore.driver.registry import METADATA_STORES, resolve
from tieredstore.metadata import JsonMetadataStore
from tieredstore.model.errors import MetadataError
from tieredstore.model.values import INT64_MAX, QueueRecord, SegmentRecord, SegmentType, TopicRecord
from tieredstore.testing.metadata_contract import MetadataStoreContract, log_segment

GOLDEN = Path(__file__).parents[1] / "golden" / "metadata"


class TestJsonMetadataStore(MetadataStoreContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store" / "config" / "tieredStoreMetadata.json"

    def open_store(self) -> JsonMetadataStore:
        return JsonMetadataStore.open(self.path)

    def open_reader(self) -> JsonMetadataStore:
        return JsonMetadataStore.open(self.path, read_only=True)


class TestJsonMetadataStoreThatAlwaysCompacts(TestJsonMetadataStore):
    def open_store(self) -> JsonMetadataStore:
        return JsonMetadataStore.open(self.path, journal_bytes_max=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tieredStoreMetadata.json"


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def names(path: Path) -> set[str]:
    return {item.name.removeprefix(path.name) for item in path.parent.iterdir()}


def test_the_registry_finds_it() -> None:
    assert resolve(METADATA_STORES, "json", MetadataStore) is JsonMetadataStore


def test_opening_and_closing_alone_writes_no_catalogue(path: Path) -> None:
    JsonMetadataStore.open(path).close()
    assert names(path) == {".lock"}


def test_a_file_that_nothing_changed_is_not_written_again(path: Path) -> None:
    path.write_bytes((GOLDEN / "legacy.json").read_bytes())
    before = path.stat()
    with JsonMetadataStore.open(path) as store:
        assert len(store.segments()) == 4
    assert path.stat() == before
    assert names(path) == {"", ".lock"}


def test_a_change_costs_a_line_and_the_snapshot_waits_for_close(path: Path) -> None:
    path.write_bytes((GOLDEN / "tier-posix.json").read_bytes())
    with JsonMetadataStore.open(path) as store:
        before = path.stat()
        store.put(log_segment(0))
        length = beside(path, ".journal").stat().st_size
        store.put(log_segment(10))
        assert path.stat() == before
        assert beside(path, ".journal").stat().st_size - length < 400
    assert names(path) == {"", ".bak", ".lock"}
    assert beside(path, ".bak").read_bytes() == (GOLDEN / "tier-posix.json").read_bytes()


def test_the_journal_is_compacted_when_it_outgrows_its_bound(path: Path) -> None:
    with JsonMetadataStore.open(path, journal_bytes_max=2_000) as store:
        lengths = []
        for number in range(100):
            store.put(log_segment(number))
            journal = beside(path, ".journal")
            lengths.append(journal.stat().st_size if journal.exists() else 0)
        assert max(lengths) <= 2_000
        assert lengths.count(0) >= 5
        assert len(store.segments()) == 100
        expected = store.snapshot_bytes()
    assert path.read_bytes() == expected


def test_the_journal_may_grow_as_long_as_a_large_snapshot(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.metadata.files.JOURNAL_BYTES_MIN", 1)
    with JsonMetadataStore.open(path) as store:
        snapshots = 0
        for number in range(400):
            store.put(log_segment(number))
            snapshots += not beside(path, ".journal").exists()
    assert 5 < snapshots < 40  # each snapshot is paid for by a journal of its length


def test_compaction_on_demand_writes_what_snapshot_bytes_says(path: Path) -> None:
    with JsonMetadataStore.open(path) as store:
        store.put(log_segment(0))
        expected = store.snapshot_bytes()
        store.compact()
        assert path.read_bytes() == expected
        assert not beside(path, ".journal").exists()
        stamp = path.stat()
        store.compact()  # nothing changed: nothing is written
        assert path.stat() == stamp


def test_new_topics_carry_the_time_they_came(path: Path) -> None:
    with JsonMetadataStore.open(path, clock_ms=lambda: 4711) as store:
        assert store.add_topic("A").update_timestamp == 4711
        assert store.add_topic("A").update_timestamp == 4711


def test_numbers_from_numpy_are_numbers(path: Path) -> None:
    eight: Any = np.int64(8)
    segment = SegmentRecord(path="p", type=SegmentType.INDEX, base_offset=eight, size=eight)
    with JsonMetadataStore.open(path) as store:
        store.apply([Put(segment), DeleteQueue("T", eight)])
        assert type(store.segments()[0].size) is int


def test_a_time_that_means_unset_in_the_file_is_unset_here(path: Path) -> None:
    with JsonMetadataStore.open(path) as store:
        store.put(
            SegmentRecord(path="p", type=SegmentType.INDEX, base_offset=0, end_timestamp=INT64_MAX)
        )
        assert store.segments()[0].end_timestamp is None
        store.put(TopicRecord(topic="T", topic_id=0, reserve_hours=-1))
        assert store.topics()[0].reserve_hours is None


BAD: list[Change] = [
    Put(log_segment(-1)),
    Put(log_segment(0, -1)),
    Put(log_segment(INT64_MAX, 1)),
    Put(log_segment(INT64_MAX + 1)),
    Put(log_segment(0, path="half \ud83d")),
    Put(SegmentRecord(path="p", type=9, base_offset=0)),  # type: ignore[arg-type]
    Put(SegmentRecord(path="p", type=SegmentType.INDEX, base_offset="0")),  # type: ignore[arg-type]
    Put(QueueRecord(broker_name="b", topic="T", queue_id=-1)),
    Put(QueueRecord(broker_name="b", topic="T", queue_id=2**31)),
    Put(QueueRecord(broker_name="b", topic="T", queue_id=0, min_offset=-2)),
    Put(TopicRecord(topic="T", topic_id=-1)),
    Put(TopicRecord(topic="T", topic_id=0, reserve_hours=-2)),
    Put(TopicRecord(topic=7, topic_id=0)),  # type: ignore[arg-type]
    Put("T"),  # type: ignore[arg-type]
    "T",  # type: ignore[list-item]
    DeleteTopic(7),  # type: ignore[arg-type]
    DeleteTopic("half \ud83d"),
    PutNote("kind", "key", float("inf")),
    PutNote("kind", "key", (1, 2)),  # type: ignore[arg-type]
    PutNote("kind", "key", {1: 2}),  # type: ignore[dict-item]
    PutNote("kind", "key", object()),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("change", BAD, ids=lambda change: f"{change!r:.50}")
def test_what_could_not_be_read_back_is_refused_before_it_is_written(
    path: Path, change: Change
) -> None:
    with JsonMetadataStore.open(path) as store:
        with pytest.raises(MetadataError, match="refused") as caught:
            store.apply([change])
        assert "\n" not in str(caught.value)
        assert names(path) == {".lock"}
        store.put(log_segment(0))


def test_a_note_that_nests_without_end_is_refused(path: Path) -> None:
    endless: list[object] = []
    endless.append(endless)
    with JsonMetadataStore.open(path) as store, pytest.raises(MetadataError, match="refused"):
        store.put_note("kind", "key", endless)  # type: ignore[arg-type]


def test_the_last_topic_id_ends_the_numbering(path: Path) -> None:
    with JsonMetadataStore.open(path) as store:
        store.put(TopicRecord(topic="A", topic_id=INT64_MAX))
        with pytest.raises(MetadataError, match="topicId"):
            store.add_topic("B")


def test_a_bound_for_the_journal_must_be_positive(path: Path) -> None:
    with pytest.raises(MetadataError, match="journal_bytes_max"):
        JsonMetadataStore.open(path, journal_bytes_max=0)
