"""The job `export`: a tier as Parquet files, one folder for each topic and day, each message once.

* A range of a queue is planned before its first file is written, and is never cut anew: a second
  attempt, of a task or of a run that was killed, writes files of the same names.
* A file is there whole or not at all. A plain Parquet reader, which only lists folders, therefore
  never sees a message twice or half a file. While a run is under way, or after it was killed, the
  reader sees some of the new messages early; each is right, since what is in a tier never changes.
* `_tieredstore/manifest.json` says up to where all messages are there. It is replaced in one step
  at the end of a run. Readers that need whole days wait until there is no `_tieredstore/plan.json`.

Files appear one by one under their final names, because renaming all of them at the end would be no
single step: a bucket cannot rename, and a disk renames a thousand files one after the other.

The next run exports only what is new. One run at a time may write to a target; a run that finds
another commit than it began with is refused. Messages that cannot be read fail their range, which
stays planned. With `on_corrupt` SKIP they are left out with a note; with REPORT they are damage,
and each has a row where `damage` is among the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tieredstore.access.reader import TieredReader
from tieredstore.jobs.arrow import MESSAGE_COLUMNS
from tieredstore.jobs.export_target import (
    ExportTarget,
    Ledger,
    Ranges,
    Settings,
    TargetOptions,
    commit,
    free,
    full_target,
    put_done,
    put_plan,
    range_name,
)
from tieredstore.jobs.job import JobReport, JobState, Plan, RowStream, bounded
from tieredstore.jobs.scan import DAMAGE, OnCorrupt, Scan, queue_bounds, selected_queues
from tieredstore.jobs.slices import (
    EVER,
    EVERYTHING,
    SPLIT_BYTES,
    QueueRows,
    Selection,
    Slice,
    TopicPatterns,
    plan_slices,
)
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError, MetadataError
from tieredstore.model.findings import Finding, Severity
from tieredstore.model.values import Json

NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
"""How Hive writes null: a store time that is no day, or a message that cannot be read."""
ROW_GROUP_ROWS: Final = 131_072
DAMAGED_SHOWN: Final = 20  # of one range
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC).date()
_DAY_US: Final = 86_400_000_000
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{}[]^")
DEFAULT_COLUMNS: Final = tuple(
    name for name in MESSAGE_COLUMNS if name not in ("topic", "body_crc_ok")
)
_ALWAYS: Final = ("store_time", "topic", "queue_id", "queue_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportItem:
    """A range of a queue that has one name for ever, and what of it there still is."""

    source: str
    first_offset: int
    end_offset: int
    slices: tuple[Slice, ...]

    @property
    def name(self) -> str:
        return range_name(self.source, self.first_offset, self.end_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRow:
    """What became of a range; `damaged` has at most DAMAGED_SHOWN messages."""

    messages: int
    files: int
    written_bytes: int
    damaged_count: int = 0
    damaged: tuple[tuple[str, int, int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportJob:
    """Exports topics that match one of the patterns, and what was stored within the times.

    `topic` and `day` are in the names of the folders. `columns` and `times` are those of the target
    for ever: a later run must have the same.
    """

    name: ClassVar[str] = "export"
    config: StoreConfig
    target: str
    target_options: TargetOptions = field(default_factory=TargetOptions)
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    topics: tuple[str, ...] = ()
    times: tuple[int, int] = EVER
    on_corrupt: OnCorrupt = OnCorrupt.FAIL
    split_bytes: int = SPLIT_BYTES

    def __post_init__(self) -> None:
        known = [name for name in MESSAGE_COLUMNS if name != "topic"]
        if self.on_corrupt is OnCorrupt.REPORT:
            known.append(DAMAGE)
        for name in self.columns:
            if name not in known:
                raise InvalidConfigError(
                    f"columns: {name!r} cannot be exported; there are {', '.join(known)}"
                )
        if not self.columns:
            raise InvalidConfigError("columns: name at least one")
        if len(set(self.columns)) < len(self.columns):
            raise InvalidConfigError("columns: one is named twice")
        if self.times[0] >= self.times[1]:
            raise InvalidConfigError("times: the begin is not before the end")
        # Workers may be in other folders.
        object.__setattr__(self, "config", self.config.with_full_paths())
        object.__setattr__(self, "target", full_target(self.target))

    def plan(self) -> Plan[ExportItem]:
        ledger = self._ledger()
        topics = TopicPatterns(self.topics)
        selection = Selection(topic_pattern=topics.expression, times=self.times)
        items: list[ExportItem] = []
        reset: list[Json] = []
        with TieredReader(self.config) as reader:
            there = {self._source(rows.path) for rows in selected_queues(reader, EVERYTHING)}
            topics.refuse_unknown(key.topic for key in reader.queues())
            queues = selected_queues(reader, selection)
            bounds = queue_bounds(reader, queues, selection)
            pending = ledger.pending()
            for rows in queues:
                source = self._source(rows.path)
                taken = ledger.taken(source)
                if taken and taken[-1][1] > rows.end_offset:
                    reset.append(f"{rows.path} ends at {rows.end_offset}, {taken[-1][1]} was there")
                # As they were planned, though the tier may have grown, or expired, since.
                items += [
                    _item(source, *part, self._slices(rows, part))
                    for part in pending.get(source, ())
                ]
                first, end = bounds[rows.path]
                span = max(first, rows.min_offset), min(end, rows.end_offset)
                slices = [
                    slice_ for part in free(*span, taken) for slice_ in self._slices(rows, part)
                ]
                items += [
                    _item(source, slice_.first_offset, slice_.end_offset, [slice_])
                    for slice_ in slices
                ]
        for source in sorted(pending.keys() - there):
            # Its queue was deleted meanwhile: there is nothing more to export.
            if source.startswith(self._source(self.config.broker_name + "/")):
                items += [_item(source, *part, ()) for part in pending[source]]
        sizes = [sum(part.approximate_bytes for part in item.slices) for item in items]
        messages = sum(len(part) for item in items for part in item.slices)
        text = f"{messages} messages, about {sum(sizes)} bytes, in {len(items)} ranges to export"
        return Plan(
            items=items,
            item_bytes=sizes,
            counts={"queues": len(queues), "messages": messages},
            byte_counts={"read": sum(sizes)},
            lines=(text, *(f"note: {line}: made anew?" for line in reset)),
            facts={"target": self.target, "commits": ledger.commits, "made_anew": reset},
        )

    def work(self, item: ExportItem) -> Iterable[ExportRow]:
        yield write_range(self.config, item, self._scan(), self.columns, self._opened())

    def finish(self, plan: Plan[ExportItem], rows: RowStream[ExportRow]) -> JobReport:
        target = self._opened()
        target.drop_halves()
        # Before the first row is asked for no work is begun.
        if plan.items:
            put_plan(
                target, self._settings, _ranges_of(plan, self._ledger(with_done=False).planned)
            )
        messages = files = written = damaged = 0
        findings: list[Finding] = []
        for row in rows:
            messages += row.messages
            files += row.files
            written += row.written_bytes
            damaged += row.damaged_count
            findings += [self._finding(*message) for message in row.damaged]
        commits = plan.facts["commits"]
        assert isinstance(commits, int)
        commits = commit(target, self._settings, Ledger(commits=commits))
        kept, left_out = bounded(findings)
        state = rows.state
        if state is JobState.DONE:
            self._check_arrived(plan)
        done = "all of it" if state is JobState.DONE else "not all of it: run it again"
        return JobReport(
            job=self.name,
            state=state,
            counts={
                "messages": messages,
                "files": files,
                "ranges": rows.done_count,
                "ranges_left": rows.item_count - rows.done_count,
                "damaged": damaged,
            },
            byte_counts={"written": written},
            findings=kept,
            findings_left_out=left_out + damaged - len(findings),
            failures=tuple(rows.failures),
            facts={"target": self.target, "commits": commits, "made_anew": plan.facts["made_anew"]},
            lines=(f"exported {messages} messages to {files} files, {done}",),
        )

    # Parts

    def _check_arrived(self, plan: Plan[ExportItem]) -> None:
        """Refuse where workers have written to disks of their own."""
        exported = self._ledger(with_done=False).exported
        for item in plan.items:
            part = item.first_offset, item.end_offset
            if free(*part, exported.get(item.source, ())):
                text = f"{item.name} was written, and is not there: do all workers see this folder?"
                raise MetadataError(self.target, text)

    @property
    def _settings(self) -> Settings:
        return {
            "columns": list(self.columns),
            "times": None if self.times == EVER else list(self.times),
        }

    def _ledger(self, *, with_done: bool = True) -> Ledger:
        return Ledger.read(self._opened(), self._settings, with_done=with_done)

    def _opened(self) -> ExportTarget:
        return ExportTarget(self.target, self.target_options)

    def _scan(self) -> Scan:
        wanted = tuple(dict.fromkeys((*_ALWAYS, *self.columns)))
        fails = self.on_corrupt is OnCorrupt.FAIL
        return Scan(
            columns=wanted if fails or DAMAGE in wanted else (*wanted, DAMAGE),
            selection=Selection(times=self.times),
            on_corrupt=OnCorrupt.FAIL if fails else OnCorrupt.REPORT,
        )

    def _source(self, path: str) -> str:
        return f"{self.config.cluster_name}/{path}"

    def _slices(self, rows: QueueRows, part: tuple[int, int]) -> list[Slice]:
        return plan_slices([rows], split_bytes=self.split_bytes, bounds=lambda _: part)

    def _finding(self, topic: str, queue_id: int, offset: int, reason: str) -> Finding:
        is_skipped = self.on_corrupt is OnCorrupt.SKIP
        return Finding(
            severity=Severity.NOTE if is_skipped else Severity.DAMAGE,
            kind="left-out",
            where=f"{topic}/{queue_id}",
            detail=f"message {offset}: {reason}",
        )


def _item(source: str, first: int, end: int, slices: Sequence[Slice]) -> ExportItem:
    return ExportItem(source=source, first_offset=first, end_offset=end, slices=tuple(slices))


def _ranges_of(plan: Plan[ExportItem], before: Ranges) -> Ranges:
    """What is planned now, with what was: a topic that is not asked for this time stays so."""
    ranges: dict[str, set[tuple[int, int]]] = {source: set(held) for source, held in before.items()}
    for item in plan.items:
        mine = ranges.setdefault(item.source, set())
        mine.add((item.first_offset, item.end_offset))
    return {source: sorted(held) for source, held in ranges.items()}


def write_range(
    config: StoreConfig, item: ExportItem, scan: Scan, columns: Sequence[str], target: ExportTarget
) -> ExportRow:
    """All files of the range, then its mark. Done twice, the second time replaces the first.

    It is held in memory: a range is as large as a piece of work.
    """
    days: dict[int | None, list[pa.RecordBatch]] = {}
    damaged: list[tuple[str, int, int, str]] = []
    damaged_count = 0
    for part in item.slices:
        for batch in scan.batches(config, part):
            if DAMAGE in batch.schema.names:
                reported = batch.filter(pc.is_valid(batch.column(DAMAGE)))
                damaged_count += len(reported)
                damaged += _described(reported, DAMAGED_SHOWN - len(damaged))
                if DAMAGE not in columns:
                    batch = batch.filter(pc.is_null(batch.column(DAMAGE)))  # noqa: PLW2901
            for day, rows in _by_day(batch):
                days.setdefault(day, []).append(rows.select(list(columns)))
    files: list[Json] = []
    messages = written = 0
    for day, batches in sorted(days.items(), key=lambda entry: (entry[0] is None, entry[0] or 0)):
        path = f"{folder(_topic_of(item.source), day)}/{item.name}.parquet"
        data = _parquet(batches)
        target.put(path, data)
        rows = sum(map(len, batches))
        files.append({"path": path, "rows": rows, "bytes": data.size})
        messages += rows
        written += data.size
    facts: dict[str, Json] = {
        "source": item.source,
        "first": item.first_offset,
        "end": item.end_offset,
        "rows": messages,
        "damaged": damaged_count,
        "files": files,
    }
    put_done(target, item.name, facts)
    return ExportRow(
        messages=messages,
        files=len(files),
        written_bytes=written,
        damaged_count=damaged_count,
        damaged=tuple(damaged),
    )


def folder(topic: str, day: int | None) -> str:
    """`topic=…/day=…`; days are counted from 1970."""
    name = NO_DAY if day is None else f"{_EPOCH + timedelta(days=day)}"
    return f"topic={escaped(topic)}/day={name}"


def escaped(text: str) -> str:
    """As Hive and Spark do: what a path cannot have, or would mean something else in it."""
    return "".join(f"%{ord(sign):02X}" if sign in _ESCAPED or sign < " " else sign for sign in text)


def _topic_of(source: str) -> str:
    return source.split("/")[2]


def _by_day(batch: pa.RecordBatch) -> list[tuple[int | None, pa.RecordBatch]]:
    times = batch.column("store_time")
    known = times.is_valid().to_numpy(zero_copy_only=False)
    days = times.cast(pa.int64()).fill_null(0).to_numpy() // _DAY_US
    if known.all() and len(days) and days.min() == days.max():
        return [(int(days[0]), batch)]
    parts: list[tuple[int | None, pa.RecordBatch]] = [
        (int(day), batch.filter(pa.array(known & (days == day)))) for day in np.unique(days[known])
    ]
    if not known.all():
        parts.append((None, batch.filter(pa.array(~known))))
    return parts


def _parquet(batches: list[pa.RecordBatch]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    table = pa.Table.from_batches(batches)
    pq.write_table(table, sink, compression="zstd", row_group_size=ROW_GROUP_ROWS)
    return sink.getvalue()


def _described(batch: pa.RecordBatch, count: int) -> list[tuple[str, int, int, str]]:
    rows = batch.slice(0, max(0, count))
    names = ("topic", "queue_id", "queue_offset", DAMAGE)
    return list(zip(*(rows.column(name).to_pylist() for name in names), strict=True))
