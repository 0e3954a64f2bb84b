"""Flips single bits in every kind of file or object of a tier, and checks what follows.

No tests. `TierFlips` fills one tier, in a folder or in a bucket, shuts its broker down or kills it,
and knows what the tier holds. Each flip goes into a copy. A reader elsewhere and the broker read
the copy; it is verified, audited and put to. An answer must be right, an explicit error or
`complete=False`; anything else is silently wrong.

No checksum covers some fields of a record. `UNCOVERED` names them: a flip there may change answers
about the message that was hit, but about no other.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from tests.access.tiered_kit import a_config
from tests.local.bit_flips import HEAD, Flip, Outcome
from tests.local.bit_flips import UNCOVERED as UNCOVERED_LOCALLY
from tieredstore.access.audit import audit
from tieredstore.access.reader import TieredReader
from tieredstore.access.store import TieredMessageStore
from tieredstore.codec.broker_tables import TopicConfig
from tieredstore.codec.message import decode_message
from tieredstore.driver.object_client import ObjectFacts
from tieredstore.driver.runtime import Runtime
from tieredstore.index.footer import BLOCK_BYTES, decode_tail
from tieredstore.jobs import worker
from tieredstore.jobs.job import LocalEngine, run_job
from tieredstore.jobs.verify import VerifyJob
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.findings import Severity
from tieredstore.model.messages import SelectedMessage
from tieredstore.model.values import Boundary, GetStatus, QueueKey
from tieredstore.providers.certified import Certification
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.roundlog import upkeep
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import STORE_TIMESTAMP, a_message

TOPICS, QUEUES, COUNT, KEPT_FROM = ("Orders", "Bills"), 2, 48, 9
STEP_MS = 2_000
SLOTS = 20
SETTINGS: dict[str, Any] = {
    "commit_log_segment_bytes": 1_200,
    "consume_queue_segment_bytes": 80,
    "index_slot_count": SLOTS,
    "index_item_count": 36,
    "crc_check_enabled": True,
}
UNCOVERED = {*UNCOVERED_LOCALLY, "queue id"}
UNIT = {"unit offset": (0, 8), "unit size": (8, 4), "unit tags": (12, 8)}
KINDS = ("posix", "killed", "bucket")
"""A folder, a folder whose broker was killed, a bucket."""
GROUP, CONSUMED = "group-a", 7
BUCKETS: dict[str, MemoryObjects] = {}
"""By the setting `bucket`, for providers made from settings."""


class BucketInMemory(ObjectProvider):
    """A log in a bucket that outlives its providers."""

    @classmethod
    def from_config(cls, config: StoreConfig, runtime: Runtime) -> Self:
        client = MemoryObjectClient(BUCKETS[config.bucket])
        certification = Certification(page_keys=4)
        return cls(client, config.cluster_name, runtime, certification=certification)


class Known(NamedTuple):
    """A message that is in the tier."""

    key: QueueKey
    queue_offset: int
    store_timestamp: int
    record: bytes
    names: tuple[str, ...]


class TierFlips:
    """`kind` is one of KINDS. Paths begin with `disk`, or with `tier`."""

    def __init__(self, root: Path, kind: str) -> None:
        self._kind = kind
        self._root = root
        self._bucket = str(root)
        BUCKETS[self._bucket] = MemoryObjects()
        self._local = ListMessageStore(Runtime.inline(now_ms=STORE_TIMESTAMP))
        self.messages: list[Known] = []
        self.outcomes: Counter[tuple[str, Outcome]] = Counter()
        self.whole: dict[str, bytes] = {}
        self._merges: set[str] = set()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(upkeep, "GRACE_MS", 5 * STEP_MS)
            self._fill()
        self._objects = dict(BUCKETS[self._bucket].held)
        self._shapes = self._all_fields()

    # -- a tier -------------------------------------------------------------------------------

    @property
    def config(self) -> StoreConfig:
        place: dict[str, Any] = {"provider": "posix", "path": str(self._root / "tier")}
        if self._kind == "bucket":
            place = {"provider": f"{__name__}:{BucketInMemory.__name__}", "bucket": self._bucket}
        return a_config(self._root / "disk", **place, **SETTINGS)

    def _fill(self) -> None:
        """Fill the tier with sealed and open files; in a bucket, with log entries, data objects and
        sealed objects.
        """
        runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        self._local = ListMessageStore(runtime)
        store = TieredMessageStore(self._local, self.config, runtime=runtime)
        store.load()
        store.start()
        puts = []
        for number in range(COUNT):
            runtime.clock.advance(STEP_MS)  # type: ignore[attr-defined]
            names = (f"u{number}", f"k{number}")
            message = a_message(
                number,
                topic=TOPICS[number % 2],
                queue_id=number // 2 % QUEUES,
                body_bytes=100 if number % 3 else 137,
                properties={"TAGS": f"t{number % 5}", "UNIQ_KEY": names[0], "KEYS": names[1]},
            )
            put = store.put_message(message)
            puts.append((QueueKey(message.topic, message.queue_id), names, put))
            if number % 6 == 5:
                assert store.flush(seal=number == COUNT * 3 // 4 - 1)
                if number < COUNT * 3 // 4:  # later messages stay as their rounds left them
                    self._tend(store)
        for consumed in (4, CONSUMED):  # twice, so that each table has a backup beside it
            for key in {key for key, _, _ in puts}:
                store.consumer_offsets.commit(GROUP, *key, consumed)
                store.topic_table.put(TopicConfig(name=key.topic, read_queue_count=consumed))
            assert store.flush()
        if self._kind == "killed":
            self.whole = self._taken()
        store.shutdown()
        self.whole = self.whole or self._taken()
        with self._reader() as reader:
            for key, names, put in puts:
                found = reader.get_message(*key, put.queue_offset, count_max=1)
                time = put.store_timestamp
                record = found.messages[0].record
                self.messages.append(Known(key, put.queue_offset, time, record, names))

    def _tend(self, store: TieredMessageStore) -> None:
        """Do a broker's background work on a log: merge data, write states, drop old objects."""
        provider, held = store._loaded().tier.provider, BUCKETS[self._bucket].held
        before = set(held)
        for _ in range(100):
            if not provider.tend(self.config.broker_name):
                break
        self._merges |= {f"tier/{key}" for key in set(held) - before if "/data/" in key}

    def _taken(self) -> dict[str, bytes]:
        found = {
            str(path.relative_to(self._root)): path.read_bytes()
            for path in sorted(self._root.rglob("*"))
            if path.is_file() and path.stat().st_size
        }
        objects = BUCKETS[self._bucket].held
        return found | {f"tier/{key}": data for key, (data, _) in objects.items() if data}

    def _put_back(self, flip: Flip) -> None:
        data = bytearray(self.whole[flip.path])
        data[flip.position] ^= 1 << flip.bit
        for folder in ("disk", "tier"):
            shutil.rmtree(self._root / folder, ignore_errors=True)
        in_bucket = {f"tier/{key}" for key in self._objects}
        for path, content in self.whole.items():
            if path not in in_bucket:
                place = self._root / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data if path == flip.path else content)
        held: dict[str, tuple[bytes, ObjectFacts]] = dict(self._objects)
        if flip.path in in_bucket:
            key = flip.path.removeprefix("tier/")
            held[key] = bytes(data), held[key][1]
        BUCKETS[self._bucket] = MemoryObjects()
        BUCKETS[self._bucket].held = held

    # -- which bits ---------------------------------------------------------------------------

    def some(self, seed: int, count: int) -> Iterator[Flip]:
        """Random flips, evenly spread over the fields of each kind of file."""
        dice = random.Random(seed)
        fields = sorted(self._shapes)
        dice.shuffle(fields)
        for number in range(count):
            field = fields[number % len(fields)]
            path, start, width, row = dice.choice(self._shapes[field])
            at = start + dice.randrange(width)
            yield Flip(path, at, dice.randrange(8), field, row)

    def _all_fields(self) -> dict[str, list[tuple[str, int, int, int]]]:
        """All places of each field, by its name: path, position, width and message."""
        found: dict[str, list[tuple[str, int, int, int]]] = {}

        def add(field: str, path: str, start: int, width: int, row: int = -1) -> None:
            if width > 0:
                found.setdefault(field, []).append((path, start, width, row))

        for path, data in self.whole.items():
            kind = path.split("/")[-2]
            if kind in ("COMMIT_LOG", "CONSUME_QUEUE") and path.startswith("tier/"):
                continue
            if kind == "INDEX" and path.startswith("tier/"):
                self._add_index(path, data, add)
            else:
                what = "bucket: merge" if path in self._merges else _kind_of_file(path)
                add(what, path, 0, len(data))
        for row, known in enumerate(self.messages):
            place = self._file_of(known.key, "CONSUME_QUEUE", 20 * known.queue_offset)
            if place is None:
                continue  # its unit is in an entry of the log
            path, at = place
            unit = self.whole[path][at : at + 20]
            for field, (first, width) in UNIT.items():
                add(field, path, at + first, width, row)
            place = self._file_of(known.key, "COMMIT_LOG", int.from_bytes(unit[:8]))
            if place is None:
                continue
            path, at = place
            for field, (first, width) in HEAD.items():
                add(field, path, at + first, width, row)
            body = 88 + len(decode_message(known.record).body)
            topic = body + 1 + len(known.key.topic)
            add("body", path, at + 88, body - 88, row)
            add("topic", path, at + body, topic - body, row)
            add("properties", path, at + topic, len(known.record) - topic, row)
        return found

    def _add_index(self, path: str, data: bytes, add: Callable[..., None]) -> None:
        footer = decode_tail(data[-16 * 1024 :], file_bytes=len(data))
        for name, at, width in (("magic", 0, 4), ("begin", 4, 8), ("end", 12, 8), ("used", 20, 4)):
            add(f"index {name}", path, at, width)
        add("index count", path, 24, 4)
        add("index slot", path, 28, 8 * footer.slot_count)
        for item in range(footer.item_count):
            at = footer.items_position + 28 * item
            for name, first, width in (
                *(("hash", 0, 4), ("topic", 4, 4), ("queue", 8, 4)),
                *(("offset", 12, 8), ("size", 20, 4), ("seconds", 24, 4)),
            ):
                add(f"index item {name}", path, at + first, width)
        fences = footer.position + BLOCK_BYTES * footer.filter_blocks
        tail = fences + BLOCK_BYTES * footer.fence_blocks
        add("index filter", path, footer.position, fences - footer.position)
        add("index fences", path, fences, 64)
        add("index fences", path, fences, tail - fences)
        add("index tail", path, tail, len(data) - tail)

    def _file_of(self, key: QueueKey, kind: str, offset: int) -> tuple[str, int] | None:
        """The file or sealed object with this byte of a queue, and the position in it."""
        folder = f"/{key.topic}/{key.queue_id}/{kind}/"
        for path, data in self.whole.items():
            if folder in path and path.startswith("tier/"):
                base = int(path[-20:])
                if base <= offset < base + len(data):
                    return path, offset - base
        return None

    # -- what follows from a flip -------------------------------------------------------------

    def wrong(self, flip: Flip) -> list[str]:
        """What is silently wrong in the tier after this flip."""
        self._put_back(flip)
        check = _Check(self.messages, flip)
        with pytest.MonkeyPatch.context() as patch:
            inline = Runtime.inline(now_ms=STORE_TIMESTAMP)
            patch.setattr(worker, "_PARTS", worker._Parts(runtime=inline))
            check.run("a reader", self._read_elsewhere)
            check.run("verify", self._verify)
            check.run("audit", self._audit)
            check.run("the broker", self._as_broker)
        self.outcomes[flip.field, check.outcome] += 1
        return check.wrong

    def _reader(self) -> TieredReader:
        elsewhere = dataclasses.replace(self.config, store_path=str(self._root / "nowhere"))
        reader = TieredReader(elsewhere, runtime=Runtime.inline(now_ms=STORE_TIMESTAMP))
        reader.load()
        return reader

    def _read_elsewhere(self, check: _Check) -> None:
        with self._reader() as reader:
            check.by_offset(reader)
            check.runs(reader)
            check.by_key(reader)
            check.by_time(reader)
            check.filtered(reader)

    def _verify(self, check: _Check) -> None:
        runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        engine = LocalEngine(pool=runtime.dispatch, threads=1)
        report = run_job(VerifyJob(config=self.config), engine, clock=runtime.clock)
        check.is_found |= any(one.severity is Severity.DAMAGE for one in report.findings)

    def _audit(self, check: _Check) -> None:
        runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        with TieredReader(self.config, runtime=runtime) as reader:
            tier = reader._loaded()
            report = audit(tier.metadata, tier.provider, self.config, tier.runtime)
            check.is_found |= not report.is_clean

    def _as_broker(self, check: _Check) -> None:
        """Open the broker: it reads old messages from the tier, and puts and reads new ones."""
        runtime = Runtime.inline(now_ms=STORE_TIMESTAMP + COUNT * STEP_MS)
        local = ListMessageStore(runtime)
        local._log = list(self._local._log)
        local._queues = {key: list(rows) for key, rows in self._local._queues.items()}
        local._begins, local._end = dict(self._local._begins), self._local._end
        local.kept_from = local.cached_from = KEPT_FROM
        store = TieredMessageStore(local, self.config, runtime=runtime)
        store.load()
        try:
            store.start()
            check.by_offset(store)
            check.by_key(store)
            check.by_time(store)
            check.filtered(store)
            check.tables(store)
            check.goes_on(store)
            check.is_told |= not store.health().ok
        finally:
            store.shutdown()
        with self._reader() as reader:
            check.by_offset(reader)


