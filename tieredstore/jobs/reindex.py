"""Rebuilds all index files of a tier from its commit logs: first the keys, then the files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import accumulate, chain, count
from typing import Any, ClassVar, Final

from tieredstore.access.reader import TieredReader
from tieredstore.codec.checks import Buffer
from tieredstore.codec.names import queue_path
from tieredstore.codec.tiered_index import HEADER_BYTES, decode_header
from tieredstore.driver.metadata import Change
from tieredstore.driver.provider import Scratch, StagedObject
from tieredstore.driver.runtime import Clock
from tieredstore.flat import append_file
from tieredstore.index.compaction import Compaction
from tieredstore.index.keys import keys_of_records
from tieredstore.index.watermarks import QueueId
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
from tieredstore.jobs.key_runs import (
    FilePlan,
    KeyRun,
    RunWriter,
    drop_damaged,
    file_plans,
    in_order,
    merged,
    staged_runs,
)
from tieredstore.jobs.slices import SPLIT_BYTES, Damage, Slice, SliceReader, plan_slices, queue_rows
from tieredstore.jobs.worker import (
    OwnedTier,
    check_catalogue,
    owned_already,
    owned_tier,
    worker_runtime,
    worker_scratch,
)
from tieredstore.model.amounts import counted, shown_size
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    InvalidConfigError,
    MetadataError,
    SegmentNotFoundError,
)
from tieredstore.model.findings import Finding
from tieredstore.model.values import SegmentRecord, SegmentType

BLOCK_BYTES: Final = 8 << 20
FOLDER: Final = "reindex"
KEYS: Final = f"{FOLDER}/keys"
FILES: Final = f"{FOLDER}/files"
THREADS: Final = 4


def reindex(
    config: StoreConfig,
    engine: Engine,
    *,
    clock: Clock,
    dry_run: bool = False,
    on_plan: Callable[[Plan[Any]], None] | None = None,
    on_progress: OnProgress = no_progress,
) -> JobReport:
    """Make all index files anew from the commit logs, and replace the old ones with them.

    Keys are in the order of an index that took each message when it was stored: by store time, and
    for equal times by topic number, queue id and queue offset. Nobody may write the tier meanwhile:
    raises CatalogueLockedError if somebody does. Run again after a failure, it resumes.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReindexKeys:
    """The first step. It reuses runs that an earlier job staged for the same slice, unless that
    slice had damage."""

    name: ClassVar[str] = FOLDER
    config: StoreConfig
    split_bytes: int = SPLIT_BYTES
    tier: OwnedTier | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", self.config.with_full_paths())

    @contextmanager
    def held(self, *, dry_run: bool = False) -> Iterator[ReindexKeys]:
        """The job to run within the block. The catalogue is locked before anything is read, and
        until the block ends. CatalogueLockedError if a broker runs; then nothing is staged."""
        if dry_run:
            yield self
            return
        with owned_tier(self.config, threads=THREADS) as tier:
            drop_damaged(tier.scratch, KEYS, made_of_runs=FILES)
            yield replace(self, tier=tier)

    def plan(self) -> Plan[KeysItem]:
        wanted, _ = planned_keys(self.config, split_bytes=self.split_bytes)
        scratch = worker_scratch(self.config)
        staged = staged_runs(scratch, KEYS)
        items = [item for item in wanted if item.stem not in staged]
        sizes = [item.slice.approximate_bytes for item in items]
        messages = sum(len(item.slice) for item in wanted)
        lines = [f"{counted(messages, 'message')} in {counted(len(wanted), 'slice')}"]
        if len(items) < len(wanted):
            staged_count = len(wanted) - len(items)
            lines.append(f"staged already: the keys of {counted(staged_count, 'slice')}")
        lines.append(f"{counted(len(items), 'slice')} to read, about {shown_size(sum(sizes))}")
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
        """How many keys this slice has."""
        yield sum(run.count for run in stage_keys(self.config, item))

    def finish(self, plan: Plan[KeysItem], rows: RowStream[int]) -> JobReport | ReindexFiles:
        keys = sum(rows)
        if rows.state is JobState.DONE:
            _, scope = planned_keys(self.config, split_bytes=self.split_bytes)
            return ReindexFiles(config=self.config, scope=scope, tier=self.tier)
        return JobReport(
            job=self.name,
            state=rows.state,
            counts={**plan.counts, "keys": keys, "failed": rows.failed_count},
            failures=tuple(rows.failures),
            lines=(f"{keys} keys were staged",),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysItem:
    """One slice whose keys are read. `stem` names the runs for them."""

    slice: Slice
    topic_id: int
    stem: str


def planned_keys(config: StoreConfig, *, split_bytes: int) -> tuple[list[KeysItem], ReindexScope]:
    """The slices of all queues that the catalogue has now, and what the index then has."""
    if not config.index_enabled:
        raise InvalidConfigError("index_enabled: it is off: this tier is to have no index")
    check_catalogue(config, wanted=lambda _topic: True)
    with TieredReader.open(config) as reader:
        topic_ids = {row.topic: row.topic_id for row in reader.topics()}
        missing = sorted({key.topic for key in reader.queues()} - topic_ids.keys())
        if missing:
            reason = f"it has queues of {missing[0]}, and not the topic: rebuild it"
            raise MetadataError(reader.catalogue.place, reason)
        queues = queue_rows(reader.segments())
        problems = {rows.key: reader.problem(*rows.key) for rows in queues}
    items = [
        KeysItem(
            slice=slice_,
            topic_id=topic_ids[slice_.key.topic],
            stem=_stem(slice_, topic_ids[slice_.key.topic]),
        )
        for slice_ in plan_slices(queues, split_bytes=split_bytes)
    ]
    ends, lost = [], []
    for rows in queues:
        key = rows.key
        # What comes back later is not indexed, also if it is all of a queue.
        ends.append((key.topic, topic_ids[key.topic], key.queue_id, rows.end_offset))
        if (problem := problems[key]) is not None:
            lost.append((f"{key.topic}/{key.queue_id}", problem))
    stems = tuple(item.stem for item in items)
    return items, ReindexScope(stems=stems, ends=tuple(ends), lost=tuple(lost))


def _stem(slice: Slice, topic_id: int) -> str:
    """A name that is the same for the same messages: committed bytes never change. A queue that was
    made anew has rows with other creation times."""
    made = sorted(row.create_timestamp for row in slice.rows)
    facts = (slice.path, topic_id, slice.first_offset, slice.end_offset, made[:1])
    return f"{KEYS}/{sha256(repr(facts).encode()).hexdigest()[:32]}"


def stage_keys(config: StoreConfig, item: KeysItem) -> list[KeyRun]:
    """Read a slice, and stage the keys of its messages in sorted runs.

    Damaged messages are skipped, as the index does, and counted.
    """
    key = item.slice.key
    writer = RunWriter(
        worker_scratch(config),
        item.stem,
        topic_id=item.topic_id,
        queue_id=key.queue_id,
        first_offset=item.slice.first_offset,
    )

    def passed_over(damage: Damage) -> None:
        writer.damaged_count += damage.end_offset - damage.first_offset

    # A message with a damaged body still has its keys.
    reader = SliceReader(config, item.slice, on_damage=passed_over, checks_bodies=False)
    for fields in reader.fields():
        queue = key.topic, item.topic_id, key.queue_id
        writer.add(keys_of_records(*queue, fields, fields.run.log_offsets).columns)
    return writer.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReindexFiles:
    """The second step: makes files, stages them and installs them. It reuses staged files."""

    name: ClassVar[str] = FOLDER
    config: StoreConfig
    scope: ReindexScope
    tier: OwnedTier | None = field(default=None, repr=False, compare=False)

    def plan(self) -> Plan[FileItem]:
        scratch = worker_scratch(self.config)
        staged = self._staged(scratch)
        runs = in_order(staged)
        with owned_already(self.tier, self.config, threads=1) as tier:
            self._check(tier)
            used = begins_in_use(tier)
        files = list(file_plans(scratch, runs, items_max=self.config.index_item_count - 1))
        begins = begin_timestamps([file.first_time for file in files], used)
        items = [
            FileItem(plan=file, begin=begin, name=self._name(file, begin))
            for file, begin in zip(files, begins, strict=True)
        ]
        return Plan(
            items=items,
            item_bytes=[item.plan.count for item in items],  # in keys, as bytes are not known yet
            counts={
                "keys": sum(run.count for run in runs),
                "runs": len(runs),
                "damaged": sum(run.damaged_count for run in staged if run.is_last),
            },
        )

    def work(self, item: FileItem) -> Iterable[FileRow]:
        scratch = worker_scratch(self.config)
        staged = {object_.name: object_ for object_ in scratch.listed(FILES)}.get(item.name)
        if staged is None:
            columns = merged(scratch, item.plan.parts, worker_runtime())
            slots = self.config.index_slot_count
            with closing(Compaction.of_keys(columns, item.begin, slot_count=slots)) as made:
                staged = StagedObject(item.name, scratch.put(item.name, made.whole()))
        header = decode_header(scratch.read(item.name, 0, HEADER_BYTES), path=item.name)
        yield FileRow(
            number=item.plan.number,
            name=item.name,
            begin=item.begin,
            end=header.end_timestamp,
            size=staged.size,
        )

    def finish(self, plan: Plan[FileItem], rows: RowStream[FileRow]) -> JobReport:
        made = sorted(rows, key=lambda row: row.number)
        state = rows.state
        if state is JobState.DONE:
            self._install(made)
        keys, size = plan.counts["keys"], sum(row.size for row in made)
        findings, left_out = bounded(_findings(plan.counts["damaged"], self.scope.lost))
        return JobReport(
            job=self.name,
            state=state,
            counts={**plan.counts, "files": len(made), "failed": rows.failed_count},
            byte_counts={"index": size},
            findings=findings,
            findings_left_out=left_out,
            failures=tuple(rows.failures),
            lines=(
                f"{counted(keys, 'key')} in {counted(len(made), 'index file')}, {shown_size(size)}",
            ),
        )

    def _staged(self, scratch: Scratch) -> list[KeyRun]:
        staged = staged_runs(scratch, KEYS)
        missing = [stem for stem in self.scope.stems if stem not in staged]
        if missing:
            raise SegmentNotFoundError(missing[0])
        return [run for stem in self.scope.stems for run in staged[stem]]

    def _name(self, plan: FilePlan, begin: int) -> str:
        """A name that is the same for the same bytes."""
        sizes = self.config.index_slot_count, self.config.index_item_count
        facts = sha256(repr((plan.parts, begin, sizes)).encode()).hexdigest()[:32]
        return f"{FILES}/{facts}"

    def _check(self, tier: OwnedTier) -> None:
        """Check that the tier still has what was read."""
        tier.check_index_sizes()
        for name, topic_id, queue_id, end in self.scope.ends:
            topic = tier.metadata.topic(name)
            path = queue_path(self.config.broker_name, name, queue_id)
            rows = tier.metadata.segments(path, SegmentType.CONSUME_QUEUE)
            if topic is None or topic.topic_id != topic_id or (end and not rows):
                raise MetadataError(
                    self.config.catalogue_path,
                    f"it does not know queue {queue_id} of {name} as it was read: rebuild it, or "
                    "run this again",
                )

    def _install(self, made: Sequence[FileRow]) -> None:
        with owned_already(self.tier, self.config, threads=THREADS) as tier:
            self._check(tier)
            tier.delete_pending(tier.index_path)
            tier.drop_unfinished_index()
            old = tier.index_rows
            bases = accumulate((file.size for file in made), initial=next_base(tier))
            rows = [
                index_row(tier, base, begin=file.begin, end=file.end, size=file.size)
                for base, file in zip(bases, made, strict=False)
            ]
            with tier.installing([tier.index_path]):
                tier.announce(rows)
                for row, file in zip(rows, made, strict=True):
                    tier.create(row, _staged_blocks(tier.scratch, file))
                marks = append_file.mark_for_deletion(old)
                tier.metadata.apply([*self._changes(tier, rows), *marks])
            tier.settle(FOLDER)

    def _changes(self, tier: OwnedTier, rows: Sequence[SegmentRecord]) -> list[Change]:
        ends = {QueueId(topic_id, queue_id): end for _, topic_id, queue_id, end in self.scope.ends}
        marks = tier.watermarks
        # The new files also have all keys of the broker's local files.
        local = [note for begin in marks.begins() for note in marks.forgotten(begin)]
        anew = marks.made_anew(next_base(tier))
        return [*index_changes(tier, rows, ends), *anew, *local]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReindexScope:
    """The result of the first step: the names of its runs, the end of each queue, and what is
    lost of queues."""

    stems: tuple[str, ...]
    ends: tuple[tuple[str, int, int, int], ...]  # topic, topic id, queue id, end offset
    lost: tuple[tuple[str, str], ...] = ()  # topic/queue id, why


@dataclass(frozen=True, slots=True, kw_only=True)
class FileItem:
    """One file to make, and the name under which it is staged."""

    plan: FilePlan
    begin: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """One file that was made and staged."""

    number: int
    name: str
    begin: int
    end: int
    size: int


def _staged_blocks(scratch: Scratch, row: FileRow) -> Iterator[Buffer]:
    for position in range(0, row.size, BLOCK_BYTES):
        yield scratch.read(row.name, position, min(BLOCK_BYTES, row.size - position))


def _findings(damaged: int, lost: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    if damaged:
        detail = f"{damaged} messages cannot be read and are not indexed: `verify` names them"
        yield Finding.of_damage("not-indexed", "tier", detail)
    for where, problem in lost:
        yield Finding.of_damage("not-indexed", where, problem)


def next_base(tier: OwnedTier) -> int:
    """Where the next file begins: after everything that the index ever had, so that no name is used
    twice. An upload that was cut short has this same name; see `drop_unfinished_index`."""
    return max([tier.watermarks.end(), *(row.end_offset for row in tier.index_rows)])


def index_row(tier: OwnedTier, base: int, *, begin: int, end: int, size: int = 0) -> SegmentRecord:
    """The row of a new index file."""
    return SegmentRecord(
        path=tier.index_path,
        type=SegmentType.INDEX,
        base_offset=base,
        size=size,
        create_timestamp=tier.runtime.clock.now_ms(),
        begin_timestamp=begin,
        end_timestamp=end,
    )


def index_changes(
    tier: OwnedTier, rows: Sequence[SegmentRecord], ends: Mapping[QueueId, int]
) -> list[Change]:
    """The changes to apply together: the files exist, and have the keys of queues up to `ends`."""
    config, now, marks = tier.config, tier.runtime.clock.now_ms(), tier.watermarks
    end = max([next_base(tier), *(row.end_offset for row in rows)])
    return [
        *append_file.installed(rows),
        marks.sizes(slot_count=config.index_slot_count, item_capacity=config.index_item_count),
        marks.end_at(end),
        *marks.moved(ends, dict.fromkeys(ends, now)),
    ]


def begins_in_use(tier: OwnedTier) -> set[int]:
    """The begins of files that the catalogue knows. Local and uploaded files are matched by their
    begins, so none is used twice."""
    uploaded = {row.begin_timestamp or 0 for row in tier.index_rows}
    return uploaded | set(tier.watermarks.begins())


def begin_timestamps(first_times: Sequence[int], used: set[int]) -> list[int]:
    """When each file begins: with its first message, but before the next file, and at a millisecond
    of its own. RocketMQ searches only files that begin before the end of the requested time.

    Near time 0 there may be too few milliseconds: only then does a file begin after a message.
    """
    begins: list[int] = []
    taken = set(used)
    for time in reversed(first_times):
        latest = min(time, begins[-1] - 1) if begins else time
        free = chain(range(latest, 0, -1), count(1))
        begins.append(next(begin for begin in free if begin not in taken))
        taken.add(begins[-1])
    return sorted(begins)
