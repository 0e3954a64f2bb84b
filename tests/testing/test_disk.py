"""The tests' disk forgets each kind of change that was not synced, and stops at any step."""

from __future__ import annotations

import errno
import mmap
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.codec.golden_files import contents
from tieredstore.driver.durable import FileLock, write_atomically
from tieredstore.testing.disk import Crash, ForgetfulDisk

OLD, NEW = b"old-bytes", b"NEW BYTES, and longer"
Files = dict[str, bytes]


def sync(path: Path) -> Path:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    return path


def write(path: Path, data: bytes) -> Path:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, data, 0)
    os.close(descriptor)
    return path


def truncate(path: Path, size: int) -> None:
    descriptor = os.open(path, os.O_RDWR)
    os.ftruncate(descriptor, size)
    os.close(descriptor)


def map_and_write(path: Path, data: bytes) -> Path:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[: len(data)] = data
        mapped.flush()  # writes the pages; this disk counts only the file's sync
    return path


def made_folder(root: Path, *, synced: str = "") -> None:
    (root / "new").mkdir()
    write(root / "new" / "file", NEW)
    for place in {"file": ["new/file"], "its folder": ["new/file", "new"]}.get(synced, []):
        sync(root / place)
    if synced == "all":
        for place in ("new/file", "new", "."):
            sync(root / place)


CHANGES: dict[str, tuple[Callable[[Path], object], Files]] = {
    "bytes": (lambda root: write(root / "a", NEW), {"a": OLD}),
    "bytes of a mapping": (lambda root: map_and_write(root / "a", b"NEW"), {"a": OLD}),
    "a shorter length": (lambda root: truncate(root / "a", 3), {"a": OLD}),
    "a longer length": (lambda root: truncate(root / "a", 99), {"a": OLD}),
    "a new name": (lambda root: write(root / "b", NEW), {"a": OLD}),
    "the name of a synced file": (
        lambda root: sync(write(root / "b", NEW)),
        {"a": OLD},
    ),
    "the bytes below a synced name": (
        lambda root: (write(root / "b", NEW), sync(root)),
        {"a": OLD, "b": b""},
    ),
    "a removed name": (lambda root: (root / "a").unlink(), {"a": OLD}),
    "a renamed file": (lambda root: (root / "a").rename(root / "b"), {"a": OLD}),
    "a link": (lambda root: os.link(root / "a", root / "b"), {"a": OLD}),
    "a file in the place of another": (
        lambda root: sync(write(root / "b", NEW)).replace(root / "a"),
        {"a": OLD},
    ),
    "a folder": (made_folder, {"a": OLD}),
    "a folder of a synced file": (lambda root: made_folder(root, synced="file"), {"a": OLD}),
    "a synced folder": (lambda root: made_folder(root, synced="its folder"), {"a": OLD}),
    "nothing of a folder that is synced up to the root": (
        lambda root: made_folder(root, synced="all"),
        {"a": OLD, "new/file": NEW},
    ),
    "nothing of bytes that were synced": (
        lambda root: sync(write(root / "a", NEW)),
        {"a": NEW},
    ),
    "nothing of a mapping that was synced": (
        lambda root: sync(map_and_write(root / "a", b"NEW")),
        {"a": b"NEW" + OLD[3:]},
    ),
    "nothing of what is replaced whole": (
        lambda root: write_atomically(root / "a", [NEW]),
        {"a": NEW},
    ),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").write_bytes(OLD)
    return root


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_not_synced_is_forgotten(root: Path, tmp_path: Path, change: str) -> None:
    make, kept = CHANGES[change]
    with ForgetfulDisk(root) as disk:
        make(root)
    assert contents(disk.synced(tmp_path / "synced")) == kept
    assert contents(disk.written(tmp_path / "written")) == contents(root)
    assert not disk.died


def test_a_removed_folder_that_was_never_synced_itself_may_come_back_empty(
    root: Path, tmp_path: Path
) -> None:
    with ForgetfulDisk(root) as disk:
        (root / "new").mkdir()
        sync(root)
        write(root / "new" / "file", NEW).unlink()
        (root / "new").rmdir()
    back = disk.synced(tmp_path / "synced") / "new"
    assert [*back.iterdir()] == []
    assert not (disk.written(tmp_path / "written") / "new").exists()


def outcomes(disk: ForgetfulDisk, tmp_path: Path) -> list[Files]:
    dice = random.Random(1)
    found: list[Files] = []
    for number in range(300):
        seen = contents(disk.cut(tmp_path / f"cut-{number}", dice))
        found += [] if seen in found else [seen]
    return found


def test_a_power_cut_mixes_old_pieces_with_new_ones(root: Path, tmp_path: Path) -> None:
    with ForgetfulDisk(root) as disk:
        write(root / "a", NEW)
    found = [seen["a"] for seen in outcomes(disk, tmp_path)]
    assert {OLD, NEW, NEW[: len(OLD)], OLD + bytes(len(NEW) - len(OLD))} <= set(found)
    for torn in range(1, 5):
        assert any(data[:torn] == NEW[:torn] and data[torn] != NEW[torn] for data in found), torn


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ("a new name", [None, NEW]),
        ("a removed name", [OLD, None]),
        ("a file in the place of another", [OLD, NEW, None]),
        ("a synced folder", [None, NEW]),
    ],
)
def test_a_power_cut_forgets_names_or_keeps_them(
    root: Path, tmp_path: Path, change: str, wanted: list[bytes | None]
) -> None:
    with ForgetfulDisk(root) as disk:
        CHANGES[change][0](root)
    name = {"a new name": "b", "a synced folder": "new/file"}.get(change, "a")
    found = [seen.get(name) for seen in outcomes(disk, tmp_path)]
    assert all(data in found for data in wanted)


