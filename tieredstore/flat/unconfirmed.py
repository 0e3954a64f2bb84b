"""Messages that the backend has and the catalogue did not name: whether they are ours is not known.

What lives here: the note that remembers them, and taking them back. Another broker of the same
name, with a catalogue of its own, may have written them. Comparing them is for `access`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.metadata import Change, DeleteNote, MetadataStore, Put, PutNote
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.printable import log_of
from tieredstore.model.values import SegmentType

KIND: Final = "unconfirmed"
_FIELDS: Final = 5  # of a row in a note

log = log_of(__name__)


def note_of(path: str, rows: Sequence[SegmentRecord], metadata: MetadataStore) -> list[Change]:
    """A change that remembers rows as the catalogue had them before more was found behind them.

    What an earlier note says stays true until somebody has compared.
    """
    ends = [row.end_offset for row in rows if row.type is SegmentType.CONSUME_QUEUE]
    if not ends:
        return []
    first = min(ends) // UNIT_BYTES
    before = {(row.type.name, row.base_offset): _fields(row) for row in rows}
    earlier = _read(path, metadata)
    if earlier is not None:
        first = min(first, earlier[0])
        before.update(((each[0], each[1]), each) for each in earlier[1])
    return [PutNote(KIND, path, {"from": first, "rows": list(before.values())})]


def first_unconfirmed(path: str, metadata: MetadataStore) -> int | None:
    """The queue offset of the first of them; None if there is none."""
    note = _read(path, metadata)
    return None if note is None else note[0]


def forget(path: str, metadata: MetadataStore) -> list[Change]:
    return [] if metadata.note(KIND, path) is None else [DeleteNote(KIND, path)]


def confirm(file: FlatMessageFile, metadata: MetadataStore) -> None:
    """They are ours."""
    metadata.apply(forget(file.path, metadata))
    file.unconfirmed_from = None


def take_back(file: FlatMessageFile, metadata: MetadataStore) -> None:
    """They do not count: the queue ends where the catalogue had it end. No byte is touched.

    What is appended next is compared with what lies there, so nothing of ours is sent twice.
    For the one who appends to this queue; nothing may wait.
    """
    note = _read(file.path, metadata)
    changes = forget(file.path, metadata)
    for name, base, size, begin, end in () if note is None else note[1]:
        row = metadata.segment(file.path, SegmentType[name], base)
        if row is not None:  # else it was dropped meanwhile
            changes.append(Put(replace(row, size=size, begin_timestamp=begin, end_timestamp=end)))
    metadata.apply(changes)
    file.queue.load()  # before the log: no unit that can be read is without its record
    file.log.load()
    file.unconfirmed_from = None


def _read(path: str, metadata: MetadataStore) -> tuple[int, list[list[Any]]] | None:
    """What a note says; None where there is none, or none that makes sense."""
    note: Any = metadata.note(KIND, path)
    if note is None:
        return None
    try:
        rows = [[SegmentType[name].name, *map(_whole, rest)] for name, *rest in note["rows"]]
        if all(len(row) == _FIELDS and None not in row[:3] for row in rows):
            return int(note["from"]), rows
    except (KeyError, TypeError, ValueError):
        pass
    log.warning("%s: the catalogue has a note that makes no sense: %r", path, note)
    return None


def _whole(field: Any) -> int | None:
    return None if field is None else int(field)


def _fields(row: SegmentRecord) -> list[Any]:
    return [row.type.name, row.base_offset, row.size, row.begin_timestamp, row.end_timestamp]
