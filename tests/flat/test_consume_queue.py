"""The consume queue of a queue: it counts in messages, and knows its gaps."""

from __future__ import annotations

from tests.flat.store_kit import Tier, append
from tests.flat.tiers import numbered
from tieredstore.flat.message_file import FlatConsumeQueueFile
from tieredstore.model.config import StoreConfig


def test_a_segment_holds_whole_units_whatever_its_limit() -> None:
    tier = Tier()
    queue = FlatConsumeQueueFile(
        "broker-a/TopicTest/0",
        StoreConfig(consume_queue_segment_bytes=399),
        provider=tier.inner,
        metadata=tier.catalogue(),
        clock=tier.clock,
    )
    queue.roll(20 * 7)
    assert queue.room() == 380
    assert (queue.min_unit, queue.commit_unit, queue.append_unit) == (7, 7, 7)


def test_the_next_segment_begins_at_the_next_unit() -> None:
    file = Tier(queue_units=3).file(start=5)
    append(file, numbered(5, 7))
    assert [each.base for each in file.queue.segments] == [100, 160, 220]
    assert (file.queue.min_unit, file.queue.commit_unit) == (5, 12)


def test_an_offset_in_a_gap_leads_to_the_end_of_the_gap() -> None:
    file = Tier().file(start=5)
    assert file.queue.first_unit_from(0) == 5
    append(file, numbered(5, 3))
    file.skip_to(20)
    assert [file.queue.first_unit_from(n) for n in (4, 5, 7, 8, 19, 20)] == [5, 5, 7, 20, 20, 20]
    append(file, numbered(20, 1))
    assert [file.queue.first_unit_from(n) for n in (8, 20, 21, 99)] == [20, 20, 21, 21]
    assert [file.queue.units_in_a_row(n) for n in (4, 5, 7, 8, 20, 21)] == [0, 3, 1, 0, 1, 0]
