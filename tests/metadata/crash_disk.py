"""A folder on a disk that stops at the n-th step of a process, and what it holds then."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STEPS = ("pwrite", "fsync", "fdatasync", "ftruncate", "replace", "rename", "link", "unlink")


class Crash(BaseException):
    """The process has stopped."""


class Disk:
    """Stops the process at a step, or fails that step; knows what was synced until then.

    Directories are synced like files: a name counts from the sync of its directory on, a file's
    bytes from the sync of the file on. Files stay open here, so that no inode comes twice.
    """

    def __init__(self, folder: Path, *, stop_at: int, error: bool = False) -> None:
        self.folder = folder
        self.steps = 0
        self._stop_at = stop_at
        self._error = error
        self._dead = False
        self._open: list[int] = []
        self._synced: dict[int, bytes] = {}
        self._names: dict[str, int] = {}
        self._real: dict[str, Any] = {name: getattr(os, name) for name in STEPS}
        for item in folder.iterdir():
            self._synced[item.stat().st_ino] = item.read_bytes()
        self._sync_names()

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        for name in STEPS:
            patch.setattr(os, name, self._step(name))

    def close(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)

    def written(self, target: Path) -> Path:
        """The disk with all that was written."""
        shutil.copytree(self.folder, target)
        return target

    def synced(self, target: Path) -> Path:
        """The disk with what was synced and nothing else."""
        target.mkdir()
        for name, inode in self._names.items():
            (target / name).write_bytes(self._synced.get(inode, b""))
        return target

    def _step(self, name: str) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            self.steps += 1
            if self._dead:
                raise Crash
            if self.steps == self._stop_at:
                if name == "pwrite":  # half of it may have gone out
                    descriptor, data, position = arguments
                    self._real["pwrite"](descriptor, data[: len(data) // 2], position)
                if self._error:
                    raise OSError(errno.EIO, f"{name} failed")
                self._dead = True
                raise Crash
            result = self._real[name](*arguments, **named)
            if name in {"fsync", "fdatasync"}:
                self._note_sync(arguments[0])
            return result

        return step

    def _note_sync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        link = Path(f"/proc/self/fd/{descriptor}")
        if link.resolve() == self.folder.resolve():
            self._sync_names()
        elif link.is_file():
            self._open.append(os.open(link, os.O_RDONLY))
            self._synced[status.st_ino] = link.read_bytes()

    def _sync_names(self) -> None:
        self._names = {}
        for item in self.folder.iterdir():
            # Closing any descriptor of the lock file would give the lock away.
            if item.suffix != ".lock":
                self._open.append(os.open(item, os.O_RDONLY))
                self._names[item.name] = item.stat().st_ino
