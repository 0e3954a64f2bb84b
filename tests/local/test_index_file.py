"""One index file: batches beside single puts, searches beside a scan, damage, and key hashes.

Only the imitation of Java's answer takes damage for the end of a chain.
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.codec.test_local_index import PRINTED, ROLLED
from tests.local.index_kit import (
    FOREVER,
    NAME,
    PUTS,
    T0,
    candidates,
    columns_of,
    java,
    new_file,
    rolled_file,
)
from tieredstore.codec import chains
from tieredstore.codec.java import local_key_hash
from tieredstore.codec.local_index import (
    ITEM_BYTES,
    ITEM_DTYPE,
    LocalIndexHeader,
    decode_item,
    encode_header,
    encode_slot,
    file_bytes,
    item_position,
    seconds_after_begin,
)
from tieredstore.codec.record import split_keys
from tieredstore.local.index_file import CLOCK_SLACK_MS, IndexFile, IndexSize
from tieredstore.local.index_service import hashes_of_messages, key_texts
from tieredstore.model.errors import SegmentCorruptError, SegmentNotFoundError, StoreClosedError


@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_printed_file_comes_out_of_its_puts(tmp_path: Path, size: int) -> None:
    file = new_file(tmp_path)
    for start in range(0, len(PUTS), size):
        file.put(columns_of(PUTS[start : start + size]))
    assert file.path.read_bytes().hex() == PRINTED
    assert file.is_full
    assert file.put(columns_of([("T#a", 800, T0)])) == 0
    assert file.path.read_bytes().hex() == PRINTED


def test_the_printed_rolled_file_comes_out_of_its_puts(tmp_path: Path) -> None:
    assert rolled_file(tmp_path).path.read_bytes().hex() == ROLLED


def test_numpy_makes_the_printed_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "VECTOR_ITEMS_MIN", 1)
    file = new_file(tmp_path)
    file.put(columns_of(PUTS))
    assert file.path.read_bytes().hex() == PRINTED
    file.delete()
    assert rolled_file(tmp_path).path.read_bytes().hex() == ROLLED


def test_the_printed_searches_are_answered(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    file.put(columns_of(PUTS))
    assert java(file, "T#a") == [600, 300, 100]
    assert java(file, "T#a", T0, T0 + 2000) == [300, 100]
    assert java(file, "T#a", T0 + 2001, T0 + 999_000) == [600]
    assert java(file, "T#a", T0 + 999_001) == []  # although it was stored at T0 + 999_999
    assert candidates(file, "T#a", T0 + 999_001) == [600]


def test_java_misses_the_first_key_of_a_rolled_file_and_candidates_do_not(tmp_path: Path) -> None:
    file = rolled_file(tmp_path)
    begin = T0 + 1_005_000
    assert java(file, "T#a", begin, begin + 1000) == [1000]
    assert candidates(file, "T#a", begin, begin + 1000) == [1000, 900]


def test_a_query_from_the_exact_time_misses_what_was_stored_within_the_second(
    tmp_path: Path,
) -> None:
    file = new_file(tmp_path)
    file.put(columns_of([("T#a", 0, T0), ("T#b", 1, T0 + 1999)]))
    assert java(file, "T#b", T0 + 1999, T0 + 1999) == []
    assert java(file, "T#b", T0 + 1999 - 1000, T0 + 1999) == [1]
    assert candidates(file, "T#b", T0 + 1999, T0 + 1999) == [1]


def test_a_batch_that_does_not_fit_is_taken_in_part(tmp_path: Path) -> None:
    file = new_file(tmp_path, items=5)
    assert file.put(columns_of(PUTS[:6])) == 4
    assert file.header.end_log_offset == 400
    assert java(file, "T#a") == [300, 100]


def test_the_header_holds_first_and_last_put_not_least_and_greatest(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    file.put(columns_of([("T#a", 1, T0), ("T#a", 2, T0 + 9000), ("T#b", 3, T0 - 10)]))
    assert file.header[:4] == (T0, T0 - 10, 1, 3)
    assert file.path.read_bytes()[:40] == encode_header(file.header)


def test_a_rolled_file_inherits_the_end_until_its_first_key(tmp_path: Path) -> None:
    file = new_file(tmp_path, end=(T0, 700))
    assert file.header == (T0, T0, 700, 700, 0, 1)
    assert file.path.read_bytes()[:40] == encode_header(file.header)
    file.put(columns_of([("T#a", 900, T0 + 5)]))
    assert file.header == (T0 + 5, T0 + 5, 900, 900, 1, 2)


def test_times_are_seconds_after_the_begin_never_below_zero_nor_above_int32(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    far = T0 + 1000 * (2**31 + 5)
    file.put(columns_of([("T#a", 1, T0), ("T#a", 2, T0 - 1), ("T#a", 3, far)]))
    data = file.path.read_bytes()
    seconds = [decode_item(data, file.size.position(i)).seconds for i in (1, 2, 3)]
    assert seconds == [0, 0, 2**31 - 1]
    assert candidates(file, "T#a", T0 - 1, T0 - 1) == [2]
    assert candidates(file, "T#a", far, far) == [3]


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    assert java(file, "T#a") == candidates(file, "T#a") == []
    file.put(columns_of(PUTS))
    for top in (0, -1, -(2**63)):
        assert java(file, "T#a", top=top) == []
    assert java(file, "T#a", top=2**63 - 1) == [600, 300, 100]
    assert java(file, "T#a", T0 + 5000, T0) == []
    assert candidates(file, "T#a", T0 + 5_000_000, T0) == []


def test_a_file_that_touches_the_asked_times_may_hold_an_answer(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    file.put(columns_of([("T#a", 1, 1000), ("T#a", 2, 2000)]))
    for begin in range(997, 2004):
        for end in (999, 1000, 1500, 2000, 2001):
            want = begin <= end and begin <= 2000 and end >= 1000
            if begin <= end:
                assert file.may_hold(begin, end) or not want


def test_a_clock_set_back_within_the_slack_hides_nothing(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    back = T0 + 50_000
    file.put(columns_of([("T#a", 1, T0), ("T#a", 2, T0 + CLOCK_SLACK_MS), ("T#a", 3, back)]))
    assert 2 in candidates(file, "T#a", T0 + CLOCK_SLACK_MS, T0 + CLOCK_SLACK_MS)
    assert file.may_hold(T0 + CLOCK_SLACK_MS, T0 + CLOCK_SLACK_MS)


def test_a_new_file_takes_almost_no_disk_and_never_replaces_another(tmp_path: Path) -> None:
    file = new_file(tmp_path, slots=5_000_000, items=20_000_000)
    status = file.path.stat()
    assert status.st_size == 420_000_040
    assert status.st_blocks * 512 < 100_000
    with pytest.raises(FileExistsError):
        new_file(tmp_path)
    assert file.path.exists()


def test_a_search_under_way_outlives_the_file(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    file.put(columns_of(PUTS))
    walk = file.candidates(local_key_hash("T#a"), begin=0, end=FOREVER)
    assert next(walk) == 600
    file.flush()
    file.delete()
    file.delete()
    file.flush()
    assert list(walk) == [300, 100]
    assert not file.path.exists()
    assert candidates(file, "T#a") == []
    with pytest.raises(StoreClosedError):
        file.log_offset_at(1)


def test_both_ways_of_linking_are_in_use() -> None:
    assert 2 < chains.VECTOR_ITEMS_MIN < 60


KEYS = st.sampled_from(["T#Aa", "T#BB", "T#a", "T#b", "T#标签", "polygenelubricants", "T#", "#"])
TIMES = st.integers(T0 - 3_000, T0 + 9_000)
ITEMS = st.lists(st.tuples(KEYS, st.integers(0, 2**62), TIMES), max_size=90)


@given(
    puts=ITEMS,
    sizes=st.lists(st.integers(1, 60), min_size=1),
    end=st.sampled_from([0, T0]),
    slots=st.sampled_from([5, 5_000]),
)
@example(puts=[("T#a", 1, 0)] * 60, sizes=[60], end=0, slots=5)
@example(puts=[("T#a", 1, -5)] * 60, sizes=[60], end=0, slots=5_000)
@example(puts=[(f"T#{at % 40}", 1, at) for at in range(60)], sizes=[20], end=0, slots=5_000)
def test_a_batch_gives_the_bytes_of_single_puts(
    puts: list[tuple[str, int, int]], sizes: list[int], end: int, slots: int
) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as many:
        singly = new_file(Path(one), slots=slots, items=70, end=(end, 7))
        batched = new_file(Path(many), slots=slots, items=70, end=(end, 7))
        taken = sum(singly.put(columns_of([put])) for put in puts)
        start = 0
        for size in sizes * 90:
            start += batched.put(columns_of(puts[start : start + size]))
        assert start == taken == min(len(puts), 69)
        wanted = slow_bytes(puts, end, slots=slots)
        assert batched.path.read_bytes() == singly.path.read_bytes() == wanted
        assert batched.header == singly.header


def slow_bytes(puts: list[tuple[str, int, int]], end: int, *, slots: int = 5) -> bytes:
    """A literal copy of Java's putKey."""
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
    """Only where times rise: elsewhere Java stops early."""
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


