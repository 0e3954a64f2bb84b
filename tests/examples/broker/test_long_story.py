"""The long story with the tests' own client: quickly, and as long as `make clients` tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.broker.long_story import LongStory, OwnClient


def told(folder: Path, count: int, *, kills: int) -> list[str]:
    story = LongStory(client=OwnClient(), folder=folder, count=count, kills=kills, moves=False)
    return story.run()


@pytest.mark.slow
def test_a_broker_that_dies_loses_nothing_it_has_acknowledged(tmp_path: Path) -> None:
    assert told(tmp_path, 1_500, kills=2) == []


@pytest.mark.torture
def test_ten_thousand_messages_outlive_four_deaths(tmp_path: Path) -> None:
    assert told(tmp_path, 10_000, kills=4) == []
