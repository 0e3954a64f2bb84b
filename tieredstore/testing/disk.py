"""A disk that forgets unsynced data, and a process that dies at any of its steps.

    with ForgetfulDisk(folder, stop_at=7) as disk:
        write_something(folder)          # the 7th step does not happen, nor does any later one
    reopen(disk.written(elsewhere))      # the process died, the machine went on
    reopen(disk.synced(elsewhere_too))   # the power failed: all that was not synced is lost
    reopen(disk.cut(a_third, dice))      # the power failed: some of that is lost

What is lost, for each kind of change:

| change | durable when | else, after a power cut |
| --- | --- | --- |
| bytes, by `pwrite`, `write` or a mapping | the file was synced | any piece may be the old one |
| length | the file was synced | may be the old one |
| a new name, of a file or folder | its folder was synced | may be missing, with all below it |
| a removed name | its folder was synced | may be back, with the file's synced bytes |
| a name given to another file | its folder was synced | the old file, the new one, or neither |

A file's bytes and its name are independent: a synced file without a synced name is lost, and a
synced name may lead to an empty file. What is in the folder before the disk is entered is durable.

Steps are the calls of `os` in `STEPS` that concern the folder. Making a file with `os.open` or
`open` is not a step. For one thread, on Linux.
"""

from __future__ import annotations

import errno
import os
import random
import stat
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest

STEPS: Final = (
    *("pwrite", "write", "ftruncate", "posix_fallocate", "fsync", "fdatasync"),
    *("replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir"),
)
PIECES: Final = (1, 4, 20, 40, 64, 512, 4096)  # bytes that are kept or forgotten together
PAGE: Final = 4096
LOSSES: Final = (0.0, 0.3, 0.7, 1.0)


class Crash(BaseException):
    """The process has stopped. No `except Exception` in the code under test catches it."""


def _is_lock(name: str) -> bool:
    """Whether it is a lock file. None is opened: closing any descriptor would release the lock."""
    return name == "lock" or name.endswith(".lock")


