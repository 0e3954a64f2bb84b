"""What the S3 provider relies on holds with this s3fs and this server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from s3fs import S3FileSystem

DATA = bytes(range(256)) * 4


def test_a_create_only_put_happens_once(s3: S3FileSystem, bucket: str) -> None:
    path = f"{bucket}/segment"
    s3.pipe_file(path, DATA, mode="create")
    with pytest.raises(FileExistsError):
        s3.pipe_file(path, b"another", mode="create")
    assert s3.cat_file(path) == DATA


@pytest.mark.parametrize(("start", "end"), [(0, 1), (1, 257), (1000, 1024), (0, 1024)])
def test_a_range_by_keyword_is_that_range(
    s3: S3FileSystem, bucket: str, start: int, end: int
) -> None:
    path = f"{bucket}/segment"
    s3.pipe_file(path, DATA)
    assert s3.cat_file(path, start=start, end=end) == DATA[start:end]


def test_several_ranges_come_in_order_and_errors_stay_in_their_place(
    s3: S3FileSystem, bucket: str
) -> None:
    path = f"{bucket}/segment"
    s3.pipe_file(path, DATA)
    good, missing = s3.cat_ranges([path, f"{bucket}/absent"], [16, 0], [32, 16], on_error="return")
    assert good == DATA[16:32]
    assert isinstance(missing, FileNotFoundError)


def test_what_another_client_wrote_is_seen_at_once(s3: S3FileSystem, bucket: str) -> None:
    assert s3.ls(bucket) == []
    s3.pipe_file(f"{bucket}/segment", DATA)
    assert s3.ls(bucket) == [f"{bucket}/segment"]
