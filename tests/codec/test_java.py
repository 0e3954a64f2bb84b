"""Java's hashes, slots, division and text, against Java's vectors and simple models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.encoders import tiered_key_hash, tiered_key_hashes, tiered_masked_hash, tiered_slot
from tests.codec.golden_files import expected
from tests.codec.values import ANY_TEXT, INT32, PLAIN_TEXT
from tieredstore.codec import java

VECTORS: list[dict[str, Any]] = expected("hash-vectors.json")["hashes"]
TEXTS: list[str] = [row["text"] for row in VECTORS]


def plain_hash(text: str) -> int:
    """The hash by its definition: one unit after the other."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + 256 * high + low) % 2**32
    return value - 2**32 if value >= 2**31 else value


@pytest.mark.parametrize("row", VECTORS, ids=lambda row: ascii(row["text"])[:30])
def test_every_golden_vector_is_reproduced(row: dict[str, Any]) -> None:
    text = row["text"]
    assert len(text.encode("utf-16-le", "surrogatepass")) // 2 == row["length"]
    assert java.string_hash(text) == row["hashCode"]
    assert java.local_key_hash(text) == row["localIndexHash"]
    assert java.local_slot(row["localIndexHash"], 5_000_000) == row["localSlotOf5000000"]
    assert tiered_key_hash(text) == row["tieredIndexHash"]
    for slot_count in (5_000_000, 64, 97):
        slot = tiered_slot(row["tieredIndexHash"], slot_count)
        assert slot == row[f"tieredSlotOf{slot_count}"]


def test_golden_vectors_are_reproduced_all_at_once() -> None:
    assert java.string_hashes(TEXTS).tolist() == [row["hashCode"] for row in VECTORS]
    assert java.local_key_hashes(TEXTS).tolist() == [row["localIndexHash"] for row in VECTORS]
    assert tiered_key_hashes(TEXTS).tolist() == [row["tieredIndexHash"] for row in VECTORS]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("TopicTest#k1", 2746024),
        ("polygenelubricants", -(2**31)),
        ("标签", 857175),
        ("😀", 1772899),
        ("topic#键😀", 425301437),
        ("TopicTest#MessageKey", 638347386),
        ("TopicTest#k0", 2746023),
        ("主题#键", 634204136),
        ("T#😀", 4308978),
        ("TopicTest#neg4", -1655895642),
        ("TagA", 2598919),
        ("Tag1", 2598903),
    ],
)
def test_the_vectors_of_the_format_notes_are_reproduced(text: str, value: int) -> None:
    assert java.string_hash(text) == value


@given(ANY_TEXT)
def test_one_hash_is_the_plain_loop(text: str) -> None:
    assert java.string_hash(text) == plain_hash(text)


@given(st.lists(ANY_TEXT, max_size=60))
def test_many_hashes_are_the_single_ones(texts: list[str]) -> None:
    hashes = java.string_hashes(texts)
    assert hashes.dtype == np.int32
    assert hashes.tolist() == [java.string_hash(text) for text in texts]
    assert java.local_key_hashes(texts).tolist() == [java.local_key_hash(t) for t in texts]
    assert tiered_key_hashes(texts).tolist() == [tiered_key_hash(t) for t in texts]


def test_halves_of_a_pair_in_neighbouring_texts_stay_apart() -> None:
    texts = ["a\ud83d", "\ude00b", "", "\ud83d\ude00", "😀", ""] * 3
    assert java.string_hashes(texts).tolist() == [plain_hash(text) for text in texts]
    assert java.string_hash("\ud83d\ude00") == java.string_hash("😀")


