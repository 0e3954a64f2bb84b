"""The key hashes of many messages, beside those of one message after the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tieredstore.codec.java import local_key_hash
from tieredstore.codec.record import split_keys
from tieredstore.local.index_service import hashes_of_messages, key_texts

TOPICS = st.sampled_from(["TopicTest", "T", "%a b", "\x02"])
TEXTS = st.none() | st.text(" ab#%é\U0001f600\x01", max_size=6)
ONE_TOPIC = st.builds(
    lambda topic, rows: [(topic, unique, keys) for unique, keys in rows],
    TOPICS,
    st.lists(st.tuples(TEXTS, TEXTS), max_size=20)
    | st.lists(st.tuples(st.none() | st.just("u"), st.sampled_from(["a b", "c"])), max_size=20),
)
ROWS = ONE_TOPIC | st.lists(st.tuples(TOPICS, TEXTS, TEXTS), max_size=20)


@given(ROWS)
def test_many_messages_have_the_hashes_of_the_keys_of_each(
    rows: list[tuple[str, str | None, str | None]],
) -> None:
    each = [
        key_texts(topic, unique_key=unique or None, keys=split_keys(keys))
        for topic, unique, keys in rows
    ]
    hashes, counts = hashes_of_messages(
        [row[0] for row in rows], [row[1] or None for row in rows], [row[2] for row in rows]
    )
    assert hashes.tolist() == [local_key_hash(text) for more in each for text in more]
    assert counts.tolist() == [len(more) for more in each]


def test_keys_longer_than_one_group_are_hashed_in_parts() -> None:
    keys = [f"{'k' * 3_000} {number}" for number in range(40)]
    hashes, counts = hashes_of_messages(["T"] * 40, [None] * 40, keys)
    assert hashes.tolist() == [
        local_key_hash(f"T#{key}") for text in keys for key in split_keys(text)
    ]
    assert counts.tolist() == [2] * 40
