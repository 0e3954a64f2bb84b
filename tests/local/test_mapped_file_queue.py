"""Files in a row: loading, growing, finding, trimming, deleting; histories beside a bytearray."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tieredstore.local.mapped_file import MappedFiles
from tieredstore.local.mapped_file_queue import Gap, MappedFileQueue
from tieredstore.model.errors import BackendRefusedError, SegmentError

SIZE = 64


def a_queue(folder: Path, files: MappedFiles | None = None) -> MappedFileQueue:
    return MappedFileQueue(folder / "q", file_bytes=SIZE, files=files or MappedFiles())


def put_files(folder: Path, *starts: int, size: int = SIZE) -> None:
    (folder / "q").mkdir(exist_ok=True)
    for start in starts:
        (folder / "q" / f"{start:020d}").write_bytes(bytes([start // SIZE % 256]) * size)


def refuse(why: str) -> None:
    raise OSError(why)


def names(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in (folder / "q").iterdir())


def test_a_queue_without_a_directory_is_empty(tmp_path: Path) -> None:
    queue = a_queue(tmp_path)
    queue.load()
    assert (queue.min_offset, queue.max_offset, queue.flushed_offset) == (None, 0, 0)
    assert queue.find(0) is None
    assert queue.read(0, 1) is None
    assert queue.flush() == 0
    queue.destroy()
    assert not (tmp_path / "q").exists()


def test_loaded_files_count_as_full(tmp_path: Path) -> None:
    put_files(tmp_path, 128, 192, 256)
    queue = a_queue(tmp_path)
    queue.load()
    assert (queue.min_offset, queue.max_offset, queue.flushed_offset) == (128, 320, 320)
    assert queue.read(200, 2) == b"\3\3"


def test_loading_opens_nothing(tmp_path: Path) -> None:
    put_files(tmp_path, *range(0, 50 * SIZE, SIZE))
    files = MappedFiles()
    queue = a_queue(tmp_path, files)
    queue.load()
    assert files.open_count == 0
    assert queue.read(0, 1) == b"\0"
    assert files.open_count == 1


def test_empty_files_at_the_end_are_removed_unless_only_read(tmp_path: Path) -> None:
    put_files(tmp_path, 0)
    put_files(tmp_path, 64, 128, size=0)
    queue = a_queue(tmp_path, MappedFiles(read_only=True))
    queue.load()
    assert names(tmp_path) == [0, 64, 128]
    queue = a_queue(tmp_path)
    queue.load()
    assert names(tmp_path) == [0]
    assert queue.max_offset == 64


def test_an_empty_file_among_others_is_a_gap(tmp_path: Path) -> None:
    put_files(tmp_path, 0, 192)
    put_files(tmp_path, 64, 128, size=0)
    queue = a_queue(tmp_path)
    queue.load()
    assert names(tmp_path) == [0, 192]
    assert queue.gaps == [Gap(64, 192)]


def test_a_file_of_another_size_is_refused_by_name(tmp_path: Path) -> None:
    put_files(tmp_path, 0)
    put_files(tmp_path, 64, size=63)
    with pytest.raises(SegmentError, match="00000000000000000064: the file has 63 bytes"):
        a_queue(tmp_path).load()


def test_a_name_that_is_no_offset_is_refused_but_folders_are_not(tmp_path: Path) -> None:
    put_files(tmp_path, 0)
    (tmp_path / "q" / "folder").mkdir()
    a_queue(tmp_path).load()
    (tmp_path / "q" / "notes.txt").write_bytes(b"")
    with pytest.raises(SegmentError, match=r"notes\.txt"):
        a_queue(tmp_path).load()


def test_files_that_overlap_are_refused(tmp_path: Path) -> None:
    put_files(tmp_path, 0, 32)
    with pytest.raises(SegmentError, match="before the last one ends"):
        a_queue(tmp_path).load()


def test_a_gap_is_reported_and_read_around(tmp_path: Path) -> None:
    put_files(tmp_path, 64, 256, 320)
    queue = a_queue(tmp_path)
    queue.load()
    assert queue.gaps == [Gap(128, 256)]
    assert queue.read(64, 1) == b"\1"
    assert queue.read(200, 1) is None
    assert queue.read(256, 1) == b"\4"
    assert queue.read(320, 1) == b"\5"
    assert [file.start_offset for file in queue.files_from(128)] == [256, 320]


def test_offset_zero_is_not_found_once_the_first_file_is_gone(tmp_path: Path) -> None:
    put_files(tmp_path, 64, 128)
    queue = a_queue(tmp_path)
    queue.load()
    assert queue.find(0) is None
    assert queue.find(63) is None
    found = queue.find(64)
    assert found is not None
    assert found.start_offset == 64
    assert queue.find(192) is None


def test_the_first_file_holds_the_offset_that_the_queue_starts_from(tmp_path: Path) -> None:
    queue = a_queue(tmp_path)
    file = queue.file_for_append(200)
    assert file.start_offset == 192
    assert queue.flushed_offset == 192


def test_an_append_goes_into_as_many_files_as_it_takes(tmp_path: Path) -> None:
    queue = a_queue(tmp_path)
    assert queue.append(b"a" * 60) == 0
    assert queue.append(b"b" * 140) == 60
    assert names(tmp_path) == [0, 64, 128, 192]
    assert queue.max_offset == 200
    assert queue.read(60, 4) == b"bbbb"
    assert queue.read(64, 64) == b"b" * 64
    assert queue.read(199, 2) is None


def test_flush_covers_all_files(tmp_path: Path) -> None:
    queue = a_queue(tmp_path)
    queue.append(bytes(150))
    assert queue.flushed_offset == 0
    assert queue.flush() == 150
    assert not any(file.dirty for file in queue.files)


def test_files_made_in_advance_are_taken_and_do_not_show(tmp_path: Path) -> None:
    queue = a_queue(tmp_path)
    queue.reserve()
    assert not (tmp_path / "q").exists()
    queue.append(b"x")
    queue.reserve(2)
    queue.reserve(2)
    assert names(tmp_path) == [0, 64, 128]
    assert (queue.max_offset, len(queue.files)) == (1, 1)
    queue.append(bytes(64))
    assert names(tmp_path) == [0, 64, 128]
    queue.close()
    assert names(tmp_path) == [0, 64]


def test_a_trailing_file_of_zeros_is_tolerated(tmp_path: Path) -> None:
    put_files(tmp_path, 64)
    (tmp_path / "q" / f"{128:020d}").write_bytes(bytes(SIZE))
    queue = a_queue(tmp_path)
    queue.load()
    queue.truncate_dirty(100)
    assert names(tmp_path) == [64]
    assert (queue.max_offset, queue.flushed_offset) == (100, 100)
    assert (tmp_path / "q" / f"{64:020d}").read_bytes() == b"\1" * 36 + bytes(28)


def test_a_truncation_that_is_stopped_leaves_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = a_queue(tmp_path)
    queue.append(bytes(250))
    deleted: list[str] = []
    real_unlink = os.unlink

    def unlink(path: str) -> None:
        if deleted:
            raise KeyboardInterrupt
        deleted.append(path)
        real_unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(KeyboardInterrupt):
            queue.truncate_dirty(10)
    assert names(tmp_path) == [0, 64, 128]


def test_truncation_at_a_boundary_keeps_the_full_file(tmp_path: Path) -> None:
    put_files(tmp_path, 0, 64)
    queue = a_queue(tmp_path)
    queue.load()
    queue.truncate_dirty(64)
    assert queue.max_offset == 64
    assert names(tmp_path) == [0]
    assert queue.append(b"x") == 64


def test_deletion_spares_the_last_file_and_what_is_needed(tmp_path: Path) -> None:
    put_files(tmp_path, 0, 64, 128, 192)
    queue = a_queue(tmp_path)
    queue.load()
    assert [file.start_offset for file in queue.delete_before(127)] == [0]
    assert [file.start_offset for file in queue.delete_before(9999, count_max=1)] == [64]
    assert [file.start_offset for file in queue.delete_before(9999)] == [128]
    assert names(tmp_path) == [192]
    assert queue.min_offset == 192


def test_a_file_that_cannot_be_removed_stays_with_those_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_files(tmp_path, 0, 64, 128, 192)
    queue = a_queue(tmp_path)
    queue.load()
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", lambda path: refuse("busy"))
        with pytest.raises(OSError, match="busy"):
            queue.delete_before(192)
    assert queue.min_offset == 0
    assert queue.read(64, 1) == b"\1"
    assert [file.start_offset for file in queue.delete_before(192)] == [0, 64, 128]
    assert names(tmp_path) == [192]


def test_a_file_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    queue = a_queue(tmp_path)
    queue.append(bytes(64))
    (tmp_path / "q" / f"{64:020d}").mkdir()
    with pytest.raises(BackendRefusedError, match="create"):
        queue.append(b"x")
    assert queue.max_offset == 64


def test_destroy_removes_files_and_directory(tmp_path: Path) -> None:
    queue = a_queue(tmp_path)
    queue.append(bytes(100))
    queue.reserve()
    queue.destroy()
    assert not (tmp_path / "q").exists()


def test_a_store_of_many_sparse_files_costs_little_memory(tmp_path: Path) -> None:
    (tmp_path / "q").mkdir()
    size = 6_000_000
    for number in range(17_000):  # 100 GB
        descriptor = os.open(tmp_path / "q" / f"{number * size:020d}", os.O_CREAT | os.O_WRONLY)
        os.ftruncate(descriptor, size)
        os.close(descriptor)
    before = anonymous_bytes()
    queue = MappedFileQueue(tmp_path / "q", file_bytes=size, files=MappedFiles())
    queue.load()
    assert queue.max_offset == 17_000 * size
    for offset in range(0, queue.max_offset, 1000 * size):
        assert queue.read(offset, 20) == bytes(20)
    assert anonymous_bytes() - before < 50 << 20
    queue.close()


def anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


class QueueBesideBytes(RuleBasedStateMachine):
    """The queue acts like one bytearray that forgets its beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.files = MappedFiles(open_max=2)
        self.queue = a_queue(self.folder, self.files)
        self.held = bytearray()
        self.start = 0
        self.flushed = 0

    @rule(data=st.binary(min_size=1, max_size=150))
    def append(self, data: bytes) -> None:
        assert self.queue.append(data) == len(self.held)
        self.held += data

    @rule()
    def flush(self) -> None:
        assert self.queue.flush() == len(self.held)

    @rule(count=st.integers(1, 3))
    def reserve(self, count: int) -> None:
        self.queue.reserve(count)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        end = data.draw(st.integers(self.start, len(self.held)))
        self.queue.truncate_dirty(end)
        del self.held[end:]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.queue.delete_before(data.draw(st.integers(0, len(self.held))))
        self.start = self.queue.min_offset or 0
        assert self.start % SIZE == 0

    @precondition(lambda self: self.held)
    @rule()
    def reopen(self) -> None:
        self.queue.close()
        self.queue = a_queue(self.folder, self.files)
        self.queue.load()
        self.queue.truncate_dirty(len(self.held))

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.held)))
        length = data.draw(st.integers(1, SIZE))
        file_end = offset - offset % SIZE + SIZE
        want = bytes(self.held[offset : min(offset + length, file_end)])
        if offset < self.start:
            want = b""
        assert self.queue.read(offset, length) == (want if len(want) == length else None)

    @invariant()
    def ends_agree(self) -> None:
        assert self.queue.max_offset == len(self.held)
        assert self.queue.flushed_offset <= len(self.held)
        assert self.files.open_count <= 2

    def teardown(self) -> None:
        self.queue.close()
        shutil.rmtree(self.folder)


TestQueueBesideBytes = QueueBesideBytes.TestCase
