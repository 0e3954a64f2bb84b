"""Single flipped bits in every kind of file of a local store, and what may come of them.

No tests. `Flips` makes one store, shuts it down in order, and knows what it holds. The checkpoint
matters after a crash, so it is also flipped in a store that was not shut down. Each flip goes into
a copy, which is opened, read in all ways, put to, and compared with what is known. An answer may
be right, an explicit error, a damage or `complete=False`; anything else is silently wrong.

No checksum covers some fields of a record. `UNCOVERED` says what may be wrong there, and only for
the message that was hit.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from tests.local.store_audit import a_config
from tieredstore.codec.message import decode_message
from tieredstore.driver.runtime import Runtime
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import SegmentCorruptError, TieredStoreError
from tieredstore.model.messages import Message, SelectedMessage
from tieredstore.model.values import Boundary, GetStatus, QueueKey
from tieredstore.testing.samples import a_message

TOPICS, QUEUES, COUNT = ("Orders", "Bills"), 2, 120
LOG_FILE, QUEUE_FILE = 8_192, 400
SETTINGS = {
    "commit_log_file_bytes": LOG_FILE,
    "queue_file_bytes": QUEUE_FILE,
    "index_slot_count": 20,
    "index_item_count": 150,
}
STEP_MS = 2_000
AFTER_A_CRASH = "checkpoint after a crash"
HEAD = {
    "size": (0, 4),
    "magic": (4, 4),
    "body crc": (8, 4),
    "queue id": (12, 4),
    "flag": (16, 4),
    "queue offset": (20, 8),
    "log offset": (28, 8),
    "system flag": (36, 4),
    "born time": (40, 8),
    "born host": (48, 8),
    "store time": (56, 8),
    "store host": (64, 8),
    "reconsume times": (72, 4),
    "prepared offset": (76, 8),
    "body length": (84, 4),
}
UNCOVERED = {
    *("flag", "system flag", "born time", "born host", "store time", "store host"),
    *("reconsume times", "prepared offset", "topic", "properties"),
}


class Outcome(StrEnum):
    """What came of a flip."""

    TOLD = "told"
    """By an error, a damage or an incomplete answer."""
    FOUND = "found"
    """By verify or audit alone."""
    LISTED = "listed"
    """The answer is another one, as docs/durability.md says of that field."""
    HARMLESS = "harmless"
    """All answers are right."""
    WRONG = "wrong"
    """The answer is another one, and nothing says so."""


class Flip(NamedTuple):
    """One bit of one file; `field` names what it belongs to, `row` the message, if it has one."""

    path: str
    position: int
    bit: int
    field: str
    row: int = -1


class Known(NamedTuple):
    """A message that was acknowledged."""

    key: QueueKey
    queue_offset: int
    log_offset: int
    store_timestamp: int
    record: bytes
    names: tuple[str, ...]


class Flips:
    def __init__(self, root: Path) -> None:
        self.whole = root / "whole"
        self.copy = root / "copy"
        self._runtime = Runtime.inline(now_ms=1_700_000_000_000)
        self.messages: list[Known] = []
        self.outcomes: Counter[tuple[str, Outcome]] = Counter()
        self._is_told = self._is_listed = False
        self._fill()
        self.by_place = {(known.key, known.queue_offset): known for known in self.messages}

    def _fill(self) -> None:
        store = self._open(self.whole)
        puts = []
        dice = random.Random(3)
        for number in range(COUNT):
            self._runtime.clock.advance(STEP_MS)  # type: ignore[attr-defined]
            names = (f"u{number}", f"k{number}")
            message = a_message(
                number,
                topic=TOPICS[number % 2],
                queue_id=dice.randrange(QUEUES),
                body_bytes=100 if number % 3 else 137,
                properties={"TAGS": f"t{number % 5}", "UNIQ_KEY": names[0], "KEYS": names[1]},
            )
            puts.append(
                (QueueKey(message.topic, message.queue_id), names, store.put_message(message))
            )
            if number % 40 == 0:
                store.flush()
        for key, names, put in puts:
            found = store.message_at(put.log_offset)
            assert found is not None
            place = put.queue_offset, put.log_offset, put.store_timestamp
            self.messages.append(Known(key, *place, found.record, names))
        store.shutdown()

    def _open(self, root: Path) -> LocalMessageStore:
        store = LocalMessageStore(a_config(root, **SETTINGS), self._runtime)
        store.load()
        store.start()
        return store

    # -- which bits ---------------------------------------------------------------------------

    def some(self, seed: int, count: int) -> Iterator[Flip]:
        """`count` flips, which take the kinds of files and fields in turn."""
        dice = random.Random(seed)
        kinds = [*HEAD, "body", "topic", "properties", "end of a file"]
        kinds += ["unit offset", "unit size", "unit tags"] * 4
        kinds += ["index header", "index slot", "index item"] * 3
        kinds += ["checkpoint", AFTER_A_CRASH, "small file", "small file"]
        for number in range(count):
            yield self._flip(kinds[number % len(kinds)], dice)

    def _flip(self, kind: str, dice: random.Random) -> Flip:
        if kind.startswith("unit"):
            return self._in_unit(kind, dice)
        if kind.startswith("index"):
            return self._in_index(kind, dice)
        if kind in ("checkpoint", AFTER_A_CRASH):
            return Flip("checkpoint", dice.randrange(40), dice.randrange(8), kind)
        if kind == "small file":
            paths = sorted((self.whole / "config").glob("tieredstore-*.json"))
            path = dice.choice(paths)
            at = dice.randrange(path.stat().st_size)
            return Flip(f"config/{path.name}", at, dice.randrange(8), path.name)
        return self._in_record(kind, dice)

    def _in_record(self, kind: str, dice: random.Random) -> Flip:
        row = dice.choice((dice.randrange(COUNT), COUNT - 1))
        known = self.messages[row]
        record = known.record
        body = 88 + len(a_message(row, body_bytes=100 if row % 3 else 137).body)
        topic = body + 1 + len(known.key.topic)
        spans = {"body": (88, body), "topic": (body, topic), "properties": (topic, len(record))}
        if kind == "end of a file":  # the blank record behind the last message of the first file
            last = max(
                known.log_offset + len(known.record)
                for known in self.messages
                if known.log_offset < LOG_FILE
            )
            at = last + dice.randrange(8)
            return Flip(f"commitlog/{0:020d}", at, dice.randrange(8), kind)
        if kind in HEAD:
            start, width = HEAD[kind]
            first, end = start, start + width
        else:
            first, end = spans[kind]
        at = known.log_offset + dice.randrange(first, end)
        path = f"commitlog/{at // LOG_FILE * LOG_FILE:020d}"
        return Flip(path, at % LOG_FILE, dice.randrange(8), kind, row)

    def _in_unit(self, kind: str, dice: random.Random) -> Flip:
        row = dice.randrange(COUNT)
        key, offset = self.messages[row][:2]
        first, width = {"unit offset": (0, 8), "unit size": (8, 4), "unit tags": (12, 8)}[kind]
        at = offset * 20 + dice.randrange(first, first + width)
        path = f"consumequeue/{key.topic}/{key.queue_id}/{at // QUEUE_FILE * QUEUE_FILE:020d}"
        return Flip(path, at % QUEUE_FILE, dice.randrange(8), kind, row)

    def _in_index(self, kind: str, dice: random.Random) -> Flip:
        path = dice.choice(sorted((self.whole / "index").iterdir()))
        slots, items = 40, 40 + 4 * SETTINGS["index_slot_count"]
        spans = {"index header": (0, slots), "index slot": (slots, items)}
        spans["index item"] = (items + 20, items + 20 * 100)
        at = dice.randrange(*spans[kind])
        return Flip(f"index/{path.name}", at, dice.randrange(8), kind)

    # -- what comes of it ---------------------------------------------------------------------

    def wrong(self, flip: Flip) -> list[str]:
        """What is silently wrong in a store with this bit flipped."""
        self._is_told = self._is_listed = False
        told = self._wrong(flip)
        outcome = Outcome.LISTED if self._is_listed else Outcome.HARMLESS
        outcome = Outcome.TOLD if self._is_told else outcome
        self.outcomes[flip.field, Outcome.WRONG if told else outcome] += 1
        return told

    def _wrong(self, flip: Flip) -> list[str]:
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.whole, self.copy)
        if flip.field == AFTER_A_CRASH:
            (self.copy / "abort").touch()
        with (self.copy / flip.path).open("r+b") as file:
            file.seek(flip.position)
            byte = file.read(1)[0]
            file.seek(flip.position)
            file.write(bytes([byte ^ (1 << flip.bit)]))
        try:
            store = self._open(self.copy)
        except TieredStoreError:
            self._is_told = True
            return []  # the store refused to open, and said why
        told: list[str] = []
        hit = flip.row if flip.field in UNCOVERED else -1
        hides_keys = self._leads_to_an_older_item(flip)
        self._is_listed = hides_keys or hit >= 0
        for row, known in enumerate(self.messages):
            told += self._by_offset(store, known, is_hit=row == hit)
            told += [] if hides_keys else self._by_key(store, known, is_hit=row == hit)
        told += self._whole_queues(store, hit)
        told += self._by_time(store, flip)
        told += self._filtered(store, hit, flip)
        told += self._goes_on(store)
        self._is_told |= bool(store.damages)
        store.shutdown()
        return told

    def _leads_to_an_older_item(self, flip: Flip) -> bool:
        """Whether a slot or a link of the index became 0, or an older item of the same slot: the
        chain does not show that."""
        slots = SETTINGS["index_slot_count"]
        items = 40 + 4 * slots
        data = bytearray((self.whole / flip.path).read_bytes()) if "index" in flip.field else b""
        if flip.field == "index slot":
            at = flip.position - flip.position % 4
            item = int.from_bytes(data[at : at + 4])
        elif flip.field == "index item" and (flip.position - items) % 20 >= 16:
            item = (flip.position - items) // 20
            at = items + 20 * item + 16
        else:
            return False
        assert isinstance(data, bytearray)
        data[flip.position] ^= 1 << flip.bit
        new = int.from_bytes(data[at : at + 4], signed=True)
        if not 0 < new <= item:
            return new == 0
        hashes = [int.from_bytes(data[items + 20 * one :][:4]) for one in (item, new)]
        return hashes[0] % slots == hashes[1] % slots

    def _by_offset(self, store: LocalMessageStore, known: Known, *, is_hit: bool) -> Iterator[str]:
        what = f"{known.key} {known.queue_offset}"
        try:
            got = store.get_message(*known.key, known.queue_offset, count_max=1)
        except SegmentCorruptError:
            self._is_told = True
            return
        if got.status is not GetStatus.FOUND or got.messages[0].queue_offset != known.queue_offset:
            yield f"{what}: {got.status.name}, next {got.next_offset}"
        elif not _is_same(got.messages[0], known, is_hit=is_hit):
            yield f"{what}: another record"

    def _by_key(self, store: LocalMessageStore, known: Known, *, is_hit: bool) -> Iterator[str]:
        for name in known.names:
            got = store.query_message(known.key.topic, name)
            self._is_told |= not got.complete
            if not got.complete or is_hit:
                continue
            if [one.log_offset for one in got.messages] != [known.log_offset]:
                yield f"{name}: {len(got.messages)} messages, complete"
            elif not _is_same(got.messages[0], known, is_hit=False):
                yield f"{name}: another record"

    def _whole_queues(self, store: LocalMessageStore, hit: int) -> Iterator[str]:
        """Each queue from beginning to end, by pages as a consumer reads them, and by runs."""
        for key in {known.key for known in self.messages}:
            minimum, maximum = store.min_offset(*key), store.max_offset(*key)
            wanted = [known for known in self.messages if known.key == key]
            if (minimum, maximum) != (0, len(wanted)):
                yield f"{key}: {minimum} to {maximum}, not 0 to {len(wanted)}"
                continue
            offset = 0
            while offset < len(wanted):
                try:
                    got = store.get_message(*key, offset)
                except SegmentCorruptError:
                    offset += 1
                    continue
                numbers = [one.queue_offset for one in got.messages]
                if numbers != list(range(offset, got.next_offset)) or not numbers:
                    yield f"{key}: a page from {offset} is {numbers}, next {got.next_offset}"
                    break
                offset = got.next_offset
            offset = 0
            while offset < len(wanted):
                try:
                    run = store.read_range(*key, offset, count_max=99, bytes_max=1 << 20)
                except SegmentCorruptError:
                    offset += 1
                    continue
                if not len(run):
                    yield f"{key}: no run from {offset}"
                    break
                for row in range(len(run)):
                    known = wanted[offset + row]
                    is_hit = self.messages.index(known) == hit
                    if int(run.log_offsets[row]) != known.log_offset or (
                        bytes(run.record(row)) != known.record and not is_hit
                    ):
                        yield f"{key}: the run has another {offset + row}"
                offset += len(run)

    def _by_time(self, store: LocalMessageStore, flip: Flip) -> Iterator[str]:
        if flip.field in ("store time", "system flag"):
            return  # the flip hit what gives the time; listed as found by nothing
        for known in self.messages[::7]:
            try:
                found = store.offset_by_time(*known.key, known.store_timestamp, Boundary.LOWER)
                store.get_message(*known.key, known.queue_offset)
            except SegmentCorruptError:
                continue
            if found != known.queue_offset:
                yield f"{known.key}: by the time of {known.queue_offset} it is {found}"

    def _filtered(self, store: LocalMessageStore, hit: int, flip: Flip) -> Iterator[str]:
        """A filter by tags, after the reads above."""
        for known in self.messages[::11]:
            if self.messages.index(known) == hit:
                continue
            message = decode_message(known.record)
            try:
                wanted = Tagged(frozenset([message.tags_code]))
                got = store.get_message(*known.key, known.queue_offset, message_filter=wanted)
            except SegmentCorruptError:
                continue
            numbers = [one.queue_offset for one in got.messages]
            if known.queue_offset not in numbers:
                yield f"{known.key}: {known.queue_offset} is not among those of its tag"

    def _goes_on(self, store: LocalMessageStore) -> Iterator[str]:
        """Put two messages into each queue: no number is given again, and both are read."""
        for key in {known.key for known in self.messages}:
            end = 1 + max(known.queue_offset for known in self.messages if known.key == key)
            last = max(known.log_offset + len(known.record) for known in self.messages)
            for number in range(2):
                put = store.put_message(
                    Message(topic=key.topic, queue_id=key.queue_id, body=b"new %d" % number)
                )
                if put.queue_offset != end + number or put.log_offset < last:
                    yield f"{key}: a new message got {put.queue_offset}, at {put.log_offset}"
                    return
                got = store.get_message(*key, put.queue_offset)
                bodies = [decode_message(one.record).body for one in got.messages]
                if bodies != [b"new %d" % number]:
                    yield f"{key}: the new message is read as {bodies}"


class Tagged:
    """Chooses by tags code."""

    def __init__(self, tags_codes: frozenset[int]) -> None:
        self.tags_codes = tags_codes

    def matches_tags_code(self, tags_code: int) -> bool:
        return tags_code in self.tags_codes

    def matches_record(self, record: bytes) -> bool:
        return decode_message(record).tags_code in self.tags_codes


def _is_same(found: SelectedMessage, known: Known, *, is_hit: bool) -> bool:
    if (found.queue_offset, found.log_offset) != (known.queue_offset, known.log_offset):
        return False
    return is_hit or found.record == known.record
