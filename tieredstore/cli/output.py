"""What goes to stdout: JSON lines for programs, lines and tables for people.

What lives here: writing one row after the other, so that a store of any size needs no memory.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tieredstore.cli.failures import CommandError, ExitCode

Row = Mapping[str, Any]

_NAME_WIDTH: Final = 20  # of the first column, at least, where the terminal is narrow
_WIDTH_MAX: Final = 1000


def write_line(text: str) -> None:
    """One line to stdout. When nobody reads any more the command ends, and says nothing."""
    try:
        print(text)
    except BrokenPipeError as error:
        raise CommandError("", ExitCode.BROKEN_PIPE) from error


def write_json(row: Row) -> None:
    """One object, pure ASCII: it comes out the same whatever the terminal speaks."""
    write_line(json.dumps(row))


def finish_output() -> ExitCode:
    """Send what is still held back."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return ExitCode.BROKEN_PIPE
    return ExitCode.DONE


def silence_output() -> None:
    """Let what cannot be written any more go nowhere, also when Python ends."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # a stdout that is no file needs no silencing
        return


def note(text: str) -> None:
    """A line on stderr, for what is worth knowing and no error."""
    print(f"tieredstore: note: {text}", file=sys.stderr)


def printable(text: str) -> str:
    """The text without what would move the cursor or colour the terminal: it is a stranger's."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


class Columns:
    """Lines in columns of given widths: nothing has to be known of the rows to come."""

    def __init__(self, names: Sequence[str], widths: Sequence[int]) -> None:
        self._names = names
        self._widths = widths
        self._begun = False

    def write(self, cells: Sequence[str]) -> None:
        if not self._begun:
            self._begun = True
            self._write(self._names)
        self._write([printable(cell) for cell in cells])

    def _write(self, cells: Sequence[str]) -> None:
        padded = (cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True))
        write_line("  ".join(padded).rstrip())


def write_table(title: str, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A small table, all of it at once; nothing where there are no rows."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    if not cells:
        return
    # On a narrow terminal a long name is cut; a number or a time never is, nor anything elsewhere.
    console = Console(highlight=False)
    width = console.width if sys.stdout.isatty() else _WIDTH_MAX
    others = (
        max(map(cell_len, column)) + 2 for column in list(zip(names, *cells, strict=True))[1:]
    )
    name_width = max(width - sum(others), _NAME_WIDTH)
    for name in names:
        table.add_column(name, no_wrap=True)
    for first, *rest in cells:
        text = Text(first)
        text.truncate(name_width, overflow="ellipsis")
        table.add_row(text, *map(Text, rest))
    console.width = _WIDTH_MAX
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        write_line(line.rstrip())
    write_line("")
