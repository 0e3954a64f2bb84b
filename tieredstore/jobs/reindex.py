"""All index files of a tier made anew from its commit logs, in two steps: keys, then files.

What lives here: `reindex`, and `ReindexKeys`, the step that reads the logs and stages sorted runs
of their keys. What the second step does with them is in `reindex_build`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final

from tieredstore.access.reader import TieredReader
from tieredstore.driver.runtime import Clock
from tieredstore.index.hits import CommittedRun
from tieredstore.index.run_keys import keys_of_run
from tieredstore.jobs.job import Engine, OnProgress, Plan, RowStream, no_progress, run_job
from tieredstore.jobs.job_report import JobReport, JobState
from tieredstore.jobs.loading.load_tier import OwnedTier, owned_tier, scratch_of, without_tier
from tieredstore.jobs.reading.slice_reads import Damage, SliceReader
from tieredstore.jobs.reading.slices import SPLIT_BYTES, Slice, plan_slices, queue_rows
from tieredstore.jobs.reindexing.reindex_build import KEYS, THREADS, ReindexFiles, ReindexScope
from tieredstore.jobs.reindexing.reindex_runs import KeyRun, RunWriter, staged_runs
from tieredstore.jobs.worker_parts import worker_provider
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError

NAME: Final = "reindex"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysItem:
    """One slice whose keys are wanted; `stem` names the runs that will have them."""

    slice: Slice
    topic_id: int
    stem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReindexKeys:
    """The first step. Runs that an earlier one staged for the same slice are not made again."""

    config: StoreConfig
    split_bytes: int = SPLIT_BYTES
    tier: OwnedTier | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", self.config.with_full_paths())

    def __reduce__(self) -> tuple[Any, ...]:
        return without_tier(self)

    @contextmanager
    def held(self, *, dry_run: bool = False) -> Iterator[ReindexKeys]:
        """The job to be run within the block. The catalogue is locked before a byte is read, and
        until the block ends: CatalogueLockedError where a broker runs, and nothing is staged."""
        if dry_run:
            yield self
            return
        with owned_tier(self.config, threads=THREADS) as tier:
            yield replace(self, tier=tier)

    @property
    def name(self) -> str:
        return NAME

    def plan(self) -> Plan[KeysItem]:
        wanted = planned_keys(self.config, split_bytes=self.split_bytes)
        scratch = scratch_of(self.config, worker_provider(self.config))
        staged = staged_runs(scratch, KEYS)
        items = [item for item in wanted if item.stem not in staged]
        sizes = [item.slice.approximate_bytes for item in items]
        messages = sum(len(item.slice) for item in wanted)
        lines = [f"{messages} messages in {len(wanted)} slices"]
        if len(items) < len(wanted):
            lines.append(f"the keys of {len(wanted) - len(items)} slices are staged already")
        lines.append(f"{len(items)} slices to read, about {sum(sizes)} bytes")
        return Plan(
            items=items,
            item_bytes=sizes,
            counts={
                "messages": messages,
                "slices": len(wanted),
                "staged": len(wanted) - len(items),
            },
            byte_counts={"log": sum(sizes)},
            lines=tuple(lines),
        )

    def work(self, item: KeysItem) -> Iterable[int]:
        """How many keys there are, of this slice."""
        yield sum(run.count for run in stage_keys(self.config, item))

    def finish(self, plan: Plan[KeysItem], rows: RowStream[int]) -> JobReport:
        keys = sum(rows)
        return JobReport(
            job=self.name,
            state=rows.state,
            counts={**plan.counts, "keys": keys, "failed": rows.failed_count},
            failures=tuple(rows.failures),
            lines=(f"{keys} keys were staged",),
        )

    def following(self, report: JobReport) -> ReindexFiles | None:
        """The second step, where this one came to its end."""
        if report.failures or report.state is not JobState.DONE:
            return None
        wanted = planned_keys(self.config, split_bytes=self.split_bytes)
        return ReindexFiles(config=self.config, scope=_scope(wanted), tier=self.tier)


def planned_keys(config: StoreConfig, *, split_bytes: int) -> list[KeysItem]:
    """The slices of all queues, as the catalogue has them now."""
    if not config.index_enabled:
        raise InvalidConfigError("index_enabled: it is off: this tier is to have no index")
    with TieredReader.open(config) as reader:
        topic_ids = {row.topic: row.topic_id for row in reader.topics()}
        slices = plan_slices(queue_rows(reader.segments()), split_bytes=split_bytes)
    return [
        KeysItem(
            slice=each,
            topic_id=topic_ids[each.key.topic],
            stem=_stem(each, topic_ids[each.key.topic]),
        )
        for each in slices
    ]


def _stem(slice: Slice, topic_id: int) -> str:
    """The same for the same messages: bytes that were committed never change. A queue that was
    made anew has rows of another time."""
    made = sorted(row.create_timestamp for row in slice.rows)
    facts = (slice.path, topic_id, slice.first_offset, slice.end_offset, made[:1])
    return f"{KEYS}/{sha256(repr(facts).encode()).hexdigest()[:32]}"


def _scope(wanted: Sequence[KeysItem]) -> ReindexScope:
    ends: dict[tuple[str, int, int], int] = {}
    for item in wanted:
        queue = item.slice.key.topic, item.topic_id, item.slice.key.queue_id
        ends[queue] = max(ends.get(queue, 0), item.slice.end_offset)
    return ReindexScope(
        stems=tuple(item.stem for item in wanted),
        ends=tuple((*queue, end) for queue, end in ends.items()),
    )


def stage_keys(config: StoreConfig, item: KeysItem) -> list[KeyRun]:
    """Read a slice, and stage the keys of its messages in sorted runs.

    Messages that are damaged are passed over, as the index does, and counted.
    """
    key = item.slice.key
    writer = RunWriter(
        scratch_of(config, worker_provider(config)),
        item.stem,
        topic_id=item.topic_id,
        queue_id=key.queue_id,
        first_offset=item.slice.first_offset,
    )

    def passed_over(damage: Damage) -> None:
        writer.damaged_count += damage.end_offset - damage.first_offset

    # A message whose body is damaged has its keys all the same.
    reader = SliceReader(config, item.slice, on_damage=passed_over, checks_bodies=False)
    for run in reader.runs():
        committed = CommittedRun(run=run, log_offsets=run.log_offsets)
        writer.add(keys_of_run(key.topic, item.topic_id, key.queue_id, committed).columns)
    return writer.finish()


def reindex(
    config: StoreConfig,
    engine: Engine,
    *,
    clock: Clock,
    dry_run: bool = False,
    on_plan: Callable[[Plan[Any]], None] | None = None,
    on_progress: OnProgress = no_progress,
) -> JobReport:
    """Make all index files anew from the commit logs, and put them in the place of the old ones.

    The order is that of an index which took each message when it was stored: by store time, of
    equal times by topic number, queue id and queue offset. Nobody may write the tier meanwhile.
    Raises CatalogueLockedError where somebody does; run again after a failure, it goes on.
    """
    with ReindexKeys(config=config).held(dry_run=dry_run) as job:
        return run_job(
            job,
            engine,
            clock=clock,
            dry_run=dry_run,
            on_plan=on_plan,
            on_progress=on_progress,
        )
