"""The shape of a job: plan, items, result rows, finish.

What lives here: `Job`, what passes between it and its engine, and `run_job`. No engine: threads
are in `local_engine`, Spark is a face above.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from tieredstore.driver.metadata import Json
from tieredstore.driver.runtime import Clock
from tieredstore.jobs.job_report import ItemFailure, JobReport, JobState

ItemT = TypeVar("ItemT")
RowT = TypeVar("RowT")

FAILURES_MAX: Final = 100
HOPELESS_FAILURES: Final = 50  # so many, and nothing that went well: the rest would fail too


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Generic[ItemT]):
    """What is to be done, known before a byte is moved.

    Items are small and pickle: an item holds names, ranges and catalogue rows, never a client.
    `item_bytes` says how much each of them moves, for the progress; it may be left empty.
    """

    items: Sequence[ItemT]
    item_bytes: Sequence[int] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    byte_counts: Mapping[str, int] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)
    """By the names of the price table, where an object store is asked."""
    dollars: float | None = None
    lines: tuple[str, ...] = ()
    """The same for people."""
    facts: Mapping[str, Json] = field(default_factory=dict)

    @property
    def bytes_total(self) -> int:
        return sum(self.item_bytes)

    def bytes_of(self, number: int) -> int:
        return self.item_bytes[number] if self.item_bytes else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemResult(Generic[RowT]):
    """What became of one item: its rows, or why there are none."""

    number: int
    rows: tuple[RowT, ...] = ()
    failure: ItemFailure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a job is. `bytes_total` is 0 where nobody knows."""

    items_done: int
    items_total: int
    bytes_done: int
    bytes_total: int


OnProgress: TypeAlias = Callable[[Progress], None]
"""Called now and then, by one thread at a time. What it raises ends the job."""


class RowStream(Generic[RowT]):
    """The rows of all items, as they come; afterwards what has failed or was never begun.

    Iterate once. The first FAILURES_MAX failures are kept, all of them are counted. Where the
    first HOPELESS_FAILURES items failed and no other went well, it ends: rights are missing.
    """

    def __init__(self, results: Iterator[ItemResult[RowT]], *, item_count: int) -> None:
        self._results = results
        self.item_count = item_count
        self.done_count = 0
        self.failed_count = 0
        self.failures: list[ItemFailure] = []

    def __iter__(self) -> Iterator[RowT]:
        for result in self._results:
            if result.failure is None:
                self.done_count += 1
                yield from result.rows
                continue
            self.failed_count += 1
            if len(self.failures) < FAILURES_MAX:
                self.failures.append(result.failure)
            if not self.done_count and self.failed_count >= HOPELESS_FAILURES:
                return

    @property
    def not_begun_count(self) -> int:
        """Items that nobody has worked on: the job was stopped."""
        return self.item_count - self.done_count - self.failed_count

    @property
    def state(self) -> JobState:
        if self.failed_count:
            return JobState.INCOMPLETE
        return JobState.INTERRUPTED if self.not_begun_count else JobState.DONE


class Job(Protocol[ItemT, RowT]):
    """Something done to a whole tier; a frozen dataclass of settings that pickles.

    * `plan` and `finish` run on the driver, once each. `work` runs anywhere, on many items at a
      time, and twice where a task is tried again or speculated on: it is idempotent.
    * Rows are small: a count, a checksum, a finding; never the bytes of a message.
    * What others see changes in `finish`, in one atomic step. A job that was killed before that
      has left nothing that looks whole, and another run goes on from what is there.
    """

    @property
    def name(self) -> str: ...

    def plan(self) -> Plan[ItemT]: ...

    def work(self, item: ItemT) -> Iterable[RowT]: ...

    def finish(self, plan: Plan[ItemT], rows: RowStream[RowT]) -> JobReport:
        """Take all rows, make the result visible. `rows.failures` counts after the last row."""


@runtime_checkable
class Continued(Protocol):
    """A job whose next step can be planned only when this one is done; `run_job` does both."""

    def following(self, report: JobReport) -> Job[Any, Any] | None:
        """The next step; None where there is none, or this one did not come to its end."""


class Engine(Protocol):
    """Runs the items of a job: one failing item loses no other's rows."""

    def results(
        self, job: Job[ItemT, RowT], plan: Plan[ItemT], *, on_progress: OnProgress
    ) -> Generator[ItemResult[RowT], None, None]:
        """One result for each item, in no order. Closing it begins no further item."""


def no_progress(progress: Progress) -> None:
    """For who does not want to know."""


def run_job(
    job: Job[ItemT, RowT],
    engine: Engine,
    *,
    clock: Clock,
    dry_run: bool = False,
    on_plan: Callable[[Plan[ItemT]], None] | None = None,
    on_progress: OnProgress = no_progress,
) -> JobReport:
    """Plan, work and finish. What the plan refuses is raised; what items meet is in the report.

    Of a job of several steps the first plan is told, and the last report.
    """
    begun = clock.monotonic()
    plan = job.plan()
    if on_plan is not None:
        on_plan(plan)
    if dry_run:
        return replace(planned_report(job.name, plan), seconds=clock.monotonic() - begun)
    # Closed also where `finish` gives up in the middle: no further item is begun.
    with closing(engine.results(job, plan, on_progress=on_progress)) as results:
        report = job.finish(plan, RowStream(results, item_count=len(plan.items)))
    if isinstance(job, Continued) and (next_job := job.following(report)) is not None:
        report = run_job(next_job, engine, clock=clock, on_progress=on_progress)
    return replace(report, seconds=clock.monotonic() - begun)


def planned_report(name: str, plan: Plan[ItemT]) -> JobReport:
    """What a dry run says."""
    facts: dict[str, Json] = {**plan.facts, "requests": dict(plan.requests)}
    if plan.dollars is not None:
        facts["dollars"] = round(plan.dollars, 6)
    return JobReport(
        job=name,
        state=JobState.PLANNED,
        counts={"items": len(plan.items), **plan.counts},
        byte_counts=plan.byte_counts,
        facts=facts,
        lines=plan.lines,
    )
