"""What the catalogue says and what the backend has, taken so that a live writer does no harm.

What lives here: `TierFacts`. What follows from the two is in `audit_segments` and `audit_units`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import SegmentProvider
from tieredstore.flat import doomed
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.errors import SegmentNotFoundError
from tieredstore.model.values import SegmentType

SegmentKey: TypeAlias = tuple[str, SegmentType, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFacts:
    """The segments of one broker.

    The catalogue is read before the backend and after it: what was committed before must be there,
    and what came in between is nobody's orphan.
    """

    files: Mapping[tuple[str, SegmentType], list[SegmentRecord]]  # by base
    sizes: Mapping[SegmentKey, int]
    unnamed: tuple[SegmentKey, ...]  # there, in no row and not doomed
    doomed: tuple[str, ...]

    @classmethod
    def gather(cls, metadata: MetadataStore, provider: SegmentProvider, broker: str) -> TierFacts:
        below = f"{broker}/"
        metadata.refresh()
        before = _rows(metadata, below)
        provider.refresh()
        sizes = {(each.path, each.type, each.base): each.size for each in provider.list(broker)}
        metadata.refresh()
        after = _rows(metadata, below)
        notes = tuple(key for key in metadata.notes(doomed.KIND) if key.startswith(below))
        rows = [row for key, row in before.items() if key in after]
        for row in rows:
            key = _key(row)
            if sizes.get(key, 0) < row.size:  # a listing may be older than its writer
                sizes[key] = _size(provider, row)
        # What somebody has committed meanwhile is not behind.
        rows = [_grown(row, after[_key(row)], sizes.get(_key(row), 0)) for row in rows]
        rows.sort(key=lambda row: (row.path, row.type, row.base_offset))
        grouped = groupby(rows, key=lambda row: (row.path, row.type))
        named = {*before, *after}
        return cls(
            files={file: list(of_file) for file, of_file in grouped},
            sizes=sizes,
            unnamed=tuple(
                key
                for key in sorted(sizes.keys() - named)
                if f"{key[0]}/{key[1].name}/{key[2]}" not in notes
            ),
            doomed=tuple(sorted(notes)),
        )

    def size(self, row: SegmentRecord) -> int:
        """In the backend."""
        return self.sizes.get(_key(row), 0)


def _rows(metadata: MetadataStore, below: str) -> dict[SegmentKey, SegmentRecord]:
    return {_key(row): row for row in metadata.segments() if row.path.startswith(below)}


def _key(row: SegmentRecord) -> SegmentKey:
    return row.path, row.type, row.base_offset


def _size(provider: SegmentProvider, row: SegmentRecord) -> int:
    with provider.open(row.path, row.type, row.base_offset) as segment:
        try:
            return segment.size()
        except SegmentNotFoundError:
            return 0


def _grown(row: SegmentRecord, later: SegmentRecord, size: int) -> SegmentRecord:
    return replace(row, size=max(row.size, min(later.size, size)))
