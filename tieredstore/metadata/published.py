"""A catalogue published next to its tier, in one generation after another, for readers elsewhere.

A generation is one JSON object in one line, with a checksum like a line of the journal:

    {"crc":"1a2b3c4d",              CRC32C, in hex, over all bytes after the comma
     "format":1,
     "generation":…,                the number, which is also in the name
     "epoch":…,                     how many writers have published so far, this one included
     "writer":"…","lineage":"…",    this process; the catalogue, wherever its file is moved
     "written_ms":…,"cluster":"…","broker":"…",
     "catalogue":{RocketMQ's own tables; integer keys in quotes},
     "notes":{kind:{key:value}}}
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from tieredstore.driver.metadata import (
    LINEAGE,
    PUBLISHED,
    UNPUBLISHED,
    CatalogueFacts,
    Change,
    DeleteSegment,
    Publisher,
    Put,
    PutNote,
    StaleCatalogueError,
)
from tieredstore.driver.provider import Generations, ListedGeneration
from tieredstore.metadata.journal import crc32c, seal, unseal
from tieredstore.metadata.memory_store import MemoryReads
from tieredstore.metadata.tables import Tables, describe
from tieredstore.model.errors import (
    MetadataError,
    OffsetOutOfRangeError,
    SegmentNotFoundError,
    TieredStoreError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import Json, SegmentRecord, TopicRecord

log = log_of(__name__)

FORMAT: Final = 1
PUBLISHED_BYTES_MAX: Final = 256 * 1024 * 1024
"""A few million segments. A larger catalogue is neither published nor read."""

_BODY: Final = b',"catalogue":'


class PublishedHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one generation: its writer, its number, its time."""

    generation: int
    epoch: int
    writer: str
    lineage: str
    written_ms: int
    cluster: str
    broker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCatalogue:
    """One generation. `body_crc` is the checksum of what `body_of` returns for these tables."""

    header: PublishedHeader
    tables: Tables
    body_crc: int


class _Format(msgspec.Struct):
    format: int


class _Line(PublishedHeader, frozen=True, kw_only=True):
    catalogue: dict[str, msgspec.Raw]
    notes: dict[str, dict[str, msgspec.Raw]]


describe(PublishedHeader, _Format, _Line)


def body_of(tables: Tables) -> bytes:
    """The tables as JSON: the same bytes for the same rows and notes."""
    notes = {
        kind: {key: msgspec.Raw(text) for key, text in of_kind.items()}
        for kind, of_kind in tables.notes.items()
        if kind not in UNPUBLISHED
    }
    catalogue = msgspec.json.encode(tables.document())
    return b'"catalogue":%s,"notes":%s' % (catalogue, msgspec.json.encode(notes))


def encode(header: PublishedHeader, body: bytes) -> bytes:
    """The object of a generation. Raises ValueError if it would be too large for readers."""
    facts = {"format": FORMAT, **msgspec.structs.asdict(header)}
    data = seal(b"%s,%s}" % (msgspec.json.encode(facts)[1:-1], body))
    if len(data) > PUBLISHED_BYTES_MAX:
        raise ValueError(f"it has {len(data)} bytes, more than {PUBLISHED_BYTES_MAX}")
    return data


def decode(data: bytes, place: str) -> PublishedCatalogue:
    """The contents of an object. Raises MetadataError if it is not a published catalogue."""
    line = _line_of(data, place)
    try:
        document = {name: _json(raw) for name, raw in line.catalogue.items()}
        tables = Tables.from_document(document)
    except (ValueError, RecursionError) as error:
        raise MetadataError(place, f"it is no catalogue: {error}") from error
    # bytes(), because a Raw keeps the whole object in memory.
    tables.notes = {
        kind: {key: bytes(raw) for key, raw in of_kind.items()}
        for kind, of_kind in line.notes.items()
    }
    return PublishedCatalogue(header=_header(line), tables=tables, body_crc=crc32c(body_of(tables)))


def decode_header(data: bytes, place: str) -> tuple[PublishedHeader, int]:
    """The header of an object, and the checksum of its body. The whole object is checked."""
    header = _header(_line_of(data, place))
    # No string contains these bytes, as quotes in strings are escaped.
    begin = data.find(_BODY) + 1
    return header, crc32c(data[begin : data.rindex(b"}")])


