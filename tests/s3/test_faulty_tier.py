"""A provider on a failing server loses nothing acknowledged and serves nothing wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.s3.moto_server import Door
from tests.s3.s3_clients import CLIENTS, new_settings
from tests.s3.test_http_faults import KINDS
from tieredstore.driver.object_client import ObjectExistsError
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.model.errors import BackendUnavailableError, SegmentNotFoundError
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_provider import ObjectProvider, open_client
from tieredstore.providers.s3_settings import ObjectStoreSettings

T = TypeVar("T")

LOG, INDEX = SegmentType.COMMIT_LOG, SegmentType.INDEX
PATH = "broker-a/TopicTest/0"
TURNS_MAX = 40
FAULTS = (*KINDS, "slow", "partial-delete")


def a_provider(settings: ObjectStoreSettings) -> ObjectProvider:
    retry = RetryPolicy(retries_max=6)
    return ObjectProvider(open_client(settings), "DefaultCluster", Runtime.inline(), retry=retry)


def in_the_end(call: Callable[[], T]) -> T:
    """Try until it succeeds, as the tier does what the store could not do in a later round."""
    for _ in range(TURNS_MAX):
        try:
            return call()
        except (BackendUnavailableError, ObjectExistsError):
            continue
    raise AssertionError("it never comes to an end")


def size_of(segment: FileSegment) -> int:
    try:
        return segment.size()
    except SegmentNotFoundError:
        return 0


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("name", CLIENTS)
def test_a_tier_s_life_on_a_server_that_fails(
    moto: tuple[str, Door], name: str, rate: float
) -> None:
    endpoint, door = moto
    settings = new_settings(endpoint, name)
    pieces = [bytes([number]) * (1_000 + number) for number in range(10)]
    whole = b"".join(pieces)
    door.requests()
    with door.breaking(*FAULTS, rate=rate, seed=11):
        writer = a_provider(settings)
        segment = writer.open(PATH, LOG, 0)
        for piece in pieces:
            done = in_the_end(lambda: size_of(segment))

            def write(start: int = done, data: bytes = piece) -> None:
                end = size_of(segment)
                if end == start:  # else it landed and its reply was lost
                    segment.write(start, data)
                assert segment.size() == start + len(data)

            in_the_end(write)
        assert in_the_end(lambda: segment.read(0, len(whole))) == whole
        old = writer.open(PATH, LOG, 100_000)

        def write_old() -> None:
            if not size_of(old):
                old.write(0, b"old")

        in_the_end(write_old)
        in_the_end(old.delete)
        in_the_end(segment.seal)
        index = writer.open("broker-a/rmq_sys_INDEX/0", INDEX, 0)
        in_the_end(lambda: size_of(index) or writer.create(index, [b"index"]))
        reader = a_provider(settings)
        assert in_the_end(lambda: reader.open(PATH, LOG, 0).read(500, 9_000)) == whole[500:9_500]
    assert door.requests().total() < (150 if rate < 0.5 else 1_500)
    listed = {(each.type, each.base): each.size for each in a_provider(settings).list()}
    assert listed == {(LOG, 0): len(whole), (INDEX, 0): 5}
    assert a_provider(settings).open(PATH, LOG, 0).read(0, len(whole)) == whole


@pytest.mark.parametrize("name", CLIENTS)
def test_a_store_that_is_away_is_told_of_in_one_clear_line(
    moto: tuple[str, Door], name: str
) -> None:
    endpoint, door = moto
    settings = new_settings(endpoint, name)
    door.requests()
    with door.breaking("503", rate=1.0):
        segment = a_provider(settings).open(PATH, LOG, 0)
        with pytest.raises(BackendUnavailableError) as caught:
            segment.write(0, b"data")
    assert door.requests().total() <= 7  # one request, retried as often as the policy says
    assert "503" in str(caught.value)
    assert "SlowDown" in str(caught.value)
    assert "\n" not in str(caught.value)
