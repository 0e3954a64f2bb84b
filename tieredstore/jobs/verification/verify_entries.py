"""Keys and entries of a few stretches compared one by one, on the machine that started the job.

What lives here: `EntryComparison`. Which stretches want it is told in `verify_keys`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.tiered_index import COMPACTED_ITEM_BYTES, item_position
from tieredstore.index.key_hashes import mixed
from tieredstore.index.rows import SECOND_SLACK_MS
from tieredstore.jobs.reading.slices import Slice
from tieredstore.jobs.verification.verify_findings import Findings, VerifyKind
from tieredstore.jobs.verification.verify_index import IndexFileCheck, IndexItem
from tieredstore.jobs.verification.verify_keys import (
    Compared,
    IndexedQueue,
    KeyComparison,
    QueueNumber,
    within,
)
from tieredstore.jobs.verification.verify_local_index import verify_local_index
from tieredstore.jobs.verification.verify_slice import SliceCheck, SliceItem
from tieredstore.jobs.verification.verify_sums import entry_hashes, prints
from tieredstore.jobs.worker_parts import worker_provider
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentError

_ENTRY: Final = np.dtype(
    [
        *(("id", np.uint64), ("time", np.int64), ("log_offset", np.int64)),
        *(("topic_id", np.int64), ("queue_id", np.int64), ("queue_offset", np.int64)),
        *(("file", np.int64), ("position", np.int64), ("ipv6", np.bool_), ("is_empty", np.bool_)),
    ]
)


@dataclass(slots=True, kw_only=True)
class EntryComparison:
    """Reads the suspects' messages and, once more, all index files; tells what differs."""

    config: StoreConfig
    compared: Compared
    queues: Mapping[QueueNumber, IndexedQueue]
    index: Sequence[IndexItem]
    shift: int
    findings: Findings
    _paths: list[str] = field(default_factory=list)

    def run(self, comparison: KeyComparison) -> None:
        wanted, held = self._wanted(), self._held()
        is_held = np.isin(wanted["id"], held["id"])
        missing = wanted[~is_held & ~wanted["is_empty"]]
        unfounded = held[~np.isin(held["id"], wanted["id"])]
        self._tell_times(wanted, held)
        self._tell_unfounded(unfounded)
        self._tell_missing(wanted[is_held], missing, comparison)

    # Reading

    def _wanted(self) -> NDArray[Any]:
        found = []
        for row in self.compared.suspects:
            number = int(row["topic_id"]), int(row["queue_id"])
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
            items: NDArray[Any], times: NDArray[np.int64], path: str, start: int, each: int
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
            part["file"], part["position"] = len(self._paths) - 1, start + each * rows
            sizes = items["message_bytes"][rows].astype(np.int64)
            part["id"] = _ids(part, sizes, entry_hashes(items["key_hash"][rows]))
            found.append(part)

        ignored = Findings(kept=0)
        provider = worker_provider(self.config)
        for item in self.index:
            row = item.row
            with provider.open(row.path, row.type, row.base_offset) as segment:
                path = segment.path
                try:
                    IndexFileCheck(segment, item, ignored).run(
                        lambda items, times, at, path=path: take(  # type: ignore[misc]
                            items, times, path, at, COMPACTED_ITEM_BYTES
                        )
                    )
                except (SegmentError, OffsetOutOfRangeError):
                    continue  # it was told of before
        slots = self.config.index_slot_count
        each = item_position(1, slot_count=slots) - item_position(0, slot_count=slots)
        verify_local_index(
            self.config,
            {item.row.begin_timestamp or 0 for item in self.index},
            ignored,
            lambda items, times, path, number: take(
                items, times, path, item_position(number, slot_count=slots), each
            ),
        )
        return np.concatenate(found) if found else np.empty(0, _ENTRY)

    # Telling

    def _tell_times(self, wanted: NDArray[Any], held: NDArray[Any]) -> None:
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
            self._tell(VerifyKind.KEY_TIME, row, text)

    def _tell_unfounded(self, unfounded: NDArray[Any]) -> None:
        starts = np.fromiter(
            (
                self.queues[int(row["topic_id"]), int(row["queue_id"])].log_start
                for row in unfounded
            ),
            np.int64,
            len(unfounded),
        )
        wrong = unfounded[unfounded["log_offset"] >= starts]
        for row in wrong[: self.findings.room(VerifyKind.KEY_UNFOUNDED, len(wrong))]:
            text = f"no message at byte {row['log_offset']} has the key or the size of this entry"
            self._tell(VerifyKind.KEY_UNFOUNDED, row, text)

    def _tell(self, kind: VerifyKind, row: Any, text: str) -> None:
        queue = self.queues[int(row["topic_id"]), int(row["queue_id"])]
        self.findings.describe(
            kind,
            self._paths[int(row["file"])],
            text,
            key=queue.key,
            position=int(row["position"]),
        )

    def _tell_missing(
        self, found: NDArray[Any], missing: NDArray[Any], comparison: KeyComparison
    ) -> None:
        """The newest and the oldest of a queue may be explained; the others are missing.

        A file may be full in the middle of the keys of one message.
        """
        explained = np.zeros(len(missing), np.bool_)
        for number in {(int(row["topic_id"]), int(row["queue_id"])) for row in missing}:
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
                    comparison.tell_expired(number, int(np.count_nonzero(before)), first)
            if len(newest):
                behind = mine & ~explained & (missing["log_offset"] >= newest.max())
                explained |= behind
                if behind.any():
                    first = int(missing["queue_offset"][behind].min())
                    comparison.tell_not_uploaded(number, int(np.count_nonzero(behind)), first)
        missing = missing[~explained]
        for row in missing[: self.findings.room(VerifyKind.KEY_MISSING, len(missing))]:
            queue = self.queues[int(row["topic_id"]), int(row["queue_id"])]
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
