"""Store times that cannot be: further from a file than its seconds reach, or parts of addresses."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import pytest

from tests.index.store_kit import INDEX_PATH, SLOTS, Shop
from tieredstore.codec.java import tiered_probes
from tieredstore.codec.tiered_index import BEGIN_MAGIC, END_MAGIC
from tieredstore.index.rows import DAY_MS
from tieredstore.model.values import INT64_MAX, SegmentRecord, SegmentType
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC

YEAR_MS = 365 * 86_400_000
FAR = [
    STORE_TIMESTAMP + 70 * YEAR_MS,
    STORE_TIMESTAMP - 70 * YEAR_MS,
    STORE_TIMESTAMP + 200 * YEAR_MS,
    INT64_MAX,
    -INT64_MAX - 1,
    0,
    -1,
]


@pytest.mark.parametrize("far", FAR)
def test_a_message_whose_time_no_item_can_hold_is_found_by_its_time(
    tmp_path: Path, far: int
) -> None:
    shop = Shop(tmp_path)
    shop.put(["k", "k", "k"], times=[STORE_TIMESTAMP, far, STORE_TIMESTAMP + 5000])
    shop.index._writer.sync()
    for state in ("local", "reopened", "cut", "uploaded", "opened anew"):
        if state == "reopened":
            shop.reopen()
        elif state == "cut":
            shop.put(["other"])
            shop.index._writer.drain()
            shop.crash()
            shop.open()
        elif state == "uploaded":
            shop.index.seal()
        elif state == "opened anew":
            shop.index._cache.clear()
            shop.reopen()
        near = {"begin": far - 1, "end": far + 1}
        assert (0, 1000) in shop.found("k", **near), state
        assert (0, 1000) in shop.found("k", begin=far), state
        assert (0, 1000) in shop.found("k", begin=-(1 << 70), end=far), state
        assert (0, 2000) in shop.found("k", begin=STORE_TIMESTAMP + 4000), state
        assert len(shop.found("k", begin=-(1 << 70))) == 3, state


@pytest.mark.parametrize("foreign", [False, True])
def test_an_end_in_the_far_future_keeps_no_file_that_rocketmq_made(
    tmp_path: Path, foreign: bool
) -> None:
    """RocketMQ takes a part of an IPv6 address for the store time, and so for the file's end."""
    shop = Shop(tmp_path)
    shop.upload_files(3)
    end = STORE_TIMESTAMP + 99 * YEAR_MS
    if foreign:
        shop.drop_footer(2, end_timestamp=end)
    else:
        shop.catalogue.put(dataclasses.replace(shop.segments()[0], end_timestamp=end))
    shop.reopen()
    assert len(shop.found("k", begin=end)) == 0
    assert len(shop.found("k")) == 3
    later = STORE_TIMESTAMP + 2 * 86_400_000
    assert shop.index.expire(later) == 3
    assert shop.found("k") == []


def test_a_file_of_rocketmq_5_1_that_was_open_for_longer_than_its_milliseconds_last(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path)
    key_hash, slot = tiered_probes(f"{TOPIC}#k", SLOTS)[0]
    late = STORE_TIMESTAMP + 30 * DAY_MS
    after = (30 * DAY_MS + (1 << 31)) % (1 << 32) - (1 << 31)  # what is left of it in 32 bits
    items = 28 + 8 * SLOTS
    data = struct.pack(">iqqii", END_MAGIC, STORE_TIMESTAMP, late, SLOTS, 1)
    for number in range(SLOTS):
        data += struct.pack(">ii", items + 28 * (number > slot), 28 * (number == slot))
    data += struct.pack(">iiiqii", key_hash, shop.topic_id, 0, 7000, 221, after)
    data += struct.pack(">i", BEGIN_MAGIC)
    segment = shop.provider.open(INDEX_PATH, SegmentType.INDEX, 0)
    segment.write(0, data)
    row = SegmentRecord(
        path=INDEX_PATH,
        type=SegmentType.INDEX,
        base_offset=0,
        size=len(data),
        create_timestamp=late,
        begin_timestamp=STORE_TIMESTAMP,
        end_timestamp=late,
    )
    shop.catalogue.put(row)
    shop.reopen()
    assert shop.found("k") == [(0, 7000)]
    assert shop.found("k", begin=late - 1, end=late + 1) == [(0, 7000)]
    assert shop.found("absent") == []
