"""Moving a tier from one backend to another: copy, verify, catch up, cut over.

During the cut-over no broker may write to the source. The target's catalogue is published in one
step.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final
from uuid import uuid4

from tieredstore.access.audit import TierFacts, orphan_findings
from tieredstore.access.log_mark import LOG_MARK
from tieredstore.access.queue_upload import history_note, is_history
from tieredstore.access.rebuild import layout_of
from tieredstore.access.upkeep import TendChore
from tieredstore.access.wiring import (
    ENDS_WITH_PROCESS,
    catalogue_of,
    claim,
    keeps_catalogue,
    own_catalogue,
    provider_of,
    publisher_of,
    written_catalogue,
)
from tieredstore.codec.names import INDEX_TOPIC, index_queue_path
from tieredstore.driver.durable import FileLock
from tieredstore.driver.metadata import Change, DeleteNote, MetadataStore, Put, PutNote
from tieredstore.driver.metrics import NoMetrics
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Clock, Runtime, SystemClock
from tieredstore.flat.message_file import LOG_START_NOTE
from tieredstore.index import watermarks
from tieredstore.index.writer import LocalFolder
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
    Key,
    MigrationJournal,
    OlderCopyError,
    Proof,
    copy_segment,
    journal_path,
    overtaken,
    place_of,
    read_journal,
)
from tieredstore.jobs.migrate_plan import (
    NOTE,
    SOURCE,
    MigrationPlan,
    SourceQueue,
    SourceTier,
    check_places,
    plan_migration,
    read_source,
    snippet,
    source_made_with,
    target_key,
    target_path,
    with_names,
)
from tieredstore.jobs.slices import TopicPatterns
from tieredstore.jobs.worker import newest_catalogue, worker_provider, worker_runtime
from tieredstore.model.amounts import counted, shown_size
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendRefusedError,
    FencedError,
    InvalidConfigError,
    MetadataError,
    OffsetOutOfRangeError,
    SegmentError,
    SegmentSealedError,
    TieredStoreError,
    system_says,
)
from tieredstore.model.findings import Finding
from tieredstore.model.printable import log_of
from tieredstore.model.values import Json, QueueKey, SegmentRecord, SegmentType

log = log_of(__name__)

TENDED_EVERY: Final = 256  # copies
_NAMES_SHOWN: Final = 5
_WRITTEN_SINCE: Final = (
    "a broker has written to the source meanwhile, and the target lacks it: stop it"
)
_PROBE_TOPIC: Final = "rmq_sys_PROBE"  # nothing is ever written there


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateJob:
    """Copies everything that the target lacks, and turns the target into a tier on request.

    * The source is only read. Bytes that the target already has are compared, never overwritten.
    * Before the cut-over the target has no catalogue, or in a bucket an empty one: nobody takes it
      for a complete tier.
    * Except for the cut-over, the job may run while a broker writes to the source; each run copies
      what is new.
    * The target's names are those in its settings. With `adopt`, the queues join an existing tier
      under its broker's name.
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
        """S3 verifies a checksum sent along with the bytes; otherwise everything is read back."""
        is_checked = self.target.provider == "s3" and bool(self.target.checksum)
        return Proof.STORE if is_checked else Proof.READ_BACK

    @contextmanager
    def held(self, *, dry_run: bool = False) -> Iterator[None]:
        """Enter this around a run: it keeps other processes from writing during a cut-over."""
        check_places(self.source, self.target, adopt=self.adopt)
        if dry_run or not (self.cut_over or self.adopt):
            yield
            return
        with _held_still(self.source, self.target, adopt=self.adopt):
            yield

    def plan(self) -> MigrationPlan:
        check_places(self.source, self.target, adopt=self.adopt)
        tier = read_source(self.source, topics=self.topics)
        is_over = not self.adopt and _was_cut_over(
            tier, self.target, self.source, self.target_provider()
        )
        if self.cut_over:
            _check_own_catalogue(tier)
        if self.adopt:
            is_over = _held_by_both(tier, self.target, self.source, self.target_provider())
        known = read_journal(self.source, self.target)
        if self.adopt:
            made_with = _made_with(self.target, self.target_provider())
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
            cut_over=self.cut_over,
            proof=self.proof,
            made_with=made_with,
        )
        return replace(plan, facts={"cut_over": "done before"}) if is_over else plan

    def work(self, item: CopyItem) -> Iterable[CopyRow]:
        source = worker_provider(self.source, run=self.run)
        target = self.target_provider()

        def copied(item: CopyItem) -> CopyRow:
            checks_bodies = self.source.checks_bulk_reads
            return copy_segment(item, source, target, proof=self.proof, checks_bodies=checks_bodies)

        try:
            yield copied(item)
        except (SegmentSealedError, OlderCopyError) as error:
            if not self._unnamed([item.key], target):  # another run has cut over meanwhile
                raise
            log.info("%s: it is copied anew: %s", item.target_path, error)
            with target.open(*item.key) as given:
                given.delete()
            yield copied(replace(item, known=Copied(0, 0), is_doubtful=False))

    def moves(self, path: str) -> bool:
        """Whether this run moves the segments of this path of the source or the target."""
        topic = path.split("/")[1]
        return not self.adopt if topic == INDEX_TOPIC else TopicPatterns(self.topics).match(topic)

    def target_provider(self) -> SegmentProvider:
        """The provider of the many processes that write to the target: none fences the others."""
        return worker_provider(replace(self.target, claim_epoch=False), run=self.run)

    def claimed_target(self) -> SegmentProvider:
        """The driver's provider: it claims the target, and the other processes join it."""
        provider = worker_provider(self.target, run=self.run)
        claim(self.target, provider)
        return provider

    def finish(self, plan: Plan[CopyItem], rows: RowStream[CopyRow]) -> JobReport:
        assert isinstance(plan, MigrationPlan)
        if plan.facts.get("cut_over") is not None:
            self._end_journal()
            findings, left_out = bounded(self._written_since())
            return JobReport(
                job=self.name,
                state=JobState.DONE,
                counts={"copied": 0},
                findings=findings,
                findings_left_out=left_out,
                facts={**plan.facts, "config": snippet(self.target, plan.made_with)},
                lines=("the target was cut over before; nothing was copied",),
            )
        return _Finish(self, plan, rows).report()

    def _written_since(self) -> Iterator[Finding]:
        """Findings for queues that end later in the source than in the target, which was cut over
        before. The run that cut over may have died before it could look. A queue that has grown in
        the target hides what came.

        A topic that the target deleted and made anew has another number, unless it was adopted.
        """
        tier = read_source(self.source, topics=self.topics)
        numbers = {topic.topic: topic.topic_id for topic in tier.topics}
        with _catalogue_in(self.target, self.target_provider()) as metadata:
            assert metadata is not None  # it was cut over
            for queue in tier.queues:
                topic = metadata.topic(queue.record.topic)
                number = numbers.get(queue.record.topic)
                if topic is None or not (self.adopt or topic.topic_id == number):
                    continue
                path = target_path(queue.path, self.target)
                units = metadata.segments(path, SegmentType.CONSUME_QUEUE)
                if _end(queue.units) > _end(units):
                    yield Finding.of_damage("written-since", queue.path, _WRITTEN_SINCE)

    def _end_journal(self) -> None:
        """End the journal that a run has left which died after its cut-over. After an adoption, it
        may name copies of topics that the source has deleted since."""
        if not journal_path(self.target).exists():
            return
        known = read_journal(self.source, self.target)
        left = {key: copied.created_ms for key, copied in known.items() if copied != Copied(0, 0)}
        try:
            with MigrationJournal.open(self.source, self.target, planned_with=known) as journal:
                if self.adopt and self._unnamed(left, self.target_provider()):
                    self.delete_copies(left, self.target_provider(), journal)
                self.forget_copies(journal, known)
        except BackendRefusedError as error:
            log.info("the journal stays: %s", error)

    def delete_copies(
        self, created_ms: Mapping[Key, int], provider: SegmentProvider, journal: MigrationJournal
    ) -> None:
        """Delete copies that no run needs any more. An adopting tier may have queues of its own
        under these names by now, and of topics that this run leaves out it may begin some at any
        time."""
        for key in self._unnamed(created_ms, provider) if self.adopt else created_ms:
            journal.add(key, Copied(0, 0, created_ms[key]))  # its bytes may stay after all
            with provider.open(*key) as segment:
                segment.delete()

    def _unnamed(self, keys: Iterable[Key], provider: SegmentProvider) -> list[Key]:
        """Those that this run moves and the target's catalogue does not name."""
        with _catalogue_in(self.target, provider) as metadata:
            return [
                key
                for key in keys
                if self.moves(key[0]) and (metadata is None or metadata.segment(*key) is None)
            ]

    def forget_copies(self, journal: MigrationJournal, known: Mapping[Key, Copied]) -> None:
        """Remove the journal, as the target's catalogue names all copies of this run. After an
        adoption, the notes on topics that it left out stay: their copies wait for theirs."""
        nothing = Copied(0, 0)
        if not self.adopt or all(
            self.moves(path) for (path, *_), copied in known.items() if copied != nothing
        ):
            journal.remove()
            return
        for key in known:
            if self.moves(key[0]):
                journal.add(key, nothing)


