"""What a job has to say: its plan in numbers, what was found, what failed, and the exit code.

What lives here: values and their JSON. How a job runs is in `job`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from typing import Final

from tieredstore.access.care.audit_report import Severity
from tieredstore.driver.durable import write_atomically
from tieredstore.driver.metadata import Json
from tieredstore.model.errors import MetadataError, SegmentError

FINDINGS_MAX: Final = 1_000


class JobExit(IntEnum):
    """What a shell sees; the numbers are those of the command line."""

    DONE = 0
    DAMAGE = 4
    REFUSED = 5
    INTERRUPTED = 130


class JobState(Enum):
    """How a run ended."""

    DONE = "done"
    PLANNED = "planned"
    """A dry run: nothing was done."""
    INCOMPLETE = "incomplete"
    """Some items failed; another run does what is left."""
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinding:
    """One thing worth telling: `kind` is one word, `where` names the segment, queue or file."""

    severity: Severity
    kind: str
    where: str
    detail: str

    def row(self) -> dict[str, Json]:
        return {
            "severity": self.severity.value,
            "kind": self.kind,
            "where": self.where,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemFailure:
    """Why one item was not done: the error in one line."""

    error: str
    text: str
    is_damage: bool = False

    @classmethod
    def of(cls, error: BaseException) -> ItemFailure:
        damaged = isinstance(error, SegmentError) or (
            isinstance(error, MetadataError) and error.is_damage
        )
        text = " ".join(str(error).split()) or type(error).__name__
        return cls(error=type(error).__name__, text=text, is_damage=damaged)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """The outcome of a job; `counts`, `byte_counts` and `facts` have names of the job's own."""

    job: str
    state: JobState
    counts: Mapping[str, int] = field(default_factory=dict)
    byte_counts: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    findings: tuple[JobFinding, ...] = ()
    findings_left_out: int = 0
    failures: tuple[ItemFailure, ...] = ()
    facts: Mapping[str, Json] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    """The same for people."""

    @property
    def exit_code(self) -> JobExit:
        """Damage counts more than what was refused."""
        if any(each.severity is Severity.DAMAGE for each in self.findings) or any(
            each.is_damage for each in self.failures
        ):
            return JobExit.DAMAGE
        if self.failures or self.state is JobState.INCOMPLETE:
            return JobExit.REFUSED
        return JobExit.INTERRUPTED if self.state is JobState.INTERRUPTED else JobExit.DONE

    def row(self) -> dict[str, Json]:
        """What goes into a report file and to stdout with --json."""
        return {
            "job": self.job,
            "state": self.state.value,
            "exit_code": int(self.exit_code),
            "counts": dict(self.counts),
            "bytes": dict(self.byte_counts),
            "seconds": round(self.seconds, 3),
            "findings": [each.row() for each in self.findings],
            "findings_left_out": self.findings_left_out,
            "failures": [{"error": each.error, "text": each.text} for each in self.failures],
            "facts": dict(self.facts),
        }

    def write(self, path: str | Path) -> None:
        """The JSON report, whole or as it was before."""
        write_atomically(path, [self.file_bytes()])

    def file_bytes(self) -> bytes:
        """The JSON report as a file has it."""
        return (json.dumps(self.row(), indent=2) + "\n").encode()


def bounded(findings: list[JobFinding]) -> tuple[tuple[JobFinding, ...], int]:
    """The worst of them, at most FINDINGS_MAX, and how many were left out."""
    order = {severity: place for place, severity in enumerate(Severity)}
    worst = sorted(findings, key=lambda each: (order[each.severity], each.where, each.detail))
    return tuple(worst[:FINDINGS_MAX]), max(0, len(worst) - FINDINGS_MAX)
