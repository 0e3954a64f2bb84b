"""A message made into a record, alone and by columns: the codec's bytes, the broker's limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.codec.java import encode_utf8
from tieredstore.codec.message import decode_message, encode_message
from tieredstore.codec.record import (
    encode_properties,
    property_bytes_of,
    split_keys,
    tags_code,
)
from tieredstore.local.config import DelayLevels, LocalConfig
from tieredstore.local.encoder import (
    PutRefusedError,
    Record,
    RecordBatch,
    RecordEncoder,
    waits_for_disk,
)
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.message_columns import MessageColumns
from tieredstore.model.messages import Message
from tieredstore.model.topics import SCHEDULE_TOPIC
from tieredstore.model.values import INT32_MAX, Host, PutStatus
from tieredstore.testing.samples import a_message, int32s, int64s, java_texts, messages

ENCODER = RecordEncoder(LocalConfig())
CRC_ENCODER = RecordEncoder(LocalConfig(property_crc_enabled=True))


def reference(message: Message, *, crc: bool, **places: int) -> bytes:
    return encode_message(
        topic=message.topic,
        queue_id=message.queue_id,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_host=message.store_host,
        body=message.body,
        property_bytes=encode_properties(message.properties),
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        append_property_crc=crc,
        **places,
    )


def placed(record: Record, *, queue_offset: int, log_offset: int, store_timestamp: int) -> bytes:
    batch = RecordBatch.joined([record])
    record.queue_offset = queue_offset
    data = bytes(record.placed(log_offset, store_timestamp))
    assert (record.log_offset, record.store_timestamp) == (log_offset, store_timestamp)
    assert batch.placed(range(1), [queue_offset], log_offset, store_timestamp) == (
        data,
        [log_offset],
    )
    assert [*batch.tags_codes(store_timestamp)] == [record.tags_code]
    return data


def tags_code_of(record: Record, store_timestamp: int) -> int:
    placed(record, queue_offset=0, log_offset=0, store_timestamp=store_timestamp)
    return record.tags_code


def refused(message: Message, encoder: RecordEncoder = ENCODER) -> PutRefusedError:
    with pytest.raises(PutRefusedError) as caught:
        encoder.encode(message)
    return caught.value


@given(messages(), int64s(), int64s(), int64s(), st.sampled_from([0, 4, 8, 12, 1, 0x700, 0x30]))
def test_the_bytes_are_those_of_the_codec(
    message: Message, queue_offset: int, log_offset: int, timestamp: int, sys_flag: int
) -> None:
    message = dataclasses.replace(message, sys_flag=sys_flag)
    places = {
        "queue_offset": queue_offset,
        "log_offset": log_offset,
        "store_timestamp": timestamp,
    }
    for encoder, crc in ((ENCODER, False), (CRC_ENCODER, True)):
        record = encoder.encode(message)
        assert placed(record, **places) == reference(message, crc=crc, **places)
        assert record.size == len(record.data)


@given(messages(), st.dictionaries(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY"]), java_texts()))
def test_a_record_says_of_itself_what_a_reader_of_its_bytes_finds(
    message: Message, named: dict[str, str]
) -> None:
    named = {name: value.replace("\2", "") for name, value in named.items()}
    message = dataclasses.replace(message, properties={**message.properties, **named})
    record = ENCODER.encode(message)
    stored = decode_message(placed(record, queue_offset=1, log_offset=2, store_timestamp=3))
    assert split_keys(record.keys) == stored.keys
    assert record.unique_key == stored.unique_key
    assert record.tags_code == stored.tags_code
    assert (record.topic, record.queue_id) == (stored.topic, stored.queue_id)
    assert record.sys_flag == stored.sys_flag


def test_half_a_character_in_a_key_is_what_it_is_in_the_bytes() -> None:
    record = ENCODER.encode(a_message(properties={"KEYS": "a\ud800", "UNIQ_KEY": "\udc00"}))
    assert (record.keys, record.unique_key) == ("a?", "?")


def test_the_properties_may_change_afterwards() -> None:
    properties = {"KEYS": "a b", "TAGS": "t"}
    record = ENCODER.encode(a_message(properties=properties))
    properties["KEYS"] = "c"
    assert record.keys == "a b"


def limits(**settings: Any) -> RecordEncoder:
    return RecordEncoder(LocalConfig(**settings))


def test_property_bytes_up_to_32767_pass_and_one_more_does_not() -> None:
    fits = a_message(properties={"K": "v" * (32767 - 3)})
    assert ENCODER.encode(fits).size > 32767
    error = refused(a_message(properties={"K": "v" * (32767 - 2)}))
    assert error.status is PutStatus.PROPERTIES_SIZE_EXCEEDED
    assert "32768" in error.reason


def test_the_crc_takes_20_of_the_property_bytes() -> None:
    CRC_ENCODER.encode(a_message(properties={"K": "v" * (32767 - 23)}))
    error = refused(a_message(properties={"K": "v" * (32767 - 22)}), CRC_ENCODER)
    assert error.status is PutStatus.PROPERTIES_SIZE_EXCEEDED


def test_properties_are_looked_at_before_the_body() -> None:
    message = a_message(body_bytes=101, properties={"K": "v" * 40000})
    assert refused(message, limits(message_bytes_max=100)).status is (
        PutStatus.PROPERTIES_SIZE_EXCEEDED
    )


def test_a_body_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    encoder = limits(message_bytes_max=100)
    encoder.encode(a_message(body_bytes=100))
    assert refused(a_message(body_bytes=101), encoder).status is PutStatus.MESSAGE_ILLEGAL


def test_the_largest_body_topic_and_properties_pass_together() -> None:
    message = a_message(topic="t" * 127, body_bytes=4 << 20, properties={"K": "v" * (32767 - 3)})
    assert ENCODER.encode(message).size == 88 + (4 << 20) + 128 + 2 + 32767


@pytest.mark.parametrize(("body_bytes", "fits"), [(0, True), (1, False)])
def test_a_record_has_to_fit_an_empty_file(body_bytes: int, fits: bool) -> None:
    topic = "t" * (256 - 8 - 91)  # over 127 bytes: its length takes one byte more
    encoder = limits(commit_log_file_bytes=256)
    message = a_message(topic=topic[:-1], body_bytes=body_bytes, properties={})
    if fits:
        assert encoder.encode(message).size == 248
    else:
        error = refused(message, encoder)
        assert error.status is PutStatus.MESSAGE_ILLEGAL
        assert "249 bytes" in error.reason


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"topic": ""}, "topic"),
        ({"topic": "a/b"}, "topic"),
        ({"topic": ".."}, "topic"),
        ({"topic": "\ud800"}, "topic"),
        ({"topic": "t" * 256}, "256 bytes"),
        ({"queue_id": -1}, "queue id"),
        ({"queue_id": 1 << 31}, "queue_id"),
        ({"flag": 1 << 31}, "flag"),
        ({"born_timestamp": 1 << 63}, "born_timestamp"),
        ({"born_host": Host(b"abc", 1)}, "born_host"),
        ({"store_host": Host(b"abcd", 1 << 40)}, "store_host port"),
        ({"sys_flag": 0x80}, "inner batch"),
        ({"properties": {"INNER_NUM": "3"}}, "inner batch"),
        ({"properties": {"a": "b\2c"}}, "property a"),
        ({"properties": {"": "b"}}, "property name"),
        ({"properties": {"a\1": "b"}}, "property name"),
    ],
)
def test_what_fits_no_record_is_illegal_and_named(change: dict[str, Any], named: str) -> None:
    error = refused(dataclasses.replace(a_message(), **change))
    assert error.status is PutStatus.MESSAGE_ILLEGAL
    assert named in error.reason


@pytest.mark.parametrize(
    ("wait", "waits"),
    [(None, True), ("true", True), ("TRUE", True), ("false", False), ("1", False)],
)
def test_only_true_or_nothing_waits_for_the_disk(wait: str | None, waits: bool) -> None:
    properties = {} if wait is None else {"WAIT": wait}
    assert ENCODER.encode(a_message(properties=properties)).waits_for_disk is waits


@pytest.mark.parametrize(
    ("level", "delay"), [("1", 1_000), ("3", 10_000), ("+3", 10_000), ("99", 7_200_000)]
)
def test_a_delayed_message_has_its_delivery_time_for_a_tags_code(level: str, delay: int) -> None:
    properties = {"DELAY": level, "TAGS": "TagA"}
    record = ENCODER.encode(a_message(topic=SCHEDULE_TOPIC, properties=properties))
    assert tags_code_of(record, 5_000) == 5_000 + delay
    assert tags_code_of(record, 7_000) == 7_000 + delay  # another log, if one refused it
    elsewhere = ENCODER.encode(a_message(properties=properties))
    assert tags_code_of(elsewhere, 5_000) == tags_code("TagA")


@pytest.mark.parametrize("level", ["0", "-3"])
def test_without_a_level_above_zero_nothing_is_delayed(level: str) -> None:
    properties = {"DELAY": level, "TAGS": "TagA"}
    record = ENCODER.encode(a_message(topic=SCHEDULE_TOPIC, properties=properties))
    assert tags_code_of(record, 5_000) == tags_code("TagA")


def test_a_level_that_is_no_number_is_refused_but_never_by_recovery() -> None:
    properties = {"DELAY": "soon", "TAGS": "TagA"}
    error = refused(a_message(topic=SCHEDULE_TOPIC, properties=properties))
    assert error.status is PutStatus.MESSAGE_ILLEGAL
    assert DelayLevels("1s").tags_code(SCHEDULE_TOPIC, properties, 5) == tags_code("TagA")


def test_levels_without_a_table_wait_a_second() -> None:
    assert DelayLevels("").delay_ms(SCHEDULE_TOPIC, {"DELAY": "2"}) == 1_000
    with pytest.raises(InvalidConfigError):
        DelayLevels("1x")


COUNT = 20
CONFIG = LocalConfig()
NAMES = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "WAIT", "DELAY", "INNER_NUM", "other", ""])
VALUES = st.sampled_from(["", "a b", "true", "false", "3", "é", "\x01", "\x02"]) | java_texts()
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "topic": st.sampled_from(["TopicTest", "SCHEDULE_TOPIC_XXXX", "t" * 200, "a/b"]),
        "queue_id": st.integers(-1, 3) | int32s(),
        "body": st.binary(max_size=20),
        "properties": st.dictionaries(NAMES, VALUES, max_size=4),
        "flag": int32s() | st.just(1 << 40),
        "sys_flag": st.sampled_from([0, 1, 4, 8, 12, 0x10, 0x80]),
        "born_timestamp": int64s(),
        "born_host": st.just(Host(bytes(16), 7)),
        "reconsume_times": int32s(),
        "prepared_transaction_offset": int64s(),
    },
)


def one_by_one(sent: Sequence[Message]) -> tuple[RecordBatch, dict[int, PutStatus]]:
    encoder = RecordEncoder(CONFIG)
    records, refused = [], {}
    for place, message in enumerate(sent):
        try:
            records.append(encoder.encode(message))
        except PutRefusedError as refusal:
            refused[place] = refusal.status
    return RecordBatch.joined(records), refused


def check(sent: Sequence[Message]) -> None:
    batch, results = RecordEncoder(CONFIG).encode_all(sent)
    wanted, refused = one_by_one(sent)
    assert {place: result.status for place, result in results.items()} == refused
    assert len(wanted) == (0 if batch is None else len(batch))
    if batch is None:
        return
    assert batch.data == wanted.data
    for name in ("sizes", "topics", "queue_ids", "sys_flags", "in_queue", "unique_keys"):
        assert list(getattr(batch, name)) == list(getattr(wanted, name)), name
    assert [*batch.tags_codes(9)] == [*wanted.tags_codes(9)]
    assert [text or None for text in batch.keys] == [text or None for text in wanted.keys]
    assert batch.waits_for_disk == wanted.waits_for_disk
    assert batch.is_of_one_queue == wanted.is_of_one_queue
    place = range(len(batch)), range(5, 5 + len(batch)), 1 << 33, 1_700_000_000_000
    assert batch.placed(*place) == wanted.placed(*place)


@given(st.lists(CHANGES, min_size=COUNT, max_size=COUNT))
def test_a_batch_with_anything_in_it_is_what_its_messages_are(
    changes: list[dict[str, Any]],
) -> None:
    check([dataclasses.replace(a_message(), **change) for change in changes])


@given(CHANGES, st.dictionaries(st.integers(0, COUNT - 1), CHANGES, max_size=1))
def test_a_batch_of_like_messages_is_what_its_messages_are(
    common: dict[str, Any], special: dict[int, dict[str, Any]]
) -> None:
    like = [dataclasses.replace(a_message(number), **common) for number in range(COUNT)]
    for place, change in special.items():
        like[place] = dataclasses.replace(like[place], **change)
    check(like)


@given(messages())
def test_any_message_many_times(message: Message) -> None:
    check([message] * COUNT)


@pytest.mark.parametrize(
    "change",
    [
        {"flag": INT32_MAX + 1},
        {"queue_id": INT32_MAX + 1},
        {"properties": {"K": "v" * 32_765}},
        {"body": bytes((4 << 20) + 1)},
        {"born_host": Host(b"abc", 1)},
        {"topic": ""},
    ],
)
def test_one_that_can_be_no_record_is_refused_alone(change: dict[str, Any]) -> None:
    sent = [a_message(number) for number in range(COUNT)]
    sent[7] = dataclasses.replace(sent[7], **change)
    batch, refused = RecordEncoder(CONFIG).encode_all(sent)
    assert batch is not None
    assert (len(batch), list(refused)) == (COUNT - 1, [7])
    check(sent)


def test_plain_batches_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this the tests above could pass with a column encoder that always gives up."""
    monkeypatch.setattr(RecordEncoder, "encode", lambda *_: pytest.fail("encoded alone"))
    changes: list[dict[str, Any]] = [
        {"queue_id": number % 4, "flag": number, "sys_flag": 4 * (number % 4)}
        for number in range(COUNT)
    ]
    changes[3]["properties"] = {}
    changes[4]["properties"] = {"KEYS": "é ü", "WAIT": "true", "UNIQ_KEY": "u"}
    sent = [
        dataclasses.replace(a_message(number), **change) for number, change in enumerate(changes)
    ]
    batch, refused = RecordEncoder(CONFIG).encode_all(sent)
    assert batch is not None
    assert (len(batch), refused) == (COUNT, {})


