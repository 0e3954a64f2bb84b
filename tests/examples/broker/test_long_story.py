"""The long story with the tests' own client: a short one, and one as long as in `make clients`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.broker.long_story import LongStory, OwnClient, a_bucket


def told_in_a_bucket(folder: Path, count: int, *, kills: int) -> list[str]:
    """Tell the story with a bucket, which includes a move to an empty disk."""
    with a_bucket() as (tier, variables):
        return LongStory(
            client=OwnClient(),
            folder=folder,
            count=count,
            kills=kills,
            tier=tier,
            variables=variables,
        ).run()


@pytest.mark.slow
def test_a_broker_that_dies_loses_nothing_it_has_acknowledged(tmp_path: Path) -> None:
    story = LongStory(client=OwnClient(), folder=tmp_path, count=1_500, kills=2)
    assert story.run() == []


@pytest.mark.s3
@pytest.mark.slow
def test_a_broker_goes_on_from_its_bucket_when_its_disk_is_lost(tmp_path: Path) -> None:
    assert told_in_a_bucket(tmp_path, 1_500, kills=2) == []


@pytest.mark.torture
def test_ten_thousand_messages_outlive_four_deaths_over_a_folder(tmp_path: Path) -> None:
    story = LongStory(client=OwnClient(), folder=tmp_path, count=10_000)
    assert story.run() == []


@pytest.mark.torture
def test_ten_thousand_messages_outlive_four_deaths_over_a_bucket(tmp_path: Path) -> None:
    assert told_in_a_bucket(tmp_path, 10_000, kills=4) == []
