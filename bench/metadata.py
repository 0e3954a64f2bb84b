"""What the catalogue costs in a store of 5 000 queues and 30 000 segments.

Prints the median of one update, with its sync and without, and the time that opening takes, after
a clean close and with a journal as long as it gets. Exits with 1 where a target is missed:

    python -m bench.metadata
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

from bench._rows import Row, report
from tieredstore.metadata import JsonMetadataStore
from tieredstore.model.values import QueueRecord, SegmentRecord, SegmentType

TOPICS = 500
QUEUES_OF_A_TOPIC = 10
SEGMENTS_OF_A_FILE = 3
UPDATES = 2_000
OPENS = 5
UPDATE_MS_MAX = 1.0
OPEN_MS_MAX = 2_000.0

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


def spent_ms(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1_000


def update_times_ms(store: JsonMetadataStore, rows: list[SegmentRecord]) -> list[float]:
    """One row a batch, as a commit of one segment does it."""
    spent = []
    for number in range(UPDATES):
        row = rows[number * 7 % len(rows)]
        row = replace(row, size=row.size - number)
        spent.append(spent_ms(partial(store.put, row)))
    return spent


def open_ms(path: Path) -> float:
    """The median of opening; what was opened is left as it was found."""
    spent = []
    for _ in range(OPENS):
        started = time.perf_counter()
        store = JsonMetadataStore.open(path)
        spent.append((time.perf_counter() - started) * 1_000)
        abandon(store)
    return statistics.median(spent)


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


def measure(path: Path) -> dict[str, float]:
    """Figures by name, in milliseconds."""
    rows = list(segments())
    figures = {}
    store = JsonMetadataStore.open(path)
    figures["update"] = statistics.median(update_times_ms(store, rows))
    with mock.patch("os.fdatasync"):
        figures["update_unsynced"] = statistics.median(update_times_ms(store, rows))
    store.close()
    figures["open_clean"] = open_ms(path)
    figures["journal_lines"] = long_journal(path, rows)
    figures["open_with_journal"] = open_ms(path)
    store = JsonMetadataStore.open(path)
    figures["compaction"] = spent_ms(store.compact)
    store.close()
    return figures


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tieredStoreMetadata.json"
        fill(path)
        bytes_count = path.stat().st_size
        figures = measure(path)
    queue_count = TOPICS * QUEUES_OF_A_TOPIC
    segment_count = queue_count * 2 * SEGMENTS_OF_A_FILE
    print(f"{queue_count} queues, {segment_count} segments, snapshot of {bytes_count / 1e6:.1f} MB")
    rows = [
        ms_row(what, figures[name], ms_max)
        for what, name, ms_max in (
            ("one update, its sync left out", "update_unsynced", UPDATE_MS_MAX),
            ("one update, synced", "update", None),
            ("open after a clean close", "open_clean", OPEN_MS_MAX),
            (
                f"open with {figures['journal_lines']} lines to replay",
                "open_with_journal",
                OPEN_MS_MAX,
            ),
            ("compaction", "compaction", None),
        )
    ]
    return report("metadata", rows)


def ms_row(what: str, ms: float, ms_max: float | None) -> Row:
    if ms_max is None:
        return Row(what=what, beside="", ours=f"{ms:,.3f} ms", ratio=1.0)
    beside = f"{ms_max:g} ms"
    return Row(what=what, beside=beside, ours=f"{ms:,.3f} ms", ratio=ms_max / ms, promised=1.0)


if __name__ == "__main__":
    sys.exit(main())
