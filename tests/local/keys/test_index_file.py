"""One index file: the printed bytes, batches against single puts, searches against a slow one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.codec.test_local_index import PRINTED, ROLLED
from tests.local.keys.index_kit import (
    FOREVER,
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
    decode_item,
    encode_header,
)
from tieredstore.local.index_file import CLOCK_SLACK_MS
from tieredstore.model.errors import StoreClosedError


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
    assert java(file, "T#a", T0 + 999_001) == []  # though it was stored at + 999 999
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
