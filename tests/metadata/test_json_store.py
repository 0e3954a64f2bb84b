"""JsonMetadataStore keeps the contract beside other threads and processes, after a kill, and if its
files are damaged, missing or overtaken by RocketMQ.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tieredstore.driver.metadata import (
    Change,
    DeleteQueue,
    DeleteTopic,
    MetadataStore,
    Put,
    PutNote,
)
from tieredstore.driver.registry import METADATA_STORES, resolve
from tieredstore.metadata import JsonMetadataStore
from tieredstore.model.errors import CatalogueLockedError, MetadataError, StoreClosedError
from tieredstore.model.values import INT64_MAX, QueueRecord, SegmentRecord, SegmentType, TopicRecord
from tieredstore.testing.metadata_contract import MetadataStoreContract, log_segment

GOLDEN = Path(__file__).parents[1] / "golden" / "metadata"


class TestJsonMetadataStore(MetadataStoreContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store" / "config" / "tieredStoreMetadata.json"

    def open_store(self) -> JsonMetadataStore:
        return JsonMetadataStore.open(self.path)

    def open_reader(self) -> JsonMetadataStore:
        return JsonMetadataStore.open(self.path, read_only=True)


class TestJsonMetadataStoreThatAlwaysCompacts(TestJsonMetadataStore):
    def open_store(self) -> JsonMetadataStore:
        return JsonMetadataStore.open(self.path, journal_bytes_max=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tieredStoreMetadata.json"


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def names(path: Path) -> set[str]:
    return {item.name.removeprefix(path.name) for item in path.parent.iterdir()}


def test_the_registry_finds_it() -> None:
    assert resolve(METADATA_STORES, "json", MetadataStore) is JsonMetadataStore


def test_opening_and_closing_alone_writes_no_catalogue(path: Path) -> None:
    JsonMetadataStore.open(path).close()
    assert names(path) == {".lock"}


def test_a_file_that_nothing_changed_is_not_written_again(path: Path) -> None:
    path.write_bytes((GOLDEN / "legacy.json").read_bytes())
    before = path.stat()
    with JsonMetadataStore.open(path) as store:
        assert len(store.segments()) == 4
    assert path.stat() == before
    assert names(path) == {"", ".lock"}


def test_a_change_costs_a_line_and_the_snapshot_waits_for_close(path: Path) -> None:
    path.write_bytes((GOLDEN / "tier-posix.json").read_bytes())
    with JsonMetadataStore.open(path) as store:
        before = path.stat()
        store.put(log_segment(0))
        length = beside(path, ".journal").stat().st_size
        store.put(log_segment(10))
        assert path.stat() == before
        assert beside(path, ".journal").stat().st_size - length < 400
    assert names(path) == {"", ".bak", ".lock"}


def test_the_journal_is_compacted_when_it_outgrows_its_bound(path: Path) -> None:
    with JsonMetadataStore.open(path, journal_bytes_max=2_000) as store:
        lengths = []
        for number in range(100):
            store.put(log_segment(number))
            journal = beside(path, ".journal")
            lengths.append(journal.stat().st_size if journal.exists() else 0)
        assert max(lengths) <= 2_000
        assert lengths.count(0) >= 5
        assert len(store.segments()) == 100
        expected = store.snapshot_bytes()
    assert path.read_bytes() == expected


def test_the_journal_may_grow_as_long_as_a_large_snapshot(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.metadata.files.JOURNAL_BYTES_MIN", 1)
    with JsonMetadataStore.open(path) as store:
        snapshots = 0
        for number in range(400):
            store.put(log_segment(number))
            snapshots += not beside(path, ".journal").exists()
    assert 5 < snapshots < 40  # each snapshot comes after a journal of its length


def test_compaction_on_demand_writes_what_snapshot_bytes_says(path: Path) -> None:
    with JsonMetadataStore.open(path) as store:
        store.put(log_segment(0))
        expected = store.snapshot_bytes()
        store.compact()
        assert path.read_bytes() == expected
        assert not beside(path, ".journal").exists()
        stamp = path.stat()
        store.compact()  # without a change, nothing is written
        assert path.stat() == stamp


def test_new_topics_carry_the_time_they_came(path: Path) -> None:
    with JsonMetadataStore.open(path, clock_ms=lambda: 4711) as store:
        assert store.add_topic("A").update_timestamp == 4711
        assert store.add_topic("A").update_timestamp == 4711


def test_numbers_from_numpy_are_numbers(path: Path) -> None:
    eight: Any = np.int64(8)
    segment = SegmentRecord(path="p", type=SegmentType.INDEX, base_offset=eight, size=eight)
    with JsonMetadataStore.open(path) as store:
        store.apply([Put(segment), DeleteQueue("T", eight)])
        assert type(store.segments()[0].size) is int


def test_a_time_that_means_unset_in_the_file_is_unset_here(path: Path) -> None:
    with JsonMetadataStore.open(path) as store:
        store.put(
            SegmentRecord(path="p", type=SegmentType.INDEX, base_offset=0, end_timestamp=INT64_MAX)
        )
        assert store.segments()[0].end_timestamp is None
        store.put(TopicRecord(topic="T", topic_id=0, reserve_hours=-1))
        assert store.topics()[0].reserve_hours is None


BAD: list[Change] = [
    Put(log_segment(-1)),
    Put(log_segment(0, -1)),
    Put(log_segment(INT64_MAX, 1)),
    Put(log_segment(INT64_MAX + 1)),
    Put(log_segment(0, path="half \ud83d")),
    Put(SegmentRecord(path="p", type=9, base_offset=0)),  # type: ignore[arg-type]
    Put(SegmentRecord(path="p", type=SegmentType.INDEX, base_offset="0")),  # type: ignore[arg-type]
    Put(QueueRecord(broker_name="b", topic="T", queue_id=-1)),
    Put(QueueRecord(broker_name="b", topic="T", queue_id=2**31)),
    Put(QueueRecord(broker_name="b", topic="T", queue_id=0, min_offset=-2)),
    Put(TopicRecord(topic="T", topic_id=-1)),
    Put(TopicRecord(topic="T", topic_id=0, reserve_hours=-2)),
    Put(TopicRecord(topic=7, topic_id=0)),  # type: ignore[arg-type]
    Put("T"),  # type: ignore[arg-type]
    "T",  # type: ignore[list-item]
    DeleteTopic(7),  # type: ignore[arg-type]
    DeleteTopic("half \ud83d"),
    PutNote("kind", "key", float("inf")),
    PutNote("kind", "key", (1, 2)),  # type: ignore[arg-type]
    PutNote("kind", "key", {1: 2}),  # type: ignore[dict-item]
    PutNote("kind", "key", object()),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("change", BAD, ids=lambda change: f"{change!r:.50}")
def test_what_could_not_be_read_back_is_refused_before_it_is_written(
    path: Path, change: Change
) -> None:
    with JsonMetadataStore.open(path) as store:
        with pytest.raises(MetadataError, match="refused") as caught:
            store.apply([change])
        assert "\n" not in str(caught.value)
        assert names(path) == {".lock"}
        store.put(log_segment(0))


def test_a_note_that_nests_without_end_is_refused(path: Path) -> None:
    endless: list[object] = []
    endless.append(endless)
    with JsonMetadataStore.open(path) as store, pytest.raises(MetadataError, match="refused"):
        store.put_note("kind", "key", endless)  # type: ignore[arg-type]


def test_the_last_topic_id_ends_the_numbering(path: Path) -> None:
    with JsonMetadataStore.open(path) as store:
        store.put(TopicRecord(topic="A", topic_id=INT64_MAX))
        with pytest.raises(MetadataError, match="topicId"):
            store.add_topic("B")


def test_a_bound_for_the_journal_must_be_positive(path: Path) -> None:
    with pytest.raises(MetadataError, match="journal_bytes_max"):
        JsonMetadataStore.open(path, journal_bytes_max=0)


@pytest.mark.parametrize("damage", [b"", b" \n", b"{", b"[]", b"\xff\xfe", b"\0" * 99])
def test_the_backup_serves_where_the_snapshot_cannot(path: Path, damage: bytes) -> None:
    beside(path, ".bak").write_bytes((GOLDEN / "tier-index.json").read_bytes())
    path.write_bytes(damage)
    with JsonMetadataStore.open(path) as store:
        assert store.report.used_backup
        assert len(store.topics()) == 3
        store.put(log_segment(0))
    with JsonMetadataStore.open(path) as store:
        assert not store.report.used_backup
        assert len(store.segments()) == 5
    assert beside(path, ".bak").read_bytes() == path.read_bytes()
    assert beside(path, ".damaged").read_bytes() == damage


def test_a_whole_text_with_an_odd_row_is_not_thrown_away_for_an_older_one(path: Path) -> None:
    beside(path, ".bak").write_bytes((GOLDEN / "tier-index.json").read_bytes())
    path.write_bytes(b'{"topicMetadataTable":{"T":{"topicId":"x"}}}')
    for read_only in (False, True):
        with pytest.raises(MetadataError, match="topicMetadataTable T"):
            JsonMetadataStore.open(path, read_only=read_only)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("damage", [b"", b"{", None])
def test_a_damaged_snapshot_loses_nothing(
    path: Path, damage: bytes | None, is_killed: bool
) -> None:
    for number in range(3):
        with JsonMetadataStore.open(path) as store:
            store.put(log_segment(number))
    if is_killed:
        killed(path, log_segment(7))
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    with JsonMetadataStore.open(path) as store:
        assert store.report.used_backup
        assert len(store.segments()) == 3 + is_killed
        store.put(log_segment(8))
    with JsonMetadataStore.open(path) as store:
        assert len(store.segments()) == 4 + is_killed


@pytest.mark.parametrize("damage", [b"", b"{", None])
def test_a_journal_whose_snapshot_is_damaged_is_not_called_stale(
    path: Path, damage: bytes | None
) -> None:
    older = b""
    for number in range(3):
        older = path.read_bytes() if number else older
        with JsonMetadataStore.open(path) as store:
            store.put(log_segment(number))
    beside(path, ".bak").write_bytes(older)  # as left by a process that died just before
    killed(path, log_segment(7))
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    with pytest.raises(MetadataError, match="its journal does not follow the backup"):
        JsonMetadataStore.open(path)
    path.write_bytes(before[path.name])
    with JsonMetadataStore.open(path) as store:
        assert len(store.segments()) == 4


def killed(path: Path, row: SegmentRecord) -> None:
    """Commit in a process that then dies."""
    code = (
        "import os, pickle, sys; from tieredstore.metadata import JsonMetadataStore;"
        "JsonMetadataStore.open(sys.argv[1]).put(pickle.loads(sys.stdin.buffer.read()));"
        "os._exit(0)"
    )
    command = [sys.executable, "-c", code, str(path)]
    subprocess.run(command, input=pickle.dumps(row), check=True)


FORK = """
import os, sys
from tieredstore.metadata import JsonMetadataStore
from tieredstore.model.errors import OtherProcessError
from tieredstore.testing.metadata_contract import log_segment