def _end(rows: Sequence[SegmentRecord]) -> int:
    return max((row.end_offset for row in rows), default=0)


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
        known = self._plan.known
        with MigrationJournal.open(job.source, job.target, planned_with=known) as journal:
            self._check_not_over(job.target_provider())
            if self._plan.items:
                self._ask_target(self._plan.items[0])
                self._tend()
                self._remove_replaced(self._plan.items)
                journal.begin(self._plan.items)
            for count, row in enumerate(self._rows, 1):
                self._take(row, journal)
                if count % TENDED_EVERY == 0:
                    self._tend()
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
                lines.append("not cut over: the target is incomplete, or the source is damaged")
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

    def _check_not_over(self, provider: SegmentProvider) -> None:
        """Refuse if another run has cut over since the plan was made, or a broker has begun queues
        in the target that stand in the way.

        The other run's journal is gone, and the target may have a broker by now: nothing there may
        be claimed, written or deleted.
        """
        job, tier = self._job, self._plan.tier
        was_over = _held_by_both if job.adopt else _was_cut_over
        if was_over(tier, job.target, job.source, provider):
            raise overtaken(job.target)

    def _ask_target(self, item: CopyItem) -> None:
        """Fail at once on wrong credentials or missing rights, instead of once for each item.

        So only one process certifies an object store and claims the target.
        """
        self._job.claimed_target()
        provider = self._job.target_provider()
        path = f"{self._job.target.broker_name}/{_PROBE_TOPIC}/0"
        with provider.open(path, item.row.type, 0) as segment:
            segment.delete()

    def _tend(self) -> None:
        """Keep a bucket's log short: it gets an entry with each copy, and whoever opens the target
        reads all that no state replaces."""
        target = self._job.target
        TendChore(self._job.target_provider(), target.broker_name).step()

    def _remove_replaced(self, items: Sequence[CopyItem]) -> None:
        """Delete copies of a topic that was deleted and made anew since. The journal keeps their
        entries until they are replaced, so a run may die here without harm."""
        for item in items:
            if item.replaces:
                with self._job.target_provider().open(*item.key) as segment:
                    segment.delete()

    def _take(self, row: CopyRow, journal: MigrationJournal) -> None:
        if row.state is CopyState.GONE:
            self._gone.append(row)
            return
        journal.add(row.key, row.held)
        self._counts[row.state.value] += 1
        self._bytes["copied"] += row.copied_bytes
        self._bytes["compared"] += row.compared_bytes

    def _explain_gone(self) -> None:
        """Tell expired segments, which the catalogue no longer names, from lost ones."""
        if not self._gone:
            return
        tier = read_source(self._job.source, topics=self._job.topics)
        there = {target_key(row, self._job.target): row for row in tier.rows()}
        planned = {target_key(item.row, self._job.target): item.row for item in self._plan.items}
        for gone in self._gone:
            row, before = there.get(gone.key), planned.get(gone.key)
            if row is None or before is None or row.create_timestamp != before.create_timestamp:
                self._counts["expired"] += 1  # or its topic was deleted, and maybe made anew
            else:
                text = "the source's catalogue names it, and all or some of it is missing"
                self._found("missing", row, text)

    def _cut_over(self, journal: MigrationJournal) -> bool:
        job, provider = self._job, self._job.target_provider()
        now = read_source(job.source, topics=job.topics)
        _check_same(self._plan.tier, now)
        for row in _not_there(now, job.target, provider, adopt=job.adopt):
            # So that the next run copies it again, and knows whose bytes are left.
            journal.add(row.key, Copied(0, 0, row.create_timestamp))
            self._found(
                "lost-copy", row, "it was copied, and the target does not have it: run it again"
            )
        self._findings += _left_behind(job)
        if self._findings:
            return False
        self._remove_expired(now, journal)

        target, writer = job.target, job.claimed_target()
        if self._plan.items:  # who claimed before the copies has not read what was written since
            _check_joined(target, provider, claimed=writer)
            target, writer = replace(target, claim_epoch=False), provider

        def check() -> None:
            _check_same(now, read_source(job.source, topics=job.topics))
            self._check_not_over(writer)  # a broker may have run on the target, and be gone again

        _publish(now, job.source, target, writer, check, adopt=job.adopt)
        here = {item.key: item.known for item in self._plan.items}
        job.forget_copies(journal, {**here, **self._plan.known})
        changed = _changed(now, read_source(job.source, topics=job.topics))
        if changed is not None:
            self._found("written-since", changed, _WRITTEN_SINCE)
        return True

    def _found(self, kind: str, row: SegmentRecord, detail: str) -> None:
        where = f"{row.path}/{row.type.name}/{row.base_offset}"
        self._findings.append(Finding.of_damage(kind, where, detail))

    def _remove_expired(self, tier: SourceTier, journal: MigrationJournal) -> None:
        """Delete copies that the target's catalogue will not name: of what is no longer part of the
        source, or of topics that only earlier runs moved. A new queue of such a name would be
        stopped by them. An empty segment may have the name of an earlier one that was not."""
        job = self._job
        there = {target_key(row, job.target) for row in tier.rows() if row.size}
        created_ms = {key: copied.created_ms for key, copied in self._plan.known.items()}
        created_ms |= {item.key: item.row.create_timestamp for item in self._plan.items}
        gone = {key: made_ms for key, made_ms in created_ms.items() if key not in there}
        if gone:
            self._check_not_over(job.target_provider())  # some may be a broker's by now
            job.delete_copies(gone, job.target_provider(), journal)

    def _lines(self) -> list[str]:
        copied = counted(self._counts["copied"], "segment")
        done = f"copied {copied}, {shown_size(self._bytes['copied'])}"
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
    """Copy the tier of `source` to `target`. It may be run again at any time, and then resumes.

    The target gets the names of the source, or the new ones given here. Errors in the settings, the
    catalogues or the rights are raised; failures of single segments are in the report.
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


@contextmanager
def _held_still(source: StoreConfig, target: StoreConfig, *, adopt: bool) -> Iterator[None]:
    """Keep brokers from writing to the source, and check that none runs on an adopting target.

    Holds the source's locks, that of the catalogue and that of the broker's store. In an object
    store it also takes the writer's epoch, which fences off a writer elsewhere for good. Raises
    BackendRefusedError if a broker is running.
    """
    with ExitStack() as held:
        if adopt:  # a broker that starts later is noticed by `_publish`, and in a bucket fences us
            with _all_locked(target):
                log.debug("no broker runs on %s", target.catalogue_path)
        held.enter_context(_all_locked(source))
        _take_epoch(source)
        yield


@contextmanager
def _all_locked(config: StoreConfig) -> Iterator[None]:
    """Hold the locks of all writers, where there is anything to lock."""
    catalogue = os.path.realpath(config.catalogue_path)
    lock, rocketmqs = f"{catalogue}.lock", os.path.join(config.store_path, "lock")
    with ExitStack() as held:
        has_lock = os.path.exists(lock)
        if has_lock or os.path.exists(catalogue):
            # Leave no new file behind: a store of RocketMQ has no such lock.
            held.callback(_locked(lock).release, remove=not has_lock)
        if os.path.exists(rocketmqs):
            held.callback(_locked(rocketmqs).release)
        yield


def _locked(path: str) -> FileLock:
    reason = "a broker is running on this store: stop it first"
    try:
        lock = FileLock.acquire(path)
    except OSError as error:
        raise BackendRefusedError(
            path, "cut over", f"it cannot be locked: {system_says(error)}"
        ) from error
    if lock is None:
        raise BackendRefusedError(path, "cut over", reason)
    return lock


def _take_epoch(config: StoreConfig) -> None:
    """Fence off all other writers, if this kind of tier has epochs."""
    with Runtime.threads(dispatch_threads=1, fetch_threads=1) as runtime:
        provider = provider_of(replace(config, certify="off"), runtime, NoMetrics())
        try:
            provider.claim(config.broker_name)
        finally:
            provider.close()


def _check_joined(
    target: StoreConfig, provider: SegmentProvider, *, claimed: SegmentProvider
) -> None:
    """Refuse if this provider has joined the epoch of another writer, which came right after our
    claim and so does not fence it."""
    epochs = []
    for each in (claimed, provider):
        metadata = own_catalogue(target, each, read_only=True)
        if metadata is None:
            return
        with closing(metadata):
            epochs.append(metadata.facts.epoch)
    ours, joined = epochs
    if joined is not None and joined != ours:
        raise FencedError(target.broker_name, "cut over", epoch=joined)


def _check_same(before: SourceTier, now: SourceTier) -> None:
    """Refuse if the source has changed: some brokers, among them Java's, take no lock, and one that
    starts after our claim of a bucket writes on."""
    row = _changed(before, now)
    if row is not None:
        reason = f"it has {row.size} bytes now: a broker is still writing: stop it first"
        raise BackendRefusedError(row.path, "cut over", reason)


def _changed(before: SourceTier, now: SourceTier) -> SegmentRecord | None:
    """A segment of the source that is new, was made anew, or has another size."""
    was = {row.key: (row.size, row.create_timestamp) for row in before.rows()}
    return next(
        (row for row in now.rows() if was.get(row.key) != (row.size, row.create_timestamp)), None
    )


def _check_own_catalogue(tier: SourceTier) -> None:
    """Refuse a copy of the catalogue: it may lack segments."""
    if tier.copy_of is not None:
        raise InvalidConfigError(
            "metadata_path: to cut over takes the broker's own catalogue, and not the "
            f"{tier.copy_of}; where that is lost, `tieredstore rebuild` makes one"
        )


def _left_behind(job: MigrateJob) -> list[Finding]:
    """Findings for segments of the source that its catalogue, perhaps an old one, does not name:
    they were not copied."""
    source = job.source
    catalogue = newest_catalogue(source)
    if catalogue is None:
        return []
    with closing(catalogue):
        facts = TierFacts.gather(catalogue, worker_provider(source), source.broker_name)
    return [
        Finding.of_damage("not-named", found.where, found.detail)
        for found in orphan_findings(facts)
        if job.moves(found.place.path) and not found.repairable
    ]


def _not_there(
    tier: SourceTier, target: StoreConfig, provider: SegmentProvider, *, adopt: bool
) -> list[SegmentRecord]:
    """The target's rows whose segments it lacks, or has with another size.

    A copy may be gone again, or lie on a disk that only one machine sees.
    """
    index = () if adopt else tier.index
    rows = [*(row for queue in tier.queues for row in (*queue.log, *queue.units)), *index]
    wanted = {target_key(row, target): _row(row, target) for row in rows}
    provider.refresh()
    # In a tier that others use too, list only these queues; else list everything at once.
    for path in sorted({path for path, *_ in wanted}) if adopt else [target.broker_name]:
        for found in provider.list(path):
            row = wanted.get((found.path, found.type, found.base))
            if row is not None and row.size == found.size:
                del wanted[row.key]
    return [row for row in wanted.values() if row.size]


def _was_cut_over(
    tier: SourceTier, target: StoreConfig, source: StoreConfig, provider: SegmentProvider
) -> bool:
    """Whether this same migration has been completed before.

    Raises InvalidConfigError if the target's catalogue holds a tier that came from elsewhere or
    lacks queues of this one, or if a catalogue is published beside the target's segments.
    """
    with _catalogue_in(target, provider) as metadata:
        if metadata is None:
            return False
        if metadata.note(NOTE, SOURCE) == place_of(source):
            keys = [queue.record.key for queue in tier.queues]
            left_out = [f"{key.topic}/{key.queue_id}" for key in keys if not metadata.queue(*key)]
            if left_out:
                raise InvalidConfigError(
                    f"{metadata.facts.place}: the target was cut over before, and without "
                    f"{', '.join(left_out[:_NAMES_SHOWN])}; move these to a target of their own"
                )
            return True
        if metadata.queues() or metadata.segments():
            raise InvalidConfigError(
                f"{metadata.facts.place}: the target's catalogue names a tier already; name an "
                "empty one, or adopt these queues into it with --adopt"
            )
    published = provider.generations(target.broker_name)
    if published is not None and published.listed():
        raise InvalidConfigError(
            f"{published.describe()}: a catalogue of this broker is published there: the target "
            "is a tier already"
        )
    return False


@contextmanager
def _catalogue_in(target: StoreConfig, provider: SegmentProvider) -> Iterator[MetadataStore | None]:
    """The target's catalogue, opened read-only; None if none was ever written.

    If the provider keeps the catalogue itself, a catalogue file is ignored: it says nothing about
    the target.
    """
    with ExitStack() as opened:
        found = own_catalogue(target, provider, read_only=True)
        if found is None and not keeps_catalogue(target, provider):
            found = catalogue_of(target, worker_runtime(), read_only=True)
        yield None if found is None else opened.enter_context(found)


def _made_with(config: StoreConfig, provider: SegmentProvider) -> dict[str, int]:
    """The settings that are fixed once the tier exists, by name."""
    with _catalogue_in(config, provider) as metadata:
        notes = {} if metadata is None else metadata.notes(watermarks.STORE)
        return watermarks.Watermarks.made_with(notes)


def _held_by_both(
    tier: SourceTier, target: StoreConfig, source: StoreConfig, provider: SegmentProvider
) -> bool:
    """Whether these queues were adopted before.

    Raises InvalidConfigError if the target has some of these queues from elsewhere, if only in its
    broker's local store; the error names them all.
    """
    with _catalogue_in(target, provider) as metadata:
        if metadata is None:
            return False
        adopted = metadata.notes(NOTE)
        mine = place_of(source)
        both = [
            queue.record.key
            for queue in tier.queues
            if (
                metadata.queue(*queue.record.key) is not None or _is_local(queue.record.key, target)
            )
            and not (
                adopted.get(_adopted_key(queue.record.key)) == mine
                # Otherwise it was deleted since, and is one of the target's own now.
                and is_history(target_path(queue.path, target), metadata)
            )
        ]
        if both:
            names = ", ".join(f"{key.topic}/{key.queue_id}" for key in both)
            raise InvalidConfigError(f"both brokers have: {names}; nothing was adopted")
        return all(metadata.queue(*queue.record.key) is not None for queue in tier.queues)


def _is_local(key: QueueKey, target: StoreConfig) -> bool:
    """Whether the target's local store, RocketMQ's or ours, has this queue. It may have uploaded
    nothing of it yet."""
    return Path(target.store_path, "consumequeue", key.topic, str(key.queue_id)).is_dir()


def _publish(
    tier: SourceTier,
    source: StoreConfig,
    target: StoreConfig,
    provider: SegmentProvider,
    check: Callable[[], None],
    *,
    adopt: bool,
) -> None:
    """Make the copy a tier by one atomic change of the target's catalogue, after a last `check` of
    both sides: until the target could be opened, much may have happened there.

    If the catalogue does not lie with the bytes, it is then published for readers that have only
    the tier. If that fails, the broker publishes it later.
    """
    Path(target.catalogue_path).parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        try:
            written = written_catalogue(target, worker_runtime(), provider, forgets=False)
            metadata, _ = opened.enter_context(written)
        except MetadataError as error:
            reason = str(error).removeprefix(f"{target.catalogue_path}: ")
            raise BackendRefusedError(target.catalogue_path, "cut over", reason) from error
        check()
        lasts = DeleteNote(*ENDS_WITH_PROCESS)  # a broker in memory may have begun this catalogue
        if adopt:
            taken_over = _index_taken_over(target, metadata, provider)
            metadata.apply([lasts, *taken_over, *_adopted(tier, source, target, metadata)])
        else:
            metadata.apply([lasts, *_moved(tier, source, target)])
        try:
            publisher = publisher_of(target, provider, metadata)
            if publisher is not None:
                publisher.publish()
        except TieredStoreError as error:
            log.warning("the catalogue could not be published: %s", error)


def _moved(tier: SourceTier, source: StoreConfig, target: StoreConfig) -> Iterator[Change]:
    yield from tier.given
    if tier.log_mark is not None:
        yield PutNote(LOG_MARK, target.broker_name, tier.log_mark)
    for path, start in tier.log_starts.items():
        yield PutNote(LOG_START_NOTE, target_path(path, target), start)
    for topic in tier.topics:
        yield Put(topic)
    for queue in tier.queues:
        yield from _queue(queue, target)
        for kind, note in queue.notes.items():
            yield PutNote(kind, target_path(queue.path, target), note)
    for row in tier.index:
        yield Put(_row(row, target))
    yield from _index_notes(tier, keeps_local_files=source.store_path == target.store_path)
    yield from tier.tables
    yield PutNote(NOTE, SOURCE, dict(place_of(source)))


def _adopted(
    tier: SourceTier, source: StoreConfig, target: StoreConfig, metadata: MetadataStore
) -> list[Change]:
    """The changes that adopt the queues. Topics get the target's own numbers. Adopted queues take
    no more messages, and the consumer groups of the old broker are left behind."""
    for topic in tier.topics:
        metadata.add_topic(topic.topic, reserve_hours=topic.reserve_hours)
    changes: list[Change] = []
    for queue in tier.queues:
        changes += _queue(queue, target)
        changes.append(history_note(target_path(queue.path, target), source.broker_name))
        changes.append(PutNote(NOTE, _adopted_key(queue.record.key), dict(place_of(source))))
    return changes


def _index_taken_over(
    target: StoreConfig, metadata: MetadataStore, provider: SegmentProvider
) -> list[Change]:
    """Changes that say of RocketMQ's index which queues it has. Without such notes it counts as one
    that has every message, also those of the queues that come now.

    An index of ours whose notes are lost is not taken over: what it has is unknown, so a broker
    puts all again.
    """
    marks, folder = watermarks.Watermarks(metadata, target.broker_name), LocalFolder(target)
    begins = folder.begins()
    rows = metadata.segments(index_queue_path(target.broker_name), SegmentType.INDEX)
    whole = [row for row in rows if row.size]
    if marks.slot_count() is not None or not (whole or begins):
        return []
    is_ours = any(map(folder.is_ours, begins))
    slots, wanted = Counter[int](), target.index_slot_count
    for row in whole:
        with provider.open(*row.key) as segment:
            try:
                layout = layout_of(segment)
            except (SegmentError, OffsetOutOfRangeError) as error:
                log.warning("how many slots an index file has is not known: %s", error)
                continue
        slots[layout.slot_count] += 1
        is_ours |= layout.is_ours
    # A file of RocketMQ that is cut seems to have fewer.
    most = wanted if wanted in slots else max(slots, key=slots.__getitem__, default=wanted)
    sizes = marks.sizes(slot_count=most, item_capacity=target.index_item_count)
    return [sizes, *([] if is_ours else marks.adopted(now_ms=worker_runtime().clock.now_ms()))]


def _queue(queue: SourceQueue, target: StoreConfig) -> Iterator[Change]:
    yield Put(replace(queue.record, broker_name=target.broker_name))
    for row in (*queue.log, *queue.units):
        yield Put(_row(row, target))


def _row(row: SegmentRecord, target: StoreConfig) -> SegmentRecord:
    return replace(row, path=target_path(row.path, target))


def _adopted_key(key: QueueKey) -> str:
    return f"{key.topic}/{key.queue_id}"


def _index_notes(tier: SourceTier, *, keeps_local_files: bool) -> Iterator[Change]:
    """Notes on how far keys are durable. The marks of keys that are only in local files left behind
    are lowered, so that these keys are put again."""
    notes = tier.index_notes
    for name, value in notes[watermarks.STORE].items():
        yield PutNote(watermarks.STORE, name, value)
    marks = dict(notes[watermarks.QUEUE])
    if keeps_local_files:
        for kind in (watermarks.FILE, watermarks.START):
            for key, value in notes[kind].items():
                yield PutNote(kind, key, value)
    else:
        _lower(marks, notes[watermarks.START])
    for key, value in marks.items():
        yield PutNote(watermarks.QUEUE, key, value)


def _lower(marks: dict[str, Json], starts: Mapping[str, Any]) -> None:
    for name, start in starts.items():
        key = name.partition("/")[2]
        mark = marks.get(key)
        held = mark[0] if isinstance(mark, list) and mark else mark
        if isinstance(held, int) and isinstance(start, int) and start < held:
            marks[key] = [start, *mark[1:]] if isinstance(mark, list) else start
