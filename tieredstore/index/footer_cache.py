"""Copies of footers of uploaded index files on the broker's disk.

A copy is a file `<base>-<created>-<size>-<bytes>.footer`: its name says which object it belongs to
and how long it is, so that a restart reads no copy, and a truncated copy is noticed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tieredstore.codec.checks import Buffer
from tieredstore.driver.durable import NO_LINK, make_directories, read_all
from tieredstore.index.footer import TAIL_BYTES, NearFooter, has_footer
from tieredstore.model.errors import SegmentCorruptError, SegmentNotFoundError
from tieredstore.model.printable import log_of
from tieredstore.model.values import SegmentRecord

log = log_of(__name__)


FOLDER: Final = "footers"
_SUFFIX: Final = ".footer"


class Origin(NamedTuple):
    """The object that a footer belongs to."""

    base: int
    created: int
    size: int

    @classmethod
    def of(cls, record: SegmentRecord) -> Origin:
        return cls(record.base_offset, record.create_timestamp, record.size)


class FooterCache:
    """At most `bytes_max` bytes of footers; the most recently made or used ones stay.

    It is only a cache: its failures are logged, and cost only reads of the backend.
    """

    def __init__(self, folder: Path, *, bytes_max: int) -> None:
        self.folder = folder
        self._bytes_max = bytes_max
        self._kept: dict[Origin, int] = {}  # the last one was used last
        self._guard = threading.Lock()

    @property
    def kept_bytes(self) -> int:
        with self._guard:
            return sum(self._kept.values())

    def load(self) -> None:
        """List the existing copies; leftovers of a crash are removed."""
        found: list[tuple[int, Origin, int]] = []
        with self.tolerant("load"):
            if not self.folder.is_dir():
                return
            for path in self.folder.iterdir():
                if path.suffix == ".tmp":
                    path.unlink(missing_ok=True)
                    continue
                held = _parse(path.name)
                status = path.stat()
                if held is not None and status.st_size == held[1]:
                    found.append((status.st_mtime_ns, *held))
        with self._guard:
            self._kept = {origin: count for _, origin, count in sorted(found)}

    def near(self, origin: Origin) -> NearFooter | None:
        """The footer of this object; None if it is not here, or damaged."""
        with self._guard:
            footer_bytes = self._kept.pop(origin, None)
            if footer_bytes is None:
                return None
            self._kept[origin] = footer_bytes
        path = self._path(origin, footer_bytes)
        try:
            return self._opened(path, footer_bytes, origin.size)
        except (OSError, SegmentCorruptError) as error:
            log.warning("a copy of a footer is unusable: %s", error)
            self.forget(origin)
            return None

    def keep(self, origin: Origin, blocks: Iterable[Buffer]) -> bool:
        """Keep a footer from a stream of blocks; returns whether that succeeded."""
        with self.keeping() as copy:
            for block in blocks:
                copy.write(block)
            return copy.keep(origin)

    @contextmanager
    def keeping(self) -> Iterator[FooterCopy]:
        """A copy to write while the footer is sent elsewhere; it is deleted unless it is kept."""
        copy = FooterCopy(self)
        try:
            yield copy
        finally:
            copy.close()

    def has_room(self, footer_bytes: int) -> bool:
        """Whether a footer of this size can be kept without evicting another."""
        with self._guard:
            return sum(self._kept.values()) + footer_bytes <= self._bytes_max

    def forget(self, origin: Origin) -> None:
        with self._guard:
            footer_bytes = self._kept.pop(origin, None)
        if footer_bytes is not None:
            with self.tolerant("forget"):
                self._path(origin, footer_bytes).unlink(missing_ok=True)

    def keep_only(self, origins: Iterable[Origin]) -> None:
        """Forget the other footers: their objects are gone."""
        wanted = set(origins)
        for origin in [kept for kept in list(self._kept) if kept not in wanted]:
            self.forget(origin)

    def clear(self) -> None:
        self.keep_only(())

    def take(self, copy: Path, origin: Origin, footer_bytes: int) -> bool:
        """Rename a complete file, so that it becomes the copy of this object's footer."""
        if footer_bytes > self._bytes_max:
            return False
        self.forget(origin)
        try:
            copy.rename(self._path(origin, footer_bytes))
        except OSError as error:
            log.warning("no copy of a footer is kept: %s", error)
            return False
        with self._guard:
            self._kept[origin] = footer_bytes
        self._shrink()
        return True

    def _shrink(self) -> None:
        while True:
            with self._guard:
                if sum(self._kept.values()) <= self._bytes_max:
                    return
                oldest = next(iter(self._kept))
            self.forget(oldest)

    def _opened(self, path: Path, footer_bytes: int, size: int) -> NearFooter:
        def read(position: int, length: int) -> bytes:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError as error:  # it was evicted
                raise SegmentNotFoundError(str(path)) from error
            try:
                return read_all(descriptor, length, position)
            finally:
                os.close(descriptor)

        # The object's own footer is the end of the object; any other was made for the cache.
        tail = read(max(0, footer_bytes - TAIL_BYTES), TAIL_BYTES)
        if not has_footer(tail):
            raise SegmentCorruptError(str(path), "no footer", position=0)
        try:
            return NearFooter.open(read, footer_bytes, file_bytes=size, path=str(path))
        except SegmentCorruptError:
            whole = size + footer_bytes
            return NearFooter.open(read, footer_bytes, file_bytes=whole, path=str(path))

    def _path(self, origin: Origin, footer_bytes: int) -> Path:
        return self.folder / f"{'-'.join(map(str, (*origin, footer_bytes)))}{_SUFFIX}"

    @contextmanager
    def tolerant(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            log.warning("the cache of footers, %s: %s", what, error)


class FooterCopy:
    """A footer that is being written to the cache; a full disk ends the copy, not the original."""

    def __init__(self, cache: FooterCache) -> None:
        self._cache = cache
        self._path = cache.folder / f"new-{threading.get_ident()}.tmp"
        self._descriptor = -1
        self._bytes = 0
        try:
            make_directories(cache.folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_LINK
            self._descriptor = os.open(self._path, flags, 0o666)
        except OSError as error:
            log.warning("no copy of a footer is made: %s", error)

    def write(self, block: Buffer) -> None:
        if self._descriptor < 0:
            return
        try:
            view = memoryview(block).cast("B")
            while view:
                written = os.write(self._descriptor, view)
                self._bytes += written
                view = view[written:]
        except OSError as error:
            log.warning("no copy of a footer is made: %s", error)
            self.close()

    def keep(self, origin: Origin) -> bool:
        """Finish the copy and keep it. It is not synced: its checksums reveal a torn copy."""
        if self._descriptor < 0 or not self._bytes:
            return False
        os.close(self._descriptor)
        self._descriptor = -1
        return self._cache.take(self._path, origin, self._bytes)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        with self._cache.tolerant("give up a copy"):
            self._path.unlink(missing_ok=True)


def _parse(name: str) -> tuple[Origin, int] | None:
    stem, dot, suffix = name.partition(".")
    parts = stem.split("-")
    if f"{dot}{suffix}" != _SUFFIX or len(parts) != 4 or not all(_is_number(p) for p in parts):
        return None
    base, created, size, footer_bytes = map(int, parts)
    return Origin(base, created, size), footer_bytes


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
