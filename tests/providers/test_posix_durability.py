"""The POSIX provider's durability: what is synced when, and what a broken disk does."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.codec.golden_files import contents
from tieredstore.driver.durable import fsync_directory
from tieredstore.driver.provider import Adoption
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    PositionMismatchError,
    SegmentNotFoundError,
    StoreClosedError,
)
from tieredstore.model.values import SegmentType
from tieredstore.providers import posix
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.disk import ForgetfulDisk

LOG, QUEUE, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX


@pytest.fixture
def provider(tmp_path: Path) -> PosixProvider:
    return PosixProvider(tmp_path, "GoldenCluster", Runtime.inline())


def held(disk: ForgetfulDisk, moment: str) -> dict[str, bytes]:
    """The files that a power cut at this moment leaves, by their original paths."""
    copy = disk.synced(disk.folder.with_name(f"{disk.folder.name}-{moment}"))
    return {str(disk.folder / name): data for name, data in contents(copy).items()}


class TestDurability:
    def test_bytes_and_every_new_name_are_synced(
        self, provider: PosixProvider, tmp_path: Path
    ) -> None:
        with ForgetfulDisk(tmp_path) as disk:
            segment = provider.open("b/t/0", LOG, 0)
            segment.write(0, b"first")
            assert held(disk, "first write") == {segment.path: b"first"}

            disk.syncs.clear()
            segment.write(5, b"second")
            assert held(disk, "second write") == {segment.path: b"firstsecond"}
            assert disk.syncs == [(segment.path, 11)]  # its name is durable already

            segment.delete()
            assert held(disk, "deletion") == {}

    def test_who_only_reads_syncs_nothing(self, provider: PosixProvider, tmp_path: Path) -> None:
        unsynced = Path(provider.open("b/t/0", LOG, 0).path)
        unsynced.parent.mkdir(parents=True)
        unsynced.write_bytes(b"of a process that was killed")
        with ForgetfulDisk(tmp_path) as disk:
            reader = PosixProvider(tmp_path, "GoldenCluster", Runtime.inline())
            reader.only_read()
            assert reader.open("b/t/0", LOG, 0).size() == 28
            assert disk.syncs == []
            assert provider.open("b/t/0", LOG, 0).size() == 28
            assert (str(unsynced), 28) in disk.syncs

    def test_of_what_is_adopted_the_log_is_there_before_its_units(self, tmp_path: Path) -> None:
        """A power cut may lose any name whose folder was not synced, and keep any other."""

        def stopped(folder: Path, step: int) -> ForgetfulDisk:
            provider = PosixProvider(folder, "GoldenCluster", Runtime.inline())
            scratch = provider.scratch("b")
            assert scratch is not None
            adoptions = [
                Adoption(
                    path=f"b/t/{number}",
                    type=kind,
                    base=0,
                    name=f"load/run/{kind.name}-{number}",
                    size=scratch.put(f"load/run/{kind.name}-{number}", [b"bytes"]),
                    crc=0,
                )
                for number in range(2)
                for kind in (QUEUE, LOG)
            ]
            with ForgetfulDisk(folder, stop_at=step) as disk:
                provider.adopt("b", adoptions, [])
            return disk

        step = 1
        while True:
            disk = stopped(tmp_path / str(step), step)
            written = contents(disk.written(tmp_path / f"{step}-written"))
            synced = contents(disk.synced(tmp_path / f"{step}-synced"))
            for name in written:
                if f"/{QUEUE.name}/" in str(name):
                    assert Path(str(name).replace(QUEUE.name, LOG.name)) in map(Path, synced)
            if not disk.died:
                break
            step += 1
        assert step > 10

    def test_what_is_staged_has_its_name_when_the_power_fails(
        self, provider: PosixProvider, tmp_path: Path
    ) -> None:
        with ForgetfulDisk(tmp_path) as disk:
            scratch = provider.scratch("b")
            assert scratch is not None
            scratch.put("run/1", [b"staged"])
            (staged,) = held(disk, "put").items()
            assert (Path(staged[0]).name, staged[1]) == ("1", b"staged")

    def test_what_a_dead_process_left_is_synced_before_it_counts(
        self, provider: PosixProvider, tmp_path: Path
    ) -> None:
        segment = provider.open("b/t/0", LOG, 0)
        segment.write(0, b"first")
        with ForgetfulDisk(tmp_path) as disk:
            with open(segment.path, "ab") as file:
                file.write(b"not yet synced")
            again = provider.open("b/t/0", LOG, 0)
            assert again.size() == 19
            assert held(disk, "look") == {segment.path: b"firstnot yet synced"}
            assert again.size() == 19
            assert disk.syncs.count((segment.path, 19)) == 1  # the handle knows it is synced
            with pytest.raises(PositionMismatchError) as caught:
                segment.write(5, b"late")
        assert caught.value.actual == 19
        assert disk.syncs.count((segment.path, 19)) == 2  # this handle did not know

    def test_a_created_segment_appears_whole_and_durable(
        self, provider: PosixProvider, tmp_path: Path
    ) -> None:
        segment = provider.open("b/rmq_sys_INDEX/0", INDEX, 0)
        seen: list[bool] = []

        def blocks() -> Iterator[bytes]:
            yield b"head"
            seen.append(Path(segment.path).exists())
            yield b"tail"

        with ForgetfulDisk(tmp_path) as disk:
            provider.create(segment, blocks())
        assert seen == [False]
        assert disk.syncs[-2] == (segment.path + ".tmp", 8)
        assert held(disk, "creation") == {segment.path: b"headtail"}

    def test_a_crash_in_a_create_leaves_no_segment_and_no_waste(
        self, provider: PosixProvider
    ) -> None:
        segment = provider.open("b/rmq_sys_INDEX/0", INDEX, 0)
        segment.write(0, b"x")
        segment.delete()
        leftover = Path(segment.path + ".tmp")
        leftover.write_bytes(b"half a file that a dead process left")
        assert list(provider.list()) == []
        provider.create(segment, [b"whole"])
        assert segment.read(0, 5) == b"whole"
        leftover.write_bytes(b"again")
        segment.delete()
        assert not leftover.exists()

    def test_a_create_that_breaks_leaves_what_another_task_has_made(
        self, provider: PosixProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A copy may run twice at once, and its source may go before the slower one has read it."""
        segment = provider.open("b/t/0", LOG, 0)

        def meanwhile(folder: Path) -> None:
            monkeypatch.undo()
            provider.create(provider.open("b/t/0", LOG, 0), [b"whole"])

        def gone() -> Iterator[bytes]:
            yield b"wh"
            raise SegmentNotFoundError("source")

        monkeypatch.setattr("tieredstore.providers.posix.make_directories", meanwhile)
        with pytest.raises(SegmentNotFoundError, match="source"):
            provider.create(segment, gone())
        assert segment.read(0, 5) == b"whole"
        assert len(list(Path(segment.path).parent.iterdir())) == 1


