"""Uploaded files: what is found in them, and how many reads of the backend a look-up takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.encoders import encode_compacted_item, encode_compacted_slot, tiered_masked_hash
from tests.index.index_kit import (
    BEGIN,
    BEGINS,
    SLOTS,
    UPLOADED,
    Bytes,
    Row,
    check_javas_answers,
    cold,
    columns_of,
    create,
    place,
    scan,
    uploaded,
    warm,
)
from tests.index.store_kit import ALL, INDEX_PATH, Shop
from tieredstore.codec.java import tiered_probes
from tieredstore.codec.tiered_index import (
    BEGIN_MAGIC,
    END_MAGIC,
    CompactedItem,
    TieredIndexHeader,
    decode_header,
    encode_header,
    slot_position,
)
from tieredstore.index.compaction import fences_of_table
from tieredstore.index.footer import DamagedItemsError, NearFooter, decode_tail
from tieredstore.index.footer_cache import FooterCache, Origin
from tieredstore.index.keys import Match, TimeRange
from tieredstore.index.uploaded import ASKED_OFTEN, UploadedFile, first_row_below
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import INT64_MAX, SegmentRecord, SegmentType
from tieredstore.testing.samples import TOPIC

FOREVER = {"begin": -INT64_MAX, "end": INT64_MAX}
row_lists = st.lists(
    st.builds(
        Row,
        text=st.sampled_from(["T#a", "T#b", "T#Aa", "T#BB", "T#neg4", "TopicTest#neg4", "U#a"]),
        topic_id=st.integers(0, 2),
        queue_id=st.integers(0, 1),
        log_offset=st.integers(0, 1 << 40),
        message_bytes=st.integers(1, 500),
        store_timestamp=st.integers(BEGIN - 5000, BEGIN + 9000),
    ),
    min_size=1,
    max_size=120,
)
windows = st.tuples(st.integers(BEGIN - 6000, BEGIN + 10_000), st.integers(0, 9000))


def same_messages(found: Sequence[Match], rows: Sequence[Row], text: str, **when: int) -> None:
    """Every hit of a scan is there; others are allowed only for equal hashes or near times."""
    wanted = scan(rows, text, begin=when["begin"], end=when["end"])
    places = [place(item) for item in found]
    rest = iter(places)
    assert all(row in rest for row in wanted)
    alike = {"T#Aa", "T#BB"} if text in {"T#Aa", "T#BB"} else {text}
    near = {
        (row.topic_id, row.queue_id, row.log_offset)
        for row in rows
        if row.text in alike and when["begin"] - 1998 <= row.store_timestamp <= when["end"] + 1998
    }
    assert set(places) <= near


@given(row_lists, windows, st.sampled_from([1, 2, 7, 97]))
def test_every_state_of_a_file_answers_like_a_scan(
    rows: list[Row], window: tuple[int, int], slots: int
) -> None:
    when = {"begin": window[0], "end": window[0] + window[1]}
    with TemporaryDirectory() as folder:
        file = create(Path(folder), slots=slots)
        file.put(columns_of(rows))
        data, java = uploaded(file), uploaded(file, footer=False)
        assert data.startswith(java)
        assert (len(data) - slot_position(slots)) % 28 == 0
        states = [file, warm(data)[0], cold(data, slots)[0], cold(java, slots)[0]]
        for text in {row.text for row in rows} | {"T#absent"}:
            first = file.find(text, **when, count_max=1000)
            same_messages(first, rows, text, **when)
            for state in states:
                assert state.find(text, **when, count_max=1000) == first
                assert state.find(text, **when, count_max=2) == first[:2]
        file.delete()


@pytest.fixture(scope="module")
def many_rows() -> list[Row]:
    random = np.random.default_rng(5)
    rows = [
        Row(f"T#k{random.integers(0, 9000)}", 1, 2, number * 100, 9, BEGIN + number * 7)
        for number in range(30_000)
    ]
    return [
        row._replace(text="T#hot") if number % 5 == 0 else row for number, row in enumerate(rows)
    ]


@pytest.fixture(scope="module")
def data(many_rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = create(tmp_path_factory.mktemp("index"), slots=5003, items=40_000)
    file.put(columns_of(many_rows))
    return uploaded(file)


def test_a_warm_lookup_is_one_read_of_16_kib(data: bytes, many_rows: list[Row]) -> None:
    file, source = warm(data)
    for text in sorted({row.text for row in many_rows} - {"T#hot"})[::60]:
        source.reads.clear()
        found = file.find(text, **FOREVER, count_max=1000)
        wanted = scan(many_rows, text, **FOREVER)
        assert [place(item) for item in found] == wanted
        [(_, length)] = source.reads
        assert length <= 16 * 1024


def test_a_hot_key_is_read_in_pages_until_there_are_enough(
    data: bytes, many_rows: list[Row]
) -> None:
    file, source = warm(data)
    wanted = scan(many_rows, "T#hot", **FOREVER)
    assert [place(item) for item in file.find("T#hot", **FOREVER, count_max=500)] == wanted[:500]
    assert len(source.reads) == 1
    source.reads.clear()
    assert [place(item) for item in file.find("T#hot", **FOREVER, count_max=9999)] == wanted
    assert len(source.reads) == -(-len(wanted) // 585)
    assert max(length for _, length in source.reads) <= 16 * 1024


def test_without_a_cache_three_reads_do(data: bytes, many_rows: list[Row]) -> None:
    for text in ("T#k1", "T#k77", "T#k8999"):
        file, source = cold(data, slots=1)  # the footer has the real number of slots
        found = file.find(text, **FOREVER, count_max=1000)
        assert [place(item) for item in found] == scan(many_rows, text, **FOREVER)
        assert len(source.reads) == 3
        assert sum(length for _, length in source.reads) <= 128 * 1024


def test_fences_for_a_file_of_java_make_one_read_of_two() -> None:
    for java in UPLOADED.values():
        header = decode_header(java)
        times = TimeRange(first=header.begin_timestamp, last=header.end_timestamp, exact=False)
        copy = fences_of_table(Bytes(java).read, header, times, slot_count=SLOTS, path="java")
        total = len(java) + len(copy)
        near = NearFooter.open(Bytes(copy).read, len(copy), file_bytes=total, path="copy")
        source = Bytes(java)
        fenced = UploadedFile.with_footer(source.read, near.footer, near=near)
        plain, _ = cold(java, SLOTS)
        for text in ("GoldAa#hot", "GoldAa#k1", "GoldBB#k2", "GoldAa#none"):
            source.reads.clear()
            found = fenced.find(text, **FOREVER, count_max=500)
            assert found == plain.find(text, **FOREVER, count_max=500)
            assert len(source.reads) <= 2


def test_javas_answers_are_found_in_javas_files() -> None:
    files = dict(zip(BEGINS, sorted(UPLOADED), strict=False))
    asked = [
        check_javas_answers(cold(UPLOADED[base], SLOTS)[0], begin) for begin, base in files.items()
    ]
    assert sum(asked) > 20


def test_a_flipped_bit_in_a_slot_of_java_is_damage_and_no_answer(tmp_path: Path) -> None:
    """A slot that leads into the middle of an item would hide all its keys."""
    file = create(tmp_path, slots=5)
    file.put(columns_of([Row(f"T#{row}", 1, 0, 100 * row, 9, BEGIN) for row in range(60)]))
    java = uploaded(file, footer=False)
    ((_, slot),) = tiered_probes("T#5", 5)
    for bit in range(64):
        damaged = bytearray(java)
        damaged[slot_position(slot) + bit // 8] ^= 1 << bit % 8
        with pytest.raises(SegmentCorruptError):
            cold(bytes(damaged), 5)[0].find("T#5", **FOREVER, count_max=10)


def test_a_masked_hash_of_a_later_broker_is_found() -> None:
    text = "TopicTest#neg4"
    masked = tiered_masked_hash(text)
    items = encode_compacted_item(CompactedItem(masked, 0, 3, 738, 123, 4))
    table = b""
    position = slot_position(5)
    for slot in range(5):
        size = 28 if slot == masked % 5 else 0
        table += encode_compacted_slot(position=position, items_bytes=size)
        position += size
    header = TieredIndexHeader(
        magic=END_MAGIC, begin_timestamp=BEGIN, end_timestamp=BEGIN, item_count=1
    )
    file, _ = cold(encode_header(header) + table + items, slots=5)
    [found] = file.find(text, **FOREVER, count_max=1)
    assert found == Match(0, 3, 738, 123, BEGIN + 4000)


def test_a_file_of_rocketmq_5_1_counts_milliseconds() -> None:
    text, slots = "TopicTest#k0", 5  # hash 2746023, slot 3
    items = b"".join(
        encode_compacted_item(CompactedItem(2746023, 0, 3, offset, 123, time))
        for offset, time in ((246, 1500), (0, 0))
    )
    places = [(0, 0)] * 3 + [(slot_position(slots), 56), (0, 0)]
    table = b"".join(encode_compacted_slot(position=at, items_bytes=size) for at, size in places)
    header = TieredIndexHeader(
        magic=END_MAGIC, begin_timestamp=BEGIN, end_timestamp=BEGIN, used_slot_count=5, item_count=2
    )
    legacy = encode_header(header) + table + items + BEGIN_MAGIC.to_bytes(4, signed=True)
    file, _ = cold(legacy, slots)
    assert file.is_legacy
    both = file.find(text, **FOREVER, count_max=9)
    assert [item.store_timestamp for item in both] == [BEGIN + 1500, BEGIN]
    assert file.find(text, begin=BEGIN + 1, end=BEGIN + 1500, count_max=9) == both[:1]
    assert file.find("TopicTest#k1", **FOREVER, count_max=9) == []


@pytest.mark.parametrize("asked", [{"count_max": 0}, {"count_max": -3}, {"begin": 5, "end": 4}])
def test_a_question_without_an_answer_costs_nothing(data: bytes, asked: dict[str, int]) -> None:
    file, source = warm(data)
    assert file.find("T#k1", **({**FOREVER, "count_max": 5} | asked)) == []
    assert source.reads == []


def test_an_empty_file_holds_nothing() -> None:
    file, _ = cold(b"", SLOTS)
    assert file.find("GoldAa#hot", **FOREVER, count_max=5) == []


FILES, KEYS = 3, 4000


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    shop = Shop(tmp_path_factory.mktemp("index"), slots=1000, items=20_000)
    for file in range(FILES):
        shop.put([f"f{file}-{number} every" for number in range(KEYS)])
        shop.index.seal()
        shop.clock.advance(3_600_000)
    return shop


def index_reads(shop: Shop) -> list[int]:
    """The lengths of all reads since the last call."""
    reads = [length for kind, _, length in shop.provider.reads if kind is SegmentType.INDEX]
    assert len(reads) == len(shop.provider.reads)
    shop.provider.reads.clear()
    return reads


def probes(key: str) -> int:
    """The number of hashes to look for in a file that may not be ours: newer versions hash
    differently.
    """
    return len(tiered_probes(f"{TOPIC}#{key}", 300))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_warm_lookup_is_one_read_of_a_file_that_has_the_key(
    filled: Shop, restarted: bool
) -> None:
    if restarted:
        filled.reopen()
    index_reads(filled)
    one_read = 0
    for number in range(0, KEYS, 40):
        assert filled.found(f"f1-{number}") == [(0, 1000 * (KEYS + number))]
        reads = index_reads(filled)
        assert max(reads) <= 16 * 1024
        one_read += len(reads) == 1
        assert len(reads) <= 2  # a filter passes 0.5 % of other keys
    assert one_read >= 98


@pytest.mark.parametrize("restarted", [False, True])
def test_an_absent_key_takes_no_read(filled: Shop, restarted: bool) -> None:
    if restarted:
        filled.reopen()
    index_reads(filled)
    asked = 1000
    for number in range(asked):
        assert filled.found(f"absent-{number}") == []
    assert len(index_reads(filled)) <= asked * FILES * 0.005


def test_a_restart_reads_nothing(filled: Shop) -> None:
    filled.reopen()
    filled.index.step()
    filled.ask("absent")
    assert index_reads(filled) == []


def test_files_of_other_times_are_not_asked(filled: Shop) -> None:
    rows = filled.segments()
    begin = rows[2].begin_timestamp
    assert begin is not None
    index_reads(filled)
    answer = filled.ask("f0-1", begin=begin, end=begin + 1)
    assert not answer.hits
    assert index_reads(filled) == []
    assert len(filled.found("every", begin=begin, end=begin + 1, count_max=5)) == 5
    assert len(index_reads(filled)) <= 2


def test_a_reader_without_a_cache_takes_three_reads_of_128_kib_at_most(filled: Shop) -> None:
    reader = filled.reader()
    index_reads(filled)
    assert len(reader.query(TOPIC, filled.topic_id, "f2-77", **ALL).hits) == 1
    reads = index_reads(filled)
    assert len(reads) <= 3 * FILES
    assert sum(reads) <= FILES * 128 * 1024
    assert len(reader.query(TOPIC, filled.topic_id, "f2-78", **ALL).hits) == 1
    assert len(index_reads(filled)) <= 2 * FILES
    reader.shutdown()


def test_a_lost_cache_is_made_again_in_the_background(filled: Shop) -> None:
    filled.index._cache.clear()
    filled.reopen()
    index_reads(filled)
    assert len(filled.found("f1-5")) == 1
    assert len(index_reads(filled)) > 1
    filled.index.step()
    index_reads(filled)
    assert len(filled.found("f1-5")) == 1
    assert len(index_reads(filled)) == 1


def test_a_damaged_copy_is_noticed_and_made_again(filled: Shop) -> None:
    folder = filled.index._cache.folder
    for path in folder.iterdir():
        data = bytearray(path.read_bytes())
        data[:4096] = bytes(4096)  # a block of the filter
        path.write_bytes(data)
    for number in range(0, KEYS, 100):
        assert len(filled.found(f"f1-{number}")) == 1
    filled.index.step()
    index_reads(filled)
    numbers = range(0, KEYS, 100)
    for number in numbers:
        assert len(filled.found(f"f1-{number}")) == 1
    assert len(index_reads(filled)) <= len(numbers) + 3  # the new copies' filters pass few keys


def test_a_damaged_block_of_a_filter_says_where_it_is(data: bytes) -> None:
    footer = decode_tail(data[-16 * 1024 :], file_bytes=len(data))

    def read(position: int, length: int) -> bytes:
        return bytes(length)

    near = NearFooter(footer=footer, read=read)
    file = UploadedFile.with_footer(Bytes(data).read, footer, near=near, path="index")
    places = set()
    for number in range(50):
        with pytest.raises(SegmentCorruptError) as caught:
            file.find(f"T#k{number}", **FOREVER, count_max=1)
        places.add(caught.value.position)
    blocks = range(footer.position, footer.position + 4096 * footer.filter_blocks, 4096)
    assert 1 < len(places) <= len(places & {*blocks})


def test_a_copy_that_was_damaged_before_a_restart_is_not_believed(filled: Shop) -> None:
    filled.index.shutdown()
    for path in filled.index._cache.folder.iterdir():
        data = bytearray(path.read_bytes())
        data[-40] ^= 1  # in the tail
        path.write_bytes(data)
    filled.open()
    for number in range(0, KEYS, 100):
        assert len(filled.found(f"f1-{number}")) == 1
    filled.index.step()


def with_a_damaged_footer(folder: Path) -> Shop:
    shop = Shop(folder)
    shop.put(["k"] * 5)
    shop.index.seal()
    data = shop.uploaded_bytes()
    data[-100:-90] = b"x" * 10
    shop.replace_uploaded(bytes(data))
    shop.reopen()
    return shop


def test_a_damaged_footer_is_passed_over(tmp_path: Path) -> None:
    shop = with_a_damaged_footer(tmp_path)
    assert len(shop.found("k")) == 5
    assert shop.index.figures.damaged_count == 1


def test_two_who_find_a_footer_damaged_at_once_both_pass_it_over(tmp_path: Path) -> None:
    shop = with_a_damaged_footer(tmp_path)
    found = []

    def ask_too() -> None:
        shop.provider.before_read = lambda: None
        found.append(shop.found("k"))

    shop.provider.before_read = ask_too
    assert [shop.found("k")] == found
    assert len(found[0]) == 5


@pytest.mark.parametrize(
    ("begins", "lowered"),
    [([7, 9], None), ([7, 7], None), ([7, 9, 5], 4), ([7, 1], 0), ([7, 0], 0)],
)
def test_the_first_row_begins_before_all_others_and_never_before_zero(
    begins: list[int], lowered: int | None
) -> None:
    """RocketMQ regards files that begin before the first one as expired."""
    rows = [
        SegmentRecord(
            path=INDEX_PATH, type=SegmentType.INDEX, base_offset=at, begin_timestamp=begin
        )
        for at, begin in enumerate(begins)
    ]
    found = first_row_below(rows)
    assert found == (None if lowered is None else replace(rows[0], begin_timestamp=lowered))


def test_the_cache_keeps_to_its_size(tmp_path: Path) -> None:
    shop = Shop(tmp_path, index_footer_cache_bytes=10_000)
    for number in range(4):
        shop.put([f"k{number}"])
        shop.index.seal()
        shop.clock.advance(1000)
    folder = shop.index._cache.folder
    held = sum(path.stat().st_size for path in folder.iterdir())
    assert 0 < held <= 10_000
    for number in range(4):
        assert len(shop.found(f"k{number}")) == 1
    shop.reopen()
    shop.index.step()
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 10_000


def test_copies_of_files_that_are_gone_go(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index.seal()
    folder = shop.index._cache.folder
    assert len(list(folder.iterdir())) == 1
    (folder / "1-2-3-4.footer").write_bytes(b"abcd")
    (folder / "new-1.tmp").write_bytes(b"abcd")
    (folder / "\u00b2-1-1-4.footer").write_bytes(b"abcd")  # isdigit, but not a number
    shop.reopen()
    assert len([path for path in folder.iterdir() if path.name.isascii()]) == 1
    shop.index.expire(1 << 60)
    assert not [path for path in folder.iterdir() if path.name.isascii()]


def test_a_file_without_a_footer_gets_fences_when_it_is_asked_often(tmp_path: Path) -> None:
    """RocketMQ uploads such files. A look-up takes two reads, or one if the cache has the slots."""
    shop = Shop(tmp_path, slots=300, items=5000)
    shop.put([f"k{number}" for number in range(900)])
    shop.index.seal()
    shop.drop_footer(1800)  # each message has a unique key too
    javas = shop.uploaded_bytes()
    shop.reopen()
    shop.index.step()
    index_reads(shop)
    for number in range(ASKED_OFTEN):
        assert len(shop.found(f"k{number}")) == 1
        assert len(index_reads(shop)) <= 2 * probes(f"k{number}") + 2 * (not number)
    shop.index.step()
    index_reads(shop)
    for number in range(900):
        assert len(shop.found(f"k{number}")) == 1
        reads = index_reads(shop)
        assert len(reads) <= probes(f"k{number}")
        assert max(reads) <= 16 * 1024
    assert shop.uploaded_bytes() == javas
    index_reads(shop)
    shop.reopen()
    assert len(shop.found("k77")) == 1
    assert len(index_reads(shop)) <= probes("k77")


def test_a_footer_that_is_too_large_for_the_cache_is_not_kept(tmp_path: Path) -> None:
    cache = FooterCache(tmp_path / "footers", bytes_max=10)
    cache.load()
    assert not cache.keep(Origin(0, 1, 100), [b"x" * 11])
    assert not list(cache.folder.iterdir())
    assert cache.keep(Origin(0, 1, 100), [b"x" * 10])


def test_a_slot_with_very_many_items_is_read_in_pages_until_there_are_enough(
    tmp_path: Path,
) -> None:
    """RocketMQ finds only the newest 1024 items of a slot, whatever the limit (weakness 3)."""
    shop = Shop(tmp_path, slots=7, items=50_000)
    shop.put(["hot"] * 9000, unique=False)
    shop.index.seal()
    index_reads(shop)
    assert len(shop.found("hot")) == 9000
    assert len(index_reads(shop)) > 10
    assert shop.found("hot", count_max=3) == [(0, 8_999_000), (0, 8_998_000), (0, 8_997_000)]
    assert len(index_reads(shop)) <= 2


def test_a_key_with_many_pages_takes_a_read_a_page_and_each_is_compared(tmp_path: Path) -> None:
    count = 585 * 2 + 7
    file = create(tmp_path)
    file.put(columns_of([Row("T#k", 1, 2, number, 9, BEGIN + number) for number in range(count)]))
    data = bytearray(uploaded(file))
    opened, source = warm(bytes(data))
    assert len(opened.find("T#k", begin=0, end=INT64_MAX, count_max=count)) == count
    assert [length for _, length in source.reads] == [16_380, 16_380, 7 * 28]
    data[opened.items_start + 28 * 1171 + 5] ^= 1
    opened, _ = warm(bytes(data))
    assert len(opened.find("T#k", begin=0, end=INT64_MAX, count_max=1000)) == 1000
    with pytest.raises(DamagedItemsError, match="another checksum"):
        opened.find("T#k", begin=0, end=INT64_MAX, count_max=count)