def _kind_of_file(path: str) -> str:
    """The kind of a file: its name without numbers."""
    parts = path.split("/")
    if path.startswith("tier/.rounds"):
        return f"bucket: {parts[4]}"
    if path.startswith("tier/.catalog"):
        return "published catalogue"
    if path.startswith("tier/.certify"):
        return "certificate"
    name = parts[-1]
    if parts[-2] == "footers":
        return "copy of a footer"
    if parts[-2] == "tiered_index_file":
        return f"local index {name.lstrip('0123456789')}".rstrip()
    return name


class _Check:
    """Compares the answers of stores with the known messages."""

    def __init__(self, messages: list[Known], flip: Flip) -> None:
        self._messages = messages
        self._flip = flip
        self._hit = flip.row if flip.field in UNCOVERED else -1
        self._who = ""
        self.wrong: list[str] = []
        self.is_told = self.is_found = self.is_listed = False

    @property
    def outcome(self) -> Outcome:
        if self.wrong:
            return Outcome.WRONG
        if self.is_told:
            return Outcome.TOLD
        if self.is_found:
            return Outcome.FOUND
        return Outcome.LISTED if self.is_listed else Outcome.HARMLESS

    def run(self, who: str, look: Callable[[_Check], None]) -> None:
        self._who = who
        try:
            look(self)
        except TieredStoreError:
            self.is_told = True  # refused with a reason
        except Exception as error:  # noqa: BLE001 - a raw error of Python is what is looked for
            self._say(f"{type(error).__name__}: {error}")

    def _say(self, text: str) -> None:
        self.wrong.append(f"{self._who}: {text}")

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except TieredStoreError:
            self.is_told = True
            return None

    def _keys(self) -> Iterator[tuple[QueueKey, list[Known]]]:
        for key in dict.fromkeys(known.key for known in self._messages):
            yield key, [known for known in self._messages if known.key == key]

    def _is_same(self, found: SelectedMessage, known: Known) -> bool:
        if found.queue_offset != known.queue_offset:
            return False
        return _same(found.record, known.record) or self._is_hit(known)

    def _listed(self, is_listed: bool) -> bool:
        """Whether docs/durability.md lists this wrong answer."""
        self.is_listed |= is_listed
        return is_listed

    def _is_hit(self, known: Known) -> bool:
        return self._listed(self._hit >= 0 and self._messages[self._hit] == known)

    def _is_numbered_anew(self, known: Known) -> bool:
        """Whether the flip hit the message's offset: by key, nothing else tells its number."""
        return self._listed(
            self._flip.field == "queue offset" and self._messages[self._flip.row] == known
        )

    def by_offset(self, store: Any) -> None:
        """Read pages from the beginning to the end, as a consumer does, and each message alone."""
        for key, wanted in self._keys():
            first = self._asked(partial(store.min_offset, *key))
            end = self._asked(partial(store.max_offset, *key))
            if first or (end is not None and end < len(wanted)):
                self._say(f"{key}: {first} to {end}, not 0 to {len(wanted)}")
            for offset in range(0, len(wanted), 3):
                self._page(store, key, wanted, offset, count_max=1)
            offset = 0
            while offset < len(wanted):
                offset = self._page(store, key, wanted, offset)

    def _page(self, store: Any, key: QueueKey, wanted: list[Known], offset: int, **how: int) -> int:
        got = self._asked(partial(store.get_message, *key, offset, **how))
        if got is None:
            return offset + 1
        numbers = [one.queue_offset for one in got.messages]
        if got.status is not GetStatus.FOUND or numbers != list(range(offset, got.next_offset)):
            self._say(f"{key}: from {offset} {got.status.name} {numbers}, next {got.next_offset}")
            return offset + 1
        for one in got.messages:
            if one.queue_offset < len(wanted) and not self._is_same(one, wanted[one.queue_offset]):
                self._say(f"{key}: another record {one.queue_offset}")
        return int(got.next_offset)

    def runs(self, reader: TieredReader) -> None:
        for key, wanted in self._keys():
            expected = 0
            try:
                for _, run in reader.runs(*key):
                    for row in range(len(run)):
                        known = wanted[expected]
                        if not _same(bytes(run.record(row)), known.record) and not self._is_hit(
                            known
                        ):
                            self._say(f"{key}: the run has another {expected}")
                        expected += 1
            except TieredStoreError:
                self.is_told = True
                continue
            if expected != len(wanted):
                self._say(f"{key}: the runs end at {expected}")

    def by_key(self, store: Any) -> None:
        first = int(isinstance(store, TieredReader))
        step = 1 if "index" in self._flip.field else 3
        for row, known in enumerate(self._messages):
            if (row + first) % step and row != self._flip.row:
                continue
            one = (row // step + first) % 2
            for name in known.names if row == self._flip.row else known.names[one : one + 1]:
                got = self._asked(partial(store.query_message, known.key.topic, name))
                if got is None or not got.complete:
                    self.is_told |= got is not None and not got.lags
                    continue
                if len(got.messages) != 1:
                    if not self._is_hit(known):
                        self._say(f"{name}: {len(got.messages)} messages, complete")
                elif not (self._is_same(got.messages[0], known) or self._is_numbered_anew(known)):
                    self._say(f"{name}: another record")

    def by_time(self, store: Any) -> None:
        if self._listed(self._flip.field in ("store time", "system flag")):
            return  # the flip hit a field that tells the time
        for known in self._messages[::7]:
            found = self._asked(
                partial(store.offset_by_time, *known.key, known.store_timestamp, Boundary.LOWER)
            )
            if found is not None and found != known.queue_offset:
                self._say(f"{known.key}: by the time of {known.queue_offset} it is {found}")

    def filtered(self, store: Any) -> None:
        for known in self._messages[::11]:
            is_unit = self._flip.field == "unit tags" and self._messages[self._flip.row] == known
            if self._listed(is_unit) or self._is_hit(known):
                continue  # a filter trusts the unit
            tagged = Tagged(decode_message(known.record).tags_code)
            got = self._asked(
                partial(store.get_message, *known.key, known.queue_offset, message_filter=tagged)
            )
            numbers = [] if got is None else [one.queue_offset for one in got.messages]
            if got is not None and known.queue_offset not in numbers:
                self._say(f"{known.key}: {known.queue_offset} is not among those of its tag")

    def tables(self, store: TieredMessageStore) -> None:
        """Check consumer offsets and topics."""
        is_table = self._flip.field in ("consumerOffset.json", "topics.json")
        for key, _ in self._keys():
            offset, topic = (
                store.consumer_offsets.get(GROUP, *key),
                store.topic_table.get(key.topic),
            )
            is_same = topic is not None and topic.read_queue_count == CONSUMED
            if not (is_same and offset == CONSUMED) and not self._listed(is_table):
                self._say(f"{key}: {GROUP} has consumed {offset}, {topic}")

    def goes_on(self, store: TieredMessageStore) -> None:
        for key, wanted in self._keys():
            for number in range(2):
                message = a_message(COUNT + number, topic=key.topic, queue_id=key.queue_id)
                put = store.put_message(message)
                if put.stored and put.queue_offset != len(wanted) + number:
                    self._say(f"{key}: a new message got {put.queue_offset}")
        if not store.flush():
            self.is_told = True


class Tagged:
    """Selects messages by tags code."""

    def __init__(self, tags_code: int) -> None:
        self.tags_code = tags_code

    def matches_tags_code(self, tags_code: int) -> bool:
        return tags_code == self.tags_code

    def matches_record(self, record: bytes) -> bool:
        return decode_message(record).tags_code == self.tags_code


def _same(record: bytes, known: bytes) -> bool:
    """Whether the records agree but for the log offset: it is per queue in the tier, and no reader
    looks at it.
    """
    first, width = HEAD["log offset"]
    behind = first + width
    return record[:first] == known[:first] and record[behind:] == known[behind:]
