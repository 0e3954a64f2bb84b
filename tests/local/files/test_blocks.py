"""Room is asked for before a write through a map: a full disk is an error and no signal."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.local.keys.index_kit import PUTS, columns_of, new_file
from tests.local.store_audit import check_agreement, opened
from tieredstore.local.mapped_file import Blocks, MappedFile, MappedFiles
from tieredstore.model.errors import BackendRefusedError
from tieredstore.testing.samples import TOPIC, a_message

ROOT = Path(__file__).parents[3]
Ranges = list[tuple[int, int]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Ranges:
    """Every range that blocks were asked for."""
    ranges: Ranges = []

    def allocate(_descriptor: int, start: int, length: int) -> None:
        ranges.append((start, start + length))

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    return ranges


def refuse(monkeypatch: pytest.MonkeyPatch, code: int, *, above: int = 0) -> None:
    def allocate(_descriptor: int, start: int, length: int) -> None:
        if start + length > above:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", allocate)


def test_a_region_asks_for_as_much_again_and_never_beyond_its_end(asked: Ranges) -> None:
    blocks = Blocks(20_000)
    for end in range(20, 20_001, 20):
        blocks.reserve(-1, end - 20, end, "f")
    assert asked == [(0, 4_096), (4_096, 12_288), (12_288, 20_000)]


def test_a_long_region_asks_once_for_a_mebibyte(asked: Ranges) -> None:
    blocks = Blocks(1 << 30)
    for end in range(4_096, (32 << 20) + 1, 4_096):
        blocks.reserve(-1, end - 4_096, end, "f")
    assert len(asked) < 45
    assert all(before[1] == after[0] for before, after in pairwise(asked))


def test_what_was_written_before_is_not_asked_for(asked: Ranges) -> None:
    blocks = Blocks(1 << 20)
    blocks.reserve(-1, 500_000, 500_020, "f")
    assert [start for start, _ in asked] == [500_000]
    blocks.reserve(-1, 500_020, 500_040, "f")
    assert len(asked) == 1
    blocks.forget()
    blocks.reserve(-1, 100, 120, "f")
    assert asked[1] == (100, 4_096)


def test_an_index_has_room_for_all_slots_before_the_first_item(
    tmp_path: Path, asked: Ranges
) -> None:
    file = new_file(tmp_path, slots=1_000, items=500)
    file.put(columns_of(PUTS[:1]))
    file.put(columns_of(PUTS[1:2]))
    assert asked == [(0, 4_040), (4_060, 8_192)]


def test_where_there_is_no_room_for_more_the_bytes_themselves_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse(monkeypatch, errno.ENOSPC, above=1_000)
    blocks = Blocks(10_000)
    blocks.reserve(-1, 0, 1_000, "f")
    with pytest.raises(BackendRefusedError, match="make room for an append f"):
        blocks.reserve(-1, 1_000, 1_001, "f")
    assert blocks.end == 1_000


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_a_file_system_that_cannot_promise_room_is_believed(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse(monkeypatch, code)
    Blocks(10_000).reserve(-1, 0, 20, "f")


def test_an_append_without_room_writes_nothing_and_may_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = MappedFile.create(str(tmp_path), start_offset=0, size=9_000, files=MappedFiles())
    with monkeypatch.context() as patch:
        refuse(patch, errno.ENOSPC)
        with pytest.raises(BackendRefusedError, match="No space left"):
            file.append(b"x" * 20)
    assert file.wrote == 0
    assert Path(file.path).read_bytes() == bytes(9_000)
    assert file.append(b"x" * 20) == 0
    file.truncate_to(0)
    with monkeypatch.context() as patch:
        refuse(patch, errno.ENOSPC)
        with pytest.raises(BackendRefusedError):
            file.append(b"y")
    file.close()


@pytest.mark.parametrize("index_enabled", [False, True])
def test_a_dispatch_without_room_is_done_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index_enabled: bool
) -> None:
    store = opened(tmp_path, index_enabled=index_enabled, dispatch_interval_ms=1)
    with monkeypatch.context() as patch:
        store.put_messages([a_message(number) for number in range(9)])
        refuse(patch, errno.ENOSPC)
        with pytest.raises(BackendRefusedError):
            store.flush()
        assert (store._loaded().queues.max_offset(TOPIC, 0) or 0) == 0
    store.flush()
    assert store.max_offset(TOPIC, 0) == 9
    if index_enabled:
        assert check_agreement(store) == 9
    store.shutdown()


def small_disk() -> list[str] | None:
    """A command that runs another one with a disk of its own, gone with it; None without rights."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return None
    command = [unshare, "--mount", "--map-root-user", "sh", "-c"]
    tried = subprocess.run(
        [*command, "mount -t tmpfs none /mnt"], capture_output=True, check=False, timeout=600
    )
    return command if tried.returncode == 0 else None


@pytest.mark.parametrize(("what", "least"), [("queue", 400_000), ("index", 15_000)])
def test_a_disk_that_fills_up_is_an_error_and_kills_nobody(
    tmp_path: Path, what: str, least: int
) -> None:
    disk = small_disk()
    if disk is None:
        pytest.skip("this machine lets nobody mount a small disk")
    script = (
        f"mount -t tmpfs -o size=512k none '{tmp_path}' && "
        f"exec '{sys.executable}' -m tests.local.files.full_disk_writer {what} '{tmp_path}'"
    )
    done = subprocess.run(
        [*disk, script],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > least
