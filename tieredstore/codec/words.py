"""Numbers of many records taken out of one buffer at once.

What lives here: `Words`, and `WordsWithin` for places that nobody has checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.bounds import Buffer


class Words:
    """Big-endian numbers gathered from any place of a buffer."""

    def __init__(self, data: Buffer) -> None:
        self._data = data

    def int8(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._gather(">i1", 1, at)

    def int16(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._gather(">i2", 2, at)

    def int32(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._gather(">i4", 4, at)

    def int64(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._gather(">i8", 8, at)

    def _gather(self, layout: str, width: int, at: NDArray[np.int64]) -> NDArray[np.int64]:
        # Overlapping entries, one for each byte: numpy then reads words that are not aligned.
        count = max(0, len(self._data) - width + 1)
        every: NDArray[Any] = np.ndarray((count,), layout, self._data, strides=(1,))
        return every[at].astype(np.int64)


class WordsWithin(Words):
    """The same; any number where the place is not within the bytes."""

    def _gather(self, layout: str, width: int, at: NDArray[np.int64]) -> NDArray[np.int64]:
        count = len(self._data) - width + 1
        if count <= 0:
            return np.zeros(len(at), np.int64)
        return super()._gather(layout, width, np.clip(at, 0, count - 1))
