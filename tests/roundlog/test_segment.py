"""A segment as a handle of its log."""

from __future__ import annotations

import pytest

from tests.providers.object_kit import PATH, Bucket
from tieredstore.model.errors import PositionMismatchError, SegmentSealedError
from tieredstore.model.values import SegmentType

LOG = SegmentType.COMMIT_LOG


def test_no_bytes_are_refused_where_any_would_be() -> None:
    writer = Bucket().process()
    segment = writer.open(PATH, LOG, 0)
    segment.write(0, b"")
    segment.write(0, b"0123")
    segment.write(4, b"")
    with pytest.raises(PositionMismatchError):
        segment.write(3, b"")
    segment.seal()
    with pytest.raises(SegmentSealedError):
        writer.open(PATH, LOG, 0).write(4, b"")
