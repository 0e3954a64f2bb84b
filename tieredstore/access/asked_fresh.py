"""Questions to a tier that somebody else writes: what is missing may have been deleted in order.

What lives here: `asked_fresh`. Who has something to refresh is in `reader`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from tieredstore.model.errors import (
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentNotFoundError,
    StoreClosedError,
    TieredStoreError,
)

T = TypeVar("T")

# The second says that a segment is shorter than it was: the queue may have begun anew.
_MISSING: Final = (
    SegmentNotFoundError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    StoreClosedError,
)


def asked_fresh(
    call: Callable[[], T], *, state: Callable[[], object], refresh: Callable[[], None]
) -> T:
    """What `call` gives; asked again after a refresh while that shows another `state`.

    A catalogue of a moment ago names segments that have expired since: no damage. What is damaged
    stays so, and its error comes through.
    """
    while True:
        before = state()
        try:
            return call()
        except _MISSING:
            with suppress(TieredStoreError):  # the error above says more
                refresh()
            if state() == before:
                raise
