"""The contract of a segment: one append-only run of bytes in a backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Self, TypeAlias

from tieredstore.model.errors import BackendRefusedError, OffsetOutOfRangeError
from tieredstore.model.topics import why_no_directory
from tieredstore.model.values import INT64_MAX, SegmentType

Buffer: TypeAlias = bytes | bytearray | memoryview


class CountedBlocks:
    """A stream of blocks that can be read once, and counts the bytes it has returned so far."""

    def __init__(self, blocks: Iterable[Buffer]) -> None:
        self._blocks = iter(blocks)
        self.bytes = 0

    def __iter__(self) -> Iterator[Buffer]:
        for block in self._blocks:
            self.bytes += memoryview(block).nbytes
            yield block


class FileSegment(ABC):
    """One append-only run of bytes: the driver and nothing more.

    * Any thread may call `size`, `read` and `path` at any time, even while another writes; `write`,
      `seal` and `delete` come from one thread at a time.
    * A write is positioned, which makes a retry after an unknown outcome safe: the second attempt
      succeeds, or its error names the true end, and the writer sends only what is missing.
    * A crash in the middle of a write leaves a prefix of its bytes, possibly none; bytes that
      `size` counted before the crash are still there. A power cut may leave zeros in place of some
      of the new ones.
    * `close` releases the handle's resources, never data. After it everything except `close` raises
      StoreClosedError.
    * Nothing is opened, looked up or created before the first call that needs it.

    Raises: SegmentNotFoundError, SegmentSealedError, PositionMismatchError, OffsetOutOfRangeError,
    SegmentCorruptError (the backend itself found damage), BackendUnavailableError (the outcome of
    a write is unknown), BackendRefusedError (nothing was written), StoreClosedError.
    """

    def __init__(self, path: str, type: SegmentType, base: int) -> None:
        self._queue_path = path
        self._type = type
        self._base = base

    @property
    def queue_path(self) -> str:
        """`<broker>/<topic>/<queue id>`: what the catalogue calls the path of a segment."""
        return self._queue_path

    @property
    def type(self) -> SegmentType:
        return self._type

    @property
    def base(self) -> int:
        """The offset, in the queue's file, of this segment's first byte."""
        return self._base

    @property
    @abstractmethod
    def path(self) -> str:
        """Where the segment lies: unique in the backend, `/`-separated."""

    @abstractmethod
    def size(self) -> int:
        """How many bytes are durable, never 0: SegmentNotFoundError if there are none."""

    @abstractmethod
    def read(self, position: int, length: int) -> bytes:
        """Exactly `length` bytes or an error; never fewer, never zeros in their place.

        OffsetOutOfRangeError for a range that is not wholly within the segment.
        """

    @abstractmethod
    def write(self, position: int, data: Buffer) -> None:
        """Append; `position` must be `size()`, else PositionMismatchError. Durable on return.

        Position 0 creates the segment. Writing no bytes only checks the position. A first write
        that fails leaves no segment, unless some of its bytes were written.
        """

    @abstractmethod
    def seal(self) -> None:
        """No more writes will come; idempotent. Later writes raise SegmentSealedError."""

    @property
    def is_full(self) -> bool:
        """Whether it takes no further write, however short: roll to the next. Makes no request."""
        return False

    @property
    def wants_seal(self) -> bool:
        """Whether `seal` has work to do that takes time, and should run in the background.

        Makes no request, so it knows only what earlier requests have shown. Such a `seal` may run
        at the same time as `delete`, which ends it.
        """
        return False

    @abstractmethod
    def delete(self) -> None:
        """Remove the bytes, durably; idempotent. Afterwards there is no such segment."""

    def cut(self, size: int) -> None:
        """Give up all bytes from `size` on, durably: nobody was told of them. `size` is not 0.

        Only for a backend that a power cut may leave with more than a prefix of true bytes.
        """
        raise BackendRefusedError(self.path, "cut", "this backend takes no bytes back")

    @abstractmethod
    def close(self) -> None:
        """Release handles; idempotent. Waits for no other thread's call."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"


def check_range(path: str, position: int, length: int, size: int) -> None:
    """Refuse a range that is not wholly within `size` bytes."""
    if length < 0:
        raise OffsetOutOfRangeError(
            f"length of a read of {path}", offset=length, minimum=0, maximum=size
        )
    if not 0 <= position <= size - length:
        raise OffsetOutOfRangeError(
            f"{length} bytes of {path}", offset=position, minimum=0, maximum=max(0, size - length)
        )


def check_queue_path(path: str, base: int) -> None:
    """Refuse a name that would leave its place in the backend, or be another segment's.

    A queue path has exactly three parts, each the name of one directory, and the last one is a
    plain number. `model.topics` says which names a new topic may have.
    """
    parts = path.split("/")
    if len(parts) != 3:
        raise BackendRefusedError(path, "open", "want <broker>/<topic>/<queue id>")
    for part in parts:
        if reason := why_no_directory(part):
            raise BackendRefusedError(path, "open", f"{part!r:.80} is no name: {reason}")
    queue_id = parts[2]
    if not (queue_id.isascii() and queue_id.isdigit()) or queue_id != str(int(queue_id[:20])):
        raise BackendRefusedError(path, "open", "the queue id is no plain decimal number")
    if not 0 <= base <= INT64_MAX:
        raise BackendRefusedError(path, "open", f"base offset {base} is out of range")
