"""What a tier costs in thirty days: the requests of a broker's log in an object store, estimated
from a load and the settings, and the bytes that are kept.

    round      one entry for all queues: PUT, HEAD; more PUTs if it is large
    merge      some rounds become an object, some of these another one, level by level
    seal       a rolled segment becomes an object of its own
    state      all entries so far in one object
    index      a file of keys, full or a day old
    expiry     an entry; the objects that it releases are deleted later
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

from tieredstore.access.upkeep import EXPIRED_SIDE_BY_SIDE, SEALING_MS
from tieredstore.access.wiring import round_sizes_of
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.codec.tiered_index import COMPACTED_ITEM_BYTES, SLOT_BYTES
from tieredstore.driver.object_requests import PriceTable
from tieredstore.driver.provider import RoundSizes
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError

MONTH_SECONDS: Final = 30 * 24 * 3600
GB: Final = 1_000_000_000
STORAGE_DOLLARS: Final = 0.023  # a GB-month, S3's list price

NUMBER_MAX: Final = 1e15  # larger numbers are refused as no load, and so are inf and nan
_RATE_MIN: Final = 1e-9  # a message in thirty years; less cannot be divided again and again
_HOUR: Final = 3600.0
_READ_BYTES: Final = 8 * 1024 * 1024  # of one range read
_EXPIRY_GETS: Final = 5  # the record after the segment, and two units, once or twice


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The average load of a tier, over all of its queues."""

    queue_count: int
    messages_per_second: float
    message_bytes: float
    keys_per_message: float = 2.0
    read_bytes_per_second: float = 0.0
    """Only reads that neither the local store nor a cache serves."""
    reserve_hours: float | None = None
    """None: those of the settings."""
    stored_bytes: float | None = None
    """None: computed from the rates and the reserve hours."""
    seconds_covered: float | None = None
    """The time over which the rates were measured; None: they were given."""

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if value is not None and not 0 <= value <= NUMBER_MAX:
                raise InvalidConfigError(f"{spec.name}: want 0 to {NUMBER_MAX:.0e}, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """One kind of request, or the bytes: `amount` is a count, or GB-months."""

    what: str
    operation: str
    amount: float
    dollars: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyCost:
    lines: tuple[CostLine, ...]

    @property
    def dollars(self) -> float:
        return sum(line.dollars for line in self.lines)


def monthly_cost(
    load: Load, config: StoreConfig, *, storage_dollars: float = STORAGE_DOLLARS
) -> MonthlyCost:
    """The cost of thirty days of this load with these settings.

    Raises InvalidConfigError for an invalid price.
    """
    if not 0 <= storage_dollars <= NUMBER_MAX:
        raise InvalidConfigError(f"storage_dollars: {storage_dollars} is no price")
    prices = PriceTable.parse(config.request_prices)
    log = _Log(load, config, round_sizes_of(config))
    lines = [
        CostLine(
            what=what,
            operation=operation,
            amount=per_second * MONTH_SECONDS,
            dollars=per_second * MONTH_SECONDS * prices.of(operation) / 1000,
        )
        for what, operation, per_second in log.requests()
    ]
    stored = _stored_bytes(load, config) / GB
    lines.append(
        CostLine(
            what="bytes kept", operation="store", amount=stored, dollars=stored * storage_dollars
        )
    )
    return MonthlyCost(lines=tuple(lines))


def rounds_per_second(load: Load, config: StoreConfig) -> float:
    """How many rounds a load makes per second.

    A round takes the waiting messages of all queues, and is made when one queue is due because its
    batch is old or full. Without messages there is none.

    The age of batches is checked every `dispatch_interval_ms`, first right after the last round. So
    a batch that waits 30 seconds, with checks every 20, is committed after 40; later if the next
    message of any queue comes late.
    """
    if not load.queue_count or load.messages_per_second < _RATE_MIN:
        return 0.0
    of_queue = load.messages_per_second / load.queue_count
    bytes_per_second = load.messages_per_second * load.message_bytes
    age_ms = config.group_commit_timeout_ms if config.group_commit_enabled else 0
    looks = 1 + (age_ms + 1000 / load.messages_per_second) // config.dispatch_interval_ms
    due = max(
        1000 / (looks * config.dispatch_interval_ms),
        of_queue / config.group_commit_count,
        of_queue * load.message_bytes / config.group_commit_bytes,
        bytes_per_second / config.dispatch_buffer_bytes,
    )
    return min(load.messages_per_second, due)


class _Level(NamedTuple):
    """Merges of one level in a second, and the requests of each."""

    merges: float
    gets: float
    puts: float


class _Left(NamedTuple):
    """How many segments all queues roll in a second, and the size and age of one."""

    many: float
    size: float
    age: float


@dataclass(frozen=True)
class _Log:
    """The requests of a broker's log under this load, in a second."""

    load: Load
    config: StoreConfig
    sizes: RoundSizes

    def requests(self) -> Iterator[tuple[str, str, float]]:
        """The purpose of each kind of request, its operation, and how many there are a second."""
        levels, left = self.levels, self.left_behind
        files, file_bytes = self._index_files()
        merges = sum(level.merges for level in levels)
        read, merged = (sum(each.merges * each[at] for each in levels) for at in (1, 2))
        seals = sum(each.many for each in left)
        sealing = sum(each.many * self._gets(each) for each in left)
        sealed = sum(each.many * self._puts(each.size) for each in left)
        expired = seals + files if self.config.expiry_enabled else 0.0  # as many as are added
        # Entries of an index file: its row, the object, and the row again.
        said = min(seals, 1000 / SEALING_MS)  # one entry for all segments of a sealing round
        dropped = expired / EXPIRED_SIDE_BY_SIDE + 1000 / self.config.expiry_interval_ms
        entries = self.rounds + merges + said + 3 * files + min(expired, dropped)
        states = entries / self.sizes.state_every
        yield "rounds of all queues", "put", self.rounds
        yield "bytes of large rounds", "put", self.rounds * self._objects_of_a_round
        yield "rounds read to be merged", "get", read
        yield "merged bytes", "put", merged
        yield "segments read to be sealed", "get", sealing
        yield "sealed segments", "put", sealed
        yield "where queues begin when segments expire", "get", expired * _EXPIRY_GETS
        yield "index files", "put", files * self._puts(file_bytes)
        yield "states", "put", states
        yield "entries of merges, seals, index files and expiry", "put", entries - self.rounds
        yield "looks for a newer writer, one an entry", "head", entries
        if self.load.read_bytes_per_second:
            yield "range reads", "get", self.load.read_bytes_per_second / _READ_BYTES
        yield "old states, merged and expired objects deleted", "delete", states + self._releases()

    @cached_property
    def rounds(self) -> float:
        return rounds_per_second(self.load, self.config)

    @cached_property
    def bytes_per_second(self) -> float:
        return self.load.messages_per_second * (self.load.message_bytes + UNIT_BYTES)

    @property
    def round_bytes(self) -> float:
        return self.bytes_per_second / self.rounds if self.rounds else 0.0

    @property
    def _objects_of_a_round(self) -> int:
        """The objects of a round besides its entry."""
        if self.round_bytes <= self.sizes.inline_bytes:
            return 0
        return math.ceil(self.round_bytes / self.sizes.data_bytes)

    @property
    def _is_small(self) -> bool:
        """Whether rounds are merged; large rounds need not be."""
        return 0 < self.round_bytes < self.sizes.merged_bytes // 2

    @cached_property
    def levels(self) -> list[_Level]:
        """The levels of merges, the lowest first, without those that sealing comes before."""
        sizes, found = self.sizes, []
        rate, size = self.rounds, self.round_bytes  # of the objects to merge
        if self._is_small:
            together = min(sizes.rounds_merged, max(2, int(sizes.merged_bytes // max(size, 1))))
            waiting = min(sizes.rounds_merged, math.ceil(sizes.merged_bytes / max(size, 1)))
            forgotten = max(0, waiting - int(sizes.recent_bytes // max(size, 1)))
            gets = forgotten * max(1, math.ceil(size / sizes.range_bytes))
            rate, size = rate / together, size * together
            found.append(_Level(rate, gets, max(1, math.ceil(size / sizes.merged_bytes))))
        age = max((each.age for each in self.left_behind), default=0.0)
        segments = 2 * self.load.queue_count
        while rate and size < segments * sizes.range_bytes:
            rate, size = rate / sizes.chunks_merged, size * sizes.chunks_merged
            if 1 / rate >= age:
                break
            pieces = math.ceil(size / sizes.merged_bytes)
            # A piece has a range of each merged object, or long ranges of some if queues are few.
            ranges = min(sizes.chunks_merged, self.load.queue_count)
            gets = pieces * max(ranges, math.ceil(size / pieces / sizes.range_bytes))
            found.append(_Level(rate, max(gets, sizes.chunks_merged), pieces))
        return found

    @cached_property
    def left_behind(self) -> list[_Left]:
        """The rolled segments of logs and of queues: full, or old and large enough."""
        queues, config = self.load.queue_count, self.config
        if not self.rounds:
            return []
        logs = self.load.messages_per_second * self.load.message_bytes / queues
        units = self.load.messages_per_second * UNIT_BYTES / queues
        old = max(
            config.commit_log_rolling_hours * _HOUR,
            _time(config.commit_log_rolling_min_bytes, logs),
        )
        found = []
        for rate, time in (
            (logs, min(old, _time(config.commit_log_segment_bytes, logs))),
            (units, _time(config.consume_queue_segment_bytes, units)),
        ):
            if rate:
                age = max(time, 1 / self.rounds)
                found.append(_Left(queues / age, rate * age, age))
        return found

    def _gets(self, sealed: _Left) -> float:
        """How many reads sealing a segment takes. Its bytes lie in rounds that are not merged yet,
        in objects of each level that are not merged again yet, and in all of the highest level
        since the segment began.
        """
        rates = [self.rounds, *(level.merges for level in self.levels)]
        waiting = [(rate / above - 1) / 2 for rate, above in pairwise(rates)]
        limits = [rate * sealed.age for rate in rates]
        places = list(map(min, [*waiting, math.inf], limits))
        if self._is_small:
            places[0] = 0.0  # these are in memory
        return max(sum(places), sealed.size / self.sizes.range_bytes, 1.0)

    def _puts(self, size: float) -> float:
        """The requests that upload one object, in parts if it is large."""
        if size <= self.sizes.one_put_bytes:
            return 1.0
        return math.ceil(size / self.sizes.part_bytes) + 2

    def _index_files(self) -> tuple[float, float]:
        """Index files in a second, and the bytes of one."""
        config = self.config
        items = self.load.messages_per_second * self.load.keys_per_message
        if not config.index_enabled or not items:
            return 0.0, 0.0
        files = max(items / config.index_item_count, 1 / (config.index_rolling_hours * _HOUR))
        size = config.index_slot_count * SLOT_BYTES + items / files * COMPACTED_ITEM_BYTES
        return files, size

    def _releases(self) -> float:
        """Deletions in a second: dead objects are deleted together from time to time."""
        return 1000 / self.sizes.grace_ms if self.rounds else 0.0


def _time(size: float, rate: float) -> float:
    return size / rate if rate else math.inf


def _stored_bytes(load: Load, config: StoreConfig) -> float:
    if load.stored_bytes is not None:
        return load.stored_bytes
    hours = config.reserve_hours if load.reserve_hours is None else load.reserve_hours
    bytes_each = load.message_bytes + UNIT_BYTES
    if config.index_enabled:
        bytes_each += load.keys_per_message * COMPACTED_ITEM_BYTES
    return load.messages_per_second * bytes_each * hours * 3600
