"""`PublishedMetadataStore`: a catalogue as it was last published, for readers elsewhere.

What lives here: finding the newest generation and reading it. What it lags behind by is for the
reader to deal with.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Final

from tieredstore.driver.generations import Generations, ListedGeneration
from tieredstore.driver.metadata import Change, DeleteSegment, Put
from tieredstore.driver.published import CatalogueFacts
from tieredstore.metadata.memory_reads import MemoryReads
from tieredstore.metadata.published_format import (
    PUBLISHED_BYTES_MAX,
    PublishedCatalogue,
    PublishedHeader,
    decode,
)
from tieredstore.model.catalogue import SegmentRecord, TopicRecord
from tieredstore.model.errors import MetadataError, OffsetOutOfRangeError, SegmentNotFoundError

LOADS_MAX: Final = 8
"""How often a load starts over because newer generations took the place of the one listed."""


class PublishedMetadataStore(MemoryReads):
    """One broker's published catalogue, read only.

    * What is shown is one generation, whole; `refresh` shows the newest, and costs one listing
      where that is still the same.
    * It may name segments that have expired since, and not those that came: who finds that out
      amends it, until a newer generation is there.
    """

    def __init__(self, generations: Generations, found: PublishedCatalogue) -> None:
        super().__init__(found.tables, name=generations.describe())
        self._generations = generations
        self._header = found.header
        self._refreshing = threading.Lock()  # one at a time asks the backend

    @classmethod
    def open(cls, generations: Generations) -> PublishedMetadataStore | None:
        """The newest generation; None where there is none.

        MetadataError where that is damaged, too large or of a newer format; BackendError.
        """
        found = _newest(generations, known=None)
        return None if found is None else cls(generations, found)

    @property
    def facts(self) -> CatalogueFacts:
        header = self.header
        return CatalogueFacts(
            source="published",
            place=self._name,
            copy=True,
            generation=header.generation,
            epoch=header.epoch,
            writer=header.writer,
            written_ms=header.written_ms,
        )

    @property
    def header(self) -> PublishedHeader:
        return self._header

    def refresh(self) -> None:
        with self._refreshing:
            self._require_open()
            found = _newest(self._generations, known=self._header.generation)
            if found is None:
                return
            with self._tables_lock:
                self._tables, self._header = found.tables, found.header

    def amend(self, *, gone: Sequence[SegmentRecord], come: Sequence[SegmentRecord]) -> None:
        changes: list[Change] = [DeleteSegment(row.path, row.type, row.base_offset) for row in gone]
        changes += map(Put, come)
        with self._tables_lock:
            self._open_tables().apply(changes)

    def apply(self, changes: Iterable[Change]) -> None:
        raise self._refused()

    def add_topic(self, topic: str, *, reserve_hours: int | None = None) -> TopicRecord:
        raise self._refused()

    def close(self) -> None:
        self._closed = True

    def _refused(self) -> MetadataError:
        self._require_open()
        return MetadataError(self._name, "what is published is read only: its writer replaces it")


def _newest(generations: Generations, *, known: int | None) -> PublishedCatalogue | None:
    """The newest generation; None if there is none, or none newer than the one that is known."""
    for _ in range(LOADS_MAX):
        listed = generations.listed()
        if not listed or (known is not None and listed[-1].number <= known):
            return None
        try:
            return _read(generations, listed[-1])
        except SegmentNotFoundError:
            continue  # newer ones have taken its place
    raise MetadataError(generations.describe(), f"it changed under the reader {LOADS_MAX} times")


def _read(generations: Generations, listed: ListedGeneration) -> PublishedCatalogue:
    place = f"{generations.describe()} generation {listed.number}"
    if listed.size > PUBLISHED_BYTES_MAX:
        raise MetadataError(
            place, f"it has {listed.size} bytes, more than {PUBLISHED_BYTES_MAX}: it is not read"
        )
    try:
        data = generations.read(listed)
    except OffsetOutOfRangeError as error:
        raise MetadataError(place, "it is shorter than its listing says") from error
    found = decode(data, place)
    if found.header.generation != listed.number:
        raise MetadataError(place, f"it says that it is generation {found.header.generation}")
    return found
