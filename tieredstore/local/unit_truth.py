"""Compares the units of queues with the log, and rebuilds single ones from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.columns import Properties, RecordColumns, sound_count, texts_are
from tieredstore.codec.java import encode_utf8
from tieredstore.codec.queue_unit import QueueUnit, is_extension_address
from tieredstore.codec.record import (
    INNER_BATCH,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    decode_properties,
    peek_property_bytes,
    peek_queue_id,
    peek_queue_offset,
    peek_store_timestamp,
    peek_sys_flag,
    peek_topic,
)
from tieredstore.local.commit_log import CommitLog, LogScan
from tieredstore.local.config import DelayLevels
from tieredstore.local.consume_queue import ConsumeQueue
from tieredstore.local.consume_queues import BegunQueues, ConsumeQueues
from tieredstore.local.record_scan import Damage
from tieredstore.local.redispatch import LIGHT_QUEUE_ID, light_places
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentCorruptError, SegmentError
from tieredstore.model.printable import log_of
from tieredstore.model.topics import LIGHT_QUEUE_PREFIX, SCHEDULE_TOPIC
from tieredstore.model.values import QueueKey

log = log_of(__name__)

NOTED_MAX: Final = 1_000  # damages kept for the health report
SEARCHED_BYTES_MAX: Final = 16 << 20  # of the log, to rebuild one unit
_NEIGHBOURS_MAX: Final = 64
_ALL_BITS: Final = (1 << 64) - 1


class UnitTruth:
    """Compares units with their records, and rebuilds single ones. Any thread may call.

    `noted` has the units rebuilt during reads, but only the latest ones.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        delays: DelayLevels,
        begun: BegunQueues,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._delays = delays
        self._begun = begun
        self.noted: deque[Damage] = deque(maxlen=NOTED_MAX)

    def misfit(self, key: QueueKey, offset: int, tags_code: int, record: bytes) -> str:
        """Why a sound record does not match this unit; empty if it does."""
        topic = peek_topic(record)
        place = topic, peek_queue_id(record), peek_queue_offset(record)
        if place != (*key, offset):
            if not key.topic.startswith(LIGHT_QUEUE_PREFIX) or key.queue_id != LIGHT_QUEUE_ID:
                return f"the record at its place is message {place[2]} of {topic}/{place[1]}"
            if (key.topic, offset) not in self._light_places(record):
                return f"the record at its place is of {topic}/{place[1]}, not in this light queue"
        if is_extension_address(tags_code) or topic == SCHEDULE_TOPIC:
            return ""  # an address in Java's extended queue, or a time that depends on a setting
        code = self.tags_code(record)
        return "" if code == tags_code else f"tags code {tags_code}, the message's is {code}"

    def fitting(
        self,
        key: QueueKey,
        first_offset: int,
        tags_codes: NDArray[np.int64],
        columns: RecordColumns,
    ) -> tuple[int, Properties | None]:
        """How many of these sound records match their units, up to the first that does not. Also,
        if they were parsed for this, the properties of the records before the first that belongs
        to another queue or offset."""
        count = len(columns)
        if key.topic.startswith(LIGHT_QUEUE_PREFIX) or key.topic == SCHEDULE_TOPIC:
            codes = tags_codes.tolist()
            for row in range(count):
                if self.misfit(key, first_offset + row, codes[row], columns.record(row)):
                    return row, None
            return count, None
        ok = columns.queue_ids == key.queue_id
        ok &= columns.queue_offsets == np.arange(first_offset, first_offset + count)
        ok &= texts_are(
            columns.data, columns.topic_starts, columns.topic_bytes, encode_utf8(key.topic)
        )
        count = sound_count(ok)
        starts, sizes = columns.property_starts[:count], columns.property_bytes[:count]
        properties = Properties.within(columns.data, starts, sizes)
        return _right_codes(tags_codes[:count], properties), properties

    def tags_code(self, record: bytes) -> int:
        """The tags code that a queue stores for this record."""
        properties = decode_properties(peek_property_bytes(record))
        return self._delays.tags_code(peek_topic(record), properties, peek_store_timestamp(record))

    def agrees(self, key: QueueKey, offset: int, unit: QueueUnit) -> bool:
        """Whether the log has a sound record that matches the unit."""
        try:
            record = self._log.message_bytes(unit.log_offset, unit.message_bytes)
        except SegmentCorruptError:
            return False
        return record is not None and not self.misfit(key, offset, unit.tags_code, record)

    def is_one_bit_away(self, key: QueueKey, offset: int, unit: QueueUnit) -> bool:
        """Whether the log has a sound record of the message at an offset that differs in one bit.
        Then a bit of the unit has flipped."""
        minimum, maximum = self._log.min_offset or 0, self._log.max_offset
        places = ((unit.log_offset & _ALL_BITS) ^ (1 << bit) for bit in range(64))
        return any(
            self.agrees(key, offset, unit._replace(log_offset=place))
            for place in places
            if minimum <= place < maximum
        )

    def is_named(self, record: bytes, log_offset: int) -> bool:
        """Whether the queue that a record names has the record at the offset that it names.

        No checksum covers these fields of a record. Also True if no queue can tell: the topic has
        no queues any more, no queue has come this far yet, or the message has no unit.
        """
        flag = peek_sys_flag(record)
        if flag & TRANSACTION_MASK & TRANSACTION_PREPARED or flag & INNER_BATCH:
            return True
        queue = self._queues.queue(peek_topic(record), peek_queue_id(record))
        offset = peek_queue_offset(record)
        if log_offset >= self._queues.max_log_end:
            return True
        if queue is None:
            topic = peek_topic(record)
            return not any(key.topic == topic for key in self._queues.queues())
        is_inside = queue.min_offset <= offset < queue.max_offset
        if not is_inside and self._log.queue.read_only:
            queue = self._queues.opened_again(queue)  # a writer may have gone on since
        if not queue.min_offset <= offset < queue.max_offset:
            return log_offset < (self._log.min_offset or 0)
        try:
            return queue.unit(offset).log_offset == log_offset
        except (OffsetOutOfRangeError, SegmentCorruptError):
            return True  # deleted just now, or cannot be read

    def made_again(self, key: QueueKey, offset: int, reason: str) -> QueueUnit | None:
        """Rebuild a unit from the log, and repair it in its file too. None if the log has no sound
        record for it, that counts, between the neighbouring messages."""
        queue = self._queues.queue(*key)
        if queue is None:
            return None
        try:
            unit = self._found(queue, key, offset)
        except (OffsetOutOfRangeError, SegmentError):  # the unit or a log file was just deleted
            return None
        if unit is None:
            return None
        self._note(queue, offset, unit, reason)
        queue.mend(offset, unit)
        return unit

    def _note(self, queue: ConsumeQueue, offset: int, unit: QueueUnit, reason: str) -> None:
        damage = Damage(
            *queue.place_of(offset),
            unit.log_offset,
            f"the unit of message {offset} does not fit the log ({reason}): it is rebuilt",
            mended=True,
        )
        if damage not in self.noted:
            log.warning("%s", damage.error())
            self.noted.append(damage)

    def _found(self, queue: ConsumeQueue, key: QueueKey, offset: int) -> QueueUnit | None:
        start = max(self._log.min_offset or 0, self._begun.counts_from(*key))
        for before in range(offset - 1, max(queue.min_offset, offset - _NEIGHBOURS_MAX) - 1, -1):
            unit = queue.unit(before)
            if self.agrees(key, before, unit):
                start = unit.log_offset + unit.message_bytes
                break
        end = self._log.max_offset
        for behind in range(offset + 1, min(queue.max_offset, offset + _NEIGHBOURS_MAX)):
            unit = queue.unit(behind)
            if self.agrees(key, behind, unit):
                end = unit.log_offset
                break
        for columns in self._records(start, min(end, start + SEARCHED_BYTES_MAX)):
            for row in _rows_that_may_be(columns, key, offset):
                record, at = columns.record(row), int(columns.log_offsets[row])
                code = self.tags_code(record)
                if at < end and not self.misfit(key, offset, code, record):
                    return QueueUnit(at, len(record), code)
        return None

    def _records(self, start: int, end: int) -> Iterator[RecordColumns]:
        files = [file for file in self._log.queue.files_from(start) if file.start_offset < end]
        for columns in LogScan(files, start_offset=max(start, self._log.min_offset or 0)):
            yield columns
            if int(columns.log_offsets[-1]) >= end:
                return

    def _light_places(self, record: bytes) -> list[tuple[str, int]]:
        properties = decode_properties(peek_property_bytes(record))
        at = self._log.max_offset  # only bounds the numbers: the record's own place is not known
        return light_places(peek_topic(record), properties, log_offset=at)


def _right_codes(tags_codes: NDArray[np.int64], properties: Properties) -> int:
    """How many messages have the tags of their code, up to the first that does not."""
    wrong = np.flatnonzero(properties.tags_codes() != tags_codes)
    return next(
        (row for row in wrong.tolist() if not is_extension_address(int(tags_codes[row]))),
        len(tags_codes),
    )


def _rows_that_may_be(columns: RecordColumns, key: QueueKey, offset: int) -> list[int]:
    # Prepared and rolled-back messages are in no queue, and their records say queue offset 0.
    may_be = columns.sys_flags & TRANSACTION_PREPARED == 0
    if not key.topic.startswith(LIGHT_QUEUE_PREFIX):
        may_be &= (columns.queue_ids == key.queue_id) & (columns.queue_offsets == offset)
    found: list[int] = np.flatnonzero(may_be).tolist()
    return found
