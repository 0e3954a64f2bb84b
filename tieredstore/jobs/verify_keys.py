"""The sums of all keys and entries compared: what the index lacks, and what it has too much.

A key that no index file has may be explained. A broker fills index files on its own disk, uploads
them later, and puts the messages of a queue in their order. So where only the newest messages of a
queue are missing, their keys may be in a file that is not seen here, or not be put yet; where a
newer message is found, a missing key is damage. Our own notes in the catalogue say more exactly up
to where all keys must be found. Index files also expire by a time of their own: where the oldest
have been dropped, the oldest messages of a queue need not be found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.index.rows import SECOND_SLACK_MS
from tieredstore.index.watermarks import QueueId
from tieredstore.jobs.verify_findings import Findings, Sums, VerifyKind
from tieredstore.model.values import INT64_MAX, QueueKey, SegmentRecord

LOOKED_AT_STRETCHES_MAX: Final = 256
LOOKED_AT_ENTRIES_MAX: Final = 4_000_000
LOOKED_AT_BYTES_MAX: Final = 2 * 1024**3  # of index files and stretches of the log


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedQueue:
    """A queue that the index is about. `sure_below`: keys of messages before this queue offset
    must be found, whatever comes behind."""

    key: QueueKey
    path: str
    rows: tuple[SegmentRecord, ...]
    log_start: int
    log_end: int
    sure_below: int = 0


def queue_of(row: Any) -> QueueId:
    """The queue that a row of sums, or of entries, is about."""
    return QueueId(int(row["topic_id"]), int(row["queue_id"]))


def within(items: NDArray[Any], queues: Mapping[QueueId, IndexedQueue]) -> NDArray[np.bool_]:
    """Items of an index file that a broker may be filling: not those of messages that are newer
    than what was planned."""
    topics, numbers = items["topic_id"].astype(np.int64), items["queue_id"].astype(np.int64)
    offsets = items["log_offset"].astype(np.int64)
    kept = np.ones(len(items), np.bool_)
    codes = (topics << 32) | (numbers & 0xFFFFFFFF)
    for at in np.unique(codes, return_index=True)[1].tolist():
        queue = queues.get(queue_of(items[at]))
        if queue is not None:
            kept &= (codes != codes[at]) | (offsets < queue.log_end)
    return kept


@dataclass(slots=True, kw_only=True)
class Compared:
    """What a comparison came to: stretches that want a closer look, and counts."""

    suspects: Sums
    first_held: dict[QueueId, int]  # the first stretch that the index has anything of
    last_held: dict[QueueId, int]  # and the last one
    counts: dict[str, int] = field(default_factory=dict)


class KeyComparison:
    """Sums against the queues of a tier; what needs no closer look goes to `findings`."""

    def __init__(
        self,
        queues: Mapping[QueueId, IndexedQueue],
        *,
        shift: int,
        findings: Findings,
        has_expired: bool = False,
    ) -> None:
        self._queues = queues
        self.has_expired = has_expired
        self._shift = shift
        self._findings = findings

    def compare(self, sums: Sums) -> Compared:
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
            self._findings.add(VerifyKind.KEY_STALE, "the key index", text, count=stale)
        rows = sums[here]
        wrong = _are_wrong(rows)
        # Entries of what has expired lie in the same stretch as the oldest messages.
        at_edge = starts[here] < bounds[here, 0]
        wrong &= ~(at_edge & (rows["held"] >= rows["wanted"]))
        damaged = wrong & (rows["damaged"] > 0)
        wrong &= ~damaged
        held = rows[rows["held"] > 0]
        last_held = _stretches_held(held)
        first_held = _stretches_held(held[::-1])
        suspects = rows[wrong]
        if self.has_expired:
            suspects = self._sort_out_expired(suspects, first_held)
        suspects = self._sort_out_unseen(suspects, last_held)
        return Compared(
            suspects=suspects,
            first_held=first_held,
            last_held=last_held,
            counts={
                "entries_of_expired": int(sums["held"][expired].sum()),
                "keys_beside_damage": int(rows["wanted"][damaged].sum()),
            },
        )

    def can_be_looked_at(self, suspects: Sums, index_bytes: int) -> bool:
        """Whether it takes a bounded time, on one machine, to read them once more."""
        read_bytes = index_bytes + (len(suspects) << self._shift)
        entries = int(suspects["wanted"].sum() + suspects["held"].sum())
        return (
            len(suspects) <= LOOKED_AT_STRETCHES_MAX
            and entries <= LOOKED_AT_ENTRIES_MAX
            and read_bytes <= LOOKED_AT_BYTES_MAX
        )

    def add_suspects(self, suspects: Sums) -> None:
        """Add what is known of suspects without a closer look."""
        for row in suspects:
            queue = self._queues[queue_of(row)]
            wanted, held = int(row["wanted"]), int(row["held"])
            start = int(row["stretch"]) << self._shift
            where = f"bytes {start} to {start + (1 << self._shift)} of the log"
            text = f"{where} have messages with {wanted} keys, the index {held} entries"
            kind = VerifyKind.KEYS_UNCOMPARED
            if wanted > held:
                kind = VerifyKind.KEY_MISSING
            elif wanted == held:
                kind = VerifyKind.KEY_UNFOUNDED if row["print"] else VerifyKind.KEY_TIME
            self._findings.add(
                kind,
                queue.path,
                text,
                key=queue.key,
                position=start,
                queue_offset=int(row["first"]) if wanted else None,
                count=max(1, wanted - held),
            )

    def add_not_uploaded(self, number: QueueId, count: int, first: int) -> None:
        queue = self._queues[number]
        text = f"{count} keys of messages from {first} on are in no index file that is seen here"
        kind = VerifyKind.KEYS_NOT_UPLOADED
        if first < queue.sure_below:
            kind = VerifyKind.KEY_MISSING
            text = f"{text}; up to {queue.sure_below} all were made durable"
        self._findings.add(kind, queue.path, text, key=queue.key, queue_offset=first, count=count)

    def add_expired(self, number: QueueId, count: int, first: int) -> None:
        queue = self._queues[number]
        text = f"{count} keys of the oldest messages from {first} on: index files were dropped"
        self._findings.add(
            VerifyKind.KEYS_EXPIRED,
            queue.path,
            text,
            key=queue.key,
            queue_offset=first,
            count=count,
        )

    def _sort_out_expired(self, wrong: Sums, first_held: Mapping[QueueId, int]) -> Sums:
        """Stretches before the first one that the index still has; gives the others."""
        before = wrong["stretch"] < _limits(wrong, first_held, INT64_MAX)
        for number, mine in _by_queue(wrong[before]):
            self.add_expired(number, int(mine["wanted"].sum()), int(mine["first"].min()))
        return wrong[~before]

    def _sort_out_unseen(self, wrong: Sums, last_held: Mapping[QueueId, int]) -> Sums:
        """Stretches behind the last one that the index has anything of; gives the others."""
        behind = wrong["stretch"] > _limits(wrong, last_held, -1)
        unseen = wrong[behind]
        if len(unseen) and not last_held:
            count = int(unseen["wanted"].sum())
            sure = any(queue.sure_below for queue in self._queues.values())
            kind = VerifyKind.KEY_MISSING if sure else VerifyKind.NO_INDEX
            text = f"there is no index file: {count} keys are found by nobody"
            self._findings.add(kind, "the key index", text, count=count)
            return wrong[~behind]
        for number, mine in _by_queue(unseen):
            self.add_not_uploaded(number, int(mine["wanted"].sum()), int(mine["first"].min()))
        return wrong[~behind]

    def _bounds(self, sums: Sums) -> NDArray[np.int64]:
        """Start and end of the log of each row's queue; an end of -1 for an unknown one."""
        bounds = np.full((len(sums), 2), -1, np.int64)
        topics, queues = sums["topic_id"], sums["queue_id"]
        new = np.append(True, (topics[1:] != topics[:-1]) | (queues[1:] != queues[:-1]))
        starts = np.flatnonzero(new[: len(sums)])
        for start, stop in zip(starts, np.append(starts, len(sums))[1:], strict=True):
            queue = self._queues.get(queue_of(sums[start]))
            if queue is not None:
                bounds[start:stop] = queue.log_start, queue.log_end
        return bounds


def _are_wrong(rows: Sums) -> NDArray[np.bool_]:
    """Neither as we put keys nor as RocketMQ does, with the empty ones."""
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
        yield number, rows[(rows["topic_id"] == number[0]) & (rows["queue_id"] == number[1])]


def _queues(rows: Sums) -> Iterator[QueueId]:
    return map(QueueId, rows["topic_id"].tolist(), rows["queue_id"].tolist())


def _limits(rows: Sums, held: Mapping[QueueId, int], default: int) -> NDArray[np.int64]:
    found = (held.get(number, default) for number in _queues(rows))
    return np.fromiter(found, np.int64, len(rows))


def _stretches_held(held: Sums) -> dict[QueueId, int]:
    """Of each queue the last of these rows."""
    return dict(zip(_queues(held), held["stretch"].tolist(), strict=True))
