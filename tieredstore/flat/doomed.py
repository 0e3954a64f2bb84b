"""Segments that the catalogue no longer names, but whose bytes may still be there.

What lives here: the notes that remember them until they are deleted, and deleting them. Which
segments go, and when, is for `expiry` and `file_store` to say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from tieredstore.driver.metadata import Change, DeleteNote, DeleteSegment, MetadataStore, PutNote
from tieredstore.driver.provider import SegmentProvider
from tieredstore.flat.flat_segment import FlatSegment
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.errors import BackendUnavailableError, StoreClosedError, TieredStoreError
from tieredstore.model.printable import log_of
from tieredstore.model.values import SegmentType

KIND: Final = "doomed"
WAIT_SECONDS: Final = 5.0  # for somebody who deletes bytes of the same queue

log = log_of(__name__)


def key_of(record: SegmentRecord) -> str:
    return _key(record.path, record.type, record.base_offset)


def doom(records: Iterable[SegmentRecord]) -> list[Change]:
    """Changes that forget segments and remember, together, that their bytes have to go."""
    changes: list[Change] = []
    for record in records:
        changes.append(DeleteSegment(record.path, record.type, record.base_offset))
        changes.append(PutNote(KIND, key_of(record), record.create_timestamp))
    return changes


def bury(segments: Iterable[FlatSegment]) -> list[SegmentRecord]:
    """Delete the bytes of segments that the catalogue has forgotten; the rows of those gone.

    After one that the backend could not be reached for the others are left for later.
    """
    gone = []
    is_reached = True
    for each in segments:
        try:
            if is_reached:
                each.segment.delete()
                gone.append(each.record)
        except TieredStoreError as error:
            log.warning("%s is no longer used but not deleted: %s", each.segment.path, error)
            is_reached = not isinstance(error, BackendUnavailableError)
        each.segment.close()
    return gone


def forgive(records: Iterable[SegmentRecord]) -> list[Change]:
    """Changes for segments whose bytes are gone."""
    return [DeleteNote(KIND, key_of(record)) for record in records]


class Leftovers:
    """Deletes what is doomed, queue by queue; one of these for all who write a tier.

    A queue path is in one thread's hands at a time, from the look at its notes to their end: who
    is done with a path knows that no delete of it is under way, and may use its offsets again.
    """

    def __init__(self, provider: SegmentProvider, metadata: MetadataStore) -> None:
        self._provider = provider
        self._metadata = metadata
        self._busy: set[str] = set()
        self._changed = threading.Condition()
        self._unreadable: set[str] = set()

    def finish(self, *, is_stopped: Callable[[], bool] = lambda: False) -> int:
        """Delete what is doomed; how many segments are still there.

        Each is tried once, the rest not at all where the backend cannot be reached. A path that
        somebody else is at is left to him.
        """
        paths = dict.fromkeys(path for path, _, _ in self._doomed())
        for path in paths:
            if is_stopped():
                break
            with self._alone_at(path, seconds=0) as alone:
                if alone and not self._finish(path, is_stopped):
                    break
        return sum(1 for _ in self._doomed())

    def finish_path(self, path: str, *, seconds: float) -> int:
        """The same for one queue, alone: who is at it is waited for that long. Counts as still
        there what he may be deleting."""
        with self._alone_at(path, seconds=seconds) as alone:
            if alone:
                self._finish(path, lambda: False)
            left = sum(1 for each, _, _ in self._doomed() if each == path)
            return left if alone else max(1, left)

    def _finish(self, path: str, is_stopped: Callable[[], bool]) -> bool:
        """Whether the backend could be reached."""
        done: list[Change] = []
        is_reached = True
        # Looked at just now: what was doomed a while ago may have gone, and have come again.
        for record_path, kind, base in list(self._doomed()):
            if record_path != path or is_stopped():
                continue
            try:
                if self._metadata.segment(path, kind, base) is None:
                    with self._provider.open(path, kind, base) as segment:
                        segment.delete()
                done.append(DeleteNote(KIND, _key(path, kind, base)))
            except TieredStoreError as error:
                log.warning("%s is no longer used but not deleted: %s", path, error)
                if isinstance(error, (BackendUnavailableError, StoreClosedError)):
                    is_reached = False
                    break
        if done:
            self._metadata.apply(done)
        return is_reached

    def _doomed(self) -> Iterator[tuple[str, SegmentType, int]]:
        for key in self._metadata.notes(KIND):
            try:
                path, type_name, base = key.rsplit("/", 2)
                found = path, SegmentType[type_name], int(base)
                if key != _key(*found):
                    raise ValueError(key)
            except (KeyError, ValueError):
                if key not in self._unreadable:
                    self._unreadable.add(key)
                    log.warning("the catalogue has a note of something to delete: %r", key)
                continue
            yield found

    @contextmanager
    def _alone_at(self, path: str, *, seconds: float) -> Iterator[bool]:
        with self._changed:
            is_free = self._changed.wait_for(lambda: path not in self._busy, seconds)
            if is_free:
                self._busy.add(path)
        try:
            yield is_free
        finally:
            if is_free:
                with self._changed:
                    self._busy.discard(path)
                    self._changed.notify_all()


def finish(provider: SegmentProvider, metadata: MetadataStore, path: str | None = None) -> int:
    """Delete what is doomed, of one path or all; for a caller who is alone there."""
    leftovers = Leftovers(provider, metadata)
    return leftovers.finish() if path is None else leftovers.finish_path(path, seconds=WAIT_SECONDS)


def _key(path: str, type: SegmentType, base: int) -> str:
    return f"{path}/{type.name}/{base}"
