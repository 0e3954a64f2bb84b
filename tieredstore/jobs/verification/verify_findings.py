"""What a verification finds: the words for it, how bad each is, and rows of a bounded number.

What lives here: values and `Findings`, which collects them. How things are found out is in the
modules beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.access.care.audit_report import Severity
from tieredstore.driver.metadata import Json
from tieredstore.jobs.job_report import JobFinding
from tieredstore.jobs.verification.verify_sums import NO_SUMS, Sums
from tieredstore.model.values import QueueKey

FINDINGS_A_KIND: Final = 20  # of one piece of work; the rest is only counted


class VerifyKind(Enum):
    """One word for each thing that the bytes can have wrong."""

    LOST_BYTES = "lost-bytes"
    UNREADABLE = "unreadable"
    UNIT_BEYOND = "unit-beyond-log"
    NO_MESSAGE = "no-message"
    WRONG_OFFSET = "wrong-queue-offset"
    WRONG_QUEUE = "wrong-queue"
    WRONG_LOG_OFFSET = "wrong-log-offset"
    BODY_CRC = "body-crc"
    TAGS_CODE = "tags-code"
    STORE_TIME = "store-time"
    UNNAMED = "unnamed-message"
    INDEX_FILE = "index-file"
    INDEX_SLOT = "index-slot"
    INDEX_FOOTER = "index-footer"
    KEY_MISSING = "key-missing"
    KEY_UNFOUNDED = "key-unfounded"
    KEY_TIME = "key-time"
    # They cost space.
    SECOND_COPY = "second-copy"
    KEY_STALE = "key-stale"
    # A sound tier may have them.
    FILLED_IN = "filled-in"
    LOG_AHEAD = "log-ahead"
    KEYS_NOT_UPLOADED = "keys-not-uploaded"
    KEYS_EXPIRED = "keys-expired"
    KEYS_UNCOMPARED = "keys-not-compared"
    NO_INDEX = "no-index"
    OLD_INDEX = "old-index-file"


_NOTES: Final = frozenset(
    {
        *(VerifyKind.FILLED_IN, VerifyKind.LOG_AHEAD, VerifyKind.KEYS_NOT_UPLOADED),
        *(
            VerifyKind.KEYS_EXPIRED,
            VerifyKind.KEYS_UNCOMPARED,
            VerifyKind.NO_INDEX,
            VerifyKind.OLD_INDEX,
        ),
    }
)

_LEFTOVERS: Final = frozenset({VerifyKind.SECOND_COPY, VerifyKind.KEY_STALE})


def severity_of(kind: VerifyKind) -> Severity:
    if kind in _NOTES:
        return Severity.NOTE
    return Severity.LEFTOVER if kind in _LEFTOVERS else Severity.DAMAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyFinding(JobFinding):
    """One thing, and where: `where` is the path of a segment, a file or a queue.

    `position` is a byte of it, or of the queue's commit log where `where` is a queue.
    """

    topic: str | None = None
    queue_id: int | None = None
    position: int | None = None
    queue_offset: int | None = None

    def row(self) -> dict[str, Json]:
        return {
            **JobFinding.row(self),
            "topic": self.topic,
            "queue_id": self.queue_id,
            "position": self.position,
            "queue_offset": self.queue_offset,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRow:
    """What became of one piece of work."""

    findings: tuple[VerifyFinding, ...] = ()
    totals: Mapping[VerifyKind, int] = field(default_factory=dict)
    left_out: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    sums: Sums = field(default_factory=lambda: NO_SUMS)


class Findings:
    """Collects findings: the first of each kind, and how many there were."""

    def __init__(self, *, kept: int = FINDINGS_A_KIND) -> None:
        self._kept = kept
        self._found: list[VerifyFinding] = []
        self._described: Counter[VerifyKind] = Counter()
        self.totals: Counter[VerifyKind] = Counter()
        self.left_out = 0

    def room(self, kind: VerifyKind, count: int, *, stand_for: int | None = None) -> int:
        """How many of `count` findings are to be described; all that they stand for is counted."""
        kept = min(count, max(0, self._kept - self._described[kind]))
        self._described[kind] += kept
        self.left_out += count - kept
        self.totals[kind] += count if stand_for is None else stand_for
        return kept

    def rows(self, kind: VerifyKind, wrong: NDArray[np.bool_]) -> list[int]:
        """The first rows that are wrong, as many as are to be described."""
        places = np.flatnonzero(wrong)
        if not len(places):
            return []
        kept: list[int] = places[: self.room(kind, len(places))].tolist()
        return kept

    def describe(
        self,
        kind: VerifyKind,
        where: str,
        detail: str,
        *,
        key: QueueKey | None = None,
        position: int | None = None,
        queue_offset: int | None = None,
    ) -> None:
        """A finding that was counted by `room` or `rows`."""
        self._found.append(
            VerifyFinding(
                severity=severity_of(kind),
                kind=kind.value,
                where=where,
                detail=detail,
                topic=None if key is None else key.topic,
                queue_id=None if key is None else key.queue_id,
                position=position,
                queue_offset=queue_offset,
            )
        )

    def add(
        self,
        kind: VerifyKind,
        where: str,
        detail: str,
        *,
        key: QueueKey | None = None,
        position: int | None = None,
        queue_offset: int | None = None,
        count: int = 1,
    ) -> None:
        """One finding that stands for `count` things."""
        if self.room(kind, 1, stand_for=count):
            self.describe(
                kind, where, detail, key=key, position=position, queue_offset=queue_offset
            )

    def take(self, row: VerifyRow) -> None:
        """Those of another piece of work, all of them."""
        self._found += row.findings
        self.totals.update(row.totals)
        self.left_out += row.left_out

    def found(self) -> tuple[VerifyFinding, ...]:
        return tuple(self._found)