class TestBrokenDisk:
    @pytest.mark.parametrize("written", [0, 3, 5])
    def test_a_write_that_fails_half_way_leaves_the_old_end(
        self, provider: PosixProvider, monkeypatch: pytest.MonkeyPatch, written: int
    ) -> None:
        segment = provider.open("b/t/0", LOG, 0)
        segment.write(0, b"first")
        real = os.pwrite

        def full_disk(descriptor: int, data: memoryview, position: int) -> int:
            if position >= 5 + written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(descriptor, data[:written], position)

        monkeypatch.setattr(os, "pwrite", full_disk)
        with pytest.raises(BackendRefusedError, match="No space left") as caught:
            segment.write(5, b"second")
        assert caught.value.operation == "write"
        assert isinstance(caught.value.__cause__, OSError)
        monkeypatch.undo()
        assert segment.size() == 5
        segment.write(5, b"second")
        assert segment.read(0, 11) == b"firstsecond"

    def test_a_first_write_that_fails_leaves_no_segment(
        self, provider: PosixProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full_disk(descriptor: int, data: memoryview, position: int) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        segment = provider.open("b/t/0", LOG, 0)
        monkeypatch.setattr(os, "pwrite", full_disk)
        with pytest.raises(BackendRefusedError):
            segment.write(0, b"first")
        with pytest.raises(BackendRefusedError):
            provider.create(segment, [b"first"])
        monkeypatch.undo()
        with pytest.raises(SegmentNotFoundError):
            segment.size()
        assert list(provider.list()) == []
        assert list(Path(segment.path).parent.iterdir()) == []

    def test_a_created_segment_whose_name_is_not_durable_is_none(
        self, provider: PosixProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        segment = provider.open("b/rmq_sys_INDEX/0", INDEX, 0)
        provider.create(segment, [b"x"])
        segment.delete()
        real = os.fsync

        def broken(descriptor: int) -> None:
            if os.path.isdir(os.readlink(f"/proc/self/fd/{descriptor}")):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(descriptor)

        monkeypatch.setattr(os, "fsync", broken)
        with pytest.raises(BackendUnavailableError):
            provider.create(segment, [b"whole"])
        monkeypatch.undo()
        with pytest.raises(SegmentNotFoundError):
            segment.size()
        assert provider.create(segment, [b"whole"]) == 5

    def test_bytes_whose_sync_has_failed_are_written_once_more(
        self, provider: PosixProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The kernel takes them for clean: another sync alone would report success. A process that
        was killed has left them, so they cannot be cut off."""
        left = Path(provider.open("b/t/0", LOG, 0).path)
        left.parent.mkdir(parents=True)
        left.write_bytes(b"left behind")
        sync, write = os.fdatasync, os.pwrite
        failures, written = iter([1, 2]), list[bytes]()

        def fails_twice(descriptor: int) -> None:
            for _ in failures:
                raise OSError(errno.EIO, "input/output error")
            sync(descriptor)

        def is_noted(descriptor: int, data: memoryview, position: int) -> int:
            written.append(bytes(data))
            return write(descriptor, data, position)

        monkeypatch.setattr(os, "fdatasync", fails_twice)
        monkeypatch.setattr(os, "pwrite", is_noted)
        for _ in range(2):
            with pytest.raises(BackendError):
                provider.open("b/t/0", LOG, 0).size()
        assert provider.open("b/t/0", LOG, 0).size() == 11
        assert written == [b"left behind"] * 2
        assert provider.open("b/t/0", LOG, 0).size() == 11
        assert len(written) == 2

    def test_a_failed_sync_is_no_durable_write(
        self, provider: PosixProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        segment = provider.open("b/t/0", LOG, 0)
        segment.write(0, b"first")

        def broken(descriptor: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "fdatasync", broken)
        with pytest.raises(BackendUnavailableError):
            segment.write(5, b"second")
        monkeypatch.undo()
        # The kernel may have dropped the pages, so a second sync would lie: the bytes are given up.
        assert provider.open("b/t/0", LOG, 0).size() == 5

    @pytest.mark.parametrize("end", [0, 5])
    def test_a_write_that_fails_after_its_handle_was_closed_takes_nothing_from_others(
        self, provider: PosixProvider, monkeypatch: pytest.MonkeyPatch, end: int
    ) -> None:
        """A shutdown does not wait for ever for a disk that hangs. The next life of the store goes
        on behind what it finds."""
        segment = provider.open("b/t/0", LOG, 0)
        if end:
            segment.write(0, b"first")
        sync = os.fdatasync

        def hangs(descriptor: int) -> None:
            monkeypatch.setattr(os, "fdatasync", sync)
            segment.close()
            successor = provider.open("b/t/0", LOG, 0)
            assert successor.size() == end + 6
            successor.write(end + 6, b"third")
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "fdatasync", hangs)
        with pytest.raises(BackendUnavailableError):
            segment.write(end, b"second")
        assert provider.open("b/t/0", LOG, 0).read(end, 11) == b"secondthird"

    def test_a_write_whose_handle_was_closed_before_it_began_does_not_begin(
        self, provider: PosixProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        provider.open("b/t/0", LOG, 0).write(0, b"first")
        segment = provider.open("b/t/0", LOG, 0)
        sync = os.fdatasync

        def hangs(descriptor: int) -> None:
            monkeypatch.setattr(os, "fdatasync", sync)
            segment.close()
            provider.open("b/t/0", LOG, 0).write(5, b"third")

        monkeypatch.setattr(os, "fdatasync", hangs)  # of bytes that this handle did not write
        with pytest.raises(StoreClosedError):
            segment.write(5, b"other")
        assert provider.open("b/t/0", LOG, 0).read(0, 10) == b"firstthird"

    def test_a_create_that_fails_after_its_handle_was_closed_takes_nothing_from_others(
        self, provider: PosixProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The next life of the store may have noted that an index file is uploaded."""
        segment = provider.open("b/t/0", LOG, 0)

        def hangs(path: Path) -> None:
            monkeypatch.setattr(posix, "fsync_directory", fsync_directory)
            segment.close()
            assert provider.open("b/t/0", LOG, 0).size() == 5
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(posix, "fsync_directory", hangs)
        with pytest.raises(BackendUnavailableError):
            provider.create(segment, [b"whole"])
        assert provider.open("b/t/0", LOG, 0).read(0, 5) == b"whole"

    def test_a_write_whose_handle_is_closed_half_way_goes_no_further(
        self, provider: PosixProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        segment = provider.open("b/t/0", LOG, 0)
        real = os.pwrite

        def hangs(descriptor: int, data: memoryview, at: int) -> int:
            written = real(descriptor, data[:3], at)
            monkeypatch.setattr(os, "pwrite", real)
            segment.close()
            successor = provider.open("b/t/0", LOG, 0)
            successor.write(successor.size(), b"third")
            return written

        monkeypatch.setattr(os, "pwrite", hangs)
        with pytest.raises(StoreClosedError):
            segment.write(0, b"firstsecond")
        assert provider.open("b/t/0", LOG, 0).read(0, 8) == b"firthird"

    def test_a_system_that_takes_few_bytes_at_a_time_gets_them_all(
        self, provider: PosixProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real_write, real_read = os.pwrite, os.pread
        monkeypatch.setattr(os, "pwrite", lambda d, data, at: real_write(d, data[:3], at))
        monkeypatch.setattr(os, "pread", lambda d, length, at: real_read(d, min(length, 2), at))
        segment = provider.open("b/t/0", LOG, 0)
        segment.write(0, b"0123456789")
        assert segment.read(1, 8) == b"12345678"

    def test_a_file_that_shrinks_under_a_reader_is_no_short_read(
        self, provider: PosixProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        segment = provider.open("b/t/0", LOG, 0)
        segment.write(0, b"0123456789")
        monkeypatch.setattr(os, "pread", lambda descriptor, length, at: b"")
        with pytest.raises(BackendUnavailableError, match="shorter"):
            segment.read(0, 10)

    @pytest.mark.parametrize(
        ("number", "kind"),
        [
            (errno.EACCES, BackendRefusedError),
            (errno.EROFS, BackendRefusedError),
            (errno.EDQUOT, BackendRefusedError),
            (errno.EIO, BackendUnavailableError),
            (errno.ESTALE, BackendUnavailableError),
            (errno.EMFILE, BackendUnavailableError),
            (errno.ENOENT, SegmentNotFoundError),
        ],
    )
    def test_the_systems_errors_become_ours(
        self,
        provider: PosixProvider,
        monkeypatch: pytest.MonkeyPatch,
        number: int,
        kind: type[Exception],
    ) -> None:
        segment = provider.open("b/t/0", LOG, 0)

        def broken(*arguments: object) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "open", broken)
        with pytest.raises(kind):
            segment.read(0, 1)

    def test_a_read_only_file_system_can_be_read(
        self, provider: PosixProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        provider.open("b/t/0", LOG, 0).write(0, b"data")

        def read_only(descriptor: int) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr(os, "fdatasync", read_only)
        monkeypatch.setattr(os, "fsync", read_only)
        assert provider.open("b/t/0", LOG, 0).size() == 4

    def test_a_directory_in_the_place_of_a_file_is_one_clear_error(
        self, provider: PosixProvider
    ) -> None:
        segment = provider.open("b/t/0", QUEUE, 0)
        Path(segment.path).mkdir(parents=True)
        with pytest.raises(BackendRefusedError, match="directory"):
            segment.write(0, b"x")

    @pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
    def test_a_listing_that_may_not_look_at_a_file_is_one_clear_error(
        self, provider: PosixProvider, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        """As in a folder whose names may be read, but not what they stand for."""
        provider.open("b/t/0", LOG, 0).write(0, b"x")
        real = posix._entries

        class Unseen:
            def __init__(self, entry: os.DirEntry[str]) -> None:
                self.name, self.path, self.is_file = entry.name, entry.path, entry.is_file

            def stat(self) -> os.stat_result:
                raise OSError(code, os.strerror(code))

        def entries(folder: Path) -> list[Any]:
            return [Unseen(each) if each.is_file() else each for each in real(folder)]

        monkeypatch.setattr(posix, "_entries", entries)
        with pytest.raises(BackendError) as caught:
            list(provider.list())
        assert caught.value.operation == "list"
