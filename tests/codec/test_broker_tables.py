"""consumerOffset.json and topics.json: RocketMQ's own files, every form of a row, and garbage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.codec import fastjson
from tieredstore.codec.broker_tables import (
    CONSUMER_OFFSETS,
    TOPICS,
    DataVersion,
    TableContents,
    TopicConfig,
)
from tieredstore.model.errors import InvalidArgumentError
from tieredstore.model.values import INT32_MAX, INT64_MAX

GOLDEN = Path(__file__).parents[1] / "golden" / "config"


def test_offsets_that_java_wrote() -> None:
    data = (GOLDEN / "consumerOffset.json").read_bytes()
    found = CONSUMER_OFFSETS.decode(data)
    assert found.rows == {
        "TopicTest@group_a": {number: 100 + number for number in range(10)},
        "%RETRY%group_a@group_a": {0: 7},
        "empty@group": {},
    }
    assert found.version == DataVersion(3, 1, 1795416132264)
    assert found.others == {}
    derived = fastjson.decode(data)
    assert derived.pop("groupTopicMap")
    assert fastjson.decode(CONSUMER_OFFSETS.encode(found)) == derived
    assert b'"TopicTest@group_a":{0:100,1:101,' in CONSUMER_OFFSETS.encode(found)


def test_topics_that_java_wrote_are_written_byte_for_byte() -> None:
    data = (GOLDEN / "topics.json").read_bytes()
    found = TOPICS.decode(data)
    assert found.rows["TopicTest"] == TopicConfig(
        name="TopicTest",
        read_queue_count=8,
        write_queue_count=4,
        is_ordered=True,
        attributes={"message.type": "DELAY", "queue.type": "SimpleCQ"},
    )
    assert TOPICS.encode(found) == data


def test_what_is_missing_is_as_in_java() -> None:
    assert TOPICS.decode(b'{"topicConfigTable":{"T":{}}}').rows == {"T": TopicConfig(name="T")}
    assert TOPICS.decode(b'{"topicConfigTable":{"T":{"perm":null,"attributes":null}}}').rows == {
        "T": TopicConfig(name="T")
    }
    empty: TableContents[Any] = TableContents()
    assert CONSUMER_OFFSETS.decode(b"{}") == empty
    assert CONSUMER_OFFSETS.decode(b'{"offsetTable":null,"dataVersion":null}') == empty


def test_fields_that_are_not_known_are_carried_along() -> None:
    data = (
        b'{"dataVersion":{"counter":4},"mine":[1,{"a":null}],"topicConfigTable":'
        b'{"T":{"perm":2,"later":{"x":1}}}}'
    )
    found = TOPICS.decode(data)
    assert found.others == {"mine": [1, {"a": None}]}
    assert found.rows["T"].others == {"later": {"x": 1}}
    assert TOPICS.decode(TOPICS.encode(found)) == found


def test_the_newer_version_is_the_greater_one_as_in_java() -> None:
    first = DataVersion()
    assert first < first.next(5) < first.next(9) < first.next(1).next(1) < DataVersion(1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b'{"offsetTable":[]}',
        b'{"offsetTable":{"T@g":7}}',
        b'{"offsetTable":{"T@g":{"x":7}}}',
        b'{"offsetTable":{"T@g":{-1:7}}}',
        b'{"offsetTable":{"T@g":{2147483648:7}}}',
        b'{"offsetTable":{"T@g":{0:"7"}}}',
        b'{"offsetTable":{"T@g":{0:true}}}',
        b'{"offsetTable":{"T@g":{0:1.5}}}',
        b'{"offsetTable":{"T@g":{0:9223372036854775808}}}',
        b'{"dataVersion":7}',
        b'{"dataVersion":{"counter":-1}}',
        b'{"dataVersion":{"counter":"1"}}',
        b'{"other":' + b"[" * 200 + b"]" * 200 + b"}",
        b"\xff\xfe",
    ],
)
def test_offsets_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        CONSUMER_OFFSETS.decode(data)


@pytest.mark.parametrize(
    "row",
    [
        "7",
        '{"perm":"6"}',
        '{"perm":-1}',
        '{"perm":2147483648}',
        '{"order":1}',
        '{"attributes":[1]}',
        '{"readQueueNums":1e3}',
    ],
)
def test_topics_that_are_none_are_refused(row: str) -> None:
    with pytest.raises(ValueError):
        TOPICS.decode(b'{"topicConfigTable":{"T":%s}}' % row.encode())


@pytest.mark.parametrize(
    "given",
    [
        {"is_ordered": 1},
        {"is_ordered": None},
        {"attributes": None},
        {"attributes": [("a", "b")]},
        {"others": []},
    ],
)
def test_a_topic_of_odd_parts_is_refused_before_anybody_writes_it(given: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="want a"):
        TopicConfig(name="T", **given)


@pytest.mark.parametrize("name", ["", "a/b", "\0", ".", "x" * 256])
def test_a_topic_has_a_name_that_a_message_can_have(name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        TopicConfig(name=name)


NUMBERS = st.integers(0, INT32_MAX)
ROWS = st.dictionaries(NUMBERS, st.integers(0, INT64_MAX), max_size=5)
VERSIONS = st.builds(DataVersion, NUMBERS, st.integers(0, INT64_MAX), st.integers(0, INT64_MAX))


@given(rows=st.dictionaries(st.text(max_size=20), ROWS, max_size=5), version=VERSIONS)
def test_offsets_are_read_back_as_they_were(
    rows: dict[str, dict[int, int]], version: DataVersion
) -> None:
    contents = TableContents(rows=rows, version=version)
    assert CONSUMER_OFFSETS.decode(CONSUMER_OFFSETS.encode(contents)) == contents
    for key, row in rows.items():
        assert CONSUMER_OFFSETS.read_row(key, CONSUMER_OFFSETS.as_json(row)) == row


TEXT = st.text(alphabet="abcdef_%-.", min_size=1, max_size=20).filter(lambda text: text.strip("."))


@given(
    topics=st.lists(
        st.builds(
            TopicConfig,
            name=TEXT,
            read_queue_count=NUMBERS,
            write_queue_count=NUMBERS,
            perm=st.integers(0, 7),
            is_ordered=st.booleans(),
            attributes=st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3),
        ),
        unique_by=lambda topic: topic.name,
        max_size=5,
    )
)
def test_topics_are_read_back_as_they_were(topics: list[TopicConfig]) -> None:
    contents = TableContents(rows={topic.name: topic for topic in topics})
    assert TOPICS.decode(TOPICS.encode(contents)) == contents
    for topic in topics:
        assert TOPICS.read_row(topic.name, TOPICS.as_json(topic)) == topic
