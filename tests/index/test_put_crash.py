"""A process killed in the middle of its puts: the file opens, and every counted key is found."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.index.index_kit import BEGIN, Row, columns_of, create, place, reopen, scan
from tieredstore.model.values import INT64_MAX

ITEMS = 200_000
BATCH = 700


def rows_from(start: int) -> list[Row]:
    return [
        Row(f"T#k{number % 997}", 1, 2, number, 9, BEGIN + number)
        for number in range(start, start + BATCH)
    ]


def put_until_killed(folder: Path, told: int) -> None:
    """Runs in a child: never returns."""
    file = create(folder, slots=499, items=ITEMS)
    while file.room > BATCH:
        file.put(columns_of(rows_from(file.item_count)))
        os.write(told, b".")
    os._exit(0)


def killed(folder: Path, after: int) -> None:
    listener, told = os.pipe()
    child = os.fork()
    if child == 0:
        put_until_killed(folder, told)
    os.close(told)
    for _ in range(after):
        os.read(listener, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(listener)


def check(folder: Path, after: int) -> None:
    killed(folder, after)
    file = reopen(folder / str(BEGIN), slots=499, items=ITEMS)
    assert file.item_count >= BATCH * after
    rows = [row for start in range(0, file.item_count, BATCH) for row in rows_from(start)]
    rows = rows[: file.item_count]
    for text in [f"T#k{number}" for number in range(0, 997, 50)]:
        when = {"begin": 0, "end": INT64_MAX}
        found = [place(item) for item in file.find(text, **when, count_max=9999)]
        assert found == scan(rows, text, **when)
    file.delete()


@pytest.mark.parametrize("after", [1, 5, 20])
def test_a_killed_put_loses_no_counted_key(tmp_path: Path, after: int) -> None:
    check(tmp_path, after)


@pytest.mark.torture
def test_a_hundred_killed_puts_lose_no_counted_key(tmp_path: Path) -> None:
    for turn in range(100):
        check(tmp_path, 1 + turn % 40)
