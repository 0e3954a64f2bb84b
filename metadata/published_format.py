"""The format of a published catalogue: one JSON object in one line, checksummed as the journal's.

    {"crc":"1a2b3c4d",              CRC32C, in hex, over all bytes after the comma
     "format":1,
     "generation":…,                the number that is in the name too
     "epoch":…,                     how many writers have published so far, this one included
     "writer":"…","lineage":"…",    this process; the catalogue, wherever its file is moved
     "written_ms":…,"cluster":"…","broker":"…",
     "catalogue":{RocketMQ's own tables; integer keys in quotes},
     "notes":{kind:{key:value}}}

What lives here is pure: tables to bytes and back. When and where is in `catalogue_publisher` and
`published_store`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from tieredstore.driver.metadata import Json
from tieredstore.driver.published import LINEAGE
from tieredstore.metadata.journal import crc32c, seal, unseal
from tieredstore.metadata.tables import Tables
from tieredstore.model.errors import MetadataError

FORMAT: Final = 1
PUBLISHED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Some million segments. More is neither published nor read."""

_BODY: Final = b',"catalogue":'


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedHeader:
    """Who published what, and when."""

    generation: int
    epoch: int
    writer: str
    lineage: str
    written_ms: int
    cluster: str
    broker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCatalogue:
    """A whole one. `body_crc` is that of `body_of` for the same tables."""

    header: PublishedHeader
    tables: Tables
    body_crc: int


class _Format(msgspec.Struct):
    format: int


class _Line(msgspec.Struct):
    generation: int
    epoch: int
    writer: str
    lineage: str
    written_ms: int
    cluster: str
    broker: str
    catalogue: dict[str, msgspec.Raw]
    notes: dict[str, dict[str, msgspec.Raw]]


def body_of(tables: Tables) -> bytes:
    """What the tables say: the same bytes for the same rows and notes."""
    notes = {
        kind: {key: msgspec.Raw(text) for key, text in of_kind.items()}
        for kind, of_kind in tables.notes.items()
        if kind != LINEAGE
    }
    catalogue = msgspec.json.encode(tables.document())
    return b'"catalogue":%s,"notes":%s' % (catalogue, msgspec.json.encode(notes))


def encode(header: PublishedHeader, body: bytes) -> bytes:
    """The object. Raises ValueError where it would be larger than any reader takes."""
    facts = {
        "format": FORMAT,
        "generation": header.generation,
        "epoch": header.epoch,
        "writer": header.writer,
        "lineage": header.lineage,
        "written_ms": header.written_ms,
        "cluster": header.cluster,
        "broker": header.broker,
    }
    data = seal(b"%s,%s}" % (msgspec.json.encode(facts)[1:-1], body))
    if len(data) > PUBLISHED_BYTES_MAX:
        raise ValueError(f"it has {len(data)} bytes, more than {PUBLISHED_BYTES_MAX}")
    return data


def decode(data: bytes, place: str) -> PublishedCatalogue:
    """All that an object says. Raises MetadataError for what was not published so."""
    line = _line_of(data, place)
    try:
        document = {name: _json(raw) for name, raw in line.catalogue.items()}
        tables = Tables.from_document(document)
    except (ValueError, RecursionError) as error:
        raise MetadataError(place, f"it is no catalogue: {error}") from error
    # bytes(): a Raw keeps the whole object alive.
    tables.notes = {
        kind: {key: bytes(raw) for key, raw in of_kind.items()}
        for kind, of_kind in line.notes.items()
    }
    return PublishedCatalogue(header=_header(line), tables=tables, body_crc=crc32c(body_of(tables)))


def decode_header(data: bytes, place: str) -> tuple[PublishedHeader, int]:
    """Only who published it, and the checksum of its body; all of it is checked nevertheless."""
    header = _header(_line_of(data, place))
    # No string holds these bytes: quotes are escaped in strings.
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
    return PublishedHeader(
        generation=line.generation,
        epoch=line.epoch,
        writer=line.writer,
        lineage=line.lineage,
        written_ms=line.written_ms,
        cluster=line.cluster,
        broker=line.broker,
    )


def _json(raw: msgspec.Raw) -> Json:
    value: Json = msgspec.json.decode(raw)
    return value
