"""Bytes of a commit log that no unit names: what they are, and whether a message is lost in them.

What lives here: `UnnamedBytes`, which follows the records that units name, in order, and looks at
what lies between two of them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.end_marks import CODA_BYTES, is_coda
from tieredstore.codec.record_fields import (
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    peek_magic,
    peek_message_bytes,
    peek_queue_offset,
)
from tieredstore.flat.record_rows import RECORD_BYTES_MIN
from tieredstore.jobs.verification.verify_bytes import SegmentBytes
from tieredstore.jobs.verification.verify_findings import Findings, VerifyKind
from tieredstore.jobs.verification.verify_records import Checked, Named
from tieredstore.model.errors import SegmentError
from tieredstore.model.values import QueueKey

_HEAD_BYTES: Final = 36
_LOOKED_AT_MAX: Final = 1_000  # records of one stretch
_MAGICS: Final = (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2)


class UnnamedBytes:
    """Where the last named record ends, and its queue offset.

    Next to a unit or record that is damaged nothing is told: what is unnamed there is its.
    """

    def __init__(self, log: SegmentBytes, key: QueueKey, findings: Findings) -> None:
        self._log = log
        self._key = key
        self._findings = findings
        self._end: int | None = None
        self._offset = -1

    def begin_at(self, log_offset: int) -> None:
        """The queue's log begins here, and its first unit is to come."""
        self._end, self._offset = log_offset, -1

    def lose_track(self) -> None:
        self._end = None

    def follow(self, named: Named, checked: Checked, wrong: NDArray[np.bool_]) -> None:
        """The next records that units name, in order."""
        if not len(named):
            return
        follows = self._offset < 0 or self._offset + 1 == named.queue_offsets[0]
        if self._end is not None and follows and not wrong[0] and named.places[0] > self._end:
            self._between(self._end, int(named.places[0]), int(named.queue_offsets[0]))
        gaps = named.places[1:] > checked.ends[:-1]
        gaps &= ~(wrong[1:] | wrong[:-1])
        gaps &= named.queue_offsets[1:] - named.queue_offsets[:-1] == 1  # else one was told of
        for row in np.flatnonzero(gaps).tolist():
            self._offset = int(named.queue_offsets[row])
            after = int(named.queue_offsets[row + 1])
            self._between(int(checked.ends[row]), int(named.places[row + 1]), after)
        if wrong[-1]:
            self._end = None
        else:
            self._end, self._offset = int(checked.ends[-1]), int(named.queue_offsets[-1])

    def end_at(self, log_offset: int, *, after: int) -> None:
        """Nothing more is named up to here: the next slice's first record, or the log's end."""
        if self._end is not None and self._end < log_offset:
            self._between(self._end, log_offset, after)

    def _between(self, start: int, stop: int, after: int) -> None:
        """Look at bytes start to stop; `after`: the offset of the next unit, -1 behind the last."""
        looked_at = 0
        for part in self._log.there(start, stop):
            at = part.start
            while at < part.stop and looked_at < _LOOKED_AT_MAX:
                looked_at += 1
                at = self._look(at, part.stop, after)

    def _look(self, at: int, stop: int, after: int) -> int:
        """What is here, and where to go on."""
        try:
            head = self._log.read(at, min(at + _HEAD_BYTES, stop))
        except SegmentError as error:
            self._tell(VerifyKind.UNREADABLE, at, str(error))
            return stop
        if is_coda(head):
            return at + CODA_BYTES
        if len(head) < _HEAD_BYTES or peek_magic(head) not in _MAGICS:
            self._tell(VerifyKind.UNNAMED, at, f"{stop - at} bytes that no unit names, no message")
            return stop
        size = peek_message_bytes(head)
        if not RECORD_BYTES_MIN <= size <= stop - at:
            self._tell(VerifyKind.UNNAMED, at, f"{stop - at} bytes that no unit names, cut off")
            return stop
        self._tell_record(at, peek_queue_offset(head), after)
        return at + size

    def _tell_record(self, at: int, offset: int, after: int) -> None:
        if self._offset < 0 and offset < after:
            return  # older than the queue: its unit has expired
        if after < 0 and offset > self._offset:
            text = f"message {offset} is in the log and its unit not yet in the queue"
            self._tell(VerifyKind.LOG_AHEAD, at, text, offset)
        elif self._offset < offset < after:
            text = f"message {offset} is in the log, and the queue has no unit for it"
            self._tell(VerifyKind.UNNAMED, at, text, offset)
        else:
            text = f"message {offset} lies here too, where no unit names it"
            self._tell(VerifyKind.SECOND_COPY, at, text, offset)

    def _tell(self, kind: VerifyKind, at: int, text: str, offset: int | None = None) -> None:
        path, position = self._log.place(at)
        self._findings.add(kind, path, text, key=self._key, position=position, queue_offset=offset)
