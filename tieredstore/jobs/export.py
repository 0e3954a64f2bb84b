"""The job `export`: a tier as Parquet files, or in a Delta or Iceberg table, each message once.

* Workers stage ranges of queues: files that no reader looks at, and a mark for each range. The
  driver makes all of them visible in one commit, which records how far the queues are exported.
  Readers see all of a run or nothing. Each format does this in its own way: see `export_parquet`,
  `export_delta` and `export_iceberg`.
* If a run is killed, the next one commits its staged ranges, and does not write them again.
* Any number of runs may work at the same time: a commit drops ranges that another run has exported
  meanwhile.
* The next run exports only new messages.

If messages cannot be read, their range fails, and the next run tries it again. With `on_corrupt`
SKIP they are left out with a note; with REPORT they are damage, and each has a row if `damage` is
among the columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Final
from uuid import uuid4

import numpy as np

from tieredstore.model.extras import brought_by

with brought_by("jobs"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

from tieredstore.access.reader import TieredReader
from tieredstore.flat.times import store_time
from tieredstore.jobs.arrow import MESSAGE_COLUMNS
from tieredstore.jobs.export_ledger import (
    STAGED,
    ExportTable,
    Ledger,
    Ranges,
    Settings,
    StagedFile,
    StagedRange,
    addable,
    cleaning_up,
    commit_staged,
    drop_mark,
    drop_marks,
    free,
    joined,
    known_topics,
    marked,
    newest_known,
    put_mark,
    range_name,
    topic_of,
)
from tieredstore.jobs.export_parquet import ParquetTable, folder
from tieredstore.jobs.export_target import ExportTarget, TargetOptions, full_target
from tieredstore.jobs.job import (
    FAILURES_MAX,
    ItemFailure,
    Job,
    JobReport,
    JobState,
    Plan,
    RowStream,
    bounded,
)
from tieredstore.jobs.scan import (
    DAMAGE,
    SCAN_COLUMNS,
    OnCorrupt,
    Scan,
    queue_bounds,
    selected_queues,
    topic_ids,
)
from tieredstore.jobs.slices import (
    EVER,
    SPLIT_BYTES,
    QueueRows,
    Selection,
    Slice,
    TopicPatterns,
    is_gone,
    plan_slices,
    spans_within,
)
from tieredstore.jobs.worker import check_catalogue, newest_catalogue, queue_file
from tieredstore.model.amounts import counted, shown_size
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendUnavailableError,
    InvalidConfigError,
    MetadataError,
    SegmentError,
    TieredStoreError,
)
from tieredstore.model.findings import Finding, Severity
from tieredstore.model.values import Json, SegmentRecord

ROW_GROUP_ROWS: Final = 131_072
DAMAGED_SHOWN: Final = 20  # per range
_DAY_US: Final = 86_400_000_000
DEFAULT_COLUMNS: Final = tuple(
    name for name in MESSAGE_COLUMNS if name not in ("topic", "body_crc_ok")
)
_ALWAYS: Final = ("store_time", "topic", "queue_id", "queue_offset")


class TableFormat(StrEnum):
    """What an export adds to."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportItem:
    """A range of a queue, and the directory or bucket where its files are staged. It is empty if
    the queue has nothing new, and only `exported` is to be compared.

    `exported`: the store time, in ms, of the newest message of this queue that the target has, and
    the queue up to it from the last message that the tier still has of it: from that one itself,
    unless the queue ends before it or has a gap there.
    """

    source: str
    slice: Slice
    place: str
    topic_id: int | None
    exported: tuple[Slice, int] | None

    @property
    def name(self) -> str:
        return range_name(self.source, self.slice.first_offset, self.slice.end_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRow:
    """The outcome of a range; `damaged` has at most DAMAGED_SHOWN messages.

    `refused`: why nothing more of this queue goes to this target. No failure of the item, because
    if all of the first items fail, a run stops: other queues have nothing to do with it.
    """

    name: str
    refused: str | None = None
    damaged_count: int = 0
    damaged: tuple[tuple[str, int, int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportJob:
    """Exports messages of topics that match one of the patterns, stored within the times.

    * `target` is a directory or URL; with ICEBERG it is a table, `namespace.table`, and `catalog`
      is the name of its catalogue in the settings of pyiceberg.
    * `format`, `columns` and `times` of a target never change: a later run must have the same.
      `topic` and `day` are always columns.
    """

    name: ClassVar[str] = "export"
    config: StoreConfig
    target: str
    format: TableFormat = TableFormat.PARQUET
    catalog: str = "default"
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
        # Workers may have other working directories.
        object.__setattr__(self, "config", self.config.with_full_paths())
        if self.format is not TableFormat.ICEBERG:
            object.__setattr__(self, "target", full_target(self.target))

    def plan(self) -> Plan[ExportItem]:
        place, staged = "", list[StagedRange]()
        with self._opened() as table:
            ledger = table.read()
            ledger.refuse_other(table.name, self.settings)
            if table.exists():
                place = table.target.url
                former = self._made_anew(table.target)
                sound = self._staged(table.target, ())
                staged = addable([each for each in sound if each.name not in former], ledger)
        topics = TopicPatterns(self.topics)
        selection = Selection(topic_pattern=topics.expression, times=self.times)
        items: list[ExportItem] = []
        reset: list[Json] = []
        lost: list[Json] = []
        remade: set[str] = set()
        held, numbers = _with(ledger, staged), known_topics(ledger, staged)
        newest = newest_known(ledger, staged)
        with TieredReader(self.config) as reader:
            check_catalogue(self.config, wanted=topics.match)
            topics.refuse_unknown(key.topic for key in reader.queues())
            queues = selected_queues(reader, selection)
            bounds = queue_bounds(reader, queues, selection)
            now = topic_ids(reader)
            for rows in queues:
                problem = _problem_of(reader, rows)
                if problem is not None:
                    lost.append([f"{rows.key.topic}/{rows.key.queue_id}", problem])
                source = self._source(rows.path)
                topic_id = now.get(rows.key.topic)
                if topic_id is not None and numbers.get(topic_of(source), topic_id) != topic_id:
                    remade.add(rows.key.topic)
                    continue
                taken = held.get(source, [])
                if taken and taken[-1][1] > rows.end_offset:
                    reset.append(f"{rows.path} ends at {rows.end_offset}, {taken[-1][1]} was there")
                first, end = bounds[rows.path]
                span = max(first, rows.min_offset), min(end, rows.end_offset)
                exported = self._exported(rows, newest.get(source))
                slices = [
                    slice_ for part in free(*span, taken) for slice_ in self._slices(rows, part)
                ]
                if not slices and exported is not None and not _ends_with(rows, *exported):
                    last = exported[0]
                    slices = [replace(last, end_offset=last.first_offset, approximate_bytes=0)]
                items += [
                    ExportItem(
                        source=source,
                        slice=slice_,
                        place=place,
                        topic_id=topic_id,
                        exported=exported,
                    )
                    for slice_ in slices
                ]
        sizes = [item.slice.approximate_bytes for item in items]
        messages = sum(len(item.slice) for item in items)
        ranges = counted(sum(len(item.slice) > 0 for item in items), "range")
        size = shown_size(sum(sizes))
        text = f"{counted(messages, 'message')}, about {size}, in {ranges} to export"
        lines = [text, *(f"note: {line}: made anew?" for line in reset)]
        left_out: list[Json] = [*sorted(remade)]
        lines += [f"note: {topic}: deleted and made again, left out" for topic in left_out]
        if staged:
            lines.append(f"{len(staged)} ranges were written by runs that did not end: to commit")
        return Plan(
            items=items,
            item_bytes=sizes,
            counts={"queues": len(queues), "messages": messages},
            byte_counts={"read": sum(sizes)},
            lines=tuple(lines),
            facts={
                "target": self.target,
                "commits": ledger.commits,
                "made_anew": reset,
                "topics_made_anew": left_out,
                "lost": lost,
            },
        )

    def work(self, item: ExportItem) -> Iterable[ExportRow]:
        yield stage_range(self, item)

    def finish(
        self, plan: Plan[ExportItem], rows: RowStream[ExportRow]
    ) -> JobReport | Job[ExportItem, ExportRow]:
        with self._opened() as table:
            if plan.items and not plan.items[0].place:
                # There was no table, so the plan could not say where its files go. Another run may
                # have made it since.
                table.make()
                return self
            damaged, names, refused = 0, set[str](), dict[str, str]()
            lost: Any = plan.facts["lost"]
            findings = [self._left_out(*queue) for queue in lost]
            for row in rows:
                if row.refused is not None:
                    refused[row.name] = row.refused
                    continue
                names.add(row.name)
                damaged += row.damaged_count
                findings += [self._finding(*message) for message in row.damaged]
            added, seen = list[StagedRange](), set[str]()
            ledger = table.read()
            if table.exists():
                mine = [item for item in plan.items if item.name in names]
                for name, path in self._made_anew(table.target, mine).items():
                    drop_mark(table.target, name)
                    if name in names:
                        text = "deleted and made again while it was exported: run it again"
                        refused[name] = f"{path}: {text}"
                staged = self._staged(table.target, names)
                seen = {each.name for each in staged}
                added, ledger = commit_staged(table, self.settings, staged, uuid4().hex)
                with cleaning_up():
                    drop_marks(table.target, ledger)
                    table.target.drop_unpublished()
        state = rows.state
        left = self._not_there(plan, ledger)
        lacks = [name for name in left if name not in refused]
        if state is JobState.DONE and lacks:
            unseen = [name for name in lacks if name not in seen]
            if unseen:
                text = f"{unseen[0]} was written, and is not there: do all workers see this folder?"
                raise MetadataError(self.target, text)
            state = JobState.INCOMPLETE  # another run wrote a part of it, so it was dropped
        failures = [*rows.failures, *_other_histories(refused.values()), *_remade(plan)]
        if len(failures) > len(rows.failures):
            state = JobState.INCOMPLETE
        files = [file for each in added for file in each.files]
        messages = sum(file.rows for file in files)
        kept, left_out = bounded(findings)
        done = "all of it" if state is JobState.DONE else "not all of it: run it again"
        if state is JobState.DONE and lost:
            done = "all that is there"
        return JobReport(
            job=self.name,
            state=state,
            counts={
                "messages": messages,
                "files": len(files),
                "ranges": len(added),
                "ranges_left": len(left),
                "damaged": damaged,
            },
            byte_counts={"written": sum(file.size for file in files)},
            findings=kept,
            findings_left_out=left_out + damaged + len(lost) - len(findings),
            failures=tuple(failures),
            facts={
                "target": self.target,
                "commits": ledger.commits,
                "made_anew": plan.facts["made_anew"],
                "topics_made_anew": plan.facts["topics_made_anew"],
            },
            lines=(
                f"exported {counted(messages, 'message')} to {counted(len(files), 'file')}, {done}",
            ),
        )

    # Parts

    @property
    def file_columns(self) -> tuple[str, ...]:
        """The columns in the files. In Iceberg, no column can be in the path only."""
        return ("topic", *self.columns) if self.format is TableFormat.ICEBERG else self.columns

    @property
    def staging(self) -> str:
        """Where files lie until the commit; the files of a table stay there."""
        return STAGED if self.format is TableFormat.PARQUET else "data"

    @property
    def settings(self) -> Settings:
        return {
            "format": self.format.value,
            "columns": list(self.columns),
            "times": None if self.times == EVER else list(self.times),
        }

    @contextmanager
    def _opened(self) -> Iterator[ExportTable]:
        schema = pa.schema([pa.field(name, SCAN_COLUMNS[name]) for name in self.file_columns])
        if self.format is TableFormat.ICEBERG:
            from tieredstore.jobs.export_iceberg import Catalog, IcebergTarget

            catalog = Catalog(name=self.catalog)
            made = IcebergTarget(self.target, catalog, self.target_options, schema)
            with closing(made) as table:
                yield table
            return
        target = ExportTarget(self.target, self.target_options)
        if self.format is TableFormat.DELTA:
            from tieredstore.jobs.export_delta import DeltaTarget

            yield DeltaTarget(target, self.target_options, schema)
        else:
            yield ParquetTable(target)

    def _staged(self, target: ExportTarget, mine: Collection[str]) -> list[StagedRange]:
        """The staged ranges that can be committed. A range with damage must be of this run, which
        reports the damage; if an earlier run was killed, the range is read again."""
        found = marked(target, self.settings)
        return [each for each in found if not each.damaged or each.name in mine]

    def _made_anew(
        self, target: ExportTarget, items: Collection[ExportItem] = ()
    ) -> dict[str, str]:
        """The staged ranges, perhaps of a run that was killed, whose topic was deleted and made
        again since they were planned, and their queues. A worker may have read either topic, and no
        damage tells it. Of `items` also those whose queue alone was made again, as a decision on
        two histories does: then other segments have the names of the planned ones."""
        if self.config.catalogue == "rebuild":
            # Topics get new numbers each time, and a segment is as old as its oldest message that
            # has not expired.
            return {}
        catalogue = newest_catalogue(self.config)
        if catalogue is None:
            return {}
        with closing(catalogue):
            catalogue.refresh()
            broker = self.config.broker_name
            numbers = {
                self._source(f"{broker}/{row.topic}"): row.topic_id for row in catalogue.topics()
            }
            segments = catalogue.segments() if items else ()
            created = {row.key: row.create_timestamp for row in segments}

        def is_other(row: SegmentRecord) -> bool:
            # Rows that were added after a copy was published have no creation time.
            known = row.create_timestamp
            return bool(known) and created.get(row.key, known) != known

        topics = {
            each.name: each.source.partition("/")[2]
            for each in marked(target, self.settings)
            if numbers.get(topic_of(each.source), each.topic_id) != each.topic_id is not None
        }
        queues = {
            item.name: item.slice.path for item in items if any(map(is_other, item.slice.rows))
        }
        return topics | queues

    def _not_there(self, plan: Plan[ExportItem], ledger: Ledger) -> list[str]:
        """Ranges of the plan that the target lacks in whole or in part."""
        return [
            item.name
            for item in plan.items
            if free(
                item.slice.first_offset,
                item.slice.end_offset,
                ledger.exported.get(item.source, ()),
            )
        ]

    def scan(self) -> Scan:
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

    def _exported(
        self, rows: QueueRows, newest: tuple[int, int] | None
    ) -> tuple[Slice, int] | None:
        if newest is None:
            return None
        offset, time = newest
        spans = spans_within(rows.queue, 0, offset + 1)
        if not spans:
            return None
        last = spans[-1].stop - 1
        (there,) = self._slices(rows, (last, last + 1))
        return replace(there, end_offset=offset + 1), time

    def _finding(self, topic: str, queue_id: int, offset: int, reason: str) -> Finding:
        return self._left_out(f"{topic}/{queue_id}", f"message {offset}: {reason}")

    def _left_out(self, where: str, detail: str) -> Finding:
        is_skipped = self.on_corrupt is OnCorrupt.SKIP
        severity = Severity.NOTE if is_skipped else Severity.DAMAGE
        return Finding(severity=severity, kind="left-out", where=where, detail=detail)


def _problem_of(reader: TieredReader, rows: QueueRows) -> str | None:
    """What a queue has lost at its end, which is in no range. A loss at the beginning makes its
    range fail."""
    try:
        summary = reader.summary(*rows.key)
    except TieredStoreError:
        return None
    return None if summary is None else summary.problem


def _ends_with(rows: QueueRows, last: Slice, stored_at: int) -> bool:
    """Whether the queue still ends with this message, as the catalogue knows without a read."""
    known = rows.queue[-1].end_timestamp
    return (last.end_offset, stored_at) == (rows.end_offset, known)


def _other_histories(texts: Iterable[str]) -> Iterator[ItemFailure]:
    """A failure for each queue, however many ranges it has."""
    for text in [*dict.fromkeys(texts)][:FAILURES_MAX]:
        yield ItemFailure(error="MadeAnew", text=text)


def _remade(plan: Plan[ExportItem]) -> Iterator[ItemFailure]:
    """Failures of topics that were made anew: the target has messages of the old topic at the same
    offsets."""
    topics = plan.facts["topics_made_anew"]
    assert isinstance(topics, list)
    for topic in topics:
        text = (
            f"{topic}: the topic was deleted and made again, and the target has the first one,"
            " or `rebuild` gave it another number; export it to another target"
        )
        yield ItemFailure(error="TopicMadeAnew", text=text)


def _with(ledger: Ledger, staged: Sequence[StagedRange]) -> Ranges:
    """The ranges that are exported, or staged and only need a commit."""
    ranges: Ranges = {source: list(held) for source, held in ledger.exported.items()}
    for each in staged:
        ranges[each.source] = joined([*ranges.get(each.source, ()), each.part])
    return ranges


def stage_range(job: ExportJob, item: ExportItem) -> ExportRow:
    """Stage a file for each day of the range, then its mark.

    Nothing is staged, and the row says so, if the queue is not the one that was exported before.
    Raises BackendUnavailableError if a part of the range has expired or its topic was deleted since
    the plan: the next plan has what is left, and reports damage in that.

    Each attempt has file names of its own, so a task that runs twice cannot replace a committed
    file. The whole range, which is one work item, is held in memory.
    """
    refused = _another_history(job, item)
    if refused is not None or not len(item.slice):
        return ExportRow(name=item.name, refused=refused)
    columns = list(job.file_columns)
    target = ExportTarget(item.place, job.target_options)
    if job.format is TableFormat.PARQUET:  # else the commit of all ranges would fail later
        target.check_names(folder(item.slice.key.topic, None))
    days: dict[int | None, list[pa.RecordBatch]] = {}
    damaged: list[tuple[str, int, int, str]] = []
    damaged_count = 0
    newest: tuple[int, int] | None = None
    for batch in _read(job, item):
        if DAMAGE in batch.schema.names:
            reported = batch.filter(pc.is_valid(batch.column(DAMAGE)))
            damaged_count += len(reported)
            damaged += _described(reported, DAMAGED_SHOWN - len(damaged))
            if DAMAGE not in columns:
                batch = batch.filter(pc.is_null(batch.column(DAMAGE)))  # noqa: PLW2901
        newest = _newest(batch) or newest
        for day, rows in _by_day(batch):
            days.setdefault(day, []).append(rows)
    if damaged_count:
        _check_there(job, item)
    attempt = uuid4().hex[:12]
    files = [
        _staged_file(
            f"{job.staging}/{item.name}-{attempt}-{'none' if day is None else day}.parquet",
            day,
            pa.Table.from_batches(batches),
            columns,
            target,
        )
        for day, batches in sorted(days.items(), key=lambda entry: (entry[0] is None, entry[0]))
    ]
    staged = StagedRange(
        source=item.source,
        first=item.slice.first_offset,
        end=item.slice.end_offset,
        files=tuple(files),
        topic_id=item.topic_id,
        newest=newest,
        damaged=damaged_count,
    )
    put_mark(target, job.settings, staged)
    return ExportRow(name=item.name, damaged_count=damaged_count, damaged=tuple(damaged))


def _another_history(job: ExportJob, item: ExportItem) -> str | None:
    """Says so if the message that was exported last is another one now, or is gone and one before
    it was stored later. An older copy of the catalogue may lack it, but has no later one, unless a
    clock was set back or a load was not in order."""
    if item.exported is None:
        return None
    last, exported_at = item.exported
    newest = last.end_offset - 1
    file = queue_file(job.config, last.key, last.path, last.rows)
    try:
        stored_at = store_time(file, last.first_offset)
    except SegmentError:
        return None  # it has expired or is damaged: that says nothing about the others
    if last.first_offset < newest:
        if stored_at <= exported_at:
            return None
        return (
            f"{last.path}: message {newest} was exported and is not there, and message"
            f" {last.first_offset}, which is, was stored later: offsets were given again, this is"
            " another tier, or a clock was set back and this catalogue is older than the export;"
            " if the newest one shows the same, export it to another target"
        )
    if stored_at == exported_at:
        return None
    return (
        f"{last.path}: message {newest} is not the one that was exported: offsets"
        " were given again, or this is another tier; export it to another target"
    )


def _newest(batch: pa.RecordBatch) -> tuple[int, int] | None:
    """Offset and store time, in ms, of the last row that has both."""
    rows = batch.filter(pc.is_valid(batch.column("store_time")))
    if not len(rows):
        return None
    offset, time = rows.column("queue_offset"), rows.column("store_time").cast(pa.int64())
    return offset[-1].as_py(), time[-1].as_py() // 1000


def _read(job: ExportJob, item: ExportItem) -> Iterator[pa.RecordBatch]:
    try:
        yield from job.scan().batches(job.config, item.slice)
    except SegmentError:
        _check_there(job, item)
        raise


def _check_there(job: ExportJob, item: ExportItem) -> None:
    part = item.slice
    if is_gone(job.config, part.rows, from_copy=part.from_copy, in_part=True):
        reason = "a part of it expired or was deleted meanwhile"
        raise BackendUnavailableError(part.path, "export", reason)


def _staged_file(
    path: str, day: int | None, rows: pa.Table, columns: list[str], target: ExportTarget
) -> StagedFile:
    sink = pa.BufferOutputStream()
    pq.write_table(rows.select(columns), sink, compression="zstd", row_group_size=ROW_GROUP_ROWS)
    data = sink.getvalue()
    target.put(path, data)
    offsets = pc.min_max(rows.column("queue_offset")).as_py()
    times = pc.min_max(rows.column("store_time").cast(pa.int64())).as_py()
    return StagedFile(
        path=path,
        day=day,
        rows=len(rows),
        size=data.size,
        offsets=(offsets["min"], offsets["max"]),
        times=None if times["min"] is None else (times["min"], times["max"]),
    )


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


def _described(batch: pa.RecordBatch, count: int) -> list[tuple[str, int, int, str]]:
    rows = batch.slice(0, max(0, count))
    names = ("topic", "queue_id", "queue_offset", DAMAGE)
    return list(zip(*(rows.column(name).to_pylist() for name in names), strict=True))
