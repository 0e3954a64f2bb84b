"""Reads messages of a place, a tier or a local store, in order or by key, and prints them.

A place of any size is read in bounded memory. The fields of a message and their order are a
promise: other tools rely on them.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, Protocol, Self

from tieredstore.access.reader import TieredReader
from tieredstore.cli.options import TableShown, chosen
from tieredstore.cli.output import (
    CommandError,
    ExitCode,
    Row,
    note,
    printable,
    write_row,
)
from tieredstore.cli.table import Column, Kind, Table
from tieredstore.cli.tier import OpenedTier, TierDamage, check_answers
from tieredstore.codec.message import decode_message
from tieredstore.codec.record import KEYS
from tieredstore.codec.selected import SelectedRecord
from tieredstore.local.reader import LocalReader
from tieredstore.model.amounts import counted
from tieredstore.model.errors import (
    BodyNotPlainError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentError,
    SegmentNotFoundError,
)
from tieredstore.model.messages import QueryResult, SelectedMessage
from tieredstore.model.values import INT32_MAX, INT64_MAX, Boundary, QueueKey

OnDamage = Callable[[QueueKey, int, SegmentError], None]
"""Gets the queue, how many messages could not be read, and why the first of them could not."""

# 2001-09-09: no message is as old. The previous release took offsets for --from too: they are less.
TIMES_FROM: Final = 1_000_000_000_000
# For all queues together:
_BYTES_HELD_MAX: Final = 64 * 1024 * 1024  # except for huge single messages
_UNITS_HELD_MAX: Final = 1 << 17
# For one queue:
_PAGE_BYTES_MIN: Final = 64 * 1024
_PAGE_COUNT_MAX: Final = 4096
_UNITS_READ_MIN: Final = 16


class QueuedMessage(NamedTuple):
    """A message, and the queue that refers to it."""

    key: QueueKey
    message: SelectedMessage


class Place(Protocol):
    """An open tier or local store. What is wrong with it is raised at the end."""

    @property
    def reader(self) -> TieredReader | LocalReader: ...

    def keys(self, topic: str | None, queue_id: int | None = None) -> list[QueueKey]:
        """The named queues, or all; an error if a named one does not exist."""
        ...

    def messages(
        self, keys: list[QueueKey], begin: int, count_max: int | None
    ) -> Iterator[QueuedMessage]:
        """The sound messages of these queues in the order in which they were stored."""
        ...

    def check_queues(self, keys: Iterable[QueueKey]) -> None:
        """Check what these queues have lost."""
        ...

    def raise_damage(self) -> None:
        """Raise what was found wrong so far."""
        ...

    def note_reach(self, found: QueryResult, topic: str) -> None:
        """Print a note if the index may lack messages."""
        ...

    def lack_of(self, found: QueryResult) -> CommandError | None:
        """The error to raise if an answer may lack messages because of damage."""
        ...


def print_messages(
    place: Place,
    printer: MessagePrinter,
    topic: str | None,
    queue_id: int | None,
    *,
    begin: int,
    count: int | None,
) -> None:
    keys = place.keys(topic, queue_id)
    count = None if count is None else min(count, INT64_MAX)  # `islice` takes no more
    with printer:
        for key, message in islice(place.messages(keys, begin, count), count):
            printer.write(key, message)
    place.check_queues(keys)  # messages may be missing after the last one shown
    place.raise_damage()
    printer.raise_not_plain()


def print_found(
    place: Place,
    printer: MessagePrinter,
    topic: str,
    key: str,
    *,
    count_max: int,
    begin: int | None,
    end: int | None,
) -> None:
    found = place.reader.query_message(
        topic,
        key,
        count_max=count_max + 1,  # to know whether there are more
        begin=0 if begin is None else begin,
        end=INT64_MAX if end is None else end,
    )
    if not found.messages:
        place.keys(topic)
    place.note_reach(found, topic)
    with printer:
        for message in found.messages[:count_max]:
            printer.write(None, message)
    lack = place.lack_of(found)
    if len(found.messages) > count_max:
        note(f"there are more than {count_max}: --max shows them")
    if lack is not None:
        raise lack


def print_offset(
    place: Place, topic: str, queue_id: int, time: int, *, upper: bool, json: bool
) -> None:
    keys = place.keys(topic, queue_id)
    boundary = Boundary.UPPER if upper else Boundary.LOWER
    found = place.reader.offset_by_time(topic, queue_id, time, boundary)
    place.check_queues(keys)
    if found is None:
        raise CommandError(
            f"nothing of {printable(topic)}/{queue_id} was tiered yet: it has no offsets",
            ExitCode.NOT_THERE,
        )
    row = {"topic": topic, "queue_id": queue_id, "timestamp": time, "boundary": boundary.value}
    write_row({**row, "queue_offset": found}, str(found), json=json)
    place.raise_damage()


class TierPlace:
    """A tier. Its messages since `since` come by store time, then by queue and offset."""

    def __init__(self, tier: OpenedTier, *, since: int | None = None) -> None:
        self.reader = tier.reader
        self._tier = tier
        self._since = since
        self._damage = TierDamage()

    def keys(self, topic: str | None, queue_id: int | None = None) -> list[QueueKey]:
        return self._tier.keys(topic, queue_id)

    def messages(
        self, keys: list[QueueKey], begin: int, count_max: int | None
    ) -> Iterator[QueuedMessage]:
        return walk_tier(
            self.reader,
            keys,
            begin=begin,
            since=self._since,
            count_max=count_max,
            checks_bodies=self._tier.config.checks_bulk_reads,
            on_damage=self._damage.add_messages,
        )

    def check_queues(self, keys: Iterable[QueueKey]) -> None:
        for key in keys:
            self._damage.add_queue(self._tier, key, self._tier.beginning(key)[1])

    def raise_damage(self) -> None:
        self._damage.raise_error()

    def note_reach(self, found: QueryResult, topic: str) -> None:
        if found.messages and found.lags:
            reached = _not_reached(self.reader, self.keys(topic))
            note(f"more messages may have the key: the uploaded index {reached}")
        elif found.complete and not found.messages:
            note("the uploaded index has no such message")
        elif found.lags:
            reached = _not_reached(self.reader, self.keys(topic))
            note(f"the uploaded index has no such message, and {reached}")

    def lack_of(self, found: QueryResult) -> CommandError | None:
        if found.complete or found.lags:
            return None
        check_answers(self._tier.config, self._tier.provider)
        text = "a message or an index file could not be read: more may have the key"
        return CommandError(text, ExitCode.DAMAGE)


class LocalPlace:
    """A local store. Its messages come in the order of the log.

    A crash may leave a queue ahead of the log. Its units after the last sound record were never
    acknowledged as durable, and a recovery cuts them, so they are not damage. Damaged records are
    only counted, as there may be many.
    """

    def __init__(self, reader: LocalReader) -> None:
        self.reader = reader
        self._count = 0
        self._torn_count = 0
        self._first: SegmentCorruptError | None = None

    def keys(self, topic: str | None, queue_id: int | None = None) -> list[QueueKey]:
        return chosen(list(self.reader.queues()), topic, queue_id)

    def messages(
        self, keys: list[QueueKey], begin: int, count_max: int | None
    ) -> Iterator[QueuedMessage]:
        """From the queue offset `begin` on; expired messages are skipped."""
        step = max(_UNITS_READ_MIN, _UNITS_HELD_MAX // max(1, len(keys)))
        log = self.reader.log
        rows = heapq.merge(*(_units(self.reader, key, begin, step) for key in keys))
        for log_offset, key, queue_offset, size, code in rows:
            try:
                record = log.message_bytes(log_offset, size)
            except SegmentCorruptError as error:
                self._add_damage(log_offset, error)
                continue
            if record is None:
                continue
            message = SelectedRecord(
                queue_offset=queue_offset, log_offset=log_offset, tags_code=code, record=record
            )
            yield QueuedMessage(key, message)

    def _add_damage(self, log_offset: int, error: SegmentCorruptError) -> None:
        if log_offset >= self.reader.log_facts().log_end:
            self._torn_count += 1
        else:
            self._count += 1
            self._first = self._first or error

    def check_queues(self, keys: Iterable[QueueKey]) -> None:
        """Does nothing: reading the records shows damage."""

    def raise_damage(self) -> None:
        if self._torn_count:
            torn = counted(self._torn_count, "message")
            note(f"not shown: {torn} at the end of the log, torn by a crash")
        if self._count:
            raise CommandError(
                f"not shown: {counted(self._count, 'damaged message')}, the first: {self._first}; "
                "restore the file from a replica",
                ExitCode.DAMAGE,
            )

    def note_reach(self, found: QueryResult, topic: str) -> None:
        """Prints nothing: the index holds every message that is not torn."""

    def lack_of(self, found: QueryResult) -> CommandError | None:
        if found.complete:
            return None
        text = "a damaged message or index file was passed over: more may have the key"
        return CommandError(text, ExitCode.DAMAGE)


def walk_tier(
    reader: TieredReader,
    keys: Sequence[QueueKey],
    *,
    begin: int = 0,
    since: int | None = None,
    count_max: int | None = None,
    checks_bodies: bool = True,
    on_damage: OnDamage,
) -> Iterator[QueuedMessage]:
    """All sound messages of these queues by store time, then queue and offset.

    They begin at the offset `begin` of each queue or, with `since`, at this store time. With
    `checks_bodies` each body is compared with its checksum. If a clock was set back, a queue keeps
    its own order. At most `count_max` messages are read at a time.
    """
    if count_max == 0:
        return iter(())
    queues = [
        _QueueWalk(
            reader=reader,
            key=key,
            page_count=min(_PAGE_COUNT_MAX, count_max or _PAGE_COUNT_MAX),
            page_bytes=max(_PAGE_BYTES_MIN, _BYTES_HELD_MAX // len(keys)),
            checks_bodies=checks_bodies,
            on_damage=on_damage,
        ).run(begin, since)
        for key in keys
    ]
    by_time = heapq.merge(*queues, key=lambda stored: (stored[0], stored[1].key))
    return (message for _, message in by_time)


@dataclass(slots=True, kw_only=True)
class _QueueWalk:
    """Reads one queue, page by page."""

    reader: TieredReader
    key: QueueKey
    page_count: int
    page_bytes: int
    checks_bodies: bool
    on_damage: OnDamage
    end: int = 0

    def run(self, begin: int, since: int | None) -> Iterator[tuple[int, QueuedMessage]]:
        """Each message with its store time."""
        offset, earliest = (begin, -1) if since is None else self._first(since)
        self.end = self.reader.max_offset(*self.key) or 0
        while offset < self.end:
            try:
                page = self.reader.get_message(
                    *self.key, offset, count_max=self.page_count, bytes_max=self.page_bytes
                )
            except SegmentError as error:
                offset = self._behind_damage(offset, error)
                continue
            for message in page.messages:
                if message.queue_offset < self.end:
                    yield from self._whole(message, earliest)
            if page.next_offset <= offset:
                return  # the queue was destroyed
            offset = page.next_offset

    def _first(self, since: int) -> tuple[int, int]:
        """The offset to begin at, and the earliest store time that is wanted."""
        try:
            found = self.reader.offset_by_time(*self.key, since)
        except (SegmentError, OffsetOutOfRangeError):
            return 0, since  # the search met damage: read all messages instead
        return found or 0, -1

    def _whole(
        self, message: SelectedMessage, earliest: int
    ) -> Iterator[tuple[int, QueuedMessage]]:
        place = f"{self.key.topic}/{self.key.queue_id}/{message.queue_offset}"
        try:
            decoded = decode_message(message.record, path=place, check_crc=self.checks_bodies)
        except SegmentCorruptError as error:
            self.on_damage(self.key, 1, error)
            return
        if decoded.store_timestamp >= earliest:
            yield decoded.store_timestamp, QueuedMessage(self.key, message)

    def _behind_damage(self, offset: int, error: SegmentError) -> int:
        """Where to go on after a message that cannot be read."""
        if _is_gone(error):
            self.reader.refresh()  # it may have expired since the page was asked for
            minimum = self._minimum()
            if minimum > offset:
                return minimum
            behind = self._behind_hole(offset, error)
        else:
            behind = offset + 1
        self.on_damage(self.key, behind - offset, error)
        return behind

    def _minimum(self) -> int:
        """The oldest offset; the queue's end if it was destroyed, 0 if its begin is damaged."""
        try:
            minimum = self.reader.min_offset(*self.key)
        except SegmentError:
            return 0
        return self.end if minimum is None else minimum

    def _behind_hole(self, offset: int, error: SegmentError) -> int:
        """The first message that is not in the missing part of the same segment.

        That part is in one piece, and messages lie in the order of their offsets. So a binary
        search is enough: there may be a million messages to skip.
        """
        step, low, high = 1, offset, offset + 1
        while high < self.end and self._is_in_hole(high, error):
            low, step = high, step * 2
            high += step
        high = min(high, self.end)
        while high - low > 1:
            middle = (low + high) // 2
            if self._is_in_hole(middle, error):
                low = middle
            else:
                high = middle
        return high

    def _is_in_hole(self, offset: int, error: SegmentError) -> bool:
        try:
            self.reader.get_message(*self.key, offset, count_max=1)
        except SegmentError as found:
            return _is_gone(found) and found.path == error.path
        return False