class ForgetfulDisk:
    """The disk below one folder. Within the `with` block, it sees what the process does there.

    `stop_at` is the number of the step that does not happen, from 1; of a write, `torn` bytes or
    half of them are still written. The process dies there: this step and all later ones raise
    `Crash`, which the `with` block swallows, and `died` is true. With `error`, that step fails with
    EIO instead, once, and the process goes on. After a failed sync the system takes the bytes for
    written: no later sync writes them, unless they are written again. 0: nothing stops. `stop_at`
    may be set later.
    """

    def __init__(
        self, folder: Path, *, stop_at: int = 0, error: bool = False, torn: int | None = None
    ) -> None:
        self.folder = Path(os.path.realpath(folder))
        self.steps = 0
        self.died = False
        self.failed = ""  # the step that failed or stopped
        self.syncs: list[tuple[str, int]] = []  # each synced file or folder, and its size
        self.stop_at, self._error, self._torn = stop_at, error, torn
        self._bytes: dict[int, bytes] = {}  # by inode, of files, as synced
        self._dropped: dict[int, dict[int, bytes]] = {}  # by inode and place, of failed syncs
        self._names: dict[int, dict[str, int]] = {}  # by inode, of folders, as synced
        self._held: dict[int, int] = {}  # open descriptors, so that no inode is used again
        self._real: dict[str, Callable[..., Any]] = {}
        self._patch = pytest.MonkeyPatch()
        weakref.finalize(self, _close_all, self._held)
        for place, _, names in os.walk(self.folder):
            self._sync_folder(place, os.stat(place).st_ino)
            for name in names:
                self._bytes[Path(place, name).stat().st_ino] = self._read(Path(place, name))

    def __enter__(self) -> Self:
        self._real = {name: getattr(os, name) for name in STEPS}
        for name in STEPS:
            self._patch.setattr(os, name, self._step(name))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._patch.undo()
        return isinstance(error, Crash)

    # What is on the disk afterwards

    def written(self, target: Path) -> Path:
        """All that was written, as another process finds it."""
        return self._picture(target, lambda: False)

    def synced(self, target: Path) -> Path:
        """Only what was synced."""
        return self._picture(target, lambda: True)

    def cut(self, target: Path, dice: random.Random, *, pieces: Sequence[int] = PIECES) -> Path:
        """What was synced, and perhaps parts of each later change, in pieces of one of these
        sizes."""
        loss, piece = dice.choice(LOSSES), dice.choice(pieces)
        return self._picture(target, lambda: dice.random() < loss, piece)

    def _picture(self, target: Path, forgets: Callable[[], bool], piece: int = 1 << 62) -> Path:
        now = {self.folder.stat().st_ino: self.folder}
        for place, folders, files in os.walk(self.folder):
            for name in (*folders, *files):
                now[Path(place, name).stat().st_ino] = Path(place, name)
        self._mix(self.folder.stat().st_ino, target, now, forgets, piece)
        return target

    def _mix(
        self,
        folder: int,
        target: Path,
        now: dict[int, Path],
        forgets: Callable[[], bool],
        piece: int,
    ) -> None:
        target.mkdir(exist_ok=True)
        old = self._names.get(folder, {})
        new = _inodes(now[folder]) if folder in now else {}
        for name in sorted(old.keys() | new.keys()):
            inode = new.get(name)
            if inode != old.get(name) and forgets():
                # A new file under an old name: decide again, whether the name is lost altogether.
                inode = None if inode and old.get(name) and not forgets() else old.get(name)
            if inode is None:
                continue
            if self._is_folder(inode, now):
                self._mix(inode, target / name, now, forgets, piece)
            elif _is_lock(name):
                (target / name).touch()
            else:
                data = self._read(now[inode]) if inode in now else self._of_held(inode)
                kept = _mixed(self._bytes.get(inode, b""), data, forgets, piece)
                (target / name).write_bytes(kept)

    def _is_folder(self, inode: int, now: dict[int, Path]) -> bool:
        if inode in now:
            return now[inode].is_dir()
        held = self._held.get(inode)  # None for a lock
        return held is not None and stat.S_ISDIR(os.fstat(held).st_mode)

    # What the process does

    def _step(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def step(*arguments: Any, **named: Any) -> Any:
            if not self._concerns(name, arguments, named):
                return real(*arguments, **named)
            if self.died:
                raise Crash(name)
            self.steps += 1
            if self.steps == self.stop_at:
                self._stop(name, arguments)
            result = real(*arguments, **named)
            if name in {"fsync", "fdatasync"}:
                self.note_sync(arguments[0])
            elif name in {"pwrite", "write"}:
                self._note_write(arguments[0], result, *arguments[2:])
            return result

        return step

    def _stop(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.failed = name
        if name in {"pwrite", "write"}:
            descriptor, data, *position = arguments
            data = memoryview(data).cast("B")
            torn = len(data) // 2 if self._torn is None else self._torn
            self._real[name](descriptor, data[:torn], *position)
        if self._error:
            if name in {"fsync", "fdatasync"}:
                self._drop(arguments[0])
            raise OSError(errno.EIO, f"{name} failed")
        self.died = True
        raise Crash(name)

    def _concerns(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
        places = arguments[:2] if name in {"replace", "rename", "link"} else arguments[:1]
        return any(self._is_below(place, named.get("dir_fd")) for place in places)

    def _is_below(self, place: Any, folder: int | None) -> bool:
        if isinstance(place, int):
            path = os.readlink(f"/proc/self/fd/{place}").removesuffix(" (deleted)")
        else:
            text = os.fsdecode(place)
            if folder is not None:
                text = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
            path = os.path.join(os.path.realpath(os.path.dirname(text)), os.path.basename(text))
        return path == str(self.folder) or path.startswith(f"{self.folder}/")

    # What is synced

    def note_sync(self, descriptor: int) -> None:
        """Note that a file or folder was just synced. Outside the `with` block, whoever sees the
        sync calls this."""
        status, link = os.fstat(descriptor), f"/proc/self/fd/{descriptor}"
        path, folder = os.readlink(link).removesuffix(" (deleted)"), str(self.folder)
        if path != folder and not path.startswith(f"{folder}/"):
            return
        self.syncs.append((path, status.st_size))
        if stat.S_ISDIR(status.st_mode):
            if status.st_nlink:  # else it has been removed
                self._sync_folder(path, status.st_ino)
        elif not _is_lock(os.path.basename(path)):
            self._hold(status.st_ino, link)
            self._bytes[status.st_ino] = self._on_disk(status.st_ino)

    def _on_disk(self, inode: int) -> bytes:
        """The bytes of a file after a sync: all but those that an earlier one dropped."""
        found, dropped = self._of_held(inode), self._dropped.get(inode)
        if not dropped:
            return found
        data = bytearray(found)
        old = self._bytes.get(inode, b"").ljust(len(data), b"\0")
        for at, page in [*dropped.items()]:
            if data[at : at + PAGE] == page:
                data[at : at + PAGE] = old[at : at + len(page)]
            else:
                del dropped[at]
        return bytes(data)

    def _drop(self, descriptor: int) -> None:
        """Take what a failed sync was to write for written, as the system does."""
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            return
        inode = status.st_ino
        self._hold(inode, f"/proc/self/fd/{descriptor}")
        data, old = self._of_held(inode), self._bytes.get(inode, b"")
        pages = {at: data[at : at + PAGE] for at in range(0, len(data), PAGE)}
        self._dropped[inode] = {
            at: page for at, page in pages.items() if page != old[at : at + PAGE]
        }

    def _note_write(self, descriptor: int, count: int, position: int | None = None) -> None:
        dropped = self._dropped and self._dropped.get(os.fstat(descriptor).st_ino)
        if not dropped:
            return
        if position is None:
            position = os.lseek(descriptor, 0, os.SEEK_CUR) - count
        for at in range(position - position % PAGE, position + count, PAGE):
            dropped.pop(at, None)

    def _sync_folder(self, path: str, inode: int) -> None:
        names = self._names[inode] = _inodes(path)
        self._hold(inode, path)
        for name, held in names.items():
            if held not in self._held and not _is_lock(name):
                self._hold(held, f"{path}/{name}")

    def _hold(self, inode: int, path: Path | str) -> None:
        if inode not in self._held:
            self._held[inode] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _read(self, path: Path) -> bytes:
        """Read through a descriptor that stays open: closing it would release the file's locks."""
        if _is_lock(path.name):
            return b""
        inode = path.stat().st_ino
        self._hold(inode, path)
        return self._of_held(inode)

    def _of_held(self, inode: int) -> bytes:
        descriptor = self._held[inode]
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _inodes(folder: Path | str) -> dict[str, int]:
    return {item.name: item.inode() for item in os.scandir(folder)}


def _mixed(old: bytes, new: bytes, forgets: Callable[[], bool], piece: int) -> bytes:
    if old == new:
        return new
    length = len(old) if forgets() else len(new)
    old, new = old.ljust(length, b"\0")[:length], new.ljust(length, b"\0")[:length]
    places = range(0, length, piece)
    return b"".join((old if forgets() else new)[at : at + piece] for at in places)


def _close_all(held: dict[int, int]) -> None:
    while held:
        os.close(held.popitem()[1])