SIZE = IndexSize(10, 8)


@pytest.mark.parametrize("first", [-1, 0, 1, 3, 7, 8, 9, 2**31 - 1])
@pytest.mark.parametrize("link", [-(2**31), -1, 0, 1, 2, 3, 4, 7, 8, 2**31 - 1])
def test_a_damaged_link_ends_the_walk_inside_the_file(
    tmp_path: Path, first: int, link: int
) -> None:
    file = new_file(tmp_path)
    file.put(columns_of([("T#a", number, T0) for number in range(1, 8)]))
    file.close()
    data = bytearray(file.path.read_bytes())
    slot = local_key_hash("T#a") % 10
    data[40 + 4 * slot : 44 + 4 * slot] = encode_slot(first)
    for item in (3, 7):
        at = item_position(item, slot_count=10) + 16
        data[at : at + 4] = encode_slot(link)
    file.path.write_bytes(data)
    again = IndexFile.open(file.path, SIZE)
    assert len(java(again, "T#a")) <= 7
    # An item that links to itself is sound: Java may leave one after a crash.
    is_sound = 0 <= first <= 7 and (first < 3 or 0 <= link <= 3 or link == first)
    if is_sound:
        assert len(candidates(again, "T#a")) <= 7
    else:
        with pytest.raises(SegmentCorruptError):
            candidates(again, "T#a")
    assert set(java(again, "T#a")) <= set(range(1, 8))


