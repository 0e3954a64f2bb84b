"""An upper bound of the log offsets of the tier's messages, kept as a note in the catalogue.

A record in the tier has its log offset in the tier, not the one in the broker's log. Message ids
contain the latter, so a store that lost its log must continue after every offset that it ever
assigned. The note has such an offset, with room to spare. It moves in steps, in the round that
would pass it, and costs no request.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from tieredstore.driver.metadata import MetadataStore, PutNote
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.model.config import GIB, MIB

LOG_MARK: Final = "log-mark"
_PART: Final = 8  # the room to spare is this part of the log, within the two bounds
_STEP_MIN: Final = MIB
_STEP_MAX: Final = GIB


class LogMark:
    """No record of a broker in the tier had a log offset at or above `below`. Any thread may call.

    Without a note (RocketMQ's tiers, and those of earlier versions) it is the size of the tier's
    records, with room to spare because messages of other topics were between them. Then new
    messages may still get the ids of old ones.
    """

    def __init__(self, metadata: MetadataStore, broker: str) -> None:
        self._metadata = metadata
        self._broker = broker
        self._guard = threading.Lock()
        note = metadata.note(LOG_MARK, broker)
        self._noted = note if type(note) is int and note > 0 else 0

    def below(self, files: Iterable[FlatMessageFile]) -> int:
        found = sum(file.log.commit_offset for file in files)
        return max(self._noted, found) if self._noted else _with_room(found)

    def cover(self, log_end: int) -> None:
        """Raise the mark above records that end here and are about to be sent. The note is durable
        no later than the records.
        """
        if log_end <= self._noted:
            return
        with self._guard:
            if log_end > self._noted:
                noted = _with_room(log_end)
                self._metadata.stage([PutNote(LOG_MARK, self._broker, noted)])
                self._noted = noted


def _with_room(log_end: int) -> int:
    if log_end <= 0:
        return 0
    step = min(_STEP_MAX, max(_STEP_MIN, log_end // _PART))
    return -(-(log_end + step) // _STEP_MIN) * _STEP_MIN
