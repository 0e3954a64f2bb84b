"""The job `verify`: reads every byte of a tier, and names everything that does not fit together.

* each unit of a queue names a whole message of that topic, queue and queue offset, whose tags have
  the code of the unit, whose body has the CRC it should have, and that knows its own place;
* bytes that no unit names are end markers, copies, or messages that the queue does not have yet;
* each entry of an index file is in the slot where a lookup looks, each slot where its fence says;
* the keys of all messages and the entries of all index files are the same;
* catalogue and backend agree, as `audit` checks.

Fields that no checksum covers cannot be verified. In the unit of a delayed message that is the
delivery time, which replaces the tags code. In a record it is flag, born time and host, store host,
reconsume times, the prepared offset and the properties other than TAGS, KEYS and UNIQ_KEY. A store
time is compared with the times of its segment and, summed over a stretch of the log, with the
seconds of the index entries: these may be a second apart for each key of the stretch.

In the stretch where the oldest messages of a queue lie, the index may also have entries of expired
messages. There only the number of entries counts: a wrong one is found by the checksums of our
files, and not in a file that RocketMQ made.

A broker may run meanwhile: data that seems damaged is checked again with the current catalogue, so
data that expires or moves is not a finding.

Damage ends with exit code 4; notes and leftovers do not. Nothing is changed: there is no repair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tieredstore.access.audit import audit
from tieredstore.access.reader import amend_problems
from tieredstore.access.wiring import open_tier, published_catalogue
from tieredstore.codec.names import index_queue_path
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.index.watermarks import QueueId, Watermarks
from tieredstore.index.writer import LocalFolder
from tieredstore.jobs.job import (
    FINDINGS_MAX,
    ItemFailure,
    JobReport,
    JobState,
    Plan,
    RowStream,
    bounded,
)
from tieredstore.jobs.slices import (
    SPLIT_BYTES,
    QueueRows,
    TopicPatterns,
    plan_slices,
    queue_rows,
    spans_within,
    units_within,
)
from tieredstore.jobs.verify_findings import (
    NO_SUMS,
    SHIFT_MIN,
    Findings,
    Sums,
    SumTable,
    VerifyKind,
    VerifyRow,
    held_sums,
    stretch_shift,
)
from tieredstore.jobs.verify_index import (
    IndexItem,
    index_parts,
    read_index,
    verify_index,
    verify_local_index,
)
from tieredstore.jobs.verify_keys import IndexedQueue, KeyComparison
from tieredstore.jobs.verify_slice import SliceItem, verify_slice
from tieredstore.jobs.worker import check_catalogue, worker_provider
from tieredstore.model.amounts import counted, shown_size
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendError, MetadataError, TieredStoreError
from tieredstore.model.findings import Finding, FindingKind
from tieredstore.model.printable import log_of
from tieredstore.model.values import Json, SegmentRecord, SegmentType

log = log_of(__name__)

VerifyItem: TypeAlias = SliceItem | IndexItem
OnFindings: TypeAlias = Callable[[Findings], None]
LOOKS_MAX: Final = 8  # at what seems damaged; one more only if some of it has gone since
DAMAGED_ITEMS_MAX: Final = 100  # whose damage was confirmed; further ones are not checked again


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyJob:
    """Reads a tier, or the topics that match one of the patterns; changes nothing.

    The keys are compared only if all topics are read and the index is enabled. Index files that the
    broker has not uploaded yet are read on the machine that starts the job, if their folder
    (`store_path`) exists there.
    """

    name: ClassVar[str] = "verify"
    config: StoreConfig
    topics: tuple[str, ...] = ()
    split_bytes: int = SPLIT_BYTES

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", self.config.with_full_paths())

    def plan(self) -> Plan[VerifyItem]:
        picture = TierPicture.take(self.config, topics=self.topics)
        if not picture.has_segments:
            check_catalogue(self.config, wanted=lambda _topic: True)
            if picture.is_of_others:
                reason = f"it names no segment of the broker {self.config.broker_name!r}"
                raise MetadataError(self.config.catalogue_path, reason)
        work: list[tuple[VerifyItem, int]] = list(picture.slice_items(self.split_bytes))
        if self._compares_keys:
            work += picture.index_items()
        item_bytes = [size for _, size in work]
        messages = sum(queue.message_count for queue in picture.queues)
        # The sizes of single items are estimates.
        size = picture.byte_count(with_index=self._compares_keys)
        queues = counted(len(picture.queues), "queue")
        text = f"{queues} with {counted(messages, 'message')}, {shown_size(size)}"
        return Plan(
            items=[item for item, _ in work],
            item_bytes=item_bytes,
            counts={
                "queues": len(picture.queues),
                "messages": messages,
                "index_files": len(picture.index),
            },
            byte_counts={"read": size},
            lines=(f"{text} are to be read",),
            facts={"index_has_expired": picture.index_has_expired},
        )

    @property
    def _compares_keys(self) -> bool:
        return self.config.index_enabled and not self.topics

    def work(self, item: VerifyItem) -> Iterable[VerifyRow]:
        if isinstance(item, SliceItem):
            row = verify_slice(self.config, item)
        else:
            row = verify_index(self.config, item)
        yield replace(row, item=item if row.findings.has_damage else None)

    def finish(
        self,
        plan: Plan[VerifyItem],
        rows: RowStream[VerifyRow],
        *,
        told: OnFindings = lambda _: None,
    ) -> JobReport:
        """`told` gets the findings as they are made."""
        findings, sums, counts = Findings(), SumTable(), Counter[str]()
        log_starts: dict[QueueId, int] = {}

        def take(others: Findings) -> None:
            findings.take(others)
            if len(findings.found) > 2 * FINDINGS_MAX:
                worst, left_out = bounded(findings.found)
                findings.found, findings.left_out = [*worst], findings.left_out + left_out
            told(others)

        damaged = 0
        unsure: list[ItemFailure] = []
        for worked in rows:
            row = worked
            if worked.item is not None and damaged < DAMAGED_ITEMS_MAX:
                if len(unsure) >= DAMAGED_ITEMS_MAX:
                    continue  # the backend is away, and the report says so often enough
                try:
                    row = self._looked_at_again(worked)
                except BackendError as error:
                    unsure.append(ItemFailure.of(error))
                    continue
                damaged += row.item is not None
            if row.queue is not None and row.log_start is not None:
                known = log_starts.get(row.queue, row.log_start)
                log_starts[row.queue] = min(known, row.log_start)
            take(row.findings)
            sums.add(row.sums)
            counts.update(row.counts)
        if self._compares_keys and rows.done_count == rows.item_count and not unsure:
            of_keys = Findings()
            counts.update(self._compare_keys(plan, sums.table(), of_keys, log_starts))
            take(of_keys)
        structure = self._audited()
        kinds_there = (found.kind for found in structure)
        totals_there = Counter(kind for kind in kinds_there if isinstance(kind, FindingKind))
        take(Findings(found=[*structure], totals=totals_there))
        found, left_out = bounded(findings.found)
        totals = {str(kind): count for kind, count in findings.totals.items() if count}
        kinds: dict[str, Json] = dict(sorted(totals.items()))
        read_bytes = counts.pop("bytes", 0)
        return JobReport(
            job=self.name,
            state=JobState.INCOMPLETE if unsure and rows.state is JobState.DONE else rows.state,
            counts={"queues": plan.counts["queues"], **counts},
            byte_counts={"read": read_bytes},
            findings=found,
            findings_left_out=findings.left_out + left_out,
            failures=(*rows.failures, *unsure),
            facts={"kinds": kinds},
            lines=(_summary(counts, kinds),),
        )

    def _looked_at_again(self, row: VerifyRow) -> VerifyRow:
        """What is still damaged according to the current catalogue; if that cannot be read, the row
        as it is. Raises BackendError, also for expired credentials: what seems damaged may then
        only have gone."""
        try:
            for look in range(LOOKS_MAX):
                worker_provider(self.config).refresh()
                item = TierPicture.take(self.config).as_now(row.item)
                if item is None:
                    nothing = Findings()
                    return replace(row, findings=nothing, sums=NO_SUMS, log_start=None, item=None)
                if look and _is_as_before(item, row.item):
                    break  # nothing of it has gone since it was read
                (row,) = self.work(item)
                if row.item is None:
                    break
        except BackendError:
            raise
        except (TieredStoreError, OSError) as error:
            log.warning("possible damage is not checked again: %s", error)
        return row

    def _compare_keys(
        self,
        plan: Plan[VerifyItem],
        wanted: Sums,
        findings: Findings,
        log_starts: Mapping[QueueId, int],
    ) -> dict[str, int]:
        """Compare the keys of all that was planned with the current index. Repeat this if it finds
        damage and some of what was compared has gone in the meantime."""
        queues = indexed_queues(plan.items, log_starts)
        left = LOOKS_MAX
        while True:
            left -= 1
            of_look = Findings()
            counts, local, now = self._compare_once(plan, wanted, of_look, queues)
            if left and of_look.has_damage and self._has_lost_some(local, now, queues):
                continue
            findings.take(of_look)
            return counts

    def _has_lost_some(
        self, local: frozenset[int], then: TierPicture, queues: Mapping[QueueId, IndexedQueue]
    ) -> bool:
        """Whether any of these local files, or of what the tier had then, has gone since."""
        if local - set(LocalFolder(self.config).begins()):
            return True
        now = TierPicture.take(self.config)
        if {row.key for row in then.index} - {row.key for row in now.index}:
            return True
        return now.gone_from(queues) != then.gone_from(queues)

    def _compare_once(
        self,
        plan: Plan[VerifyItem],
        wanted: Sums,
        findings: Findings,
        queues: Mapping[QueueId, IndexedQueue],
    ) -> tuple[dict[str, int], frozenset[int], TierPicture]:
        """The counts, and what was compared with: local files by their begins, and the tier."""
        shift = plan.items[0].shift if plan.items else SHIFT_MIN
        planned = {item.row.key: item for item in plan.items if isinstance(item, IndexItem)}
        compared = partial(KeyComparison, self.config, shift=shift, findings=findings)
        then = compared(queues, list(planned.values()))
        sums = SumTable()
        sums.add(wanted)
        entries = 0

        def take(items: NDArray[Any], times: NDArray[np.int64], *_: object) -> None:
            nonlocal entries
            entries += len(items)
            kept = then.within(items)
            sums.add(held_sums(items[kept], times[kept], shift=shift))

        # Read local files before the catalogue: what is gone from the disk is then in the backend.
        local = verify_local_index(self.config, then.uploaded, findings, take)
        now = TierPicture.take(self.config)
        there = {row.key: row for row in now.index}
        gone = [item.row for key, item in planned.items() if key not in there]
        new = [row for key, row in there.items() if key not in planned]
        if len(gone) == len(planned) and (gone or (new and now.index_has_expired)):
            # Other files may have come and gone too, or `reindex` has made all of them anew.
            text = "no index file is left of those that were there when it was planned"
            findings.add(VerifyKind.KEYS_UNCOMPARED, ("the key index", None), text)
            return {}, frozenset(local), now

        def parts(row: SegmentRecord) -> list[IndexItem]:
            is_first = row is now.index[0]
            return index_parts(row, slot_count=now.slot_count, shift=shift, is_first=is_first)

        for row in new:
            if (row.begin_timestamp or 0) not in local:
                for item in parts(row):
                    read_index(self.config, item, findings, take)
        comparison = compared(
            now.gone_from(queues),
            [item for row in now.index for item in parts(row)],
            has_expired=bool(plan.facts["index_has_expired"] or now.index_has_expired or gone),
            dropped_before=now.dropped_before,
        )
        counts = comparison.compare(sums.table())
        counts |= {"entries": entries, "entries_local": sum(local.values())}
        return counts, frozenset(local), now

    def _audited(self) -> Sequence[Finding]:
        parts = open_tier(self.config, read_only=True)
        try:
            report = audit(
                parts.metadata,
                parts.provider,
                self.config,
                parts.runtime,
                published=lambda: published_catalogue(self.config, parts.provider),
            )
            return report.findings
        finally:
            parts.close()


def _summary(counts: Counter[str], kinds: dict[str, Json]) -> str:
    read = (("messages", "message"), ("keys", "key"), ("entries", "entry"))
    text = "read " + ", ".join(counted(counts[name], what) for name, what in read)
    if not kinds:
        return f"{text}: nothing is wrong"
    return f"{text}; found: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPicture:
    """The queues, topic numbers and index files of a tier at one moment.

    Index files are read from the catalogue before the queues, so everything that they name was
    committed.
    """

    queues: tuple[QueueRows, ...]
    topic_ids: Mapping[str, int]
    index: tuple[SegmentRecord, ...]
    slot_count: int
    index_has_expired: bool
    dropped_before: int
    sure_below: Mapping[QueueId, int]
    shift: int
    has_segments: bool  # of this broker, in any topic
    is_of_others: bool  # the catalogue has segments of other brokers

    @classmethod
    def take(cls, config: StoreConfig, *, topics: tuple[str, ...] = ()) -> TierPicture:
        """Read the tier. UnknownNameError for a topic that is not there, MetadataError without a
        catalogue."""
        plain = replace(config, index_enabled=False, read_ahead_enabled=False)
        parts = open_tier(plain, read_only=True)
        try:
            metadata = parts.metadata
            path = index_queue_path(config.broker_name)
            index = tuple(row for row in metadata.segments(path, SegmentType.INDEX) if row.size)
            parts.load()
            amend_problems(parts.files, metadata, parts.provider)
            below = f"{config.broker_name}/"
            rows = {
                row.key: row
                for row in metadata.segments()
                if row.path.startswith(below) and row.type is not SegmentType.INDEX
            }
            for file in parts.files.files():  # last segments may be longer than their rows say
                for segment in (*file.log.segments, *file.queue.segments):
                    known = rows.get(segment.record.key)
                    if known is None or known.size < segment.record.size:
                        rows[segment.record.key] = segment.record
            found = queue_rows(rows.values())
            wanted = TopicPatterns(topics)
            wanted.refuse_unknown(queue.key.topic for queue in found)
            marks = Watermarks(metadata, config.broker_name)
            topic_ids = {record.topic: record.topic_id for record in metadata.topics()}
            return cls(
                queues=tuple(queue for queue in found if wanted.match(queue.key.topic)),
                topic_ids=topic_ids,
                index=index,
                slot_count=marks.slot_count() or config.index_slot_count,
                index_has_expired=marks.has_dropped(index[0].base_offset if index else marks.end()),
                dropped_before=marks.dropped_before() or 0,
                sure_below=dict(_sure_below(config, found, topic_ids, marks)),
                shift=stretch_shift(sum(queue.log_bytes for queue in found)),
                has_segments=bool(rows),
                is_of_others=any(not row.path.startswith(below) for row in metadata.segments()),
            )
        finally:
            parts.close()

    def as_now(self, item: VerifyItem) -> VerifyItem | None:
        """The same part of the tier as it is now; None if nothing of it is left."""
        if isinstance(item, IndexItem):
            return item if any(row.key == item.row.key for row in self.index) else None
        slice_ = item.slice
        queue = next((queue for queue in self.queues if queue.path == slice_.path), None)
        if queue is None or self.topic_ids.get(slice_.key.topic, -1) != item.topic_id:
            return None
        parts = spans_within(queue.queue, slice_.first_offset, slice_.end_offset)
        if not parts:  # all of it has expired, or lies in a gap since
            return None
        first, end = parts[0].start, parts[-1].stop
        rows = (*queue.log, *units_within(queue.queue, first, end))
        behind = spans_within(queue.queue, slice_.end_offset, item.next_offset)
        next_offset = behind[0].start if behind else item.next_offset  # of a queue made again
        return replace(
            item,
            slice=replace(slice_, first_offset=first, end_offset=end, rows=rows),
            next_offset=next_offset,
            is_first=item.is_first or first == queue.min_offset,
            more_rows=tuple(units_within(queue.queue, next_offset, next_offset + 1)),
        )

    def gone_from(self, queues: Mapping[QueueId, IndexedQueue]) -> dict[QueueId, IndexedQueue]:
        """The queues as they are now: of their rows those that are left. What has expired or was
        deleted lies before their start, and keys that the index has lost since are no longer sure.
        """
        there = {
            QueueId(self.topic_ids.get(rows.key.topic, -1), rows.key.queue_id): rows
            for rows in self.queues
        }
        found = {}
        for number, queue in queues.items():
            now = there.get(number)
            rows = () if now is None else (*now.log, *now.queue)
            keys = {row.key for row in rows}
            left = tuple(row for row in queue.rows if row.key in keys)
            # Units expire before their records, so the log may still be there.
            is_gone = {row.type for row in left} < {row.type for row in queue.rows}
            if now is None or is_gone or now.min_offset >= queue.offsets.stop:
                found[number] = replace(queue, log_start=queue.log_end, sure_below=0)
                continue
            noted = [queue.sure_below, self.sure_below.get(number)]
            found[number] = replace(
                queue,
                rows=left,
                log_start=max(queue.log_start, now.log[0].base_offset),
                oldest_offset=now.min_offset,
                has_grown=now.end_offset > queue.offsets.stop,
                sure_below=min((each for each in noted if each is not None), default=None),
            )
        return found

    def byte_count(self, *, with_index: bool) -> int:
        """The bytes of all segments to read."""
        rows = [row for queue in self.queues for row in (*queue.log, *queue.queue)]
        return sum(row.size for row in (*rows, *(self.index if with_index else ())))

    def slice_items(self, split_bytes: int) -> Iterator[tuple[SliceItem, int]]:
        """Each slice and the bytes that it reads, with the log up to where the next one begins."""
        for queue in self.queues:
            slices = plan_slices([queue], split_bytes=split_bytes)
            topic_id = self.topic_ids.get(queue.key.topic, -1)
            nexts = [*(slice_.first_offset for slice_ in slices[1:]), -1]
            for slice_, next_offset in zip(slices, nexts, strict=False):  # an empty queue has none
                item = SliceItem(
                    slice=slice_,
                    topic_id=topic_id,
                    shift=self.shift,
                    next_offset=next_offset,
                    is_first=slice_ is slices[0],
                    sure_below=self.sure_below.get(QueueId(topic_id, queue.key.queue_id)),
                    more_rows=tuple(units_within(queue.queue, next_offset, next_offset + 1)),
                )
                yield item, slice_.approximate_bytes + len(slice_) * UNIT_BYTES

    def index_items(self) -> Iterator[tuple[IndexItem, int]]:
        """The index files, newest first: so if one has expired before it is read, no older one has
        been read."""
        for row in reversed(self.index):
            items = index_parts(
                row, slot_count=self.slot_count, shift=self.shift, is_first=row is self.index[0]
            )
            for item in items:
                yield item, row.size // len(items)


def _is_as_before(now: VerifyItem, before: VerifyItem | None) -> bool:
    """Whether everything that was read before is still there. Newer data does not count."""
    if isinstance(now, IndexItem) or not isinstance(before, SliceItem):
        return now == before

    def facts(item: SliceItem) -> object:
        rows = [(row.key, row.create_timestamp) for row in item.slice.rows]
        return item.topic_id, item.slice.first_offset, item.slice.end_offset, rows

    return facts(now) == facts(before)


def indexed_queues(
    items: Iterable[VerifyItem], log_starts: Mapping[QueueId, int]
) -> dict[QueueId, IndexedQueue]:
    """The queues of these slices, as they were when the job was planned."""
    slices: dict[QueueId, list[SliceItem]] = {}
    for item in items:
        if isinstance(item, SliceItem) and item.topic_id >= 0:
            slices.setdefault(item.queue, []).append(item)
    found = {}
    for number, mine in slices.items():
        rows = {row.key: row for item in mine for row in item.slice.rows}
        log = [row for row in rows.values() if row.type is SegmentType.COMMIT_LOG]
        if log:
            found[number] = IndexedQueue(
                key=mine[0].slice.key,
                path=mine[0].slice.path,
                rows=tuple(rows.values()),
                log_start=log_starts.get(number, min(row.base_offset for row in log)),
                log_end=max(row.end_offset for row in log),
                offsets=range(
                    min(item.slice.first_offset for item in mine),
                    max(item.slice.end_offset for item in mine),
                ),
                sure_below=mine[0].sure_below,
            )
    return found


def _sure_below(
    config: StoreConfig, queues: list[QueueRows], topic_ids: Mapping[str, int], marks: Watermarks
) -> Iterator[tuple[QueueId, int]]:
    """For each queue, the offset up to which our own notes say that the index files visible here
    have all keys. Nothing if there are no such notes."""
    if marks.slot_count() is None:
        return
    unseen: dict[QueueId, int] = {}
    folder = LocalFolder(config)
    here = {begin for begin in folder.begins() if _is_whole(folder, begin, marks)}
    for (begin, queue), start in marks.starts().items():
        if begin not in here:
            unseen[queue] = min(start, unseen.get(queue, start))
    for rows in queues:
        topic_id = topic_ids.get(rows.key.topic)
        if topic_id is not None:
            queue = QueueId(topic_id, rows.key.queue_id)
            below = marks.of_queue(rows.key.topic, queue)
            yield queue, min(below, unseen.get(queue, below))


def _is_whole(folder: LocalFolder, begin: int, marks: Watermarks) -> bool:
    """Whether a local file has all items that were made durable. A file from an older copy of the
    disk lacks some: a broker puts them again when it starts."""
    durable = folder.counted(begin, marks.durable(begin))
    if durable is None:
        return True
    try:
        with closing(folder.open_to_read(begin)) as file:
            return file.item_count >= durable.item_count
    except (TieredStoreError, FileNotFoundError):  # the check of the file reports what is wrong
        return True
