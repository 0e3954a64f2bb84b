"""What a tier in an object store costs in a month: its requests and its bytes, estimated.

What lives here: `Load`, what goes through a tier; `monthly_cost`, arithmetic on it and the
settings; `load_of`, the load of a tier that is there. How requests come about is told in
docs/object-store-layout.md; nothing is asked of a store here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from tieredstore.access.reader import TieredReader
from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.driver.object_requests import PriceTable
from tieredstore.flat.segment_times import catalogue_times
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.values import SegmentType

MONTH_SECONDS: Final = 30 * 24 * 3600
GB: Final = 1_000_000_000
STORAGE_DOLLARS: Final = 0.023  # a GB-month, S3's list price

NUMBER_MAX: Final = 1e15  # more of anything is no load; nor is inf, or nan
_READ_BYTES: Final = 8 * 1024 * 1024  # of one range read
_UPLOAD_PART_BYTES: Final = 16 * 1024 * 1024
_PARTS_MAX: Final = 1_000  # writes of one open segment, then it is sealed
_INDEX_ITEM_BYTES: Final = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What goes through a tier, on average, over all of its queues."""

    queue_count: int
    messages_per_second: float
    message_bytes: float
    keys_per_message: float = 2.0
    read_bytes_per_second: float = 0.0
    """Of reads that neither the local store nor a cache serves."""
    reserve_hours: float | None = None
    """None: what the settings say."""
    stored_bytes: float | None = None
    """None: what the rates and the reserve hours come to."""
    seconds_covered: float | None = None
    """The rates are those of so long a time; None: they were given."""

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
    """Thirty days of this load with these settings. InvalidConfigError for no price."""
    if not 0 <= storage_dollars <= NUMBER_MAX:
        raise InvalidConfigError(f"storage_dollars: {storage_dollars} is no price")
    prices = PriceTable.parse(config.request_prices)
    lines = [
        CostLine(
            what=what,
            operation=operation,
            amount=per_second * MONTH_SECONDS,
            dollars=per_second * MONTH_SECONDS * prices.of(operation) / 1000,
        )
        for what, operation, per_second in _requests_per_second(load, config)
    ]
    stored = _stored_bytes(load, config) / GB
    lines.append(
        CostLine(
            what="bytes kept", operation="store", amount=stored, dollars=stored * storage_dollars
        )
    )
    return MonthlyCost(lines=tuple(lines))


def _requests_per_second(load: Load, config: StoreConfig) -> Iterator[tuple[str, str, float]]:
    commits = commits_per_second(load, config)
    index_bytes = load.messages_per_second * load.keys_per_message * _INDEX_ITEM_BYTES
    yield "commits, a log and a queue part each", "put", 2 * commits
    rounds = min(commits, 1000 / config.dispatch_interval_ms)  # one look at all queues each
    yield "looks at the writer's epoch", "head", min(2 * commits, 4 * rounds)
    sealed = list(_sealed_per_second(load, config, commits))
    segments = sum(each.segments for each in sealed)
    yield "segments read back to be sealed", "get", sum(each.gets for each in sealed)
    yield "sealed segments written", "put", sum(each.puts for each in sealed)
    files = 0.0
    if config.index_enabled and load.messages_per_second:
        files = max(index_bytes / (_INDEX_ITEM_BYTES * config.index_item_count), 1 / 86_400)
        yield "index files written", "put", index_bytes / _UPLOAD_PART_BYTES + 2 * files
    # As many are deleted in the end as are made: a note of it, a look, and two requests.
    yield "expired segments noted", "put", segments + files
    yield "looks at what is sealed, written or deleted", "head", 3 * segments + 2 * files
    if load.read_bytes_per_second:
        yield "range reads", "get", load.read_bytes_per_second / _READ_BYTES
    if config.publish_interval_ms:
        published = min(commits, 1000 / config.publish_interval_ms)
        for operation in ("list", "put", "head"):
            yield "catalogue published", operation, published
        yield "old catalogues deleted", "delete", published
    yield "parts and expired segments deleted", "delete", 4 * segments + 2 * files


