"""A question is asked again where a refresh shows another state, and only there."""

from __future__ import annotations

import pytest

from tieredstore.access.reader import retry_after_refresh
from tieredstore.model.errors import (
    OffsetOutOfRangeError,
    SegmentCorruptError,
    SegmentNotFoundError,
    StoreClosedError,
    TieredStoreError,
)

MISSING = [
    SegmentNotFoundError("a segment"),
    SegmentCorruptError("a segment", "it is damaged", position=0),
    OffsetOutOfRangeError("a shorter segment", offset=60, minimum=0, maximum=20),
    StoreClosedError("a queue is closed"),
]


class Asked:
    """Fails until it is refreshed as often as that."""

    def __init__(self, error: TieredStoreError, *, refreshes: int) -> None:
        self._error = error
        self._refreshes = refreshes
        self.state = 0

    def call(self) -> str:
        if self.state < self._refreshes:
            raise self._error
        return "found"

    def refresh(self) -> None:
        self.state = min(self.state + 1, 2)


@pytest.mark.parametrize("error", MISSING, ids=lambda error: type(error).__name__)
def test_what_is_missing_is_looked_for_again_until_nothing_changes(error: TieredStoreError) -> None:
    asked = Asked(error, refreshes=2)
    found = retry_after_refresh(asked.call, state=lambda: asked.state, refresh=asked.refresh)
    assert found == "found"
    asked = Asked(error, refreshes=3)
    with pytest.raises(type(error)):
        retry_after_refresh(asked.call, state=lambda: asked.state, refresh=asked.refresh)
