"""In what order items were put, compared with when their messages were stored.

What lives here: `PutOrder`, which tells how much older than one before it an item may be. With
that, whoever wants the newest items of a key need not look at all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.java import INT32_MIN

_BLOCK_ITEMS: Final = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class PutOrder:
    """Of the first `item_count` items: none is more than `lateness` seconds older than one that was
    put before it."""

    item_count: int = 0
    newest: int = INT32_MIN
    lateness: int = 0

    def with_items(self, items: NDArray[Any]) -> PutOrder:
        """The same of all these items, of which the first are known."""
        newest, lateness = self.newest, self.lateness
        for start in range(self.item_count, len(items), _BLOCK_ITEMS):
            seconds = items["seconds"][start : start + _BLOCK_ITEMS].astype(np.int64)
            before = np.maximum.accumulate(np.maximum(seconds, newest))
            lateness = max(lateness, int((before - seconds).max()))
            newest = int(before[-1])
        return PutOrder(item_count=len(items), newest=newest, lateness=lateness)
