"""The pages of the documentation, cut into blocks, tables and words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))

_BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")


class Block(NamedTuple):
    """A fenced block: ```language words."""

    language: str
    words: list[str]
    text: str


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def prose(name: str) -> str:
    """A page as one line, since a sentence may break anywhere."""
    return " ".join(page(name).split())


def blocks(text: str) -> list[Block]:
    return [Block(kind, words.split(), inner) for kind, words, inner in _BLOCK.findall(text)]


def outside_blocks(text: str) -> str:
    return _BLOCK.sub("", text)


def inline_code(text: str) -> list[str]:
    return _INLINE.findall(outside_blocks(text))


def section(text: str, heading: str) -> str:
    """The text below a heading, up to the next one of the same or a higher level."""
    found = re.search(rf"^(#+) {re.escape(heading)}\n", text, re.MULTILINE)
    assert found, f"no heading {heading!r}"
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def tables(text: str) -> Iterator[list[list[str]]]:
    """The rows of each table, without its head; cells have no backticks."""
    rows: list[list[str]] = []
    for line in [*outside_blocks(text).splitlines(), ""]:
        if line.startswith("|"):
            # An escaped bar belongs to its cell.
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            rows.append([cell.strip().replace("`", "").replace(r"\|", "|") for cell in cells])
        elif rows:
            yield rows[2:]
            rows = []


def table(text: str, heading: str) -> list[list[str]]:
    """The first table below a heading."""
    return next(tables(section(text, heading)))
