"""The smallest possible job, for tests of the engines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from tieredstore.jobs.job import JobReport, Plan, RowStream
from tieredstore.model.errors import BackendRefusedError, SegmentCorruptError


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingJob:
    """Squares numbers; refuses some, finds others damaged, and stumbles over some."""

    name: ClassVar[str] = "counting"
    count: int
    refused: frozenset[int] = frozenset()
    damaged: frozenset[int] = frozenset()
    stumbles: frozenset[int] = frozenset()

    def plan(self) -> Plan[int]:
        return Plan(
            items=range(self.count),
            item_bytes=[10] * self.count,
            counts={"numbers": self.count},
            lines=(f"{self.count} numbers",),
        )

    def work(self, item: int) -> Iterable[int]:
        if item in self.refused:
            raise BackendRefusedError(f"number {item}", "square", "not this one")
        if item in self.damaged:
            raise SegmentCorruptError(f"number {item}", "it is odd", position=item)
        if item in self.stumbles:
            raise ZeroDivisionError("a bug")
        yield item * item

    def finish(self, plan: Plan[int], rows: RowStream[int]) -> JobReport:
        total = sum(rows)
        return JobReport(
            job=self.name,
            state=rows.state,
            counts={"sum": total, "failed": rows.failed_count, "left": rows.not_begun_count},
            failures=tuple(rows.failures),
        )
