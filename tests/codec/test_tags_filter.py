"""Tag expressions of consumers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.store_audit import opened
from tieredstore.codec.message import decode_message
from tieredstore.codec.record import tags_code
from tieredstore.codec.tags_filter import TagsFilter
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import InvalidArgumentError
from tieredstore.model.values import GetStatus
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import TOPIC, a_message

WIDE = "\u3000\xa0A\x85"
SENT = ["A", "B", None, "Aa", "BB", "A || B", "*", "ü", WIDE]  # "Aa" and "BB" have the same hash


def found(store: MessageStore, expression: str) -> list[str | None]:
    page = store.get_message(TOPIC, 0, 0, message_filter=TagsFilter(expression))
    assert (page.status is GetStatus.FOUND) == bool(page.messages)
    assert page.next_offset == len(SENT)
    return [decode_message(one.record).properties.get("TAGS") for one in page.messages]


@pytest.fixture(params=["local", "list"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MessageStore:
    """One store that selects many messages at once by their codes, and one that asks the filter."""
    store: MessageStore = (
        opened(tmp_path) if request.param == "local" else ListMessageStore.opened(Runtime.inline())
    )
    for number, tag in enumerate(SENT):
        store.put_message(a_message(number, properties={} if tag is None else {"TAGS": tag}))
    return store


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("*", SENT),
        ("", SENT),
        (" * ", SENT),
        ("A", ["A"]),
        ("A||B", ["A", "B"]),
        (" A || B ||", ["A", "B"]),
        ("Aa", ["Aa"]),
        ("ü || nobody", ["ü"]),
        ("\t\u3000\xa0A\x85 || nobody", [WIDE]),  # trimmed as in Java
        ("\0\x1fA\n", ["A"]),
        ("nobody", []),
        ("A || *", ["A", "*"]),
    ],
)
def test_messages_with_one_of_the_tags_are_taken(
    store: MessageStore, expression: str, wanted: list[str | None]
) -> None:
    assert tags_code("Aa") == tags_code("BB")
    assert found(store, expression) == wanted


@pytest.mark.parametrize("expression", ["||", " || || ", None, b"A"])
def test_an_expression_without_a_tag_is_refused(expression: str) -> None:
    with pytest.raises(InvalidArgumentError, match="tags"):
        TagsFilter(expression)


def test_what_is_no_hash_is_left_to_the_record() -> None:
    one = TagsFilter("A")
    assert one.matches_tags_code(-(2**31) - 1)
    assert one.matches_tags_code(tags_code("A"))
    assert one.matches_tags_code(tags_code("A") + (1 << 32))
    assert not one.matches_tags_code(tags_code("B"))
    assert not one.matches_tags_code(0)
