"""A batch decodes every message, whatever its bytes, just as decoding it alone does."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flat.tiers import run_of
from tieredstore.codec.columns import RecordFields
from tieredstore.codec.message import decode_message, encode_message
from tieredstore.codec.record import decode_properties, split_keys
from tieredstore.jobs.arrow import MESSAGE_COLUMNS, MessageTable, PropertyColumns
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import Host, QueueKey

KEY = QueueKey("Tøpic", 3)
HOSTS = st.one_of(
    st.builds(Host, st.binary(min_size=4, max_size=4), st.integers(0, 65_535)),
    st.builds(Host, st.binary(min_size=16, max_size=16), st.integers(0, 65_535)),
)
# Texts that look like properties: separators, blanks, names with a meaning, and invalid bytes.
PIECES = st.sampled_from(
    [
        *(b"\x01", b"\x02", b" ", b"TAGS", b"KEYS", b"UNIQ_KEY", b"a", "ä".encode(), "🙂".encode()),
        *(b"KEYS\x01a  b a\x02", b"TAGS\x01t\x02", b"UNIQ_KEY\x01u\x02", b"\xed\xa0\x80", b"\xc3"),
    ]
)
PROPERTIES = st.lists(PIECES, max_size=12).map(b"".join)
MS = st.integers(-(2**63), 2**63 - 1)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    return encode_message(
        topic="T" * draw(st.sampled_from([1, 100, 200])),
        queue_id=3,
        queue_offset=draw(st.integers(0, 2**62)),
        log_offset=0,
        born_timestamp=draw(MS),
        born_host=draw(HOSTS),
        store_timestamp=draw(st.one_of(MS, st.just(1_700_000_000_123))),
        store_host=draw(HOSTS),
        body=draw(st.binary(max_size=40)),
        property_bytes=draw(PROPERTIES),
        flag=draw(st.integers(-(2**31), 2**31 - 1)),
        sys_flag=draw(st.sampled_from([0, 1, 8])),
        body_crc=draw(st.sampled_from([None, 7])),
    )


def expected(record: bytes, row: int) -> dict[str, Any]:
    one = decode_message(record, check_crc=False)
    with_crc = True
    try:
        decode_message(record)
    except SegmentCorruptError:
        with_crc = False
    return {
        "topic": KEY.topic,
        "queue_id": KEY.queue_id,
        "queue_offset": 5 + row,
        "store_time": moment(one.store_timestamp),
        "born_time": moment(one.born_timestamp),
        "flag": one.flag,
        "sys_flag": one.sys_flag,
        "tags": one.tags,
        "keys": list(one.keys),
        "unique_key": one.unique_key,
        "properties": dict(one.properties),
        "body": one.body,
        "body_crc_ok": with_crc,
        "size": len(record),
    }


def moment(ms: int) -> datetime | None:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    except OverflowError:
        return None


@given(st.lists(records(), min_size=1, max_size=6))
def test_a_batch_says_what_the_decoder_says_of_each_record(found: list[bytes]) -> None:
    fields = RecordFields(run_of(5, found))
    batch = MessageTable().batch(KEY, fields)
    batch.validate(full=True)
    rows = batch.to_pylist()
    assert len(rows) == len(found)
    for row, record in enumerate(found):
        made = {**rows[row], "properties": dict(rows[row]["properties"])}
        assert {name: made[name] for name in expected(record, row)} == expected(record, row)
        assert len(rows[row]["properties"]) == len(made["properties"]), "a name is there twice"
    assert [row["log_offset"] for row in rows] == fields.run.log_offsets.tolist()


@given(st.lists(PROPERTIES, max_size=8))
def test_property_texts_are_taken_apart_as_one_by_one(texts: list[bytes]) -> None:
    columns = PropertyColumns(pa.array(texts, pa.binary()))
    wanted = [decode_properties(text) for text in texts]
    for array in (columns.maps(), columns.keys(), columns.tags(), columns.unique_keys()):
        array.validate(full=True)
    assert [dict(each) for each in columns.maps().to_pylist()] == wanted
    assert [len(each) for each in columns.maps().to_pylist()] == [len(each) for each in wanted]
    assert columns.keys().to_pylist() == [list(split_keys(each.get("KEYS"))) for each in wanted]
    assert columns.tags().to_pylist() == [each.get("TAGS") for each in wanted]
    assert columns.unique_keys().to_pylist() == [each.get("UNIQ_KEY") for each in wanted]


def test_units_that_point_beyond_the_bytes_read_nothing_of_them() -> None:
    run = run_of(5, [b"x" * 200])
    sizes = np.array([2**31 - 1], np.int32)
    fields = RecordFields(replace(run, message_bytes=sizes, starts=np.array([150])))
    assert not fields.is_sound
    assert MessageTable().batch(KEY, fields).num_rows == 0


def a_record(body: bytes) -> bytes:
    return encode_message(
        topic="t",
        queue_id=0,
        queue_offset=0,
        log_offset=0,
        born_timestamp=0,
        born_host=Host(b"\x0a\x00\x00\x01", 4711),
        store_timestamp=1,
        store_host=Host(bytes(15) + b"\x01", 10911),
        body=body,
    )


def test_only_the_columns_asked_for_are_made_and_in_their_order() -> None:
    fields = RecordFields(run_of(5, [a_record(b"abc")]))
    table = MessageTable(["body", "store_host", "born_host"])
    assert table.batch(KEY, fields).to_pylist() == [
        {"body": b"abc", "store_host": "[::1]:10911", "born_host": "10.0.0.1:4711"}
    ]
    assert table.schema.names == ["body", "store_host", "born_host"]
    with pytest.raises(ValueError, match="'bdy' is none of topic, queue_id"):
        MessageTable(["bdy"])


def test_rows_that_are_chosen_are_those_given() -> None:
    run = run_of(5, [a_record(str(number).encode()) for number in range(10)])
    table = MessageTable(["queue_offset", "body"])
    batch = table.batch(KEY, RecordFields(run), np.array([1, 4, 9]))
    assert batch.column(1).to_pylist() == [b"1", b"4", b"9"]
    assert batch.column(0).to_pylist() == [6, 9, 14]
    assert set(MESSAGE_COLUMNS) >= set(batch.schema.names)
