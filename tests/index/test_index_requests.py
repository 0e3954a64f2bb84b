"""How many reads of the backend a lookup takes: warm, cold, after a restart, over Java's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.index.store_kit import ALL, Shop
from tieredstore.codec.java import tiered_probes
from tieredstore.index.footer_cache import FooterCache, Origin
from tieredstore.index.uploaded import ASKED_OFTEN
from tieredstore.model.values import SegmentType
from tieredstore.testing.samples import TOPIC

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
    """The lengths of all reads since the last look."""
    reads = [length for kind, _, length in shop.provider.reads if kind is SegmentType.INDEX]
    assert len(reads) == len(shop.provider.reads)
    shop.provider.reads.clear()
    return reads


def probes(key: str) -> int:
    """In a file that is not known to be ours a later rule for hashes may hold too."""
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
        assert len(reads) <= 2  # a filter lets 0.5 % of other keys through
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
    for number in range(0, KEYS, 100):
        assert len(filled.found(f"f1-{number}")) == 1


def test_a_damaged_footer_is_passed_over(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"] * 5)
    shop.index.seal()
    data = shop.uploaded_bytes()
    data[-100:-90] = b"x" * 10
    shop.replace_uploaded(bytes(data))
    shop.reopen()
    assert len(shop.found("k")) == 5


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
    (folder / "\u00b2-1-1-4.footer").write_bytes(b"abcd")  # a digit, but no number
    shop.reopen()
    assert len([path for path in folder.iterdir() if path.name.isascii()]) == 1
    shop.index.expire(1 << 60)
    assert not [path for path in folder.iterdir() if path.name.isascii()]


def test_a_file_without_a_footer_gets_fences_when_it_is_asked_often(tmp_path: Path) -> None:
    """As RocketMQ uploads them: two reads, and one when the cache knows where its slots are."""
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


def test_a_slot_with_very_many_items_is_read_in_pages_until_there_are_enough(
    tmp_path: Path,
) -> None:
    """RocketMQ shows the newest 1024 items of a slot, whatever the limit (weakness 3)."""
    shop = Shop(tmp_path, slots=7, items=50_000)
    shop.put(["hot"] * 9000, unique=False)
    shop.index.seal()
    index_reads(shop)
    assert len(shop.found("hot")) == 9000
    assert len(index_reads(shop)) > 10
    assert shop.found("hot", count_max=3) == [(0, 8_999_000), (0, 8_998_000), (0, 8_997_000)]
    assert len(index_reads(shop)) <= 2
