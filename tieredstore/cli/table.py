"""Tables: columns that fit the terminal for people, JSON or CSV for programs.

Rows are written one by one, so memory does not grow with the table. The first rows set the width of
the columns; a wider cell in a later row pushes the rest of its row to the right.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from io import StringIO
from typing import Any, Final, Self

from tieredstore.cli.options import Shown, TableShown
from tieredstore.cli.output import (
    Row,
    folded,
    printable,
    shown_catalogue_time,
    shown_time,
    terminal_width,
    write_json,
    write_line,
)
from tieredstore.model.amounts import shown_size

_HELD_MAX: Final = 500  # rows that set the widths, before the first is written
_GAP: Final = 2
_INDENT: Final = 4
_CUT_MIN: Final = 12  # characters of a text that a narrow terminal leaves


class Kind(Enum):
    """How a value is shown. None is a dash, and a text is shown as it is."""

    TEXT = auto()  # cut if the terminal is narrow
    NAME = auto()  # never cut
    NUMBER = auto()
    SIZE = auto()
    TIME = auto()
    CATALOGUE_TIME = auto()
    DETAIL = auto()  # the last column: on lines of its own if it does not fit


_RIGHT: Final = frozenset({Kind.NUMBER, Kind.SIZE})


@dataclass(frozen=True, slots=True)
class Column:
    """A title, and the value of a row below it: a field, or the result of a function."""

    title: str
    value: str | Callable[[Row], object]
    kind: Kind = Kind.TEXT

    def cell(self, row: Row, shown: Shown) -> str:
        value = row[self.value] if isinstance(self.value, str) else self.value(row)
        if value is None or value == "":
            return "" if self.kind is Kind.DETAIL else "-"
        if isinstance(value, int) and not isinstance(value, bool):
            return _shown_number(value, self.kind, shown)
        return printable(str(value))


class Table:
    """A table that is being written; it ends with the block."""

    def __init__(self, columns: Sequence[Column], shown: Shown, *, title: str = "") -> None:
        self._columns = columns
        self._shown = shown
        self._title = title
        self._held: list[list[str]] = []
        self._widths: list[int] = []
        self._fields: list[str] = []
        self._limit = terminal_width()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Write the rows that are still held."""
        self._let_go()

    def write(self, row: Row, **more: object) -> None:
        """Write a row; `more` are values that only people see."""
        if self._shown.json:
            write_json(row)
        elif isinstance(self._shown, TableShown) and self._shown.csv:
            self._write_csv(row)
        else:
            whole = {**row, **more}
            self._held.append([column.cell(whole, self._shown) for column in self._columns])
            if len(self._held) >= _HELD_MAX or self._widths:
                self._let_go()

    def _write_csv(self, row: Row) -> None:
        """The values of the JSON fields, under the names in the first row."""
        if not self._fields:
            self._fields = list(row)
            _write_csv_line(self._fields)
        _write_csv_line([_csv_value(row.get(name)) for name in self._fields])

    def _let_go(self) -> None:
        held, self._held = self._held, []
        titles = [column.title for column in self._columns]
        if held and not self._widths:
            self._widths = self._fitting([titles, *held])
            if self._title:
                write_line(self._title)
            held = [titles, *held]
        for cells in held:
            self._write_line(cells, is_head=cells is titles)

    def _fitting(self, lines: Sequence[Sequence[str]]) -> list[int]:
        """Widths for the widest cells; if that is too much, the longest texts are cut."""
        widths = [max(map(_width, cells)) for cells in zip(*lines, strict=True)]
        if self._limit is None:
            return widths
        fixed = [at for at, column in enumerate(self._columns) if column.kind is not Kind.DETAIL]
        texts = [at for at in fixed if self._columns[at].kind is Kind.TEXT]
        room = self._limit - _GAP * (len(fixed) - 1)
        while sum(widths[at] for at in fixed) > room:
            longest = max(texts, key=lambda at: widths[at], default=None)
            if longest is None or widths[longest] <= _CUT_MIN:
                break
            widths[longest] -= 1
        return widths

    def _write_line(self, cells: Sequence[str], *, is_head: bool) -> None:
        parts = []
        detail = ""
        for cell, width, column in zip(cells, self._widths, self._columns, strict=True):
            if column.kind is Kind.DETAIL:
                detail = cell
            elif column.kind in _RIGHT:
                parts.append(" " * (width - _width(cell)) + cell)
            else:
                text = cell
                if self._limit is not None and column.kind is Kind.TEXT:
                    text = _cut(cell, width)
                parts.append(text + " " * (width - _width(text)))
        line = (" " * _GAP).join(parts)
        whole = f"{line}{' ' * _GAP}{detail}"
        if not detail or self._limit is None or _width(whole) <= self._limit:
            write_line((whole if detail else line).rstrip())
            return
        write_line(line.rstrip())
        for text in [] if is_head else folded(" " * _INDENT + detail, indent=_INDENT):
            write_line(text)


def write_rows(rows: Iterable[Row], columns: Sequence[Column], shown: Shown) -> None:
    """A table of these rows."""
    with Table(columns, shown) as table:
        for row in rows:
            table.write(row)


def _shown_number(value: int, kind: Kind, shown: Shown) -> str:
    if kind is Kind.SIZE:
        return f"{value:,}" if shown.exact_bytes else shown_size(value)
    if kind is Kind.TIME:
        return shown_time(value, utc=shown.utc)
    if kind is Kind.CATALOGUE_TIME:
        return shown_catalogue_time(value, utc=shown.utc)
    return f"{value:,}" if kind is Kind.NUMBER else str(value)


def _width(text: str) -> int:
    """The width in cells of a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _cut(text: str, width: int) -> str:
    """Cut the middle out: the end may be the number of a queue."""
    if _width(text) <= width:
        return text
    from rich.cells import set_cell_size

    head = (width - 1) // 2
    tail = text[len(text) // 2 :]
    while _width(tail) > width - 1 - head:
        tail = tail[1:]
    return f"{set_cell_size(text, width - 1 - _width(tail))}…{tail}"


def _csv_value(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return printable(value or "")
    return value if isinstance(value, int | float) else json.dumps(value)


def _write_csv_line(values: Sequence[Any]) -> None:
    line = StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    write_line(line.getvalue())
