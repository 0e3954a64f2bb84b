"""The directory or bucket that an export writes to: files and folders that appear whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copyfile, rmtree
from tempfile import mkdtemp, mkstemp
from typing import Any, Final

from tieredstore.model.extras import brought_by

with brought_by("jobs"):
    import pyarrow.fs as pafs

from tieredstore.driver.durable import fsync_directory, make_directories, write_all
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    InvalidConfigError,
    system_says,
)
from tieredstore.model.settings import has_password
from tieredstore.model.topics import NAME_BYTES_MAX

_LOCAL: Final = ("", "file")
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS})
MAKING: Final = "_tieredstore/making"
TRASH: Final = "_tieredstore/trash"
_TAKEN: Final = frozenset({errno.EEXIST, errno.ENOTEMPTY})


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """How to reach an object store. Arrow finds what is empty, in the usual AWS chain."""

    endpoint: str = ""
    region: str = ""
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if "@" in self.endpoint:
            raise InvalidConfigError("endpoint: holds credentials; give them apart")


def full_target(url: str) -> str:
    """The target for a process in any working directory. If it holds a password, it is refused, and
    the error does not quote it."""
    if has_password(url):
        raise InvalidConfigError("target: holds credentials; keys are from the environment")
    return url if "://" in url else os.path.abspath(url)


class ExportTarget:
    """One directory, or one folder of a bucket. Paths are relative to it and `/`-separated.

    * A file is there whole or not at all: on a disk it is renamed into place, in a bucket it is one
      upload. It replaces an older file of that name. No file is empty: Arrow completes an upload
      that Ctrl-C ends before its first byte, and what that leaves counts as no file.
    * Errors are BackendRefusedError, or BackendUnavailableError if another try may help.
    """

    def __init__(self, url: str, options: TargetOptions) -> None:
        scheme, _, rest = url.partition("://") if "://" in url else ("", "", url)
        # Without a slash at the end, as paths are added to it: in a bucket, a//b is not a/b.
        self.url = url.rstrip("/") if rest.strip("/") else url
        if scheme in _LOCAL:
            self._local: Path | None = Path(rest or ".").absolute()
            self._root = str(self._local)
            self._files: Any = pafs.LocalFileSystem()
            return
        self._local = None
        if scheme in ("s3", "s3a"):
            self._files, self._root = _s3(options), rest.strip("/")
        else:
            try:
                self._files, self._root = pafs.FileSystem.from_uri(url)
            except (ValueError, OSError) as error:
                text = f"target: {url!r} is neither a directory nor a URL that Arrow knows: {error}"
                raise InvalidConfigError(text) from error
        if not self._root:
            raise InvalidConfigError(f"target: {url!r} names no bucket")
        if "//" in self._root:
            raise InvalidConfigError(f"target: {url!r} has a folder without a name")

    def check_names(self, path: str) -> None:
        """Raise BackendRefusedError for a name that no disk can have. A bucket can have any."""
        if self._local is None:
            return
        if max(len(os.fsencode(name)) for name in path.split("/")) > NAME_BYTES_MAX:
            text = f"a folder's name has at most {NAME_BYTES_MAX} bytes: take a bucket, or Delta"
            raise BackendRefusedError(f"{self.url}/{path}", "write", text)

    def read(self, path: str) -> bytes | None:
        """The whole file; None if there is none."""
        try:
            with self._files.open_input_stream(self._at(path)) as stream:
                data: bytes = stream.read()
                return data or None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(error, path, "read") from error

    def put(self, path: str, data: Any) -> None:
        """Write the whole file in one step, durable on return. `data` is a buffer."""
        try:
            if self._local is not None:
                self._put_locally(self._local, path, data)
                return
            with self._files.open_output_stream(self._at(path)) as stream:
                stream.write(data)
        except OSError as error:
            raise self._failed(error, path, "write") from error

    def _put_locally(self, root: Path, path: str, data: Any) -> None:
        """Write the file under its name plus a random part and `.half`, then rename it."""
        place = root / path
        make_directories(place.parent)
        descriptor, half = mkstemp(dir=place.parent, prefix=f"{place.name}.", suffix=".half")
        try:
            try:
                write_all(descriptor, memoryview(data), 0)
                os.fchmod(descriptor, 0o644)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(half, place)
        except BaseException:
            Path(half).unlink(missing_ok=True)
            raise
        fsync_directory(place.parent)

    def names(self, folder: str) -> list[str]:
        """The names of files and folders in a folder; none if there is no such folder."""
        return sorted(entry.base_name for entry in self._entries(folder, recursive=False))

    def paths(self, folder: str) -> list[str]:
        """All files below a folder, by path."""
        cut = len(self._root) + 1
        return sorted(
            entry.path[cut:]
            for entry in self._entries(folder, recursive=True)
            if entry.type is pafs.FileType.File
        )

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """How long each file is; None if it does not exist."""
        try:
            found = self._files.get_file_info([self._at(path) for path in paths])
        except OSError as error:
            raise self._failed(error, paths[0], "look at") from error
        return [entry.size if entry.type is pafs.FileType.File else None for entry in found]

    def _entries(self, folder: str, *, recursive: bool) -> list[Any]:
        selector = pafs.FileSelector(self._at(folder), allow_not_found=True, recursive=recursive)
        try:
            return list(self._files.get_file_info(selector))
        except OSError as error:
            raise self._failed(error, folder, "list") from error

    def publish(self, folder: str, files: Mapping[str, str], last: tuple[str, bytes]) -> bool:
        """Make a folder of existing files under new names, and of `last`: name and bytes.

        On a disk the folder appears in one step; False means that it was there already. In a bucket
        files are copied one by one within the store, and `last` is written at the end; leftovers in
        the folder are removed first. FileNotFoundError if a file is gone.
        """
        if self._local is not None:
            return self._publish_locally(self._local, folder, files, last)
        try:
            for path in self.paths(folder):
                self.delete(path)
            for name, path in files.items():
                self._copy(path, f"{folder}/{name}")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._failed(error, folder, "write") from error
        self.put(f"{folder}/{last[0]}", last[1])
        return True

    def _copy(self, old: str, new: str) -> None:
        if self.sizes([old]) == [None]:
            raise FileNotFoundError(old)
        try:
            self._files.copy_file(self._at(old), self._at(new))
        except NotImplementedError:
            self.put(new, self.read(old))

    def _publish_locally(
        self, root: Path, folder: str, files: Mapping[str, str], last: tuple[str, bytes]
    ) -> bool:
        making = root / MAKING
        make_directories(making)
        new = Path(mkdtemp(dir=making))
        new.chmod(0o755)
        try:
            for name, path in files.items():
                place = new / name
                place.parent.mkdir(parents=True, exist_ok=True)
                _link(root / path, place)
            self._put_locally(new, *last)
            for held, _, _ in os.walk(new):
                fsync_directory(held)
            # `drop_unpublished` may have moved the folder away in the middle, and what was made
            # afterwards made it again with only a part of the files.
            for name in files:
                (new / name).stat()
            os.rename(new, root / folder)
        except OSError as error:
            rmtree(new, ignore_errors=True)
            if error.errno in _TAKEN:
                return False
            if isinstance(error, FileNotFoundError):
                raise
            raise self._failed(error, folder, "write") from error
        fsync_directory(root)
        return True

    def drop_unpublished(self) -> None:
        """Remove folders of killed runs, which were never published.

        If another run is about to publish one, it finds the folder gone and makes another: a folder
        is moved away in one step before its files are deleted.
        """
        if self._local is None:
            return
        making, failed = self._local / MAKING, None
        for name in self.names(MAKING):
            try:
                trash = Path(mkdtemp(dir=make_directories_of(self._local / TRASH)))
                os.rename(making / name, trash / name)
            except FileNotFoundError:
                pass
            except OSError as error:  # as with a folder of another user: the others go all the same
                failed = self._failed(error, f"{MAKING}/{name}", "delete")
        rmtree(self._local / TRASH, ignore_errors=True)
        if failed is not None:
            raise failed

    def delete(self, path: str) -> None:
        """Delete a file. It may be gone already."""
        try:
            self._files.delete_file(self._at(path))
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failed(error, path, "delete") from error

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _failed(
        self, error: OSError, path: str, operation: str
    ) -> BackendRefusedError | BackendUnavailableError:
        text = " ".join(system_says(error).split())
        words = text.lower()
        again = ("timeout", "timed out", "network", "slow", "curlcode", "503", "500")
        if any(word in words for word in again):
            return BackendUnavailableError(f"{self.url}/{path}", operation, text)
        return BackendRefusedError(f"{self.url}/{path}", operation, text)


def make_directories_of(path: Path) -> Path:
    make_directories(path)
    return path


def _link(old: Path, new: Path) -> None:
    """A hard link to the file; a copy if the disk has no hard links."""
    try:
        os.link(old, new)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        copyfile(old, new)
        with new.open("rb") as file:
            os.fsync(file.fileno())


def _s3(options: TargetOptions) -> Any:
    scheme, _, host = options.endpoint.rpartition("://")
    given: dict[str, Any] = {
        "endpoint_override": host,
        "scheme": scheme,
        "region": options.region,
        "access_key": options.access_key,
        "secret_key": options.secret_key,
        "session_token": options.session_token,
    }
    try:
        return pafs.S3FileSystem(**{name: value for name, value in given.items() if value})
    except ValueError as error:
        raise InvalidConfigError(f"target: the store cannot be asked: {error}") from error
