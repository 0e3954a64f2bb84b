"""What the catalogue costs in a store of 5 000 queues and 30 000 segments.

One update, with its sync and without, compared with a bare write of a line of that length; opening,
after a clean close and with a journal of the greatest length, compared with finding the words of
the same files with re. Prints one table, exits with 1 if a promise is missed:

    python -m bench.metadata
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

from bench._rows import Row, report, turns_row
from bench._timing import seconds_once
from tieredstore.metadata import JsonMetadataStore
from tieredstore.model.values import QueueRecord, SegmentRecord, SegmentType

TOPICS = 500
QUEUES_OF_A_TOPIC = 10
SEGMENTS_OF_A_FILE = 3
UPDATES = 1_000
TURNS = 5
UPDATE_PROMISED, SYNCED_PROMISED, OPEN_PROMISED = 0.02, 0.3, 0.25
LINE = bytes(300) + b"\n"

BROKER = "broker-a"
NOW_MS = 1_700_000_000_000


def queues() -> Iterator[QueueRecord]:
    for topic in range(TOPICS):
        for queue_id in range(QUEUES_OF_A_TOPIC):
            yield QueueRecord(
                broker_name=BROKER,
                topic=f"OrderEventsOfShop{topic}",
                queue_id=queue_id,
                update_timestamp=NOW_MS,
            )


def segments() -> Iterator[SegmentRecord]:
    for queue in queues():
        for kind, size in ((SegmentType.COMMIT_LOG, 1 << 30), (SegmentType.CONSUME_QUEUE, 1 << 27)):
            for number in range(SEGMENTS_OF_A_FILE):
                yield SegmentRecord(
                    path=f"{BROKER}/{queue.topic}/{queue.queue_id}",
                    type=kind,
                    base_offset=number * size,
                    size=size,
                    create_timestamp=NOW_MS,
                    begin_timestamp=NOW_MS + number,
                    end_timestamp=NOW_MS + number + 1,
                )


def fill(path: Path) -> None:
    with JsonMetadataStore.open(path) as store:
        for topic in range(TOPICS):
            store.add_topic(f"OrderEventsOfShop{topic}")
        store.put(*queues())
        store.put(*segments())


def update_seconds(store: JsonMetadataStore, rows: list[SegmentRecord]) -> float:
    """One row a batch, as in a commit of one segment."""
    spent = []
    for number in range(UPDATES):
        row = rows[number * 7 % len(rows)]
        row = replace(row, size=row.size - number)
        spent.append(seconds_once(partial(store.put, row)))
    return statistics.median(spent)


def write_seconds(path: Path, *, synced: bool) -> float:
    """Write only the lines, one at a time."""
    with path.open("ab", buffering=0) as file:

        def write() -> None:
            file.write(LINE)
            if synced:
                os.fdatasync(file.fileno())

        return statistics.median(seconds_once(write) for _ in range(UPDATES))


def open_seconds(path: Path) -> float:
    """Seconds to open the catalogue, which is left as it was."""
    started = time.perf_counter()
    store = JsonMetadataStore.open(path)
    spent = time.perf_counter() - started
    abandon(store)
    return spent


def parse_seconds(*paths: Path) -> float:
    return seconds_once(lambda: [re.findall(rb"\w+", path.read_bytes()) for path in paths])


def abandon(store: JsonMetadataStore) -> None:
    """Close without compaction: the journal stays, as after a crash."""
    with mock.patch("tieredstore.metadata.files.CatalogueWriter.compact"):
        store.close()


def long_journal(path: Path, rows: list[SegmentRecord]) -> int:
    """Leave a journal just below the length at which it is compacted."""
    length_max = path.stat().st_size
    journal = path.with_name(path.name + ".journal")
    store = JsonMetadataStore.open(path)
    with mock.patch("os.fdatasync"):
        number = 0
        while not journal.exists() or journal.stat().st_size < length_max - 1_000:
            row = rows[number % len(rows)]
            store.put(replace(row, size=row.size - 1))
            number += 1
    abandon(store)
    return number


def rows_of(path: Path) -> Iterator[Row]:
    rows = list(segments())
    other = path.with_name("lines")
    store = JsonMetadataStore.open(path)
    for what, synced, promised in (
        ("one update, its sync left out (a bare write)", False, UPDATE_PROMISED),
        ("one update, synced (a bare write, synced)", True, SYNCED_PROMISED),
    ):
        bare, ours = [], []
        for _ in range(TURNS):
            bare.append(write_seconds(other, synced=synced))
            with nullcontext() if synced else mock.patch("os.fdatasync"):
                ours.append(update_seconds(store, rows))
        yield turns_row(what, bare, ours, unit="s", promised=promised)
    store.close()
    yield open_row("open after a clean close", path)
    lines = long_journal(path, rows)
    yield open_row(f"open with {lines} lines to replay", path)
    bare, ours = [], []
    store = JsonMetadataStore.open(path)
    for _ in range(TURNS):
        bare.append(parse_seconds(path))
        ours.append(seconds_once(store.compact))
    store.close()
    yield turns_row("compaction (its words by re)", bare, ours, unit="s")


def open_row(what: str, path: Path) -> Row:
    bare, ours = [], []
    journal = path.with_name(path.name + ".journal")
    for _ in range(TURNS):
        bare.append(parse_seconds(*(each for each in (path, journal) if each.exists())))
        ours.append(open_seconds(path))
    what = f"{what} (its words by re)"
    return turns_row(what, bare, ours, unit="s", promised=OPEN_PROMISED)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tieredStoreMetadata.json"
        fill(path)
        queue_count = TOPICS * QUEUES_OF_A_TOPIC
        segment_count = queue_count * 2 * SEGMENTS_OF_A_FILE
        size = path.stat().st_size / 1e6
        print(f"{queue_count} queues, {segment_count} segments, snapshot of {size:.1f} MB")
        return report("metadata", [*rows_of(path)])


if __name__ == "__main__":
    sys.exit(main())
