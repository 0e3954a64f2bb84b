"""Rot on the broker's own disk: bits of its local store flip, and of the files beside it.

A message that was hit may be lost if the tier does not have it yet. No other message is lost: a
reader of the hit one is told, it is not uploaded as if it were sound, and its neighbours stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.rot import Flip, Rot, field_at, in_unit
from tieredstore.codec.message import decode_message
from tieredstore.codec.record import LOG_OFFSET_POSITION
from tieredstore.model.errors import InvalidConfigError, TieredStoreError
from tieredstore.model.values import QueueKey

if TYPE_CHECKING:
    from tests.simulation.model import Put

LOG, UNITS, INDEX, TIER_INDEX = "commitlog", "consumequeue", "index", "tiered_index_file"
FOLDERS: Final = (LOG, UNITS, INDEX, TIER_INDEX)
OFFSETS, TOPICS = "consumerOffset.json", "topics.json"
CATALOGUE: Final = "tieredStoreMetadata.json"
SOME: Final = "record"  # some field: it was hit before, and cannot be parsed
LOSING: Final = frozenset(
    {
        *("size", "magic", "body crc", "queue id", "queue offset", "log offset", "system flag"),
        *("body length", "body", "topic", "properties", SOME),
    }
)
"""Fields of which one bit may make a record another one, or none."""
UPLOADED: Final = frozenset(
    {
        *("flag", "system flag", "born time", "born host", "store time", "store host"),
        *("reconsume times", "prepared offset", "properties", "unit tags"),
    }
)
"""Fields with which a message is served and uploaded: no checksum covers them. Of the tags in a
unit it is one bit, which makes an address in Java's extended queues of them."""
MAGICS: Final = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")
MAGIC_AT: Final = 4
INDEX_HEAD, SLOT_BYTES, ITEM_BYTES = 40, 4, 20  # of a local index file
INDEX_SLOTS: Final = 7  # a power of two would let a flip in a hash pass for another key
SIDE_FILES: Final = ("tieredstore-", OFFSETS, TOPICS, CATALOGUE)


