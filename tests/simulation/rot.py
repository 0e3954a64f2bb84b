"""Bytes at rest that change: single bits of a tier flip, and what may be wrong as a consequence.

The tables of docs/durability.md say in which fields a flip is found late or never. These fields of
the message that was hit are the only excuse for a wrong answer; anything else must raise an error.
`local_rot.py` does the same to the broker's own files.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, cast

from tests.local.bit_flips import HEAD
from tests.simulation.model import DOUBTFUL
from tieredstore.codec.message import decode_message
from tieredstore.driver.object_client import KeysExpiredError
from tieredstore.jobs.job import ItemFailure
from tieredstore.model.errors import (
    BackendRefusedError,
    MetadataError,
    SegmentCorruptError,
    SegmentNotFoundError,
    TieredStoreError,
    UnknownNameError,
)
from tieredstore.model.findings import Finding
from tieredstore.model.messages import SelectedMessage
from tieredstore.model.values import QueueKey, SegmentType

if TYPE_CHECKING:
    from tests.simulation.model import Put
    from tests.simulation.world import World

DAMAGE: Final = (SegmentCorruptError, SegmentNotFoundError, MetadataError)
TOLD: Final = (*DAMAGE, BackendRefusedError, UnknownNameError)
"""What may say that something is damaged."""
MUST_FIND: Final = frozenset(
    {
        *("body", "body crc", "unit offset", "unit size", "unit tags"),
        *("queue id", "topic", "queue offset", "log offset"),
    }
)
"""Fields of a tier's live segments of which `verify` finds each flip. Others may come to nothing:
what nobody reads any more, or a time that might be true."""
RECORD, UNIT = "COMMIT_LOG", "CONSUME_QUEUE"
LIKELY: Final = ((RECORD, UNIT, "INDEX"), ("data",))
"""Kinds that are hit more often than others, the first more than the second: messages."""
BETWEEN_LIVES: Final = 0.2
UNIT_BYTES: Final = 20
NEAR: Final = 16
FLIPS: Final = (1, 1, 1, 2, 3)  # of one history


@dataclass(frozen=True, kw_only=True)
class Flip:
    """`around`: the bytes near it after the flip, from `start` on. Without a queue it is in data
    about many queues."""

    place: str
    kind: str
    position: int
    field: str
    start: int = 0
    around: bytes = b""
    queue: QueueKey | None = None
    generation: int = 0  # of its topic
    offset: int | None = None  # in the queue; None: nobody knows which message it is
    name: str = ""  # of the message, if that is known
    is_only_copy: bool = False  # it is not in the tier
    hides: frozenset[str] = frozenset()  # messages that an index may no longer find


class Rot:
    """All flips of one history in its tier."""

    likely: tuple[tuple[str, ...], ...] = LIKELY

    def __init__(self, world: World) -> None:
        self.world = world
        self.flips: list[Flip] = []
        self.dice = Random(f"{world.plan.seed} rot")
        self.left = self.dice.choice(FLIPS)
        self.sizes: dict[str, int] = {}  # sizes of the tier's segments, at the end
        self.passes_damaged = False  # the index was made without damaged messages
        self.not_indexed: set[tuple[QueueKey, int]] = set()
        self.found: list[Finding | ItemFailure | BaseException] = []  # at the end

    # Making it

    def flip(self) -> None:
        """Flip one bit of a file or object. A power cut may undo it: the disk does not know it."""
        if self.left:
            with self.world.disks.unseen():
                self._flip()

    def _flip(self) -> None:
        places = self._places()
        if not places:
            return
        kinds = sorted(places)
        for likely in self.likely:
            if self.dice.random() < 0.6:
                kinds = [each for each in kinds if each in likely] or kinds
        kind = self.dice.choice(kinds)
        place = self.dice.choice(sorted(places[kind]))
        data = bytearray(self._read(place))
        position = self.dice.randrange(self._written(data))
        flip = self._seen(place, kind, bytes(data), position)
        data[position] ^= 1 << self.dice.randrange(8)
        self._write(place, data)
        start = max(0, position - NEAR)
        flip = replace(flip, start=start, around=bytes(data[start : position + NEAR]))
        self.left -= 1
        self.flips.append(flip)
        self.world.scheduler.note(
            f"rot: {flip.field} at {position} of {place}, {flip.queue} {flip.offset} {flip.name}"
        )

    def flip_between_lives(self) -> None:
        if self.dice.random() < BETWEEN_LIVES:
            self.flip()

    @staticmethod
    def _written(data: bytearray) -> int:
        """How many bytes may be hit: only a few of those not written yet."""
        return min(len(data), len(data.rstrip(b"\0")) + NEAR)

    @property
    def _is_in_files(self) -> bool:
        return self.world.is_posix

    def _places(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        if self._is_in_files:
            root = self.world.machine.folder / "tier"
            names = [
                str(path)
                for path in root.rglob("*")
                if path.is_file() and path.stat().st_size and not path.name.endswith("lock")
            ]
        else:
            names = [key for key, (data, _) in self.world.objects.held.items() if data]
        for name in names:
            found.setdefault(Path(name).parent.name, []).append(name)
        return found

    def _read(self, place: str) -> bytes:
        if self._is_in_files:
            return Path(place).read_bytes()
        return self.world.objects.held[place][0]

    def _write(self, place: str, data: bytearray) -> None:
        if self._is_in_files:
            with Path(place).open("r+b") as file:
                file.write(data)
        else:
            self.world.objects.held[place] = bytes(data), self.world.objects.held[place][1]

    def _seen(self, place: str, kind: str, data: bytes, position: int) -> Flip:
        """What the flip hits."""
        flip = Flip(place=place, kind=kind, position=position, field=f"some {kind}")
        if kind not in {RECORD, UNIT}:
            return replace(flip, **self._in_round(data, position))
        topic, queue_id = place.split("/")[-4:-2]
        generation = self.world.model.deletions.get(topic, 0)
        flip = replace(flip, queue=QueueKey(topic, int(queue_id)), generation=generation)
        if kind == UNIT:
            return replace(flip, **in_unit(int(place[-20:]) + position))
        with suppress(TieredStoreError, UnicodeDecodeError):  # it was hit before
            return replace(flip, **self._in_record(data, position))
        return flip

    def _in_round(self, data: bytes, position: int) -> dict[str, Any]:
        """Which message an object of the log has there, if it is unambiguous."""
        for near in (64, 32, 16, 8):
            piece = data[max(0, position - near) : position + near]
            found = [
                (segment, at)
                for segment in self.world.witness.truth.segments.values()
                if (at := segment.data.find(piece)) >= 0
            ]
            if len(found) == 1:
                segment, at = found[0]
                at += min(near, position)
                if segment.key[1] is SegmentType.COMMIT_LOG:
                    return self._in_record(bytes(segment.data), at)
                return {"offset": (segment.key[2] + at) // UNIT_BYTES}
        return {}

    def _in_record(self, data: bytes, position: int) -> dict[str, Any]:
        start = 0
        while start + 8 < len(data):
            size = int.from_bytes(data[start : start + 4])
            if not size:
                break
            if position < start + size:
                break
            start += size
        else:
            return {}
        size = int.from_bytes(data[start : start + 4])
        if not start <= position < start + size or size < 90:
            return {}
        message = decode_message(data[start : start + size])
        name = message.body.decode().split("|")[0]
        field = field_at(position - start, len(message.body), len(message.topic))
        return {"offset": message.queue_offset, "name": name, "field": field}

    # What it excuses

    def hit(self, put: Put) -> Collection[str]:
        """Fields of this message that were ever hit: copies may have been made since."""
        fields = {flip.field for flip in self.flips if self._is_of(flip, put)}
        is_passed = (put.queue, put.offset) in self.not_indexed
        if self.passes_damaged and (fields or any(flip.queue is None for flip in self.flips)):
            is_passed = True
        return fields | {"not indexed"} if is_passed else fields

    def may_be_lost(self, put: Put) -> bool:
        """Whether its only copy was hit."""
        return False

    @property
    def harms_tier(self) -> bool:
        """Whether anything may be wrong in the tier."""
        return bool(self.flips)

    @property
    def changes_offsets(self) -> bool:
        """Whether groups may continue at wrong offsets."""
        return False

    def keeps_shut(self, error: Exception) -> bool:
        """Whether the error means that the store can never be opened again."""
        is_refused = isinstance(error, MetadataError) and not error.is_damage
        return isinstance(error, DAMAGE) and bool(self.flips) and not is_refused

    def makes_no_sense(self, one: SelectedMessage) -> bool:
        try:
            decode_message(one.record)
        except TieredStoreError:
            assert self.flips, f"{one} makes no sense"
            return True
        return False

    def heard(self, record: logging.LogRecord) -> None:
        """A log line is the only report of a message that was damaged before the index had its
        keys, and of one that may be lost: its bytes were in the tier, but not its row."""
        if self.flips and record.msg == "message %d of %s is not indexed: %s":
            offset, path, _ = cast(tuple[int, str, object], record.args)
            self.not_indexed.add((queue_of(path), offset))
        elif self.flips and record.msg == "%d messages without a sound record are not indexed":
            self.passes_damaged = True
        elif self.flips and record.msg == "%s: %d messages from %d were lost":
            path, count, first = cast(tuple[str, int, int], record.args)
            known = self.world.model.queues.get(queue_of(path), {})
            for at in range(first, first + count):
                if at in known and self.hit(known[at]):
                    known[at].state = DOUBTFUL

    def _is_of(self, flip: Flip, put: Put) -> bool:
        if flip.name:
            return flip.name == put.name
        is_there = (flip.queue, flip.offset) == (put.queue, put.offset)
        return is_there and flip.generation == put.begun

    def explains(self, queue: QueueKey, offset: int, *, is_filtered: bool = False) -> bool:
        """Whether a read from this offset on may fail."""
        return any(
            self._keeps_from(flip, offset, is_filtered=is_filtered)
            for flip in self.flips
            if flip.queue in (None, queue) and flip.kind != "INDEX"
        )

    def _keeps_from(self, flip: Flip, offset: int, *, is_filtered: bool) -> bool:
        if flip.queue is None or flip.offset is None or is_filtered:
            return True
        if self.world.is_posix:
            return flip.offset == offset
        return offset <= flip.offset  # a sealed segment has one checksum

    def is_hit(self, queue: QueueKey) -> bool:
        """Whether this queue may stop."""
        return any(flip.queue in (None, queue) for flip in self.flips)

    @contextmanager
    def reading(self, queue: QueueKey, offset: int, *, is_filtered: bool = False) -> Iterator[None]:
        try:
            yield
        except KeysExpiredError:
            raise
        except TOLD as error:
            if self.flips and not self.explains(queue, offset, is_filtered=is_filtered):
                raise AssertionError(f"{queue}: {offset} is not hit: {error!r}") from error
            raise

    @property
    def errors(self) -> tuple[type[TieredStoreError], ...]:
        return TOLD if self.flips else ()

    @property
    def errors_elsewhere(self) -> tuple[type[TieredStoreError], ...]:
        return self.errors if self.harms_tier else ()

    # At the end

    def is_there(self, flip: Flip) -> bool:
        try:
            data = self._read(flip.place)
        except (FileNotFoundError, KeyError):
            return False
        return data[flip.start : flip.start + len(flip.around)] == flip.around

    def check_found(self) -> None:
        """Damage must be reported if there is some in live bytes, and only then."""
        there = [flip for flip in self.flips if self.is_there(flip)]
        silent = [flip for flip in there if flip.field in MUST_FIND and self._is_live(flip)]
        assert not silent or self.found, f"verify and audit find nothing: {silent}"
        assert there or not self.wrong, f"what was hit is gone, but {self.wrong}"

    @property
    def wrong(self) -> list[Finding | ItemFailure | BaseException]:
        """The findings that are damage."""
        return [each for each in self.found if not isinstance(each, Finding) or each.is_damage]

    def _is_live(self, flip: Flip) -> bool:
        world = self.world
        if not world.is_posix:
            truth = world.witness.truth
            return flip.place in {truth.segments[number].sealed for number in truth.live.values()}
        queue, offset = flip.queue, flip.offset
        is_required = queue is not None and offset in world.model.required(queue)
        return is_required and flip.position < self.sizes.get(flip.place, 0)


def in_unit(position: int) -> dict[str, Any]:
    offset, at = divmod(position, UNIT_BYTES)
    field = "unit offset" if at < 8 else "unit size" if at < 12 else "unit tags"
    return {"offset": offset, "field": field}


def field_at(at: int, body_bytes: int, topic_bytes: int) -> str:
    """The field of a record at this position."""
    for field, (first, width) in HEAD.items():
        if first <= at < first + width:
            return field
    body = 88 + body_bytes
    return "body" if at < body else "topic" if at < body + 1 + topic_bytes else "properties"


def queue_of(path: str) -> QueueKey:
    _, topic, queue_id = path.split("/")
    return QueueKey(topic, int(queue_id))
