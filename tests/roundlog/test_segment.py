"""A segment as a handle into its log."""

from __future__ import annotations

import pytest

from tests.providers.object_kit import PATH, Bucket
from tieredstore.model.errors import (
    BackendUnavailableError,
    PositionMismatchError,
    SegmentCorruptError,
    SegmentSealedError,
)
from tieredstore.model.values import SegmentType
from tieredstore.roundlog import upkeep

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


def test_a_segment_wants_its_seal_while_it_is_open_and_has_bytes() -> None:
    writer = Bucket().process()
    segment = writer.open(PATH, LOG, 0)
    wants = [segment.wants_seal]
    segment.write(0, b"0123")
    wants.append(segment.wants_seal)
    segment.seal()
    wants.append(segment.wants_seal)
    assert wants == [False, True, False]


def test_a_seal_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    segment = Bucket().process().open(PATH, LOG, 0)
    segment.write(0, b"0123")

    def down(*_: object) -> None:
        raise BackendUnavailableError(PATH, "put", "down")

    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "seal", down)
        with pytest.raises(BackendUnavailableError):
            segment.seal()
    segment.seal()
    assert segment.is_full


def test_bytes_that_are_not_those_that_were_written_are_damage() -> None:
    bucket = Bucket()
    segment = bucket.process().open(PATH, LOG, 0)
    segment.write(0, b"0123")
    segment.write(4, b"4567")
    newest = max(key for key in bucket.objects.held_keys() if "/log/" in key)
    data, facts = bucket.objects.held[newest]
    bucket.objects.held[newest] = data[:-1] + bytes([data[-1] ^ 1]), facts
    assert segment.read(0, 4) == b"0123"
    for position, length in ((0, 8), (4, 4)):
        with pytest.raises(SegmentCorruptError):
            segment.read(position, length)


def test_a_segment_that_is_about_to_be_sealed_takes_nothing_more() -> None:
    segment = Bucket().process().open(PATH, LOG, 0)
    segment.write(0, b"0123")
    segment.write_no_more()
    with pytest.raises(SegmentSealedError):
        segment.write(4, b"4")
    assert segment.size() == 4