def test_an_item_with_a_negative_time_is_damage(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    file.put(columns_of([("T#a", 1, T0), ("T#a", 2, T0), ("T#a", 3, T0)]))
    file.close()
    data = bytearray(file.path.read_bytes())
    at = item_position(2, slot_count=10) + ITEM_DTYPE.fields["seconds"][1]  # type: ignore[index]
    data[at : at + 4] = encode_slot(-1)
    file.path.write_bytes(data)
    again = IndexFile.open(file.path, SIZE)
    assert java(again, "T#a") == [3]
    with pytest.raises(SegmentCorruptError, match="item 2 says something impossible"):
        candidates(again, "T#a")


@pytest.mark.parametrize("size", [0, 1, 39, 40, 239, 241])
def test_a_file_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / NAME
    path.write_bytes(bytes(size))
    with pytest.raises(SegmentCorruptError) as caught:
        IndexFile.open(path, SIZE)
    assert caught.value.path == str(path)


def test_a_file_that_is_not_there_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(SegmentNotFoundError):
        IndexFile.open(tmp_path / NAME, SIZE)


@pytest.mark.parametrize(("used", "following"), [(-1, 3), (11, 3), (1, 9), (1, 2**31 - 1)])
def test_counts_that_cannot_be_right_are_refused(tmp_path: Path, used: int, following: int) -> None:
    path = tmp_path / NAME
    header = LocalIndexHeader(used_slot_count=used, next_item=following)
    path.write_bytes(encode_header(header) + bytes(200))
    with pytest.raises(SegmentCorruptError):
        IndexFile.open(path, SIZE)


@pytest.mark.parametrize("following", [0, -1, -(2**31)])
def test_a_next_item_below_one_is_read_as_one(tmp_path: Path, following: int) -> None:
    path = tmp_path / NAME
    path.write_bytes(encode_header(LocalIndexHeader(next_item=following)) + bytes(200))
    file = IndexFile.open(path, SIZE)
    assert file.put(columns_of(PUTS)) == 7
    assert path.read_bytes().hex() == PRINTED


@pytest.mark.parametrize("value", [-(2**31), -1, 0, 8, 50, 2**31 - 1])
@pytest.mark.parametrize("vector_items_min", [1, 1_000])
def test_a_slot_that_names_no_item_is_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: int, vector_items_min: int
) -> None:
    monkeypatch.setattr(chains, "VECTOR_ITEMS_MIN", vector_items_min)
    path = tmp_path / NAME
    path.write_bytes(encode_header(LocalIndexHeader()) + encode_slot(value) * 10 + bytes(160))
    file = IndexFile.open(path, SIZE)
    file.put(columns_of(PUTS))
    items = slice(item_position(1, slot_count=10), None)
    assert path.read_bytes()[items].hex() == PRINTED[2 * items.start :]
    assert path.read_bytes()[:40].hex() == PRINTED[:80]


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
