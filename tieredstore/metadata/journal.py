"""The journal of a catalogue: checksummed lines of JSON, each appended durably.

    line      {"crc":"1a2b3c4d",<body>}\n       CRC32C, in hex, over all bytes after the comma
    header    "line":0,"format":1,"snapshot":{"length":…,"crc32c":…} or null if there was none
    commit    "line":n,"changes":[…]             one batch, whole or not at all
    compact   "line":n,"next":{"length":…,"crc32c":…}    the snapshot that includes all lines above

A line is synced before the next is written, so only the last can be torn. An invalid line that a
valid one follows is damage. The changes of a commit:

    {"put":"topic" | "queue" | "segment","row":{RocketMQ's fields}}
    {"put":"note","kind":…,"key":…,"value":…}
    {"delete":"topic","topic":…}
    {"delete":"queue","topic":…,"queueId":…}
    {"delete":"segment","path":…,"type":…,"baseOffset":…}
    {"delete":"note","kind":…,"key":…}
"""

from __future__ import annotations

import contextlib
import errno
import operator
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import google_crc32c
import msgspec

from tieredstore.codec.fastjson import refuse_deep
from tieredstore.driver.durable import fsync_directory, write_all, write_atomically
from tieredstore.driver.metadata import (
    Change,
    DeleteNote,
    DeleteQueue,
    DeleteSegment,
    DeleteTopic,
    Put,
    PutNote,
)
from tieredstore.metadata import tables
from tieredstore.model.errors import MetadataError
from tieredstore.model.values import Json, QueueRecord, SegmentRecord, SegmentType, TopicRecord

FORMAT: Final = 1
_PREFIX: Final = b'{"crc":"'
_BODY_AT: Final = len(_PREFIX) + 8 + len(b'",')
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})


class NotWrittenError(OSError):
    """A line was not written, and the journal is as it was before."""


class JournalFile:
    """The journal as its one writer uses it. The file is created with its first line.

    After an error nothing may be appended, because it is unknown whether the line is durable;
    except after `NotWrittenError`. Only one thread at a time may call it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._lines = 0
        self.bytes_count = 0

    @classmethod
    def resume(cls, path: Path, contents: JournalContents) -> JournalFile:
        """Continue after the whole lines; a torn tail is cut off. Then all that was read is
        durable."""
        journal = cls(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if contents.torn_bytes:
                os.ftruncate(descriptor, contents.whole_bytes)
            # Lines of a writer that was killed may be only in memory, and readers see them now.
            os.fsync(descriptor)
            fsync_directory(path.parent)
        except BaseException:
            os.close(descriptor)
            raise
        journal._descriptor = descriptor
        journal._lines = contents.lines
        journal.bytes_count = contents.whole_bytes
        return journal

    @property
    def exists(self) -> bool:
        return self._descriptor is not None

    def commit(self, encoded_changes: Sequence[bytes], snapshot: SnapshotName | None) -> None:
        """Append one batch. If it is the first, the journal follows `snapshot`."""
        if self._descriptor is None:
            self._create(header_line(snapshot), commit_line(1, encoded_changes))
        else:
            self._append(commit_line(self._lines, encoded_changes))

    def name_next(self, snapshot: SnapshotName) -> None:
        """Append a line that says that `snapshot`, once it has its name, includes this journal."""
        if self._descriptor is not None:
            self._append(compact_line(self._lines, snapshot))

    def remove(self) -> None:
        self.close()
        self._lines = self.bytes_count = 0
        # The name of the snapshot that replaces the journal must be durable first.
        fsync_directory(self._path.parent)
        self._path.unlink(missing_ok=True)
        fsync_directory(self._path.parent)

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def _create(self, *lines: bytes) -> None:
        try:
            write_atomically(self._path, lines)
        except OSError as error:
            if not os.path.lexists(self._path):
                raise NotWrittenError(error.errno, error.strerror) from error
            raise
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._lines = len(lines)
        self.bytes_count = sum(map(len, lines))

    def _append(self, line: bytes) -> None:
        assert self._descriptor is not None
        try:
            self._write(self._descriptor, line)
            os.fdatasync(self._descriptor)
        except NotWrittenError:
            raise
        except BaseException:
            # After a failed sync, the line may be in memory, where a reader takes it for durable.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.bytes_count)
            raise
        self._lines += 1
        self.bytes_count += len(line)

    def _write(self, descriptor: int, line: bytes) -> None:
        try:
            write_all(descriptor, line, self.bytes_count)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            # It was never whole, so no reader has taken it. Without its beginning all is as before.
            os.ftruncate(descriptor, self.bytes_count)
            raise NotWrittenError(error.errno, error.strerror) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotName:
    """What identifies a snapshot: its length and its CRC32C."""

    length: int
    crc32c: int

    @classmethod
    def of(cls, data: bytes) -> SnapshotName:
        return cls(length=len(data), crc32c=crc32c(data))

    def to_json(self) -> str:
        return f'{{"length":{self.length},"crc32c":{self.crc32c}}}'


@dataclass(slots=True, kw_only=True)
class JournalContents:
    """The contents of a journal's whole lines, after which `torn_bytes` follow."""

    has_header: bool = False
    snapshot: SnapshotName | None = None
    next_snapshot: SnapshotName | None = None
    changes: list[Change] = field(default_factory=list)
    commits: int = 0
    lines: int = 0
    whole_bytes: int = 0
    torn_bytes: int = 0
    last_at: int = 0
    last_seal: bytes = b""  # the first bytes of the last whole line, with its checksum


