"""The names, the abort file and the lock of a store, and the sizes that it was made with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.codec.golden_files import GOLDEN, contents
from tieredstore.driver.durable import FileLock
from tieredstore.local.config import LocalConfig
from tieredstore.local.files import SIZE_SETTINGS, StoreFiles, check_sizes
from tieredstore.local.reader import LocalReader
from tieredstore.model.errors import InvalidConfigError, SegmentError
from tieredstore.testing.disk import ForgetfulDisk

# Java's lock is a POSIX record lock on the first byte, held by another process.
HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
except OSError:
    sys.exit("held")
sys.stdout.write("got it\\n")
sys.stdout.flush()
sys.stdin.read()
"""


def holder(path: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


@pytest.fixture
def files(tmp_path: Path) -> StoreFiles:
    return StoreFiles(tmp_path / "store")


def test_the_names_are_those_of_java(tmp_path: Path) -> None:
    files = StoreFiles(tmp_path)
    names = {
        files.commit_log: "commitlog",
        files.consume_queues: "consumequeue",
        files.batch_queues: "batchconsumequeue",
        files.index: "index",
        files.checkpoint: "checkpoint",
        files.abort: "abort",
        files.lock: "lock",
        files.config: "config",
        files.sizes: "config/tieredstore-sizes.json",
    }
    assert names == {path: str(path.relative_to(tmp_path)) for path in names}


def test_asking_for_names_makes_nothing(files: StoreFiles) -> None:
    assert not files.ended_abnormally
    assert not files.root.exists()


def test_making_a_store_twice_is_harmless(files: StoreFiles) -> None:
    files.make()
    files.make()
    assert sorted(path.name for path in files.root.iterdir()) == [
        "commitlog",
        "config",
        "consumequeue",
        "index",
    ]


def test_the_abort_file_holds_the_process_number_until_it_is_removed(files: StoreFiles) -> None:
    files.make()
    files.create_abort()
    assert files.ended_abnormally
    assert files.abort.read_text() == str(os.getpid())
    files.create_abort()
    assert files.abort.read_text() == str(os.getpid())
    files.remove_abort()
    files.remove_abort()
    assert not files.ended_abnormally


def test_the_abort_file_and_its_removal_are_durable(files: StoreFiles) -> None:
    files.make()
    with ForgetfulDisk(files.root) as disk:
        files.create_abort()
        begun = disk.synced(files.root.with_name("begun")) / files.abort.name
        assert begun.read_bytes() == files.abort.read_bytes()
        files.remove_abort()
    assert not (disk.synced(files.root.with_name("ended")) / files.abort.name).exists()
    assert [Path(path) for path, _ in disk.syncs] == [files.abort, files.root, files.root]


def test_the_lock_file_has_the_content_of_javas(files: StoreFiles) -> None:
    lock = files.acquire_lock()
    assert lock is not None
    lock.release()
    assert files.lock.read_bytes() == b"lock"


def test_a_lock_file_that_a_crash_left_empty_gets_its_content(files: StoreFiles) -> None:
    files.make()
    files.lock.touch()
    with files.acquire_lock() or pytest.fail("not locked"):
        assert files.lock.stat().st_size == 4


def test_whatever_a_lock_file_holds_is_left_as_it_is(files: StoreFiles) -> None:
    files.make()
    files.lock.write_bytes(b"something else")
    lock = files.acquire_lock()
    assert lock is not None
    lock.release()
    assert files.lock.read_bytes() == b"something else"


@pytest.mark.parametrize("first_time", [True, False])
def test_another_process_is_kept_out_while_the_lock_is_held(
    files: StoreFiles, first_time: bool
) -> None:
    if not first_time:
        files.make()
        files.lock.write_bytes(b"lock")
    lock = files.acquire_lock()
    assert lock is not None
    other = holder(files.lock)
    assert other.communicate()[1].strip() == "held"
    lock.release()
    other = holder(files.lock)
    assert other.communicate()[0].strip() == "got it"


def test_while_another_process_holds_the_lock_there_is_none(files: StoreFiles) -> None:
    files.make()
    files.lock.write_bytes(b"lock")
    other = holder(files.lock)
    assert other.stdout is not None
    assert other.stdout.readline().strip() == "got it"
    assert files.acquire_lock() is None
    other.communicate()
    with files.acquire_lock() or pytest.fail("not locked"):
        pass


def test_the_same_process_gets_the_lock_once(files: StoreFiles) -> None:
    lock = files.acquire_lock()
    assert isinstance(lock, FileLock)
    assert files.acquire_lock() is None
    other = holder(files.lock)
    assert other.communicate()[1].strip() == "held", "the second try must not release the first"
    lock.release()


GOLDEN_SIZES = {
    "commit_log_file_bytes": 32768,
    "queue_file_bytes": 400,
    "index_slot_count": 101,
    "index_item_count": 400,
}


def config_with(**sizes: int) -> LocalConfig:
    wanted = {**GOLDEN_SIZES, **sizes}
    return LocalConfig(
        commit_log_file_bytes=wanted["commit_log_file_bytes"],
        queue_file_bytes=wanted["queue_file_bytes"],
        index_slot_count=wanted["index_slot_count"],
        index_item_count=wanted["index_item_count"],
    )


@pytest.fixture
def java_files(tmp_path: Path) -> StoreFiles:
    shutil.copytree(GOLDEN / "local-clean", tmp_path / "store")
    return StoreFiles(tmp_path / "store")


def test_a_new_store_gets_its_sizes_written_down(files: StoreFiles) -> None:
    check_sizes(files, config_with())
    assert json.loads(files.sizes.read_bytes()) == GOLDEN_SIZES
    check_sizes(files, config_with())


@pytest.mark.parametrize("name", SIZE_SETTINGS)
def test_another_size_is_refused_with_both_values(files: StoreFiles, name: str) -> None:
    check_sizes(files, config_with())
    before = files.sizes.read_bytes()
    with pytest.raises(InvalidConfigError, match=name) as caught:
        check_sizes(files, config_with(**{name: 6400}))
    assert str(GOLDEN_SIZES[name]) in str(caught.value)
    assert "6400" in str(caught.value)
    assert files.sizes.read_bytes() == before


def test_settings_that_shape_no_file_may_change(files: StoreFiles) -> None:
    check_sizes(files, config_with())
    check_sizes(files, replace(config_with(), flush_interval_ms=7, reserve_hours=1))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"{}",
        b"\xff\xfe",
        b'{"commit_log_file_bytes": 32768}',
        json.dumps({**GOLDEN_SIZES, "queue_file_bytes": "400"}).encode(),
        json.dumps({**GOLDEN_SIZES, "queue_file_bytes": True}).encode(),
        json.dumps({**GOLDEN_SIZES, "queue_file_bytes": None}).encode(),
    ],
)
def test_damaged_sizes_are_refused_and_named(files: StoreFiles, content: bytes) -> None:
    check_sizes(files, config_with())
    files.sizes.write_bytes(content)
    with pytest.raises(InvalidConfigError, match="tieredstore-sizes.json: damaged"):
        check_sizes(files, config_with())
    assert files.sizes.read_bytes() == content


