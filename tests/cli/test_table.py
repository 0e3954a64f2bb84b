"""Tables for people and for programs, and the numbers, sizes and times in them."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterator
from io import StringIO

import pytest

from tests.cli.cli_kit import Command
from tests.cli.tier_kit import TIER, VERBS, named
from tieredstore.cli.options import Shown, TableShown
from tieredstore.cli.output import Row, folded, parse_time, shown_time
from tieredstore.cli.table import Column, Kind, Table, write_rows
from tieredstore.model.amounts import counted, shown_size

TIME = 1795171532778
COLUMNS = (
    Column("place", "place"),
    Column("count", "count", Kind.NUMBER),
    Column("size", "size", Kind.SIZE),
    Column("at", "at", Kind.TIME),
    Column("said", "said", Kind.DETAIL),
)
LONG = "a-topic-with-a-name-that-nobody-wants-to-type/7"


def row(place: str = "Orders/0", said: str = "", **others: object) -> Row:
    return {"place": place, "count": 1234567, "size": 5 << 20, "at": TIME, "said": said, **others}


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine five and a half hours east of UTC."""
    monkeypatch.setenv("TZ", "IST-5:30")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


def written(
    capsys: pytest.CaptureFixture[str], *rows: Row, shown: Shown | None = None
) -> list[str]:
    capsys.readouterr()
    write_rows(rows, COLUMNS, shown or TableShown(utc=True))
    return capsys.readouterr().out.splitlines()


def test_numbers_stand_right_with_separators(capsys: pytest.CaptureFixture[str]) -> None:
    assert written(capsys, row(), row(place="B/1", count=7, size=12, at=None)) == [
        "place         count     size  at                        said",
        "Orders/0  1,234,567  5.0 MiB  2026-11-20T10:45:32.778Z",
        "B/1               7     12 B  -",
    ]


def test_sizes_are_counted_where_that_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    _, line = written(capsys, row(), shown=TableShown(exact_bytes=True, utc=True))
    assert "  5,242,880  " in line
    sizes = [0, 1023, 1024, 1536, 1 << 20, 3 << 30, 5 << 50]
    assert list(map(shown_size, sizes)) == [
        *("0 B", "1,023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "3.0 GiB", "5,120.0 TiB"),
    ]
    assert shown_size(1, exact=True) == "1 byte"
    assert shown_size(1 << 20, exact=True) == "1,048,576 bytes"


def test_one_is_no_plural() -> None:
    said = [counted(count, "queue") for count in (0, 1, 2, 1234)]
    assert said == ["0 queues", "1 queue", "2 queues", "1,234 queues"]
    assert [counted(2, what) for what in ("body", "key")] == ["2 bodies", "2 keys"]


@pytest.mark.usefixtures("elsewhere")
def test_times_are_of_this_machines_zone_and_can_be_given_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, line = written(capsys, row(), shown=TableShown())
    assert "2026-11-20T16:15:32.778+05:30" in line
    assert parse_time("2026-11-20T16:15:32.778+05:30") == TIME
    _, line = written(capsys, row(), shown=TableShown(utc=True))
    assert "2026-11-20T10:45:32.778Z" in line
    for no_year in (2**63 - 1, 253402300799999):
        assert shown_time(no_year, utc=False) == str(no_year)


def test_a_narrow_terminal_cuts_a_place_in_its_middle_and_nothing_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    _, line, wide = written(capsys, row(place=LONG), row(place="長い名前のトピックの名前/7"))
    assert len(line) <= 70
    assert line.startswith("a-topic-")
    assert "…" in line
    assert line.split()[0].endswith("type/7")
    assert line.split()[1:] == ["1,234,567", "5.0", "MiB", "2026-11-20T10:45:32.778Z"]
    assert "/7  " in wide


def test_what_has_no_room_in_its_line_stands_below_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    long = "word " * 30
    _, short, line, *below = written(capsys, row(said="it fits"), row(said=long))
    assert short.endswith("Z  it fits")
    assert line.endswith("Z")
    assert all(text.startswith("    word") and len(text) <= 70 for text in below)
    assert " ".join(below).split() == long.split()
    assert [len(text) <= 70 for text in folded(long)] == [True] * 3


def test_a_pipe_gets_lines_of_any_length_and_nothing_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    long = "word " * 30
    _, line = written(capsys, row(place=LONG, said=long))
    assert line.startswith(LONG)
    assert line.endswith(long.rstrip())


def test_a_table_of_any_length_holds_only_its_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    with Table(COLUMNS, TableShown()) as table:
        for number in range(600):
            table.write(row(count=number))
        assert len(capsys.readouterr().out.splitlines()) == 601  # before the end
        table.write(row(place=LONG))
    assert capsys.readouterr().out.startswith(LONG)


def test_what_was_read_before_an_error_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def rows() -> Iterator[Row]:
        yield row()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_rows(rows(), COLUMNS, TableShown())
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_what_a_stranger_wrote_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    _, line = written(capsys, row(place="a\x1b[2J\nb"))
    assert line.startswith("a\\x1b[2J\\nb  ")


def test_csv_has_the_fields_of_json_and_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(said='a, "b"'), row(at=None, size=["x"])]
    head, *lines = csv.reader(
        StringIO("\n".join(written(capsys, *rows, shown=TableShown(csv=True))))
    )
    assert head == list(rows[0])
    assert lines[0] == ["Orders/0", "1234567", "5242880", str(TIME), 'a, "b"']
    assert lines[1] == ["Orders/0", "1234567", '["x"]', "", ""]


def test_json_has_plain_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = written(capsys, row(), shown=TableShown(json=True, exact_bytes=True))
    assert json.loads(line) == row()


@pytest.mark.parametrize("words", VERBS[:-1], ids=lambda words: str(words[0]))
def test_a_table_of_a_tier_is_csv_of_what_json_says(command: Command, words: list[object]) -> None:
    tier = named(TIER)
    wanted = command.run(*words, *tier, "--json").done().rows
    found = list(csv.DictReader(StringIO(command.run(*words, *tier, "--csv").done().out)))
    assert [list(row) for row in found] == [list(row) for row in wanted]
    for got, row in zip(found, wanted, strict=True):
        assert all(
            text == ("" if row[name] is None else str(row[name]))
            for name, text in got.items()
            if row[name] is None or (isinstance(row[name], int) and not isinstance(row[name], bool))
        )
