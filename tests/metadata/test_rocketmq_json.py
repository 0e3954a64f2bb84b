"""RocketMQ's JSON: its own files byte for byte, every form that it accepts, and garbage."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tieredstore.codec import fastjson
from tieredstore.driver.metadata import DeleteTopic, Put
from tieredstore.metadata import JsonMetadataStore, tables
from tieredstore.metadata.tables import Tables
from tieredstore.model.errors import MetadataError
from tieredstore.model.values import QueueRecord, SegmentType, TopicRecord
from tieredstore.testing.metadata_contract import log_segment

GOLDEN = Path(__file__).parents[1] / "golden" / "metadata"
FROM_JAVA = sorted(GOLDEN.glob("tier-*.json")) + sorted(GOLDEN.glob("tier-*.bak"))
FROM_JAVA.remove(GOLDEN / "tier-posix.expect-metadata.json")


def read(data: bytes) -> Tables:
    return Tables.from_document(fastjson.decode(data))


def written(content: Tables) -> bytes:
    return fastjson.encode(content.document())


def plain(data: bytes) -> dict[str, dict[str, dict[str, dict[str, object]]]]:
    """An independent parser, for files in which no string looks like a key."""
    quoted = re.sub(rb"([{,]\s*)(\d+)\s*:", rb'\1"\2":', data)
    found: dict[str, dict[str, dict[str, dict[str, object]]]] = json.loads(quoted)
    return found


@pytest.mark.parametrize("file", FROM_JAVA, ids=lambda file: file.name)
def test_what_java_wrote_is_written_again_byte_for_byte(file: Path) -> None:
    assert written(read(file.read_bytes())) == file.read_bytes()


@pytest.mark.parametrize("file", FROM_JAVA, ids=lambda file: file.name)
def test_a_store_serves_and_keeps_what_java_wrote(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "tieredStoreMetadata.json"
    path.write_bytes(file.read_bytes())
    with JsonMetadataStore.open(path) as store:
        assert store.snapshot_bytes() == file.read_bytes()
        store.put_note("kind", "key", 1)  # this writes the file again, with the same bytes
    assert path.read_bytes() == file.read_bytes()


def test_every_golden_file_is_looked_at() -> None:
    assert len(FROM_JAVA) == 6


def test_the_rows_are_what_java_says_they_are(tmp_path: Path) -> None:
    path = tmp_path / "tieredStoreMetadata.json"
    path.write_bytes((GOLDEN / "tier-posix.json").read_bytes())
    expected = plain((GOLDEN / "tier-posix.expect-metadata.json").read_bytes())
    with JsonMetadataStore.open(path, read_only=True) as store:
        for kind, name in tables.SEGMENT_TABLES.items():
            answers = [row for of_path in expected[name].values() for row in of_path.values()]
            found = [tables.segment_row(row) for row in store.segments(type=kind)]
            assert sorted(found, key=str) == sorted(answers, key=str)
        answers = [row for of in expected["queueMetadataTable"].values() for row in of.values()]
        assert sorted(map(tables.queue_row, store.queues()), key=str) == sorted(answers, key=str)
        assert {row.topic: tables.topic_row(row) for row in store.topics()} == expected[
            "topicMetadataTable"
        ]
        assert {row.reserve_hours for row in store.topics()} == {None}


def test_quoted_keys_and_any_layout_mean_the_same() -> None:
    java = (GOLDEN / "tier-posix.json").read_bytes()
    for other in (
        json.dumps(plain(java)).encode(),
        json.dumps(plain(java), indent=1).encode(),
        re.sub(rb"\s", b"", java),
        java.replace(b"{0:", b"{ \n -0 \t:").replace(b"-0", b"0"),
    ):
        assert written(read(other)) == java


def test_a_legacy_file_with_another_layout_is_read() -> None:
    legacy = (GOLDEN / "legacy.json").read_bytes()
    found = read(legacy)
    of_log = found.segments[SegmentType.COMMIT_LOG]["broker-gold-a/GoldAa/1"]
    assert list(of_log) == [0, 1234, 2663]
    assert plain(written(found)) == plain(legacy)


def test_what_looks_like_a_key_inside_of_a_string_stays_text() -> None:
    for name in ("{0:1,2:3}", 'a"{1:', "\\{1:", '\\"{1:2,', "{\\u0031:1"):
        content = Tables()
        content.queues = {name: {1: QueueRecord(broker_name=name, topic=name, queue_id=1)}}
        assert read(written(content)).queues == content.queues


def test_strings_are_escaped_as_fastjson_does() -> None:
    content = Tables()
    name = 'ä主😀/"\\\b\f\n\r\t\x00\x1f\x7f\x9f\xa0\u2028\u2029'
    content.topics = {name: TopicRecord(topic=name, topic_id=0)}
    text = written(content).decode()
    expected = 'ä主😀/\\"\\\\\\b\\f\\n\\r\\t\\u0000\\u001F\\u007F\\u009F\xa0\\u2028\\u2029'
    assert f'\t\t"{expected}":{{\n\t\t\t"topicId":0,\n\t\t\t"topic":"{expected}",\n' in text
    assert read(text.encode()).topics == content.topics


def test_an_empty_catalogue_has_its_six_members() -> None:
    names = [*tables.SEGMENT_TABLES.values(), "queueMetadataTable", "topicMetadataTable"]
    lines = "".join(f'\t"{name}":{{}},\n' for name in names)
    assert written(Tables()).decode() == f'{{\n{lines}\t"topicSerialNumber":-1\n}}'


def test_missing_and_null_tables_are_empty() -> None:
    for data in (b"{}", b'{"topicMetadataTable":null,"queueMetadataTable":{"T":null}}'):
        found = read(data)
        assert not found.topics
        assert not any(found.queues.values())
        assert found.topic_serial == -1


def test_missing_and_null_fields_are_zero_or_none() -> None:
    data = b"""{"commitLogFileSegmentTable":{"p":{7:{"path":null,"size":null}}},
        "queueMetadataTable":{"T":{2:{}}},"topicMetadataTable":{"T":{"topicId":4}}}"""
    found = read(data)
    assert found.segments[SegmentType.COMMIT_LOG]["p"] == {7: log_segment(7, 0, path="p")}
    expected = QueueRecord(broker_name="", topic="T", queue_id=2, min_offset=0, max_offset=0)
    assert found.queues["T"] == {2: expected}
    assert found.topics["T"] == TopicRecord(topic="T", topic_id=4)
    assert found.topic_serial == 4


def test_a_row_that_is_null_is_none_and_a_size_of_minus_one_is_not_known() -> None:
    found = read(
        b'{"topicMetadataTable":{"T":null},"commitLogFileSegmentTable":{"p":{0:null,5:{"size":-1}}}}'
    )
    assert not found.topics
    [segment] = found.segments[SegmentType.COMMIT_LOG]["p"].values()
    assert (segment.base_offset, segment.size) == (5, 0)


def test_an_id_that_is_there_is_never_given_again() -> None:
    found = read(b'{"topicMetadataTable":{"T":{"topicId":4}},"topicSerialNumber":2}')
    assert found.topic_serial == 4


def test_the_table_decides_the_type_of_a_segment() -> None:
    found = read(b'{"indexFileSegmentTable":{"p":{0:{"type":0}}}}')
    assert found.segments[SegmentType.INDEX]["p"][0].type is SegmentType.INDEX
    assert not found.segments[SegmentType.COMMIT_LOG]


UNKNOWN = """{
\t"commitLogFileSegmentTable":{
\t\t"p":{0:{
\t\t\t\t"path":"p",
\t\t\t\t"type":0,
\t\t\t\t"baseOffset":0,
\t\t\t\t"status":0,
\t\t\t\t"size":%d,
\t\t\t\t"createTimestamp":0,
\t\t\t\t"beginTimestamp":9223372036854775807,
\t\t\t\t"endTimestamp":9223372036854775807,
\t\t\t\t"sealTimestamp":0,
\t\t\t\t"colour":[
\t\t\t\t\t1,
\t\t\t\t\t{
\t\t\t\t\t\t"a":null
\t\t\t\t\t},
\t\t\t\t\t[]
\t\t\t\t]
\t\t\t}
\t\t}
\t},
\t"consumeQueueFileSegmentTable":{},
\t"indexFileSegmentTable":{},
\t"queueMetadataTable":{
\t\t"T":{1:{
\t\t\t\t"queue":{
\t\t\t\t\t"brokerName":"b",
\t\t\t\t\t"queueId":1,
\t\t\t\t\t"topic":"T",
\t\t\t\t\t"rack":true
\t\t\t\t},
\t\t\t\t"minOffset":-1,
\t\t\t\t"maxOffset":-1,
\t\t\t\t"updateTimestamp":0,
\t\t\t\t"weight":1.5
\t\t\t}
\t\t}
\t},
\t"topicMetadataTable":{},
\t"topicSerialNumber":-1,
\t"version":{
\t\t"major":5
\t}
}"""


def test_fields_that_are_not_ours_survive_reading_changing_and_writing(tmp_path: Path) -> None:
    path = tmp_path / "tieredStoreMetadata.json"
    path.write_text(UNKNOWN % 1)
    with JsonMetadataStore.open(path) as store:
        store.put(log_segment(0, 2, path="p"))
    assert path.read_text() == UNKNOWN % 2
    with JsonMetadataStore.open(path) as store:
        store.delete_segment("p", SegmentType.COMMIT_LOG, 0)
        store.put(log_segment(0, 2, path="p"))
        assert b"colour" not in store.snapshot_bytes()  # unknown fields went with their row


DEEP = b"[" * 150 + b"]" * 150
WRONG = {
    "no object": b"[]",
    "no end": b'{"topicMetadataTable":{',
    "an open string": b'{"a\\"b\\"c' * 3,
    "a table that is a list": b'{"queueMetadataTable":[]}',
    "a path that is a list": b'{"queueMetadataTable":{"T":[]}}',
    "a row that is a list": b'{"queueMetadataTable":{"T":{0:[]}}}',
    "a topic that is a list": b'{"topicMetadataTable":{"T":[]}}',
    "a key that is no number": b'{"queueMetadataTable":{"T":{"x":{}}}}',
    "a key below zero": b'{"queueMetadataTable":{"T":{-1:{}}}}',
    "a key of other digits": '{"queueMetadataTable":{"T":{"\uff11":{}}}}'.encode(),
    "a key beyond 64 bits": b'{"indexFileSegmentTable":{"p":{9223372036854775808:{}}}}',
    "a queue id beyond 32 bits": b'{"queueMetadataTable":{"T":{2147483648:{}}}}',
    "an endless key": b'{"indexFileSegmentTable":{"p":{' + b"1" * 9_999 + b":{}}}}",
    "a size below zero": b'{"indexFileSegmentTable":{"p":{0:{"size":-2}}}}',
    "a size beyond 64 bits": b'{"indexFileSegmentTable":{"p":{0:{"size":1e30}}}}',
    "a size in words": b'{"indexFileSegmentTable":{"p":{0:{"size":"1"}}}}',
    "a size that is true": b'{"indexFileSegmentTable":{"p":{0:{"size":true}}}}',
    "an end beyond 64 bits": b'{"indexFileSegmentTable":{"p":{9:{"size":9223372036854775807}}}}',
    "another path": b'{"indexFileSegmentTable":{"p":{0:{"path":"q"}}}}',
    "another offset": b'{"indexFileSegmentTable":{"p":{0:{"baseOffset":1}}}}',
    "another topic": b'{"topicMetadataTable":{"T":{"topic":"U"}}}',
    "a queue that is a list": b'{"queueMetadataTable":{"T":{0:{"queue":[]}}}}',
    "a serial in words": b'{"topicSerialNumber":"7"}',
    "a serial below -1": b'{"topicSerialNumber":-2}',
    "a deep unknown member": b'{"x":' + DEEP + b"}",
    "a deep unknown field": b'{"topicMetadataTable":{"T":{"x":' + DEEP + b"}}}",
    "endless nesting": b'{"x":' * 100_000,
    "endless lists": b"[" * 1_000_000,
    "half a surrogate pair": b'{"topicMetadataTable":{"\\ud83d":{}}}',
    "text that is not UTF-8": b'{"topicMetadataTable":{"\xff":{}}}',
    "text behind the end": b"{}{}",
    "zeros": bytes(100),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_catalogue_is_an_error_and_never_a_crash(what: str, tmp_path: Path) -> None:
    path = tmp_path / "tieredStoreMetadata.json"
    path.write_bytes(WRONG[what])
    with pytest.raises(MetadataError) as caught:
        JsonMetadataStore.open(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1_000
    assert path.read_bytes() == WRONG[what]


@pytest.mark.parametrize("piece", [b'"\\"', b',"a\\\\', b"{ ", b"{1:", b", 1 ", b"\\", b"1,"])
def test_garbage_costs_no_more_than_its_length(piece: bytes) -> None:
    with pytest.raises(ValueError):
        fastjson.decode(b"{" + piece * 300_000)


JAVA_TEXT = (GOLDEN / "tier-index.json").read_bytes()


@given(st.data())
def test_damaged_files_are_read_or_refused(data: st.DataObject) -> None:
    text = bytearray(JAVA_TEXT)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        found = read(bytes(text))
    except ValueError:
        return
    assert read(written(found)).document() == found.document()


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def quoted(text: str) -> str:
    """Put quotes around bare keys, character by character."""
    parts, at, is_behind_opening = [], 0, False
    while at < len(text):
        found = re.compile(r'"(?:\\.|[^"\\])*"?', re.DOTALL).match(text, at)
        key = re.compile(r"\s*(-?[0-9]+)\s*:").match(text, at) if is_behind_opening else None
        if key:
            parts.append(f'{text[at : key.start(1)]}"{key[1]}"')
            at = key.end(1)
        elif found:
            parts.append(found[0])
            at = found.end()
        else:
            parts.append(text[at])
            at += 1
        is_behind_opening = parts[-1] in ("{", ",")
    return "".join(parts)


@given(st.text(alphabet='"{,5-: \\a}\n', max_size=24))
def test_bare_keys_are_quoted_and_nothing_else(text: str) -> None:
    assert fastjson._quote_keys(text.encode()) == quoted(text).encode()


@given(st.dictionaries(NAMES, st.dictionaries(st.integers(0, 2**31 - 1), NAMES, max_size=3)))
@example({"": {0: ""}})
def test_any_name_survives_being_written_and_read(queues: dict[str, dict[int, str]]) -> None:
    content = Tables()
    for topic, of_topic in queues.items():
        content.queues[topic] = {
            queue_id: QueueRecord(broker_name=broker, topic=topic, queue_id=queue_id)
            for queue_id, broker in of_topic.items()
        }
    assert read(written(content)).queues == content.queues


WRITTEN = Path(__file__).parent / "rocketmq-5.5.0.json"


def test_every_row_of_rocketmq_5_5_is_read_and_the_store_goes_on_with_it(tmp_path: Path) -> None:
    path = tmp_path / "tieredStoreMetadata.json"
    shutil.copy(WRITTEN, path)
    for _ in range(2):  # first as Java wrote it, then as we rewrote it
        with JsonMetadataStore.open(path) as store:
            assert [record.topic for record in store.topics()] == ["TopicTest", "主题-grün"]
            queues = [(one.topic, one.queue_id, one.min_offset) for one in store.queues()]
            assert queues == [("TopicTest", 0, 0), ("TopicTest", 1, 17)]
            log, units = store.segments()
            assert (log.path, log.type, log.size) == (
                "broker-a/TopicTest/0",
                SegmentType.COMMIT_LOG,
                1234,
            )
            assert (units.type, units.status, units.size) == (SegmentType.CONSUME_QUEUE, 1, 40)
            store.compact()


@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_number_of_a_topic_that_is_deleted_is_not_given_again(count: int) -> None:
    """Nor do tables made of these contents, such as a log's state, give it again."""
    content = Tables()
    for number in range(count):
        content.apply([Put(content.new_topic(f"T{number}", None, 1))])
    content.apply(DeleteTopic(f"T{number}") for number in range(count))
    again = Tables()
    again.apply(content.contents())
    assert again.topics == {}
    assert again.new_topic("T", None, 1).topic_id == count