with JsonMetadataStore.open(sys.argv[1]) as store:
    store.put(log_segment(0))
    child = os.fork()
    if child == 0:
        try:
            store.put(log_segment(1))
        except OtherProcessError:
            try:
                store.close()
            except OtherProcessError:
                os._exit(0)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.put(log_segment(2))
"""


def test_a_forked_child_writes_nothing_and_harms_nothing(path: Path) -> None:
    # In its own process, as a process with threads must not fork.
    subprocess.run([sys.executable, "-c", FORK, str(path)], check=True)
    with JsonMetadataStore.open(path, read_only=True) as reader:
        assert [row.base_offset for row in reader.segments()] == [
            log_segment(0).base_offset,
            log_segment(2).base_offset,
        ]


def test_a_journal_without_a_whole_line_is_kept_aside(path: Path) -> None:
    with JsonMetadataStore.open(path) as store:
        store.put(log_segment(0))
    journal = beside(path, ".journal")
    journal.write_bytes(b"hello world")
    with JsonMetadataStore.open(path) as store:
        assert store.report.stale_journal == beside(path, ".journal.stale")
        assert len(store.segments()) == 1
    assert beside(path, ".journal.stale").read_bytes() == b"hello world"


def test_the_snapshot_and_its_backup_are_two_files(path: Path) -> None:
    for number in range(3):
        with JsonMetadataStore.open(path) as store:
            store.put(log_segment(number))
    assert not path.samefile(beside(path, ".bak"))


def test_the_backup_serves_where_the_snapshot_is_missing(path: Path) -> None:
    beside(path, ".bak").write_bytes((GOLDEN / "tier-index.json").read_bytes())
    with JsonMetadataStore.open(path) as store:
        assert store.report.used_backup
        assert len(store.topics()) == 3


@pytest.mark.parametrize("suffix", ["", ".bak"])
def test_files_of_which_none_can_be_used_are_no_empty_store(path: Path, suffix: str) -> None:
    beside(path, suffix).write_bytes(b'{"indexFileSegmentTable":{"p":{0:{"size":-5}}}}')
    for read_only in (False, True):
        with pytest.raises(MetadataError, match="indexFileSegmentTable p 0: size -5"):
            JsonMetadataStore.open(path, read_only=read_only)
    JsonMetadataStore.open(path.with_name("other")).close()  # the lock was released


def test_a_snapshot_that_went_away_is_no_empty_store(path: Path) -> None:
    JsonMetadataStore.open(path).close()
    with JsonMetadataStore.open(path) as store:
        store.compact()
        store.put(log_segment(0))
        journal = beside(path, ".journal").read_bytes()
    path.unlink()
    beside(path, ".bak").unlink()
    beside(path, ".journal").write_bytes(journal)
    with pytest.raises(MetadataError, match="is gone"):
        JsonMetadataStore.open(path)
    assert beside(path, ".journal").read_bytes() == journal


def test_damaged_notes_are_no_empty_notes(path: Path) -> None:
    with JsonMetadataStore.open(path) as store:
        store.put_note("kind", "key", 1)
    notes = beside(path, ".notes")
    notes.write_bytes(notes.read_bytes().replace(b":1}", b":2}"))
    with pytest.raises(MetadataError, match="damaged"):
        JsonMetadataStore.open(path)


def test_two_names_of_one_file_are_one_store(path: Path) -> None:
    other = path.with_name("link")
    other.symlink_to(path)
    with JsonMetadataStore.open(other) as store:
        store.put(log_segment(0))
        with pytest.raises(CatalogueLockedError):
            JsonMetadataStore.open(path)
    assert other.is_symlink()
    assert json.loads(path.read_bytes().replace(b"{0:", b'{"0":'))


def test_what_cannot_be_opened_says_so(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match="cannot be read"):
        JsonMetadataStore.open(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MetadataError):
        JsonMetadataStore.open(tmp_path / "file" / "below")
    with pytest.raises(MetadataError):
        JsonMetadataStore.open(tmp_path / "file" / "below", read_only=True)


# -- RocketMQ writes in between ---------------------------------------------------------------


@pytest.fixture
def overtaken(path: Path) -> Path:
    """A catalogue whose journal RocketMQ has overtaken."""
    path.write_bytes((GOLDEN / "tier-posix.json").read_bytes())
    with JsonMetadataStore.open(path) as store:
        store.put(log_segment(0, path="lost"))
        journal = beside(path, ".journal").read_bytes()
    beside(path, ".journal").write_bytes(journal)
    beside(path, ".bak").write_bytes((GOLDEN / "tier-posix.json").read_bytes())
    path.write_bytes((GOLDEN / "tier-posix-after-shutdown.json").read_bytes())
    return path


def test_an_overtaken_journal_is_set_aside_and_reported(
    overtaken: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = beside(overtaken, ".journal").read_bytes()
    with JsonMetadataStore.open(overtaken) as store:
        stale = beside(overtaken, ".journal.stale")
        assert store.report.stale_journal == stale
        assert store.report.replayed_lines == 0
        assert stale.read_bytes() == journal
        assert not store.segments("lost")
        golden = GOLDEN / "tier-posix-after-shutdown.json"
        assert store.snapshot_bytes() == golden.read_bytes()
    assert str(stale) in caplog.text
    assert not beside(overtaken, ".journal").exists()


def test_stale_journals_are_numbered_and_not_without_end(overtaken: Path) -> None:
    journal = beside(overtaken, ".journal").read_bytes()
    for number in range(100):
        beside(overtaken, ".journal").write_bytes(journal)
        with JsonMetadataStore.open(overtaken) as store:
            stale = store.report.stale_journal
        assert stale == beside(overtaken, f".journal.stale{f'.{number}' if number else ''}")
    beside(overtaken, ".journal").write_bytes(journal)
    with pytest.raises(MetadataError, match="100 of them"):
        JsonMetadataStore.open(overtaken)


def test_an_overtaken_journal_without_changes_is_dropped(overtaken: Path) -> None:
    journal = beside(overtaken, ".journal")
    journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])
    with JsonMetadataStore.open(overtaken) as store:
        assert store.report.stale_journal is None
        assert not journal.exists()


ROOT = Path(__file__).parents[2]
THREADS = 8
PUTS = 50


def child(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("journal_bytes_max", [None, 5_000])
def test_eight_threads_lose_no_row(path: Path, journal_bytes_max: int | None) -> None:
    def put(thread: int) -> None:
        for number in range(PUTS):
            store.put(log_segment(number, path=f"p{thread}"))
            if number % 10 == 0:
                store.add_topic(f"T{number}")

    with JsonMetadataStore.open(path, journal_bytes_max=journal_bytes_max) as store:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(put, range(THREADS)))
        expected = store.snapshot_bytes()
    with JsonMetadataStore.open(path) as store:
        assert store.snapshot_bytes() == expected
        assert len(store.segments()) == THREADS * PUTS
        assert sorted(row.topic_id for row in store.topics()) == [0, 1, 2, 3, 4]


def test_batches_that_wait_for_one_sync_share_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fdatasync = os.fdatasync
    first, go_on = threading.Event(), threading.Event()
    syncs = 0

    def slow(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        if syncs == 1:
            first.set()
            assert go_on.wait(240)
        fdatasync(descriptor)

    with JsonMetadataStore.open(path) as store:
        store.put(log_segment(0))
        monkeypatch.setattr(os, "fdatasync", slow)
        with ThreadPoolExecutor(THREADS) as pool:
            leader = pool.submit(store.put, log_segment(1))
            assert first.wait(240)
            assert store.segment(*key(1)) is None  # nobody sees it before it is durable
            others = [pool.submit(store.put, log_segment(10 + n)) for n in range(THREADS - 1)]
            while len(store._pending) < THREADS:
                os.sched_yield()
            go_on.set()
            for future in (leader, *others):
                future.result()
        assert syncs == 2
        assert len(store.segments()) == 1 + THREADS


def key(base_offset: int) -> tuple[str, Any, int]:
    row = log_segment(base_offset)
    return row.path, row.type, row.base_offset


def test_a_batch_that_another_thread_was_to_write_outlives_its_interrupt(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come anywhere, so also just before the write."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with JsonMetadataStore.open(path) as store, ThreadPoolExecutor(1) as pool:
        with store._commit_lock:
            other = pool.submit(store.put, log_segment(1))
            while not store._pending:
                os.sched_yield()
            monkeypatch.setattr(store, "_commit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store._commit_pending(store._writer())
            monkeypatch.undo()
        other.result(240)
        assert store.segment(*key(1)) is not None
        assert not store._pending


def test_a_failed_sync_fails_every_batch_that_shared_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError("the disk is broken")

    with JsonMetadataStore.open(path) as store:
        store.put(log_segment(0))
        monkeypatch.setattr(os, "fdatasync", broken)

        def refused(thread: int) -> bool:
            with pytest.raises(MetadataError, match="not written"):
                store.put(log_segment(1 + thread))
            return True

        with ThreadPoolExecutor(THREADS) as pool:
            assert all(pool.map(refused, range(THREADS)))
        assert len(store.segments()) == 1


def test_closing_under_writers_keeps_every_batch_that_was_acknowledged(path: Path) -> None:
    store = JsonMetadataStore.open(path)
    started = threading.Barrier(THREADS + 1)

    def put(thread: int) -> int:
        started.wait(240)
        for number in range(10_000):
            try:
                store.put(log_segment(number, path=f"p{thread}"))
            except StoreClosedError:
                return number
        raise AssertionError("it was never closed")

    with ThreadPoolExecutor(THREADS) as pool:
        counts = pool.map(put, range(THREADS))
        started.wait(240)
        store.close()
    with JsonMetadataStore.open(path) as store:
        for thread, count in enumerate(counts):
            assert len(store.segments(f"p{thread}")) == count


def test_one_process_opens_a_store_for_writing_once(path: Path) -> None:
    with JsonMetadataStore.open(path) as store:
        with pytest.raises(MetadataError, match="another process has it open"):
            JsonMetadataStore.open(path)
        store.put(log_segment(0))
        with JsonMetadataStore.open(path, read_only=True) as reader:
            assert len(reader.segments()) == 1
    JsonMetadataStore.open(path).close()


HOLD = """
import sys
from tieredstore.metadata import JsonMetadataStore
with JsonMetadataStore.open(sys.argv[1]) as store:
    store.add_topic("A")
    print("open", flush=True)
    sys.stdin.read()
