"""The second step of a reindex: files from staged runs of keys, then the new index in one change.

What lives here: `ReindexFiles`. Workers make files and stage them; whoever holds the catalogue's
lock copies them into the tier. The old files are deleted when the new catalogue is durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any, Final

from tieredstore.access.care.audit_report import Severity
from tieredstore.codec.bounds import Buffer
from tieredstore.codec.names import index_queue_path, queue_path
from tieredstore.codec.tiered_index import HEADER_BYTES, decode_header
from tieredstore.driver.metadata import Change
from tieredstore.driver.scratch import Scratch, StagedObject
from tieredstore.flat import doomed
from tieredstore.index.watermarks import QueueId, Watermarks
from tieredstore.jobs.job import Plan, RowStream
from tieredstore.jobs.job_report import JobFinding, JobReport, JobState
from tieredstore.jobs.loading.load_tier import (
    OwnedTier,
    owned_already,
    scratch_of,
    without_tier,
)
from tieredstore.jobs.reindexing.reindex_cuts import FilePlan, file_plans
from tieredstore.jobs.reindexing.reindex_files import made_file
from tieredstore.jobs.reindexing.reindex_install import (
    BLOCK_BYTES,
    NewIndexFile,
    begin_timestamps,
    begins_in_use,
    index_changes,
    index_rows,
    upload,
)
from tieredstore.jobs.reindexing.reindex_merge import merged
from tieredstore.jobs.reindexing.reindex_runs import KeyRun, in_order, staged_runs
from tieredstore.jobs.worker_parts import worker_provider, worker_runtime
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError, SegmentNotFoundError
from tieredstore.model.values import SegmentType

FOLDER: Final = "reindex"
KEYS: Final = f"{FOLDER}/keys"
FILES: Final = f"{FOLDER}/files"
THREADS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ReindexScope:
    """What the first step has read: the names of its runs, and up to where each queue goes."""

    stems: tuple[str, ...]
    ends: tuple[tuple[str, int, int, int], ...]  # topic, topic id, queue id, end offset


@dataclass(frozen=True, slots=True, kw_only=True)
class FileItem:
    """One file to be made, and the name that it is staged under."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReindexFiles:
    """Makes files, stages them and installs them. A file that is staged is not made again."""

    config: StoreConfig
    scope: ReindexScope
    tier: OwnedTier | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return without_tier(self)

    @property
    def name(self) -> str:
        return FOLDER

    def plan(self) -> Plan[FileItem]:
        scratch = scratch_of(self.config, worker_provider(self.config))
        runs = self._runs(scratch)
        with owned_already(self.tier, self.config, threads=1) as tier:
            self._check(tier)
            used = begins_in_use(tier)
        files = list(file_plans(scratch, runs, items_max=self.config.index_item_count - 1))
        begins = begin_timestamps([each.first_time for each in files], used)
        items = [
            FileItem(plan=each, begin=begin, name=self._name(each, begin))
            for each, begin in zip(files, begins, strict=True)
        ]
        return Plan(
            items=items,
            item_bytes=[each.plan.count for each in items],  # keys: nobody knows the bytes yet
            counts={
                "keys": sum(run.count for run in runs),
                "runs": len(runs),
                "damaged": sum(run.damaged_count for run in self._all(scratch) if run.is_last),
            },
        )

    def work(self, item: FileItem) -> Iterable[FileRow]:
        scratch = scratch_of(self.config, worker_provider(self.config))
        staged = {each.name: each for each in scratch.listed(FILES)}.get(item.name)
        if staged is None:
            columns = merged(scratch, item.plan.parts, worker_runtime())
            with made_file(self.config, columns, begin_timestamp=item.begin) as made:
                staged = StagedObject(item.name, scratch.put(item.name, made.blocks()))
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
        return JobReport(
            job=self.name,
            state=state,
            counts={**plan.counts, "files": len(made), "failed": rows.failed_count},
            byte_counts={"index": size},
            findings=_findings(plan.counts["damaged"]),
            failures=tuple(rows.failures),
            lines=(f"{keys} keys in {len(made)} index files, {size} bytes",),
        )

    def _all(self, scratch: Scratch) -> list[KeyRun]:
        staged = staged_runs(scratch, KEYS)
        missing = [stem for stem in self.scope.stems if stem not in staged]
        if missing:
            raise SegmentNotFoundError(missing[0])
        return [run for stem in self.scope.stems for run in staged[stem]]

    def _runs(self, scratch: Scratch) -> list[KeyRun]:
        return in_order(self._all(scratch))

    def _name(self, plan: FilePlan, begin: int) -> str:
        """The same for the same bytes."""
        sizes = self.config.index_slot_count, self.config.index_item_count
        facts = sha256(repr((plan.parts, begin, sizes)).encode()).hexdigest()[:32]
        return f"{FILES}/{facts}"

    def _check(self, tier: OwnedTier) -> None:
        """The tier is still what was read."""
        tier.check_index_sizes()
        for name, topic_id, queue_id, _ in self.scope.ends:
            topic = tier.metadata.topic(name)
            path = queue_path(self.config.broker_name, name, queue_id)
            rows = tier.metadata.segments(path, SegmentType.CONSUME_QUEUE)
            if topic is None or topic.topic_id != topic_id or not rows:
                raise MetadataError(
                    self.config.catalogue_path,
                    f"it does not know queue {queue_id} of {name} as it was read: rebuild it, or "
                    "run this again",
                )

    def _install(self, made: Sequence[FileRow]) -> None:
        with owned_already(self.tier, self.config, threads=THREADS) as tier:
            self._check(tier)
            path = index_queue_path(self.config.broker_name)
            tier.finish_doomed(path)
            old = tier.metadata.segments(path, SegmentType.INDEX)
            files = [_new_file(tier.scratch, row) for row in made]
            rows = index_rows(tier, files)
            with tier.installing([path]):
                tier.announce(rows)
                for row, file in zip(rows, files, strict=True):
                    upload(tier, row, file)
                tier.metadata.apply([*self._changes(tier, rows), *doomed.doom(old)])
            tier.settle(FOLDER)

    def _changes(self, tier: OwnedTier, rows: Sequence[SegmentRecord]) -> list[Change]:
        ends = {QueueId(topic_id, queue_id): end for _, topic_id, queue_id, end in self.scope.ends}
        watermarks = Watermarks(tier.metadata, self.config.broker_name)
        # What is in a local file of the broker is found in the new ones too.
        local = [note for begin in watermarks.begins() for note in watermarks.forgotten(begin)]
        return [*index_changes(tier, rows, ends), *local]


def _new_file(scratch: Scratch, row: FileRow) -> NewIndexFile:
    return NewIndexFile(
        begin=row.begin, end=row.end, size=row.size, blocks=partial(_staged_blocks, scratch, row)
    )


def _staged_blocks(scratch: Scratch, row: FileRow) -> Iterator[Buffer]:
    for position in range(0, row.size, BLOCK_BYTES):
        yield scratch.read(row.name, position, min(BLOCK_BYTES, row.size - position))


def _findings(damaged: int) -> tuple[JobFinding, ...]:
    if not damaged:
        return ()
    detail = f"{damaged} messages cannot be read and are not indexed: `verify` names them"
    return (JobFinding(severity=Severity.DAMAGE, kind="not-indexed", where="tier", detail=detail),)
