"""Publishing a catalogue: one writer's part of a compare-and-swap among generations.

What lives here: `CataloguePublisher`: when there is something to publish, whether it is ours to
replace what is published, and the steps. When it is called is for the access layer.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tieredstore.driver.generations import Generations, ListedGeneration
from tieredstore.driver.metadata import Change
from tieredstore.driver.published import Publisher, StaleCatalogueError
from tieredstore.metadata.journal import crc32c
from tieredstore.metadata.lineage import Lineage, Try
from tieredstore.metadata.published_format import (
    PUBLISHED_BYTES_MAX,
    PublishedHeader,
    body_of,
    decode_header,
    encode,
)
from tieredstore.metadata.tables import Tables
from tieredstore.model.errors import MetadataError, SegmentNotFoundError, TieredStoreError
from tieredstore.model.printable import log_of

KEPT: Final = 3
"""Generations that stay: a reader that has listed them is still reading one."""

log = log_of(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSource:
    """The catalogue as its publisher sees it."""

    tables: Callable[[], tuple[Tables, int]]  # as they are now, and which change was the last
    last_change: Callable[[], int]
    apply: Callable[[Iterable[Change]], None]
    now_ms: Callable[[], int]
    cluster: str
    broker: str


class CataloguePublisher(Publisher):
    """Publishes what a writer's tables say.

    The steps: list the generations; see that the newest is ours; note that the next one is going
    to be ours; create it, which only one can; note that it is there; delete old ones. A crash
    after any of them leaves a newest generation that is whole, and that the next process knows
    for its own.
    """

    def __init__(self, source: PublishedSource, generations: Generations) -> None:
        self._source = source
        self._generations = generations
        self._writer = uuid.uuid4().hex
        self._guard = threading.Lock()  # one publishes at a time
        self._opened_at = source.last_change()
        self._clean_at: int | None = None  # all changes up to this one are published
        self._known: Lineage | None = None  # of the file, before this process added to it
        self._noted: Lineage | None = None  # in the file now
        self._is_begun = False
        self._published: PublishedHeader | None = None  # by this process
        self._published_crc: int | None = None
        self._stale: str | None = None

    @property
    def has_changes(self) -> bool:
        clean = self._opened_at if self._clean_at is None else self._clean_at
        return self._source.last_change() != clean

    def publish(self) -> int | None:
        with self._guard:
            try:
                self._refuse_stale()
                found = self._publish()
            except TieredStoreError as error:
                self.failure_count += 1
                self.problem = str(error)
                raise
            self.problem = None
            return found

    def check(self) -> None:
        with self._guard:
            self._refuse_stale()
            self._begin(self._source.tables()[0])
            self._checked(self._generations.listed())

    def adopt(self) -> None:
        with self._guard:
            listed = self._generations.listed()
            if not listed:
                return
            self._begin(self._source.tables()[0])
            newest = listed[-1]
            self._known = Lineage(id=self._lineage_id(), generation=newest.number)
            found = self._header(newest)
            if found is not None:
                header, crc = found
                tries = (Try(header.writer, crc),)
                self._known = replace(self._known, id=header.lineage, tries=tries)
            self._published_crc = self._stale = None
            self._note(self._known)

    def _refuse_stale(self) -> None:
        if self._stale is not None:
            raise StaleCatalogueError(self._generations.describe(), self._stale)

    def _begin(self, tables: Tables) -> None:
        if not self._is_begun:
            self._known = self._noted = Lineage.of(tables, self._source.broker)
            self._published_crc = None if self._known is None else self._known.body_crc
            self._is_begun = True

    def _publish(self) -> int | None:
        if self._clean_at == self._source.last_change():
            return self._newest_of_ours()
        tables, change = self._source.tables()
        self._begin(tables)
        body = body_of(tables)
        crc = crc32c(body)
        is_nothing = self._newest_of_ours() is None and _is_empty(tables)
        own = 0
        if not is_nothing and crc != self._published_crc:
            own = self._create(body, crc)
        # Our own notes are changes too, and no reason to look at it all again.
        self._clean_at = change + own if self._source.last_change() == change + own else change
        return self._newest_of_ours()

    def _newest_of_ours(self) -> int | None:
        if self._published is not None:
            return self._published.generation
        return None if self._known is None else self._known.generation

    def _create(self, body: bytes, crc: int) -> int:
        """One more generation; how many changes the catalogue had of it."""
        listed = self._generations.listed()
        epoch = self._checked(listed)
        mine = self._published.generation if self._published is not None else 0
        number = max(mine, listed[-1].number if listed else 0) + 1
        mine_now = Try(self._writer, crc)
        tries = () if self._noted is None else self._noted.tried(number)
        if mine_now not in tries:
            tries = (*tries, mine_now)
        lineage = Lineage(id=self._lineage_id(), generation=number, tries=tries)
        header = PublishedHeader(
            generation=number,
            epoch=epoch,
            writer=self._writer,
            lineage=lineage.id,
            written_ms=self._source.now_ms(),
            cluster=self._source.cluster,
            broker=self._source.broker,
        )
        try:
            data = encode(header, body)
        except ValueError as error:
            raise MetadataError(self._generations.describe(), f"not published: {error}") from error
        self._note(lineage)
        self._generations.create(number, data)
        self._published = header
        self._note(replace(lineage, body_crc=crc, tries=(mine_now,)))
        self._published_crc = crc
        self.published_count += 1
        self._delete_old(listed)
        return 2

    def _note(self, lineage: Lineage) -> None:
        self._source.apply([lineage.note(self._source.broker)])
        self._noted = lineage

    def _lineage_id(self) -> str:
        if self._published is not None:
            return self._published.lineage
        return uuid.uuid4().hex if self._known is None else self._known.id

    def _checked(self, listed: Sequence[ListedGeneration]) -> int:
        """Our epoch. StaleCatalogueError where what is newest is not ours to replace."""
        mine = self._published
        newest = listed[-1] if listed else None
        # A listing may not know our newest one yet.
        if mine is not None and (newest is None or newest.number <= mine.generation):
            return mine.epoch
        if newest is None:
            return 1
        found = self._header(newest)
        if found is None:
            return 1 if mine is None else mine.epoch
        header, crc = found
        if header.writer == self._writer:  # its reply was lost
            self._published = header
            return header.epoch
        if mine is None and self._noted is not None and self._noted.knows(header, crc):
            return header.epoch + 1
        self._stale = (
            f"generation {newest.number} is another writer's, or newer than this catalogue's file: "
            "this one publishes no more; stop all writers but one, and rebuild"
        )
        raise StaleCatalogueError(self._generations.describe(), self._stale)

    def _header(self, newest: ListedGeneration) -> tuple[PublishedHeader, int] | None:
        """None for a damaged one that must be ours, by its number: no reader can use it."""
        place = f"{self._generations.describe()} {newest.number}"
        try:
            if newest.size > PUBLISHED_BYTES_MAX:
                raise MetadataError(place, f"it has {newest.size} bytes")
            return decode_header(self._generations.read(newest), place)
        except SegmentNotFoundError as error:
            raise MetadataError(place, "a newer one is there by now") from error
        except MetadataError as error:
            if self._known is None or newest.number > self._known.generation:
                raise
            log.warning("%s is replaced: %s", place, error)
            return None

    def _delete_old(self, listed: Sequence[ListedGeneration]) -> None:
        old = [each.number for each in listed][: -(KEPT - 1)]
        try:
            if old:
                self._generations.delete(old)
        except TieredStoreError as error:  # the next one that is published tries again
            log.info("old catalogues are left behind: %s", error)


def _is_empty(tables: Tables) -> bool:
    return not (tables.topics or tables.queues or any(tables.segments.values()))
