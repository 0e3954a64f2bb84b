"""Records that the Java broker wrote: every field is read and every byte written again."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.codec.encoders import (
    decode_coda,
    decode_offset_id,
    encode_stored,
    java_store_timestamp,
    rewrite_log_offset,
)
from tests.codec.golden_files import (
    BROKER,
    GOLDEN,
    expected,
    files_under,
    local_records,
    sha256,
    tiered_bytes,
)
from tieredstore.codec import record as fields
from tieredstore.codec.message import (
    StoredMessage,
    decode_message,
    is_blank,
    is_coda,
)
from tieredstore.codec.names import queue_path
from tieredstore.codec.queue_unit import decode_units
from tieredstore.codec.record import split_keys
from tieredstore.model.values import Host

LOCAL: list[dict[str, Any]] = expected("local-clean.expect-messages.json")
TIERED: list[dict[str, Any]] = expected("tier-posix.expect-messages.json")
QUEUES = sorted({(row["topic"], row["queueId"]) for row in TIERED})


def shown(host: Host) -> str:
    return f"{host.address.hex()}:{host.port}"


def fields_of(message: StoredMessage, size: int) -> dict[str, Any]:
    """The message under the field names of the expectation file."""
    magic = fields.MESSAGE_MAGIC_V1 if message.version == 1 else fields.MESSAGE_MAGIC_V2
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.log_offset,
        "size": size,
        "magic": magic - 2**32,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "storeTimestamp": message.store_timestamp,
        "bornTimestamp": message.born_timestamp,
        "bornHost": shown(message.born_host),
        "storeHost": shown(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "tags": message.tags,
        "keys": message.properties.get("KEYS"),
        "uniqKey": message.unique_key,
        "bodyLength": len(message.body),
        "bodySha256": sha256(message.body),
    }


def test_the_whole_local_log_is_read_field_by_field() -> None:
    records = local_records()
    assert len(records) == len(LOCAL) == 652
    for record, row in zip(records, LOCAL, strict=True):
        message = decode_message(record)
        assert sha256(record) == row["sha256"]
        seen = fields_of(message, len(record))
        wanted = {name: row[name] for name in seen}
        # For a message without properties, Java shows empty keys instead of none.
        assert seen == {**wanted, "keys": wanted["keys"] or None}
        assert message.keys == split_keys(row["keys"])
        if row["topic"] != "SCHEDULE_TOPIC_XXXX":  # its codes are delivery times
            assert message.tags_code == row["tagsCode"]


def test_the_whole_local_log_is_written_again_byte_for_byte() -> None:
    for record in local_records():
        assert encode_stored(decode_message(record)) == record


def test_the_whole_local_log_is_read_at_its_place_in_a_file() -> None:
    for path in files_under("local-clean/commitlog"):
        log = path.read_bytes()
        start = int(path.name)
        rows = [row for row in LOCAL if 0 <= row["physicalOffset"] - start < len(log)]
        for row in rows:
            message = decode_message(memoryview(log), row["physicalOffset"] - start)
            assert message.log_offset == row["physicalOffset"]
        end = rows[-1]["physicalOffset"] - start + rows[-1]["size"]
        assert is_blank(log, end) == (log[end:] != bytes(len(log) - end))


def test_single_fields_are_those_of_the_whole_record() -> None:
    for record, row in zip(local_records(), LOCAL, strict=True):
        message = decode_message(record)
        assert fields.peek_message_bytes(record) == len(record)
        assert fields.peek_magic(record) == row["magic"] % 2**32
        assert fields.peek_queue_id(record) == message.queue_id
        assert fields.peek_queue_offset(record) == message.queue_offset
        assert fields.peek_log_offset(record) == message.log_offset
        assert fields.peek_sys_flag(record) == message.sys_flag
        assert fields.peek_store_timestamp(record) == message.store_timestamp
        assert fields.peek_topic(record) == message.topic
        assert fields.peek_property_bytes(record) == message.property_bytes
        assert decode_offset_id(message.offset_id) == (message.store_host, message.log_offset)


@pytest.mark.parametrize(("topic", "queue_id"), QUEUES)
def test_every_tiered_message_is_found_where_java_put_it(topic: str, queue_id: int) -> None:
    rows = [row for row in TIERED if (row["topic"], row["queueId"]) == (topic, queue_id)]
    path = queue_path(BROKER, topic, queue_id)
    logs = tiered_bytes("tier-posix", path, "COMMIT_LOG")
    queues = tiered_bytes("tier-posix", path, "CONSUME_QUEUE")
    units = decode_units(b"".join(queues[base] for base in sorted(queues)))
    assert units.log_offsets.tolist() == [row["tieredCommitLogOffset"] for row in rows]
    assert units.message_bytes.tolist() == [row["size"] for row in rows]
    assert units.tags_codes.tolist() == [row["tagsCode"] for row in rows]
    assert min(queues) == 20 * rows[0]["queueOffset"]
    by_local_offset = dict(
        zip((row["physicalOffset"] for row in LOCAL), local_records(), strict=True)
    )
    for row in rows:
        offset = row["tieredCommitLogOffset"]
        base = max(base for base in logs if base <= offset)
        record = logs[base][offset - base : offset - base + row["size"]]
        assert sha256(record) == row["sha256"]
        message = decode_message(logs[base], offset - base)
        assert message.log_offset == offset
        assert message.queue_offset == row["queueOffset"]
        assert message.store_timestamp == row["storeTimestamp"]
        assert message.tags_code == row["tagsCode"]
        as_java = row.get("storeTimestampAsTieredStoreSeesIt", row["storeTimestamp"])
        assert java_store_timestamp(record) == as_java
        local = by_local_offset[row["localPhysicalOffset"]]
        assert rewrite_log_offset(local, offset) == record
        assert encode_stored(message) == record


def test_segments_of_old_brokers_end_in_a_marker() -> None:
    facts = expected("legacy.expect.json")
    path = queue_path(BROKER, "GoldAa", 1)
    logs = tiered_bytes("legacy", path, "COMMIT_LOG")
    log = b"".join(logs[base] for base in sorted(logs))
    units = decode_units(tiered_bytes("legacy", path, "CONSUME_QUEUE")[0])
    assert len(units) == len(facts["messages"]) == 9
    for row, offset in zip(facts["messages"], units.log_offsets.tolist(), strict=True):
        message = decode_message(log, row["physicalOffset"], check_crc=True)
        record = log[row["physicalOffset"] : row["physicalOffset"] + row["size"]]
        assert hashlib.sha256(record).hexdigest() == row["sha256"]
        assert message.tags_code == row["tagsCode"]
        assert message.store_timestamp == row["storeTimestamp"]
        # A unit may point at the marker before its message, which the reader skips.
        assert offset == row["physicalOffset"] or is_coda(log, offset)
    marks = [at for at in range(len(log)) if is_coda(log, at)]
    assert marks == facts["codaOffsets"]
    ends = [row["endTimestamp"] for row in facts["segments"] if row["type"] == "COMMIT_LOG"]
    assert [decode_coda(log, at) for at in marks] == ends[: len(marks)]


def test_the_golden_folder_is_the_one_these_tests_were_written_for() -> None:
    assert expected("params.json")["seed"] == 20261120
    assert (GOLDEN / "README.md").is_file()
