"""What an audit found: the words for it, and how bad each is.

What lives here: values. How it is found out is in `audit` and the modules beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from tieredstore.model.values import SegmentType


class Severity(Enum):
    """What a finding means for those who read messages."""

    DAMAGE = "damage"
    """Something is missing or wrong, or a queue takes nothing more."""
    LEFTOVER = "leftover"
    """It costs space, and nothing is missing."""
    NOTE = "note"
    """Worth knowing; a sound tier may have it."""


class FindingKind(Enum):
    """One word for each thing that can be wrong."""

    MISSING = "missing"
    SHORT = "short"
    OVERLAPPING = "overlapping"
    HOLE = "hole"
    MISALIGNED = "misaligned"
    UNITS_BEYOND = "units-beyond-log"
    DISORDER = "units-in-disorder"
    NO_MESSAGE = "no-message"
    UNKNOWN_QUEUE = "unknown-queue"
    UNKNOWN_TOPIC = "unknown-topic"
    STOPPED = "stopped-queue"
    UNREADABLE = "unreadable"
    ORPHANED = "orphaned"
    DOOMED = "doomed"
    ABANDONED_UPLOAD = "abandoned-upload"
    STRAY_PART = "stray-part"
    STAGED = "staged"
    PUBLISHED_DAMAGED = "published-damaged"
    PUBLISHED_MISSING = "published-missing"
    PUBLISHED_DIFFERS = "published-differs"
    PUBLISHED_BEHIND = "published-behind"
    ADOPTED = "adopted-history"
    BEHIND = "catalogue-behind"
    GAP = "gap"
    TAIL = "tail"


_LEFTOVERS: Final = frozenset(
    {
        FindingKind.ORPHANED,
        FindingKind.DOOMED,
        FindingKind.ABANDONED_UPLOAD,
        FindingKind.STRAY_PART,
        FindingKind.STAGED,
    }
)
_NOTES: Final = frozenset(
    {
        FindingKind.BEHIND,
        FindingKind.PUBLISHED_BEHIND,
        FindingKind.ADOPTED,
        FindingKind.GAP,
        FindingKind.TAIL,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing, of one segment or of a whole queue (`type` and `base` None).

    `repairable` means that a repair would do away with it, `repaired` that one has, and `failure`
    why it could not.
    """

    kind: FindingKind
    path: str
    detail: str
    type: SegmentType | None = None
    base: int | None = None
    repairable: bool = False
    repaired: bool = False
    failure: str = ""

    @property
    def severity(self) -> Severity:
        if self.kind in _LEFTOVERS:
            return Severity.LEFTOVER
        return Severity.NOTE if self.kind in _NOTES else Severity.DAMAGE

    @property
    def place(self) -> str:
        """The segment or the queue, in one word."""
        if self.type is None:
            return self.path
        return f"{self.path}/{self.type.name}/{self.base}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """All that was found, by place, and how much was looked at: `size` bytes of the catalogue's
    segments."""

    broker: str
    findings: tuple[Finding, ...]
    queue_count: int
    segment_count: int
    size: int

    @property
    def left(self) -> tuple[Finding, ...]:
        """What is so after the repair, if there was one."""
        return tuple(each for each in self.findings if not each.repaired)

    @property
    def damage(self) -> tuple[Finding, ...]:
        return tuple(each for each in self.left if each.severity is Severity.DAMAGE)

    @property
    def is_clean(self) -> bool:
        """Nothing is wrong and nothing is left over."""
        return all(each.severity is Severity.NOTE for each in self.left)
