"""Compares the keys of all messages with the entries of the index: first their sums, then, if those
differ, the suspects entry by entry.

A key may be in no index file for good reasons. A broker fills index files on its own disk, uploads
them later, and puts the messages of a queue in their order. So if only the newest messages of a
queue are missing, their keys may be in a file that is not visible here, or may not have been put
yet; if a newer message is found, a missing key is damage. Our own notes in the catalogue say more
exactly up to where all keys must be found. Later keys are put again at the next start, and may be
missing even if newer messages are found: a file that the disk could not sync is dropped, and those
after it are uploaded. RocketMQ does not update these notes: its items are certain only once we have
opened the tier again. Index files also expire independently of messages: if the oldest files have
been dropped, the oldest messages of a queue may be missing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.key_hashes import mixed
from tieredstore.index.keys import SECOND_SLACK_MS
from tieredstore.index.watermarks import QueueId
from tieredstore.jobs.slices import Slice
from tieredstore.jobs.verify_findings import Findings, Sums, VerifyKind, entry_hashes, prints
from tieredstore.jobs.verify_index import IndexItem, read_index, verify_local_index
from tieredstore.jobs.verify_slice import SliceCheck, SliceItem
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import INT64_MAX, QueueKey, SegmentRecord

LOOKED_AT_STRETCHES_MAX: Final = 256
LOOKED_AT_ENTRIES_MAX: Final = 4_000_000
LOOKED_AT_BYTES_MAX: Final = 2 * 1024**3  # of index files and stretches of the log
Rows: TypeAlias = Sums | NDArray[Any]
"""Sums or entries: both have columns by name."""
_ENTRY: Final = np.dtype(
    [
        *(("id", np.uint64), ("time", np.int64), ("log_offset", np.int64)),
        *(("topic_id", np.int64), ("queue_id", np.int64), ("queue_offset", np.int64)),
        *(("file", np.int64), ("position", np.int64), ("ipv6", np.bool_), ("is_empty", np.bool_)),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedQueue:
    """An indexed queue with the messages `offsets`.

    `log_start`: records before this byte have expired, or at least their units have.
    `oldest_offset`: the units before this one are gone by now. `has_grown`: by now there are units
    behind `offsets`. `sure_below`: keys of messages before this queue offset must be found, and
    later ones need not be; None if that was not noted.
    """

    key: QueueKey
    path: str
    rows: tuple[SegmentRecord, ...]
    log_start: int
    log_end: int
    offsets: range
    oldest_offset: int = 0
    has_grown: bool = False
    sure_below: int | None = None

    def is_sure(self, queue_offset: int) -> bool:
        return self.sure_below is not None and queue_offset < self.sure_below

    def may_lack(self, queue_offset: int) -> bool:
        return self.sure_below is not None and queue_offset >= self.sure_below


class KeyComparison:
    """Compares the keys of the messages of `queues` with the index; differences go to `findings`.

    `index` are the uploaded files, in parts. Suspects and all index files are read once more if
    that takes a bounded time on one machine.
    """

    def __init__(
        self,
        config: StoreConfig,
        queues: Mapping[QueueId, IndexedQueue],
        index: Sequence[IndexItem],
        *,
        shift: int,
        findings: Findings,
        has_expired: bool = False,
        dropped_before: int = 0,
    ) -> None:
        self._config = config
        self._queues = queues
        self._index = index
        self._shift = shift
        self._findings = findings
        self._has_expired = has_expired
        self._dropped_before = dropped_before  # keys of older messages may have been dropped
        # For each queue, the first and the last stretch with entries in the index.
        self._first_held: dict[QueueId, int] = {}
        self._last_held: dict[QueueId, int] = {}
        self._oldest: dict[QueueId, int] = {}  # oldest log offset in the index, by suspect queue
        self._paths: list[str] = []  # of index files; the `file` of an entry is a place in it

    @property
    def uploaded(self) -> set[int]:
        """The begins of the uploaded files: local files with the same begin are ignored."""
        return {item.row.begin_timestamp or 0 for item in self._index}

    def within(self, items: NDArray[Any]) -> NDArray[np.bool_]:
        """Which items count in an index file that a broker may be filling: not those of messages
        newer than the plan."""
        topics, numbers = items["topic_id"].astype(np.int64), items["queue_id"].astype(np.int64)
        offsets = items["log_offset"].astype(np.int64)
        kept = np.ones(len(items), np.bool_)
        codes = (topics << 32) | (numbers & 0xFFFFFFFF)
        for at in np.unique(codes, return_index=True)[1].tolist():
            queue = self._queues.get(_queue_of(items[at]))
            if queue is not None:
                kept &= (codes != codes[at]) | (offsets < queue.log_end)
        return kept

    def compare(self, sums: Sums) -> dict[str, int]:
        """Find the differences; returns counts for the report."""
        bounds = self._bounds(sums)
        known = bounds[:, 1] >= 0
        starts = sums["stretch"] << self._shift
        ends = starts + (1 << self._shift)
        expired = known & (ends <= bounds[:, 0])
        beyond = known & (starts >= bounds[:, 1])
        here = known & ~expired & ~beyond
        stale = int(sums["held"][~known].sum() + sums["held"][beyond].sum())
        if stale:
            text = f"{stale} entries name queues or bytes that the tier does not have (any more)"
            self._findings.add(VerifyKind.KEY_STALE, ("the key index", None), text, count=stale)
        rows = sums.chosen(here)
        wrong = _are_wrong(rows)
        # The stretch of the oldest messages also has entries of messages that have expired.
        at_edge = starts[here] < bounds[here, 0]
        wrong &= ~(at_edge & (rows["held"] >= rows["wanted"]))
        damaged = wrong & (rows["damaged"] > 0)
        held = rows.chosen(rows["held"] > 0)
        starts = _queue_starts(held)
        self._first_held = _stretches_of(held.chosen(starts))
        self._last_held = _stretches_of(held.chosen(np.append(starts, len(held))[1:] - 1))
        suspects = rows.chosen(wrong & ~damaged)
        if self._has_expired:
            suspects = self._sort_out_expired(suspects)
        suspects = self._sort_out_unseen(suspects)
        if len(suspects) and self._can_be_looked_at(suspects):
            self._compare_entries(suspects)
        else:
            self._add_suspects(suspects)
        return {
            "entries_of_expired": int(sums["held"][expired].sum()),
            "keys_beside_damage": int(rows["wanted"][damaged].sum()),
        }

    # Sums

    def _bounds(self, sums: Sums) -> NDArray[np.int64]:
        """For each row, start and end of its queue's log; the end is -1 if the queue is unknown."""
        bounds = np.full((len(sums), 2), -1, np.int64)
        starts = _queue_starts(sums)
        stops = np.append(starts, len(sums))[1:]
        for number, start, stop in zip(_queues(sums.chosen(starts)), starts, stops, strict=True):
            queue = self._queues.get(number)
            if queue is not None:
                bounds[start:stop] = queue.log_start, queue.log_end
        return bounds

    def _sort_out_expired(self, wrong: Sums) -> Sums:
        """Take out stretches before the first one that the index still has; returns the others."""
        before = wrong["stretch"] < _limits(wrong, self._first_held, INT64_MAX)
        for number, mine in _by_queue(wrong.chosen(before)):
            self._add_expired(number, int(mine["wanted"].sum()), int(mine["first"].min()))
        return wrong.chosen(~before)

    def _sort_out_unseen(self, wrong: Sums) -> Sums:
        """Take out stretches after the last one with entries in the index; returns the others."""
        behind = wrong["stretch"] > _limits(wrong, self._last_held, -1)
        unseen = wrong.chosen(behind)
        if len(unseen) and not self._last_held:
            count = int(unseen["wanted"].sum())
            sure = any(self._queues[_queue_of(row)].is_sure(row["first"]) for row in unseen.rows())
            kind = VerifyKind.KEY_MISSING if sure else VerifyKind.NO_INDEX
            text = f"there is no index file: {count} keys are found by nobody"
            self._findings.add(kind, ("the key index", None), text, count=count)
            return wrong.chosen(~behind)
        for number, mine in _by_queue(unseen):
            # Times grow along a queue, unless a clock was set back.
            firsts = mine["first"].tolist()
            old = bisect_left(firsts, True, key=partial(self._is_young, number))
            if old:
                self._add_expired(number, int(mine["wanted"][:old].sum()), firsts[0])
            if old < len(mine):
                self._add_not_uploaded(number, int(mine["wanted"][old:].sum()), firsts[old])
        return wrong.chosen(~behind)

    def _can_be_looked_at(self, suspects: Sums) -> bool:
        index_bytes = sum({item.row.key: item.row.size for item in self._index}.values())
        entries = int(suspects["wanted"].sum() + suspects["held"].sum())
        return (
            len(suspects) <= LOOKED_AT_STRETCHES_MAX
            and entries <= LOOKED_AT_ENTRIES_MAX
            and index_bytes + (len(suspects) << self._shift) <= LOOKED_AT_BYTES_MAX
        )

    def _add_suspects(self, suspects: Sums) -> None:
        """Add findings for suspects that are not compared entry by entry."""
        for row in suspects.rows():
            wanted, held = int(row["wanted"]), int(row["held"])
            start = int(row["stretch"]) << self._shift
            where = f"bytes {start} to {start + (1 << self._shift)} of the log"
            text = f"{where} have messages with {wanted} keys, the index {held} entries"
            kind = VerifyKind.KEYS_UNCOMPARED
            if wanted > held:
                kind = VerifyKind.KEY_MISSING
            elif wanted == held:
                kind = VerifyKind.KEY_UNFOUNDED if row["print"] else VerifyKind.KEY_TIME
            number, stretch = _queue_of(row), int(row["stretch"])
            first = int(row["first"]) if wanted else None
            if wanted > held and (
                (self._has_expired and stretch == self._first_held.get(number))
                or not self._is_young(number, int(row["first"]))
            ):
                self._add_expired(number, wanted - held, int(row["first"]))
            elif wanted > held and (
                stretch == self._last_held.get(number)
                or self._queues[number].may_lack(int(row["end"]) - 1)
            ):
                self._add_not_uploaded(number, wanted - held, int(row["end"]) - 1)
            else:
                self._add(kind, number, text, max(1, wanted - held), first, position=start)

    def _is_young(self, number: QueueId, queue_offset: int) -> bool:
        """Whether no dropped file can have had this message. Files with older messages may still be
        there: files are dropped by their times, and not in the order of their messages."""
        if not self._dropped_before:
            return True
        with closing(self._slice(number, queue_offset, queue_offset + 1)) as check:
            return all((keys.times >= self._dropped_before).all() for keys in check.run())

    def _add_not_uploaded(self, number: QueueId, count: int, first: int) -> None:
        queue = self._queues[number]
        text = f"{count} keys of messages from {first} on are in no index file that is seen here"
        kind = VerifyKind.KEYS_NOT_UPLOADED
        if queue.is_sure(first):
            kind = VerifyKind.KEY_MISSING
            text = f"{text}; up to {queue.sure_below} all were made durable"
        self._add(kind, number, text, count, first)

    def _add_expired(self, number: QueueId, count: int, first: int) -> None:
        text = f"{count} keys of old messages from {first} on: index files were dropped"
        self._add(VerifyKind.KEYS_EXPIRED, number, text, count, first)

    def _add(
        self,
        kind: VerifyKind,
        number: QueueId,
        text: str,
        count: int,
        first: int | None,
        *,
        position: int | None = None,
    ) -> None:
        queue = self._queues[number]
        at = queue.path, position
        self._findings.add(kind, at, text, key=queue.key, queue_offset=first, count=count)

    # Entries

    def _compare_entries(self, suspects: Sums) -> None:
        wanted, held = self._wanted(suspects), self._held(suspects)
        is_held = np.isin(wanted["id"], held["id"])
        missing = wanted[~is_held & ~wanted["is_empty"]]
        unfounded = held[~np.isin(held["id"], wanted["id"])]
        self._find_wrong_times(wanted, held)
        self._find_unfounded(unfounded)
        self._find_missing(wanted[is_held], missing)

    def _wanted(self, suspects: Sums) -> NDArray[Any]:
        """Read the suspects' messages once more, and return their keys."""
        found = []
        for row in suspects.rows():
            number = _queue_of(row)
            first, end = int(row["first"]), int(row["end"])
            if first >= end:
                continue  # entries without a message
            with closing(self._slice(number, first, end)) as check:
                for keys in check.run():
                    mine = keys.chosen(keys.log_offsets >> self._shift == row["stretch"])
                    part = np.zeros(len(mine), _ENTRY)
                    part["topic_id"], part["queue_id"] = number
                    part["log_offset"], part["time"] = mine.log_offsets, mine.times
                    part["queue_offset"], part["ipv6"] = mine.queue_offsets, mine.ipv6
                    part["is_empty"] = mine.is_empty
                    part["id"] = _ids(part, mine.sizes, mine.hashes)
                    found.append(part)
        return np.concatenate(found) if found else np.empty(0, _ENTRY)

    def _slice(self, number: QueueId, first: int, end: int) -> SliceCheck:
        queue = self._queues[number]
        slice_ = Slice(
            key=queue.key,
            path=queue.path,
            first_offset=first,
            end_offset=end,
            approximate_bytes=0,
            rows=queue.rows,
        )
        # With `next_offset`, nothing after the slice is read.
        item = SliceItem(slice=slice_, topic_id=number.topic_id, shift=self._shift, next_offset=end)
        return SliceCheck(self._config, item)

    def _log_start(self, number: QueueId) -> int:
        """Where the log of a queue starts now. If units have expired since they were read, this is
        the place that the oldest remaining unit names: records expire later than units."""
        queue = self._queues[number]
        oldest = queue.oldest_offset
        if oldest <= queue.offsets.start:
            return queue.log_start
        start = self._place(number, oldest)
        return queue.log_start if start is None else max(queue.log_start, start)

    def _newest(self, number: QueueId) -> int:
        """The place of the newest message that was read, if the queue has grown since: the log may
        have had the next ones before the queue had their units."""
        queue = self._queues[number]
        place = self._place(number, queue.offsets.stop - 1) if queue.has_grown else None
        return INT64_MAX if place is None else place

    def _place(self, number: QueueId, queue_offset: int) -> int | None:
        """The log offset that this unit names; None if it is gone, or names no place in the log."""
        with closing(self._slice(number, queue_offset, queue_offset + 1)) as check:
            for _ in check.run():
                pass
            return check.row().log_start

    def _held(self, suspects: Sums) -> NDArray[Any]:
        """The suspects' entries in all index files."""
        codes = _codes(suspects["topic_id"], suspects["queue_id"], suspects["stretch"])
        suspected = set(_queues(suspects))
        found: list[NDArray[Any]] = []

        def take(
            items: NDArray[Any], times: NDArray[np.int64], path: str, start: int, step: int
        ) -> None:
            offsets = items["log_offset"].astype(np.int64)
            topics, numbers = items["topic_id"].astype(np.int64), items["queue_id"].astype(np.int64)
            for queue in suspected:
                theirs = offsets[(topics == queue.topic_id) & (numbers == queue.queue_id)]
                if len(theirs):
                    oldest = min(int(theirs.min()), self._oldest.get(queue, INT64_MAX))
                    self._oldest[queue] = oldest
            mine = np.isin(_codes(topics, numbers, offsets >> self._shift), codes)
            rows = np.flatnonzero(mine & self.within(items))
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
        for item in self._index:
            read_index(self._config, item, ignored, take)
        verify_local_index(self._config, self.uploaded, ignored, take)
        return np.concatenate(found) if found else np.empty(0, _ENTRY)

    def _find_wrong_times(self, wanted: NDArray[Any], held: NDArray[Any]) -> None:
        if not len(wanted):
            return
        order = np.argsort(wanted["id"], kind="stable")
        places = np.searchsorted(wanted["id"][order], held["id"])
        places = order[np.minimum(places, len(order) - 1)]
        same = wanted["id"][places] == held["id"]
        apart = np.abs(wanted["time"][places] - held["time"]) > SECOND_SLACK_MS
        wrong = held[same & apart & ~wanted["ipv6"][places]]
        for row in wrong[: self._findings.room(VerifyKind.KEY_TIME, len(wrong))]:
            text = f"the entry of the message at byte {row['log_offset']} has time {row['time']}"
            self._describe(VerifyKind.KEY_TIME, row, text)

    def _find_unfounded(self, unfounded: NDArray[Any]) -> None:
        numbers = {*_queues(unfounded)}
        starts = {number: self._log_start(number) for number in numbers}
        newest = {number: self._newest(number) for number in numbers}
        places = unfounded["log_offset"]
        wrong = unfounded[
            (places >= _limits(unfounded, starts, 0)) & (places <= _limits(unfounded, newest, 0))
        ]
        for row in wrong[: self._findings.room(VerifyKind.KEY_UNFOUNDED, len(wrong))]:
            text = f"no message at byte {row['log_offset']} has the key or the size of this entry"
            self._describe(VerifyKind.KEY_UNFOUNDED, row, text)

    def _describe(self, kind: VerifyKind, row: Any, text: str) -> None:
        at = self._paths[int(row["file"])], int(row["position"])
        self._findings.describe(kind, at, text, key=self._queues[_queue_of(row)].key)

    def _find_missing(self, found: NDArray[Any], missing: NDArray[Any]) -> None:
        """Report missing keys. Those of the newest and the oldest messages of a queue may have an
        explanation; the others are damage.

        A file may become full between two keys of one message.
        """
        explained = np.zeros(len(missing), np.bool_)
        for number in {_queue_of(row) for row in missing}:
            mine = _are_of(missing, number)
            theirs = found[_are_of(found, number)]
            stretches = theirs["log_offset"] >> self._shift
            last = self._last_held.get(number, -1)
            newest = theirs["log_offset"][stretches == last]
            sure_below = self._queues[number].sure_below
            if not len(newest) and last == (start := self._log_start(number)) >> self._shift:
                newest = np.array([start - 1])  # the index only has expired messages there
            if self._has_expired:
                oldest = self._oldest.get(number, INT64_MAX)
                before = missing["log_offset"] <= oldest
                before = mine & (before | (missing["time"] < self._dropped_before))
                explained |= before
                if before.any():
                    first = int(missing["queue_offset"][before].min())
                    self._add_expired(number, int(np.count_nonzero(before)), first)
            behind = missing["log_offset"] >= (newest.max() if len(newest) else INT64_MAX)
            if sure_below is not None:
                behind |= missing["queue_offset"] >= sure_below
            behind &= mine & ~explained
            explained |= behind
            if behind.any():
                first = int(missing["queue_offset"][behind].min())
                self._add_not_uploaded(number, int(np.count_nonzero(behind)), first)
        missing = missing[~explained]
        for row in missing[: self._findings.room(VerifyKind.KEY_MISSING, len(missing))]:
            queue, offset = self._queues[_queue_of(row)], int(row["queue_offset"])
            at = queue.path, int(row["log_offset"])
            text = f"a key of message {offset} is in no index file"
            self._findings.describe(
                VerifyKind.KEY_MISSING, at, text, key=queue.key, queue_offset=offset
            )


