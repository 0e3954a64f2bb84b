"""What a catalogue remembers of its own publishing: a note that goes where its file goes.

What lives here: `Lineage`, read from the notes and written as one. Without it nobody could tell a
catalogue that was restored from an old copy, or begun anew, from the one that was published.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from tieredstore.driver.metadata import Json, PutNote
from tieredstore.driver.published import LINEAGE
from tieredstore.metadata.published_format import PublishedHeader
from tieredstore.metadata.tables import Tables

TRIES_MAX: Final = 16  # of one generation, of which nobody knows whether they landed


@dataclass(frozen=True, slots=True)
class Try:
    """What one process wanted to publish: which of several came to be a generation shows in it."""

    writer: str
    body_crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Which published generations are of this catalogue: those of this `id` before `generation`,
    and that one if it is one of the `tries`: the number alone may be another writer's.

    Written before a generation is created, so that a crash cannot leave one that its own
    catalogue does not know; then again with the checksum of what was published.
    """

    id: str
    generation: int
    body_crc: int | None = None
    tries: tuple[Try, ...] = ()

    @classmethod
    def of(cls, tables: Tables, broker: str) -> Lineage | None:
        """None where nothing was published yet, or the note is not ours."""
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
            "tries": [[each.writer, each.body_crc] for each in self.tries],
        }
        return PutNote(LINEAGE, broker, value)

    def knows(self, header: PublishedHeader, body_crc: int) -> bool:
        """Whether this was published of this very file, as it is now or as it was before."""
        if header.lineage != self.id or header.generation > self.generation:
            return False
        is_older = header.generation < self.generation
        return is_older or Try(header.writer, body_crc) in self.tries

    def tried(self, generation: int) -> tuple[Try, ...]:
        """What may still become this generation, but for the oldest of very many."""
        return self.tries[1 - TRIES_MAX :] if generation == self.generation else ()


def _tries_of(rows: list[Json]) -> Iterator[Try]:
    for row in rows:
        match row:
            case [str(writer), int(crc)]:
                yield Try(writer, crc)
