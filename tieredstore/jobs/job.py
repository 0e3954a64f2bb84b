"""Jobs over a whole tier: a plan of items, the work on each item, and a report of the rows. Also
the engines that run items."""

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
HOPELESS_FAILURES: Final = 50  # if the first 50 items all fail, the rest would fail too
THREADS: Final = 8
THREADS_MAX: Final = 256
_RANKS: Final = {severity: rank for rank, severity in enumerate(Severity)}
Work: TypeAlias = Callable[[ItemT], Iterable[RowT]]
"""The `work` of a job, called with one item. Engines with other processes pickle it."""


class JobExit(IntEnum):
    """The exit codes of the command line."""

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
    """Some items failed; another run does the rest."""
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemFailure:
    """Why one item failed: the error in one line."""

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
    """The outcome of a job. Each job has its own names in `counts`, `byte_counts` and `facts`."""

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
    """The report as text for people."""

    @property
    def exit_code(self) -> JobExit:
        """Damage takes precedence over other failures."""
        if any(found.is_damage for found in self.findings) or any(
            failure.is_damage for failure in self.failures
        ):
            return JobExit.DAMAGE
        if self.failures or self.state is JobState.INCOMPLETE:
            return JobExit.REFUSED
        return JobExit.INTERRUPTED if self.state is JobState.INTERRUPTED else JobExit.DONE

    def row(self) -> dict[str, Json]:
        """The content of a report file, and of stdout with --json."""
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
        """Write the JSON report atomically: a failure leaves the old file as it was."""
        write_atomically(path, [self.file_bytes()])

    def file_bytes(self) -> bytes:
        """The bytes of a report file."""
        return (json.dumps(self.row(), indent=2) + "\n").encode()


def bounded(findings: Iterable[Finding]) -> tuple[tuple[Finding, ...], int]:
    """The worst findings, at most FINDINGS_MAX, and how many were left out."""

    def order(found: Finding) -> tuple[int, str, int, str]:
        rank = _RANKS[found.severity]
        return rank, found.where, found.place.position or 0, found.detail

    worst = sorted(findings, key=order)
    return tuple(worst[:FINDINGS_MAX]), max(0, len(worst) - FINDINGS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Generic[ItemT]):
    """The work of a job, known before a byte is moved.

    Items are small and can be pickled: an item holds names, ranges and catalogue rows, never a
    client. `item_bytes` is how much each item moves, for the progress; it may be left empty.
    """

    items: Sequence[ItemT]
    item_bytes: Sequence[int] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    byte_counts: Mapping[str, int] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)
    """Requests to an object store, by their names in the price table."""
    dollars: float | None = None
    lines: tuple[str, ...] = ()
    """The plan as text for people."""
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
    """How far a job has got. `bytes_total` is 0 if unknown."""

    items_done: int
    items_total: int
    bytes_done: int
    bytes_total: int


OnProgress: TypeAlias = Callable[[Progress], None]
"""Called before the first item and from time to time after it, by one thread at a time. If it
raises, the job ends."""


class RowStream(Generic[RowT]):
    """The rows of all items as they arrive, and then how many items failed or never started.

    Iterate once. All failures are counted, and the first FAILURES_MAX are kept. The stream ends
    early if HOPELESS_FAILURES items have failed and none succeeded: permissions are probably
    missing. Damage does not count, as other items may be sound.
    """

    def __init__(self, results: Iterator[ItemResult[RowT]], *, item_count: int) -> None:
        self._results = results
        self.item_count = item_count
        self.done_count = 0
        self.failed_count = 0
        self.failures: list[ItemFailure] = []

    def __iter__(self) -> Iterator[RowT]:
        refused = 0
        for result in self._results:
            if result.failure is None:
                self.done_count += 1
                yield from result.rows
                continue
            self.failed_count += 1
            if len(self.failures) < FAILURES_MAX:
                self.failures.append(result.failure)
            refused += not result.failure.is_damage
            if not self.done_count and refused >= HOPELESS_FAILURES:
                return

    @property
    def not_begun_count(self) -> int:
        """Items that never started because the job was stopped."""
        return self.item_count - self.done_count - self.failed_count

    @property
    def state(self) -> JobState:
        if self.failed_count:
            return JobState.INCOMPLETE
        return JobState.INTERRUPTED if self.not_begun_count else JobState.DONE


