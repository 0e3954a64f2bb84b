"""A tier in a directory: RocketMQ's own paths and file names, on any POSIX file system.

    <root>/<h8>_<cluster>/<broker>/<topic>/<queue id>/<TYPE>/<segment name>

Files are opened for each call, so thousands of queues cannot exhaust descriptors, and threads and
forked processes share none. Opening a file was measured at a few microseconds, no more than the
read that follows.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from tieredstore.codec.names import cluster_directory, parse_segment_name, segment_name
from tieredstore.driver.durable import (
    NO_LINK,
    fsync_directory,
    make_directories,
    read_all,
    replace_file,
    write_all,
)
from tieredstore.driver.provider import (
    PROBE_PATH,
    Adoption,
    Leftover,
    ListedSegment,
    SegmentProvider,
    refuse_existing,
    remove_staged,
    staged_blocks,
    staged_leftovers,
)
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer, FileSegment, check_queue_path, check_range
from tieredstore.model.errors import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    InvalidConfigError,
    PositionMismatchError,
    SegmentNotFoundError,
    SegmentSealedError,
    StoreClosedError,
)
from tieredstore.model.findings import Finding
from tieredstore.model.values import SegmentType
from tieredstore.providers.posix_shelf import (
    PosixGenerations,
    PosixScratch,
    backend_error,
    translated,
)

if TYPE_CHECKING:
    from tieredstore.driver.metadata import Change
    from tieredstore.model.config import StoreConfig

# A hard link is impossible, such as to another file system: copy the bytes.
_NO_SECOND_NAME: Final = frozenset({errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK})
_REWRITTEN_BYTES: Final = 1 << 20  # at once
_TYPES: Final = {kind.name: kind for kind in SegmentType}


class PosixFileSegment(FileSegment):
    """A segment that is one file.

    * The file's length alone says where the segment ends; we keep no number of our own.
    * Bytes that a crashed process wrote but did not sync are synced before `size` counts them, but
      only for a writer: a reader would have to wait for the disk once per segment.
    * A failed write is cut off again if possible: after a failed sync, a second one would report
      success for pages that the kernel takes for clean. Bytes that stay are written once more.
      If the handle was closed meanwhile, as by a shutdown that no longer waits, they do stay: by
      now they may count elsewhere.
    """

    def __init__(
        self,
        file: Path,
        path: str,
        type: SegmentType,
        base: int,
        *,
        only_read: bool,
        unsynced: set[Path],
    ) -> None:
        super().__init__(path, type, base)
        self._file = file
        self._only_read = only_read
        self._unsynced = unsynced  # the provider's files whose sync has failed
        self._end_guard = threading.Lock()  # held to write, and to read the size
        self._durable_bytes = 0
        self._sealed = False
        self._closed = False

    @property
    def path(self) -> str:
        return str(self._file)

    def size(self) -> int:
        with self._end_guard, self._opened("size") as descriptor:
            size = self._existing_bytes(descriptor)
            return size if self._only_read else self._durable_end(descriptor)

    def read(self, position: int, length: int) -> bytes:
        with self._opened("read") as descriptor:
            check_range(self.path, position, length, self._existing_bytes(descriptor))
            data = read_all(descriptor, length, position)
            if len(data) < length:
                raise BackendUnavailableError(self.path, "read", "the file became shorter")
            return data

    def write(self, position: int, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        with self._end_guard:
            self._check_writable()
            try:
                self._append(os.O_RDWR, view, position)
            except SegmentNotFoundError:
                if position != 0:
                    raise PositionMismatchError(self.path, expected=position, actual=0) from None
                if view:
                    with translated(self.path, "create"):
                        make_directories(self._file.parent)
                    self._append(os.O_RDWR | os.O_CREAT, view, position)

    def seal(self) -> None:
        self._check_open()
        self._sealed = True

    def delete(self) -> None:
        with self._end_guard:
            self._check_open()
            with translated(self.path, "delete"):
                temporary = self._file.with_name(self._file.name + ".tmp")  # of a failed create
                temporary.unlink(missing_ok=True)
                self._file.unlink(missing_ok=True)
                if self._file.parent.is_dir():
                    fsync_directory(self._file.parent)
                else:  # refused: who cannot reach the backend does not try others
                    _refuse_cut_off(self._file.parent, "delete", BackendRefusedError)
            self._durable_bytes = 0
            self._unsynced.discard(self._file)

    def cut(self, size: int) -> None:
        with self._end_guard, self._opened("cut", os.O_RDWR) as descriptor:
            if self._existing_bytes(descriptor) > size:
                os.ftruncate(descriptor, size)
                os.fsync(descriptor)
            self._durable_bytes = min(self._durable_bytes, size)

    def close(self) -> None:
        self._closed = True

    def create(self, blocks: Iterable[Buffer]) -> int:
        """Write the whole file. It gets its name only when it is complete and durable."""
        with self._end_guard:
            self._check_writable()
            with translated(self.path, "create"):
                make_directories(self._file.parent)
                # Until this has ended, a file of that name is another task's: it stays.
                replace_file(self._file, blocks)
                try:
                    fsync_directory(self._file.parent)
                    size = self._file.stat().st_size
                except BaseException:
                    if not self._closed:  # else whoever has the segment now may have counted it
                        self._file.unlink(missing_ok=True)  # its name may not be durable
                    raise
                if not size:
                    self._file.unlink()
            self._durable_bytes = size
            return size

    def _append(self, flags: int, view: memoryview, position: int) -> None:
        with self._opened("write", flags) as descriptor:
            end = self._durable_end(descriptor)
            if position != end:
                raise PositionMismatchError(self.path, expected=position, actual=end)
            if not view:
                return
            try:
                # Checked again at each step, as the one before may have hung.
                write_all(descriptor, view, position, check=self._check_open)
                os.fdatasync(descriptor)
                if position == 0:  # the file is new, so sync its name too
                    fsync_directory(self._file.parent)
            except BaseException:
                self._unsynced.add(self._file)  # in case the bytes stay
                if not self._closed:  # else whoever has the segment now may have written behind
                    os.ftruncate(descriptor, position)
                    if position == 0:
                        self._file.unlink(missing_ok=True)
                raise
            self._durable_bytes = position + len(view)
            self._unsynced.discard(self._file)

    def _existing_bytes(self, descriptor: int) -> int:
        """The file's length. An empty file, as Java leaves them, is no segment yet."""
        size = os.fstat(descriptor).st_size
        if not size:
            raise SegmentNotFoundError(self.path)
        return size

    def _durable_end(self, descriptor: int) -> int:
        """The file's length, after syncing all of it."""
        size = os.fstat(descriptor).st_size
        if size > self._durable_bytes:
            if self._file in self._unsynced:
                self._write_again(self._durable_bytes, size)
            try:
                os.fdatasync(descriptor)
                fsync_directory(self._file.parent)
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EINVAL):
                    self._unsynced.add(self._file)
                    raise  # EROFS, EINVAL: a read-only file system has nothing to sync
            self._unsynced.discard(self._file)
        self._durable_bytes = size
        return size

    def _write_again(self, start: int, end: int) -> None:
        descriptor = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
        try:
            for at in range(start, end, _REWRITTEN_BYTES):
                length = min(_REWRITTEN_BYTES, end - at)
                write_all(descriptor, read_all(descriptor, length, at), at)
        finally:
            os.close(descriptor)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self.path} is closed")

    def _check_writable(self) -> None:
        self._check_open()
        if self._sealed:
            raise SegmentSealedError(self.path)

    @contextmanager
    def _opened(self, operation: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        self._check_open()
        if flags & os.O_CREAT:
            flags |= NO_LINK
        with translated(self.path, operation):
            # O_NONBLOCK, because opening a FIFO would wait for its other end.
            try:
                descriptor = os.open(self._file, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
            except FileNotFoundError:
                _refuse_cut_off(self._file.parent, operation)
                raise
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    if flags & os.O_RDWR:
                        raise BackendRefusedError(self.path, operation, "it is no regular file")
                    raise SegmentNotFoundError(self.path)
                yield descriptor
            finally:
                os.close(descriptor)


class PosixProvider(SegmentProvider):
    """Segments below one root directory and one cluster.

    The catalogue's lock keeps writers of different processes apart; this class does not. Symbolic
    links to directories are followed, because an operator may have moved a topic to another disk.
    While that disk is not there, what lies on it cannot be reached.
    """

    def __init__(self, root: str | os.PathLike[str], cluster: str, runtime: Runtime) -> None:
        super().__init__(runtime)
        if not os.fspath(root):
            raise InvalidConfigError("path: the posix provider needs a directory")
        if cluster in ("", ".", "..") or "/" in cluster or "\0" in cluster:
            raise InvalidConfigError(f"cluster_name: {cluster!r} is no name of a directory")
        self._root = Path(root).absolute() / cluster_directory(cluster)
        self._only_read = False
        self._unsynced: set[Path] = set()

    @classmethod
    def from_config(cls, config: StoreConfig, runtime: Runtime) -> Self:
        return cls(config.path, config.cluster_name, runtime)

    def open(self, path: str, type: SegmentType, base: int) -> PosixFileSegment:
        check_queue_path(path, base)
        file = self._root / path / type.name / segment_name(base)
        return PosixFileSegment(
            file, path, type, base, only_read=self._only_read, unsynced=self._unsynced
        )

    def only_read(self) -> None:
        self._only_read = True

    def create(self, segment: FileSegment, blocks: Iterable[Buffer]) -> int:
        refuse_existing(segment)
        if isinstance(segment, PosixFileSegment):
            return segment.create(blocks)
        return super().create(segment, blocks)

    def list(self, prefix: str = "") -> Iterator[ListedSegment]:
        """What cannot be reached, such as a topic on another disk, is raised after all the rest."""
        wanted = [part for part in prefix.split("/") if part]
        if len(wanted) > 3:
            return  # there are no queues below a queue's path
        missing: list[BackendUnavailableError] = []
        for queue in _below(self._root, wanted, missing, depth=3):
            path = queue.relative_to(self._root).as_posix()
            try:
                check_queue_path(path, base=0)
            except BackendRefusedError:
                continue  # no queue: `open` would refuse it too
            for type_name, kind in _TYPES.items():
                yield from _segments(path, queue / type_name, kind)
        if missing:
            raise missing[0]

    def places(self) -> Sequence[tuple[str, str]]:
        return [
            (cluster, broker.name)
            for directory in sorted(_entries(self._root.parent), key=_name)
            if (cluster := directory.name.partition("_")[2])
            and directory.name == cluster_directory(cluster)
            for broker in sorted(_entries(Path(directory.path)), key=_name)
            if broker.is_dir()
        ]

    def probe(self) -> Sequence[Finding]:
        """Also removes the folders that it has made, or they would pass for another broker's."""
        findings = super().probe()
        folder = self._root / PROBE_PATH / SegmentType.COMMIT_LOG.name
        with suppress(OSError):  # another process probes too
            while folder != self._root:
                folder.rmdir()
                folder = folder.parent
        return findings

    def generations(self, broker: str) -> PosixGenerations:
        return PosixGenerations(self._root.parent, self._root.name, broker)

    def scratch(self, broker: str) -> PosixScratch:
        return PosixScratch(self._root.parent, self._root.name, broker)

    def adopt(self, broker: str, adoptions: Sequence[Adoption], changes: Sequence[Change]) -> bool:
        """Links each staged file to its segment's name, so that it still exists if this fails.
        Whatever a power cut leaves, the log is there before the units that name its bytes."""
        logs = [each for each in adoptions if each.type is SegmentType.COMMIT_LOG]
        self._link(broker, logs)
        self._link(broker, [each for each in adoptions if each.type is not SegmentType.COMMIT_LOG])
        return False

    def _link(self, broker: str, adoptions: Sequence[Adoption]) -> None:
        scratch = self.scratch(broker)
        folders: set[Path] = set()
        for each in adoptions:
            with self.open(each.path, each.type, each.base) as segment:
                refuse_existing(segment)
                file = Path(segment.path)
                with translated(segment.path, "adopt"):
                    make_directories(file.parent)
                    file.unlink(missing_ok=True)  # empty, as Java leaves them
                    try:
                        os.link(scratch.file(each.name), file)
                        folders.add(file.parent)
                    except OSError as error:
                        if error.errno not in _NO_SECOND_NAME:
                            raise
                        segment.create(staged_blocks(scratch, each))
        for folder in folders:
            with translated(folder, "adopt"):
                fsync_directory(folder)

    def leftovers(self, prefix: str = "") -> Sequence[Leftover]:
        return staged_leftovers(prefix, self.scratch, now_ms=self._runtime.clock.now_ms())

    def remove_leftovers(self, leftovers: Sequence[Leftover]) -> None:
        remove_staged(leftovers, self.scratch)


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _segments(path: str, directory: Path, kind: SegmentType) -> Iterator[ListedSegment]:
    for entry in _entries(directory):
        try:
            base = parse_segment_name(entry.name)
            size = entry.stat().st_size if entry.is_file(follow_symlinks=False) else 0
        except (ValueError, FileNotFoundError):
            continue  # not a segment, or gone since
        except OSError as error:
            raise backend_error(entry.path, "list", error) from error
        if size:
            yield ListedSegment(path, kind, base, size)


def _below(
    directory: Path, wanted: list[str], missing: list[BackendUnavailableError], *, depth: int
) -> Iterator[Path]:
    """Directories `depth` levels down; on the first levels, only through the names `wanted`. Those
    that cannot be read are passed over, and the reasons added to `missing`."""
    if depth == 0:
        yield directory
        return
    try:
        names = [wanted[0]] if wanted else [entry.name for entry in _entries(directory)]
    except BackendUnavailableError as error:
        missing.append(error)
        return
    for name in names:
        if name not in (".", ".."):
            yield from _below(directory / name, wanted[1:], missing, depth=depth - 1)


def _refuse_cut_off(
    directory: Path, operation: str, kind: type[BackendError] = BackendUnavailableError
) -> None:
    """Raise an error if a missing directory lies behind a link whose target is missing: what is
    there has not been deleted."""
    for each in (directory, *directory.parents):
        if each.exists():
            return
        if each.is_symlink():
            reason = f"{each} is a link, and what it leads to is not there"
            raise kind(str(directory), operation, reason)


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        _refuse_cut_off(directory, "list")
        return []
    except (NotADirectoryError, ValueError):
        return []  # a ValueError means a name that no file can have
    except OSError as error:
        if error.errno == errno.ELOOP:
            return []  # a link to itself
        raise backend_error(str(directory), "list", error) from error
