"""Java's files made again from what went into them, and its damaged ones read up to the damage."""

from __future__ import annotations

from typing import Any

import pytest

from tests.codec.encoders import encode_compacted_item, encode_compacted_slot, tiered_key_hash
from tests.codec.golden_files import CLUSTER, GOLDEN, expected, files_under, local_records, sha256
from tieredstore.codec import tiered_index
from tieredstore.codec.java import index_key, tiered_place
from tieredstore.codec.message import decode_message
from tieredstore.codec.record import peek_message_bytes
from tieredstore.codec.tiered_index import (
    BEGIN_MAGIC,
    END_MAGIC,
    TieredIndexHeader,
    TieredIndexItem,
)
from tieredstore.model.errors import SegmentCorruptError

SLOTS, ITEMS = 97, 1300
INDEX_FOLDER = f"{CLUSTER}/broker-gold-a/rmq_sys_INDEX/0/INDEX"
FACTS = expected("tier-index.expect.json")["facts"]
BEGINS: list[int] = FACTS["fileBeginTimestamps"]
UPLOADED = ["cfcd2084" + "0" * 20, "de7fa0b300000000000000037176", "9fe2132c00000000000000072980"]


class Replayed:
    """One index file of the tier, filled key by key as the format notes say."""

    def __init__(self, begin_timestamp: int) -> None:
        self.begin = begin_timestamp
        self.end = 0
        self.heads: dict[int, int] = {}
        self.items: list[TieredIndexItem] = []

    def put(self, row: list[Any]) -> None:
        _, topic, queue_id, keys, log_offset, size, store_timestamp, result = row
        if result != "SUCCESS":
            return
        for key in keys:
            text = index_key(FACTS["topics"][topic], key)
            key_hash, slot = tiered_place(tiered_key_hash(text), SLOTS)
            seconds = tiered_index.seconds_after_begin(store_timestamp, begin_timestamp=self.begin)
            previous = self.heads.get(slot, 0)
            topic_id = FACTS["topicIds"][topic]
            self.items.append(
                TieredIndexItem(key_hash, topic_id, queue_id, log_offset, size, seconds, previous)
            )
            self.heads[slot] = len(self.items)
            self.end = max(self.end, store_timestamp)

    def header(self, magic: int) -> bytes:
        return tiered_index.encode_header(
            TieredIndexHeader(
                magic=magic,
                begin_timestamp=self.begin,
                end_timestamp=self.end,
                used_slot_count=len(self.heads),
                item_count=len(self.items),
            )
        )

    def as_written(self) -> bytes:
        full = len(self.items) + 1 == ITEMS
        slots = (tiered_index.encode_slot(self.heads.get(slot, 0)) for slot in range(SLOTS))
        items = (tiered_index.encode_item(item) for item in self.items)
        unused = bytes(tiered_index.ITEM_BYTES)
        data = b"".join([self.header(END_MAGIC if full else BEGIN_MAGIC), *slots, unused, *items])
        size = tiered_index.file_bytes(slot_count=SLOTS, item_capacity=ITEMS)
        return data.ljust(size, b"\0")

    def as_uploaded(self) -> bytes:
        slots, items = [], []
        position = tiered_index.slot_position(SLOTS)
        for slot in range(SLOTS):
            number, found = self.heads.get(slot, 0), []
            while number:
                item = self.items[number - 1]
                found.append(encode_compacted_item(item.compacted))
                number = item.previous
            size = tiered_index.COMPACTED_ITEM_BYTES * len(found)
            slots.append(encode_compacted_slot(position=position, items_bytes=size))
            items += found
            position += size
        return b"".join([self.header(END_MAGIC), *slots, *items])


def replayed(number: int) -> Replayed:
    file = Replayed(BEGINS[number])
    for row in expected("tier-index.puts.json"):
        if row[0] == number:
            file.put(row)
    return file


@pytest.mark.parametrize("number", [0, 1])
def test_javas_puts_give_javas_file(number: int) -> None:
    java = (GOLDEN / "tier-index/local-before-upload" / str(BEGINS[number])).read_bytes()
    assert replayed(number).as_written() == java


def test_javas_puts_give_javas_unsealed_file() -> None:
    java = (GOLDEN / "tier-index/store/tiered_index_file" / str(BEGINS[4])).read_bytes()
    assert replayed(4).as_written() == java


@pytest.mark.parametrize("number", [0, 1, 2])
def test_javas_puts_give_javas_uploaded_file(number: int) -> None:
    java = (GOLDEN / "tier-index/tiered" / INDEX_FOLDER / UPLOADED[number]).read_bytes()
    assert replayed(number).as_uploaded() == java


def test_what_java_uploads_at_shutdown_is_the_file_it_was_writing() -> None:
    [begin] = (GOLDEN / "tier-posix/store/tiered_index_file").iterdir()
    written = begin.read_bytes()
    [segment] = files_under(f"tier-posix-after-shutdown/tiered/{INDEX_FOLDER}")
    uploaded = segment.read_bytes()
    header = tiered_index.decode_header(written, slot_count=64, item_capacity=300)
    assert tiered_index.decode_header(uploaded, slot_count=64) == TieredIndexHeader(
        magic=END_MAGIC,
        begin_timestamp=header.begin_timestamp,
        end_timestamp=header.end_timestamp,
        used_slot_count=header.used_slot_count,
        item_count=header.item_count,
    )
    position = tiered_index.slot_position(64)
    for slot in range(64):
        place = tiered_index.decode_compacted_slot(uploaded, tiered_index.slot_position(slot))
        assert place.position == position
        number = tiered_index.decode_slot(written, tiered_index.slot_position(slot))
        while number:
            at = tiered_index.item_position(number, slot_count=64)
            item = tiered_index.decode_item(written, at)
            assert tiered_index.decode_compacted_item(uploaded, position) == item.compacted
            position += tiered_index.COMPACTED_ITEM_BYTES
            number = item.previous
        assert position == place.position + place.items_bytes
    assert position == len(uploaded)


def log_of(folder: str) -> bytes:
    return b"".join(file.read_bytes() for file in files_under(f"{folder}/commitlog"))


@pytest.mark.parametrize("variant", ["torn", "torn-and-queues-behind"])
def test_a_torn_log_is_read_up_to_the_torn_record(variant: str) -> None:
    recovery = expected("local-crash.expect-recovery.json")
    log = log_of(f"local-crash/{variant}")
    rows = recovery["variants"]["torn"]["messages"]
    for position, size, topic, queue_id, queue_offset, sys_flag, digest in rows:
        record = log[position : position + size]
        message = decode_message(log, position)
        assert sha256(record) == digest
        assert (message.topic, message.queue_id, message.log_offset) == (topic, queue_id, position)
        assert (message.queue_offset, message.sys_flag) == (queue_offset, sys_flag)
    damage = recovery["howTheDamageWasMade"]
    assert peek_message_bytes(log, damage["lastRecordOffset"]) == damage["lastRecordSize"]
    with pytest.raises(SegmentCorruptError) as caught:
        decode_message(log, damage["lastRecordOffset"], path="commitlog/0")
    assert caught.value.position >= damage["lastRecordOffset"]


def test_an_expired_log_holds_the_newest_records_of_the_whole_one() -> None:
    first = expected("local-expired.expect-state.json")["store"]["minPhyOffset"]
    kept = [row for row in local_records() if decode_message(row).log_offset >= first]
    log = log_of("local-expired")
    for record in kept:
        position = decode_message(record).log_offset - first
        assert log[position : position + len(record)] == record
    assert len(kept) > 100