class Job(Protocol[ItemT, RowT]):
    """An operation on a whole tier: a frozen dataclass of settings that can be pickled.

    * `plan` and `finish` run once each, on the driver. `work` runs anywhere, on many items at a
      time, and twice on an item whose task is retried or runs speculatively: it is idempotent.
    * Rows are small: a count, a checksum, a finding; never the bytes of a message.
    * Readers see the result only after `finish`, in one atomic step. A job that is killed before
      that leaves nothing that looks complete, and the next run resumes from what is there.
    """

    @property
    def name(self) -> str: ...

    def plan(self) -> Plan[ItemT]: ...

    def work(self, item: ItemT) -> Iterable[RowT]: ...

    def finish(self, plan: Plan[ItemT], rows: RowStream[RowT]) -> JobReport | Job[Any, Any]:
        """Consume all rows and make the result visible. Returns a report, or the job that does the
        next step.

        `rows.failures` is complete only after the last row.
        """


class Engine(Protocol):
    """Runs the items of a job. An item that fails does not lose the rows of others."""

    def results(
        self, work: Work[ItemT, RowT], plan: Plan[ItemT], *, on_progress: OnProgress
    ) -> Generator[ItemResult[RowT], None, None]:
        """One result for each item, in any order. After `close()` no further item starts."""


def no_progress(progress: Progress) -> None:
    """An OnProgress that does nothing."""


def run_job(
    job: Job[ItemT, RowT],
    engine: Engine,
    *,
    clock: Clock,
    dry_run: bool = False,
    on_plan: Callable[[Plan[ItemT]], None] | None = None,
    on_progress: OnProgress = no_progress,
) -> JobReport:
    """Plan, work and finish. Errors of the plan are raised; failures of items are in the report.

    For a job of several steps, `on_plan` gets the first plan, and the last report is returned.
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
    # Closing matters if `finish` raises midway: no further item may start.
    with closing(engine.results(job.work, plan, on_progress=on_progress)) as results:
        outcome = job.finish(plan, RowStream(results, item_count=len(plan.items)))
    if not isinstance(outcome, JobReport):
        outcome = run_job(outcome, engine, clock=clock, on_progress=on_progress)
    return replace(outcome, seconds=clock.monotonic() - begun)


def planned_report(name: str, plan: Plan[ItemT]) -> JobReport:
    """The report of a dry run."""
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
    """A worker process has died."""

    def __init__(self) -> None:
        super().__init__(
            "a process that worked on this was killed, maybe for want of memory: run it again, "
            "with fewer processes"
        )


class LocalEngine(Engine):
    """Runs items on a bounded number of threads, or in a given pool, which it closes.

    * At most `threads` items are in flight, and none is queued: memory is bounded by that many
      items.
    * Any thread may call `stop`: items in flight are finished, and no more start.
    * A bug in an item (an error other than TieredStoreError and OSError) ends the job and is
      raised.
    """

    def __init__(self, *, threads: int = THREADS, pool: Pool | None = None) -> None:
        self._threads = max(1, min(threads, THREADS_MAX))
        # Not a pool of a provider: items wait for calls in that pool, and would deadlock in it.
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
        """Cancel what has not started, and wait for the rest: the caller closes what it uses."""
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
    """Run one item. An error of the tier or the system is returned, so other items are unharmed."""
    try:
        return ItemResult(number=number, rows=tuple(work(item)))
    except (TieredStoreError, OSError) as error:
        return ItemResult(number=number, failure=ItemFailure.of(error))
