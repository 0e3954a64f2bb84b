"""The job `verify`: every byte of a tier is read, and what does not fit together is named.

* each unit of a queue names a whole message of that topic, queue and queue offset, whose tags have
  the code of the unit, whose body has the CRC it should have, and that knows its own place;
* bytes that no unit names are end markers, copies, or messages that the queue has not yet;
* each entry of an index file is in the slot where a lookup looks, each slot where its fence says;
* the keys of all messages and the entries of all index files are the same;
* catalogue and backend agree, which is what `audit` looks at.

Nothing can verify what no checksum covers. In the unit of a delayed message that is the delivery
time, which stands in the place of a tags code. In a record it is flag, born time and host, store
host, reconsume times, the prepared offset and the properties other than TAGS, KEYS and UNIQ_KEY. A
store time is compared with the times of its segment and the seconds of its index entries.

Damage ends with exit code 4; notes and leftovers do not. Nothing is changed: there is no repair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tieredstore.access.audit import audit
from tieredstore.access.wiring import open_tier, published_catalogue
from tieredstore.codec.key_hashes import mixed
from tieredstore.codec.names import index_queue_path
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.metadata import Json, MetadataStore
from tieredstore.index.rows import SECOND_SLACK_MS
from tieredstore.index.watermarks import QueueId, Watermarks
from tieredstore.jobs.job import JobReport, Plan, RowStream, bounded
from tieredstore.jobs.slices import (
    SPLIT_BYTES,
    QueueRows,
    Slice,
    TopicPatterns,
    plan_slices,
    queue_rows,
)
from tieredstore.jobs.verify_findings import (
    SHIFT_MIN,
    Findings,
    SumTable,
    VerifyKind,
    VerifyRow,
    entry_hashes,
    held_sums,
    prints,
    stretch_shift,
)
from tieredstore.jobs.verify_index import (
    IndexFileCheck,
    IndexItem,
    index_parts,
    is_seen,
    verify_index,
    verify_local_index,
)
from tieredstore.jobs.verify_keys import Compared, IndexedQueue, KeyComparison, queue_of, within
from tieredstore.jobs.verify_slice import SliceCheck, SliceItem, verify_slice
from tieredstore.jobs.worker import worker_provider
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError, OffsetOutOfRangeError, SegmentError
from tieredstore.model.findings import Finding
from tieredstore.model.values import SegmentRecord, SegmentType

_ENTRY: Final = np.dtype(
    [
        *(("id", np.uint64), ("time", np.int64), ("log_offset", np.int64)),
        *(("topic_id", np.int64), ("queue_id", np.int64), ("queue_offset", np.int64)),
        *(("file", np.int64), ("position", np.int64), ("ipv6", np.bool_), ("is_empty", np.bool_)),
    ]
)
VerifyItem: TypeAlias = SliceItem | IndexItem


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyJob:
    """Reads a tier, or the topics that match one of the patterns; changes nothing.

    The keys are compared only where all topics are read and the index is enabled. Index files that
    the broker has not uploaded yet are read where the job is started, if their folder
    (`store_path`) is there.
    """

    name: ClassVar[str] = "verify"
    config: StoreConfig
    topics: tuple[str, ...] = ()
    split_bytes: int = SPLIT_BYTES

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", self.config.with_full_paths())

    def plan(self) -> Plan[VerifyItem]:
        picture = TierPicture.take(self.config, topics=self.topics)
        work: list[tuple[VerifyItem, int]] = list(picture.slice_items(self.split_bytes))
        if self._compares_keys:
            work += picture.index_items()
        item_bytes = [size for _, size in work]
        messages = sum(queue.message_count for queue in picture.queues)
        # Of one item it is an estimate.
        size = picture.byte_count(with_index=self._compares_keys)
        text = f"{len(picture.queues)} queues with {messages} messages, {size} bytes"
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
            yield verify_slice(self.config, item)
        else:
            yield verify_index(self.config, item)

    def finish(self, plan: Plan[VerifyItem], rows: RowStream[VerifyRow]) -> JobReport:
        findings, sums, counts = Findings(), SumTable(), Counter[str]()
        for row in rows:
            findings.take(row)
            sums.add(row.sums)
            counts.update(row.counts)
        if self._compares_keys and rows.done_count == rows.item_count:
            counts.update(self._compare_keys(plan, sums, findings))
        structure = self._audited()
        found, left_out = bounded(chain(findings.found(), structure))
        totals = {str(kind): count for kind, count in findings.totals.items() if count}
        for finding in structure:
            totals[finding.kind] = totals.get(finding.kind, 0) + 1
        kinds: dict[str, Json] = dict(sorted(totals.items()))
        read_bytes = counts.pop("bytes", 0)
        return JobReport(
            job=self.name,
            state=rows.state,
            counts={"queues": plan.counts["queues"], **counts},
            byte_counts={"read": read_bytes},
            findings=found,
            findings_left_out=findings.left_out + left_out,
            failures=tuple(rows.failures),
            facts={"kinds": kinds},
            lines=(_summary(counts, kinds),),
        )

    def _compare_keys(
        self, plan: Plan[VerifyItem], sums: SumTable, findings: Findings
    ) -> dict[str, int]:
        queues = indexed_queues(plan.items)
        index = [item for item in plan.items if isinstance(item, IndexItem)]
        shift = plan.items[0].shift if plan.items else SHIFT_MIN
        uploaded = {item.row.begin_timestamp or 0 for item in index}

        def take(items: NDArray[Any], times: NDArray[np.int64], *_: object) -> None:
            kept = within(items, queues)
            sums.add(held_sums(items[kept], times[kept], shift=shift))

        local = verify_local_index(self.config, uploaded, findings, take)
        table = sums.table()
        comparison = KeyComparison(
            queues,
            shift=shift,
            findings=findings,
            has_expired=bool(plan.facts["index_has_expired"]),
        )
        compared = comparison.compare(table)
        suspects = compared.suspects
        index_bytes = sum({item.row.key: item.row.size for item in index}.values())
        if len(suspects) and comparison.can_be_looked_at(suspects, index_bytes):
            EntryComparison(
                config=self.config,
                compared=compared,
                queues=queues,
                index=index,
                shift=shift,
                findings=findings,
            ).run(comparison)
        else:
            comparison.add_suspects(suspects)
        return {**compared.counts, "entries": local, "entries_local": local}

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
    text = f"read {counts['messages']} messages, {counts['keys']} keys, {counts['entries']} entries"
    if not kinds:
        return f"{text}: nothing is wrong"
    return f"{text}; found: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPicture:
    """Queues, topic numbers and index files.

    Index files are read from the catalogue before the queues: whatever they name was committed.
    """

    queues: tuple[QueueRows, ...]
    topic_ids: Mapping[str, int]
    index: tuple[SegmentRecord, ...]
    slot_count: int
    index_has_expired: bool
    sure_below: Mapping[QueueId, int]
    shift: int

    @classmethod
    def take(cls, config: StoreConfig, *, topics: tuple[str, ...] = ()) -> TierPicture:
        """Raises UnknownNameError for a topic that is not there, MetadataError without a
        catalogue."""
        plain = replace(config, index_enabled=False, read_ahead_enabled=False)
        parts = open_tier(plain, read_only=True)
        try:
            metadata = parts.metadata
            path = index_queue_path(config.broker_name)
            index = tuple(row for row in metadata.segments(path, SegmentType.INDEX) if row.size)
            parts.load()
            rows = _rows(metadata, config.broker_name)
            for file in parts.files.files():  # the last segments may be longer than was noted
                for segment in (*file.log.segments, *file.queue.segments):
                    known = rows.get(segment.record.key)
                    if known is None or known.size < segment.record.size:
                        rows[segment.record.key] = segment.record
            if not rows:
                reason = f"it names no segment of the broker {config.broker_name!r}"
                raise MetadataError(config.catalogue_path, reason)
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
                index_has_expired=(index[0].base_offset if index else marks.end()) > 0,
                sure_below=dict(_sure_below(config, found, topic_ids, marks)),
                shift=stretch_shift(sum(queue.log_bytes for queue in found)),
            )
        finally:
            parts.close()

    def byte_count(self, *, with_index: bool) -> int:
        """Of all segments that are to be read."""
        rows = [row for queue in self.queues for row in (*queue.log, *queue.queue)]
        return sum(row.size for row in (*rows, *(self.index if with_index else ())))

    def slice_items(self, split_bytes: int) -> Iterator[tuple[SliceItem, int]]:
        """Each slice with what is read of it; it has the log up to where the next one begins."""
        for queue in self.queues:
            slices = plan_slices([queue], split_bytes=split_bytes)
            for each, following in zip(slices, [*slices[1:], None], strict=True):
                yield self._item(queue, each, following, is_first=each is slices[0])

    def _item(
        self, queue: QueueRows, each: Slice, following: Slice | None, *, is_first: bool
    ) -> tuple[SliceItem, int]:
        topic_id = self.topic_ids.get(queue.key.topic, -1)
        more: tuple[SegmentRecord, ...] = ()
        next_offset = -1
        if following is not None:
            next_offset = following.first_offset
            at = next_offset * UNIT_BYTES
            more = tuple(row for row in queue.queue if row.base_offset <= at < row.end_offset)
        item = SliceItem(
            slice=each,
            topic_id=topic_id,
            shift=self.shift,
            next_offset=next_offset,
            is_first=is_first,
            sure_below=self.sure_below.get(QueueId(topic_id, queue.key.queue_id), 0),
            more_rows=more,
        )
        return item, each.approximate_bytes + len(each) * UNIT_BYTES

    def index_items(self) -> Iterator[tuple[IndexItem, int]]:
        for row in self.index:
            items = index_parts(row, slot_count=self.slot_count, shift=self.shift)
            for item in items:
                yield item, row.size // len(items)


def indexed_queues(items: Iterable[VerifyItem]) -> dict[QueueId, IndexedQueue]:
    """The queues of these slices, as they were when it was planned."""
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
                log_start=min(row.base_offset for row in log),
                log_end=max(row.end_offset for row in log),
                sure_below=mine[0].sure_below,
            )
    return found


def _rows(
    metadata: MetadataStore, broker: str
) -> dict[tuple[str, SegmentType, int], SegmentRecord]:
    below = f"{broker}/"
    return {
        row.key: row
        for row in metadata.segments()
        if row.path.startswith(below) and row.type is not SegmentType.INDEX
    }


def _sure_below(
    config: StoreConfig, queues: list[QueueRows], topic_ids: Mapping[str, int], marks: Watermarks
) -> Iterator[tuple[QueueId, int]]:
    """Up to where our own notes say that an index file which can be seen here has all keys."""
    seen = is_seen(config)
    unseen: dict[QueueId, int] = {}
    if not seen:
        for (_, queue), start in marks.starts().items():
            unseen[queue] = min(start, unseen.get(queue, start))
    for rows in queues:
        topic_id = topic_ids.get(rows.key.topic)
        if topic_id is not None:
            queue = QueueId(topic_id, rows.key.queue_id)
            below = marks.of_queue(rows.key.topic, queue)
            yield queue, min(below, unseen.get(queue, below))


@dataclass(slots=True, kw_only=True)
class EntryComparison:
    """Reads the suspects' messages and, once more, all index files; finds what differs."""

    config: StoreConfig
    compared: Compared
    queues: Mapping[QueueId, IndexedQueue]
    index: Sequence[IndexItem]
    shift: int
    findings: Findings
    _paths: list[str] = field(default_factory=list)

    def run(self, comparison: KeyComparison) -> None:
        wanted, held = self._wanted(), self._held()
        is_held = np.isin(wanted["id"], held["id"])
        missing = wanted[~is_held & ~wanted["is_empty"]]
        unfounded = held[~np.isin(held["id"], wanted["id"])]
        self._find_wrong_times(wanted, held)
        self._find_unfounded(unfounded)
        self._find_missing(wanted[is_held], missing, comparison)

    # Reading

    def _wanted(self) -> NDArray[Any]:
        found = []
        for row in self.compared.suspects:
            number = queue_of(row)
            queue = self.queues[number]
            first, end = int(row["first"]), int(row["end"])
            if first >= end:
                continue  # entries without a message
            item = SliceItem(
                slice=Slice(
                    key=queue.key,
                    path=queue.path,
                    first_offset=first,
                    end_offset=end,
                    approximate_bytes=0,
                    rows=queue.rows,
                ),
                topic_id=number[0],
                shift=self.shift,
                next_offset=-1,
                is_first=False,
            )
            check = SliceCheck(self.config, item)
            try:
                for keys in check.run():
                    mine = keys.chosen(keys.log_offsets >> self.shift == row["stretch"])
                    part = np.zeros(len(mine), _ENTRY)
                    part["topic_id"], part["queue_id"] = number
                    part["log_offset"], part["time"] = mine.log_offsets, mine.times
                    part["queue_offset"], part["ipv6"] = mine.queue_offsets, mine.ipv6
                    part["is_empty"] = mine.is_empty
                    part["id"] = _ids(part, mine.sizes, mine.hashes)
                    found.append(part)
            finally:
                check.close()
        return np.concatenate(found) if found else np.empty(0, _ENTRY)

    def _held(self) -> NDArray[Any]:
        suspects = self.compared.suspects
        codes = _codes(suspects["topic_id"], suspects["queue_id"], suspects["stretch"])
        found: list[NDArray[Any]] = []

        def take(
            items: NDArray[Any], times: NDArray[np.int64], path: str, start: int, step: int
        ) -> None:
            offsets = items["log_offset"].astype(np.int64)
            topics, numbers = items["topic_id"].astype(np.int64), items["queue_id"].astype(np.int64)
            mine = np.isin(_codes(topics, numbers, offsets >> self.shift), codes)
            rows = np.flatnonzero(mine & within(items, self.queues))
            if not len(rows):
                return
            if not self._paths or self._paths[-1] != path:
                self._paths.append(path)
            part = np.zeros(len(rows), _ENTRY)
            part["topic_id"], part["queue_id"] = topics[rows], numbers[rows]
            part["log_offset"], part["time"] = offsets[rows], times[rows]
            part["file"], part["position"] = len(self._paths) - 1, start + step * rows
            sizes = items["message_bytes"][rows].astype(np.int64)
            part["id"] = _ids(part, sizes, entry_hashes(items["key_hash"][rows]))
            found.append(part)

        ignored = Findings(kept=0)
        provider = worker_provider(self.config)
        for item in self.index:
            row = item.row
            with provider.open(row.path, row.type, row.base_offset) as segment:
                try:
                    IndexFileCheck(segment, item, ignored).run(take)
                except (SegmentError, OffsetOutOfRangeError):
                    continue  # a finding names it already
        uploaded = {item.row.begin_timestamp or 0 for item in self.index}
        verify_local_index(self.config, uploaded, ignored, take)
        return np.concatenate(found) if found else np.empty(0, _ENTRY)

    # Findings

    def _find_wrong_times(self, wanted: NDArray[Any], held: NDArray[Any]) -> None:
        order = np.argsort(wanted["id"], kind="stable")
        places = np.searchsorted(wanted["id"][order], held["id"])
        places = order[np.minimum(places, len(order) - 1)] if len(order) else places
        if not len(order):
            return
        same = wanted["id"][places] == held["id"]
        apart = np.abs(wanted["time"][places] - held["time"]) > SECOND_SLACK_MS
        wrong = held[same & apart & ~wanted["ipv6"][places]]
        for row in wrong[: self.findings.room(VerifyKind.KEY_TIME, len(wrong))]:
            text = f"the entry of the message at byte {row['log_offset']} has time {row['time']}"
            self._describe(VerifyKind.KEY_TIME, row, text)

    def _find_unfounded(self, unfounded: NDArray[Any]) -> None:
        log_starts = (self.queues[queue_of(row)].log_start for row in unfounded)
        starts = np.fromiter(log_starts, np.int64, len(unfounded))
        wrong = unfounded[unfounded["log_offset"] >= starts]
        for row in wrong[: self.findings.room(VerifyKind.KEY_UNFOUNDED, len(wrong))]:
            text = f"no message at byte {row['log_offset']} has the key or the size of this entry"
            self._describe(VerifyKind.KEY_UNFOUNDED, row, text)

    def _describe(self, kind: VerifyKind, row: Any, text: str) -> None:
        queue = self.queues[queue_of(row)]
        self.findings.describe(
            kind,
            self._paths[int(row["file"])],
            text,
            key=queue.key,
            position=int(row["position"]),
        )

    def _find_missing(
        self, found: NDArray[Any], missing: NDArray[Any], comparison: KeyComparison
    ) -> None:
        """The newest and the oldest of a queue may be explained; the others are missing.

        A file may be full in the middle of the keys of one message.
        """
        explained = np.zeros(len(missing), np.bool_)
        for number in {queue_of(row) for row in missing}:
            mine = (missing["topic_id"] == number[0]) & (missing["queue_id"] == number[1])
            theirs = found[(found["topic_id"] == number[0]) & (found["queue_id"] == number[1])]
            stretches = theirs["log_offset"] >> self.shift
            newest = theirs["log_offset"][stretches == self.compared.last_held.get(number, -1)]
            oldest = theirs["log_offset"][stretches == self.compared.first_held.get(number, -1)]
            if comparison.has_expired and len(oldest):
                before = mine & (missing["log_offset"] <= oldest.min())
                explained |= before
                if before.any():
                    first = int(missing["queue_offset"][before].min())
                    comparison.add_expired(number, int(np.count_nonzero(before)), first)
            if len(newest):
                behind = mine & ~explained & (missing["log_offset"] >= newest.max())
                explained |= behind
                if behind.any():
                    first = int(missing["queue_offset"][behind].min())
                    comparison.add_not_uploaded(number, int(np.count_nonzero(behind)), first)
        missing = missing[~explained]
        for row in missing[: self.findings.room(VerifyKind.KEY_MISSING, len(missing))]:
            queue = self.queues[queue_of(row)]
            offset = int(row["queue_offset"])
            self.findings.describe(
                VerifyKind.KEY_MISSING,
                queue.path,
                f"a key of message {offset} is in no index file",
                key=queue.key,
                position=int(row["log_offset"]),
                queue_offset=offset,
            )


def _codes(
    topics: NDArray[np.int64], queues: NDArray[np.int64], stretches: NDArray[np.int64]
) -> NDArray[np.uint64]:
    queue = mixed(((topics << 32) ^ queues).astype(np.uint64))
    return mixed(queue + stretches.astype(np.uint64))


def _ids(
    entries: NDArray[Any], sizes: NDArray[np.int64], hashes: NDArray[np.int64]
) -> NDArray[np.uint64]:
    queue = mixed(((entries["topic_id"] << 32) ^ entries["queue_id"]).astype(np.uint64))
    return mixed(queue + prints(entries["log_offset"], sizes, hashes))