def _is_gone(error: SegmentError) -> bool:
    """Whether bytes are missing, not merely wrong."""
    gone = SegmentNotFoundError, OffsetOutOfRangeError
    return isinstance(error, gone) or isinstance(error.__cause__, gone)


class MessagePrinter:
    """Prints messages one after another, each on one line if it fits."""

    def __init__(
        self, shown: TableShown, *, body: bool, plain: bool = False, log_offsets: bool = False
    ) -> None:
        self._body = body
        self._plain = plain
        columns = [
            Column("log offset", "log_offset", Kind.NUMBER),
            Column("topic/queue/offset", _place),
            Column("stored", "store_timestamp", Kind.TIME),
            Column("size", "size", Kind.SIZE),
            Column("tags", "tags"),
            Column("keys", _keys),
            Column("body", _shown_body, Kind.DETAIL),
        ]
        self._table = Table(columns[0 if log_offsets else 1 : None if body or plain else -1], shown)
        self._not_plain = ""  # the first of them
        self._not_plain_count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._table.end()

    def write(self, key: QueueKey | None, message: SelectedMessage) -> None:
        row = _row(message, key=key, body=self._body, plain=self._plain)
        problem = row.get("body_problem")
        if problem is not None:
            self._not_plain_count += 1
            self._not_plain = self._not_plain or f"{_place(row)}: {problem}"
        self._table.write(row)

    def raise_not_plain(self) -> None:
        """Called at the end: raise if bodies could not be decompressed."""
        if self._not_plain_count:
            raise CommandError(
                f"{counted(self._not_plain_count, 'body')} could not be made plain, the first of"
                f" {printable(self._not_plain)}; the messages themselves are sound",
                ExitCode.DAMAGE,
            )


