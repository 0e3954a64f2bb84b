"""Rows made into records: byte for byte what the codec makes of one message at a time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.codec.java import string_hash
from tieredstore.codec.message import decode_message, encode_message
from tieredstore.codec.record import TRANSACTION_COMMIT, decode_properties, encode_properties
from tieredstore.jobs.load_records import (
    EncodedRun,
    LoadColumns,
    LoadDefaults,
    LoadRefusedError,
    encode_batch,
)
from tieredstore.model.messages import LOOPBACK
from tieredstore.model.values import Host, QueueKey

MAP = pa.map_(pa.string(), pa.string())
NOW = 1_700_000_000_000
HOSTS = {
    None: LOOPBACK,
    "10.0.0.1:4711": Host(bytes([10, 0, 0, 1]), 4711),
    "[2001:db8::1]:80": Host(bytes.fromhex("20010db8000000000000000000000001"), 80),
}
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02 \x00"), max_size=6)
NAMES = TEXTS.filter(bool)
ROWS = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["orders", "größe", "t" * 130]),
        "queue_id": st.integers(0, 2),
        "body": st.none() | st.binary(max_size=20),
        "tags": st.none() | NAMES,
        "keys": st.none() | st.lists(NAMES, min_size=1, max_size=3),
        "unique_key": st.none() | NAMES,
        "properties": st.none()
        | st.dictionaries(NAMES | st.sampled_from(["TAGS", "KEYS", "__CRC32#"]), TEXTS, max_size=3),
        "store_time": st.none() | st.integers(0, 2**41),
        "born_time": st.none() | st.integers(0, 2**41),
        "born_host": st.sampled_from(list(HOSTS)),
        "store_host": st.sampled_from(list(HOSTS)),
        "flag": st.none() | st.integers(-(2**31), 2**31 - 1),
        "sys_flag": st.sampled_from([None, 0, 1, TRANSACTION_COMMIT]),
    }
)
TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "queue_id": pa.int32(),
    "body": pa.binary(),
    "tags": pa.string(),
    "keys": pa.list_(pa.string()),
    "unique_key": pa.string(),
    "properties": MAP,
    "store_time": pa.int64(),
    "born_time": pa.timestamp("ms", "UTC"),
    "born_host": pa.string(),
    "store_host": pa.string(),
    "flag": pa.int32(),
    "sys_flag": pa.int64(),
}

Row = dict[str, Any]


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    def column(name: str) -> list[Any]:
        values = [row[name] for row in rows]
        if name == "properties":
            return [None if each is None else list(each.items()) for each in values]
        return values

    return pa.record_batch(
        {name: pa.array(column(name), kind) for name, kind in TYPES.items() if name in rows[0]}
    )


def runs_of(batch: pa.RecordBatch, **defaults: Any) -> list[EncodedRun]:
    columns = LoadColumns(batch.schema, LoadDefaults(**{"store_time_ms": NOW, **defaults}))
    return list(encode_batch(batch, columns))


def expected(row: Row) -> tuple[bytes, dict[str, str]]:
    properties = {
        name: value for name, value in (row["properties"] or {}).items() if name != "__CRC32#"
    }
    keys = None if row["keys"] is None else " ".join(row["keys"])
    own = {"TAGS": row["tags"], "KEYS": keys, "UNIQ_KEY": row["unique_key"]}
    properties |= {name: value for name, value in own.items() if value is not None}
    stored = NOW if row["store_time"] is None else row["store_time"]
    record = encode_message(
        topic=row["topic"],
        queue_id=row["queue_id"],
        queue_offset=0,
        log_offset=0,
        born_timestamp=stored if row["born_time"] is None else row["born_time"],
        born_host=HOSTS[row["born_host"]],
        store_timestamp=stored,
        store_host=HOSTS[row["store_host"]],
        body=row["body"] or b"",
        property_bytes=encode_properties(properties),
        flag=row["flag"] or 0,
        sys_flag=row["sys_flag"] or 0,
    )
    return record, properties


@given(rows=st.lists(ROWS, min_size=1, max_size=12))
def test_records_are_those_of_the_codec(rows: list[Row]) -> None:
    runs = runs_of(batch_of(rows))
    wanted: dict[QueueKey, list[Row]] = {}
    for row in rows:
        wanted.setdefault(QueueKey(row["topic"], row["queue_id"]), []).append(row)
    assert {run.key for run in runs} == wanted.keys()
    assert len(runs) == len(wanted)
    for run in runs:
        position = 0
        for place, row in enumerate(wanted[run.key]):
            record, properties = expected(row)
            size = int(run.message_bytes[place])
            assert bytes(run.records[position : position + size]) == record
            tags = decode_properties(encode_properties(properties)).get("TAGS")
            assert run.tags_codes[place] == (string_hash(tags) if tags else 0)
            assert run.store_times[place] == decode_message(record).store_timestamp
            position += size
        assert position == len(run.records)


def test_missing_columns_have_defaults() -> None:
    (run,) = runs_of(pa.record_batch({"body": ["text"]}), topic="orders", queue_id=2)
    message = decode_message(run.records)
    assert run.key == ("orders", 2)
    assert (message.body, message.born_timestamp, message.store_timestamp) == (b"text", NOW, NOW)
    assert message.property_bytes == b""


def test_what_a_read_gives_beside_them_is_passed_over() -> None:
    batch = pa.record_batch({"body": ["text"], "queue_offset": [7], "size": [1]})
    (run,) = runs_of(batch, topic="orders", queue_id=2)
    assert len(run) == 1


def test_columns_of_a_slice_of_a_batch_are_those_of_its_rows() -> None:
    rows: list[Row] = [
        {
            **dict.fromkeys(TYPES),
            "topic": "orders",
            "queue_id": 0,
            "body": b"%d" % n,
            "keys": [f"k{n}"],
            "properties": {"n": str(n)},
        }
        for n in range(6)
    ]
    (run,) = runs_of(batch_of(rows).slice(3, 2))
    messages = [
        decode_message(run.records),
        decode_message(run.records, int(run.message_bytes[0])),
    ]
    assert [each.body for each in messages] == [b"3", b"4"]
    assert [dict(each.properties) for each in messages] == [
        {"n": "3", "KEYS": "k3"},
        {"n": "4", "KEYS": "k4"},
    ]


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ({"tags": pa.array([5])}, "column tags: it is int64, not a string"),
        ({"tag": pa.array(["x"])}, "column tag: a message has no such field; did you mean tags?"),
        (
            {"born_host": pa.array(["nowhere"])},
            "column born_host: 'nowhere' is no address and port",
        ),
        ({"keys": pa.array([["a b"]])}, "column keys: a key is null, or holds a blank"),
        ({"tags": pa.array(["a\x02b"])}, r"column tags: 'a\\x02b' holds 0x02"),
        ({"topic": pa.array(["a/b"])}, "column topic: 'a/b' is none"),
        ({"topic": pa.array(["rmq_sys_INDEX"])}, "is where the key index lies"),
        ({"topic": pa.array([None], pa.string())}, "column topic: a message has none"),
        ({"queue_id": pa.array([-1])}, "column queue_id: -1 is not within 0 to"),
        ({"sys_flag": pa.array([4])}, "a prepared message is in no queue"),
        ({"properties": pa.array([[("a", "x" * 40_000)]], MAP)}, "bytes, more than 32767"),
        ({"properties": pa.array([[("", "x")]], MAP)}, "a name is empty"),
    ],
)
def test_what_can_be_no_message_is_refused_in_one_line(
    column: dict[str, pa.Array], says: str
) -> None:
    given = {"topic": pa.array(["orders"]), "queue_id": pa.array([0]), "body": pa.array([b"x"])}
    with pytest.raises(LoadRefusedError, match=says) as refusal:
        runs_of(pa.record_batch({**given, **column}))
    assert "\n" not in str(refusal.value)


def test_a_load_without_a_topic_is_refused() -> None:
    with pytest.raises(LoadRefusedError, match="there is no column topic: add it, or give it"):
        runs_of(pa.record_batch({"body": ["x"]}), queue_id=1)
