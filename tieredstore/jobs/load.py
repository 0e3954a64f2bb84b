"""A bulk load from begin to commit: what the driver does around the tasks that stage.

Tasks write whole segments that begin at the end of each queue, as the tasks saw it. The commit
adopts these segments as they are. If a queue has grown since, or its messages are in several
partitions, an engine rewrites them before they are adopted. One change of the catalogue names all
segments; in a bucket, one log entry both adopts and names them.

What a crash leaves behind, and what removes it:

    | crash                | what is there                    | removed by                         |
    | -------------------- | -------------------------------- | ---------------------------------- |
    | before the commit    | staged objects                   | an audit that repairs, a day later |
    | during the commit    | segments that no catalogue names | whoever opens the tier to write    |
    | after its change     | staged objects; all messages     | an audit that repairs, a day later |
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias, TypeVar

from tieredstore.access.wiring import catalogue_lock, keeps_catalogue
from tieredstore.codec.names import queue_path
from tieredstore.driver.metadata import Change, DeleteNote, DeleteSegment, Put, PutNote
from tieredstore.driver.provider import LOAD_RUN, LOADED, STREAMED, Adoption
from tieredstore.driver.runtime import Clock, SystemClock
from tieredstore.driver.segment import Buffer
from tieredstore.flat import append_file
from tieredstore.flat.message_file import FlatMessageFile, log_start
from tieredstore.flat.recovery import recover
from tieredstore.index.compaction import Compaction
from tieredstore.index.uploaded import first_row_below
from tieredstore.index.watermarks import QueueId, Watermarks
from tieredstore.jobs.job import Engine, LocalEngine, Plan, no_progress
from tieredstore.jobs.key_runs import ENTRY_BYTES, KeyRun, RunPart, file_plans, in_order, merged
from tieredstore.jobs.load_records import LoadRefusedError
from tieredstore.jobs.load_segments import (
    RewriteItem,
    StagedPart,
    StagedRun,
    crc32c,
    rewrite,
    run_folder,
    staged_segments_of,
)
from tieredstore.jobs.reindex import (
    begin_timestamps,
    begins_in_use,
    index_changes,
    index_row,
    next_base,
)
from tieredstore.jobs.worker import (
    OwnedTier,
    owned_tier,
    scratch_of,
    worker_provider,
    worker_runtime,
    worker_scratch,
)
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendUnavailableError,
    CatalogueLockedError,
    FencedError,
    MetadataError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import QueueKey, QueueRecord, SegmentRecord

log = log_of(__name__)
T = TypeVar("T")
RUN_NOTES_MAX: Final = 100
RUN_NOTE_MS: Final = 24 * 3_600_000
THREADS: Final = 4
WAIT_SECONDS: Final = 60  # for another writer to end
TRIES_MAX: Final = 12  # of a commit that other loads fence off
LOOK_SECONDS: Final = 0.1
PAUSE_SECONDS_MAX: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What was loaded."""

    message_count: int = 0
    log_bytes: int = 0
    queue_count: int = 0
    key_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBatch:
    """One batch of a stream. Batches come in order; the last one of each stream is noted."""

    stream_id: str
    number: int

    @property
    def run_id(self) -> str:
        """The id of its load. A commit removes what its run has staged, however late: a run of
        several batches would lose what later ones have staged, or added, by then."""
        return f"{self.stream_id}-{self.number}"

    def note(self, now_ms: int) -> PutNote:
        return PutNote(STREAMED, self.stream_id, [self.number, now_ms])

    def is_made(self, tier: OwnedTier) -> bool:
        """Whether this batch or a later one is in the tier. MetadataError for a damaged note."""
        noted = tier.metadata.note(STREAMED, self.stream_id)
        if noted is None:
            return False
        last = noted[0] if isinstance(noted, list) and noted else None
        if type(last) is not int:
            place = tier.metadata.facts.place
            raise MetadataError(place, f"the note of stream {self.stream_id} is damaged")
        return self.number <= last


