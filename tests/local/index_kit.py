"""What the tests of the key index share: golden messages as batches, small stores, a slow index.

No tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

import numpy as np

from tests.codec.golden_files import local_records
from tieredstore.codec.java import local_key_hash, local_key_hashes
from tieredstore.codec.local_index import decode_item, decode_slot
from tieredstore.codec.message import decode_message
from tieredstore.codec.record import split_keys
from tieredstore.driver.runtime import Clock, ManualClock
from tieredstore.local.config import LocalConfig
from tieredstore.local.index_file import IndexFile, IndexSize, ItemColumns
from tieredstore.local.index_service import IndexBatch, IndexService, key_texts

GOLDEN_SLOTS, GOLDEN_ITEMS = 101, 400
FOREVER = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One message as the index sees it."""

    log_offset: int
    store_timestamp: int
    texts: tuple[str, ...]
    sys_flag: int = 0


def batch_of(rows: Iterable[Row]) -> IndexBatch:
    rows = list(rows)
    return IndexBatch(
        log_offsets=[row.log_offset for row in rows],
        store_timestamps=[row.store_timestamp for row in rows],
        sys_flags=[row.sys_flag for row in rows],
        key_counts=np.array([len(row.texts) for row in rows], np.int64),
        key_hashes=local_key_hashes([text for row in rows for text in row.texts]),
    )


def put_all(service: IndexService, rows: list[Row], *, batch_size: int = 256) -> None:
    for start in range(0, len(rows), batch_size):
        service.put(batch_of(rows[start : start + batch_size]))


def replay(service: IndexService, rows: list[Row], *, start: int) -> None:
    put_all(service, [row for row in rows if row.log_offset >= start])


def columns_of(puts: Iterable[tuple[str, int, int]]) -> ItemColumns:
    """Columns from (text, log offset, store timestamp)."""
    rows = list(puts)
    return ItemColumns(
        key_hashes=local_key_hashes([text for text, _, _ in rows]),
        log_offsets=np.array([row[1] for row in rows], np.int64),
        store_timestamps=np.array([row[2] for row in rows], np.int64),
    )


def row_of(record: bytes) -> Row:
    message = decode_message(record)
    texts = key_texts(
        message.topic,
        unique_key=message.properties.get("UNIQ_KEY"),
        keys=split_keys(message.properties.get("KEYS")),
    )
    return Row(
        log_offset=message.log_offset,
        store_timestamp=message.store_timestamp,
        texts=tuple(texts),
        sys_flag=message.sys_flag,
    )


@cache
def golden_rows() -> tuple[Row, ...]:
    """Every message of the golden log, in its order."""
    return tuple(row_of(record) for record in local_records())


class NamingClock(ManualClock):
    """Tells the times of the given file names in turn, then repeats the last one."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self._names = list(names)

    def now_ms(self) -> int:
        name = self._names.pop(0) if len(self._names) > 1 else self._names[0]
        moment = datetime.strptime(name[:14], "%Y%m%d%H%M%S").astimezone()  # names are local
        return int(moment.timestamp()) * 1000 + int(name[14:])


def service_at(
    root: Path, *, slots: int = 7, items: int = 16, clock: Clock | None = None
) -> IndexService:
    """A service that is not loaded yet."""
    config = LocalConfig(
        store_path=str(root),
        index_slot_count=slots,
        index_item_count=items,
    )
    return IndexService(config, clock=clock or ManualClock())


def loaded(root: Path, *, slots: int = 7, items: int = 16) -> IndexService:
    service = service_at(root, slots=slots, items=items)
    service.load(abnormal=False)
    return service


def made_up_rows(count: int, *, start: int = 0, first_time: int = 1_700_000_000_000) -> list[Row]:
    """Messages with 0 to 3 keys, all keys different; some messages are rolled back."""
    return [
        Row(
            log_offset=100 * number,
            store_timestamp=first_time + 700 * number,
            texts=tuple(f"T#{number}-{key}" for key in range((number * 7 + 1) % 4)),
            sys_flag=0x0C if number % 11 == 10 else 0,
        )
        for number in range(start, start + count)
    ]


def found_once(service: IndexService, rows: Iterable[Row]) -> None:
    """Check that every key finds its message once, even in raw answers, which keep duplicates."""
    for row in rows:
        times = {"begin": 0, "end": FOREVER}
        for text in row.texts:
            topic, _, key = text.partition("#")
            want = [row.log_offset] if row.sys_flag & 0x0C != 0x0C else []
            answer = ask_like_java(service, topic, key, count_max=64, **times)
            assert [offset for offset in answer if offset == row.log_offset] == want
            known = list(service.candidates(topic, key, **times))
            assert [offset for offset in known if offset == row.log_offset] == want


def index_bytes(root: Path) -> dict[str, bytes]:
    """The content of every index file."""
    return {path.name: path.read_bytes() for path in sorted((root / "index").iterdir())}


T0 = 1_700_000_000_000
NAME = "20261120104532885"
PUTS = [
    ("T#a", 100, T0),
    ("T#b", 200, T0 + 1999),
    ("T#a", 300, T0 + 2000),
    ("T#k", 400, T0 - 5000),
    ("polygenelubricants", 500, T0 + 7000),
    ("T#a", 600, T0 + 999_999),
    ("T#z", 700, T0 + 1_000_000),
]
ROLLED_PUTS = [("T#a", 900, T0 + 1_005_000), ("T#a", 1000, T0 + 1_006_500)]


def new_file(
    root: Path, *, slots: int = 10, items: int = 8, end: tuple[int, int] = (0, 0)
) -> IndexFile:
    timestamp, log_offset = end
    return IndexFile.create(
        root / NAME,
        IndexSize(slots, items),
        end_timestamp=timestamp,
        end_log_offset=log_offset,
    )


def rolled_file(root: Path) -> IndexFile:
    file = new_file(root, end=(T0 + 1_000_000, 700))
    assert file.put(columns_of(ROLLED_PUTS)) == 2
    return file


def java(
    file: IndexFile, text: str, begin: int = 0, end: int = FOREVER, top: int = 64
) -> list[int]:
    """What Java answers from one file: log offsets, newest first."""
    data, size, header = file.path.read_bytes(), file.size, file.header
    key_hash = local_key_hash(text)
    found: list[int] = []
    item = decode_slot(data, 40 + 4 * (key_hash % size.slot_count))
    while len(found) < top and 0 < item < header.next_item:
        stored, log_offset, seconds, previous = decode_item(data, size.position(item))
        timestamp = header.begin_timestamp + 1000 * seconds
        if seconds < 0:
            break
        if stored == key_hash and begin <= timestamp <= end:
            found.append(log_offset)
        # Java stops only at a link to the item itself: a damaged file may make it loop forever.
        if previous >= item or timestamp < begin:
            break
        item = previous
    return found


def ask_like_java(
    service: IndexService,
    topic: str,
    key: str,
    *,
    count_max: int,
    begin: int = 0,
    end: int = FOREVER,
) -> list[int]:
    """What Java answers from all files: at most 64, without the messages that Java misses."""
    found: list[int] = []
    count_max = min(count_max, 64)
    for file in reversed(service._files):
        first, last = file.header.begin_timestamp, file.header.end_timestamp
        if first <= begin <= last or first <= end <= last or (begin < first and end > last):
            found += java(file, f"{topic}#{key}", begin, end, count_max - len(found))
        if first < begin or len(found) >= count_max:
            break
    return found


def candidates(file: IndexFile, text: str, begin: int = 0, end: int = FOREVER) -> list[int]:
    return list(file.candidates(local_key_hash(text), begin=begin, end=end))
