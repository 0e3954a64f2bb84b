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
    """Requested bytes are not in the cache. Never leaves the access layer."""


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
    """Cached bytes come from the cache; others are read exactly as requested, and not kept.

    For single reads, which no other read continues.
    """

    def __init__(self, cache: ReadCache) -> None:
        self._cache = cache

    def read(self, file: FlatAppendFile, offset: int, length: int) -> bytes:
        data = self._cache.peek(file, offset, length)
        return file.read(offset, length) if data is None else data


class HotSource:
    """Reads only cached bytes, so no read waits; without a cache, every read is cold."""

    def __init__(self, cache: ReadCache | None) -> None:
        self._cache = cache

    def read(self, file: FlatAppendFile, offset: int, length: int) -> bytes:
        data = None if self._cache is None else self._cache.peek(file, offset, length)
        if data is None:
            raise ColdError
        return data


SCAN_STEP_MIN: Final = 128  # units of the first step; each further step is four times as long
NEAR_BYTES: Final = 16 * 1024  # two messages with more bytes between them are read separately
_EXTENSION_ADDRESS_MAX: Final = -(2**31) - 1  # addresses in Java's extended queues lie below


class Limits(NamedTuple):
    """How much one read may examine and return."""

    count_max: int  # messages, at least one
    bytes_max: int  # of records; a single larger message is allowed
    scan_count: int  # units to which a filter is applied
    read_bytes: int  # of the log, in one read
    checks_crc: bool = False


class Page(NamedTuple):
    """Messages, and the next offset after everything that was examined; nothing was examined if
    this is the offset where the page begins.
    """

    messages: Sequence[SelectedMessage]
    next_offset: int


def select(
    file: FlatMessageFile,
    offset: int,
    limits: Limits,
    message_filter: MessageFilter | None,
    source: ByteSource,
) -> Page:
    """Messages from this queue offset on, in order, without leaving out any that matches.

    A page ends before a gap, and before damage if it has examined a message by then. Damage right
    at the beginning raises SegmentCorruptError.
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
    """The rows of the units whose tags code the filter accepts."""
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

    Units are read first, and then only the records whose tags code matches.
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
        self._at = offset  # of the message that is being read

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
                raise  # otherwise the next read, which begins there, raises it
        return Page(self._messages, at)

    def _units(self, at: int, count: int) -> QueueUnits:
        """Units from `at` on, at least one or an error: fewer than `count` if later ones cannot be
        read.
        """
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
        """Take the matching messages of these units; return where the page ends, if it does."""
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
            if not len(run):  # the messages expired meanwhile
                return self._at
            while done < len(rows) and first + rows[done] < run.end_offset:
                stop = self._take_one(run, first + rows[done] - run.first_offset)
                if stop is not None:
                    return stop
                done += 1
        return None

    def _take_one(self, run: MessageRun, row: int) -> int | None:
        """Take a message of a run if it matches; return where the page ends, if it does."""
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

    | situation | status | next offset |
    | --- | --- | --- |
    | no such queue | NO_MATCHED_LOGIC_QUEUE | as asked |
    | nothing was ever committed | NO_MESSAGE_IN_QUEUE | as asked |
    | the offset is below the minimum | OFFSET_TOO_SMALL | the minimum |
    | the offset is at the end | OFFSET_OVERFLOW_ONE | as asked |
    | the offset is beyond the end | OFFSET_OVERFLOW_BADLY | the end |
    | the count is zero or less | NO_MATCHED_MESSAGE | as asked |
    | messages | FOUND | after the last one examined |
    | messages that the filter rejects | NO_MATCHED_MESSAGE | after the last one examined |
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
                # Messages that expire or are destroyed during a read are not damage.
                if self._files.get(key) is file and request.offset >= file.min_offset:
                    raise
                continue
            if result is not None:
                return result

    def _page_of(
        self, file: FlatMessageFile, request: ReadRequest, source: ByteSource
    ) -> GetResult | None:
        """The queue's answer; None if it has changed meanwhile and must be asked again."""
        offset, maximum = request.offset, file.commit_offset
        if maximum <= 0:
            return _nothing(GetStatus.NO_MESSAGE_IN_QUEUE, offset, 0, 0)
        # `min_offset` reads a record if the log no longer begins at its first byte.
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
            # After what was examined, as in RocketMQ's cached reads: otherwise a consumer with rare
            # messages would request the same page again and again, and never get further.
            return _nothing(GetStatus.NO_MATCHED_MESSAGE, next_offset, minimum, maximum)
        behind = file.queue.first_unit_from(offset)
        if behind == offset or offset < file.min_offset:
            return None  # the message existed, and has expired
        return _nothing(GetStatus.MESSAGE_WAS_REMOVING, behind, minimum, maximum)


def _nothing(status: GetStatus, next_offset: int, minimum: int, maximum: int) -> GetResult:
    return GetResult(status=status, next_offset=next_offset, min_offset=minimum, max_offset=maximum)
