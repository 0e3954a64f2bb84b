"""With the catalogue lost, the tier that Java wrote is found out from its bytes alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.access.golden_care import GoldenTier
from tests.codec.golden_files import BROKER, expected
from tieredstore.access.rebuild import NewerCatalogueError
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.index.watermarks import QueueId, Watermarks
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.values import SegmentRecord, SegmentType

LOG, QUEUE, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX
Place = tuple[str, SegmentType, int]


@pytest.fixture
def tier(tmp_path: Path) -> GoldenTier:
    return GoldenTier(tmp_path)


def sizes(tier: GoldenTier) -> dict[Place, int]:
    return {(r.path, r.type, r.base_offset): r.size for r in tier.metadata.segments()}


def true_times(row: SegmentRecord) -> tuple[int, int]:
    """As Java read them from the records."""
    messages = [
        each
        for each in expected("tier-posix.expect-messages.json")
        if f"{BROKER}/{each['topic']}/{each['queueId']}" == row.path
        and row.base_offset
        <= (each["tieredCommitLogOffset"] if row.type is LOG else each["queueOffset"] * UNIT_BYTES)
        < row.end_offset
    ]
    messages.sort(key=lambda each: each["queueOffset"])
    begin, end = messages[0]["storeTimestamp"], messages[-1]["storeTimestamp"]
    return begin, max(begin, end)


def test_a_lost_catalogue_is_found_out(tier: GoldenTier) -> None:
    before = sizes(tier)
    topics = {record.topic: record.topic_id for record in tier.metadata.topics()}
    queues = {record.key for record in tier.metadata.queues()}
    index = tier.metadata.segments(f"{BROKER}/rmq_sys_INDEX/0", INDEX)
    tier.lose_the_catalogue()
    report = tier.rebuild()
    assert sizes(tier) == before
    assert {record.topic: record.topic_id for record in tier.metadata.topics()} == topics
    assert {record.key for record in tier.metadata.queues()} == queues
    assert (dict(report.topics), report.new_ids, report.problems) == (topics, (), ())
    assert (report.queue_count, report.segment_count, report.size) == (9, 57, 346_788)
    assert report.is_index_whole
    for row in index:
        found = tier.row("rmq_sys_INDEX/0", INDEX, row.base_offset)
        assert replace(found, create_timestamp=row.create_timestamp) == row
    for row in tier.metadata.segments():
        if row.type is not INDEX:
            assert (row.begin_timestamp, row.end_timestamp) == true_times(row)
    assert tier.audit().findings == ()


def test_what_was_rebuilt_is_on_the_disk(tier: GoldenTier) -> None:
    before = sizes(tier)
    tier.lose_the_catalogue()
    tier.rebuild()
    tier.metadata.close()
    tier.metadata = JsonMetadataStore.open(tier.catalogue)
    assert sizes(tier) == before
    assert tier.metadata.add_topic("new").topic_id == 4


def test_keys_that_no_uploaded_file_has_are_put_again(tier: GoldenTier) -> None:
    tier.lose_the_catalogue()
    report = tier.rebuild()
    marks = Watermarks(tier.metadata, BROKER)
    assert marks.check_sizes(slot_count=64, item_capacity=300)
    ends = {each.key: marks.committed(*each.key) for each in tier.metadata.queues()}
    held = {key: marks.held(QueueId(report.topics[key.topic], key.queue_id)) for key in ends}
    assert all(0 < held[key] <= ends[key] for key in ends)
    assert sum(held.values()) < sum(ends.values())  # the last file was never uploaded


def test_without_index_files_topics_get_new_numbers(tier: GoldenTier) -> None:
    for each in tier.provider.list(f"{BROKER}/rmq_sys_INDEX"):
        tier.file("rmq_sys_INDEX/0", INDEX, each.base).unlink()
    tier.lose_the_catalogue()
    report = tier.rebuild()
    assert sorted(report.topics.values()) == [0, 1, 2, 3]
    assert set(report.new_ids) == set(report.topics)
    assert not report.is_index_whole
    marks = Watermarks(tier.metadata, BROKER)
    assert not any(marks.held(QueueId(number, 0)) for number in range(4))


def test_a_number_that_a_deleted_topic_had_is_not_given_again(tier: GoldenTier) -> None:
    for each in list(tier.provider.list(f"{BROKER}/%RETRY%gold_group")):
        tier.file(each.path.removeprefix(f"{BROKER}/"), each.type, each.base).unlink()
    tier.lose_the_catalogue()
    assert "%RETRY%gold_group" not in tier.rebuild().topics
    assert [record.topic for record in tier.metadata.topics() if record.topic_id == 3] == []
    assert tier.metadata.add_topic("new").topic_id == 4


def test_other_sizes_of_the_index_are_refused(tier: GoldenTier) -> None:
    tier.lose_the_catalogue()
    tier.config = replace(tier.config, index_slot_count=65)
    with pytest.raises(InvalidConfigError, match="64"):
        tier.rebuild()
    assert not sizes(tier)


def test_a_catalogue_that_knows_as_much_is_refused(tier: GoldenTier) -> None:
    before = sizes(tier)
    with pytest.raises(NewerCatalogueError, match="all that"):
        tier.rebuild()
    assert sizes(tier) == before


def test_a_catalogue_that_knows_more_is_refused(tier: GoldenTier) -> None:
    tier.file("GoldAa/0", LOG, 41521).unlink()
    tier.metadata.delete_segment(f"{BROKER}/GoldBB/0", LOG, 31625)
    before = sizes(tier)
    with pytest.raises(NewerCatalogueError, match="only to 41521"):
        tier.rebuild()
    assert sizes(tier) == before


def test_an_older_catalogue_is_brought_up_to_date_and_keeps_what_it_knows(
    tier: GoldenTier,
) -> None:
    before = sizes(tier)
    topic = tier.metadata.topic("GoldAa")
    assert topic is not None
    tier.metadata.put(replace(topic, reserve_hours=7, topic_id=9))
    tier.metadata.delete_topic("GoldBB")
    tier.metadata.delete_queue("GoldBB", 1)
    tier.metadata.delete_segment(f"{BROKER}/GoldAa/0", LOG, 41521)
    row = tier.row("GoldAa/0", QUEUE, 1600)
    tier.metadata.put(replace(row, size=20))
    tier.metadata.put(replace(row, path=f"{BROKER}/GoldAa/1", base_offset=0, size=400))
    report = tier.rebuild()
    assert sizes(tier) == before
    assert (report.topics["GoldAa"], report.topics["GoldBB"]) == (9, 0)
    again = tier.metadata.topic("GoldAa")
    assert again is not None
    assert again.reserve_hours == 7
    assert tier.audit().findings == ()


def test_what_is_not_sound_is_told(tier: GoldenTier) -> None:
    file = tier.file("GoldAa/0", LOG, 41521)
    file.write_bytes(file.read_bytes()[:-10])
    tier.file("rmq_sys_INDEX/0", INDEX, 0).write_bytes(bytes(100))
    tier.lose_the_catalogue()
    report = tier.rebuild()
    assert len(report.problems) == 2
    assert "GoldAa/0: 1 queue units name bytes" in report.problems[0]
    assert "an index file cannot be read" in report.problems[1]
    assert not report.is_index_whole
    last = tier.row("GoldAa/0", QUEUE, 1600)
    assert last.size == 40
