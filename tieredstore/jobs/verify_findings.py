"""The findings of a verification, and the sums that compare keys of messages with entries of the
index.

The sums tell in one pass whether the keys of all messages and the entries of the index are the
same. The log offset of an entry says which stretch of a queue's log it belongs to, and each stretch
has one row of sums. Stretches are long enough for all rows to fit into memory; only those whose
sums are not zero are then compared entry by entry.

RocketMQ also puts an empty key if KEYS has two blanks in a row or begins with one; we do not. So
such keys are summed up separately, and a stretch is right with all of them or with none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.key_hashes import Hashes, mixed
from tieredstore.index.watermarks import QueueId
from tieredstore.model.findings import Finding, FindingKind, Place, Severity
from tieredstore.model.values import INT64_MAX, QueueKey

FINDINGS_A_KIND: Final = 20  # described for one work item; the rest is only counted
STRETCHES_MAX: Final = 65_536  # about, in a whole tier
SHIFT_MIN: Final = 10
CONSOLIDATED_ROWS: Final = 1 << 20

_PLACE: Final = ("topic_id", "queue_id", "stretch")
_BEGINNINGS: Final[Mapping[str, Any]] = {
    "wanted": 0,  # keys of messages
    "held": 0,  # entries
    "print": np.uint64(0),  # wanted minus held, modulo 2^64; likewise the times
    "times": 0,
    "first": INT64_MAX,  # queue offsets of the messages
    "end": 0,
    "damaged": 0,  # messages without keys
    "ipv6": 0,  # messages without a sure time
    "empties": 0,
    "empty_print": np.uint64(0),
    "empty_times": 0,
}
_COMBINED: Final = {"first": np.minimum, "end": np.maximum}  # the others are added
_COLUMNS: Final = ("wanted", "print", "times")
_EMPTY_COLUMNS: Final = ("empties", "empty_print", "empty_times")
_SIGN: Final = 1 << 31
_SHORT: Final = 1 << 16  # 16-bit numbers get a radix sort, in a tenth of the time


class VerifyKind(FindingKind):
    """What can be wrong with the bytes."""

    LOST_BYTES = "lost-bytes"
    UNREADABLE = "unreadable"
    UNIT_BEYOND = "unit-beyond-log"
    NO_MESSAGE = "no-message"
    WRONG_OFFSET = "wrong-queue-offset"
    WRONG_QUEUE = "wrong-queue"
    WRONG_LOG_OFFSET = "wrong-log-offset"
    BODY_CRC = "body-crc"
    TAGS_CODE = "tags-code"
    STORE_TIME = "store-time"
    UNNAMED = "unnamed-message"
    INDEX_FILE = "index-file"
    INDEX_SLOT = "index-slot"
    INDEX_FOOTER = "index-footer"
    INDEX_ITEMS = "index-items"
    KEY_MISSING = "key-missing"
    KEY_UNFOUNDED = "key-unfounded"
    KEY_TIME = "key-time"
    SECOND_COPY = "second-copy", Severity.LEFTOVER
    KEY_STALE = "key-stale", Severity.LEFTOVER
    FILLED_IN = "filled-in", Severity.NOTE
    LOG_AHEAD = "log-ahead", Severity.NOTE
    KEYS_NOT_UPLOADED = "keys-not-uploaded", Severity.NOTE
    KEYS_EXPIRED = "keys-expired", Severity.NOTE
    KEYS_UNCOMPARED = "keys-not-compared", Severity.NOTE
    NO_INDEX = "no-index", Severity.NOTE
    OLD_INDEX = "old-index-file", Severity.NOTE


class Sums:
    """Columns by name, each an array of its own: moving rows of a structured array is slow.

    A column that was not set has the initial value in every row.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self._columns = dict(columns)

    @classmethod
    def of(cls, topics: Any, queues: Any, stretches: NDArray[np.int64]) -> Sums:
        """A row for each stretch, without any message yet."""
        zeros = np.zeros(len(stretches), np.int64)
        return cls({"topic_id": zeros + topics, "queue_id": zeros + queues, "stretch": stretches})

    @classmethod
    def together(cls, parts: Sequence[Sums]) -> Sums:
        names = dict.fromkeys(name for part in parts for name in part._columns)
        return cls({name: np.concatenate([part[name] for part in parts]) for name in names})

    def consolidated(self) -> Sums:
        """One row for each stretch, in order."""
        if len(self) < 2:
            return self
        order, starts = _by_stretch(self["topic_id"], self["queue_id"], self["stretch"])
        if len(starts) == len(self):
            return self if (order[1:] > order[:-1]).all() else self.chosen(order)
        together = {name: self[name][order[starts]] for name in _PLACE}
        for name in self._columns.keys() - together.keys():
            combine = _COMBINED.get(name, np.add)
            together[name] = combine.reduceat(self[name][order], starts)
        return Sums(together)

    def __len__(self) -> int:
        return len(self["stretch"])

    def __getitem__(self, name: str) -> NDArray[Any]:
        found = self._columns.get(name)
        return np.full(len(self), _BEGINNINGS[name]) if found is None else found

    def __setitem__(self, name: str, values: NDArray[Any]) -> None:
        self._columns[name] = values

    def chosen(self, rows: NDArray[Any]) -> Sums:
        return Sums({name: column[rows] for name, column in self._columns.items()})

    def rows(self) -> Iterator[dict[str, int]]:
        """The rows one by one; slow, so only for a few."""
        names = (*_PLACE, *_BEGINNINGS)
        for row in zip(*(self[name].tolist() for name in names), strict=True):
            yield dict(zip(names, row, strict=True))