def encode(change: Change) -> tuple[Change, bytes]:
    """The change as a reader of the journal will see it, and its JSON.

    That change shares nothing that the caller could still modify. Raises ValueError, naming the
    row, for a change that could not be read back.
    """
    try:
        if isinstance(change, PutNote):
            refuse_deep(change.value)
        data = msgspec.json.encode(to_json(change))
        seen = from_json(msgspec.json.decode(data))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{_name(change)}: {error}") from error
    if isinstance(change, PutNote) and seen != change:
        # JSON turns NaN into null, tuples into lists, integer keys into strings.
        raise ValueError(f"{_name(change)}: the value is no JSON")
    return seen, data


def to_json(change: Change) -> Json:
    match change:
        case Put(TopicRecord() as record):
            return {"put": "topic", "row": tables.topic_row(record)}
        case Put(QueueRecord() as record):
            return {"put": "queue", "row": tables.queue_row(record)}
        case Put(SegmentRecord() as record):
            return {"put": "segment", "row": tables.segment_row(record)}
        case PutNote(kind, key, value):
            return {"put": "note", "kind": kind, "key": key, "value": value}
        case DeleteTopic(topic):
            return {"delete": "topic", "topic": topic}
        case DeleteQueue(topic, queue_id):
            number = operator.index(queue_id)
            return {"delete": "queue", "topic": topic, "queueId": number}
        case DeleteSegment(path, type, base_offset):
            base = operator.index(base_offset)
            return {"delete": "segment", "path": path, "type": int(type), "baseOffset": base}
        case DeleteNote(kind, key):
            return {"delete": "note", "kind": kind, "key": key}
    raise ValueError("it is no change of the catalogue")


def from_json(value: Json) -> Change:
    """The change that a line contains. Raises ValueError if this version does not know it."""
    match value:
        case {"put": "segment", "row": dict(row)}:  # first, as by far the most frequent
            return Put(tables.read_segment(row))
        case {"put": "topic", "row": dict(row)}:
            return Put(tables.read_topic(row))
        case {"put": "queue", "row": dict(row)}:
            return Put(tables.read_queue(row))
        case {"put": "note", "kind": str(kind), "key": str(key), "value": note}:
            return PutNote(kind, key, note)
        case {"delete": "topic", "topic": str(topic)}:
            return DeleteTopic(topic)
        case {"delete": "queue", "topic": str(topic), "queueId": int(queue_id)}:
            return DeleteQueue(topic, queue_id)
        case {"delete": "segment", "path": str(path), "type": int(type), "baseOffset": int(base)}:
            return DeleteSegment(path, SegmentType(type), base)
        case {"delete": "note", "kind": str(kind), "key": str(key)}:
            return DeleteNote(kind, key)
    raise ValueError(f"unknown change {str(value)[:60]}")


def read_journal(
    data: bytes, path: Path, *, after: JournalContents | None = None
) -> JournalContents:
    """The contents of a journal, or of `data` that was appended `after` an earlier read.

    Raises MetadataError, naming the byte, for damage and for lines of an unknown format.
    """
    contents = JournalContents()
    if after is not None:
        contents.has_header = after.has_header
        contents.lines, contents.whole_bytes = after.lines, after.whole_bytes
        contents.last_at, contents.last_seal = after.last_at, after.last_seal
    start = contents.whole_bytes
    for position, body in _whole_lines(data, path, start):
        try:
            _take(contents, msgspec.json.decode(b"{" + body))
        except (ValueError, RecursionError) as error:
            raise MetadataError(str(path), f"line at byte {position}: {error}") from error
        contents.whole_bytes = position + _BODY_AT + len(body) + 1
        contents.last_at = position
        contents.last_seal = data[position - start : position - start + _BODY_AT]
    contents.torn_bytes = start + len(data) - contents.whole_bytes
    return contents


def seal(body: bytes) -> bytes:
    """A line; `body` is the inside of a JSON object, with the closing brace."""
    return b'%s%08x",%s\n' % (_PREFIX, crc32c(body), body)


def unseal(line: bytes) -> bytes | None:
    """The body of a line, given with its newline; None if it is not as it was written."""
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


def crc32c(data: bytes) -> int:
    value: int = google_crc32c.value(data)
    return value


def _name(change: Change) -> str:
    if isinstance(change, Put) and isinstance(
        change.record, TopicRecord | QueueRecord | SegmentRecord
    ):
        return tables.row_name(change.record)
    if isinstance(change, PutNote):
        return f"note {change.kind} {change.key}"
    return f"{change!r:.60}"


def _take(contents: JournalContents, line: Any) -> None:
    contents.next_snapshot = None  # it stands for the lines above it: a line below voids it
    match line:
        case {"line": 0, "format": format, "snapshot": snapshot} if contents.lines == 0:
            if format != FORMAT:
                raise ValueError(f"format {format} is newer than this version")
            contents.has_header = True
            contents.snapshot = _snapshot_name(snapshot)
        case {"line": number, "changes": [*batch]} if number == contents.lines > 0:
            contents.changes.extend(from_json(change) for change in batch)
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
    """Position in the file and body of each line, up to the first invalid one."""
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
