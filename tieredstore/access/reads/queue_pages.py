"""One page of a queue: its status, its messages, and where to go on.

What lives here: `QueuePages`, the table of statuses. Which messages a page has is in
`message_select`.
"""

from __future__ import annotations

from tieredstore.access.reads.byte_sources import ColdError, HotSource
from tieredstore.access.reads.message_select import Limits, select
from tieredstore.driver.message_store import MessageFilter
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.queue_read import ByteSource
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import SegmentCorruptError, StoreClosedError
from tieredstore.model.messages import GetResult
from tieredstore.model.values import GetStatus, QueueKey


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

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        bytes_max: int,
        message_filter: MessageFilter | None,
        source: ByteSource,
    ) -> GetResult:
        config = self._config
        limits = Limits(
            count_max,
            min(max(0, bytes_max), config.read_ahead_bytes),
            config.read_ahead_count,
            config.read_ahead_bytes,
            config.checks_pages,
        )
        key = QueueKey(topic, queue_id)
        while True:
            file = self._files.get(key)
            if file is None:
                return _nothing(GetStatus.NO_MATCHED_LOGIC_QUEUE, offset, 0, 0)
            try:
                result = self._page_of(file, offset, limits, message_filter, source)
            except (SegmentCorruptError, StoreClosedError):
                # What expires or is destroyed during a read is no damage.
                if self._files.get(key) is file and offset >= file.min_offset:
                    raise
                continue
            if result is not None:
                return result

    def _page_of(
        self,
        file: FlatMessageFile,
        offset: int,
        limits: Limits,
        message_filter: MessageFilter | None,
        source: ByteSource,
    ) -> GetResult | None:
        """What the queue answers; None if it has changed meanwhile and is to be asked again."""
        maximum = file.commit_offset
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
        if limits.count_max <= 0:
            return _nothing(GetStatus.NO_MATCHED_MESSAGE, offset, minimum, maximum)
        messages, next_offset = select(file, offset, limits, message_filter, source)
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
