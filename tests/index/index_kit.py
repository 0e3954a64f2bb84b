"""Shared by the tests of the key index: columns from rows, small files, a linear scan, and uploaded
files in memory whose reads are recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.codec.golden_files import CLUSTER, GOLDEN, expected
from tieredstore.codec.java import index_key
from tieredstore.codec.key_hashes import key_hashes
from tieredstore.index.compaction import Compaction
from tieredstore.index.footer import NearFooter, decode_tail
from tieredstore.index.keys import IndexColumns, Match
from tieredstore.index.local_file import IndexStoreFile
from tieredstore.index.uploaded import UploadedFile

SLOTS, ITEMS = 97, 1300
BEGIN = 1_750_000_000_000
FACTS = expected("tier-index.expect.json")["facts"]
BEGINS: list[int] = FACTS["fileBeginTimestamps"]
UPLOADED_FOLDER = GOLDEN / f"tier-index/tiered/{CLUSTER}/broker-gold-a/rmq_sys_INDEX/0/INDEX"
UPLOADED = {int(path.name[-20:]): path.read_bytes() for path in UPLOADED_FOLDER.iterdir()}


class Row(NamedTuple):
    """One key of one message, as it was put."""

    text: str
    topic_id: int
    queue_id: int
    log_offset: int
    message_bytes: int
    store_timestamp: int


def columns_of(rows: Sequence[Row]) -> IndexColumns:
    numbers = np.array([row[1:] for row in rows], np.int64).reshape(len(rows), 5)
    return IndexColumns(
        key_hashes=key_hashes([row.text for row in rows]),
        topic_ids=numbers[:, 0],
        queue_ids=numbers[:, 1],
        log_offsets=numbers[:, 2],
        message_bytes=numbers[:, 3],
        store_timestamps=numbers[:, 4],
    )


def golden_rows(number: int) -> list[Row]:
    """The puts into one of Java's files, with one row for each key."""
    found = []
    for row in expected("tier-index.puts.json"):
        file, topic, queue_id, keys, log_offset, size, timestamp, result = row
        if file == number and result == "SUCCESS":
            name, topic_id = FACTS["topics"][topic], FACTS["topicIds"][topic]
            found += [
                Row(index_key(name, key), topic_id, queue_id, log_offset, size, timestamp)
                for key in keys
            ]
    return found


def create(folder: Path, begin: int = BEGIN, slots: int = SLOTS, items: int = ITEMS) -> Any:
    return IndexStoreFile.create(folder, begin, slot_count=slots, item_capacity=items)


def reopen(path: Path, slots: int = SLOTS, items: int = ITEMS, **how: Any) -> IndexStoreFile:
    return IndexStoreFile.open(path, slot_count=slots, item_capacity=items, **how)


def place(item: Match) -> tuple[int, int, int]:
    return item.topic_id, item.queue_id, item.log_offset


def check_javas_answers(file: IndexStoreFile | UploadedFile, begin: int) -> int:
    """Ask all questions that Java was asked about this file, and return how many they are. Each
    answer must have all hits of a scan, in its order, and all that Java found.
    """
    rows, asked = golden_rows(BEGINS.index(begin)), 0
    for row in expected("tier-index.expect.json")["answers"]:
        query = row["query"]
        if query["op"] != "indexFileQuery" or query["file"] != begin:
            continue
        text = index_key(query["topic"], query["key"])
        when = {"begin": query["begin"], "end": query["end"]}
        ours = [place(item) for item in file.find(text, **when, count_max=100_000)]
        rest = iter(ours)
        assert all(wanted in rest for wanted in scan(rows, text, **when))
        assert {tuple(item[:3]) for item in row["result"].get("items", [])} <= set(ours)
        asked += 1
    return asked


def scan(
    rows: Sequence[Row], text: str, *, begin: int, end: int, slack: int = 0
) -> list[tuple[int, int, int]]:
    """The places of the messages with this key, newest first, found by looking at every row."""
    return [
        (row.topic_id, row.queue_id, row.log_offset)
        for row in reversed(rows)
        if row.text == text and begin - slack <= row.store_timestamp <= end + slack
    ]


@dataclass(slots=True)
class Bytes:
    """A file that records which ranges are read."""

    data: bytes
    reads: list[tuple[int, int]] = field(default_factory=list)

    def read(self, position: int, length: int) -> bytes:
        assert position >= 0
        assert length > 0
        self.reads.append((position, length))
        return self.data[position : position + length]


def uploaded(file: IndexStoreFile, *, footer: bool = True) -> bytes:
    with closing(Compaction.of_file(file)) as compaction:
        blocks = compaction.whole() if footer else compaction.blocks()
        return b"".join(bytes(block) for block in blocks)


def cold(data: bytes, slots: int) -> tuple[UploadedFile, Bytes]:
    """The file as opened by a reader without a cache."""
    source = Bytes(data)
    return UploadedFile.open(source.read, len(data), slot_count=slots, path="index"), source


def warm(data: bytes) -> tuple[UploadedFile, Bytes]:
    """The file as opened by a reader that has a copy of the footer."""
    footer = decode_tail(data[-16 * 1024 :], file_bytes=len(data))
    copy = data[footer.position :]
    near = NearFooter.open(
        Bytes(copy).read, len(copy), file_bytes=len(data), path="copy of a footer"
    )
    source = Bytes(data)
    return UploadedFile.with_footer(source.read, near.footer, near=near, path="index"), source
