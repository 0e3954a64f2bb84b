"""Jobs over a whole tier: a plan of items, the work on each, rows and a report, and the engines
that run items."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar

from tieredstore.driver.durable import write_atomically
from tieredstore.driver.runtime import PENDING_MAX, Clock, Pool, ThreadPool
from tieredstore.model.errors import MetadataError, SegmentError, TieredStoreError
from tieredstore.model.findings import Finding, Severity
from tieredstore.model.values import Json

ItemT = TypeVar("ItemT")
RowT = TypeVar("RowT")

FINDINGS_MAX: Final = 1_000
FAILURES_MAX: Final = 100
HOPELESS_FAILURES: Final = 50  # so many, and nothing that went well: the rest would fail too
THREADS: Final = 8
THREADS_MAX: Final = 256
_RANKS: Final = {severity: rank for rank, severity in enumerate(Severity)}
Work: TypeAlias = Callable[[ItemT], Iterable[RowT]]
"""What is done to one item: the `work` of a job. It pickles where an engine has other processes."""


class JobExit(IntEnum):
    """The exit code; the numbers are those of the command line."""

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
    findings: tuple[Finding, ...] = ()
    findings_left_out: int = 0
    failures: tuple[ItemFailure, ...] = ()
    facts: Mapping[str, Json] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    """The same for people."""

    @property
    def exit_code(self) -> JobExit:
        """Damage counts more than what was refused."""
        if any(found.is_damage for found in self.findings) or any(
            failure.is_damage for failure in self.failures
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
            "findings": [dict(found.row()) for found in self.findings],
            "findings_left_out": self.findings_left_out,
            "failures": [
                {"error": failure.error, "text": failure.text} for failure in self.failures
            ],
            "facts": dict(self.facts),
        }

    def write(self, path: str | Path) -> None:
        """The JSON report, whole or as it was before."""
        write_atomically(path, [self.file_bytes()])

    def file_bytes(self) -> bytes:
        """The JSON report as a file has it."""
        return (json.dumps(self.row(), indent=2) + "\n").encode()


def bounded(findings: Iterable[Finding]) -> tuple[tuple[Finding, ...], int]:
    """The worst of them, at most FINDINGS_MAX, and how many were left out."""

    def order(found: Finding) -> tuple[int, str, int, str]:
        rank = _RANKS[found.severity]
        return rank, found.where, found.place.position or 0, found.detail

    worst = sorted(findings, key=order)
    return tuple(worst[:FINDINGS_MAX]), max(0, len(worst) - FINDINGS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Generic[ItemT]):
    """The work of a job, known before a byte is moved.

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
    """The outcome of one item: its rows, or why there are none."""

    number: int
    rows: tuple[RowT, ...] = ()
    failure: ItemFailure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a job is. `bytes_total` is 0 where it is unknown."""

    items_done: int
    items_total: int
    bytes_done: int
    bytes_total: int


OnProgress: TypeAlias = Callable[[Progress], None]
"""Called before the first item, and now and then, by one thread at a time. An error that it raises
ends the job."""


class RowStream(Generic[RowT]):
    """The rows of all items, as they come; afterwards the items that failed or never started.

    Iterate once. The first FAILURES_MAX failures are kept, all are counted. It ends early if
    HOPELESS_FAILURES items have failed and none succeeded: then permissions are probably missing.
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
        """Items that were not worked on, because the job was stopped."""
        return self.item_count - self.done_count - self.failed_count

    @property
    def state(self) -> JobState:
        if self.failed_count:
            return JobState.INCOMPLETE
        return JobState.INTERRUPTED if self.not_begun_count else JobState.DONE


class Job(Protocol[ItemT, RowT]):
    """Something done to a whole tier; a frozen dataclass of settings that pickles.

    * `plan` and `finish` run on the driver, once each. `work` runs anywhere, on many items at a
      time, and twice if a task is retried or speculated on: it is idempotent.
    * Rows are small: a count, a checksum, a finding; never the bytes of a message.
    * Readers see the result only after `finish`, in one atomic step. A job that was killed before
      that leaves nothing that looks complete, and another run resumes from what is there.
    """

    @property
    def name(self) -> str: ...

    def plan(self) -> Plan[ItemT]: ...

    def work(self, item: ItemT) -> Iterable[RowT]: ...

    def finish(self, plan: Plan[ItemT], rows: RowStream[RowT]) -> JobReport | Job[Any, Any]:
        """Take all rows and make the result visible: a report, or the job that does the next step.

        `rows.failures` counts after the last row.
        """