NO_SUMS: Final = Sums.of(0, 0, np.empty(0, np.int64))

At: TypeAlias = tuple[str, int | None]
"""The path of a file, and a byte of it."""


@dataclass(slots=True)
class Findings:
    """What was found: the first `kept` of each kind are described, all are counted.

    They are about the queue `key`, unless a finding names another.
    """

    key: QueueKey | None = None
    kept: int = FINDINGS_A_KIND
    found: list[Finding] = field(default_factory=list)
    totals: Counter[FindingKind] = field(default_factory=Counter)
    left_out: int = 0
    _described: Counter[VerifyKind] = field(default_factory=Counter)

    def room(self, kind: VerifyKind, count: int, *, stand_for: int | None = None) -> int:
        """How many of `count` findings to describe. Counts all of them, or what they stand for."""
        kept = min(count, max(0, self.kept - self._described[kind]))
        self._described[kind] += kept
        self.left_out += count - kept
        self.totals[kind] += count if stand_for is None else stand_for
        return kept

    def rows(self, kind: VerifyKind, wrong: NDArray[np.bool_]) -> list[int]:
        """The first wrong rows, as many as there is room to describe."""
        places = np.flatnonzero(wrong)
        if not len(places):
            return []
        kept: list[int] = places[: self.room(kind, len(places))].tolist()
        return kept

    def describe(
        self,
        kind: VerifyKind,
        at: At,
        detail: str,
        *,
        key: QueueKey | None = None,
        queue_offset: int | None = None,
    ) -> None:
        """Describe a finding that `room` or `rows` has counted."""
        topic, queue_id = key or self.key or (None, None)
        path, position = at
        place = Place(
            path=path,
            topic=topic,
            queue_id=queue_id,
            position=position,
            queue_offset=queue_offset,
        )
        self.found.append(
            Finding(severity=kind.severity, kind=kind, where=path, detail=detail, place=place)
        )

    def add(
        self,
        kind: VerifyKind,
        at: At,
        detail: str,
        *,
        key: QueueKey | None = None,
        queue_offset: int | None = None,
        count: int = 1,
    ) -> None:
        """Add one finding that stands for `count` things."""
        if self.room(kind, 1, stand_for=count):
            self.describe(kind, at, detail, key=key, queue_offset=queue_offset)

    def take(self, others: Findings) -> None:
        """Add all findings of another work item."""
        self.found += others.found
        self.totals.update(others.totals)
        self.left_out += others.left_out

    @property
    def has_damage(self) -> bool:
        return any(kind.severity is Severity.DAMAGE for kind in self.totals)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRow:
    """The result of one work item. `log_start`: for a slice of `queue`, the first byte of the log
    that its units name; None if there is none. `item`: the work item itself, if it has damage."""

    findings: Findings
    counts: Mapping[str, int]
    sums: Sums
    queue: QueueId | None = None
    log_start: int | None = None
    item: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Columns of one length, which a subclass names."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def chosen(self, rows: NDArray[Any] | slice) -> Self:
        names = [column.name for column in fields(self)]
        return replace(self, **{name: getattr(self, name)[rows] for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageKeys(Columns):
    """One row for each key of each message. `is_empty` marks empty keys, which only RocketMQ puts.
    `ipv6`: whether RocketMQ takes part of an address for the store time."""

    log_offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    hashes: NDArray[np.int64]
    times: NDArray[np.int64]
    queue_offsets: NDArray[np.int64]
    ipv6: NDArray[np.bool_]
    is_empty: NDArray[np.bool_]


def stretch_shift(log_bytes: int) -> int:
    """The shift for which a log of this length has few enough stretches of 2^shift bytes."""
    shift = SHIFT_MIN
    while log_bytes >> shift > STRETCHES_MAX:
        shift += 1
    return shift


def entry_hashes(item_hashes: NDArray[Any]) -> NDArray[np.int64]:
    """The hash of an entry, made the same for both rules by which brokers make it positive.

    The classic rule takes -h for a negative h, the later one h + 2^31; their sum is 2^31.
    """
    values = np.abs(item_hashes.astype(np.int64)) & (_SIGN - 1)
    smaller: NDArray[np.int64] = np.minimum(values, _SIGN - values)
    return smaller


def key_entry_hashes(hashes: Hashes) -> NDArray[np.int64]:
    """`entry_hashes` for hashes of keys."""
    return entry_hashes(hashes.astype(np.uint32).view(np.int32))


def prints(
    log_offsets: NDArray[np.int64], sizes: NDArray[np.int64], hashes: NDArray[np.int64]
) -> Hashes:
    """One number for each entry; topic and queue are columns of the sums."""
    what = mixed(((sizes << 32) | hashes).view(np.uint64))
    return mixed(what + log_offsets.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def wanted_sums(queue: QueueId, keys: MessageKeys, shift: int, *, are_empty: bool) -> Sums:
    """The sums of keys of messages of one queue, with one entry for each key; or of empty keys."""
    stretches = keys.log_offsets >> shift
    if (stretches[1:] < stretches[:-1]).any():
        order = np.argsort(stretches, kind="stable")
        stretches, keys = stretches[order], keys.chosen(order)
    starts = np.flatnonzero(np.append(True, stretches[1:] != stretches[:-1]))
    count, print_, total = _EMPTY_COLUMNS if are_empty else _COLUMNS
    sums = Sums.of(queue.topic_id, queue.queue_id, stretches[starts])
    sums[count] = np.diff(np.append(starts, len(stretches)))
    sums[print_] = np.add.reduceat(prints(keys.log_offsets, keys.sizes, keys.hashes), starts)
    sums[total] = np.add.reduceat(keys.times, starts)
    sums["first"] = np.minimum.reduceat(keys.queue_offsets, starts)
    sums["end"] = np.maximum.reduceat(keys.queue_offsets, starts) + 1
    return sums


def held_sums(items: NDArray[Any], times: NDArray[np.int64], *, shift: int) -> Sums:
    """The sums of items of an index file, local or uploaded."""
    if not len(items):
        return NO_SUMS
    log_offsets = items["log_offset"].astype(np.int64)
    topics, queues = items["topic_id"].astype(np.int64), items["queue_id"].astype(np.int64)
    sizes = items["message_bytes"].astype(np.int64)
    all_prints = prints(log_offsets, sizes, entry_hashes(items["key_hash"]))
    stretches = log_offsets >> shift
    order, starts = _by_stretch(topics, queues, stretches)
    firsts = order[starts]
    sums = Sums.of(topics[firsts], queues[firsts], stretches[firsts])
    sums["held"] = np.diff(np.append(starts, len(stretches)))
    sums["print"] = 0 - np.add.reduceat(all_prints[order], starts)
    sums["times"] = -np.add.reduceat(times[order], starts)
    return sums


def marked_sums(queue: QueueId, stretches: NDArray[np.int64], name: str) -> Sums:
    """The sums that count messages as `damaged` or `ipv6`: one for each of the stretches."""
    sums = Sums.of(queue.topic_id, queue.queue_id, stretches)
    sums[name] = np.ones(len(stretches), np.int64)
    return sums.consolidated()


def _by_stretch(
    topics: NDArray[np.int64], queues: NDArray[np.int64], stretches: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The order by topic, queue and stretch, and where each stretch begins in it."""
    low = stretches.min()
    spread = int(stretches.max() - low) + 1
    width = int(queues.max() - queues.min()) + 1
    depth = int(topics.max() - topics.min()) + 1
    count = spread * width * depth
    if count < INT64_MAX:  # all three fit in one number
        codes = (topics - topics.min()) * width + (queues - queues.min())
        codes = codes * spread + (stretches - low)
        if count <= _SHORT:
            codes = codes.astype(np.uint16)
        order = np.argsort(codes, kind="stable")
        columns = [codes[order]]
    else:
        order = np.lexsort((stretches, queues, topics))
        columns = [topics[order], queues[order], stretches[order]]
    new = np.zeros(len(order), np.bool_)
    new[0] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return order, np.flatnonzero(new)


class SumTable:
    """Combines sums as they come, in bounded memory."""

    def __init__(self) -> None:
        self._parts: list[Sums] = []
        self._rows = 0
        self._floor = 0

    def add(self, sums: Sums) -> None:
        if not len(sums):
            return
        self._parts.append(sums)
        self._rows += len(sums)
        if self._rows > self._floor + CONSOLIDATED_ROWS:
            self._parts = [self.table()]
            self._floor = self._rows = len(self._parts[0])

    def table(self) -> Sums:
        return Sums.together(self._parts).consolidated() if self._parts else NO_SUMS


def read_groups(
    starts: NDArray[np.int64], ends: NDArray[np.int64], torn: NDArray[np.bool_], limit: int
) -> Iterator[slice]:
    """Groups of rows that one read takes: at most `limit` bytes of them, or a single row.

    Row i has the bytes from `starts[i]` to `ends[i]`. If `torn[i]`, a new group begins with row
    i + 1.
    """
    apart = (np.flatnonzero(torn) + 1).tolist()
    for first, stop in zip([0, *apart], [*apart, len(starts)], strict=True):
        at = first
        while at < stop:
            fitting = np.searchsorted(ends[first:stop], starts[at] + limit, side="right")
            end = max(at + 1, first + int(fitting))
            yield slice(at, end)
            at = end
