"""One page of a queue: its status, its messages, and the next offset."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np

from tieredstore.access.read_cache import (
    COMMIT_LOG_AHEAD,
    CONSUME_QUEUE_AHEAD,
    ReadAhead,
    ReadCache,
)
from tieredstore.codec.queue_unit import UNIT_BYTES, QueueUnits, decode_units
from tieredstore.codec.selected import SelectedRecord
from tieredstore.driver.message_store import MessageFilter, ReadRequest
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.reading import (
    ByteSource,
    damaged_body,
    has_sound_body,
    read_messages,
    read_run,
)
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentNotFoundError,
    StoreClosedError,
)
from tieredstore.model.messages import GetResult, MessageRun, SelectedMessage
from tieredstore.model.values import GetStatus, SegmentType


class ColdError(Exception):
    """Bytes that are needed at once are not in the cache. Never leaves the access layer."""


class CachedSource:
    """Reads through the cache, and ahead of the request."""

    def __init__(self, cache: ReadCache, config: StoreConfig) -> None:
        self._cache = cache
        most = config.read_ahead_bytes
        self._log_ahead = ReadAhead(
            floor_bytes=min(COMMIT_LOG_AHEAD.floor_bytes, most), cap_bytes=most
        )

    def read(self, file: FlatAppendFile, offset: int, length: int) -> bytes:
        ahead = self._log_ahead if file.type is SegmentType.COMMIT_LOG else CONSUME_QUEUE_AHEAD
        return self._cache.read(file, offset, length, ahead=ahead)


class ExactSource:
    """Cached bytes come from the cache; others are read as requested, and not kept.

    For single reads, which no further read follows.
    """

    def __init__(self, cache: ReadCache) -> None:
        self._cache = cache

    def read(self, file: FlatAppendFile, offset: int, length: int) -> bytes:
        data = self._cache.peek(file, offset, length)
        return file.read(offset, length) if data is None else data


class HotSource:
    """Cached bytes and nothing else: no read waits here. Without a cache there are none."""

    def __init__(self, cache: ReadCache | None) -> None:
        self._cache = cache

    def read(self, file: FlatAppendFile, offset: int, length: int) -> bytes:
        data = None if self._cache is None else self._cache.peek(file, offset, length)
        if data is None:
            raise ColdError
        return data


SCAN_STEP_MIN: Final = 128  # units of the first look; each further one is four times as long
NEAR_BYTES: Final = 16 * 1024  # what lies between two messages and is read with them at most
_EXTENSION_ADDRESS_MAX: Final = -(2**31) - 1  # addresses in Java's extended queues lie below


class Limits(NamedTuple):
    """How much one read looks at and answers with."""

    count_max: int  # messages, at least one
    bytes_max: int  # of records, but for a single message that has more
    scan_count: int  # units that a filter is asked about
    read_bytes: int  # of the log that are read at once
    checks_crc: bool = False


class Page(NamedTuple):
    """Messages, and the next offset after everything that was examined; nothing was examined if
    that is the beginning."""

    messages: Sequence[SelectedMessage]
    next_offset: int


def select(
    file: FlatMessageFile,
    offset: int,
    limits: Limits,
    message_filter: MessageFilter | None,
    source: ByteSource,
) -> Page:
    """Messages from this queue offset on, in order, and none between them left out that matches.

    A page ends before a gap, and before damage if there is a message to give. Damage right at the
    beginning raises SegmentCorruptError.
    """
    if message_filter is not None:
        return _Scan(file, offset, limits, message_filter, source).page()
    messages = read_messages(
        file,
        offset,
        count_max=min(limits.count_max, limits.scan_count),
        bytes_max=limits.bytes_max,
        source=source,
        checks_bodies=limits.checks_crc,
    )
    return Page(messages, offset + len(messages))


def matching_rows(units: QueueUnits, message_filter: MessageFilter) -> list[int]:
    """The units whose tags code the filter takes."""
    codes: Collection[int] | None = getattr(message_filter, "tags_codes", None)
    tags_codes = units.tags_codes
    if codes is None:
        matches = message_filter.matches_tags_code
        return [row for row, code in enumerate(tags_codes.tolist()) if matches(code)]
    wanted = np.array([code & 0xFFFFFFFF for code in codes], np.uint64).astype(np.uint32)
    chosen = np.isin(tags_codes.astype(np.uint32), wanted)
    chosen |= tags_codes <= _EXTENSION_ADDRESS_MAX
    rows: list[int] = np.flatnonzero(chosen).tolist()
    return rows


class _Scan:
    """One scan of a queue for messages that a filter accepts.

    Units come first, and records are read only where a tags code matches.
    """

    def __init__(
        self,
        file: FlatMessageFile,
        offset: int,
        limits: Limits,
        message_filter: MessageFilter,
        source: ByteSource,
    ) -> None:
        self._file = file
        self._offset = offset
        self._limits = limits
        self._filter = message_filter
        self._source = source
        self._messages: list[SelectedMessage] = []
        self._bytes = 0
        self._at = offset  # what is being read

    def page(self) -> Page:
        at = self._offset
        end = at + min(self._limits.scan_count, self._file.queue.units_in_a_row(at))
        step = max(SCAN_STEP_MIN, 4 * self._limits.count_max)
        try:
            while at < end:
                units = self._units(at, min(step, end - at))
                stop = self._take(at, units)
                if stop is not None:
                    return Page(self._messages, stop)
                at += len(units)
                step *= 4
        except SegmentCorruptError:
            at = max(at, self._at)
            if at == self._offset:
                raise  # else the next read, from there, raises it
        return Page(self._messages, at)

    def _units(self, at: int, count: int) -> QueueUnits:
        """Those that can be read, one at least or an error: damage further on hides none."""
        queue = self._file.queue
        while True:
            try:
                data = self._source.read(queue, at * UNIT_BYTES, count * UNIT_BYTES)
                return decode_units(data, path=self._file.path)
            except (OffsetOutOfRangeError, SegmentNotFoundError) as error:
                if count == 1:
                    reason = f"the unit of message {at} is not there"
                    raise SegmentCorruptError(
                        self._file.path, reason, position=at * UNIT_BYTES
                    ) from error
                count //= 2

    def _take(self, first: int, units: QueueUnits) -> int | None:
        """Take what matches among these units; where the page ends, if it does."""
        rows = matching_rows(units, self._filter)
        places: list[int] = units.log_offsets.tolist()
        sizes: list[int] = units.message_bytes.tolist()
        done = 0
        while done < len(rows):
            last = done
            most = min(len(rows), done + self._limits.count_max - len(self._messages)) - 1
            while last < most:
                row, following = rows[last], rows[last + 1]
                if places[following] - places[row] - sizes[row] > NEAR_BYTES:
                    break
                last += 1
            self._at = first + rows[done]
            run = read_run(
                self._file,
                self._at,
                count_max=rows[last] - rows[done] + 1,
                bytes_max=self._limits.read_bytes,
                source=self._source,
            )
            if not len(run):  # it expired meanwhile
                return self._at
            while done < len(rows) and first + rows[done] < run.end_offset:
                stop = self._take_one(run, first + rows[done] - run.first_offset)
                if stop is not None:
                    return stop
                done += 1
        return None

    def _take_one(self, run: MessageRun, row: int) -> int | None:
        """Take a message of a run if it matches; where the page ends, if it does."""
        limits, self._at = self._limits, run.first_offset + row
        record = bytes(run.record(row))
        if not self._filter.matches_record(record):
            return None
        if self._messages and self._bytes + len(record) > limits.bytes_max:
            return self._at
        message = SelectedRecord(
            queue_offset=self._at,
            log_offset=int(run.log_offsets[row]),
            tags_code=int(run.tags_codes[row]),
            record=record,
        )
        if limits.checks_crc:
            check_body(self._file, message)
        self._messages.append(message)
        self._bytes += len(record)
        return self._at + 1 if len(self._messages) >= limits.count_max else None


def check_body(file: FlatMessageFile, message: SelectedMessage) -> None:
    """Raises SegmentCorruptError unless the body has the checksum that its record names."""
    if not has_sound_body(message.record):
        raise damaged_body(file, message.queue_offset, message.log_offset)


class QueuePages:
    """Answers reads by queue offset. The first row that applies counts:

    | what there is | status | next offset |
    | --- | --- | --- |
    | no such queue | NO_MATCHED_LOGIC_QUEUE | as asked |
    | nothing was ever committed | NO_MESSAGE_IN_QUEUE | as asked |
    | asked for below the minimum | OFFSET_TOO_SMALL | the minimum |
    | asked for at the end | OFFSET_OVERFLOW_ONE | as asked |
    | asked for beyond the end | OFFSET_OVERFLOW_BADLY | the end |
    | asked for no message | NO_MATCHED_MESSAGE | as asked |
    | messages | FOUND | behind the last one |
    | messages that the filter does not take | NO_MATCHED_MESSAGE | behind what was looked at |
    | a gap: messages were lost | MESSAGE_WAS_REMOVING | the end of the gap |
    """

    def __init__(self, files: FlatFileStore, config: StoreConfig) -> None:
        self._files = files
        self._config = config

    def get(self, request: ReadRequest, source: ByteSource) -> GetResult:
        key = request.key
        while True:
            file = self._files.get(key)
            if file is None:
                return _nothing(GetStatus.NO_MATCHED_LOGIC_QUEUE, request.offset, 0, 0)
            try:
                result = self._page_of(file, request, source)
            except (SegmentCorruptError, StoreClosedError):
                # What expires or is destroyed during a read is no damage.
                if self._files.get(key) is file and request.offset >= file.min_offset:
                    raise
                continue
            if result is not None:
                return result

    def _page_of(
        self, file: FlatMessageFile, request: ReadRequest, source: ByteSource
    ) -> GetResult | None:
        """What the queue answers; None if it has changed meanwhile and is to be asked again."""
        offset, maximum = request.offset, file.commit_offset
        if maximum <= 0:
            return _nothing(GetStatus.NO_MESSAGE_IN_QUEUE, offset, 0, 0)
        # `min_offset` reads a record where the log does not begin at its first byte.
        if isinstance(source, HotSource) and file.log.min_offset and not file.log.knows_first:
            raise ColdError
        minimum = file.min_offset
        if offset < minimum:
            return _nothing(GetStatus.OFFSET_TOO_SMALL, minimum, minimum, maximum)
        if offset == maximum:
            return _nothing(GetStatus.OFFSET_OVERFLOW_ONE, offset, minimum, maximum)
        if offset > maximum:
            return _nothing(GetStatus.OFFSET_OVERFLOW_BADLY, maximum, minimum, maximum)
        if request.count_max <= 0:
            return _nothing(GetStatus.NO_MATCHED_MESSAGE, offset, minimum, maximum)
        config = self._config
        limits = Limits(
            request.count_max,
            min(max(0, request.bytes_max), config.read_ahead_bytes),
            config.read_ahead_count,
            config.read_ahead_bytes,
            config.checks_pages,
        )
        messages, next_offset = select(file, offset, limits, request.message_filter, source)
        if messages:
            return GetResult(
                status=GetStatus.FOUND,
                next_offset=next_offset,
                min_offset=minimum,
                max_offset=maximum,
                messages=messages,
            )
        if next_offset > offset:
            # Behind what was looked at, as RocketMQ's cached reads have it: else a consumer whose
            # messages are rare would have the same page read again and again, and never go on.
            return _nothing(GetStatus.NO_MATCHED_MESSAGE, next_offset, minimum, maximum)
        behind = file.queue.first_unit_from(offset)
        if behind == offset or offset < file.min_offset:
            return None  # it was there, and has expired
        return _nothing(GetStatus.MESSAGE_WAS_REMOVING, behind, minimum, maximum)


def _nothing(status: GetStatus, next_offset: int, minimum: int, maximum: int) -> GetResult:
    return GetResult(status=status, next_offset=next_offset, min_offset=minimum, max_offset=maximum)
