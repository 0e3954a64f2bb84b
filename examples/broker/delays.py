"""Messages that must wait: kept until due in the schedule's queues, one for each level."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from examples.broker.schedule import Schedule
from examples.broker.storage import Storage
from examples.broker.tables import SCHEDULE
from tieredstore import (
    InvalidConfigError,
    Message,
    PutStatus,
    SegmentCorruptError,
    TieredStoreError,
    decode_message,
)
from tieredstore.codec import fastjson
from tieredstore.driver.durable import make_directories, write_atomically
from tieredstore.model.messages import SelectedMessage

log = logging.getLogger(__name__)

PAGE: Final = 64
LOOK_SECONDS: Final = 1.0
MARKS: Final = 64  # of a level's time, while the clock is behind


class Delays:
    """Stores each message in its own topic when it is due, in the order of arrival.

    `config/delayOffset.json` says which were delivered. It is written once a round: after a crash
    the last round's messages may come twice; none is lost. Queue units say when each is due.
    A backup, which only RocketMQ writes, is read if the file is missing or cannot be used.
    """

    def __init__(
        self, storage: Storage, schedule: Schedule, folder: Path, clock_ms: Callable[[], int]
    ) -> None:
        self._storage = storage
        self._schedule = schedule
        self._path = folder / "delayOffset.json"
        self._backup = folder / "delayOffset.json.bak"
        self._clock_ms = clock_ms
        self._waiting: dict[int, int] = {}  # by level: log offset of the first message that waits
        self._offsets: dict[int, int] = {}  # by level: of the first message not delivered
        self._stored: dict[int, set[int]] = {}  # by level: offsets, behind one that must wait
        # By level: moments, and where the queue ended then. Only if the clock was set back.
        self._seen: dict[int, list[tuple[float, int]]] = {}
        self._levels = set(range(1, schedule.levels + 1))
        self._needed_from = 0
        self._over = asyncio.Event()

    def needed_from(self) -> int:
        """The schedule is not in the tier: the log must be kept from here on. For any thread."""
        return self._needed_from

    def load(self) -> None:
        """Continue where the last run stopped. Raises InvalidConfigError.

        A power cut can take the end of a queue but not this file, which is synced at once. New
        messages then have offsets below the delivered ones, and would wait forever. And messages
        may wait for levels that the setting no longer has.
        """
        queues = self._storage.store.queues()
        self._levels |= {key.queue_id + 1 for key in queues if key.topic == SCHEDULE}
        told = self._told()
        end = self._storage.store.max_offset
        self._offsets = {
            level: min(offset, end(SCHEDULE, level - 1) or 0) for level, offset in told.items()
        }

    def end(self) -> None:
        """Let `run` return once what it has stored is noted."""
        self._over.set()

    async def run(self) -> None:
        """Deliver until the end."""
        kept = dict(self._offsets)
        while not self._over.is_set():
            try:
                try:
                    await self._round()
                finally:  # what was delivered before an error must not come again
                    if self._offsets != kept:
                        now = dict(self._offsets)
                        await self._storage.call(self._keep, now)
                        kept = now
            except Exception as error:  # noqa: BLE001 - nobody else would go on
                _report("delayed messages", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), LOOK_SECONDS)

    async def _round(self) -> None:
        # It may not see what is stored after this point.
        seen_to = await self._storage.call(self._storage.store.confirmed_offset)
        is_whole = True
        for level in sorted(self._levels):
            try:
                await self._deliver(level)
            except Exception as error:  # noqa: BLE001 - other levels need not wait for this one
                _report(f"delayed messages of level {level}", error)
                is_whole = False
        if is_whole and not self._over.is_set():  # else some that are due may be left in the log
            self._needed_from = min([seen_to, *self._waiting.values()])

    def _told(self) -> dict[int, int]:
        """What the file says, or its backup; nothing if there is neither."""
        failure: InvalidConfigError | None = None
        for path in (self._path, self._backup):
            try:
                told = self._read(path)
            except FileNotFoundError:
                continue
            except (AttributeError, TypeError, ValueError) as error:
                # RocketMQ, whose disk is full, leaves an empty file, and the one before as backup.
                failure = failure or InvalidConfigError(f"{path}: cannot be used: {error!s:.200}")
                continue
            if path != self._path:
                log.error("%s: its backup is used: %s", self._path, failure or "it is missing")
            return told
        if failure is not None:
            raise failure
        return {}

    def _read(self, path: Path) -> dict[int, int]:
        kept: Any = fastjson.decode(path.read_bytes()).get("offsetTable", {})
        return {int(level): int(offset) for level, offset in kept.items()}

    def _keep(self, offsets: dict[int, int]) -> None:
        make_directories(self._path.parent)
        write_atomically(self._path, [fastjson.encode({"offsetTable": offsets})])
        self._backup.unlink(missing_ok=True)  # it would deliver again what came since

    async def _deliver(self, level: int) -> None:
        """Store what is due."""
        stored = self._stored.setdefault(level, set())
        while not self._over.is_set():
            offset = self._offsets.get(level, 0)
            try:
                page = await self._storage.get(
                    SCHEDULE, level - 1, offset, count_max=PAGE, message_filter=None, group=""
                )
            except SegmentCorruptError as error:
                # It stays damaged; all messages after it, and the log, would wait for it forever.
                log.error("level %d: the message at offset %d is lost: %s", level, offset, error)
                self._offsets[level] = offset + 1
                continue
            count = 0
            ready: dict[int, Message] = {}  # by offset
            self._waiting.pop(level, None)
            for found in page.messages:
                if not self._is_due(level, found, page.max_offset):
                    self._waiting[level] = found.log_offset
                    break
                count += 1
                if found.queue_offset in stored:
                    continue
                message = self._schedule.after(decode_message(found.record))
                if message is None:
                    log.error("the message at log offset %d goes nowhere", found.log_offset)
                else:
                    ready[found.queue_offset] = message
            await self._store(ready, stored)
            if not stored.issuperset(ready):  # a full disk, say: the others are tried again
                self._waiting[level] = page.messages[0].log_offset
                return
            self._offsets[level] = offset + count
            stored.difference_update(range(offset, offset + count))
            if not page.messages:
                self._offsets[level] = max(offset, page.next_offset)
            if not page.messages or count < len(page.messages):
                return

    def _is_due(self, level: int, found: SelectedMessage, end: int) -> bool:
        """Whether the message has waited for as long as its level lasts.

        If the clock was set back, the store gives the time from before to all messages until the
        clock has come as far again. They are due when that long has passed since they were seen.
        """
        rest_ms = found.tags_code - self._clock_ms()  # here the field has a time
        delay_ms = self._schedule.delay_ms(level)
        if delay_ms is None or rest_ms <= delay_ms:
            return rest_ms <= 0
        now, delay = time.monotonic(), delay_ms / 1_000
        seen = [each for each in self._seen.get(level, ()) if each[1] > found.queue_offset]
        if not seen or (end > seen[-1][1] and now - seen[-1][0] >= delay / MARKS):
            seen.append((now, end))
        self._seen[level] = seen
        return seen[0][0] + delay <= now

    async def _store(self, ready: Mapping[int, Message], stored: set[int]) -> None:
        """Store what is due, and add to `stored` what need not be tried again: at once, since an
        error may follow.

        A message whose queue alone takes no puts goes to the end of the longest level. Otherwise
        all behind it would wait for an operator.
        """
        again: dict[int, Message] = {}
        results = await self._storage.put(list(ready.values())) if ready else []
        refused = [result.reason for result in results if not result.stored]
        if refused:
            log.error("%d delayed messages cannot be stored: %s", len(refused), refused[0])
        for offset, result in zip(ready, results, strict=True):
            if result.status is not PutStatus.SERVICE_NOT_AVAILABLE:
                stored.add(offset)
            elif ready[offset].topic != SCHEDULE:
                again[offset] = self._schedule.once_more(ready[offset])
        if again:
            results = await self._storage.put(list(again.values()))
            stored.update(
                offset for offset, result in zip(again, results, strict=True) if result.stored
            )


def _report(what: str, error: Exception) -> None:
    """Nothing is lost: it is tried again."""
    is_defect = not isinstance(error, (OSError, TieredStoreError))
    log.warning("%s wait: %s", what, error, exc_info=error if is_defect else None)
