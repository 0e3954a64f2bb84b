"""Many records of one log file as columns; texts are read from the bytes when asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.java import decode_utf8
from tieredstore.codec.properties import decode_properties


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordColumns:
    """Row i is one sound record: `data[positions[i] : positions[i] + sizes[i]]`.

    The numbers are copies; `data` is a view and keeps the file mapped while it is held.
    """

    data: memoryview
    base_offset: int
    path: str
    positions: NDArray[np.int64]
    sizes: NDArray[np.int64]
    queue_ids: NDArray[np.int64]
    queue_offsets: NDArray[np.int64]
    sys_flags: NDArray[np.int64]
    store_timestamps: NDArray[np.int64]
    topic_starts: NDArray[np.int64]
    topic_bytes: NDArray[np.int64]
    property_starts: NDArray[np.int64]
    property_bytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def log_offsets(self) -> NDArray[np.int64]:
        return self.positions + self.base_offset

    def record(self, row: int) -> bytes:
        start = int(self.positions[row])
        return bytes(self.data[start : start + int(self.sizes[row])])

    def topic(self, row: int) -> str:
        start = int(self.topic_starts[row])
        return decode_utf8(self.data[start : start + int(self.topic_bytes[row])])

    def topics(self) -> list[str]:
        """All topics; one text for all rows that have it."""
        known: dict[bytes, str] = {}
        texts = []
        ends = self.topic_starts + self.topic_bytes
        for start, end in zip(self.topic_starts.tolist(), ends.tolist(), strict=True):
            raw = bytes(self.data[start:end])
            text = known.get(raw)
            if text is None:
                text = known[raw] = decode_utf8(raw)
            texts.append(text)
        return texts

    def raw_properties(self, row: int) -> bytes:
        start = int(self.property_starts[row])
        return bytes(self.data[start : start + int(self.property_bytes[row])])

    def rows_with(self, text: bytes) -> list[int]:
        """The rows whose properties hold this text somewhere: cheaper than to decode them all."""
        starts, ends = self.property_starts, self.property_starts + self.property_bytes
        return [
            row
            for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True))
            if text in bytes(self.data[start:end])
        ]

    def properties(self, row: int) -> dict[str, str]:
        return decode_properties(self.raw_properties(row))
