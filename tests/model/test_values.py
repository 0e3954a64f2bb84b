"""Values that all modules share: numbers on disk, and names that users choose."""

from __future__ import annotations

import pytest

from tieredstore.model.values import AppendStatus, SegmentType


def test_types_of_segments_have_rocketmqs_codes() -> None:
    """A port of RocketMQ's FileSegmentTypeTest."""
    codes = {0: SegmentType.COMMIT_LOG, 1: SegmentType.CONSUME_QUEUE, 2: SegmentType.INDEX}
    assert {code: SegmentType(code) for code in codes} == codes
    assert {int(each): each for each in SegmentType} == codes


@pytest.mark.parametrize("code", [-1, 3, 255])
def test_an_unknown_code_is_no_type_of_a_segment(code: int) -> None:
    with pytest.raises(ValueError, match=str(code)):
        SegmentType(code)


def test_an_append_ends_as_something_that_is_really_said() -> None:
    assert set(AppendStatus) == {AppendStatus.SUCCESS, AppendStatus.FILE_FULL}