def texted(text: str | bytes) -> Message:
    return dataclasses.replace(a_message(), properties={}, properties_text=text)


TEXTS = st.lists(
    st.tuples(NAMES, st.sampled_from(["\x01", "\x01", "", "\x01\x01"]), VALUES).map("".join)
).map("\x02".join) | st.text(max_size=20)


@given(TEXTS, st.booleans(), st.booleans())
def test_properties_that_came_as_text_are_stored_as_they_came(
    text: str, as_bytes: bool, ends: bool
) -> None:
    text += "\x02" if ends else ""
    sent = encode_utf8(text)
    message = texted(sent if as_bytes else text)
    if sent.endswith(b"\0") or "INNER_NUM" in message.properties:
        return
    record = ENCODER.encode(message)
    stored = decode_message(placed(record, queue_offset=1, log_offset=2, store_timestamp=3))
    assert stored.property_bytes == sent
    assert split_keys(record.keys) == stored.keys
    assert record.unique_key == stored.unique_key
    assert record.tags_code == stored.tags_code
    assert record.waits_for_disk == waits_for_disk(stored.properties.get("WAIT"))


@given(st.lists(TEXTS, min_size=COUNT, max_size=COUNT), st.integers(0, 2 * COUNT))
def test_a_batch_with_texts_is_what_its_messages_are(texts: list[str], plain: int) -> None:
    sent = [texted(text) for text in texts]
    if plain < COUNT:
        sent[plain] = a_message(properties={"KEYS": "a"})
    check(sent)


