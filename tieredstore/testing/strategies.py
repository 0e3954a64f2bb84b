"""hypothesis strategies for what a store meets: names, keys, properties, hosts, messages, rows."""

from __future__ import annotations

from hypothesis import strategies as st

from tieredstore.model.catalogue import QueueRecord, SegmentRecord, TopicRecord
from tieredstore.model.messages import Message
from tieredstore.model.values import INT32_MAX, INT64_MAX, Host, SegmentType

_TOPIC_LETTERS = "abcXYZ019_-%|"


def texts(*, min_size: int = 0, max_size: int = 40) -> st.SearchStrategy[str]:
    """Any text that has UTF-8 bytes."""
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=min_size, max_size=max_size)


def java_texts(*, max_size: int = 40) -> st.SearchStrategy[str]:
    """Any text that a Java string can hold: halves of surrogate pairs too."""
    return st.text(st.characters(), max_size=max_size)


def topics() -> st.SearchStrategy[str]:
    """Names that RocketMQ accepts, and a few in other letters."""
    plain = st.text(_TOPIC_LETTERS, min_size=1, max_size=127)
    return plain | st.sampled_from(["%RETRY%group", "%DLQ%group", "主题", "T😀", "t" * 200])


def keys() -> st.SearchStrategy[str]:
    """One key: anything but a space, which parts keys, and the separators of properties."""
    letters = st.characters(exclude_categories=["Cs"], exclude_characters=" \x01\x02")
    return st.text(letters, min_size=1, max_size=40)


def properties() -> st.SearchStrategy[dict[str, str]]:
    """What survives the property string, which escapes nothing and drops empty values."""
    letters = st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02")
    words = st.text(letters, min_size=1, max_size=30)
    return st.dictionaries(words, words, max_size=6)


def hosts() -> st.SearchStrategy[Host]:
    """IPv4 and IPv6 addresses with any port that four bytes hold."""
    addresses = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)
    return st.builds(Host, addresses, st.integers(0, 65535))


def int32s() -> st.SearchStrategy[int]:
    return st.integers(-INT32_MAX - 1, INT32_MAX)


def int64s() -> st.SearchStrategy[int]:
    return st.integers(-INT64_MAX - 1, INT64_MAX)


def offsets() -> st.SearchStrategy[int]:
    return st.integers(0, INT64_MAX)


def messages() -> st.SearchStrategy[Message]:
    return st.builds(
        Message,
        topic=topics(),
        queue_id=st.integers(0, 16),
        body=st.binary(max_size=200),
        properties=properties(),
        flag=int32s(),
        born_timestamp=offsets(),
        born_host=hosts(),
        store_host=hosts(),
        reconsume_times=st.integers(0, 16),
        prepared_transaction_offset=offsets(),
    )


def topic_records() -> st.SearchStrategy[TopicRecord]:
    return st.builds(
        TopicRecord,
        topic=topics(),
        topic_id=st.integers(0, INT64_MAX),
        reserve_hours=st.none() | st.integers(0, INT32_MAX),
        status=st.integers(0, 2),
        update_timestamp=offsets(),
    )


def queue_records() -> st.SearchStrategy[QueueRecord]:
    return st.builds(
        QueueRecord,
        broker_name=st.sampled_from(["broker-a", "broker-b"]),
        topic=topics(),
        queue_id=st.integers(0, INT32_MAX),
        min_offset=st.integers(-1, INT64_MAX),
        max_offset=st.integers(-1, INT64_MAX),
        update_timestamp=offsets(),
    )


def segment_records() -> st.SearchStrategy[SegmentRecord]:
    return st.builds(
        SegmentRecord,
        path=st.builds("broker-a/{}/{}".format, topics(), st.integers(0, 16)),
        type=st.sampled_from(SegmentType),
        base_offset=st.integers(0, INT64_MAX // 2),
        size=st.integers(0, INT64_MAX // 2),
        create_timestamp=offsets(),
        begin_timestamp=st.none() | st.integers(0, INT64_MAX - 1),
        end_timestamp=st.none() | st.integers(0, INT64_MAX - 1),
        status=st.integers(0, 2),
        seal_timestamp=offsets(),
    )
