"""The format of the journal: checksummed lines of JSON, and how much of a file is whole.

    line      {"crc":"1a2b3c4d",<body>}\\n       CRC32C, in hex, over all bytes after the comma
    header    "line":0,"format":1,"snapshot":{"length":…,"crc32c":…} or null where there was none
    commit    "line":n,"changes":[…]             one batch, whole or not at all
    compact   "line":n,"next":{"length":…,"crc32c":…}    the snapshot that holds all lines above

A line is synced before the next is written, so only the last can be torn. An invalid line that a
valid one follows is damage. What lives here is pure; `journal_file` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import google_crc32c
import msgspec

from tieredstore.driver.metadata import Change
from tieredstore.metadata import changes
from tieredstore.model.errors import MetadataError

FORMAT: Final = 1
_PREFIX: Final = b'{"crc":"'
_BODY_AT: Final = len(_PREFIX) + 8 + len(b'",')


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotName:
    """What tells one snapshot from another: its length and its CRC32C."""

    length: int
    crc32c: int

    @classmethod
    def of(cls, data: bytes) -> SnapshotName:
        return cls(length=len(data), crc32c=crc32c(data))

    def to_json(self) -> str:
        return f'{{"length":{self.length},"crc32c":{self.crc32c}}}'


@dataclass(slots=True, kw_only=True)
class JournalContents:
    """What the whole lines of a journal say; `torn_bytes` follow them."""

    has_header: bool = False
    snapshot: SnapshotName | None = None
    next_snapshot: SnapshotName | None = None
    changes: list[Change] = field(default_factory=list)
    commits: int = 0
    lines: int = 0
    whole_bytes: int = 0
    torn_bytes: int = 0


def seal(body: bytes) -> bytes:
    """A line: `body` is the inside of a JSON object and the brace that closes it."""
    return b'%s%08x",%s\n' % (_PREFIX, crc32c(body), body)


def unseal(line: bytes) -> bytes | None:
    """The body of a line with its newline, or None where it is not what was written."""
    if not (line.startswith(_PREFIX) and line.endswith(b"\n")):
        return None
    body = line[_BODY_AT:-1]
    return body if line == seal(body) else None


def header_line(snapshot: SnapshotName | None) -> bytes:
    name = "null" if snapshot is None else snapshot.to_json()
    return seal(f'"line":0,"format":{FORMAT},"snapshot":{name}}}'.encode())


def commit_line(number: int, encoded_changes: Sequence[bytes]) -> bytes:
    return seal(b'"line":%d,"changes":[%s]}' % (number, b",".join(encoded_changes)))


def compact_line(number: int, snapshot: SnapshotName) -> bytes:
    return seal(f'"line":{number},"next":{snapshot.to_json()}}}'.encode())


def read_journal(
    data: bytes, path: Path, *, after: JournalContents | None = None
) -> JournalContents:
    """What a journal says, or what `data` says that was appended `after` an earlier read.

    Raises MetadataError naming the byte for damage, and for lines of a format not known here.
    """
    contents = JournalContents()
    if after is not None:
        contents.has_header = after.has_header
        contents.lines, contents.whole_bytes = after.lines, after.whole_bytes
    start = contents.whole_bytes
    for position, body in _whole_lines(data, path, start):
        try:
            _take(contents, msgspec.json.decode(b"{" + body))
        except (ValueError, RecursionError) as error:
            raise MetadataError(str(path), f"line at byte {position}: {error}") from error
        contents.whole_bytes = position + _BODY_AT + len(body) + 1
    contents.torn_bytes = start + len(data) - contents.whole_bytes
    return contents


def _take(contents: JournalContents, line: Any) -> None:
    contents.next_snapshot = None  # it names the lines above it: another line below voids it
    match line:
        case {"line": 0, "format": format, "snapshot": snapshot} if contents.lines == 0:
            if format != FORMAT:
                raise ValueError(f"format {format} is newer than this version")
            contents.has_header = True
            contents.snapshot = _snapshot_name(snapshot)
        case {"line": number, "changes": [*batch]} if number == contents.lines > 0:
            contents.changes.extend(changes.from_json(change) for change in batch)
            contents.commits += 1
        case {"line": number, "next": snapshot} if number == contents.lines > 0:
            contents.next_snapshot = _snapshot_name(snapshot)
        case _:
            raise ValueError(f"it cannot be line {contents.lines}")
    contents.lines += 1


def _snapshot_name(value: Any) -> SnapshotName | None:
    match value:
        case None:
            return None
        case {"length": int(length), "crc32c": int(crc)}:
            return SnapshotName(length=length, crc32c=crc)
    raise ValueError("it names no snapshot")


def _whole_lines(data: bytes, path: Path, start: int) -> Iterator[tuple[int, bytes]]:
    """Position in the file and body of each line up to the first that is not valid."""
    at = 0
    while at < len(data):
        end = data.find(b"\n", at) + 1
        body = unseal(data[at:end]) if end else None
        if body is None:
            if _holds_valid_line(data[at:]):
                raise MetadataError(str(path), f"damaged at byte {start + at}: valid lines follow")
            return
        yield start + at, body
        at = end


def _holds_valid_line(data: bytes) -> bool:
    for line in data.splitlines(keepends=True):
        # A damaged newline joins two lines: the second begins at the last prefix.
        if unseal(line) or unseal(line[line.rfind(_PREFIX) :]):
            return True
    return False


def crc32c(data: bytes) -> int:
    value: int = google_crc32c.value(data)
    return value
