"""Where an export goes: a directory or a bucket, through Arrow's file systems.

What lives here: `TargetOptions` and `ExportTarget`: whole small files, put in one step. What they
hold is for `export_files` and `export_ledger`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkstemp
from typing import Any, Final

import pyarrow.fs as pafs

from tieredstore.driver.durable import fsync_directory, make_directories, write_all
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    InvalidConfigError,
)
from tieredstore.model.setting import has_password

HALVES: Final = "_tieredstore/halves"
_LOCAL: Final = ("", "file")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """How to reach an object store; empty: as Arrow finds it, which is the usual AWS chain."""

    endpoint: str = ""
    region: str = ""
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if "@" in self.endpoint:
            raise InvalidConfigError("endpoint: holds credentials; give them apart")


def full_target(url: str) -> str:
    """The same for a process in whatever folder. One that holds a password is refused, unquoted."""
    if has_password(url):
        raise InvalidConfigError("target: holds credentials; keys are from the environment")
    return url if "://" in url else os.path.abspath(url)


class ExportTarget:
    """One directory, or one folder of a bucket; paths are relative to it, `/`-separated.

    * A file is there whole or not at all: on a disk it is renamed into place, in a bucket it is one
      upload. An older one of that name is replaced.
    * Errors are BackendRefusedError, or BackendUnavailableError where another try may help.
    """

    def __init__(self, url: str, options: TargetOptions) -> None:
        scheme, _, rest = url.partition("://") if "://" in url else ("", "", url)
        self.url = url
        if scheme in _LOCAL:
            self._local: Path | None = Path(rest or ".").absolute()
            self._root = str(self._local)
            self._files: Any = pafs.LocalFileSystem()
            return
        self._local = None
        if scheme == "s3":
            self._files, self._root = _s3(options), rest.strip("/")
        else:
            try:
                self._files, self._root = pafs.FileSystem.from_uri(url)
            except (ValueError, OSError) as error:
                text = f"target: {url!r} is neither a directory nor a URL that Arrow knows: {error}"
                raise InvalidConfigError(text) from error
        if not self._root:
            raise InvalidConfigError(f"target: {url!r} names no bucket")

    def read(self, path: str) -> bytes | None:
        """The whole file; None where there is none."""
        try:
            with self._files.open_input_stream(self._at(path)) as stream:
                data: bytes = stream.read()
                return data
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(error, path, "read") from error

    def put(self, path: str, data: Any) -> None:
        """The whole file in one step, durable on return; `data` is a buffer."""
        try:
            if self._local is not None:
                self._put_locally(self._local, path, data)
                return
            with self._files.open_output_stream(self._at(path)) as stream:
                stream.write(data)
        except OSError as error:
            raise self._failed(error, path, "write") from error

    def _put_locally(self, root: Path, path: str, data: Any) -> None:
        """By way of a folder that no reader looks into: half a file is never beside whole ones."""
        place, halves = root / path, root / HALVES
        make_directories(place.parent)
        make_directories(halves)
        descriptor, half = mkstemp(dir=halves)
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

    def drop_halves(self) -> None:
        """What writers left behind that were killed."""
        if self._local is not None:
            for name in self.names(HALVES):
                self.delete(f"{HALVES}/{name}")

    def names(self, folder: str) -> list[str]:
        """The files of a folder, by name; none where there is no such folder."""
        selector = pafs.FileSelector(self._at(folder), allow_not_found=True)
        try:
            found = self._files.get_file_info(selector)
        except OSError as error:
            raise self._failed(error, folder, "list") from error
        return sorted(each.base_name for each in found if each.type is pafs.FileType.File)

    def delete(self, path: str) -> None:
        """Idempotent."""
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
        text = " ".join(str(error).split())
        words = text.lower()
        again = ("timeout", "timed out", "network", "slow", "curlcode", "503", "500")
        if any(word in words for word in again):
            return BackendUnavailableError(f"{self.url}/{path}", operation, text)
        return BackendRefusedError(f"{self.url}/{path}", operation, text)


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
    return pafs.S3FileSystem(**{name: value for name, value in given.items() if value})
