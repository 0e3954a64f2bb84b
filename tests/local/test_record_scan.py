"""Scans of one place and of whole log files: sound, blank, torn, damaged, left by a crash."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
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
from tieredstore.model.errors import SegmentCorruptError
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
    """The rows, with the names of the expectation files."""
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


def a_file_of(count: int, *, size: int = 4096, base: int = 0, blank: bool = False) -> bytearray:
    data = bytearray()
    for number in range(count):
        data += a_record(number, log_offset=base + len(data), body_bytes=20 + number)
    if blank:
        data += encode_blank(size - len(data))
    return data + bytes(size - len(data))


def starts_of(data: bytes | bytearray, count: int) -> list[int]:
    places, at = [], 0
    for _ in range(count):
        places.append(at)
        at += int.from_bytes(data[at : at + 4], "big")
    return [*places, at]


def scanned(data: bytes | bytearray, base: int = 0, **more: Any) -> tuple[RecordScan, list[int]]:
    scan = RecordScan(data, base_offset=base, path="log", **more)
    return scan, [int(offset) for columns in scan for offset in columns.log_offsets]


@given(st.data())
def test_many_and_one_agree_on_damaged_bytes(data: st.DataObject) -> None:
    log = a_file_of(4, size=1000)
    for _ in range(data.draw(st.integers(1, 3))):
        log[data.draw(st.integers(0, 999))] = data.draw(st.integers(0, 255))
    scan, found = scanned(log)
    at, want = 0, []
    damaged = {damage.position: damage.resumed_at for damage in scan.damages}
    while at < len(log):
        check = check_record(log, at, log_offset=at)
        if check.state is RecordState.MESSAGE:
            want.append(at)
            at += check.size
        elif at in damaged:
            at = damaged[at] or len(log)
        else:
            break
    assert found == want


def test_the_unused_end_is_no_damage() -> None:
    scan, found = scanned(a_file_of(3))
    assert len(found) == 3
    assert scan.rest is not None
    assert scan.rest.unused
    assert not scan.damages


def test_a_blank_record_closes_the_file() -> None:
    scan, found = scanned(a_file_of(3, blank=True))
    assert (len(found), scan.blank, scan.rest) == (3, True, None)


def test_cutting_any_of_the_last_three_records_loses_only_what_is_cut() -> None:
    log = a_file_of(6, size=2000)
    places = starts_of(log, 6)
    for cut in range(places[3], places[6]):
        torn = bytes(log[:cut]) + bytes(len(log) - cut)
        scan, found = scanned(torn)
        # What was cut off may have been zeros before: then nothing was lost.
        whole = [at for at, end in pairwise(places) if torn[at:end] == log[at:end]]
        assert found == whole
        assert scan.damages == []


@pytest.mark.parametrize("broken", [0, 4, 30, 90, 120])
def test_damage_in_the_middle_is_reported_and_passed_over(broken: int) -> None:
    log = a_file_of(6, base=8192)
    places = starts_of(log, 6)
    log[places[2] + broken] ^= 0x41
    scan, found = scanned(log, 8192)
    assert found == [8192 + places[number] for number in (0, 1, 3, 4, 5)]
    (damage,) = scan.damages
    assert (damage.position, damage.resumed_at) == (places[2], 8192 + places[3])
    error = damage.error()
    assert isinstance(error, SegmentCorruptError)
    assert (error.path, error.position) == ("log", places[2])


def test_a_damaged_last_record_before_the_blank_does_not_hide_the_blank() -> None:
    log = a_file_of(3, blank=True)
    places = starts_of(log, 3)
    log[places[2] + 95] ^= 1
    scan, found = scanned(log)
    assert (len(found), scan.blank, len(scan.damages)) == (2, True, 1)


def test_records_of_an_earlier_life_behind_a_torn_tail_stay_dead() -> None:
    log = a_file_of(6)
    places = starts_of(log, 6)
    older = a_record(4, log_offset=places[4], body_bytes=24, store_timestamp=STORE_TIMESTAMP - 1)
    log[places[4] :] = older + bytes(len(log) - places[4] - len(older))
    log[places[3] + 95] ^= 1
    scan, found = scanned(log)
    assert found == places[:3]
    assert scan.rest is not None
    assert not scan.damages


def a_log(folder: Path, *contents: bytes | bytearray) -> LogScan:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number, content in enumerate(contents):
        (folder / f"{number * 4096:020d}").write_bytes(content)
    queue = MappedFileQueue(folder, file_bytes=4096, files=MappedFiles())
    queue.load()
    return LogScan(queue.files, start_offset=0)


def test_damage_at_the_end_of_a_file_is_in_the_middle_if_the_next_goes_on(tmp_path: Path) -> None:
    first, second = a_file_of(3, blank=True), bytearray()
    for number in range(3, 5):
        second += a_record(number, log_offset=4096 + len(second))
    second += bytes(4096 - len(second))
    last = starts_of(first, 3)[2]
    first[last:] = bytes(len(first) - last)
    scan = a_log(tmp_path / "log", first, second)
    offsets = [int(offset) for columns in scan for offset in columns.log_offsets]
    assert offsets == [0, starts_of(first, 2)[1], 4096, 4096 + starts_of(second, 1)[1]]
    (damage,) = scan.damages
    assert (damage.log_offset, damage.resumed_at, damage.unused) == (last, 4096, False)
    assert scan.end == 4096 + starts_of(second, 2)[2]


def test_the_same_with_nothing_behind_it_is_the_end(tmp_path: Path) -> None:
    first = a_file_of(3, blank=True)
    last = starts_of(first, 3)[2]
    first[last + 95] ^= 1
    first[starts_of(first, 3)[3] :] = bytes(4096 - starts_of(first, 3)[3])
    scan = a_log(tmp_path / "log", first, bytes(4096))
    assert sum(len(columns) for columns in scan) == 2
    assert scan.end == last
    assert scan.torn is not None
    assert scan.torn.log_offset == last


def test_a_log_that_ends_with_a_full_file_ends_at_the_next_one(tmp_path: Path) -> None:
    scan = a_log(tmp_path / "log", a_file_of(3, blank=True), bytes(4096))
    assert sum(len(columns) for columns in scan) == 3
    assert (scan.end, scan.torn) == (4096, None)


def test_a_later_file_of_an_earlier_life_stays_dead(tmp_path: Path) -> None:
    first = a_file_of(3)
    last = starts_of(first, 3)[2]
    first[last + 95] ^= 1
    older = a_record(9, log_offset=4096, store_timestamp=STORE_TIMESTAMP - 1)
    scan = a_log(tmp_path / "log", first, older + bytes(4096 - len(older)))
    assert sum(len(columns) for columns in scan) == 2
    assert (scan.end, scan.damages) == (last, [])
    assert scan.torn is not None
