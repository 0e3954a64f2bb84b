"""Messages that have to wait: kept in the schedule's queues, one for each level, until due."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.broker.produce import DELAY, REAL_QUEUE, REAL_TOPIC
from examples.broker.storage import Storage
from examples.broker.tables import SCHEDULE, JsonFile
from tieredstore import Message, PutStatus, QueueKey, TieredStoreError, decode_message

log = logging.getLogger(__name__)

LEVELS: Final = 18
PAGE: Final = 64
LOOK_SECONDS: Final = 1.0


@dataclass(slots=True)
class Delays:
    """Stores each message in its own topic when its time has come, in the order it came.

    Which were delivered is in `config/delayOffset.json`, once a round: after a crash the last
    round's messages may come twice, and none is lost. The store's queue units say when each is due.
    """

    storage: Storage
    folder: Path
    clock_ms: Callable[[], int]

    async def run(self) -> None:
        """Until it is cancelled."""
        file = JsonFile(self.folder / "delayOffset.json")
        with file.refusals():
            offsets = {int(at): int(to) for at, to in file.read().get("offsetTable", {}).items()}
        while True:
            before = dict(offsets)
            for level in range(1, LEVELS + 1):
                try:
                    offsets[level] = await self._deliver(level, offsets.get(level, 0))
                except TieredStoreError as error:  # it is tried again
                    log.warning("delayed messages of level %d wait: %s", level, error)
            if offsets != before:
                table = {str(level): offset for level, offset in offsets.items()}
                await self.storage.call(file.write, {"offsetTable": table})
            await asyncio.sleep(LOOK_SECONDS)

    async def _deliver(self, level: int, offset: int) -> int:
        """Store what is due; the offset of the first message that is not."""
        key = QueueKey(SCHEDULE, level - 1)
        while True:
            page = await self.storage.get(
                *key, offset, count_max=PAGE, message_filter=None, group=""
            )
            due = []
            for found in page.messages:
                if found.tags_code > self.clock_ms():  # what a queue holds here is a time
                    break
                due.append(_real(found.record))
            if due:
                results = await self.storage.put(due)
                refused = next((each for each in results if not each.stored), None)
                if refused is not None:
                    log.error("a delayed message cannot be stored: %s", refused.reason)
                    if refused.status is PutStatus.SERVICE_NOT_AVAILABLE:
                        return offset  # a full disk, say: they come again
            offset += len(due)
            if not page.messages:
                return max(offset, page.next_offset)
            if len(due) < len(page.messages):
                return offset


def _real(record: bytes) -> Message:
    """The message as it was before it had to wait."""
    stored = decode_message(record)
    properties = dict(stored.properties)
    topic, queue_id = properties.pop(REAL_TOPIC), int(properties.pop(REAL_QUEUE))
    properties.pop(DELAY, None)
    return Message(
        topic=topic,
        queue_id=queue_id,
        body=stored.body,
        properties=properties,
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        born_timestamp=stored.born_timestamp,
        born_host=stored.born_host,
        store_host=stored.store_host,
        reconsume_times=stored.reconsume_times,
    )
