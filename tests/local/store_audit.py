"""What the tests of a store's recovery share: small stores, and an audit against the log.

No tests.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tieredstore.codec.message import decode_message
from tieredstore.driver.runtime import Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore, LocalStore
from tieredstore.model.messages import PutResult
from tieredstore.model.values import GetStatus, QueueKey
from tieredstore.testing.samples import TOPIC, a_message

# A store in which messages expire file by file, a few messages each.
EXPIRING: dict[str, object] = {
    "commit_log_file_bytes": 8_192,
    "reserve_hours": 0,
    "delete_count_max": 1,
    "flush_disk_type": "SYNC_FLUSH",
    "disk_full_percent": 100,
    "disk_clean_percent": 100,
}


opened_stores: list[LocalMessageStore] = []


def expire_one_file(store: LocalMessageStore) -> int:
    """Make the oldest log file old and run retention; return how many files it deleted."""
    parts = parts_of(store)
    os.utime(parts.log.queue.files[0].path, (1, 1))
    return parts.retention.step()


class Ack(NamedTuple):
    """A put that returned."""

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    unique_key: str
    key: str
    message_id: str

    @classmethod
    def of(cls, topic: str, queue_id: int, unique_key: str, key: str, result: PutResult) -> Ack:
        where = result.queue_offset, result.log_offset
        return cls(topic, queue_id, *where, unique_key, key, result.message_id)


def a_config(root: Path, **settings: object) -> LocalConfig:
    small: dict[str, object] = {
        "store_path": str(root),
        "commit_log_file_bytes": 32_768,
        "queue_file_bytes": 400,
        "index_slot_count": 101,
        "index_item_count": 150,
        "dispatch_interval_ms": 0,
        "disk_full_percent": 100,
        "disk_clean_percent": 100,
    }
    return LocalConfig.from_mapping({**small, **settings})


def opened(root: Path, runtime: Runtime | None = None, /, **settings: object) -> LocalMessageStore:
    """Open a small store; it ends with the test that opened it, if not before."""
    store = LocalMessageStore(a_config(root, **settings), runtime or Runtime.inline())
    store.load()
    store.start()
    opened_stores.append(store)
    return store


def put_acked(store: LocalMessageStore, number: int, *, topic: str = TOPIC, queue_id: int) -> Ack:
    put = store.put_message(a_message(number, topic=topic, queue_id=queue_id))
    return Ack.of(topic, queue_id, f"UNIQ-{number:08d}", f"key-{number}", put)


def filled(root: Path, count: int, **settings: object) -> list[Ack]:
    """Put messages into two queues in turn and shut the store down."""
    store = opened(root, **settings)
    acks = [put_acked(store, number, queue_id=number % 2) for number in range(count)]
    store.shutdown()
    return acks


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip_bits(path: Path, position: int, bits: int) -> None:
    overwrite(path, position, bytes([path.read_bytes()[position] ^ bits]))


def takes_what_java_writes(store: LocalMessageStore) -> LocalMessageStore:
    """Let the puts of this store take properties that no producer may send; return the store."""
    store._encoder.never_sent = {}
    return store


def parts_of(store: LocalMessageStore) -> LocalStore:
    parts = store._parts
    assert parts is not None
    return parts


def crash(store: LocalMessageStore) -> None:
    """Let go of the store as a dying process does: written data stays, nothing is shut down."""
    parts = parts_of(store)
    parts.log.queue._spares = []
    store._parts = None
    assert store._lock is not None
    store._lock.release()
    store._started = False


def cut(root: Path, sure: int, count: int, *holes: int) -> list[Ack]:
    """Make a store that lost power when the checkpoint vouched for `sure` of `count` messages; the
    messages `holes` are all zeros."""
    store = opened(root)
    acks = [put_acked(store, number, queue_id=number % 2) for number in range(sure)]
    store.flush()
    acks += [put_acked(store, number, queue_id=number % 2) for number in range(sure, count)]
    crash(store)
    path = root / "commitlog" / f"{0:020d}"
    for hole in holes:
        size = acks[hole + 1].log_offset - acks[hole].log_offset
        overwrite(path, acks[hole].log_offset, bytes(size))
    return acks


def check_acks(store: LocalMessageStore, acks: Iterable[Ack]) -> None:
    """Check that each message is found once by queue offset, by both keys and by log offset."""
    for ack in acks:
        got = store.get_message(ack.topic, ack.queue_id, ack.queue_offset, count_max=1)
        assert got.status is GetStatus.FOUND, ack
        [found] = got.messages
        message = decode_message(found.record)
        assert (message.unique_key, message.topic) == (ack.unique_key, ack.topic), ack
        assert (found.queue_offset, found.log_offset) == (ack.queue_offset, ack.log_offset), ack
        for key in (ack.unique_key, ack.key):
            [same] = store.query_message(ack.topic, key).messages
            assert same.log_offset == ack.log_offset, (key, ack)
        at = store.message_at(ack.log_offset)
        assert at is not None
        assert at.record == found.record, ack
        assert message.offset_id == ack.message_id


def check_agreement(store: LocalMessageStore) -> int:
    """Check that queues and index hold just what the log holds, once; return the message count."""
    parts = parts_of(store)
    parts.dispatch.drain()
    minimum = parts.log.min_offset or 0
    queues: dict[QueueKey, list[tuple[int, int, int, int]]] = defaultdict(list)
    keys: dict[tuple[str, str], list[int]] = defaultdict(list)
    count = 0
    for columns in parts.log.scan_from(minimum):
        for row, topic in enumerate(columns.topics()):
            at = int(columns.log_offsets[row])
            if at < parts.deleted.end_of(topic):
                continue
            message = decode_message(columns.record(row))
            key = QueueKey(topic, message.queue_id)
            unit = (message.queue_offset, at, int(columns.sizes[row]), message.tags_code)
            queues[key].append(unit)
            assert message.unique_key is not None
            keys[topic, message.unique_key].append(at)
            count += 1
    assert {key for key in store.queues() if parts.queues.ends()[key].last_log_end > minimum} == {
        *queues
    }
    for key, wanted in queues.items():
        queue = parts.queues.queue(*key)
        assert queue is not None
        units = queue.units(queue.min_offset, queue.max_offset - queue.min_offset)
        columns_of_units = (
            range(queue.min_offset, queue.max_offset),
            units.log_offsets.tolist(),
            units.message_bytes.tolist(),
            units.tags_codes.tolist(),
        )
        assert list(zip(*columns_of_units, strict=True)) == wanted, key
    for (topic, unique_key), places in keys.items():
        found = store.query_message(topic, unique_key).messages
        assert [one.log_offset for one in found] == places[::-1], unique_key
    if parts.index is not None:
        check_index(parts)
    return count


def check_index(parts: LocalStore) -> None:
    """Check that no item is missing or doubled; a damaged message may lack some of its keys."""
    assert parts.index is not None
    items = [
        (file.log_offset_at(number), number, file.name)
        for file in parts.index._files
        for number in range(1, file.header.next_item)
    ]
    assert [at for at, _, _ in items] == sorted(at for at, _, _ in items)
    per_message: dict[int, int] = defaultdict(int)
    for at, _, _ in items:
        per_message[at] += 1
    minimum = parts.log.min_offset or 0
    in_log = {int(at) for columns in parts.log.scan_from(minimum) for at in columns.log_offsets}
    # Every message of these tests has two or three keys.
    assert {count for at, count in per_message.items() if at in in_log} <= {2, 3}
    assert set(per_message.values()) <= {1, 2, 3}
