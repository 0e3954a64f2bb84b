"""Keys of a bucket, and what they name."""

from __future__ import annotations

import pytest

from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.values import SegmentType
from tieredstore.roundlog.layout import ObjectLayout


@pytest.mark.parametrize("cluster", ["", ".", "..", "a/b", "a\0b"])
def test_a_cluster_has_the_name_of_a_directory(cluster: str) -> None:
    with pytest.raises(InvalidConfigError, match="is no name of a directory"):
        ObjectLayout(cluster)


def test_a_sealed_key_names_its_segment_and_that_its_broker() -> None:
    layout = ObjectLayout("cluster")
    path, kind, base = "broker-a/topic/0", SegmentType.CONSUME_QUEUE, 20
    found = layout.segment_of(layout.segment_key(path, kind, base))
    assert found is not None
    assert (found.path, found.type, found.base, found.broker) == (path, kind, base, "broker-a")
    assert ObjectLayout("other").segment_of(layout.segment_key(path, kind, base)) is None
