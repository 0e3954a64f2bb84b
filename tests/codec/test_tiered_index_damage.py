"""Damaged index files of the tier, and values that the encoders refuse."""

from __future__ import annotations

from typing import Any

import pytest

from tests.codec.encoders import encode_compacted_slot
from tests.codec.golden_files import GOLDEN
from tests.codec.test_tiered_index import UPLOADED, segment_path
from tieredstore.codec import tiered_index
from tieredstore.codec.tiered_index import (
    BEGIN_MAGIC,
    TieredIndexHeader,
)
from tieredstore.model.errors import SegmentCorruptError

WRITTEN = (GOLDEN / "tier-posix" / "store" / "tiered_index_file" / "1795171586054").read_bytes()
HEADER = TieredIndexHeader(begin_timestamp=1700000000000, used_slot_count=4, item_count=7)


@pytest.mark.parametrize(
    ("position", "data"),
    [
        (0, bytes(4)),
        (0, b"\xbc\xc5\x02\x88"),
        (20, (-1).to_bytes(4, signed=True)),
        (20, (11).to_bytes(4)),
        (24, (-1).to_bytes(4, signed=True)),
        (24, (21).to_bytes(4)),
    ],
)
def test_a_damaged_header_is_named_with_its_place(position: int, data: bytes) -> None:
    header = bytearray(tiered_index.encode_header(HEADER))
    header[position : position + 4] = data
    with pytest.raises(SegmentCorruptError) as caught:
        tiered_index.decode_header(header, slot_count=10, item_capacity=20, path="index")
    assert (caught.value.path, caught.value.position) == ("index", position)


@pytest.mark.parametrize(("position", "items_bytes"), [(-1, 28), (28, -28), (28, 27), (28, 1)])
def test_a_slot_that_names_no_whole_items_is_damage(position: int, items_bytes: int) -> None:
    data = encode_compacted_slot(position=position, items_bytes=items_bytes)
    with pytest.raises(SegmentCorruptError, match="slot"):
        tiered_index.decode_compacted_slot(data)


def test_cut_files_are_damage() -> None:
    for size in range(28):
        with pytest.raises(SegmentCorruptError):
            tiered_index.decode_header(WRITTEN[:size])
    for size in (0, 27, 28, 28 + 8 * 64 - 1):
        with pytest.raises(SegmentCorruptError):
            tiered_index.view_items(WRITTEN[:size], slot_count=64, item_count=1)
    for count in (-1, 300, 2**31, 2**70):
        with pytest.raises(SegmentCorruptError):
            tiered_index.view_items(WRITTEN, slot_count=64, item_count=count)
    for size in range(1, 28):
        with pytest.raises(SegmentCorruptError, match="left over"):
            tiered_index.view_compacted_items(WRITTEN[: 280 + size])


@pytest.mark.parametrize("position", [-1, -32, len(WRITTEN) - 7, 2**70])
def test_positions_beyond_the_bytes_are_damage(position: int) -> None:
    with pytest.raises(SegmentCorruptError):
        tiered_index.decode_compacted_slot(WRITTEN, position)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"magic": 5}, "magic"),
        ({"begin_timestamp": 2**63}, "begin_timestamp"),
        ({"end_timestamp": 2**63}, "end_timestamp"),
        ({"used_slot_count": 2**31}, "used_slot_count"),
        ({"item_count": 2**31}, "item_count"),
    ],
)
def test_a_header_that_does_not_fit_is_refused_by_name(values: dict[str, int], name: str) -> None:
    header: dict[str, Any] = {"magic": BEGIN_MAGIC, "begin_timestamp": 1, **values}
    with pytest.raises(ValueError, match=rf"^{name}: "):
        tiered_index.encode_header(TieredIndexHeader(**header))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(kind: Any) -> None:
    root, row, slot_count = UPLOADED[0]
    data = kind(segment_path(root, row["fileName"]).read_bytes())
    assert tiered_index.decode_header(data, slot_count=slot_count).item_count == 298
    slot = tiered_index.decode_compacted_slot(data, 28)
    view = tiered_index.view_compacted_items(
        memoryview(data)[slot.position : slot.position + slot.items_bytes]
    )
    assert len(view) == slot.items_bytes // 28
    assert not view.flags.writeable
