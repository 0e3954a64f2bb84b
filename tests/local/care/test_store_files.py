"""Names, abort file and process lock of a store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tieredstore.driver.durable import FileLock
from tieredstore.local.files import StoreFiles
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
    assert [path for path, _ in disk.syncs] == [files.abort, files.root, files.root]


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
