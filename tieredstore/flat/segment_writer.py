"""The writer of a file's last segment: bytes that wait in memory, and how much is durable."""

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
    """What to send to make the segment durable up to `end`; no write if the backend has it all."""

    end: int
    write: SegmentWrite | None


NOBODYS: Final = (
    "there are bytes that nobody committed, as another broker of this name leaves them: stop it, "
    "or stop this one and have `tieredstore rebuild` take them in"
)


class SegmentWriter:
    """Buffers what is appended to one segment and makes it durable, in order.

    * Appended bytes have a fixed position: no commit, retry or repair moves them.
    * `committed_bytes` never counts bytes that the backend did not acknowledge or show.
    * After an unknown outcome the backend is asked for its true end, and only missing bytes are
      sent. Bytes that are already there count only if they equal the bytes to send: other bytes are
      left alone and raise PositionMismatchError, and the file rolls.
    * Only one thread at a time may call `append`, and only one `prepare`, `settle` or `doubt`.
    """

    def __init__(self, segment: FileSegment, *, committed_bytes: int, bytes_max: int) -> None:
        self.segment = segment
        self.committed_bytes = committed_bytes
        self._bytes_max = bytes_max
        self._waiting: list[Buffer] = []
        self._waiting_bytes = 0
        self._end: int | None = None  # of the segment in the backend; None if not known
        self._is_sealed = False
        self._is_in_doubt = False
        self._guard = threading.Lock()

    @property
    def append_bytes(self) -> int:
        """The position of the next append."""
        return self.committed_bytes + self._waiting_bytes

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    @property
    def knows_its_end(self) -> bool:
        """Whether the segment's end in the backend is known."""
        return self._end is not None

    @property
    def is_in_doubt(self) -> bool:
        """Whether an attempt may have left bytes in the backend that are not committed yet."""
        return self._is_in_doubt

    def room(self) -> int:
        """How many bytes still fit. A full segment takes more while bytes wait: one write sends
        all."""
        if not self._waiting_bytes and self.segment.is_full:
            return 0
        return max(0, self._bytes_max - self.append_bytes)

    def append(self, data: Buffer) -> AppendStatus:
        """Take bytes, which nobody may change any more. An empty segment takes any number."""
        count = len(data)
        with self._guard:
            if count > self.room() and self.append_bytes:
                return AppendStatus.FILE_FULL
            if count:
                self._waiting.append(data)
                self._waiting_bytes += count
        return AppendStatus.SUCCESS

    def prepare(self) -> Upload | None:
        """The upload of all waiting bytes but those that the backend already has; None if none
        wait. SegmentSealedError if the backend has refused the rest for good.
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
        """Count an upload that is durable."""
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
        """Note that the upload's outcome is unknown: ask the backend before the next one."""
        self._end = None
        self._is_in_doubt = True
        if isinstance(error, SegmentSealedError) and error.path == self.segment.path:
            self._is_sealed = True

    def discard(self) -> None:
        """Forget the waiting bytes. Those that the backend already has are not sent again when the
        same bytes are appended again."""
        with self._guard:
            self._waiting, self._waiting_bytes = [], 0
            self._end = None

    def move_to(self, other: SegmentWriter) -> None:
        """Hand the waiting bytes to the writer of the segment that begins where this one ends."""
        with self._guard:
            other._waiting, self._waiting = self._waiting, []
            other._waiting_bytes, self._waiting_bytes = self._waiting_bytes, 0

    def _true_end(self) -> int:
        try:
            return self.segment.size()
        except SegmentNotFoundError:
            return 0

    def _landed(self, data: memoryview) -> int:
        """How many of these bytes the backend already has."""
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