def test_what_a_later_version_adds_is_no_damage(files: StoreFiles) -> None:
    check_sizes(files, config_with())
    files.sizes.write_text(json.dumps({**GOLDEN_SIZES, "something_new": [1]}))
    check_sizes(files, config_with())


@pytest.mark.parametrize("folder", ["local-clean", "local-expired", "local-crash/torn"])
def test_a_store_of_java_is_opened_with_its_own_sizes(tmp_path: Path, folder: str) -> None:
    shutil.copytree(GOLDEN / folder, tmp_path / "store")
    files = StoreFiles(tmp_path / "store")
    check_sizes(files, config_with(), write=False)
    assert not files.sizes.exists()
    check_sizes(files, config_with())
    assert json.loads(files.sizes.read_bytes()) == GOLDEN_SIZES


@pytest.mark.parametrize("name", SIZE_SETTINGS)
def test_a_store_of_java_is_refused_with_other_sizes(java_files: StoreFiles, name: str) -> None:
    with pytest.raises(InvalidConfigError, match=name):
        check_sizes(java_files, config_with(**{name: GOLDEN_SIZES[name] * 2}))
    assert not java_files.sizes.exists()


def test_queues_in_rocksdb_are_refused(java_files: StoreFiles) -> None:
    """Else the reader would find no queues, and the store make some from what the log still has."""
    shutil.rmtree(java_files.consume_queues)
    (java_files.consume_queues / "archive").mkdir(parents=True)
    for name in ("CURRENT", "MANIFEST-000005", "000010.sst", "LOCK"):
        (java_files.consume_queues / name).write_bytes(b"")
    before = contents(java_files.root)
    with pytest.raises(InvalidConfigError, match="RocksDB"):
        check_sizes(java_files, config_with())
    with pytest.raises(InvalidConfigError, match=r"RocksDB.*/consumequeue\)"):
        LocalReader.open(java_files.root, **GOLDEN_SIZES)
    assert contents(java_files.root) == before


