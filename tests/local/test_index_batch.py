"""The texts that are hashed for many messages, beside those of one message after the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tieredstore.codec.properties import split_keys
from tieredstore.local.index_batch import key_texts, texts_of_messages

TOPICS = st.sampled_from(["TopicTest", "T", "%a b", "\x02"])
TEXTS = st.none() | st.text(" ab#%é\U0001f600\x01", max_size=6)
ONE_TOPIC = st.builds(
    lambda topic, rows: [(topic, unique, keys) for unique, keys in rows],
    TOPICS,
    st.lists(st.tuples(TEXTS, TEXTS), max_size=5)
    | st.lists(st.tuples(st.none() | st.just("u"), st.sampled_from(["a b", "c"])), max_size=5),
)
ROWS = ONE_TOPIC | st.lists(st.tuples(TOPICS, TEXTS, TEXTS), max_size=5)


@given(ROWS)
def test_many_messages_have_the_texts_of_each(
    rows: list[tuple[str, str | None, str | None]],
) -> None:
    each = [
        key_texts(topic, unique_key=unique, keys=split_keys(keys)) for topic, unique, keys in rows
    ]
    texts, counts = texts_of_messages(
        [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    )
    assert texts == [text for more in each for text in more]
    assert counts == [len(more) for more in each]


def test_a_topic_with_a_space_keeps_it() -> None:
    texts, counts = texts_of_messages(["a b"] * 2, [None] * 2, ["x y", "z"])
    assert (texts, counts) == (["a b#x", "a b#y", "a b#z"], [2, 1])
