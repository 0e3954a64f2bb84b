"""Java's files are derived from its other files, and its damaged ones are read up to the damage."""

from __future__ import annotations

import pytest

from tests.codec.golden_files import CLUSTER, GOLDEN, expected, files_under, local_records, sha256
from tieredstore.codec import tiered_index
from tieredstore.codec.message import decode_message
from tieredstore.codec.record import peek_message_bytes
from tieredstore.codec.tiered_index import (
    END_MAGIC,
    TieredIndexHeader,
)
from tieredstore.model.errors import SegmentCorruptError

INDEX_FOLDER = f"{CLUSTER}/broker-gold-a/rmq_sys_INDEX/0/INDEX"


def test_the_file_that_java_uploads_at_shutdown_has_the_header_of_the_one_it_was_writing() -> None:
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