def _row(
    selected: SelectedMessage,
    *,
    key: QueueKey | None = None,
    body: bool = False,
    plain: bool = False,
) -> Row:
    """A message as an object. `key` is the queue that refers to it; by default its own.

    `keys` is the property unchanged, with its blanks. It is null if the message has no such
    property, but empty if it has no properties at all: so RocketMQ passes it to its index.
    `body_sha256` and `body` are of the body as it is stored, which may be compressed. `body_plain`
    is the decompressed body; if that fails, it is null and `body_problem` says why.
    """
    record = selected.record
    message = decode_message(record, check_crc=False)
    topic, queue_id = key or (message.topic, message.queue_id)
    row: Row = {
        "topic": topic,
        "queue_id": queue_id,
        "queue_offset": selected.queue_offset,
        "log_offset": selected.log_offset,
        "size": len(record),
        "store_timestamp": message.store_timestamp,
        "born_timestamp": message.born_timestamp,
        "tags_code": selected.tags_code,
        "tags": message.tags,
        "keys": message.properties.get(KEYS, None if message.property_bytes else ""),
        "unique_key": message.unique_key,
        "properties": dict(message.properties),
        "sha256": hashlib.sha256(record).hexdigest(),
        "body_sha256": hashlib.sha256(message.body).hexdigest(),
    }
    if body:
        row["body"] = base64.b64encode(message.body).decode("ascii")
    if plain:
        try:
            row["body_plain"] = base64.b64encode(message.body_decompressed()).decode("ascii")
        except BodyNotPlainError as error:
            row |= {"body_plain": None, "body_problem": str(error)}
    return row