class Engine(Protocol):
    """Runs the items of a job: one failing item loses no other's rows."""

    def results(
        self, work: Work[ItemT, RowT], plan: Plan[ItemT], *, on_progress: OnProgress
    ) -> Generator[ItemResult[RowT], None, None]:
        """One result for each item, in no order. Closing it begins no further item."""


def no_progress(progress: Progress) -> None:
    """Ignore progress."""


def run_job(
    job: Job[ItemT, RowT],
    engine: Engine,
    *,
    clock: Clock,
    dry_run: bool = False,
    on_plan: Callable[[Plan[ItemT]], None] | None = None,
    on_progress: OnProgress = no_progress,
) -> JobReport:
    """Plan, work and finish. Raises what the plan refuses; failures of items are in the report.

    A job of several steps passes its first plan to `on_plan` and returns its last report.
    """
    begun = clock.monotonic()
    plan = job.plan()
    if on_plan is not None:
        on_plan(plan)
    if dry_run:
        return replace(planned_report(job.name, plan), seconds=clock.monotonic() - begun)
    on_progress(
        Progress(
            items_done=0, items_total=len(plan.items), bytes_done=0, bytes_total=plan.bytes_total
        )
    )
    # Closed also where `finish` gives up in the middle: no further item is begun.
    with closing(engine.results(job.work, plan, on_progress=on_progress)) as results:
        outcome = job.finish(plan, RowStream(results, item_count=len(plan.items)))
    if not isinstance(outcome, JobReport):
        outcome = run_job(outcome, engine, clock=clock, on_progress=on_progress)
    return replace(outcome, seconds=clock.monotonic() - begun)


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


class WorkerKilledError(TieredStoreError):
    """A process that worked on items has died."""

    def __init__(self) -> None:
        super().__init__(
            "a process that worked on this was killed, maybe for want of memory: run it again, "
            "with fewer processes"
        )


class LocalEngine(Engine):
    """Runs items on a bounded number of threads, or in a given pool, which it closes.

    * As many items are under way as there are threads, and none waits: the needs of one item bound
      the memory.
    * `stop` may be called by any thread: items under way are finished, and no more begin.
    * A bug in an item (an error that is neither ours nor the system's) ends the job and is raised.
    """

    def __init__(self, *, threads: int = THREADS, pool: Pool | None = None) -> None:
        self._threads = max(1, min(threads, THREADS_MAX))
        # Not a pool of a provider: it must never wait for an item that waits for it.
        self._pool = pool or ThreadPool("job", threads=self._threads, pending_max=PENDING_MAX)
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def results(
        self, work: Work[ItemT, RowT], plan: Plan[ItemT], *, on_progress: OnProgress
    ) -> Generator[ItemResult[RowT], None, None]:
        count, total = len(plan.items), plan.bytes_total
        under_way: set[Future[ItemResult[RowT]]] = set()
        begun = items_done = bytes_done = 0
        try:
            while True:
                while begun < count and len(under_way) < self._threads and not self._stopped:
                    call = self._pool.submit(run_item, work, plan.items[begun], begun)
                    under_way.add(call)
                    begun += 1
                if not under_way:
                    return
                ended, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for future in ended:
                    result = future.result()
                    items_done += 1
                    bytes_done += plan.bytes_of(result.number)
                    on_progress(
                        Progress(
                            items_done=items_done,
                            items_total=count,
                            bytes_done=bytes_done,
                            bytes_total=total,
                        )
                    )
                    yield result
        except BrokenExecutor as error:
            raise WorkerKilledError from error
        finally:
            self._leave(under_way)

    def _leave(self, under_way: set[Future[ItemResult[RowT]]]) -> None:
        """Wait for what runs: it uses what its caller is about to close."""
        for future in under_way:
            future.cancel()
        wait(under_way)

    def close(self) -> None:
        self._stopped = True
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def run_item(work: Work[ItemT, RowT], item: ItemT, number: int) -> ItemResult[RowT]:
    """One item, its failure as a value: what the tier or the system refuses touches no other."""
    try:
        return ItemResult(number=number, rows=tuple(work(item)))
    except (TieredStoreError, OSError) as error:
        return ItemResult(number=number, failure=ItemFailure.of(error))
