"""Local stores of every kind of message, and the questions that Java and we both answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop.verifier import verify
from tieredstore.codec.message import decode_message
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.index_service import IndexService
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.messages import Message, SelectedMessage
from tieredstore.model.values import INT64_MAX, Boundary, Host, QueueKey
from tieredstore.testing.samples import a_body

Row = dict[str, Any]

START_MS = 1_700_000_000_000
LONG_TOPIC = "LongTopic_" + "x" * 190
CHINESE_TOPIC = "主题" * 30  # 60 characters, 180 bytes
SMALLEST_HASH = "polygenelubricants"  # its hash is -2**31
IPV4 = Host(bytes([192, 168, 1, 10]), 54321)
IPV6 = Host(bytes(range(0x20, 0x30)), 10911)
HOSTS = [(IPV4, IPV4), (IPV6, IPV4), (IPV4, IPV6), (IPV6, IPV6)]
PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC
FLAGS = [0, 1, 2, PREPARED, COMMIT, ROLLBACK, 0x40, 0x101, 0x201, 0x301, COMMIT | 1, 0]
QUEUES = [
    *(QueueKey("TopicTest", number) for number in range(3)),
    QueueKey("%RETRY%group", 0),
    QueueKey(LONG_TOPIC, 0),
    QueueKey(CHINESE_TOPIC, 1),
    QueueKey("SCHEDULE_TOPIC_XXXX", 2),
    QueueKey("a-b-0", 7),
]
TAGS = ["TagA", "TagB", "标签😀", "", SMALLEST_HASH]


def a_config(root: Path, **settings: object) -> LocalConfig:
    small: dict[str, object] = {
        "store_path": str(root),
        "commit_log_file_bytes": 16_384,
        "queue_file_bytes": 400,
        "index_slot_count": 101,
        "index_item_count": 300,
        "dispatch_interval_ms": 0,
        "reserve_hours": 1_000_000,
    }
    return LocalConfig.from_mapping({**small, **settings})


def opened(root: Path, *, now_ms: int = START_MS, **settings: object) -> LocalMessageStore:
    store = LocalMessageStore(a_config(root, **settings), Runtime.inline(now_ms=now_ms))
    store.load()
    store.start()
    return store


def a_variety(count: int, first: int = 0) -> list[Message]:
    """Messages that between them have everything a record can have."""
    return [_one(number) for number in range(first, first + count)]


def _one(number: int) -> Message:
    topic, queue_id = QUEUES[number * 7 % len(QUEUES)]
    born, store = HOSTS[number // 3 % 4]
    tag = TAGS[number % len(TAGS)]
    keys = [f"key-{number}", "shared", "键😀", f" {SMALLEST_HASH}", f"mod-{number % 11}"]
    properties = {"KEYS": " ".join(keys[: number % 6]), "TAGS": tag, "colour": "grün"}
    properties = {name: text for name, text in properties.items() if text}
    if number % 3:
        properties["UNIQ_KEY"] = f"7F00000100002A9F{number:016X}"
    if topic == "SCHEDULE_TOPIC_XXXX":
        properties["DELAY"] = str(number % 23)
    return Message(
        topic=topic,
        queue_id=queue_id,
        body=b"" if number % 29 == 0 else a_body(number, number * 37 % 700),
        properties={} if number % 31 == 0 else properties,
        flag=number - 50,
        sys_flag=FLAGS[number // 2 % len(FLAGS)],
        born_timestamp=START_MS + number,
        born_host=born,
        store_host=store,
        reconsume_times=number % 4,
        prepared_transaction_offset=number * 11,
    )


def clock_of(store: LocalMessageStore) -> ManualClock:
    clock = store._runtime.clock
    assert isinstance(clock, ManualClock)
    return clock


def put_variety(store: LocalMessageStore, count: int, *, batch: int = 1, first: int = 0) -> None:
    """Put such messages while the clock stands still, walks and jumps."""
    messages = a_variety(count, first)
    clock = clock_of(store)
    for at in range(0, count, batch):
        results = store.put_messages(messages[at : at + batch])
        assert results.all_ok, [row.reason for row in results]
        clock.advance([0, 1, 7, 450, 1_300, 0][at // batch % 6])


@dataclass(frozen=True, kw_only=True)
class Known:
    """A message that must be there."""

    topic: str
    queue_id: int
    in_queue: bool
    selected: SelectedMessage


def all_messages(store: LocalMessageStore) -> dict[int, Known]:
    """Every record of the log by its offset, by a scan."""
    known = {}
    parts = store._loaded()
    for columns in parts.log.scan_from(store.min_log_offset() or 0):
        for log_offset in columns.log_offsets.tolist():
            selected = store.message_at(log_offset)
            assert selected is not None
            message = decode_message(selected.record)
            known[log_offset] = Known(
                topic=message.topic,
                queue_id=message.queue_id,
                in_queue=not message.sys_flag & PREPARED,
                selected=selected,
            )
    return known


def questions(store: LocalMessageStore, known: dict[int, Known]) -> list[Row]:
    """Questions about every queue and many keys."""
    asked: list[Row] = []
    for topic, queue_id in [*store.queues(), QueueKey("Nobody", 0)]:
        place = {"topic": topic, "queueId": queue_id}
        low, high = store.min_offset(topic, queue_id) or 0, store.max_offset(topic, queue_id) or 0
        asked += [{"op": op, **place} for op in ("minOffset", "maxOffset", "earliestTime")]
        for offset in sorted({-1, 0, low - 1, low, low + 1, low + 25, high - 1, high, high + 9}):
            for op in ("storeTimestamp", "commitLogOffset", "inStore"):
                asked.append({"op": op, "offset": offset, **place})
            get = {"op": "getMessage", "offset": offset, **place}
            asked += [{**get, "maxMsgNums": count} for count in (1, 5, 32, 1000)]
            asked.append({**get, "maxMsgNums": 32, "maxTotalMsgSize": 1_500})
            asked.append({**get, "maxMsgNums": 32, "tags": ["标签😀", SMALLEST_HASH]})
        for time in _times(store, topic, queue_id):
            for boundary in Boundary:
                by_time = {"op": "offsetByTime", "timestamp": time, "boundary": boundary.name}
                asked.append({**by_time, **place})
    return asked + list(_key_questions(known)) + _places(known)


def _times(store: LocalMessageStore, topic: str, queue_id: int) -> list[int]:
    stored = [
        store.store_time(topic, queue_id, offset)
        for offset in range(
            store.min_offset(topic, queue_id) or 0, store.max_offset(topic, queue_id) or 0
        )
    ]
    times = {START_MS - 1, START_MS + 10**9}
    for time in stored[::3]:
        if time is not None:
            times |= {time - 1, time, time + 1}
    return sorted(times)


def _key_questions(known: dict[int, Known]) -> Iterator[Row]:
    keys = ["shared", "键😀", SMALLEST_HASH, "none", *(f"mod-{number}" for number in range(11))]
    pairs = {(topic, key) for topic, _ in QUEUES for key in keys}
    for one in list(known.values())[::5]:
        message = decode_message(one.selected.record)
        pairs |= {(one.topic, key) for key in message.keys}
        if message.unique_key:
            pairs.add((one.topic, message.unique_key))
    for topic, key in sorted(pairs):
        for begin, end in ((0, INT64_MAX), (START_MS + 5_000, START_MS + 20_000)):
            for count in (3, 64):
                times = {"begin": begin, "end": end, "maxNum": count}
                yield {"op": "queryOffset", "topic": topic, "key": key, **times}
                yield {"op": "queryMessage", "topic": topic, "key": key, **times}


def _places(known: dict[int, Known]) -> list[Row]:
    return [{"op": "lookMessage", "physicalOffset": place} for place in sorted(known)[::7]]


def java(root: Path, work: Path, *options: str, ask: list[Row] | None = None) -> list[Row]:
    """What Java's store says of this directory, with the sizes that `a_config` has."""
    config = a_config(root)
    if ask is not None:
        file = work / "questions.json"
        file.write_text(json.dumps(ask, ensure_ascii=False), encoding="utf-8")
        options = (*options, "--queries", str(file))
    return verify(
        "local",
        *("--store", str(root)),
        *("--commitlog-size", str(config.commit_log_file_bytes)),
        *("--cq-size", str(config.queue_file_bytes)),
        *("--index-slots", str(config.index_slot_count)),
        *("--index-items", str(config.index_item_count)),
        *options,
        work=work,
    )


def index_of(root: Path) -> IndexService:
    """Only the index of a store that is shut down."""
    index = IndexService(a_config(root), clock=ManualClock(START_MS))
    index.load(abnormal=False)
    return index


def digest(records: list[bytes]) -> str:
    return hashlib.sha256(b"".join(records)).hexdigest()


def without_lock(_folder: str, names: list[str]) -> list[str]:
    """The files to ignore in a copy of an open store: reading the lock file would drop our lock."""
    return [name for name in names if name == "lock"]
