"""A batch made by columns, beside the same messages made into records one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.local.config import LocalConfig
from tieredstore.local.encoder import BatchEncoder, PutRefusedError, RecordBatch, RecordEncoder
from tieredstore.model.messages import Message
from tieredstore.model.values import INT32_MAX, Host, PutStatus
from tieredstore.testing.samples import a_message, int32s, int64s, java_texts, messages

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
    batch, results = BatchEncoder(CONFIG).encode(sent)
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
    batch, refused = BatchEncoder(CONFIG).encode(sent)
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
    batch, refused = BatchEncoder(CONFIG).encode(sent)
    assert batch is not None
    assert (len(batch), refused) == (COUNT, {})