def _are_wrong(rows: Sums) -> NDArray[np.bool_]:
    """Which rows match neither the keys that we put nor those of RocketMQ, with empty ones."""
    right = np.zeros(len(rows), np.bool_)
    for with_empties in (0, 1):
        wanted = rows["wanted"] + with_empties * rows["empties"]
        same = rows["print"] + np.uint64(with_empties) * rows["empty_print"] == 0
        times = np.abs(rows["times"] + with_empties * rows["empty_times"])
        in_time = (times <= SECOND_SLACK_MS * wanted) | (rows["ipv6"] > 0)
        right |= (wanted == rows["held"]) & same & in_time
    return ~right


def _by_queue(rows: Sums) -> Iterator[tuple[QueueId, Sums]]:
    for number in dict.fromkeys(_queues(rows)):
        yield number, rows.chosen(_are_of(rows, number))


def _are_of(rows: Rows, number: QueueId) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (rows["topic_id"] == number.topic_id) & (
        rows["queue_id"] == number.queue_id
    )
    return found


def _queue_of(row: Any) -> QueueId:
    """The queue of a row of sums or entries."""
    return QueueId(int(row["topic_id"]), int(row["queue_id"]))


def _queues(rows: Rows) -> Iterator[QueueId]:
    return map(QueueId, rows["topic_id"].tolist(), rows["queue_id"].tolist())


