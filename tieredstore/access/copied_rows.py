"""What a copy of a catalogue does not know: segments that have expired since, and younger ones.

What lives here: finding them out where somebody stumbles over them. Where the catalogue itself is
read, missing bytes are damage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final, TypeAlias

from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import ListedSegment, SegmentProvider
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.values import SegmentType

LISTINGS_MAX: Final = 8  # more queues than that are listed with all others of their broker

_File: TypeAlias = tuple[str, SegmentType]


def refresh_copy(
    files: FlatFileStore, metadata: MetadataStore, provider: SegmentProvider, *paths: str
) -> None:
    """Refresh; of a copy, what it says of these queue paths is then compared with the backend."""
    files.refresh()
    amend_problems(files, metadata, provider, *paths)


def amend_problems(
    files: FlatFileStore, metadata: MetadataStore, provider: SegmentProvider, *paths: str
) -> None:
    """The same for a copy that was just opened, and for queues that have a problem.

    Only a backend that holds other segments explains such a problem away.
    """
    if not metadata.facts.copy:
        return
    doubtful = {*paths, *(file.path for file in files.files() if file.problem is not None)}
    if len(doubtful) > LISTINGS_MAX:
        doubtful = {path.split("/", 1)[0] for path in doubtful}
    if doubtful and amend_copy(metadata, provider, sorted(doubtful)):
        files.refresh()


def amend_copy(metadata: MetadataStore, provider: SegmentProvider, paths: Sequence[str]) -> int:
    """Bring a copy up to date at or below these paths; how many rows that concerned.

    One listing each. What is missing before all that is there has expired, and what lies behind
    the last one has come since; a hole is damage, here too. None where the catalogue is no copy.
    """
    if not metadata.facts.copy:
        return 0
    listed = _by_file(each for path in paths for each in provider.list(path))
    below = tuple(f"{path}/" for path in paths)
    rows: dict[_File, list[SegmentRecord]] = {}
    for row in metadata.segments():
        if f"{row.path}/".startswith(below):
            rows.setdefault((row.path, row.type), []).append(row)
    gone: list[SegmentRecord] = []
    come: list[SegmentRecord] = []
    for file, known in rows.items():
        bases = listed.get(file, [])
        expired = list(_expired(known, bases))
        gone += expired
        if file[1] is not SegmentType.INDEX:
            come += _younger(file, known[len(expired) :], bases)
    metadata.amend(gone=gone, come=come)
    return len(gone) + len(come)


def _by_file(listed: Iterable[ListedSegment]) -> dict[_File, list[int]]:
    found: dict[_File, list[int]] = {}
    for each in listed:
        found.setdefault((each.path, each.type), []).append(each.base)
    return found


def _expired(rows: Sequence[SegmentRecord], bases: Sequence[int]) -> Iterator[SegmentRecord]:
    there, last = set(bases), max(bases, default=-1)

    def has_gone(row: SegmentRecord) -> bool:
        # The last one may be of a segment that is still to be made, if it is empty. Others that
        # are came by an amendment, which does not know sizes.
        was_there = row.size > 0 or row.base_offset < last or row is not rows[-1]
        return was_there and row.base_offset not in there

    return takewhile(has_gone, rows)


def _younger(
    file: _File, rows: Sequence[SegmentRecord], bases: Sequence[int]
) -> Iterator[SegmentRecord]:
    """Without sizes: who opens the queue asks for them, and looks what its units bear out."""
    path, kind = file
    last = max((row.base_offset for row in rows), default=-1)
    return (
        SegmentRecord(path=path, type=kind, base_offset=base)
        for base in sorted(bases)
        if base > last
    )