@pytest.mark.parametrize("length", [255, 256, 257, 1000, 32767, 32768, 32769, 70001])
@pytest.mark.parametrize("letter", ["k", "键", "😀"])
def test_long_texts_are_hashed_piece_by_piece(length: int, letter: str) -> None:
    long = (letter + "x") * (length // 2)
    texts = ["", "a", long, "", "b" * 40, long, "", "c", "😀", ""]
    known = {text: plain_hash(text) for text in set(texts)}
    assert java.string_hash(long) == known[long]
    assert java.string_hashes(texts).tolist() == [known[text] for text in texts]


def test_ten_thousand_keys_need_several_groups() -> None:
    texts = [f"topic-{number % 7}#order-{number * 7919}" for number in range(10_000)]
    assert java.string_hashes(texts).tolist() == [plain_hash(text) for text in texts]
    assert java.string_hashes(texts[:0]).tolist() == []
    assert java.string_hashes([""] * 20).tolist() == [0] * 20


def test_a_negative_hash_is_looked_up_in_both_ways() -> None:
    assert tiered_key_hash("TopicTest#neg4") == 1655895642
    assert tiered_masked_hash("TopicTest#neg4") == 491588006
    assert java.tiered_probes("TopicTest#neg4", 97) == (
        (1655895642, 1655895642 % 97),
        (491588006, 491588006 % 97),
    )
    assert java.tiered_probes("TopicTest#k0", 97) == ((2746023, 50),)


def test_the_smallest_hash_never_leaves_the_slots() -> None:
    smallest = -(2**31)
    assert tiered_slot(smallest, 97) == -66
    assert java.tiered_place(smallest, 97) == (0, 0)
    assert java.tiered_place(smallest, 64) == (smallest, 0)
    assert java.tiered_probes("polygenelubricants", 97) == ((0, 0),)
    assert java.tiered_probes("polygenelubricants", 64) == ((smallest, 0), (0, 0))


@given(ANY_TEXT, st.integers(1, 5_000_000))
def test_a_reader_looks_where_the_writer_wrote(text: str, slot_count: int) -> None:
    key_hash, slot = java.tiered_place(tiered_key_hash(text), slot_count)
    assert 0 <= slot < slot_count
    assert java.tiered_probes(text, slot_count)[0] == (key_hash, slot)


@given(st.lists(INT32), st.integers(1, 5_000_000))
def test_many_places_are_the_single_ones(key_hashes: list[int], slot_count: int) -> None:
    placed, slots = java.tiered_places(np.array(key_hashes, np.int32), slot_count)
    single = [java.tiered_place(key_hash, slot_count) for key_hash in key_hashes]
    assert list(zip(placed.tolist(), slots.tolist(), strict=True)) == single


def test_index_keys_join_topic_and_key() -> None:
    assert java.index_key("主题", "键") == "主题#键"


@pytest.mark.parametrize(
    ("dividend", "divisor", "quotient", "remainder"),
    [(7, 2, 3, 1), (-7, 2, -3, -1), (7, -2, -3, 1), (-7, -2, 3, -1), (-999, 1000, 0, -999)],
)
def test_division_truncates_toward_zero(
    dividend: int, divisor: int, quotient: int, remainder: int
) -> None:
    assert java.java_divide(dividend, divisor) == quotient
    assert java.java_remainder(dividend, divisor) == remainder


@given(st.integers())
def test_casts_keep_the_low_bits(value: int) -> None:
    assert java.wrap_int32(value) == int.from_bytes((value % 2**32).to_bytes(4), signed=True)


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("\ud83d", "3f"),
        ("x\ude00", "783f"),
        ("\ud83d\ude00", "f09f9880"),
        ("a\ude00\ud83db", "613f3f62"),
        ("\ud83d\ud83d\ude00", "3ff09f9880"),
    ],
)
def test_lone_surrogates_are_written_as_question_marks(text: str, data: str) -> None:
    assert java.encode_utf8(text).hex() == data


# What `new String(bytes, UTF_8)` of Java 17 makes of damaged bytes.
DECODED_BY_JAVA = [
    ("eda080", "\ufffd"),
    ("eda0", "\ufffd"),
    ("eda041", "\ufffdA"),
    ("eda080edb080", "\ufffd\ufffd"),
    ("ed9fbf", "\ud7ff"),
    ("e080", "\ufffd\ufffd"),
    ("e141", "\ufffdA"),
    ("f0808080", "\ufffd\ufffd\ufffd\ufffd"),
    ("f09f98", "\ufffd"),
    ("f09f9841", "\ufffdA"),
    ("f5808080", "\ufffd\ufffd\ufffd\ufffd"),
    ("c180", "\ufffd\ufffd"),
    ("80ff41", "\ufffd\ufffdA"),
]


@pytest.mark.parametrize(("data", "text"), DECODED_BY_JAVA)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_malformed_text_is_read_as_java_reads_it(
    data: str, text: str, kind: type[bytes | bytearray | memoryview]
) -> None:
    assert java.decode_utf8(kind(bytes.fromhex(data))) == text


@given(PLAIN_TEXT)
def test_text_round_trips(text: str) -> None:
    assert java.decode_utf8(java.encode_utf8(text)) == text


@given(st.binary())
def test_any_bytes_are_some_text(data: bytes) -> None:
    java.decode_utf8(data)
