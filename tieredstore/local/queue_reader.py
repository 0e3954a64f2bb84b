"""Reads by queue offset: which messages a consumer gets, and where it continues.

No unit is trusted. A record that does not match its unit is never served: the unit is rebuilt from
the log, or the read raises SegmentCorruptError.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.columns import ParsedRun, sound_count
from tieredstore.codec.queue_unit import (
    EXTENSION_ADDRESS_MAX,
    UNIT_BYTES,
    QueueUnit,
    QueueUnits,
    decode_units,
    unpack_units,
)
from tieredstore.codec.record import RECORD_BYTES_MIN
from tieredstore.codec.selected import SelectedRecord
from tieredstore.driver.message_store import MessageFilter, ReadRequest
from tieredstore.local.commit_log import CommitLog, read_records
from tieredstore.local.config import LocalConfig
from tieredstore.local.consume_queue import ConsumeQueue, matching_tags
from tieredstore.local.consume_queues import ConsumeQueues
from tieredstore.local.queue_page import PageRows, read_page
from tieredstore.local.unit_truth import UnitTruth
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentCorruptError
from tieredstore.model.messages import GetResult, LazyMessages, MessageRun, SelectedMessage
from tieredstore.model.values import INT32_MAX, GetStatus, QueueKey

SCAN_COUNT_MIN = 800  # a read scans this many units, or more if more messages are wanted
PULL_BYTES_MIN, PULL_BYTES_MAX = 100, 128 * 1024 * 1024
MEMORY_PERCENT = 40
FEW_ROWS_MAX = 32  # up to here reading one by one is faster than columns
_ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """The limits of one read; the memory limits shrink to a quarter for messages on disk.

    Messages at or above `memory_from` in the log are assumed to be in the page cache.
    """

    count_max: int
    bytes_max: int
    memory_count_max: int
    memory_bytes_max: int
    memory_from: int

    def is_full(self, count: int, size: int, more: int, log_offset: int) -> bool:
        """Whether `count` messages of `size` bytes leave no room for one of `more` bytes."""
        if count >= self.count_max or size + more > self.bytes_max:
            return True
        if log_offset >= self.memory_from:
            return count >= self.memory_count_max or size + more > self.memory_bytes_max
        return count >= self.memory_count_max // 4 or size + more > self.memory_bytes_max // 4

    def first_full(
        self, units: QueueUnits, start: int, stop: int, *, count: int, size: int
    ) -> int | None:
        """The first of the rows [start, stop) for which `is_full` is true; None if there is none.

        An empty batch has room for any message.
        """
        if start >= stop or not count:
            return None
        if stop - start == 1:
            more, log_offset = int(units.message_bytes[start]), int(units.log_offsets[start])
            return start if self.is_full(count, size, more, log_offset) else None
        if count >= self.count_max or count >= self.memory_count_max:
            return start
        on_disk = units.log_offsets[start:stop] < self.memory_from
        limits = np.where(on_disk, self.memory_bytes_max // 4, self.memory_bytes_max)
        limits = np.minimum(limits, self.bytes_max) - size
        full = units.message_bytes[start:stop] > limits
        if count >= self.memory_count_max // 4:
            full |= on_disk
        first = int(full.argmax())
        return start + first if full[first] else None

    def room(self, units: QueueUnits, taken: NDArray[np.bool_] | None) -> int:
        """How many units come before the first for which `is_full` is true, if the batch consists
        of the `taken` ones, or of all."""
        sizes = units.message_bytes.astype(np.int64)
        held = sizes if taken is None else np.where(taken, sizes, 0)
        counts = np.arange(len(units)) if taken is None else taken.cumsum() - taken
        on_disk = units.log_offsets < self.memory_from
        count_max = np.where(on_disk, self.memory_count_max // 4, self.memory_count_max)
        bytes_max = np.where(on_disk, self.memory_bytes_max // 4, self.memory_bytes_max)
        full = counts >= np.minimum(count_max, self.count_max)
        full |= held.cumsum() - held + sizes > np.minimum(bytes_max, self.bytes_max)
        return sound_count(~full | (counts == 0))


_Answer = tuple[GetStatus, int, Sequence[SelectedMessage]]


class QueueReader:
    """Answers reads from one log and its queues. Any thread may read at any time."""

    def __init__(
        self, config: LocalConfig, commit_log: CommitLog, queues: ConsumeQueues, truth: UnitTruth
    ) -> None:
        self._config = config
        self._log = commit_log
        self._queues = queues
        self._truth = truth

    def get(self, request: ReadRequest) -> GetResult:
        while True:
            queue = self._queues.queue(*request.key)
            try:
                return self._get(request, queue)
            except OffsetOutOfRangeError:
                # If files or the queue were deleted meanwhile, the next try will see it.
                if queue is self._queues.queue(*request.key) and holds(queue, request.offset):
                    raise

    def _get(self, request: ReadRequest, queue: ConsumeQueue | None) -> GetResult:
        if queue is None or queue.max_offset == 0:
            return _nothing(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        minimum, maximum, offset = queue.min_offset, queue.max_offset, request.offset
        if offset < minimum:
            return _nothing(GetStatus.OFFSET_TOO_SMALL, minimum, minimum, maximum)
        if offset == maximum:
            return _nothing(GetStatus.OFFSET_OVERFLOW_ONE, offset, minimum, maximum)
        if offset > maximum:
            return _nothing(GetStatus.OFFSET_OVERFLOW_BADLY, maximum, minimum, maximum)
        if request.count_max <= 0:
            return _nothing(GetStatus.NO_MATCHED_MESSAGE, offset, minimum, maximum)
        status, next_offset, found = self._scan(request, queue)
        return GetResult(
            status=GetStatus.FOUND if found else status,
            next_offset=next_offset,
            min_offset=minimum,
            max_offset=maximum,
            messages=found,
        )

    def _scan(self, request: ReadRequest, queue: ConsumeQueue) -> _Answer:
        """Scan units up to the end of their file until the batch is full.

        If a filter names its tags codes, only matching units are examined and the filter is not
        asked about others. The batch must still end at the same place, so the units in between
        count too.

        The batch also ends before the first record that is gone or damaged, unless that is the
        first unit: the next read starts there and reports it.
        """
        limits = self._limits(request.count_max, request.bytes_max)
        page = self._page(request, queue, limits)
        if page is not None:
            return page
        key, offset, message_filter = request.key, request.offset, request.message_filter
        units = queue.units(offset, self._looked_at(request))
        if not len(units):  # the queue was emptied just now
            raise OffsetOutOfRangeError(
                queue.directory, offset=offset, minimum=queue.min_offset, maximum=queue.max_offset
            )
        chosen = _chosen(units, message_filter)
        asked = message_filter if chosen is None else None
        found: list[SelectedMessage] = []
        size, looked = 0, 0
        for row, log_offset, length, code in _rows(units, chosen):
            if found:
                full = limits.first_full(units, looked, row + 1, count=len(found), size=size)
                if full is not None:
                    return GetStatus.FOUND, offset + full, found
            looked = row + 1
            if asked is not None and not (
                code <= EXTENSION_ADDRESS_MAX or asked.matches_tags_code(code)
            ):
                continue
            unit = QueueUnit(log_offset, length, code)
            unit, record = self._record(key, queue, offset + row, unit, may_raise=not row)
            if record is None:
                if row:
                    return GetStatus.NO_MATCHED_MESSAGE, offset + row, found
                gone = self._gone_count(queue, offset, units)
                return GetStatus.MESSAGE_WAS_REMOVING, offset + gone, found
            if message_filter is not None and not message_filter.matches_record(record):
                continue
            size += unit.message_bytes
            found.append(
                SelectedRecord(
                    queue_offset=offset + row,
                    log_offset=unit.log_offset,
                    tags_code=unit.tags_code,
                    record=record,
                )
            )
        full = limits.first_full(units, looked, len(units), count=len(found), size=size)
        end = len(units) if full is None else full
        return GetStatus.NO_MATCHED_MESSAGE, offset + end, found

    def _page(
        self, request: ReadRequest, queue: ConsumeQueue, limits: ReadLimits
    ) -> _Answer | None:
        """The answer of `_scan` for sound records, which are checked together. None if a record is
        not sound, if the filter rejects one, or if the filter must be asked about tags codes."""
        wanted = request.message_filter
        if wanted is None:
            rows, end = self._rows(request, queue, limits)
        else:
            codes = getattr(wanted, "tags_codes", None)
            if codes is None:
                return None
            rows, end = self._tagged_rows(request, queue, limits, codes)
        page = read_page(self._log, request.key, rows) if rows.sizes else None
        if page is None:
            return None
        if wanted is not None and not all(map(wanted.matches_record, page.split())):
            return None
        return GetStatus.FOUND, request.offset + end, LazyMessages(page)

    def _rows(
        self, request: ReadRequest, queue: ConsumeQueue, limits: ReadLimits
    ) -> tuple[PageRows, int]:
        """The rows of the batch, and after how many units it ends."""
        offset = request.offset
        count = min(self._looked_at(request), limits.count_max, limits.memory_count_max)
        data = queue.unit_bytes(offset, count)
        log_offsets, sizes, tags_codes = unpack_units(data)
        end = len(sizes)
        bytes_max = min(limits.bytes_max, limits.memory_bytes_max)
        if sum(sizes) > bytes_max or min(log_offsets, default=0) < limits.memory_from:
            end = limits.room(decode_units(data), None)
        offsets = range(offset, offset + end)
        return PageRows(offsets, log_offsets[:end], sizes[:end], tags_codes[:end]), end

    def _tagged_rows(
        self,
        request: ReadRequest,
        queue: ConsumeQueue,
        limits: ReadLimits,
        codes: Collection[int],
    ) -> tuple[PageRows, int]:
        """`_rows` for a filter that accepts all messages with these tags codes."""
        units = queue.units(request.offset, self._looked_at(request))
        taken = matching_tags(units, codes)
        end = limits.room(units, taken)
        rows = np.flatnonzero(taken[:end])
        chosen = PageRows(
            queue_offsets=tuple((rows + request.offset).tolist()),
            log_offsets=tuple(units.log_offsets[rows].tolist()),
            sizes=tuple(units.message_bytes[rows].tolist()),
            tags_codes=tuple(units.tags_codes[rows].tolist()),
        )
        return chosen, end

    def _looked_at(self, request: ReadRequest) -> int:
        """How many units one read scans at most."""
        return min(max(SCAN_COUNT_MIN, request.count_max), self._file_rest(request.offset))

    def _record(
        self,
        key: QueueKey,
        queue: ConsumeQueue,
        offset: int,
        unit: QueueUnit,
        *,
        may_raise: bool,
    ) -> tuple[QueueUnit, bytes | None]:
        """The unit and its record. The record is None if it is gone, if the unit only fills a
        place, or if it is damaged and `may_raise` is False."""
        if unit.is_prefill:
            return unit, None
        try:
            return self.read(key, queue, offset, unit)
        except SegmentCorruptError:
            if may_raise:
                raise
            return unit, None

    def _gone_count(self, queue: ConsumeQueue, offset: int, units: QueueUnits) -> int:
        """How many messages are gone at the beginning of these units; the first one is gone."""
        first = queue.first_from(self._log.min_offset or 0)  # a single unit may be damaged
        kept = np.arange(offset, offset + len(units)) >= first
        kept &= units.message_bytes != INT32_MAX
        kept &= ~self._log.lost.among(units.log_offsets)
        kept[0] = False
        return int(kept.argmax()) if kept.any() else len(units)

    def read(
        self, key: QueueKey, queue: ConsumeQueue, offset: int, unit: QueueUnit
    ) -> tuple[QueueUnit, bytes | None]:
        """The correct unit, and its record; None if the record is gone or was lost in a power cut.

        Raises SegmentCorruptError if the log has no sound record for this place of the queue.
        """
        if self._log.lost.has(unit.log_offset):
            return unit, None
        try:
            record = self._log.message_bytes(unit.log_offset, unit.message_bytes)
            reason = self._misfit(key, queue, offset, unit, record)
            if not reason:
                return unit, record
            error = SegmentCorruptError(queue.directory, reason, position=offset * UNIT_BYTES)
        except SegmentCorruptError as damaged:
            error, reason = damaged, str(damaged)
        again = self._truth.made_again(key, offset, reason)
        if again is None:
            raise error
        return again, self._log.message_bytes(again.log_offset, again.message_bytes)

    def _misfit(
        self, key: QueueKey, queue: ConsumeQueue, offset: int, unit: QueueUnit, record: bytes | None
    ) -> str:
        if record is not None:
            return self._truth.misfit(key, offset, unit.tags_code, record)
        if offset < queue.first_from(self._log.min_offset or 0):
            return ""  # the message has expired, like all before it
        return f"the unit names {unit.log_offset}, below the log, and those before it do not"

    def _file_rest(self, offset: int) -> int:
        per_file = self._config.queue_file_bytes // UNIT_BYTES
        return per_file - offset % per_file

    def _limits(self, count_max: int, bytes_max: int) -> ReadLimits:
        config = self._config
        return ReadLimits(
            count_max=count_max,
            bytes_max=min(max(bytes_max, PULL_BYTES_MIN), PULL_BYTES_MAX),
            memory_count_max=config.memory_count_max,
            memory_bytes_max=config.memory_bytes_max,
            memory_from=self._log.max_offset - _page_cache_bytes(),
        )

    def is_in_memory(self, log_offset: int) -> bool:
        """Whether the record is probably in the page cache: like RocketMQ, assume that the last
        writes fill it."""
        return self._log.max_offset - log_offset <= _page_cache_bytes()

    def run(self, request: ReadRequest) -> MessageRun:
        """Consecutive messages as columns, up to the first that is gone or damaged.

        Raises SegmentCorruptError if the first message is damaged. The tags codes are those of the
        messages: an address in Java's extended queue means nothing outside this store.
        """
        run = self._run_as_it_is(request)
        for row in np.flatnonzero(run.tags_codes <= EXTENSION_ADDRESS_MAX).tolist():
            run.tags_codes[row] = self._truth.tags_code(bytes(run.record(row)))
        return run

    def _run_as_it_is(self, request: ReadRequest) -> MessageRun:
        key, offset, bytes_max = request.key, request.offset, request.bytes_max
        queue = self._queues.queue(*key)
        if not holds(queue, offset) or request.count_max <= 0:
            return _run(offset, decode_units(b""), 0, bytearray())
        # No more units than fit: a caller may limit only the bytes, and the queue may be long.
        looked_at = min(request.count_max, max(0, bytes_max) // RECORD_BYTES_MIN + 1)
        try:
            units = queue.units(offset, looked_at)
        except OffsetOutOfRangeError:  # deleted just now
            return _run(offset, decode_units(b""), 0, bytearray())
        sizes = np.maximum(units.message_bytes, 1).astype(np.int64)
        count = max(1, int(np.searchsorted(np.cumsum(sizes), bytes_max, side="right")))
        if count > FEW_ROWS_MAX and len(units) > FEW_ROWS_MAX:
            columns, records = read_records(
                *(self._log.queue, units.log_offsets[:count], sizes[:count]),
                check_property_crc=self._log.check_property_crc,
            )
            found, properties = self._truth.fitting(key, offset, units.tags_codes, columns)
            if found:
                records = records if found == count else records[: int(sizes[:found].sum())]
                if properties is None or len(properties) != found:
                    return _run(offset, units, found, records)
                return _run(
                    *(offset, units, found, records, ParsedRun),
                    properties=properties,
                    store_timestamps=columns.store_timestamps[:found],
                )
        return self._few(key, queue, offset, units, count)

    def _few(
        self, key: QueueKey, queue: ConsumeQueue, offset: int, units: QueueUnits, count: int
    ) -> MessageRun:
        found: list[QueueUnit] = []
        records: list[bytes] = []
        for row, log_offset, size, code in islice(_rows(units, None), count):
            unit = QueueUnit(log_offset, size, code)
            if not found:
                unit, record = self.read(key, queue, offset, unit)
            else:
                record = self._fitting(key, offset + row, unit)
            if record is None:
                break  # the next run starts here and reports damage
            found.append(unit)
            records.append(record)
        whole = QueueUnits(
            log_offsets=np.array([unit.log_offset for unit in found], np.int64),
            message_bytes=np.array([unit.message_bytes for unit in found], np.int32),
            tags_codes=np.array([unit.tags_code for unit in found], np.int64),
        )
        return _run(offset, whole, len(found), bytearray().join(records))

    def _fitting(self, key: QueueKey, offset: int, unit: QueueUnit) -> bytes | None:
        """The record of a unit; None if it is gone, or if record or unit is damaged."""
        try:
            record = self._log.message_bytes(unit.log_offset, unit.message_bytes)
        except SegmentCorruptError:
            return None
        if record is None or self._truth.misfit(key, offset, unit.tags_code, record):
            return None
        return record


def holds(queue: ConsumeQueue | None, offset: int) -> TypeGuard[ConsumeQueue]:
    return queue is not None and queue.min_offset <= offset < queue.max_offset


def _chosen(units: QueueUnits, message_filter: MessageFilter | None) -> NDArray[np.intp] | None:
    """The rows with the tags codes that a filter names; None if it must be asked instead."""
    codes = getattr(message_filter, "tags_codes", None)
    return None if codes is None else np.flatnonzero(matching_tags(units, codes))


def _rows(
    units: QueueUnits, chosen: NDArray[np.intp] | None
) -> Iterator[tuple[int, int, int, int]]:
    """Row, log offset, size and tags code of the chosen units, or of all.

    Converts a few rows at a time, because most reads end within the first 32.
    """
    every = np.arange(len(units)) if chosen is None else chosen
    for start in range(0, len(every), _ROWS_AT_ONCE):
        rows = every[start : start + _ROWS_AT_ONCE]
        yield from zip(
            rows.tolist(),
            units.log_offsets[rows].tolist(),
            units.message_bytes[rows].tolist(),
            units.tags_codes[rows].tolist(),
            strict=True,
        )


def _run(
    first_offset: int,
    units: QueueUnits,
    count: int,
    records: bytearray,
    kind: type[MessageRun] = MessageRun,
    **parsed: Any,
) -> MessageRun:
    message_bytes = units.message_bytes[:count]
    return kind(
        first_offset=first_offset,
        log_offsets=units.log_offsets[:count],
        message_bytes=message_bytes,
        tags_codes=units.tags_codes[:count],
        starts=np.cumsum(message_bytes, dtype=np.int64) - message_bytes,
        records=records,
        **parsed,
    )


def _nothing(status: GetStatus, next_offset: int, minimum: int, maximum: int) -> GetResult:
    return GetResult(status=status, next_offset=next_offset, min_offset=minimum, max_offset=maximum)


@cache
def _page_cache_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * MEMORY_PERCENT // 100
