"""One mapped file: positions, durability, readers beside a writer, and how many are open."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tieredstore.local.mapped_file import MappedFile, MappedFiles, data_extents
from tieredstore.model.errors import (
    BackendRefusedError,
    OffsetOutOfRangeError,
    SegmentError,
    SegmentNotFoundError,
    StoreClosedError,
)

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
