"""The 64-bit hash of a key: for one text and many, with Java's hash inside, and few collisions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.encoders import tiered_key_hashes
from tests.codec.golden_files import expected
from tieredstore.codec.java import (
    INT32_MIN,
    string_hashes,
    tiered_place,
    tiered_places,
)
from tieredstore.codec.key_hashes import item_places, key_hash, key_hashes, mixed, span_hashes

texts = st.text(st.characters(codec=None), max_size=40)


@given(st.lists(texts, max_size=60), st.sampled_from(["", "Topic#", "主题😀#"]))
def test_many_texts_have_the_hashes_of_each(found: list[str], prefix: str) -> None:
    hashes = key_hashes(found, prefix=prefix)
    assert hashes.tolist() == [key_hash(prefix + text) for text in found]


@given(st.lists(texts, max_size=60))
def test_the_lower_half_is_javas_hash(found: list[str]) -> None:
    lower = key_hashes(found).astype(np.uint32).view(np.int32)
    assert lower.tolist() == string_hashes(found).tolist()


@pytest.mark.parametrize("count", [7, 8, 1023, 1024, 1025, 3000])
@pytest.mark.parametrize("length", [1, 25, 400, 40_000])
def test_groups_of_every_size_agree(count: int, length: int) -> None:
    many = [f"{number}".ljust(length if number % 500 == 3 else 9, "x") for number in range(count)]
    assert key_hashes(many).tolist()[::97] == [key_hash(text) for text in many[::97]]


@given(st.lists(st.text(st.characters(codec="ascii"), max_size=40), max_size=60))
def test_texts_that_lie_anywhere_have_the_same_hashes(found: list[str]) -> None:
    found.append("x" * 70_000)
    ends = np.cumsum([len(text) for text in found])
    starts = ends - [len(text) for text in found]
    data = "".join(found).encode()
    wanted = [key_hash(text) for text in found]
    assert span_hashes(data, starts, ends).tolist() == wanted
    short = span_hashes(data, starts, ends, np.uint32)
    assert short.dtype == np.uint32
    assert short.tolist() == [value & 0xFFFF_FFFF for value in wanted]


def test_texts_that_java_hashes_alike_differ_here() -> None:
    alike = [
        "".join(("Aa", "BB")[number >> bit & 1] for bit in range(10)) for number in range(1024)
    ]
    assert len(set(string_hashes(alike).tolist())) == 1
    assert len(set(key_hashes(alike, prefix="T#").tolist())) == 1024
    assert len(set(mixed(key_hashes(alike, prefix="T#")).tolist())) == 1024


@pytest.mark.parametrize("slots", [1, 5, 64, 97, 5_000_000])
def test_items_get_javas_hash_and_slot(slots: int) -> None:
    rows = expected("hash-vectors.json")["hashes"]
    found = [row["text"] for row in rows]
    hashes, places = item_places(key_hashes(found), slots)
    wanted_hashes, wanted_slots = tiered_places(tiered_key_hashes(found), slots)
    assert hashes.tolist() == wanted_hashes.tolist()
    assert places.tolist() == wanted_slots.tolist()


@pytest.mark.parametrize("slots", [4, 5])
def test_the_smallest_hash_lies_where_it_can_be_found(slots: int) -> None:
    value = np.array([1 << 63 | 1 << 31], np.uint64)
    hashes, places = item_places(value, slots)
    assert (int(hashes[0]), int(places[0])) == tiered_place(INT32_MIN, slots)
