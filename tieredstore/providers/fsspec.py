"""Any file system of fsspec as an object store."""

from __future__ import annotations

import os
import re
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from tieredstore.driver.object_client import (
    AbandonedUpload,
    Attempt,
    ListedKey,
    ObjectCapabilities,
    ObjectClient,
    ObjectExistsError,
    ObjectFacts,
    OtherBytesError,
    beyond_end,
    check_object_range,
    once,
)
from tieredstore.driver.object_requests import settling
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    InvalidConfigError,
    SegmentNotFoundError,
    TieredStoreError,
)
from tieredstore.providers.s3_errors import one_line
from tieredstore.providers.s3_settings import PerProcess, key_prefix

# The process has only one memory filesystem of fsspec, so it has only one lock, which makes a check
# and a write one step. For local files it works between threads, but not between processes.
_STEP: Final = threading.RLock()
os.register_at_fork(
    before=_STEP.acquire, after_in_parent=_STEP.release, after_in_child=_STEP.release
)
_EXACT: Final = ("memory",)
_TEMPORARY: Final = re.compile(r"\.[0-9a-f]{32}\.tmp$")
STREAM_BYTES_MAX: Final = 64 * 1024 * 1024


class FsspecClient(ObjectClient):
    """Objects as files below one root of one filesystem.

    * memory: keeps every promise, within its one process.
    * local: create-only holds only between threads of one process; a crash may leave half a file;
      metadata is not kept. For directories, use the posix provider.
    * others: create-only is the filesystem's own `mode="create"`, and only as good as that;
      metadata is not kept.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        protocol, separator, root = url.partition("://")
        if not separator or not protocol:
            raise InvalidConfigError(f"url: {url!r} is none such as memory://tier or gs://bucket")
        self._protocol = protocol
        absolute = "/" if root.startswith("/") or protocol in _EXACT else ""
        self._root = absolute + key_prefix(root)
        self._options = dict(options or {})
        self._live: PerProcess[Any] = PerProcess(self._connect, lambda _: None, url)

    @property
    def capabilities(self) -> ObjectCapabilities:
        exact = self._protocol in _EXACT
        local = self._protocol in ("file", "local")
        return ObjectCapabilities(
            create_only=not local,
            metadata=exact,
            atomic_put=not local,
            paged_uploads=False,
        )

    def describe(self) -> str:
        return f"fsspec, {self._protocol}://{self._root.lstrip('/')}"

    def head(self, key: str) -> ObjectFacts:
        with self._step(key, "head") as fs:
            return self._facts(fs, key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_object_range(key, start, length)
        if not length:
            self._live.check_open()
            return b""
        with self._step(key, "get") as fs:
            try:
                data: bytes = fs.cat_file(self._root + key, start=start, end=start + length)
            except Exception:  # each store has its own for a range beyond the end
                self._refuse_beyond_end(fs, key, start, length)
                raise
            if len(data) == length:
                return data
            self._refuse_beyond_end(fs, key, start, length)
        raise OtherBytesError(key, "get", f"{len(data)} bytes came instead of {length}")

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
    ) -> ObjectFacts:
        with self._step(key, "put") as fs:
            path = self._root + key
            if self._looked_at and if_absent:
                self._refuse_existing(fs, key)
            if self._looked_at:
                fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            mode = {} if self._looked_at or not if_absent else {"mode": "create"}
            fs.pipe_file(path, bytes(data), **mode)
            self._remember(fs, path, metadata)
            return self._facts(fs, key)

    def put_stream(
        self,
        key: str,
        blocks: Iterable[Buffer],
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
        attempt: Attempt = once,
    ) -> ObjectFacts | None:
        """A stream of up to 64 MiB is one put. A larger one is refused, except in memory and local
        files."""
        self._live.check_open()
        whole = bytearray()
        for block in blocks:
            whole += block
            if len(whole) > STREAM_BYTES_MAX and self._protocol not in _EXACT:
                return self._streamed_file(key, whole, blocks, if_absent)
        if not whole:
            return None

        def put() -> ObjectFacts:
            return self.put(key, whole, metadata=metadata, if_absent=if_absent)

        return attempt(settling(put, self.head, key, len(whole), metadata))

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        folder = prefix.rpartition("/")[0]
        with self._step(prefix, "list") as fs:
            root = fs._strip_protocol(self._root)
            listed = [
                ListedKey(path[len(root) :].lstrip("/"), int(info["size"] or 0))
                for path, info in _files_below(fs, self._root + folder)
            ]
        for found_key in sorted(listed, key=lambda one: one.key):
            name = found_key.key
            if name.startswith(prefix) and name > after and not _TEMPORARY.search(name):
                yield found_key

    def delete_many(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        self._live.check_open()
        errors: dict[str, TieredStoreError] = {}
        for key in keys:
            try:
                with self._step(key, "delete") as fs:
                    fs.rm_file(self._root + key)
            except SegmentNotFoundError:
                continue
            except TieredStoreError as error:
                errors[key] = error
        return errors

    def abandoned_uploads(self, prefix: str = "") -> Sequence[AbandonedUpload]:
        self._live.check_open()
        return ()

    def abort_upload(self, upload: AbandonedUpload) -> None:
        self._live.check_open()

    def close(self) -> None:
        self._live.close()

    @property
    def _looked_at(self) -> bool:
        """Whether create-only is a check under our lock; otherwise it is the filesystem's own."""
        return self._protocol in ("memory", "file", "local")

    def _streamed_file(
        self, key: str, begun: bytearray, rest: Iterable[Buffer], if_absent: bool
    ) -> ObjectFacts:
        """Write more than memory should hold under a temporary name, then move it into place."""
        if not self._looked_at:
            raise BackendRefusedError(key, "put", f"more than {STREAM_BYTES_MAX} bytes in a stream")
        temporary = f"{self._root}{key}.{uuid.uuid4().hex}.tmp"
        with self._step(key, "put", locked=False) as fs:
            fs.makedirs(temporary.rpartition("/")[0], exist_ok=True)
            try:
                with fs.open(temporary, "wb") as file:
                    file.write(begun)
                    begun.clear()
                    for block in rest:
                        file.write(block)
                with _STEP:
                    if if_absent:
                        self._refuse_existing(fs, key)
                    fs.mv(temporary, self._root + key)
            except BaseException:
                if fs.exists(temporary):
                    fs.rm_file(temporary)
                raise
            return self._facts(fs, key)

    def _refuse_existing(self, fs: Any, key: str) -> None:
        try:
            self._facts(fs, key)
        except (FileNotFoundError, SegmentNotFoundError):
            return
        raise ObjectExistsError(key)

    def _refuse_beyond_end(self, fs: Any, key: str, start: int, length: int) -> None:
        size = self._facts(fs, key).size
        if size < start + length:
            raise beyond_end(key, start, length, size)

    def _facts(self, fs: Any, key: str) -> ObjectFacts:
        path = self._root + key
        info = fs.info(path)
        if info.get("type") == "directory":
            raise SegmentNotFoundError(key)
        kept = _memory_file(fs, path) if self._protocol in _EXACT else None
        etag = getattr(kept, "tieredstore_etag", None) or str(info.get("ETag") or fs.ukey(path))
        metadata = getattr(kept, "tieredstore_metadata", {})
        return ObjectFacts(key=key, size=int(info["size"]), etag=etag, metadata=metadata)

    def _remember(self, fs: Any, path: str, metadata: Mapping[str, str] | None) -> None:
        """Keep metadata in the file object that this put has created, so that it is deleted with
        the bytes."""
        if self._protocol in _EXACT:
            kept = _memory_file(fs, path)
            kept.tieredstore_metadata = dict(metadata or {})
            kept.tieredstore_etag = f'"{uuid.uuid4().hex}"'

    @contextmanager
    def _step(self, key: str, operation: str, *, locked: bool = True) -> Iterator[Any]:
        """One step on the filesystem. The only place where its errors become ours."""
        guarded = locked and self._looked_at
        if guarded:
            _STEP.acquire()
        try:
            yield self._live.get()  # some filesystems connect here
        except TieredStoreError:
            raise
        except FileExistsError as error:
            raise ObjectExistsError(key) from error
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            if operation == "put":  # it can meet no missing object
                reason = f"no such place: {one_line(str(error))}"
                raise BackendRefusedError(key, operation, reason) from error
            raise SegmentNotFoundError(key) from error
        except (PermissionError, ValueError, NotImplementedError) as error:
            raise BackendRefusedError(key, operation, one_line(repr(error))) from error
        except Exception as error:
            # Other filesystems have errors of their own. In memory and local files, any error but
            # an OSError comes from the caller's stream.
            if self._looked_at and not isinstance(error, OSError):
                raise
            raise BackendUnavailableError(key, operation, one_line(repr(error))) from error
        finally:
            if guarded:
                _STEP.release()

    def _connect(self) -> Any:
        import fsspec

        try:
            return fsspec.filesystem(
                self._protocol,
                use_listings_cache=False,
                skip_instance_cache=True,
                **self._options,
            )
        except (ImportError, ValueError, TypeError, AttributeError) as error:
            raise InvalidConfigError(f"url: {self._protocol}: {one_line(str(error))}") from error


def _files_below(fs: Any, folder: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every file below a folder, by its full name.

    fsspec's default `find` silently skips a folder that cannot be listed, so it is not used. Object
    stores, which list flat, have their own.
    """
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem

    find = getattr(type(fs), "_find", type(fs).find)
    if find not in (AbstractFileSystem.find, AsyncFileSystem._find):
        with suppress(FileNotFoundError, NotADirectoryError):
            yield from fs.find(folder, detail=True).items()
        return
    folders = [fs._strip_protocol(folder)]
    while folders:
        here = folders.pop()
        try:
            listed = fs.ls(here, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            continue  # never there, or gone since
        for info in listed:
            name = info["name"].rstrip("/")
            if info["type"] != "directory":
                yield name, info
            elif name != here:
                folders.append(name)


def _memory_file(fs: Any, path: str) -> Any:
    return fs.store[fs._strip_protocol(path)]
