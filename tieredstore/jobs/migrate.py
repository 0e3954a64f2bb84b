"""Moving a tier from one backend to another: copy, verify, catch up, cut over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar
from uuid import uuid4

from tieredstore.driver.metadata import Json
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Clock, SystemClock
from tieredstore.jobs import cut_over as over
from tieredstore.jobs.job import (
    Engine,
    JobReport,
    JobState,
    OnProgress,
    Plan,
    RowStream,
    bounded,
    no_progress,
    run_job,
)
from tieredstore.jobs.migrate_copy import (
    Copied,
    CopyItem,
    CopyRow,
    CopyState,
    MigrationJournal,
    Proof,
    copy_segment,
    read_journal,
)
from tieredstore.jobs.migrate_plan import (
    MigrationPlan,
    SourceTier,
    check_places,
    plan_migration,
    read_source,
    snippet,
    source_made_with,
    target_key,
    with_names,
)
from tieredstore.jobs.worker import worker_provider, worker_runtime
from tieredstore.model.config import StoreConfig
from tieredstore.model.findings import Finding
from tieredstore.model.values import SegmentRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateJob:
    """Copies what the target lacks of the source, and makes it a tier when that is asked for.

    * The source is only read. What the target holds already is compared, never written over.
    * Before the cut-over the target has no catalogue, so no broker takes it for a whole tier.
    * It may run beside a broker that writes to the source, but for the cut-over; each run copies
      what has come since.
    * The target is made under the names that its settings have. With `adopt` the queues join a
      tier that is there, under its broker's name.
    """

    name: ClassVar[str] = "migrate"
    source: StoreConfig
    target: StoreConfig
    topics: tuple[str, ...] = ()
    cut_over: bool = False
    adopt: bool = False
    run: str = field(default_factory=lambda: uuid4().hex)
    """Tells this run from others in the same processes."""

    def __post_init__(self) -> None:
        for name in ("source", "target"):
            object.__setattr__(self, name, getattr(self, name).with_full_paths())

    @property
    def proof(self) -> Proof:
        """A checksum that went along was checked by the store; else all is read back."""
        is_checked = self.target.provider == "s3" and bool(self.target.checksum)
        return Proof.STORE if is_checked else Proof.READ_BACK

    @contextmanager
    def held(self, *, dry_run: bool = False) -> Iterator[None]:
        """Enter this around a run: during a cut-over no other process may write."""
        check_places(self.source, self.target, adopt=self.adopt)
        if dry_run or not (self.cut_over or self.adopt):
            yield
            return
        with over.held_still(self.source, self.target, adopt=self.adopt):
            yield

    def plan(self) -> MigrationPlan:
        check_places(self.source, self.target, adopt=self.adopt)
        tier = read_source(self.source, topics=self.topics)
        is_over = not self.adopt and over.cut_over_note(
            tier, self.target, self.source, self.target_provider(), worker_runtime()
        )
        if self.cut_over:
            over.check_own_catalogue(tier)
        if self.adopt:
            is_over = over.held_by_both(tier, self.target, self.source, worker_runtime())
        known = read_journal(self.source, self.target)
        if self.adopt:
            made_with = over.made_with(self.target, worker_runtime())
        else:
            made_with = source_made_with(tier, worker_provider(self.source, run=self.run))
        if is_over:
            tier, known = SourceTier(topics=(), queues=(), index=(), index_notes={}), {}
        plan = plan_migration(
            tier,
            known,
            self.source,
            self.target,
            adopt=self.adopt,
            proof=self.proof,
            made_with=made_with,
        )
        return replace(plan, facts={"cut_over": "done before"}) if is_over else plan

    def work(self, item: CopyItem) -> Iterable[CopyRow]:
        source = worker_provider(self.source, run=self.run)
        yield copy_segment(
            item,
            source,
            self.target_provider(),
            proof=self.proof,
            checks_bodies=self.source.checks_bulk_reads,
        )

    def target_provider(self) -> SegmentProvider:
        """Many processes write to the target: none of them takes over from the others."""
        return worker_provider(replace(self.target, claim_epoch=False), run=self.run)

    def finish(self, plan: Plan[CopyItem], rows: RowStream[CopyRow]) -> JobReport:
        assert isinstance(plan, MigrationPlan)
        if plan.facts.get("cut_over") is not None:
            return JobReport(
                job=self.name,
                state=JobState.DONE,
                counts={"copied": 0},
                facts={**plan.facts, "config": snippet(self.target, plan.made_with)},
                lines=("the target was cut over before; nothing was copied",),
            )
        return _Finish(self, plan, rows).report()


class _Finish:
    """The driver's side of a run: rows to the journal, findings, and the cut-over."""

    def __init__(self, job: MigrateJob, plan: MigrationPlan, rows: RowStream[CopyRow]) -> None:
        self._job = job
        self._plan = plan
        self._rows = rows
        self._counts: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._gone: list[CopyRow] = []
        self._findings = [
            Finding.of_damage("source-damaged", queue.path, queue.problem or "")
            for queue in plan.tier.queues
            if queue.is_damaged
        ]

    def report(self) -> JobReport:
        job = self._job
        facts: dict[str, Json] = dict(self._plan.facts)
        with MigrationJournal.open(job.source, job.target) as journal:
            if self._plan.items:
                self._ask_target(self._plan.items[0])
            for row in self._rows:
                self._take(row, journal)
            journal.sync()
            self._explain_gone()
            lines = self._lines()
            is_whole = self._rows.state is JobState.DONE and not self._findings
            if job.cut_over and is_whole and self._cut_over(journal):
                facts["cut_over"] = "done"
                text = facts["config"] = snippet(job.target, self._plan.made_with)
                lines += ["cut over; the settings of the target:", *text.split("\n")]
            elif job.cut_over:
                facts["cut_over"] = "refused"
                lines.append("not cut over: not all is in the target, or the source is damaged")
        findings, left_out = bounded(self._findings)
        return JobReport(
            job=job.name,
            state=self._rows.state,
            counts={**dict.fromkeys(("copied", "compared", "expired"), 0), **self._counts},
            byte_counts={"copied": 0, "compared": 0, **self._bytes},
            findings=findings,
            findings_left_out=left_out,
            failures=tuple(self._rows.failures),
            facts=facts,
            lines=tuple(lines),
        )

    def _ask_target(self, item: CopyItem) -> None:
        """Fail at once for wrong credentials and missing rights, and not once for each item.

        One process also asks an object store for the proof that it keeps its promises.
        """
        provider = self._job.target_provider()
        path = f"{self._job.target.broker_name}/{over.FENCE_TOPIC}/0"
        with provider.open(path, item.row.type, 0) as segment:
            segment.delete()

    def _take(self, row: CopyRow, journal: MigrationJournal) -> None:
        if row.state is CopyState.GONE:
            self._gone.append(row)
            return
        journal.add(row.key, Copied(row.size, row.crc))
        self._counts[row.state.value] += 1
        self._bytes["copied"] += row.copied_bytes
        self._bytes["compared"] += row.compared_bytes

    def _explain_gone(self) -> None:
        """A segment that the catalogue no longer names has expired; any other is lost."""
        if not self._gone:
            return
        tier = read_source(self._job.source, topics=self._job.topics)
        there = {target_key(row, self._job.target): row for row in tier.rows()}
        for gone in self._gone:
            row = there.get(gone.key)
            if row is None:
                self._counts["expired"] += 1
            else:
                self._found("missing", row, "the source's catalogue names it, and it is not there")

    def _cut_over(self, journal: MigrationJournal) -> bool:
        job, provider = self._job, self._job.target_provider()
        now = read_source(job.source, topics=job.topics)
        over.check_same(self._plan.tier, now)
        for row in over.not_there(now, job.target, provider, adopt=job.adopt):
            journal.add(row.key, Copied(0, 0))  # once more
            self._found("lost-copy", row, "it was copied, and the target has it not: run it again")
        if self._findings:
            return False
        if not job.topics:  # else the journal may be of others too
            self._remove_expired(now)
        over.publish(now, job.source, job.target, provider, worker_runtime(), adopt=job.adopt)
        journal.remove()
        return True

    def _found(self, kind: str, row: SegmentRecord, detail: str) -> None:
        where = f"{row.path}/{row.type.name}/{row.base_offset}"
        self._findings.append(Finding.of_damage(kind, where, detail))

    def _remove_expired(self, tier: SourceTier) -> None:
        """What was copied and is not part of the source any more."""
        kept = {target_key(row, self._job.target) for row in tier.rows()}
        for path, kind, base in self._plan.known.keys() - kept:
            with self._job.target_provider().open(path, kind, base) as segment:
                segment.delete()

    def _lines(self) -> list[str]:
        done = f"copied {self._counts['copied']} segments, {self._bytes['copied']} bytes"
        lines = [f"{done} ({self._job.proof.value})"]
        if self._counts["compared"]:
            lines.append(f"{self._counts['compared']} were there already, and are the same")
        if self._counts["expired"]:
            lines.append(f"{self._counts['expired']} have expired meanwhile")
        if self._job.adopt:
            lines.append("keys of adopted queues are found once `tieredstore reindex` has run")
            if not self._job.cut_over:
                lines.append(
                    "nothing is adopted yet: the target's catalogue does not name these queues; "
                    "stop both brokers, and run it again with --cut-over"
                )
        return lines


def migrate(
    source: StoreConfig,
    target: StoreConfig,
    *,
    engine: Engine,
    topics: Iterable[str] = (),
    rename_broker: str | None = None,
    rename_cluster: str | None = None,
    adopt: bool = False,
    cut_over: bool = False,
    dry_run: bool = False,
    clock: Clock | None = None,
    on_plan: Callable[[Plan[CopyItem]], None] | None = None,
    on_progress: OnProgress = no_progress,
) -> JobReport:
    """Copy the tier of `source` to `target`; may be run again at any time, and goes on.

    The target has the names of the source, or the new ones that are given here. Raises what is
    wrong with the settings, the catalogues or the rights; what single segments met is in the
    report.
    """
    if not adopt:
        target = with_names(source, target, broker=rename_broker, cluster=rename_cluster)
    job = MigrateJob(
        source=source, target=target, topics=tuple(topics), cut_over=cut_over, adopt=adopt
    )
    with job.held(dry_run=dry_run):
        return run_job(
            job,
            engine,
            clock=clock or SystemClock(),
            dry_run=dry_run,
            on_plan=on_plan,
            on_progress=on_progress,
        )
