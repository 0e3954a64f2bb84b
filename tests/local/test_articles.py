"""What articles often say about the key index, and what RocketMQ 5 does: the bytes decide.

Layouts are spelled out here again with `struct`, so that none of our code vouches for itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.local.index_kit import ask_like_java
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.messages import Message
from tieredstore.model.values import INT64_MAX

SLOTS, NUMBERS = 11, 20
HEADER_BYTES, SLOT_BYTES, ITEM_BYTES = 40, 4, 20
START_MS = 1_700_000_000_000
TOPIC = "T"


class Header(NamedTuple):
    begin_timestamp: int
    end_timestamp: int
    begin_log_offset: int
    end_log_offset: int
    used_slots: int
    next_item: int


class Item(NamedTuple):
    key_hash: int
    log_offset: int
    seconds: int
    previous: int


class Index:
    """A store and the bytes of its index files."""

    def __init__(self, root: Path) -> None:
        config = LocalConfig(
            store_path=str(root),
            commit_log_file_bytes=65_536,
            queue_file_bytes=400,
            index_slot_count=SLOTS,
            index_item_count=NUMBERS,
            dispatch_interval_ms=0,
        )
        runtime = Runtime.inline(now_ms=START_MS)
        assert isinstance(runtime.clock, ManualClock)
        self.clock = runtime.clock
        self.folder = root / "index"
        self.store = LocalMessageStore(config, runtime)
        self.store.load()
        self.store.start()

    def put(
        self,
        keys: str,
        *,
        topic: str = TOPIC,
        unique: str = "",
        sys_flag: int = 0,
        after_ms: int = 0,
    ) -> int:
        self.clock.advance(after_ms)
        properties = {"KEYS": keys, "UNIQ_KEY": unique}
        result = self.store.put_message(
            Message(
                topic=topic,
                queue_id=0,
                body=b"b",
                sys_flag=sys_flag,
                properties={name: value for name, value in properties.items() if value},
            )
        )
        return result.log_offset

    def files(self) -> list[Path]:
        return sorted(self.folder.iterdir())

    def header(self, number: int = 0) -> Header:
        return Header(*struct.unpack_from(">qqqqii", self.files()[number].read_bytes()))

    def slots(self, number: int = 0) -> tuple[int, ...]:
        data = self.files()[number].read_bytes()
        return struct.unpack_from(f">{SLOTS}i", data, HEADER_BYTES)

    def item(self, place: int, number: int = 0) -> Item:
        at = HEADER_BYTES + SLOTS * SLOT_BYTES + place * ITEM_BYTES
        return Item(*struct.unpack_from(">iqii", self.files()[number].read_bytes(), at))

    def found(self, key: str, *, begin: int = 0, end: int = INT64_MAX) -> list[int]:
        got = self.store.query_message(TOPIC, key, count_max=1_000, begin=begin, end=end)
        return [one.log_offset for one in got.messages]

    def said_by_java(self, key: str, *, begin: int = 0, end: int = INT64_MAX) -> list[int]:
        index = self.store._loaded().index
        assert index is not None
        return ask_like_java(index, TOPIC, key, count_max=1_000, begin=begin, end=end)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    index = Index(tmp_path / "store")
    yield index
    index.store.shutdown()


def java_hash(text: str) -> int:
    value = 0
    for letter in text:  # ASCII only
        value = (value * 31 + ord(letter)) & 0xFFFFFFFF
    value -= (value & 0x80000000) << 1
    return max(0, abs(value)) if value != -(2**31) else 0


def test_an_item_has_twenty_bytes_and_the_file_the_size_that_follows(index: Index) -> None:
    places = [index.put(f"k{number}") for number in range(5)]
    [file] = index.files()
    assert file.stat().st_size == HEADER_BYTES + SLOTS * SLOT_BYTES + NUMBERS * ITEM_BYTES
    assert [index.item(number + 1).log_offset for number in range(5)] == places
    assert index.item(0) == (0, 0, 0, 0)  # number 0 is never used: it means "no item"


def test_the_default_file_has_420_000_040_bytes() -> None:
    config = LocalConfig()
    slots, numbers = config.index_slot_count, config.index_item_count
    assert HEADER_BYTES + slots * SLOT_BYTES + numbers * ITEM_BYTES == 420_000_040


def test_the_counts_are_used_slots_and_the_next_item(index: Index) -> None:
    for key in ("a", "a", "a", "b"):
        index.put(key)
    assert index.header().used_slots == 2  # not one for each key, and not all slots
    assert index.header().next_item == 5  # not the number of keys


def test_a_slot_holds_the_number_of_its_newest_item_and_items_lead_back(index: Index) -> None:
    for _ in range(3):
        index.put("a")
    key_hash = java_hash(f"{TOPIC}#a")
    assert index.slots()[key_hash % SLOTS] == 3
    assert [index.item(number).previous for number in (1, 2, 3)] == [0, 1, 2]
    assert {index.item(number).key_hash for number in (1, 2, 3)} == {key_hash}


def test_a_file_is_full_one_item_before_its_number(index: Index) -> None:
    for number in range(NUMBERS - 1):
        index.put(f"k{number}")
    assert len(index.files()) == 1
    assert index.header().next_item == NUMBERS
    index.put("one more")
    assert len(index.files()) == 2
    assert index.header(0).next_item == NUMBERS


def test_begin_and_end_are_the_first_and_the_last_put(index: Index) -> None:
    first = index.put("a")
    index.put("b", after_ms=5_000)
    last = index.put("c", after_ms=1)
    assert index.header()[:4] == (START_MS, START_MS + 5_001, first, last)


def test_a_new_file_inherits_the_end_and_replaces_the_begin_at_its_first_key(
    index: Index,
) -> None:
    for number in range(NUMBERS - 1):
        index.put(f"k{number}", after_ms=1_000)
    place = index.put("first", after_ms=7_500)
    header = index.header(1)
    assert header.begin_timestamp == index.clock.now_ms()
    assert header.begin_log_offset == header.end_log_offset == place
    assert index.item(1, 1).seconds == 7  # counted from the end of the file before
    assert index.found("first", begin=index.clock.now_ms(), end=index.clock.now_ms()) == [place]


def test_times_are_whole_seconds_and_a_query_misses_nothing_for_it(index: Index) -> None:
    index.put("a")
    place = index.put("a", after_ms=1_999)
    assert index.item(2).seconds == 1
    exact = index.clock.now_ms()
    assert index.said_by_java("a", begin=exact) == []  # 999 ms too early for Java
    assert index.said_by_java("a", begin=exact - 1_000) == [place]
    assert index.found("a", begin=exact) == [place]
    assert index.found("a", end=exact - 1) != index.said_by_java("a", end=exact - 1)
    assert place not in index.found("a", end=exact - 1)


def test_the_smallest_hash_counts_as_zero(index: Index) -> None:
    """Its absolute value is negative in Java."""
    assert java_hash("T#jllgvmc") == 0
    place = index.put("jllgvmc")
    assert index.item(1).key_hash == 0
    assert index.slots()[0] == 1
    assert index.found("jllgvmc") == [place]


def test_a_chain_goes_on_past_other_keys_of_its_slot(index: Index) -> None:
    places: dict[str, list[int]] = {}
    for number in range(NUMBERS - 1):
        key = f"k{number % 7}"
        places.setdefault(key, []).append(index.put(key))
    assert index.header().used_slots <= 7
    for key, wanted in places.items():
        assert index.found(key) == index.said_by_java(key) == wanted[::-1]


def test_equal_hashes_are_told_apart_by_the_message(index: Index) -> None:
    assert java_hash("T#Aa") == java_hash("T#BB")
    first, second = index.put("Aa"), index.put("BB")
    assert index.said_by_java("Aa") == [second, first]
    assert index.found("Aa") == [first]
    assert index.found("BB") == [second]


def test_topics_with_equal_hashes_are_told_apart_too(index: Index) -> None:
    assert java_hash("Aa#k") == java_hash("BB#k")
    places = {topic: index.put("k", topic=topic) for topic in ("Aa", "BB")}
    for topic, place in places.items():
        [found] = index.store.query_message(topic, "k").messages
        assert found.log_offset == place


def test_prepared_messages_are_indexed_and_rolled_back_ones_are_not(index: Index) -> None:
    prepared = index.put("p", sys_flag=0x4)
    committed = index.put("p", sys_flag=0x8)
    index.put("p", sys_flag=0xC)
    assert index.header().next_item == 3
    assert index.found("p") == [committed, prepared]


def test_the_unique_key_comes_before_the_keys_of_which_there_may_be_several(index: Index) -> None:
    place = index.put("one  two", unique="U")
    hashes = [index.item(number).key_hash for number in (1, 2, 3)]
    assert hashes == [java_hash(f"T#{key}") for key in ("U", "one", "two")]
    for key in ("U", "one", "two"):
        assert index.found(key) == [place]
    assert {index.item(number).log_offset for number in (1, 2, 3)} == {place}


def test_a_query_gives_64_messages_at_most_the_newest_ones(index: Index) -> None:
    places = [index.put("many") for _ in range(100)]
    assert index.said_by_java("many") == places[:-65:-1]
    assert index.found("many") == places[:-65:-1]
    assert len(index.files()) > 5


def test_the_name_of_a_file_says_nothing_about_the_times_in_it(index: Index) -> None:
    place = index.put("a")
    [file] = index.files()
    index.store.shutdown()
    file.rename(file.with_name("19700101000000000"))
    again = Index(index.folder.parent)
    assert again.found("a", begin=START_MS, end=START_MS) == [place]
    again.store.shutdown()


def test_a_message_is_indexed_when_its_put_returns(index: Index) -> None:
    """No thread polls a queue of requests every three seconds."""
    place = index.put("now")
    assert index.item(1).log_offset == place
