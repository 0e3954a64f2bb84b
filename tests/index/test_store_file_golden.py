"""Java's unsealed files made again from its puts, and opened as Java left them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.codec.golden_files import GOLDEN
from tests.index.index_kit import (
    BEGINS,
    ITEMS,
    SLOTS,
    check_javas_answers,
    columns_of,
    create,
    golden_rows,
    reopen,
)
from tieredstore.codec.tiered_index import BEGIN_MAGIC, decode_header
from tieredstore.model.errors import InvalidConfigError

BEFORE_UPLOAD = GOLDEN / "tier-index/local-before-upload"
WRITTEN = {
    0: BEFORE_UPLOAD / str(BEGINS[0]),
    1: BEFORE_UPLOAD / str(BEGINS[1]),
    4: GOLDEN / "tier-index/store/tiered_index_file" / str(BEGINS[4]),
}


@pytest.mark.parametrize("number", WRITTEN)
@pytest.mark.parametrize("step", [1, 3, 15, 16, 100, 5000])
def test_batches_of_any_size_give_javas_file(tmp_path: Path, number: int, step: int) -> None:
    file = create(tmp_path, BEGINS[number])
    rows = golden_rows(number)
    for start in range(0, len(rows), step):
        file.put(columns_of(rows[start : start + step]))
    file.flush()
    assert file.path.read_bytes() == WRITTEN[number].read_bytes()
    assert file.times.first == min(row.store_timestamp for row in rows)
    assert file.times.last == max(row.store_timestamp for row in rows)


@pytest.mark.parametrize("number", WRITTEN)
def test_opening_javas_file_changes_nothing(tmp_path: Path, number: int) -> None:
    path = tmp_path / str(BEGINS[number])
    shutil.copy(WRITTEN[number], path)
    with_header = decode_header(path.read_bytes())
    file = reopen(path)
    assert file.item_count == with_header.item_count
    assert file.notes is None
    file.close()
    assert path.read_bytes() == WRITTEN[number].read_bytes()


def test_an_end_that_java_forgot_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / str(BEGINS[0])
    data = bytearray(WRITTEN[0].read_bytes())
    true_end = decode_header(data).end_timestamp
    data[12:20] = data[4:12]  # what Java makes of it when it opens the file (10656)
    path.write_bytes(data)
    with_slack = reopen(path).end_timestamp
    assert true_end <= with_slack <= true_end + 999


@pytest.mark.parametrize("number", WRITTEN)
def test_a_file_goes_on_where_it_was_closed(tmp_path: Path, number: int) -> None:
    rows = golden_rows(number)
    file = create(tmp_path, BEGINS[number])
    file.put(columns_of(rows[:100]))
    file.close()
    file = reopen(file.path)
    assert file.times is not None
    assert file.times.exact
    file.put(columns_of(rows[100:]))
    assert file.path.read_bytes() == WRITTEN[number].read_bytes()
    assert file.times.exact


@pytest.mark.parametrize(("slots", "items"), [(SLOTS + 1, ITEMS), (SLOTS, ITEMS + 1), (64, 300)])
def test_other_sizes_are_refused_in_words(tmp_path: Path, slots: int, items: int) -> None:
    file = create(tmp_path)
    file.close()
    with pytest.raises(InvalidConfigError, match="must never change"):
        reopen(file.path, slots, items)


def test_the_magic_turns_with_the_last_item(tmp_path: Path) -> None:
    file = create(tmp_path, items=4)
    rows = golden_rows(0)[:3]
    file.put(columns_of(rows[:2]))
    assert decode_header(file.path.read_bytes()).magic == BEGIN_MAGIC
    file.put(columns_of(rows[2:]))
    assert decode_header(file.path.read_bytes()).magic != BEGIN_MAGIC
    assert file.room == 0


def test_javas_answers_are_found_in_its_unsealed_file(tmp_path: Path) -> None:
    path = tmp_path / str(BEGINS[4])
    shutil.copy(WRITTEN[4], path)
    assert check_javas_answers(reopen(path), BEGINS[4]) > 3