def _place(row: Row) -> str:
    return f"{row['topic']}/{row['queue_id']}/{row['queue_offset']}"


def _keys(row: Row) -> str:
    return " ".join(filter(None, (row["unique_key"], row["keys"])))


def _shown_body(row: Row) -> str:
    """A body for people, from base64; bytes that are not UTF-8 are shown as numbers."""
    if row.get("body_problem") is not None:
        return f"({row['body_problem']})"
    text = row["body_plain"] if "body_plain" in row else row["body"]
    return base64.b64decode(text).decode("utf-8", "backslashreplace")


def _not_reached(reader: TieredReader, keys: Iterable[QueueKey]) -> str:
    """Says which queue the index does not cover to its end, and what helps."""
    for key in keys:
        reach = reader.indexed_offset(*key)
        end = reader.max_offset(*key) or 0
        lags = reach is not None and reach < end
        if lags and any(row.size for row in reader.segments(*key)):  # else all of it has expired
            return (
                f"does not reach the end: of {printable(key.topic)}/{key.queue_id} it has "
                f"the offsets below {reach} of {end}; a broker uploads the rest once a day, or "
                "when a file is full; without a broker, `offload --seal` does"
            )
    return "does not reach the end"


def _units(
    reader: LocalReader, key: QueueKey, begin: int, step: int
) -> Iterator[tuple[int, QueueKey, int, int, int]]:
    queue = reader.queue(*key)
    if queue is None:
        return
    offset, end = max(begin, queue.min_offset), queue.max_offset
    while offset < end:
        units = queue.units(offset, min(step, end - offset))
        rows = zip(
            units.log_offsets.tolist(),
            units.message_bytes.tolist(),
            units.tags_codes.tolist(),
            strict=True,
        )
        for number, (log_offset, size, code) in enumerate(rows, start=offset):
            if size != INT32_MAX:  # else the unit is only a filler
                yield log_offset, key, number, size, code
        offset += len(units)
