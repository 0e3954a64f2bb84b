"""The segment at the end of a file: bytes that wait in memory, and how much of it is durable."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from tieredstore.driver.provider import SegmentWrite
from tieredstore.driver.segment import Buffer, FileSegment
from tieredstore.model.errors import (
    PositionMismatchError,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentSealedError,
)
from tieredstore.model.values import AppendStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """The bytes to send so that the segment is durable up to `end`; no write if all are there."""

    end: int
    write: SegmentWrite | None


NOBODYS: Final = (
    "there are bytes that nobody committed, as another broker of this name leaves them: stop it, "
    "or stop this one and have `tieredstore rebuild` take them in"
)


class SegmentWriter:
    """Buffers what is appended to one segment and makes it durable, in order.

    * Appended bytes have their place from then on: no commit, retry or repair moves them.
    * `committed_bytes` never counts bytes that the backend did not acknowledge or show.
    * After an unknown outcome the backend is asked for its true end, and only missing bytes are
      sent. Bytes that are already there count only if they equal the bytes to send: other bytes are
      left alone and raise PositionMismatchError, and the file rolls.
    * `append` may be called by one thread at a time; `prepare`, `settle` and `doubt` by one.
    """

    def __init__(self, segment: FileSegment, *, committed_bytes: int, bytes_max: int) -> None:
        self.segment = segment
        self.committed_bytes = committed_bytes
        self._bytes_max = bytes_max
        self._waiting: list[Buffer] = []
        self._waiting_bytes = 0
        self._end: int | None = None  # of the segment in the backend; None: not known
        self._is_sealed = False
        self._is_in_doubt = False
        self._guard = threading.Lock()

    @property
    def append_bytes(self) -> int:
        """Where the next append will lie."""
        return self.committed_bytes + self._waiting_bytes

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    @property
    def knows_its_end(self) -> bool:
        """Whether it is known where the segment ends in the backend."""
        return self._end is not None

    @property
    def is_in_doubt(self) -> bool:
        """Whether an attempt may have left bytes in the backend that are not committed yet."""
        return self._is_in_doubt

    def room(self) -> int:
        """How many bytes still fit; what waits goes in one write, so more may wait with it."""
        if not self._waiting_bytes and self.segment.is_full:
            return 0
        return max(0, self._bytes_max - self.append_bytes)

    def append(self, data: Buffer) -> AppendStatus:
        """Take bytes that nobody changes any more. One that fits no segment has one of its own."""
        count = len(data)
        with self._guard:
            if count > self.room() and self.append_bytes:
                return AppendStatus.FILE_FULL
            if count:
                self._waiting.append(data)
                self._waiting_bytes += count
        return AppendStatus.SUCCESS

    def prepare(self) -> Upload | None:
        """All that waits, less what the backend turns out to have already; None if none waits.

        SegmentSealedError where the backend has refused the rest for good.
        """
        with self._guard:
            if not self._waiting:
                return None
            if len(self._waiting) > 1:
                self._waiting = [b"".join(self._waiting)]
            data = memoryview(self._waiting[0])
        if self._end is None:
            self._end = self._true_end()
        landed = self._landed(data)
        end = self.committed_bytes + len(data)
        if landed == len(data):
            return Upload(end=end, write=None)
        if self._is_sealed:
            raise SegmentSealedError(self.segment.path)
        position = self.committed_bytes + landed
        return Upload(end=end, write=SegmentWrite(self.segment, position, data[landed:]))

    def settle(self, upload: Upload) -> None:
        """The upload is durable."""
        with self._guard:
            done = upload.end - self.committed_bytes
            assert len(self._waiting[0]) == done
            del self._waiting[0]
            self.committed_bytes = upload.end
            self._waiting_bytes -= done
            self._end = max(self._end or 0, upload.end)
            if self._end == upload.end:
                self._is_in_doubt = False

    def doubt(self, error: BaseException | None = None) -> None:
        """What became of the upload is not known: ask before the next one."""
        self._end = None
        self._is_in_doubt = True
        if isinstance(error, SegmentSealedError) and error.path == self.segment.path:
            self._is_sealed = True

    def discard(self) -> None:
        """Forget what waits, wherever it got to: appending the same again goes on from there."""
        with self._guard:
            self._waiting, self._waiting_bytes = [], 0
            self._end = None

    def move_to(self, other: SegmentWriter) -> None:
        """Hand over what waits to the writer of the segment that begins where this one ends."""
        with self._guard:
            other._waiting, self._waiting = self._waiting, []
            other._waiting_bytes, self._waiting_bytes = self._waiting_bytes, 0

    def _true_end(self) -> int:
        try:
            return self.segment.size()
        except SegmentNotFoundError:
            return 0

    def _landed(self, data: memoryview) -> int:
        """How many of these bytes the backend holds already."""
        assert self._end is not None
        landed = self._end - self.committed_bytes
        if landed < 0:
            raise SegmentCorruptError(
                self.segment.path,
                f"{-landed} bytes that were committed are gone",
                position=self._end,
            )
        landed = min(landed, len(data))
        if landed and self.segment.read(self.committed_bytes, landed) != data[:landed]:
            raise PositionMismatchError(
                self.segment.path, expected=self.committed_bytes, actual=self._end
            )
        return landed
