"""One place of a log and whole files of it: sound, blank, torn, damaged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.golden_files import GOLDEN, expected, sha256
from tieredstore.codec.columns import RecordColumns
from tieredstore.codec.message import decode_message, encode_blank, encode_message
from tieredstore.local.commit_log import LogScan
from tieredstore.local.mapped_file import MappedFiles
from tieredstore.local.mapped_file_queue import MappedFileQueue
from tieredstore.local.record_scan import RecordScan, RecordState, check_record
from tieredstore.testing.samples import STORE_TIMESTAMP, a_record, messages

FILE_BYTES = 32768


def scan_golden(name: str, start: int = 0) -> tuple[LogScan, list[RecordColumns]]:
    queue = MappedFileQueue(
        GOLDEN / name / "commitlog", file_bytes=FILE_BYTES, files=MappedFiles(read_only=True)
    )
    queue.load()
    scan = LogScan(queue.files_from(start), start_offset=start)
    columns = list(scan)
    queue.close()
    return scan, columns


def rows_of(columns: list[RecordColumns]) -> list[dict[str, Any]]:
    """In the words of the expectation files."""
    return [
        {
            "physicalOffset": int(block.log_offsets[row]),
            "size": int(block.sizes[row]),
            "topic": block.topic(row),
            "queueId": int(block.queue_ids[row]),
            "queueOffset": int(block.queue_offsets[row]),
            "sysFlag": int(block.sys_flags[row]),
            "storeTimestamp": int(block.store_timestamps[row]),
            "keys": block.properties(row).get("KEYS") or "",
            "uniqKey": block.properties(row).get("UNIQ_KEY"),
            "sha256": sha256(block.record(row)),
        }
        for block in columns
        for row in range(len(block))
    ]


def wanted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = (
        *("physicalOffset", "size", "topic", "queueId", "queueOffset", "sysFlag"),
        *("storeTimestamp", "keys", "uniqKey", "sha256"),
    )
    return [{name: row[name] for name in names} | {"keys": row["keys"] or ""} for row in rows]


def test_every_record_of_a_clean_store_is_found() -> None:
    scan, columns = scan_golden("local-clean")
    assert rows_of(columns) == wanted(expected("local-clean.expect-messages.json"))
    assert scan.end == 373380
    assert (scan.damages, scan.torn) == ([], None)
    for block in columns:
        assert block.topics() == [block.topic(row) for row in range(len(block))]


def test_a_store_that_lost_its_oldest_files_is_read_from_where_it_begins() -> None:
    scan, columns = scan_golden("local-expired", 229376)
    rows = expected("local-clean.expect-messages.json")
    assert rows_of(columns) == wanted([row for row in rows if row["physicalOffset"] >= 229376])
    state = expected("local-expired.expect-state.json")["store"]
    assert scan.end == state["maxPhyOffset"]


@pytest.mark.parametrize("variant", ["torn", "torn-and-queues-behind"])
def test_a_torn_store_ends_where_java_ends_it(variant: str) -> None:
    scan, columns = scan_golden(f"local-crash/{variant}")
    facts = expected("local-crash.expect-recovery.json")
    answer = facts["variants"]["torn"]  # the other variant damages the queues only
    found = [
        [
            *(row["physicalOffset"], row["size"], row["topic"], row["queueId"]),
            *(row["queueOffset"], row["sysFlag"], row["sha256"]),
        ]
        for row in rows_of(columns)
    ]
    assert found == answer["messages"]
    assert scan.end == answer["recovered"]["maxPhyOffset"]
    assert scan.damages == []
    assert scan.torn is not None
    assert scan.torn.log_offset == facts["howTheDamageWasMade"]["lastRecordOffset"]


def test_the_table_of_verdicts() -> None:
    record = a_record(1, log_offset=0)
    verdicts = {
        bytes(3): (-1, RecordState.DAMAGED),
        bytes(100): (-1, RecordState.DAMAGED),
        record[:-1]: (-1, RecordState.DAMAGED),
        encode_blank(8): (0, RecordState.BLANK),
        encode_blank(20) + bytes(12): (0, RecordState.BLANK),
        record: (len(record), RecordState.MESSAGE),
        record + b"behind": (len(record), RecordState.MESSAGE),
        record[:4] + b"\xda\xa3\x20\xa8" + record[8:]: (-1, RecordState.DAMAGED),
        record[:90] + b"?" + record[91:]: (-1, RecordState.DAMAGED),
        bytes([0, 0, 0, len(record) - 1]) + record[4:]: (len(record) - 1, RecordState.DAMAGED),
    }
    for data, verdict in verdicts.items():
        check = check_record(data)
        assert (check.size, check.state) == verdict
        assert bool(check.reason) == (check.state is RecordState.DAMAGED)


def test_without_crc_a_changed_body_passes() -> None:
    record = a_record(1)
    changed = record[:90] + b"?" + record[91:]
    assert check_record(changed, check_crc=False).state is RecordState.MESSAGE


def test_a_record_must_lie_where_it_says() -> None:
    assert check_record(a_record(1, log_offset=7), log_offset=7).state is RecordState.MESSAGE
    assert check_record(a_record(1, log_offset=7), log_offset=8).state is RecordState.DAMAGED


@given(st.lists(messages(), max_size=20), st.sampled_from([0, 4, 8, 12]), st.booleans())
def test_the_columns_are_what_the_codec_decodes(batch: list[Any], sys_flag: int, crc: bool) -> None:
    data = b""
    for number, message in enumerate(batch):
        data += encode_message(
            topic=message.topic,
            queue_id=message.queue_id,
            queue_offset=number,
            log_offset=1000 + len(data),
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_timestamp=STORE_TIMESTAMP,
            store_host=message.store_host,
            body=message.body,
            property_bytes=b"A\x01b\x02",
            sys_flag=sys_flag,
            append_property_crc=crc,
        )
    scan = RecordScan(data, base_offset=1000, check_property_crc=crc)
    found = 0
    for columns in scan:
        for row in range(len(columns)):
            stored = decode_message(columns.record(row))
            assert stored.topic == columns.topic(row)
            assert stored.property_bytes == columns.raw_properties(row)
            assert stored.queue_id == columns.queue_ids[row]
            assert stored.queue_offset == columns.queue_offsets[row]
            assert stored.log_offset == columns.log_offsets[row]
            assert stored.sys_flag == columns.sys_flags[row]
            assert stored.store_timestamp == columns.store_timestamps[row]
            found += 1
    assert (found, scan.rest, scan.blank) == (len(batch), None, False)
