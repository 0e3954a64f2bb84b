"""Segments that the catalogue no longer names, but whose bytes may still be there.

What lives here: the notes that remember them until they are deleted. Which segments go, and when,
is for `expiry` and `file_store` to say.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tieredstore.driver.metadata import Change, DeleteNote, DeleteSegment, MetadataStore, PutNote
from tieredstore.driver.provider import SegmentProvider
from tieredstore.flat.flat_segment import FlatSegment
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.values import SegmentType

KIND = "doomed"

log = logging.getLogger(__name__)


def key_of(record: SegmentRecord) -> str:
    return f"{record.path}/{record.type.name}/{record.base_offset}"


def doom(records: Iterable[SegmentRecord]) -> list[Change]:
    """Changes that forget segments and remember, together, that their bytes have to go."""
    changes: list[Change] = []
    for record in records:
        changes.append(DeleteSegment(record.path, record.type, record.base_offset))
        changes.append(PutNote(KIND, key_of(record), record.create_timestamp))
    return changes


def bury(segments: Iterable[FlatSegment]) -> list[SegmentRecord]:
    """Delete the bytes of segments that the catalogue has forgotten; the rows of those gone."""
    gone = []
    for each in segments:
        try:
            each.segment.delete()
            gone.append(each.record)
        except TieredStoreError as error:
            log.warning("%s is no longer used but not deleted: %s", each.segment.path, error)
        each.segment.close()
    return gone


def forgive(records: Iterable[SegmentRecord]) -> list[Change]:
    """Changes for segments whose bytes are gone."""
    return [DeleteNote(KIND, key_of(record)) for record in records]


def finish(provider: SegmentProvider, metadata: MetadataStore, path: str | None = None) -> int:
    """Delete what is doomed, of one queue path or all; how many segments are still there.

    Each is tried once. What the catalogue names again is no longer doomed.
    """
    done: list[Change] = []
    left = 0
    for key in metadata.notes(KIND):
        queue_path, type_name, base = key.rsplit("/", 2)
        if path is not None and queue_path != path:
            continue
        kind = SegmentType[type_name]
        try:
            if metadata.segment(queue_path, kind, int(base)) is None:
                with provider.open(queue_path, kind, int(base)) as segment:
                    segment.delete()
            done.append(DeleteNote(KIND, key))
        except TieredStoreError as error:
            log.warning("%s is no longer used but not deleted: %s", key, error)
            left += 1
    if done:
        metadata.apply(done)
    return left
