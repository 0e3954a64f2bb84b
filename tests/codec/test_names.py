"""Names, against those that the Java classes made."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.golden_files import expected
from tieredstore.codec import names

VECTORS: dict[str, Any] = expected("hash-vectors.json")
OFFSETS = st.integers(0, 2**63 - 1)


@pytest.mark.parametrize("row", VECTORS["fileNames"], ids=lambda row: str(row["offset"]))
def test_every_golden_file_name_is_reproduced(row: dict[str, Any]) -> None:
    assert names.segment_name(row["offset"]) == row["segmentName"]
    assert names.parse_segment_name(row["segmentName"]) == row["back"]
    assert names.local_file_name(row["offset"]) == row["localFileName"]
    assert names.parse_local_file_name(row["localFileName"]) == row["offset"]


@pytest.mark.parametrize("row", VECTORS["clusterDirectories"], ids=lambda row: row["directory"])
def test_every_golden_cluster_directory_is_reproduced(row: dict[str, Any]) -> None:
    directory = names.cluster_directory(row["cluster"])
    assert directory == row["directory"]
    assert names.h8(row["cluster"]) == row["md5First8"]
    path = names.queue_path("broker-x", "TopicTest", 3)
    segment = names.segment_name(104857600)
    assert f"{directory}/{path}/COMMIT_LOG/{segment}" == row["exampleSegment"]


def test_every_golden_segment_lies_where_its_name_says() -> None:
    directory = names.cluster_directory("GoldenCluster")
    rows = expected("tier-posix.expect-queues.json")["segments"]
    assert rows
    for row in rows:
        name = names.segment_name(row["baseOffset"])
        assert row["fileName"] == name
        assert row["file"] == f"{directory}/{row['path']}/{row['type']}/{name}"


def test_the_vectors_of_the_format_notes_are_reproduced() -> None:
    assert names.segment_name(2**63 - 1) == "15767b2509223372036854775807"
    assert names.segment_name(1073741775) == "1f329fef00000000001073741775"
    assert names.index_queue_path("broker-gold-a") == VECTORS["indexQueuePath"]
    assert names.queue_path("b", "%RETRY%g|x", 7) == "b/%RETRY%g|x/7"


@given(OFFSETS)
def test_offsets_round_trip(offset: int) -> None:
    name = names.segment_name(offset)
    assert len(name) == 28
    assert names.parse_segment_name(name) == offset
    assert names.parse_local_file_name(names.local_file_name(offset)) == offset


@pytest.mark.parametrize(
    "name",
    [
        "",
        "cfcd20840000000000000000000",
        "cfcd2084000000000000000000000",
        "CFCD208400000000000000000000",
        "cfcd208400000000000000000001",
        "cfcd20840000000000000000000x",
        "cfcd2084 0000000000000000000",
        "cfcd2084-0000000000000000000",
        "cfcd2084٠0000000000000000000",
        "15767b2599999999999999999999",
        ".DS_Store",
    ],
)
def test_what_is_no_segment_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        names.parse_segment_name(name)


@pytest.mark.parametrize(
    "name", ["", "0", "-0000000000000000001", "99999999999999999999", "٠" * 20]
)
def test_what_is_no_local_file_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        names.parse_local_file_name(name)


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_offsets_beyond_a_long_are_refused(offset: int) -> None:
    with pytest.raises(ValueError, match="base_offset"):
        names.segment_name(offset)
    with pytest.raises(ValueError, match="offset"):
        names.local_file_name(offset)