def test_a_write_is_torn_at_any_byte(root: Path) -> None:
    for torn in range(len(NEW) + 1):
        with ForgetfulDisk(root, stop_at=1, torn=torn) as disk:
            write(root / "a", NEW)
        assert disk.died
        assert (root / "a").read_bytes() == NEW[:torn] + OLD[torn:]


def test_after_its_last_step_a_process_does_nothing_more(root: Path) -> None:
    with ForgetfulDisk(root, stop_at=2) as disk:
        (root / "a").rename(root / "b")
        try:
            (root / "b").rename(root / "c")
        finally:
            with pytest.raises(Crash):
                (root / "b").unlink()
    assert (disk.died, disk.steps, disk.failed) == (True, 2, "rename")
    assert contents(root) == {"b": OLD}


def test_a_step_that_fails_does_so_once(root: Path) -> None:
    with ForgetfulDisk(root, stop_at=1, error=True) as disk:
        with pytest.raises(OSError, match="unlink failed") as caught:
            (root / "a").unlink()
        (root / "a").unlink()
    assert caught.value.errno == errno.EIO
    assert (disk.died, disk.steps, disk.failed) == (False, 2, "unlink")


@pytest.mark.parametrize("again", [False, True])
def test_what_a_failed_sync_dropped_is_on_the_disk_once_it_is_written_again(
    root: Path, tmp_path: Path, again: bool
) -> None:
    path = root / "a"
    with ForgetfulDisk(root, stop_at=2, error=True) as disk:
        write(path, NEW)
        with pytest.raises(OSError, match="fsync failed"):
            sync(path)
        with path.open("r+b") as file, mmap.mmap(file.fileno(), len(NEW)) as data:
            data[0:3] = NEW[0:3]
        if again:
            write(path, NEW[:1])
        sync(path)
        assert path.read_bytes() == NEW
    on_disk = disk.synced(tmp_path / "after") / "a"
    assert on_disk.read_bytes() == (NEW if again else OLD.ljust(len(NEW), b"\0"))


def test_other_folders_are_not_its_business(root: Path, tmp_path: Path) -> None:
    with ForgetfulDisk(root, stop_at=1) as disk:
        write(tmp_path / "other", NEW)
        sync(tmp_path / "other")
    assert (disk.died, disk.steps, disk.syncs) == (False, 0, [])


def test_each_sync_is_noted(root: Path) -> None:
    with ForgetfulDisk(root) as disk:
        sync(root / "a")
        sync(root)
    assert [path for path, _ in disk.syncs] == [str(root / "a"), str(root)]
    assert disk.syncs[0][1] == len(OLD)


def test_pictures_take_no_lock_away(root: Path, tmp_path: Path) -> None:
    lock = FileLock.acquire(root / "lock")
    assert lock is not None
    with ForgetfulDisk(root) as disk:
        sync(root)
        disk.written(tmp_path / "written")
        disk.synced(tmp_path / "synced")
    asks = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    asked = subprocess.run(
        [sys.executable, "-c", asks, str(root / "lock")], capture_output=True, check=False
    )
    assert b"BlockingIOError" in asked.stderr
    lock.release()