def test_a_topic_named_like_a_file_of_rocksdb_is_one(java_files: StoreFiles) -> None:
    """Its folder, without a queue as yet, says nothing of RocksDB."""
    shutil.rmtree(java_files.consume_queues)
    (java_files.consume_queues / "CURRENT").mkdir(parents=True)
    check_sizes(java_files, config_with())


def test_queues_that_java_has_also_written_to_rocksdb_are_read(java_files: StoreFiles) -> None:
    (java_files.consume_queues / "CURRENT").write_bytes(b"MANIFEST-000005\n")
    check_sizes(java_files, config_with())


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/Topic-A/0"])
def test_a_file_that_is_none_of_javas_is_named_and_no_size_is_blamed(
    java_files: StoreFiles, folder: str
) -> None:
    (java_files.root / folder).mkdir(parents=True, exist_ok=True)
    (java_files.root / folder / "x.tmp").write_bytes(b"1")
    with pytest.raises(SegmentError, match=rf"{folder}/x\.tmp: the name is no offset"):
        check_sizes(java_files, config_with())


@pytest.mark.parametrize(("slots", "items"), [(96, 401), (106, 399), (1, 420), (2096, 1)])
def test_slots_and_items_of_the_same_length_together_are_told_apart(
    java_files: StoreFiles, slots: int, items: int
) -> None:
    if items < 2:
        slots, items = slots - 5, items + 1
    assert 4 * slots + 20 * items == 4 * 101 + 20 * 400
    with pytest.raises(InvalidConfigError, match="index_slot_count, index_item_count"):
        check_sizes(java_files, config_with(index_slot_count=slots, index_item_count=items))


def test_a_torn_newest_index_file_is_no_matter_of_settings(java_files: StoreFiles) -> None:
    newest = max(java_files.index.iterdir())
    newest.write_bytes(b"\xff" * newest.stat().st_size)
    with pytest.raises(InvalidConfigError, match="index_slot_count"):
        check_sizes(java_files, config_with(), write=False)
    java_files.create_abort()
    check_sizes(java_files, config_with())


def test_empty_files_tell_nothing(java_files: StoreFiles) -> None:
    (java_files.commit_log / f"{393216:020d}").touch()
    (java_files.consume_queues / "GoldAa" / "0" / f"{2000:020d}").touch()
    (java_files.index / "20261120104608999").touch()
    check_sizes(java_files, config_with())


def test_directories_that_are_not_ours_to_judge_are_left_alone(java_files: StoreFiles) -> None:
    for folder in (java_files.batch_queues, java_files.root / "consumequeue_ext"):
        (folder / "T" / "0").mkdir(parents=True)
        (folder / "T" / "0" / f"{0:020d}").write_bytes(b"x" * 46)
    check_sizes(java_files, config_with())