def test_a_batch_of_texts_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordEncoder, "encode", lambda *_: pytest.fail("encoded alone"))
    sent = [texted(f"KEYS\x01k{number}\x02") for number in range(COUNT)]
    batch, _ = RecordEncoder(CONFIG).encode_all(sent)
    assert batch is not None
    assert list(batch.keys) == [f"k{number}" for number in range(COUNT)]


def columned(sent: Sequence[Message]) -> MessageColumns:
    return MessageColumns(
        topics=[message.topic for message in sent],
        queue_ids=[message.queue_id for message in sent],
        bodies=[message.body for message in sent],
        properties_texts=[property_bytes_of(message) for message in sent],
        flags=[message.flag for message in sent],
        sys_flags=[message.sys_flag for message in sent],
        born_timestamps=[message.born_timestamp for message in sent],
        born_hosts=[message.born_host for message in sent],
        store_hosts=[message.store_host for message in sent],
        reconsume_times=[message.reconsume_times for message in sent],
        prepared_transaction_offsets=[message.prepared_transaction_offset for message in sent],
    )


@given(st.lists(CHANGES, min_size=1, max_size=COUNT), TEXTS)
def test_columns_are_what_their_messages_are(changes: list[dict[str, Any]], text: str) -> None:
    given = [{**change, "properties": {}, "properties_text": text} for change in changes]
    check(columned([dataclasses.replace(a_message(), **change) for change in given]))


@given(messages(), st.integers(0, 9))
def test_columns_of_usual_messages_are_what_these_are(message: Message, odd: int) -> None:
    sent = [dataclasses.replace(message, flag=number) for number in range(COUNT)]
    if odd == 0:
        sent[3] = dataclasses.replace(sent[3], topic="a/b")
    columns = columned(sent)
    check(columns)
    ours, _ = RecordEncoder(CONFIG).encode_all(columns)
    theirs, _ = RecordEncoder(CONFIG).encode_all(sent)
    assert (ours and ours.data) == (theirs and theirs.data)


def test_columns_make_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = columned([a_message(number) for number in range(COUNT)])
    monkeypatch.setattr(MessageColumns, "__getitem__", lambda *_: pytest.fail("made a message"))
    batch, _ = RecordEncoder(CONFIG).encode_all(columns)
    assert batch is not None
    assert len(batch) == COUNT


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("K\x01v\0", "ends in 0"),
        ("INNER_NUM\x015", "inner batches are not stored here"),
        ("K\x01" + "v" * 32766, "32768 bytes are more than 32767"),
    ],
)
def test_a_text_that_can_be_no_record_is_refused(text: str, reason: str) -> None:
    assert reason in refused(texted(text)).reason
