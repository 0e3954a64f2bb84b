"""Hits of a queue that was destroyed since: they are no missing answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.access.fetch_kit import Shelf, numbered
from tests.access.tiered_kit import ListIndex
from tests.index.store_kit import Shop
from tieredstore.index.contract import IndexHit
from tieredstore.model.values import INT64_MAX
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC


@pytest.mark.parametrize(
    ("age", "before", "is_stale"),
    [(5000, None, True), (0, 1, True), (0, 0, False), (0, None, False)],
)
def test_a_hit_older_than_the_segment_at_its_place_is_no_missing_message(
    age: int, before: int | None, is_stale: bool
) -> None:
    shelf = Shelf()
    file = shelf.put(numbered(0, 10))
    made = file.log.segments[0].record.create_timestamp
    hit = IndexHit(
        topic_id=file.topic_id,
        queue_id=0,
        log_offset=int(file.units(4, 1).log_offsets[0]) + 3,  # where no message begins
        message_bytes=100,
        store_timestamp=STORE_TIMESTAMP - age,
        put_before=INT64_MAX if before is None else made - before,
    )
    assert isinstance(shelf.index, ListIndex)
    shelf.index.entries.append((TOPIC, "shared", hit))
    result = shelf.fetcher.query_message(TOPIC, "shared", count_max=32)
    assert len(result.messages) == 10
    assert result.complete is is_stale


def test_hits_of_uploaded_files_tell_by_when_the_index_had_them(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    assert [hit.put_before for hit in shop.ask("k").hits] == [INT64_MAX]
    shop.clock.advance(7000)
    shop.index.seal()
    assert [hit.put_before for hit in shop.ask("k").hits] == [STORE_TIMESTAMP + 7000]
    shop.ends[0] = 0
    shop.put(["k"])  # again, and local
    assert [hit.put_before for hit in shop.ask("k").hits] == [INT64_MAX]
