"""An index file against a slow one: Java's putKey word by word, and plain scans."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from tests.local.keys.index_kit import T0, candidates, columns_of, java, new_file
from tieredstore.codec.java import local_key_hash
from tieredstore.codec.local_index import (
    ITEM_BYTES,
    LocalIndexHeader,
    encode_header,
    encode_slot,
    file_bytes,
    item_position,
    seconds_after_begin,
)

KEYS = st.sampled_from(["T#Aa", "T#BB", "T#a", "T#b", "T#标签", "polygenelubricants", "T#", "#"])
TIMES = st.integers(T0 - 3_000, T0 + 9_000)
ITEMS = st.lists(st.tuples(KEYS, st.integers(0, 2**62), TIMES), max_size=90)


@given(puts=ITEMS, sizes=st.lists(st.integers(1, 60), min_size=1), end=st.sampled_from([0, T0]))
@example(puts=[("T#a", 1, 0)] * 60, sizes=[60], end=0)
@example(puts=[("T#a", 1, -5)] * 60, sizes=[60], end=0)
def test_a_batch_gives_the_bytes_of_single_puts(
    puts: list[tuple[str, int, int]], sizes: list[int], end: int
) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as many:
        singly = new_file(Path(one), slots=5, items=70, end=(end, 7))
        batched = new_file(Path(many), slots=5, items=70, end=(end, 7))
        taken = sum(singly.put(columns_of([put])) for put in puts)
        start = 0
        for size in sizes * 90:
            start += batched.put(columns_of(puts[start : start + size]))
        assert start == taken == min(len(puts), 69)
        assert batched.path.read_bytes() == singly.path.read_bytes() == slow_bytes(puts, end)
        assert batched.header == singly.header


def slow_bytes(puts: list[tuple[str, int, int]], end: int, *, slots: int = 5) -> bytes:
    """Java's putKey, word by word."""
    data = bytearray(file_bytes(slot_count=slots, item_capacity=70))
    header = LocalIndexHeader(
        begin_timestamp=end, end_timestamp=end, begin_log_offset=7, end_log_offset=7
    )
    for text, log_offset, timestamp in puts[:69]:
        key_hash, item = local_key_hash(text), header.next_item
        at = 40 + 4 * (key_hash % slots)
        head = int.from_bytes(data[at : at + 4])
        seconds = seconds_after_begin(timestamp, begin_timestamp=header.begin_timestamp)
        start = item_position(item, slot_count=slots)
        data[start : start + ITEM_BYTES] = struct.pack(">iqii", key_hash, log_offset, seconds, head)
        data[at : at + 4] = encode_slot(item)
        if item == 1:
            header = header._replace(begin_timestamp=timestamp, begin_log_offset=log_offset)
        header = header._replace(
            used_slot_count=header.used_slot_count + (head == 0),
            next_item=item + 1,
            end_timestamp=timestamp,
            end_log_offset=log_offset,
        )
    data[:40] = encode_header(header)
    return bytes(data)


@given(
    puts=st.lists(st.tuples(KEYS, st.integers(0, 9_000)), max_size=60),
    begin=TIMES,
    span=st.integers(-1, 9_000),
    text=KEYS,
)
def test_candidates_are_what_a_scan_finds_and_little_more(
    puts: list[tuple[str, int]], begin: int, span: int, text: str
) -> None:
    with tempfile.TemporaryDirectory() as root:
        file = new_file(Path(root), slots=5, items=70)
        rows = [(key, 10 * number, T0 + after) for number, (key, after) in enumerate(puts)]
        if rows:
            file.put(columns_of(rows))
        found = candidates(file, text, begin, begin + span)
        key_hash = local_key_hash(text)
        same = [row for row in rows if local_key_hash(row[0]) == key_hash]
        exact = {row[1] for row in same if begin <= row[2] <= begin + span}
        assert found == sorted(found, reverse=True)
        assert exact <= set(found) <= {row[1] for row in same}
        if not rows or not file.may_hold(begin, begin + span):
            assert not exact


@given(
    gaps=st.lists(st.tuples(KEYS, st.integers(0, 900)), max_size=60),
    begin=TIMES,
    span=st.integers(-1, 9_000),
    text=KEYS,
    top=st.integers(-1, 9),
)
def test_javas_answers_are_a_scan_over_whole_seconds(
    gaps: list[tuple[str, int]], begin: int, span: int, text: str, top: int
) -> None:
    """Where times only rise; elsewhere Java stops early."""
    with tempfile.TemporaryDirectory() as root:
        file = new_file(Path(root), slots=5, items=70)
        rows, now = [], T0
        for number, (key, gap) in enumerate(gaps):
            now += gap
            rows.append((key, 10 * number, now))
        if rows:
            file.put(columns_of(rows))
        first = rows[0][2] if rows else 0
        scan = [
            row[1]
            for row in reversed(rows)
            if local_key_hash(row[0]) == local_key_hash(text)
            and begin <= first + (row[2] - first) // 1000 * 1000 <= begin + span
        ]
        assert java(file, text, begin, begin + span, top) == scan[: max(0, top)]