def _line_of(data: bytes, place: str) -> _Line:
    body = unseal(data)
    if body is None:
        raise MetadataError(place, "it is damaged: its checksum does not match")
    text = b"{" + body
    try:
        found = msgspec.json.decode(text, type=_Format).format
        if found != FORMAT:
            raise MetadataError(place, f"format {found} is newer than this version")
        return msgspec.json.decode(text, type=_Line)
    except (ValueError, RecursionError) as error:
        raise MetadataError(place, f"it is no published catalogue: {error}") from error


def _header(line: _Line) -> PublishedHeader:
    """The header alone, so that the tables do not stay in memory."""
    return msgspec.convert(line, PublishedHeader, from_attributes=True)


def _json(raw: msgspec.Raw) -> Json:
    value: Json = msgspec.json.decode(raw)
    return value


LOADS_MAX: Final = 8
"""How often a load starts again because newer generations replaced the listed one."""


class PublishedMetadataStore(MemoryReads):
    """One broker's published catalogue, read only.

    * It shows one generation; `refresh` changes to the newest, and costs one listing if that is
      still the same.
    * It may name segments that have expired since, and lack new ones. A reader that notices this
      amends it; a newer generation replaces the amendments.
    """

    def __init__(self, generations: Generations, found: PublishedCatalogue) -> None:
        super().__init__(found.tables, name=generations.describe())
        self._generations = generations
        self._header = found.header
        self._refreshing = threading.Lock()  # one thread at a time asks the backend

    @classmethod
    def open(cls, generations: Generations) -> PublishedMetadataStore | None:
        """The newest generation; None if there is none.

        Raises MetadataError if it is damaged, too large or of a newer format; BackendError.
        """
        found = _newest(generations, known=None)
        return None if found is None else cls(generations, found)

    @property
    def facts(self) -> CatalogueFacts:
        header = self.header
        return CatalogueFacts(
            source=PUBLISHED,
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
    """The newest generation; None if there is none, or none newer than the one that is known.

    Raises MetadataError if neither that one is there any more nor a newer one.
    """
    for _ in range(LOADS_MAX):
        listed = generations.listed()
        newest = listed[-1].number if listed else 0
        if known is not None and newest < known:
            reason = f"generation {known} was there, and now neither it nor a newer one is"
            raise MetadataError(generations.describe(), reason)
        if newest == (known or 0):
            return None
        try:
            return _read(generations, listed[-1])
        except SegmentNotFoundError:
            continue  # newer ones have replaced it
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


TRIES_MAX: Final = 16  # at one generation, whose outcomes are unknown


@dataclass(frozen=True, slots=True)
class Try:
    """An attempt to publish. It identifies which of several attempts became the generation."""

    writer: str
    body_crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Says which published generations come from this catalogue: those with this `id` before
    `generation`, and that one itself if it is one of the `tries`. Its number alone proves nothing,
    as another writer may have created it.

    It is noted before a generation is created, so that after a crash the catalogue knows every
    generation of its own; then again, with the checksum of what was published.
    """

    id: str
    generation: int
    body_crc: int | None = None
    tries: tuple[Try, ...] = ()

    @classmethod
    def of(cls, tables: Tables, broker: str) -> Lineage | None:
        """The lineage in the notes; None if nothing was published yet, or the note makes no
        sense."""
        text = tables.notes.get(LINEAGE, {}).get(broker)
        note: Json = None if text is None else msgspec.json.decode(text)
        match note:
            case {
                "id": str(name),
                "generation": int(generation),
                "crc32c": int() | None as crc,
                "tries": list(tries),
            }:
                return cls(id=name, generation=generation, body_crc=crc, tries=(*_tries_of(tries),))
        return None

    def note(self, broker: str) -> PutNote:
        value: Json = {
            "id": self.id,
            "generation": self.generation,
            "crc32c": self.body_crc,
            "tries": [[tried.writer, tried.body_crc] for tried in self.tries],
        }
        return PutNote(LINEAGE, broker, value)

    def knows(self, header: PublishedHeader, body_crc: int) -> bool:
        """Whether this generation was published from this file, in its present or an earlier
        state."""
        if header.lineage != self.id or header.generation > self.generation:
            return False
        is_older = header.generation < self.generation
        return is_older or Try(header.writer, body_crc) in self.tries

    def tried(self, generation: int) -> tuple[Try, ...]:
        """The attempts that may still become this generation, without the oldest if there are too
        many."""
        return self.tries[1 - TRIES_MAX :] if generation == self.generation else ()


def _tries_of(rows: list[Json]) -> Iterator[Try]:
    for row in rows:
        match row:
            case [str(writer), int(crc)]:
                yield Try(writer, crc)


KEPT: Final = 3
"""Generations that are kept, for readers that have listed them and are still reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSource:
    """The catalogue as its publisher sees it."""

    tables: Callable[[], tuple[Tables, int]]  # at present, and the number of the last change
    last_change: Callable[[], int]
    apply: Callable[[Iterable[Change]], None]
    now_ms: Callable[[], int]
    cluster: str
    broker: str


class CataloguePublisher(Publisher):
    """Publishes a writer's tables.

    The steps: list the generations; check that the newest is ours; note that the next one will be
    ours; create it, which only one writer can; note that it exists; delete old ones. A crash after
    any step leaves a whole newest generation, which the next process recognises as its own.
    """

    def __init__(self, source: PublishedSource, generations: Generations) -> None:
        self._source = source
        self._generations = generations
        self._writer = uuid.uuid4().hex
        self._guard = threading.Lock()  # only one thread publishes at a time
        self._opened_at = source.last_change()
        self._clean_at: int | None = None  # all changes up to this one are published
        self._known: Lineage | None = None  # in the file before this process changed it
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

    def adopt(self, changes: Iterable[Change]) -> None:
        with self._guard:
            listed = self._generations.listed()
            if not listed:
                self._source.apply(changes)
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
            self._note(self._known, changes)

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
        # Our own notes are changes too, but no reason to publish again.
        self._clean_at = change + own if self._source.last_change() == change + own else change
        return self._newest_of_ours()

    def _newest_of_ours(self) -> int | None:
        if self._published is not None:
            return self._published.generation
        return None if self._known is None else self._known.generation

    def _create(self, body: bytes, crc: int) -> int:
        """Create the next generation; return how many changes that made to the catalogue."""
        listed = self._generations.listed()
        self.is_unheard = not listed
        epoch = self._checked(listed)
        mine = self._published.generation if self._published is not None else 0
        noted = self._noted
        if noted is not None:  # readers may have what was published, though it was deleted
            mine = max(mine, noted.generation - (noted.body_crc is None))
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
        self.is_unheard = False
        self._published = header
        self._note(replace(lineage, body_crc=crc, tries=(mine_now,)))
        self._published_crc = crc
        self.published_count += 1
        self._delete_old(listed)
        return 2

    def _note(self, lineage: Lineage, changes: Iterable[Change] = ()) -> None:
        self._source.apply([*changes, lineage.note(self._source.broker)])
        self._noted = lineage

    def _lineage_id(self) -> str:
        if self._published is not None:
            return self._published.lineage
        return uuid.uuid4().hex if self._known is None else self._known.id

    def _checked(self, listed: Sequence[ListedGeneration]) -> int:
        """Our epoch. StaleCatalogueError if the newest generation is not ours to replace."""
        mine = self._published
        newest = listed[-1] if listed else None
        # A listing may lack our newest one.
        if mine is not None and (newest is None or newest.number <= mine.generation):
            return mine.epoch
        if newest is None:
            return 1
        found = self._header(newest)
        if found is None:
            return 1 if mine is None else mine.epoch
        header, crc = found
        if header.writer == self._writer:  # we created it, but the reply was lost
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
        """The newest generation's header and checksum. None if it is damaged and, by its number,
        ours: no reader can use it, so it may be replaced."""
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
        old = [generation.number for generation in listed][: -(KEPT - 1)]
        try:
            if old:
                self._generations.delete(old)
        except TieredStoreError as error:  # the next publication tries again
            log.info("old catalogues are left behind: %s", error)


def _is_empty(tables: Tables) -> bool:
    return not (tables.topics or tables.queues or any(tables.segments.values()))