"""


def test_two_processes_do_not_write_one_store(path: Path) -> None:
    with child(HOLD, path) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(MetadataError, match="another process has it open"):
            JsonMetadataStore.open(path)
        with JsonMetadataStore.open(path, read_only=True) as reader:
            assert [row.topic for row in reader.topics()] == ["A"]
        holder.stdin.close()
        assert holder.wait(240) == 0
    with JsonMetadataStore.open(path) as store:
        assert store.add_topic("B").topic_id == 1


COMMIT = """
import sys, threading
from tieredstore.metadata import JsonMetadataStore
from tieredstore.testing.metadata_contract import log_segment
store = JsonMetadataStore.open(sys.argv[1], journal_bytes_max=20_000)
def put(thread):
    for number in range(10_000_000):
        offset = int(sys.argv[2]) + number
        store.put(log_segment(offset, path=f"p{thread}"), log_segment(offset, path=f"q{thread}"))
        sys.stdout.write(f"{thread} {offset}\\n")
        sys.stdout.flush()
threads = [threading.Thread(target=put, args=(thread,), daemon=True) for thread in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def kill_and_look(path: Path, first: int, lines_before: int) -> None:
    process = child(COMMIT, path, first)
    assert process.stdout is not None
    acknowledged = [process.stdout.readline() for _ in range(lines_before)]
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    acknowledged += rest.splitlines(keepends=True)
    with JsonMetadataStore.open(path, read_only=True) as reader:
        seen = reader.snapshot_bytes()
    with JsonMetadataStore.open(path) as store:
        assert store.snapshot_bytes() == seen
        for line in acknowledged:
            if line.endswith("\n") and line.count(" ") == 1:
                thread, offset = line.split()
                for name in ("p", "q"):
                    row = log_segment(int(offset), path=f"{name}{thread}")
                    assert store.segment(row.path, row.type, row.base_offset) == row
        for number in range(4):  # a batch has both rows or none
            of_p = [row.base_offset for row in store.segments(f"p{number}")]
            assert of_p == [row.base_offset for row in store.segments(f"q{number}")]


def rounds(path: Path, count: int, spread: Callable[[int], int]) -> None:
    for number in range(count):
        kill_and_look(path, number * 1_000_000, spread(number))


def test_a_killed_process_loses_nothing_that_it_acknowledged(path: Path) -> None:
    rounds(path, 3, lambda number: 50 + 123 * number)


@pytest.mark.torture
def test_a_process_killed_over_and_over_loses_nothing(path: Path) -> None:
    rounds(path, 60, lambda number: 1 + 37 * number % 500)


# Each child has imported the rows but read none, so its threads meet the first use.
FIRST_USE = """
import os, sys, threading
from tieredstore.metadata.tables import read_queue, read_segment, read_topic

rows = [
    (read_segment, {"path": "b/t/0", "type": 0, "baseOffset": 0}),
    (read_queue, {"queue": {"brokerName": "b", "topic": "t", "queueId": 0}}),
    (read_topic, {"topic": "t", "topicId": 0}),
]

def read(start):
    start.wait()
    for call, row in rows * 5:
        call(row)

sys.setswitchinterval(1e-6)
for _ in range(50):
    child = os.fork()
    if not child:
        start = threading.Barrier(8)
        threads = [threading.Thread(target=read, args=(start,)) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(status, flush=True)
"""


def test_the_first_rows_may_be_read_by_many_threads_at_once() -> None:
    said, _ = child(FIRST_USE).communicate(timeout=60)
    assert said.split() == ["0"] * 50
