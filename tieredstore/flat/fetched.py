"""Single messages of many queues, fetched together if their bytes are next to each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tieredstore.codec.queue_unit import UNIT_BYTES, decode_unit
from tieredstore.driver.provider import SegmentProvider, SegmentRead
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.flat.message_file import FlatMessageFile

FETCHED_MAX: Final = 1_024  # messages at a time
_RECORD_BYTES_MAX: Final = 64 * 1024  # a larger one is read by itself


class FetchedMessages:
    """A `ByteSource` that has one message of each of many queues in memory.

    A message that could not be fetched is read from the backend, which then raises the error.
    """

    def __init__(self) -> None:
        self._held: dict[FlatAppendFile, tuple[int, bytes]] = {}

    def read(self, file: FlatAppendFile, offset: int, length: int) -> bytes:
        start, data = self._held.get(file, (offset, b""))
        if start <= offset and offset + length <= start + len(data):
            return data[offset - start : offset - start + length]
        return file.read(offset, length)

    def fetch(
        self, provider: SegmentProvider, wanted: Sequence[tuple[FlatMessageFile, int]]
    ) -> None:
        """Fetch messages, FETCHED_MAX at most, each named by its file and queue offset."""
        wanted = wanted[:FETCHED_MAX]
        self._fetch(provider, [(file.queue, at * UNIT_BYTES, UNIT_BYTES) for file, at in wanted])
        records = []
        for file, _ in wanted:
            if file.queue in self._held:
                unit = decode_unit(self._held[file.queue][1])
                if 0 < unit.message_bytes <= _RECORD_BYTES_MAX:
                    records.append((file.log, unit.log_offset, unit.message_bytes))
        self._fetch(provider, records)

    def _fetch(
        self, provider: SegmentProvider, places: Sequence[tuple[FlatAppendFile, int, int]]
    ) -> None:
        """Fetch the places that lie within one segment. Those that span two are skipped."""
        found = []
        for file, offset, length in places:
            for segment in file.segments:
                if segment.base <= offset and offset + length <= segment.end:
                    at = offset - segment.base
                    read = SegmentRead(file.path, file.type, segment.base, at, length)
                    found.append((file, offset, read))
        answers = provider.read_together([read for _, _, read in found]) if found else []
        for (file, offset, _), answer in zip(found, answers, strict=True):
            if isinstance(answer, bytes):
                self._held[file] = offset, answer
