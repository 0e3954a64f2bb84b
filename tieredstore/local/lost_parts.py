"""Parts of the log that a power cut destroyed before they were vouched for: lost, not damaged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.local.side_file import MALFORMED, VERSION, read_document, whole, write_document
from tieredstore.model.printable import log_of

log = log_of(__name__)

LOST_FILE: Final = "tieredstore-lost.json"

_NAMES: Final = ("version", "parts")


class LostParts:
    """Which bytes of the log are lost for good, although sound records follow them.

    * A part is noted durably before the checkpoint vouches for the bytes after it: from then on
      nothing distinguishes it from bytes that were on disk once and are damaged.
    * It is removed when the log begins after it. No part extends beyond the end of the log, where
      the next records will be.
    * One thread changes the parts, when the store opens; any thread may read them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts: list[tuple[int, int]] = []
        self._bounds = np.empty(0, np.int64)  # start, end, start, end ...

    def load(self) -> None:
        """Read the file. If it is damaged, the parts count as damage, as if never noted."""
        parts: list[tuple[int, int]] = []
        try:
            document = read_document(self._path, names=_NAMES)
            parts = [(whole(start), whole(end)) for start, end in document["parts"]]
            if any(before > behind for before, behind in pairwise(sum(parts, ()))):
                raise ValueError("its parts are not in order")
        except FileNotFoundError:
            pass
        except MALFORMED as error:
            log.warning("%s: damaged, lost messages count as damaged ones: %s", self._path, error)
            parts = []
        self._take(parts)

    def settle(self, found: Iterable[tuple[int, int]], *, log_min: int, log_end: int) -> None:
        """Durably note the found parts, and forget those that the log no longer covers."""
        parts: list[tuple[int, int]] = []
        for start, its_end in sorted([*self._parts, *found]):
            end = min(its_end, log_end)
            if parts and start <= parts[-1][1]:
                parts[-1] = parts[-1][0], max(parts[-1][1], end)
            elif log_min < end and start < end:
                parts.append((start, end))
        if parts == self._parts:
            return
        write_document(self._path, {"version": VERSION, "parts": parts})
        self._take(parts)

    def first_between(self, start: int, end: int) -> tuple[int, int] | None:
        """The first lost stretch within [start, end)."""
        for lost_start, lost_end in self._parts:
            if lost_start < end and start < lost_end:
                return max(start, lost_start), min(end, lost_end)
        return None

    def has(self, log_offset: int) -> bool:
        """Whether the byte at this log offset is lost."""
        return bool(self._parts) and bool(self.among(np.array([log_offset]))[0])

    def has_any(self, log_offsets: Sequence[int]) -> bool:
        """Whether any byte at these log offsets is lost."""
        return bool(self._parts) and bool(self.among(np.array(log_offsets, np.int64)).any())

    def among(self, log_offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which bytes at these log offsets are lost."""
        inside = np.searchsorted(self._bounds, log_offsets, side="right") % 2
        return inside.astype(np.bool_)

    def _take(self, parts: list[tuple[int, int]]) -> None:
        self._parts = parts
        self._bounds = np.array(parts, np.int64).reshape(-1)
