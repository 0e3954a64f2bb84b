"""One rule says which topics are valid, and every store and provider follows it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.driver.runtime import Runtime
from tieredstore.jobs.load_records import LoadRefusedError, check_topic
from tieredstore.local.config import LocalConfig
from tieredstore.local.encoder import RecordEncoder
from tieredstore.model.topics import (
    NAME_BYTES_MAX,
    TopicFilter,
    is_system_topic,
    why_no_directory,
    why_no_topic,
)
from tieredstore.model.values import PutStatus, SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.providers.posix import PosixProvider
from tieredstore.roundlog.layout import ObjectLayout
from tieredstore.testing.samples import a_message

TOPICS = [
    "%RETRY%group",
    "%DLQ%a|b",
    "%LMQ%a",
    "主题",
    "a.b-c_d",
    "...",
    " ",
    "ends with a dot.",
    "a%2Fb",
    "#?*<>\"'{}^[]~`",
    "😀",
    "t" * NAME_BYTES_MAX,
    "ä" * (NAME_BYTES_MAX // 2),
]
NONE = {
    "": "directory",
    ".": "directory",
    "..": "directory",
    "a/b": "'/'",
    "/": "'/'",
    "a\\b": "parts names",
    "\\": "parts names",
    "a\0b": "parts names",
    "a\tb": "U\\+0009",
    "a\x1b[31m": "U\\+001B",
    "a\x7f": "U\\+007F",
    "a\x85": "U\\+0085",
    "a\ufffe": "U\\+FFFE",
    "a\uffff": "U\\+FFFF",
    "\ud83d": "Unicode",
    "t" * 256: "256 bytes",
    "ä" * 128: "256 bytes",
}


@pytest.mark.parametrize("topic", TOPICS)
def test_these_are_topics(topic: str) -> None:
    assert why_no_topic(topic) is None
    check_topic(topic)


@pytest.mark.parametrize(("topic", "reason"), NONE.items(), ids=map(ascii, NONE))
def test_these_are_none_and_the_reason_is_said(topic: str, reason: str) -> None:
    with pytest.raises(LoadRefusedError, match=reason):
        check_topic(topic)
    said = why_no_topic(topic)
    assert said is not None
    assert said.isprintable()


@pytest.mark.parametrize("topic", [None, 7, b"bytes", True])
def test_what_is_no_text_is_no_topic(topic: object) -> None:
    assert "no text" in (why_no_topic(topic) or "")


@given(topic=st.text(st.characters(), max_size=90))
def test_a_put_asks_the_same_rule_alone_and_in_a_batch(topic: str) -> None:
    encoder = RecordEncoder(LocalConfig(store_path="/nowhere"))
    for count in (1, 20):
        batch, refused = encoder.encode_all(
            [a_message(number, topic=topic) for number in range(count)]
        )
        if why_no_topic(topic) is None:
            assert not refused
            assert batch is not None
        else:
            assert batch is None
            assert {each.status for each in refused.values()} == {PutStatus.MESSAGE_ILLEGAL}


@given(topic=st.text(st.characters(), max_size=90) | st.sampled_from([*TOPICS, *NONE]))
def test_every_provider_opens_what_the_rule_takes(topic: str) -> None:
    providers = [MemoryProvider(Runtime.inline()), PosixProvider("/nowhere", "c", Runtime.inline())]
    if why_no_topic(topic) is None:
        for provider in providers:
            provider.open(f"b/{topic}/0", SegmentType.COMMIT_LOG, 0).close()
        layout = ObjectLayout("c")
        key = layout.segment_key(f"b/{topic}/0", SegmentType.COMMIT_LOG, 0)
        found = layout.segment_of(key)
        assert found is not None
        assert found.path == f"b/{topic}/0"
        assert len(key.encode()) < 1024 - 200  # leaves room for the names of parts and a prefix


@given(topic=st.text(st.characters(), max_size=90))
def test_a_topic_is_always_a_directory(topic: str) -> None:
    if why_no_topic(topic) is None:
        assert why_no_directory(topic) is None


def test_such_directories_can_be_made(tmp_path: Path) -> None:
    for topic in TOPICS:
        (tmp_path / topic).mkdir()
    assert sorted(os.listdir(tmp_path)) == sorted(TOPICS)


# Which topics are tiered, and which are not


CLUSTER, BROKER = "cluster-b", "broker-a"

SYSTEM_NAMES = """TBW102 SCHEDULE_TOPIC_XXXX BenchmarkTest RMQ_SYS_TRANS_HALF_TOPIC
RMQ_SYS_TRACE_TOPIC RMQ_SYS_TRANS_OP_HALF_TOPIC TRANS_CHECK_MAX_TIME_TOPIC SELF_TEST_TOPIC
OFFSET_MOVED_EVENT CHECKPOINT_TOPIC rmq_sys_wheel_timer rmq_sys_REVIVE_LOG_cluster-b rmq_sys_"""
SYSTEM = SYSTEM_NAMES.split()


@pytest.mark.parametrize("topic", ["", " ", "\t\n", *SYSTEM])
def test_blank_names_and_system_topics_stay_out(topic: str) -> None:
    assert TopicFilter(CLUSTER, BROKER).rejects(topic)
    assert is_system_topic(topic) == (topic in SYSTEM)


@pytest.mark.parametrize("topic", ["broker-a", "cluster-b", "%LMQ%light", "%LMQ%"])
def test_the_brokers_own_topics_and_light_queues_stay_out(topic: str) -> None:
    assert TopicFilter(CLUSTER, BROKER).rejects(topic)
    assert not is_system_topic(topic)


@pytest.mark.parametrize(
    "topic",
    [
        "TopicTest",
        "%RETRY%group",
        "%DLQ%group",
        "RMQ_SYS_",
        "broker-a-1",
        "cluster",
        "xrmq_sys_",
        "tbw102",
        "主题",
    ],
)
def test_all_others_are_tiered_retry_and_dead_letter_topics_too(topic: str) -> None:
    assert not TopicFilter(CLUSTER, BROKER).rejects(topic)


def test_a_topic_can_be_rejected_while_the_program_runs() -> None:
    topic_filter = TopicFilter(CLUSTER, BROKER)
    topic_filter.reject("WhiteTopic")
    assert topic_filter.rejects("WhiteTopic")
    assert not topic_filter.rejects("White")
    assert not TopicFilter(CLUSTER, BROKER).rejects("WhiteTopic")
