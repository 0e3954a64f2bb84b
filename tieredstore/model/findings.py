"""The findings of an audit, a certification or a job, and how bad they are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Self

from tieredstore.model.values import SegmentType


class Severity(Enum):
    """What a finding means for those who read messages."""

    DAMAGE = "damage"
    """Something is missing or wrong, or a queue accepts no more messages."""
    LEFTOVER = "leftover"
    """It costs space, and nothing is missing."""
    NOTE = "note"
    """Worth knowing; found in sound tiers too."""


class FindingKind(StrEnum):
    """One word for each kind of finding, with its severity: damage by default."""

    severity: Severity

    def __new__(cls, word: str, severity: Severity = Severity.DAMAGE) -> Self:
        kind = str.__new__(cls, word)
        kind._value_ = word
        kind.severity = severity
        return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a finding is, for programs; what is unknown or does not apply is None.

    `path` names a queue, or the segment or file that has the byte `position`; for a queue,
    `position` is a byte of its commit log.
    """

    path: str = ""
    type: SegmentType | None = None
    base: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    position: int | None = None
    queue_offset: int | None = None


NOWHERE = Place()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding: `kind` is one word, `where` names the segment, queue or file for people.

    Only an audit repairs: `repairable` means that a repair would remove the finding, `repaired`
    that it has, and `failure` says why it could not.
    """

    severity: Severity
    kind: str
    where: str
    detail: str
    place: Place = NOWHERE
    repairable: bool = False
    repaired: bool = False
    failure: str = ""

    @classmethod
    def of_check(cls, check: str, passed: bool, detail: str = "") -> Finding:
        """The outcome of a check that a backend had to pass."""
        severity = Severity.NOTE if passed else Severity.DAMAGE
        return cls(severity=severity, kind=check, where="", detail=detail)

    @classmethod
    def of_damage(cls, kind: str, where: str, detail: str) -> Finding:
        return cls(severity=Severity.DAMAGE, kind=kind, where=where, detail=detail)

    @property
    def is_damage(self) -> bool:
        return self.severity is Severity.DAMAGE

    def row(self) -> dict[str, str | int | None]:
        """The finding in the JSON of a job's report."""
        row: dict[str, str | int | None] = {
            "severity": self.severity.value,
            "kind": str(self.kind),
            "where": self.where,
            "detail": self.detail,
        }
        if self.place != NOWHERE:
            row |= {
                "topic": self.place.topic,
                "queue_id": self.place.queue_id,
                "position": self.place.position,
                "queue_offset": self.place.queue_offset,
            }
        return row