class LocalRot(Rot):
    """All flips of one history on the broker's own disk."""

    likely = ((LOG, UNITS, INDEX), (OFFSETS, CATALOGUE, "checkpoint"))

    # Making it

    @property
    def _is_in_files(self) -> bool:
        return True

    def _places(self) -> dict[str, list[str]]:
        root = self.world.machine.folder / "store"
        found: dict[str, list[str]] = {}
        for path in root.rglob("*"):
            if path.is_file() and path.stat().st_size and not path.name.endswith("lock"):
                first = path.relative_to(root).parts[0]
                found.setdefault(first if first in FOLDERS else path.name, []).append(str(path))
        return found

    def _seen(self, place: str, kind: str, data: bytes, position: int) -> Flip:
        """What the flip hits."""
        flip = Flip(place=place, kind=kind, position=position, field=f"some {kind}")
        if kind == LOG:
            return replace(flip, **self._in_log(int(Path(place).name), data, position))
        if kind == UNITS:
            topic, queue_id, name = place.split("/")[-3:]
            queue, found = QueueKey(topic, int(queue_id)), in_unit(int(name) + position)
            generation = self.world.model.deletions.get(topic, 0)
            return replace(flip, queue=queue, generation=generation, **found)
        if kind == INDEX:
            return replace(flip, hides=self._stored_at(set(_items_from(data, position))))
        if kind == TIER_INDEX:
            return replace(flip, hides=frozenset(self.world.model.puts))
        return flip

    def _in_log(self, base: int, data: bytes, position: int) -> dict[str, Any]:
        """Which message it is, by its bytes, or if these are invalid by its place."""
        start = max((at for at in _starts(base, data) if at <= position), default=None)
        if start is None:
            return {}
        put, field = self._at(base + start), SOME
        with suppress(TieredStoreError, UnicodeDecodeError):  # it was hit before
            size = int.from_bytes(data[start : start + MAGIC_AT])
            message = decode_message(data[start : start + size])
            if position >= start + size:
                return {}
            put = self.world.model.puts.get(message.body.decode().split("|")[0])
            field = field_at(position - start, len(message.body), len(message.topic))
        if put is None:
            return {"field": field}
        is_alone = not self.world.is_committed(put)
        return {"field": field, "queue": put.queue, "name": put.name, "is_only_copy": is_alone}

    def _at(self, log_offset: int) -> Put | None:
        """The message there, if its put has ended; the newest one, since another machine has its
        own log."""
        puts = reversed(self.world.model.puts.values())
        return next((put for put in puts if put.log_offset == log_offset), None)

    def _stored_at(self, log_offsets: Collection[int]) -> frozenset[str]:
        """The messages there, and those whose place is not known yet."""
        puts = self.world.model.puts.values()
        there = (None, *log_offsets)
        return frozenset(put.name for put in puts if put.log_offset in there)

    # What it excuses

    def hit(self, put: Put) -> Collection[str]:
        fields = super().hit(put)
        if any(put.name in flip.hides for flip in self.flips):
            fields = {*fields, "not indexed"}
        return fields

    def may_be_lost(self, put: Put) -> bool:
        return any(
            flip.is_only_copy and flip.field in LOSING and flip.name == put.name
            for flip in self.flips
        )

    def explains(self, queue: QueueKey, offset: int, *, is_filtered: bool = False) -> bool:
        puts = self.world.model.puts
        return any(
            flip.kind != LOG or is_filtered or puts[flip.name].offset in (offset, None)
            for flip in self._concerning(queue)
        )

    def is_hit(self, queue: QueueKey) -> bool:
        return any(self._concerning(queue))

    def _concerning(self, queue: QueueKey) -> Iterator[Flip]:
        """Flips that may fail a read or an upload of this queue; units do not: they are rebuilt."""
        for flip in self.flips:
            if flip.kind.startswith(CATALOGUE) or (flip.kind == LOG and flip.queue == queue):
                yield flip

    @property
    def harms_tier(self) -> bool:
        return any(flip.kind.startswith(CATALOGUE) or flip.field in UPLOADED for flip in self.flips)

    @property
    def changes_offsets(self) -> bool:
        return any(flip.kind.startswith(OFFSETS) for flip in self.flips)

    @property
    def errors(self) -> tuple[type[TieredStoreError], ...]:
        return (*super().errors, InvalidConfigError) if self.flips else ()

    def keeps_shut(self, error: Exception) -> bool:
        if not super().keeps_shut(error) and not isinstance(error, InvalidConfigError):
            return False
        is_explained = any(flip.kind.startswith(SIDE_FILES) for flip in self.flips)
        assert is_explained, f"it cannot be opened, but all that was hit is messages: {error!r}"
        return True

    # At the end

    def check_found(self) -> None:
        assert self.harms_tier or not self.wrong, f"the tier was not hit, but {self.wrong}"


def _starts(base: int, data: bytes) -> Iterator[int]:
    """Where records begin in a log file, according to the records."""
    for magic in MAGICS:
        at = data.find(magic)
        while at >= 0:
            place = at - MAGIC_AT + LOG_OFFSET_POSITION
            if int.from_bytes(data[place : place + 8]) == base + at - MAGIC_AT:
                yield at - MAGIC_AT
            at = data.find(magic, at + 1)


def _items_from(data: bytes, position: int) -> Iterator[int]:
    """The log offsets of an index file's items that are found through this place."""
    slots_end = INDEX_HEAD + SLOT_BYTES * INDEX_SLOTS
    if position < INDEX_HEAD:
        count = int.from_bytes(data[INDEX_HEAD - 4 : INDEX_HEAD])
        yield from (_item(data, item)[0] for item in range(1, count))
        return
    at = position - position % SLOT_BYTES
    item = int.from_bytes(data[at : at + SLOT_BYTES])
    if position >= slots_end:
        item = (position - slots_end) // ITEM_BYTES
    while item:
        log_offset, item = _item(data, item)
        yield log_offset


def _item(data: bytes, item: int) -> tuple[int, int]:
    """Its log offset, and the item before it in its chain; 0 if there is none."""
    at = INDEX_HEAD + SLOT_BYTES * INDEX_SLOTS + ITEM_BYTES * item
    before = int.from_bytes(data[at + 16 : at + ITEM_BYTES])
    return int.from_bytes(data[at + 4 : at + 12]), before if before < item else 0