def begin_load(
    config: StoreConfig, *, clock: Clock | None = None, wait_seconds: float = WAIT_SECONDS
) -> None:
    """Check that a load can begin. In a directory, raises CatalogueLockedError if another writer
    still holds the tier after `wait_seconds`.

    Nothing is claimed or removed: other loads may be running.
    """
    clock = clock or SystemClock()
    worker_scratch(config)
    provider = worker_provider(config)
    if keeps_catalogue(config, provider):
        # Do not claim: that would fence off another load. The commit checks the rest.
        provider.refresh()
        with _waited(partial(catalogue_lock, config), clock, wait_seconds):
            pass  # a broker on this machine would make the commit fail
        seen = provider.catalogue(config.broker_name, read_only=True)
        if seen is not None:
            with closing(seen):
                if config.index_enabled:
                    Watermarks(seen, config.broker_name).check_sizes(
                        slot_count=config.index_slot_count, item_capacity=config.index_item_count
                    )
        return
    with _waited_tier(config, clock, wait_seconds) as tier:
        if config.index_enabled:
            tier.check_index_sizes()


def abort_load(config: StoreConfig, run_id: str) -> None:
    """Remove what was staged; the tier stays as it was.

    If a commit has begun in a bucket, its segments stay, because a late request may still name
    them, and so does the note of it. An audit removes them after a day.
    """
    provider = worker_provider(config)
    scratch = scratch_of(config, provider)
    listed = [staged.name for staged in scratch.listed(run_folder(run_id))]
    names = [name for name in listed if not name.endswith(_COMMITTING)]
    if names == listed:
        segments = staged_segments_of(config, provider)
        segments.delete([staged.name for staged in segments.listed(run_folder(run_id))])
    scratch.delete(names)


def commit_load(
    config: StoreConfig,
    run_id: str,
    parts: Sequence[StagedPart],
    *,
    index: bool = True,
    load_id: str | None = None,
    batch: StreamBatch | None = None,
    engine: Engine | None = None,
    clock: Clock | None = None,
    wait_seconds: float = WAIT_SECONDS,
) -> LoadReport:
    """Make the messages of these parts, one of each partition, part of the tier: all or none.

    Offsets within a queue follow the numbers of the partitions, and the order within each of them.
    A load with an id is committed once: the catalogue remembers the id, and another load with it
    adds nothing, even if the caller never learned that the first one succeeded. The same holds for
    a batch of a stream. If another load takes over in a bucket, this commit starts again, a bounded
    number of times. Raises LoadRefusedError, MetadataError or BackendError; then nothing was
    loaded. The exceptions are a MetadataError in the last step, and a bucket that does not answer
    then: only the catalogue can tell.
    """
    clock = clock or SystemClock()
    known: dict[_Item, _Made] = {}  # what earlier tries have staged, for reuse
    report = LoadReport()
    for tries in range(1, TRIES_MAX + 1):
        try:
            with _waited_tier(config, clock, wait_seconds) as tier:
                is_this_run = tier.metadata.note(LOAD_RUN, run_id) is not None
                is_made = (
                    (load_id is not None and tier.metadata.note(LOADED, load_id) is not None)
                    or (batch is not None and batch.is_made(tier))
                    or is_this_run
                )
                if is_made:
                    if not is_this_run:  # otherwise an earlier try may have added what it reports
                        report = LoadReport()
                    if not report.message_count:
                        made = load_id or batch or run_id
                        log.warning("load %s has come to its end before: nothing is added", made)
                    if keeps_catalogue(config, tier.provider):
                        tier.provider.adopt(config.broker_name, (), ())
                elif any(part.runs for part in parts):
                    commit = _Commit(
                        tier,
                        run_id,
                        known,
                        index=index and config.index_enabled,
                        load_id=load_id,
                        batch=batch,
                        engine=engine,
                    )
                    ready = commit.prepared(parts)
                    report = ready.report
                    commit.carry_out(ready)
                tier.settle(run_folder(run_id))
            break
        except FencedError:
            if tries == TRIES_MAX:
                raise
            log.info("another load has taken over: this commit begins again")
            pause = min(PAUSE_SECONDS_MAX, LOOK_SECONDS * 2**tries)
            clock.sleep(worker_runtime().dice.uniform(0, pause))
    log.info("%d messages of %d queues were loaded", report.message_count, report.queue_count)
    return report