def _limits(rows: Rows, held: Mapping[QueueId, int], default: int) -> NDArray[np.int64]:
    found = (held.get(number, default) for number in _queues(rows))
    return np.fromiter(found, np.int64, len(rows))


def _queue_starts(rows: Rows) -> NDArray[np.int64]:
    """Where each queue begins in sorted rows."""
    topics, queues = rows["topic_id"], rows["queue_id"]
    new = np.append(True, (topics[1:] != topics[:-1]) | (queues[1:] != queues[:-1]))
    return np.flatnonzero(new[: len(rows)])


def _stretches_of(rows: Sums) -> dict[QueueId, int]:
    return dict(zip(_queues(rows), rows["stretch"].tolist(), strict=True))


def _codes(
    topics: NDArray[np.int64], queues: NDArray[np.int64], stretches: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """One number for each stretch of a queue."""
    return mixed(_queue_codes(topics, queues) + stretches.astype(np.uint64))


def _ids(
    entries: NDArray[Any], sizes: NDArray[np.int64], hashes: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """One number for each entry."""
    queue = _queue_codes(entries["topic_id"], entries["queue_id"])
    return mixed(queue + prints(entries["log_offset"], sizes, hashes))


def _queue_codes(topics: NDArray[np.int64], queues: NDArray[np.int64]) -> NDArray[np.uint64]:
    return mixed(((topics << 32) ^ queues).astype(np.uint64))
