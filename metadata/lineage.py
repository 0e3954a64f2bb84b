"""What a catalogue remembers of its own publishing: a note that goes where its file goes.

What lives here: `Lineage`, read from the notes and written as one. Without it nobody could tell a
catalogue that was restored from an old copy, or begun anew, from the one that was published.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tieredstore.driver.metadata import Json, PutNote
from tieredstore.metadata.published_format import LINEAGE
from tieredstore.metadata.tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Which published generations are of this catalogue: those of this `id`, up to `generation`.

    Written before a generation is created, so that a crash cannot leave one that its own
    catalogue does not know; then again with the checksum of what was published.
    """

    id: str
    generation: int
    body_crc: int | None = None

    @classmethod
    def of(cls, tables: Tables, broker: str) -> Lineage | None:
        """None where nothing was published yet, or the note is not ours."""
        text = tables.notes.get(LINEAGE, {}).get(broker)
        note: Json = None if text is None else msgspec.json.decode(text)
        match note:
            case {"id": str(name), "generation": int(generation), "crc32c": int() | None as crc}:
                return cls(id=name, generation=generation, body_crc=crc)
        return None

    def note(self, broker: str) -> PutNote:
        value: Json = {"id": self.id, "generation": self.generation, "crc32c": self.body_crc}
        return PutNote(LINEAGE, broker, value)