def _waited_tier(
    config: StoreConfig, clock: Clock, seconds: float
) -> AbstractContextManager[OwnedTier]:
    return _waited(partial(owned_tier, config, threads=THREADS), clock, seconds)


@contextmanager
def _waited(
    opening: Callable[[], AbstractContextManager[T]], clock: Clock, seconds: float
) -> Iterator[T]:
    """Open it as soon as its holder lets go; CatalogueLockedError after so many seconds."""
    end = clock.monotonic() + seconds
    with ExitStack() as opened:
        while True:
            try:
                found = opened.enter_context(opening())
            except CatalogueLockedError:
                if clock.monotonic() >= end:
                    raise
                clock.sleep(LOOK_SECONDS)
            else:
                yield found
                return


_COMMITTING: Final = ".committing"


@dataclass(frozen=True, slots=True, kw_only=True)
class _IndexItem:
    """An index file to make from these parts of runs, and its begin timestamp."""

    parts: tuple[RunPart, ...]
    begin: int

    @property
    def approximate_bytes(self) -> int:
        return ENTRY_BYTES * sum(part.end - part.start for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StagedIndex:
    name: str
    size: int
    crc: int
    begin: int
    end: int


_Item: TypeAlias = RewriteItem | _IndexItem
_Made: TypeAlias = StagedRun | _StagedIndex
# Making an index file takes hundreds of megabytes: a process makes only one at a time.
_ONE_INDEX: Final = threading.Lock()


def staged_item(config: StoreConfig, folder: str, now_ms: int, item: _Item) -> Iterator[_Made]:
    """Stage what a commit still lacks. This is the `work` that an engine runs."""
    if isinstance(item, RewriteItem):
        yield rewrite(config, folder, now_ms, item)
        return
    with _ONE_INDEX:
        yield _index_file(config, f"{folder}/{now_ms:013d}.index-{uuid.uuid4().hex[:12]}", item)


def _index_file(config: StoreConfig, name: str, item: _IndexItem) -> _StagedIndex:
    """Stage the index file of an item as a segment."""
    provider = worker_provider(config)
    columns = merged(scratch_of(config, provider), item.parts, worker_runtime())
    slots = config.index_slot_count
    with closing(Compaction.of_keys(columns, item.begin, slot_count=slots)) as made:
        crc = 0

        def summed() -> Iterator[Buffer]:
            nonlocal crc
            for block in made.whole():
                crc = crc32c(block, crc)
                yield block

        size = staged_segments_of(config, provider).put(name, summed())
        return _StagedIndex(name=name, size=size, crc=crc, begin=item.begin, end=made.end_timestamp)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """What a commit changes in its last step, and what it reports once that is done."""

    paths: Sequence[str]
    adoptions: Sequence[Adoption]
    rows: Sequence[SegmentRecord]
    changes: Sequence[Change]
    report: LoadReport


class _Commit:
    """One try of a commit, step by step."""

    def __init__(
        self,
        tier: OwnedTier,
        run_id: str,
        known: dict[_Item, _Made],
        *,
        index: bool,
        load_id: str | None,
        batch: StreamBatch | None,
        engine: Engine | None,
    ) -> None:
        self._tier = tier
        self._config = tier.config
        self._folder = run_folder(run_id)
        self._run_id = run_id
        self._known = known
        self._index = index
        self._load_id = load_id
        self._batch = batch
        self._engine = engine
        self._segments = staged_segments_of(tier.config, tier.provider)
        self._is_one_step = keeps_catalogue(tier.config, tier.provider)

    def prepared(self, parts: Sequence[StagedPart]) -> _Ready:
        tier = self._tier
        self._check_staged(parts)
        tier.delete_pending()
        if self._index:
            tier.drop_unfinished_index()
        if self._is_one_step:
            tier.scratch.put(f"{self._folder}/{self._now:013d}{_COMMITTING}", [b"1"])
        plan = plan_load(parts, self._config, self._target)
        keys = plan.keys()
        made = self._made([*(self._index_items(keys) if self._index else ()), *plan.items])
        runs = [*plan.adopted, *(each for each in made if isinstance(each, StagedRun))]
        adoptions, rows = self._of_runs(plan, runs)
        of_index: list[Change] = []
        if self._index:
            files = [each for each in made if isinstance(each, _StagedIndex)]
            found, index_rows, of_index = self._of_index(plan, files)
            adoptions, rows = [*adoptions, *found], [*rows, *index_rows]
        changes = [*self._changes(plan, rows), *of_index]
        return _Ready(
            paths=[*(target.path for target in plan.targets.values()), tier.index_path],
            adoptions=adoptions,
            rows=rows,
            changes=changes,
            report=LoadReport(
                message_count=plan.message_count,
                log_bytes=sum(run.log_bytes for run in runs),
                queue_count=len(plan.targets),
                key_count=sum(run.count for run in keys),
            ),
        )

    def carry_out(self, ready: _Ready) -> None:
        tier, broker = self._tier, self._config.broker_name
        if not self._is_one_step:
            with tier.installing(ready.paths):
                tier.announce(ready.rows)
                tier.provider.adopt(broker, ready.adoptions, ())
                tier.metadata.apply(ready.changes)
            return
        try:
            if not tier.provider.adopt(broker, ready.adoptions, ready.changes):
                tier.metadata.apply(ready.changes)
        except BackendUnavailableError:
            if not self._is_made_after_all():
                raise

    def _is_made_after_all(self) -> bool:
        """Whether the change took effect, although its reply was lost: a load that is taken for
        failed is made again by its user, under another id."""
        try:
            self._tier.metadata.apply([])  # the catalogue finds out what became of its changes
        except BackendUnavailableError:
            return False
        return self._tier.metadata.note(LOAD_RUN, self._run_id) is not None

    @property
    def _now(self) -> int:
        return self._tier.runtime.clock.now_ms()

    def _check_staged(self, parts: Sequence[StagedPart]) -> None:
        wanted = {name for part in parts for run in part.runs for name in run.names()}
        keys = {keys.name for part in parts for run in part.runs for keys in run.keys}
        missing = wanted - {staged.name for staged in self._segments.listed(self._folder)}
        missing |= keys - {staged.name for staged in self._tier.scratch.listed(self._folder)}
        if missing:
            raise LoadRefusedError(
                f"{len(missing)} staged objects of this load are gone: it took longer than a day, "
                "or somebody has removed them; run it again"
            )

    def _target(self, key: QueueKey) -> QueueTarget:
        """Where the queue ends, according to the backend. Refuses a queue with a problem."""
        tier, config = self._tier, self._config
        path = queue_path(config.broker_name, *key)
        record = tier.metadata.queue(*key)
        topic = tier.metadata.add_topic(key.topic)
        rows = tier.metadata.segments(path)
        if not rows:
            if append_file.PendingDeletions(tier.provider, tier.metadata).count(path):
                raise LoadRefusedError(
                    f"{path}: a deleted queue of this name is still there, until the catalogue can "
                    "be published again"
                )
            if any(True for _ in tier.provider.list(path)):
                raise LoadRefusedError(
                    f"{path}: there are segments that the catalogue does not know: rebuild it first"
                )
            start = log_start(path, tier.metadata)
            return QueueTarget(
                key=key, path=path, topic_id=topic.topic_id, is_new=True, log_offset=start
            )
        file = FlatMessageFile(
            record or _new_record(config, key, 0),
            topic,
            config,
            path=path,
            provider=tier.provider,
            metadata=tier.metadata,
            clock=tier.runtime.clock,
        )
        recover(file, tier.metadata, tier.runtime.clock)
        try:
            if file.problem is not None:
                raise LoadRefusedError(f"{path} takes nothing more: {file.problem}")
            if file.unconfirmed_from is not None:
                raise LoadRefusedError(
                    f"{path}: from message {file.unconfirmed_from} on its broker has to compare "
                    "what is there with its own; start it once"
                )
            place = () if self._is_one_step else _place_of(file)
            if not self._is_one_step:
                self._forget_empty(file, place)
            return QueueTarget(
                key=key,
                path=path,
                topic_id=topic.topic_id,
                queue_offset=file.commit_offset + bool(place),
                log_offset=file.log.commit_offset + any(row.type is file.log.type for row in place),
                place=place,
            )
        finally:
            file.close()

    def _forget_empty(self, file: FlatMessageFile, place: Sequence[SegmentRecord]) -> None:
        """Forget the rows of other empty last segments: the load's have the same names, and what a
        dead load left there would count. The offsets follow from what comes before."""
        starts = {file.queue: 0, file.log: log_start(file.path, self._tier.metadata)}
        empty = []
        for part, start in starts.items():
            rows = [each.record for each in part.segments]
            if not rows or rows[-1].size or rows[-1] in place:
                continue
            before = rows[-2].end_offset if len(rows) > 1 else start
            is_known = len(rows) > 1 or not file.commit_offset
            if is_known and rows[-1].base_offset == before:
                empty.append(rows[-1])
        self._tier.metadata.apply([DeleteSegment(*row.key) for row in empty])

    def _made(self, wanted: Sequence[_Item]) -> list[_Made]:
        """The result for each item, from the engine or an earlier try. Raises if any item fails."""
        known = self._known
        items = [item for item in wanted if item not in known]
        moved = [item for item in items if isinstance(item, RewriteItem)]
        if moved:
            log.warning(
                "%d messages of %d queues lay in several partitions, or behind what came first, "
                "and are written once more%s",
                sum(run.count for item in moved for run in item.runs),
                len({item.key for item in moved}),
                ""
                if self._engine is not None
                else " by the driver: see repartition('topic', 'queue_id') or"
                " tieredstore.spark.load",
            )
        work = partial(staged_item, self._config.with_full_paths(), self._folder, self._now)
        with ExitStack() as opened:
            engine = self._engine or opened.enter_context(LocalEngine(threads=THREADS))
            plan = Plan(items=items, item_bytes=[item.approximate_bytes for item in items])
            results = engine.results(work, plan, on_progress=no_progress)
            for result in opened.enter_context(closing(results)):
                if result.failure is not None:
                    raise LoadRefusedError(f"nothing was loaded: {result.failure.text}")
                for row in result.rows:
                    known[items[result.number]] = row
        return [known[item] for item in wanted]

    def _of_runs(
        self, plan: LoadPlan, runs: Sequence[StagedRun]
    ) -> tuple[list[Adoption], list[SegmentRecord]]:
        now = self._now
        adoptions, rows = [], []
        for run in runs:
            path = plan.targets[run.key].path
            for each in run.segments:
                adoptions.append(
                    Adoption(
                        path=path,
                        type=each.type,
                        base=each.base,
                        name=each.name,
                        size=each.size,
                        crc=each.crc,
                    )
                )
                rows.append(
                    SegmentRecord(
                        path=path,
                        type=each.type,
                        base_offset=each.base,
                        size=each.size,
                        create_timestamp=now,
                        begin_timestamp=each.begin,
                        end_timestamp=each.end,
                    )
                )
        return adoptions, rows

    def _index_items(self, keys: Sequence[KeyRun]) -> list[_IndexItem]:
        """The index files to make for these keys."""
        items_max = self._config.index_item_count - 1
        files = list(file_plans(self._tier.scratch, in_order(keys), items_max=items_max))
        used = begins_in_use(self._tier)
        begins = begin_timestamps([file.first_time for file in files], used)
        return [
            _IndexItem(parts=file.parts, begin=begin)
            for file, begin in zip(files, begins, strict=True)
        ]

    def _of_index(
        self, plan: LoadPlan, files: Sequence[_StagedIndex]
    ) -> tuple[list[Adoption], list[SegmentRecord], list[Change]]:
        """The adoptions, rows and changes that make these files part of the index.

        If a queue was not indexed up to where the load begins, its mark stays where it was. A
        broker that starts later then puts the keys of all messages after the mark, and messages
        that are found twice are shown once.
        """
        tier = self._tier
        rows: list[SegmentRecord] = []
        adoptions: list[Adoption] = []
        base = next_base(tier)
        for made in files:
            row = index_row(tier, base, begin=made.begin, end=made.end, size=made.size)
            rows.append(row)
            adoptions.append(
                Adoption(
                    path=row.path,
                    type=row.type,
                    base=base,
                    name=made.name,
                    size=made.size,
                    crc=made.crc,
                )
            )
            base += made.size
        adopted, ends = _ends(tier, plan)
        present = tier.index_rows
        first = first_row_below([*present, *rows]) if present else None
        lowered = [] if first is None else [Put(first)]
        return adoptions, rows, [*adopted, *index_changes(tier, rows, ends), *lowered]

    def _changes(self, plan: LoadPlan, rows: Sequence[SegmentRecord]) -> list[Change]:
        now = self._now
        metadata = self._tier.metadata
        new = [
            Put(_new_record(self._config, key, now))
            for key in plan.targets
            if metadata.queue(*key) is None
        ]
        changes = [*new, *append_file.installed(rows)]
        for target in plan.targets.values():
            changes += append_file.mark_for_deletion(target.place)
        if self._load_id is not None:
            changes.append(PutNote(LOADED, self._load_id, [now, plan.message_count]))
        if self._batch is not None:
            changes.append(self._batch.note(now))
        return [*changes, *_note_of_run(self._run_id, metadata.notes(LOAD_RUN), now)]


def _note_of_run(run_id: str, notes: Mapping[str, object], now_ms: int) -> Iterator[Change]:
    """Note that this load was committed, and delete the notes of those that nobody will retry. The
    times of notes grow also if a clock is set back, so that the newest commits are the last."""
    times = {key: at if type(at) is int else 0 for key, at in notes.items()}
    now_ms = max([now_ms, *(at + 1 for at in times.values())])
    yield PutNote(LOAD_RUN, run_id, now_ms)
    newest = sorted(times, key=lambda key: times[key], reverse=True)
    for place, key in enumerate(newest):
        if place >= RUN_NOTES_MAX or times[key] + RUN_NOTE_MS < now_ms:
            yield DeleteNote(LOAD_RUN, key)


def _new_record(config: StoreConfig, key: QueueKey, now_ms: int) -> QueueRecord:
    return QueueRecord(
        broker_name=config.broker_name,
        topic=key.topic,
        queue_id=key.queue_id,
        update_timestamp=now_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTarget:
    """A queue that is loaded into, and where its next message goes."""

    key: QueueKey
    path: str
    topic_id: int
    is_new: bool = False
    queue_offset: int = 0
    log_offset: int = 0
    place: tuple[SegmentRecord, ...] = ()
    """The only rows that say where an empty queue continues, or one behind a gap. They stay until
    the load is committed, so the load begins one further: its segments need names of their own."""

    @property
    def end_before(self) -> int:
        return self.queue_offset - bool(self.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Runs that can be adopted in place, and items to rewrite the others. `ends` are the queues'
    next offsets after the load."""

    adopted: Sequence[StagedRun]
    items: Sequence[RewriteItem]
    targets: Mapping[QueueKey, QueueTarget]
    ends: Mapping[QueueKey, int]

    @property
    def message_count(self) -> int:
        return sum(self.ends[key] - target.queue_offset for key, target in self.targets.items())

    def keys(self) -> list[KeyRun]:
        """The keys of all messages at their final places, also of runs yet to be rewritten."""
        found = [(run.key, run.keys) for run in self.adopted]
        found += [(item.key, item.keys()) for item in self.items]
        return [
            replace(each, topic_id=self.targets[key].topic_id)
            for key, keys in found
            for each in keys
        ]


def _place_of(file: FlatMessageFile) -> tuple[SegmentRecord, ...]:
    """The empty rows of a queue whose messages have all expired, or the one behind a gap."""
    if not file.commit_offset:
        return ()
    names = [each.record for each in file.queue.segments]
    if any(row.size for row in names):
        is_behind_gap = not names[-1].size and names[-1].base_offset > names[-2].end_offset
        return (names[-1],) if is_behind_gap else ()
    return tuple(
        row for row in (*(each.record for each in file.log.segments), *names) if not row.size
    )


def plan_load(
    parts: Sequence[StagedPart],
    config: StoreConfig,
    target_of: Callable[[QueueKey], QueueTarget],
) -> LoadPlan:
    """Plan new segments after the end of each queue. Existing segments are not touched."""
    by_queue: dict[QueueKey, list[StagedRun]] = {}
    for part in sorted(parts, key=lambda part: part.partition):
        for run in part.runs:
            by_queue.setdefault(run.key, []).append(run)
    adopted: list[StagedRun] = []
    items: list[RewriteItem] = []
    targets: dict[QueueKey, QueueTarget] = {}
    ends: dict[QueueKey, int] = {}
    for key, runs in sorted(by_queue.items()):
        target = targets[key] = target_of(key)
        at, log_at = target.queue_offset, target.log_offset
        left = list(runs)
        while left and (left[0].queue_offset, left[0].log_offset) == (at, log_at):
            run = left.pop(0)
            adopted.append(run)
            at, log_at = at + run.count, log_at + run.log_bytes
        for some in _together(left, config.commit_log_segment_bytes):
            item = RewriteItem(key=key, queue_offset=at, log_offset=log_at, runs=some)
            items.append(item)
            at += sum(run.count for run in some)
            log_at += sum(run.log_bytes for run in some)
        ends[key] = at
    return LoadPlan(adopted=adopted, items=items, targets=targets, ends=ends)


def _together(runs: Sequence[StagedRun], bytes_max: int) -> Iterator[tuple[StagedRun, ...]]:
    """Groups of consecutive runs, each with as many as fit in one segment."""
    some: list[StagedRun] = []
    size = 0
    for run in runs:
        if some and size + run.log_bytes > bytes_max:
            yield tuple(some)
            some, size = [], 0
        some.append(run)
        size += run.log_bytes
    if some:
        yield tuple(some)


def _ends(tier: OwnedTier, plan: LoadPlan) -> tuple[list[Change], Mapping[QueueId, int]]:
    """Up to which queue offset the index will have each queue. If the index was made by somebody
    else, also the changes that say that it covers what the catalogue knows."""
    marks = tier.watermarks
    is_foreign = not tier.check_index_sizes() and bool(tier.index_rows)
    ends = {}
    for target in plan.targets.values():
        queue = QueueId(target.topic_id, target.key.queue_id)
        held = marks.of_queue(target.key.topic, queue)
        if target.is_new or is_foreign or held >= target.end_before:
            ends[queue] = plan.ends[target.key]
    now = tier.runtime.clock.now_ms()
    return marks.adopted(now_ms=now) if is_foreign else [], ends
