"""One mapped file: positions, durability, room on the disk, and how many files may be open."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.local.index_kit import PUTS, columns_of, new_file
from tests.local.store_audit import check_agreement, opened
from tieredstore.local.mapped_file import (
    OPEN_MAX_LEAST,
    OPEN_MAX_MOST,
    Blocks,
    MappedFile,
    MappedFiles,
    data_extents,
    open_files_max,
)
from tieredstore.model.errors import (
    BackendRefusedError,
    OffsetOutOfRangeError,
    SegmentError,
    SegmentNotFoundError,
    StoreClosedError,
)
from tieredstore.testing.samples import TOPIC, a_message

SIZE = 16384


def a_file(folder: Path, *, start: int = 0, files: MappedFiles | None = None) -> MappedFile:
    return MappedFile.create(
        str(folder), start_offset=start, size=SIZE, files=files or MappedFiles()
    )


def test_a_new_file_has_its_full_length_and_twenty_digits(tmp_path: Path) -> None:
    file = a_file(tmp_path, start=SIZE)
    assert file.path.endswith("/00000000000000016384")
    assert Path(file.path).read_bytes() == bytes(SIZE)
    assert (file.wrote, file.flushed, file.full) == (0, 0, False)


def test_preallocated_files_own_their_blocks(tmp_path: Path) -> None:
    file = MappedFile.create(
        str(tmp_path), start_offset=0, size=SIZE, files=MappedFiles(), preallocate=True
    )
    assert os.stat(file.path).st_size == SIZE


def test_what_was_appended_can_be_read_and_nothing_behind_it(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    assert file.append(b"abc") == 0
    assert file.append(b"defg") == 3
    assert file.read(1, 5) == b"bcdef"
    with pytest.raises(OffsetOutOfRangeError):
        file.read(1, 7)
    with pytest.raises(OffsetOutOfRangeError):
        file.read(-1, 2)
    assert bytes(file.view(3, 7)) == b"defg"


def test_an_append_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    file.append(bytes(SIZE - 2))
    with pytest.raises(OffsetOutOfRangeError):
        file.append(b"abc")
    assert file.wrote == SIZE - 2
    file.append(b"ab")
    assert file.full


def test_overwriting_does_not_move_the_end_unless_it_ends_behind_it(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    file.append(b"abcdef")
    file.flush()
    file.write_at(1, b"XY")
    assert (file.wrote, file.dirty) == (6, True)
    file.flush()
    assert not file.dirty
    file.write_at(8, b"!")
    assert file.read(0, 9) == b"aXYdef\0\0!"


def test_flush_syncs_once_and_makes_the_name_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: calls.append("data"))
    monkeypatch.setattr(
        "tieredstore.local.mapped_file.fsync_directory", lambda path: calls.append("name")
    )
    file = a_file(tmp_path)
    file.append(b"abc")
    assert file.flush() == 3
    assert file.flush() == 3
    file.append(b"d")
    assert file.flush() == 4
    assert calls == ["data", "name", "data"]


def test_after_a_failed_sync_no_later_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = a_file(tmp_path)
    file.append(b"abc")

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(BackendRefusedError, match="fdatasync"):
            file.flush()
    with pytest.raises(BackendRefusedError, match="failed before"):
        file.flush()
    assert file.flushed == 0


@pytest.mark.parametrize("position", [0, 1, 4096, 5000, SIZE])
def test_truncation_leaves_only_zeros_behind(tmp_path: Path, position: int) -> None:
    file = a_file(tmp_path)
    file.append(b"x" * 9000)
    file.truncate_to(position)
    held = Path(file.path).read_bytes()
    assert held[position:] == bytes(SIZE - position)
    assert held[: min(position, 9000)] == b"x" * min(position, 9000)
    assert (file.wrote, file.flushed, len(held)) == (position, position, SIZE)


def test_holes_are_no_data(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as stream:
        stream.truncate(1 << 20)
        stream.seek(1 << 19)
        stream.write(b"here")
        stream.flush()
        extents = list(data_extents(stream.fileno(), 0, 1 << 20))
    assert any(start <= 1 << 19 < end for start, end in extents)
    assert all(0 <= start < end <= 1 << 20 for start, end in extents)


def test_closing_while_a_view_is_held_leaves_the_view_readable(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    file.append(b"abc")
    view = file.view(0, 3)
    file.close()
    file.close()
    assert bytes(view) == b"abc"
    with pytest.raises(StoreClosedError):
        file.read(0, 3)


def test_a_destroyed_file_is_gone_but_its_views_are_not(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    file.append(b"abc")
    view = file.view(0, 3)
    file.destroy()
    file.destroy()
    assert bytes(view) == b"abc"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SegmentNotFoundError):
        file.read(0, 3)


def test_a_file_that_shrank_is_refused_instead_of_killing_the_process(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    os.truncate(file.path, SIZE // 2)
    with pytest.raises(SegmentError, match="8192 bytes"):
        file.append(b"abc")


def test_no_more_files_are_open_than_allowed_and_all_can_be_used(tmp_path: Path) -> None:
    files = MappedFiles(open_max=3)
    many = [a_file(tmp_path, start=number * SIZE, files=files) for number in range(20)]
    for turn in range(3):
        for number, file in enumerate(many):
            file.append(bytes([number, turn]))
            assert files.open_count <= 3
    for number, file in enumerate(many):
        assert file.read(0, 6) == bytes([number, 0, number, 1, number, 2])
        assert file.flush() == 6
    for file in many:
        file.close()
    assert files.open_count == 0


def test_files_that_are_only_read_cannot_be_written(tmp_path: Path) -> None:
    a_file(tmp_path).append(b"abc")
    file = MappedFile(
        str(tmp_path), start_offset=0, size=SIZE, files=MappedFiles(read_only=True), wrote=SIZE
    )
    assert file.read(0, 3) == b"abc"
    with pytest.raises(TypeError):
        file.write_at(0, b"x")


def test_readers_see_whole_entries_while_one_appends_and_maps_come_and_go(tmp_path: Path) -> None:
    files = MappedFiles(open_max=1)
    file, other = a_file(tmp_path, files=files), a_file(tmp_path, start=SIZE, files=files)
    done = threading.Event()
    wrong: list[Any] = []

    def read() -> None:
        while not done.is_set():
            end = file.wrote
            for position in range(0, end, 64):
                entry = file.read(position, 64)
                if entry != bytes([position // 64 % 251 + 1]) * 64:
                    wrong.append((position, entry))
                    return

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(SIZE // 64):
        file.append(bytes([number % 251 + 1]) * 64)
        other.append(b"x")  # takes the only place among the open files
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []


def test_a_file_whose_directory_goes_during_a_sync_is_gone_and_not_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = a_file(tmp_path)
    file.append(b"abc")

    def destroy(_descriptor: int) -> None:
        file.destroy()
        os.rmdir(file.directory)

    monkeypatch.setattr(os, "fdatasync", destroy)
    with pytest.raises(SegmentNotFoundError):
        file.flush()


ROOT = Path(__file__).parents[2]
Ranges = list[tuple[int, int]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Ranges:
    """Every range for which blocks were requested."""
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


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_a_store_can_be_made_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse(monkeypatch, code)
    store = opened(tmp_path)
    assert store.put_message(a_message(0)).stored


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
    """A command that runs another one with a disk that goes with it; None without the rights."""
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
        f"exec '{sys.executable}' -m tests.local.full_disk_writer {what} '{tmp_path}'"
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


@pytest.mark.parametrize(
    ("allowed", "opened"),
    [
        (1_024, 256),
        (20_000, 5_000),
        (64, OPEN_MAX_LEAST),
        (1_000_000, OPEN_MAX_MOST),
        (resource.RLIM_INFINITY, OPEN_MAX_MOST),
    ],
)
def test_as_many_files_are_open_as_a_quarter_of_what_the_process_may_have(
    monkeypatch: pytest.MonkeyPatch, allowed: int, opened: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (allowed, allowed))
    assert open_files_max() == opened
    assert MappedFiles().open_max == opened
