"""Messages that were fetched together are read from memory, the others from the backend."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.flat.tiers import OneQueue, fill
from tieredstore.codec.queue_unit import UNIT_BYTES, decode_unit
from tieredstore.driver.provider import SegmentRead
from tieredstore.flat import fetched as fetched_messages
from tieredstore.flat.fetched import FetchedMessages
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.values import SegmentType
from tieredstore.testing.samples import a_record

LARGE = fetched_messages._RECORD_BYTES_MAX


def a_tier() -> tuple[OneQueue, FlatMessageFile]:
    """Three messages, each in its own segment; the one in the middle is large."""
    tier = OneQueue(log_bytes=1, queue_units=1)
    file = tier.open()
    fill(file, [a_record(0), a_record(1, body_bytes=LARGE), a_record(2)])
    return tier, file


def reads_of(tier: OneQueue, file: FlatMessageFile, source: FetchedMessages, offset: int) -> int:
    """Read one message through the source; return how many of its reads reach the backend."""
    tier.provider.reads.clear()
    data = source.read(file.queue, offset * UNIT_BYTES, UNIT_BYTES)
    assert data == file.queue.read(offset * UNIT_BYTES, UNIT_BYTES)
    unit = decode_unit(data)
    record = source.read(file.log, unit.log_offset, unit.message_bytes)
    assert record == file.log.read(unit.log_offset, unit.message_bytes)
    return len(tier.provider.reads) - 2  # without the two reads to compare with


def test_the_last_message_that_was_fetched_takes_no_read() -> None:
    tier, file = a_tier()
    source = FetchedMessages()
    source.fetch(tier.provider, [(file, 0)])
    assert reads_of(tier, file, source, 0) == 0
    source.fetch(tier.provider, [(file, 2)])
    assert reads_of(tier, file, source, 2) == 0
    assert reads_of(tier, file, source, 0) == 2
    part = source.read(file.queue, 2 * UNIT_BYTES + 8, 4)
    assert part == len(a_record(2)).to_bytes(4)


def test_a_large_message_is_read_when_it_is_asked_for() -> None:
    tier, file = a_tier()
    source = FetchedMessages()
    source.fetch(tier.provider, [(file, 1)])
    assert reads_of(tier, file, source, 1) == 1


def test_a_unit_of_no_length_fetches_no_record() -> None:
    tier, file = a_tier()
    (base, units), *_ = (
        (key, data) for key, data in tier.provider.held.items() if key[0] is file.queue.type
    )
    tier.provider.held[base] = units[:8] + bytes(4) + units[12:]
    tier.provider.reads.clear()
    FetchedMessages().fetch(tier.provider, [(file, 0)])
    assert [kind for kind, _, _ in tier.provider.reads] == [file.queue.type]


def test_each_is_asked_for_in_its_segment_and_none_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tier, file = a_tier()
    asked: list[tuple[SegmentType, int]] = []
    read_together = tier.provider.read_together

    def counted(reads: Sequence[SegmentRead]) -> Sequence[bytes | TieredStoreError]:
        asked.extend((each.type, each.base) for each in reads)
        return read_together(reads)

    monkeypatch.setattr(tier.provider, "read_together", counted)
    FetchedMessages().fetch(tier.provider, [(file, 3), (file, 1)])
    assert asked == [(file.queue.type, UNIT_BYTES)]
