"""The figures of the front page: chosen rows of docs/benchmarks.md, unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

BEGIN: Final = "<!-- figures, written by python -m bench --page -->"
END: Final = "<!-- end of figures -->"


class Chosen(NamedTuple):
    said: str  # on the front page
    bench: str
    what: str  # the row's name in docs/benchmarks.md


CHOSEN: Final = (
    Chosen(
        "put one by one, 1 KB, no tier, against Java",
        "puts",
        "1 KB, one by one, no tier (Java)",
    ),
    Chosen(
        "put in batches of 256, 1 KB, no tier, against Java",
        "puts",
        "1 KB, batches of 256, no tier (Java)",
    ),
    Chosen(
        "the same while a tier in a folder uploads, against none",
        "puts",
        "1 KB, batches of 256, tier in a folder (the store alone)",
    ),
    Chosen(
        "append and commit to a POSIX tier, 1 KB, against Java",
        "dispatch",
        "append + commit of 4096 x 1 KB (Java)",
    ),
    Chosen(
        "pulls of 32 that read ahead, against Java",
        "fetch",
        "cold queue as messages, 32 a call (Java)",
    ),
    Chosen(
        "one message from the cache, against opening and reading a file",
        "fetch",
        "cached read of 1 (a file opened and read)",
    ),
    Chosen(
        "key index: put, against Java",
        "index",
        "keys hashed and put, batches of 8192; Java one by one (Java)",
    ),
    Chosen(
        "key index: compact 20 M items, against Java",
        "index",
        "compaction of 19,999,999 items; Java's stays in memory (Java)",
    ),
    Chosen(
        "sequential read, 4 096 a call, as columns, against Java",
        "fetch",
        "cold queue as columns, 4 096 a call (Java)",
    ),
    Chosen(
        "the same, as messages, against Java",
        "fetch",
        "cold queue as messages, 4 096 a call (Java)",
    ),
)


def rows_of(page: str) -> Mapping[tuple[str, str], Sequence[str]]:
    """The cells of each row of docs/benchmarks.md by its benchmark and name."""
    rows: dict[tuple[str, str], Sequence[str]] = {}
    bench = ""
    for line in page.splitlines():
        if line.startswith("### `make bench BENCH="):
            bench = line.partition("=")[2].rstrip("`")
        elif bench and line.startswith("| "):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            rows[bench, cells[0]] = cells
    return rows


def front_of(page: str) -> str:
    """The table of the front page. KeyError if the page of benchmarks lacks a chosen row."""
    rows = rows_of(page)
    lines = ["| what | baseline | ours | ratio | measured by |", "| --- | --- | --- | --- | --- |"]
    for chosen in CHOSEN:
        _, beside, ours, ratio, *_ = rows[chosen.bench, chosen.what]
        ran = f"`make bench BENCH={chosen.bench}`"
        lines.append(f"| {chosen.said} | {beside} | {ours} | {ratio} | {ran} |")
    return "\n".join(lines)


def between_marks(text: str, made: str) -> str:
    """The same text, with the part between the marks replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the marks of the figures are not there")
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"