def commits_per_second(load: Load, config: StoreConfig) -> float:
    """Of all queues. A queue commits when a batch is old or full, and has none without messages.

    Whether a batch is old is looked at every `dispatch_interval_ms`, first right after the last
    commit: so one that waits 30 seconds, with looks every 20, is committed after 40.
    """
    if not load.queue_count:
        return 0.0
    rate = load.messages_per_second / load.queue_count
    if not config.group_commit_enabled:
        due = 1000 / config.dispatch_interval_ms
    else:
        due = max(
            1000 / _age_when_due_ms(config),
            rate / config.group_commit_count,
            rate * load.message_bytes / config.group_commit_bytes,
        )
    return load.queue_count * min(rate, due)


def _age_when_due_ms(config: StoreConfig) -> int:
    looks = config.group_commit_timeout_ms // config.dispatch_interval_ms + 1
    return looks * config.dispatch_interval_ms


class _Sealed(NamedTuple):
    """What sealing takes in a second."""

    segments: float
    gets: float
    puts: float


def _sealed_per_second(load: Load, config: StoreConfig, commits: float) -> Iterator[_Sealed]:
    """Of the segments of logs, and of queues."""
    if not commits:
        return
    rate = load.messages_per_second
    for bytes_per_second, segment_bytes, hours in (
        (rate * load.message_bytes, config.commit_log_segment_bytes, True),
        (rate * UNIT_BYTES, config.consume_queue_segment_bytes, False),
    ):
        by_size = bytes_per_second / segment_bytes
        by_parts = commits / _PARTS_MAX
        old = load.queue_count / (config.commit_log_rolling_hours * 3600) if hours else 0.0
        # A young segment that is small is not rolled by age.
        is_large = bytes_per_second >= old * config.commit_log_rolling_min_bytes
        segments = max(by_size, by_parts, old if is_large else 0.0)
        if segments:
            puts = bytes_per_second / _UPLOAD_PART_BYTES + 2 * segments
            # Each part is read by itself unless one range has several: none do.
            yield _Sealed(segments, max(commits, bytes_per_second / _READ_BYTES), puts)


def _stored_bytes(load: Load, config: StoreConfig) -> float:
    if load.stored_bytes is not None:
        return load.stored_bytes
    hours = config.reserve_hours if load.reserve_hours is None else load.reserve_hours
    each = load.message_bytes + UNIT_BYTES
    if config.index_enabled:
        each += load.keys_per_message * _INDEX_ITEM_BYTES
    return load.messages_per_second * each * hours * 3600


def load_of(reader: TieredReader, now_ms: int) -> Load:
    """The load that made a tier what it is, by its catalogue: averages over the time it covers.

    Index files are not among its stored bytes. What is read is not known here.
    """
    rows = reader.segments()
    logs = [row for row in rows if row.type is SegmentType.COMMIT_LOG and row.size]
    message_count = sum(row.size for row in rows if row.type is SegmentType.CONSUME_QUEUE)
    message_count //= UNIT_BYTES
    log_bytes = sum(row.size for row in logs)
    seconds = _seconds_covered(logs, now_ms)
    return Load(
        queue_count=len({row.path for row in logs}),
        messages_per_second=message_count / seconds,
        message_bytes=log_bytes / message_count if message_count else 0.0,
        stored_bytes=float(sum(row.size for row in rows)),
        seconds_covered=None if math.isinf(seconds) else seconds,
    )


def _seconds_covered(logs: list[SegmentRecord], now_ms: int) -> float:
    times = [known for row in logs if (known := catalogue_times(row, now_ms)) is not None]
    if not times:
        return math.inf  # nobody knows how fast it came: only its bytes count
    milliseconds = max(end for _, end in times) - min(begin for begin, _ in times)
    return max(milliseconds / 1000, 1.0)
