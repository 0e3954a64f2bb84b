"""Which topics are tiered, and which are not."""

from __future__ import annotations

import pytest

from tieredstore.model.config import StoreConfig
from tieredstore.model.topics import TopicFilter, is_system_topic

CONFIG = StoreConfig(broker_name="broker-a", cluster_name="cluster-b")

SYSTEM_NAMES = """TBW102 SCHEDULE_TOPIC_XXXX BenchmarkTest RMQ_SYS_TRANS_HALF_TOPIC
RMQ_SYS_TRACE_TOPIC RMQ_SYS_TRANS_OP_HALF_TOPIC TRANS_CHECK_MAX_TIME_TOPIC SELF_TEST_TOPIC
OFFSET_MOVED_EVENT CHECKPOINT_TOPIC rmq_sys_wheel_timer rmq_sys_REVIVE_LOG_cluster-b rmq_sys_"""
SYSTEM = SYSTEM_NAMES.split()


@pytest.mark.parametrize("topic", ["", " ", "\t\n", *SYSTEM])
def test_blank_names_and_system_topics_stay_out(topic: str) -> None:
    assert TopicFilter(CONFIG).rejects(topic)
    assert is_system_topic(topic) == (topic in SYSTEM)


@pytest.mark.parametrize("topic", ["broker-a", "cluster-b", "%LMQ%light", "%LMQ%"])
def test_the_brokers_own_topics_and_light_queues_stay_out(topic: str) -> None:
    assert TopicFilter(CONFIG).rejects(topic)
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
    assert not TopicFilter(CONFIG).rejects(topic)


def test_a_topic_can_be_rejected_while_the_program_runs() -> None:
    topic_filter = TopicFilter(CONFIG)
    topic_filter.reject("WhiteTopic")
    assert topic_filter.rejects("WhiteTopic")
    assert not topic_filter.rejects("White")
    assert not TopicFilter(CONFIG).rejects("WhiteTopic")
