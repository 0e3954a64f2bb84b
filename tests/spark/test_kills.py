"""Every message exactly once, whatever is killed and when: batch and stream, source and sink,
driver and executor.

KILLS=20 makes more kills in each cell, KILLS_SEED=n repeats the dice of a run; even so a moment is
not the same on another machine, or on a busy one.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.job_kit import verified
from tests.jobs.load_kit import messages, report_of
from tests.jobs.written_tier import WrittenTier, body_of, posix_config
from tests.s3.conftest import moto, s3_environment
from tests.s3.moto_server import Door
from tests.spark.killing import DRIVER_KINDS, EXECUTOR_KINDS, Driver, Killing, Work, files_in
from tests.spark.spark_kit import options_of
from tieredstore.access.reader import TieredReader
from tieredstore.codec.message import decode_message
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import QueueKey
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings

__all__ = ["moto", "s3_environment"]  # fixtures
KILLS = int(os.environ.get("KILLS", "5"))  # in each cell
SEED = int(os.environ.get("KILLS_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
LOAD_ROWS = 160
FILE_ROWS = 25
QUEUES = [QueueKey(topic, queue_id) for topic in ("orders", "payments") for queue_id in range(3)]

pytestmark = pytest.mark.cluster


def message(number: int) -> tuple[QueueKey, str]:
    """The message of a number, as `killed_driver.MESSAGE` makes it."""
    topic = "orders" if number % 5 else "payments"
    return QueueKey(topic, number % 3), f"body-{number}-".ljust(200, ".")


class Sink(Work):
    """Numbered messages that come into a tier."""

    def __init__(self, config: StoreConfig, place: Path, door: Door | None) -> None:
        self.config = config
        self.place = place
        self.end = 0  # of the numbers given out so far
        self._door = door
        self._requests = 0

    def watched(self) -> object:
        found = files_in(self.place / "tiered", self.place / "store", self.place / "checkpoint")
        if self._door is not None:
            seen = self._door.requests()
            self._requests += sum(seen.values()) - seen["GET"] - seen["HEAD"] - seen["LIST"]
        return found, self._requests

    def check(self) -> None:
        found = [text for key in QUEUES for text in self.bodies(key)]
        assert len(found) == len(set(found))
        assert sorted(found) == sorted(message(number)[1] for number in range(self.end))

    def bodies(self, key: QueueKey) -> list[str]:
        """The bodies of a queue; their offsets are dense, and match their places."""
        return [each.body.decode() for each in messages(self.config, key)]

    def check_all(self, driver: Driver) -> None:
        wanted: dict[QueueKey, list[str]] = {key: [] for key in QUEUES}
        for number in range(self.end):
            key, body = message(number)
            wanted[key].append(body)
        for key in QUEUES:
            assert sorted(self.bodies(key)) == sorted(wanted[key])
        with TieredReader.open(self.config) as tier:
            # A look-up in a bucket is slow, so only some are made.
            for number in range(0, self.end, 1 if self._door is None else 9):
                (key, body), names = message(number), (f"k{number}", f"u{number}")
                for name in names:
                    answer = tier.query_message(key.topic, name)
                    assert answer.complete
                    found = [decode_message(each.record) for each in answer.messages]
                    assert [each.body.decode() for each in found] == [body]
        assert verified(self.config).findings == ()
        assert report_of(self.config).findings == ()


class SinkBatch(Sink):
    """Frames that are written with one load id each."""

    helper = "commit_data_source_write"

    def turn(self) -> tuple[str, dict[str, Any]]:
        first, self.end = self.end, self.end + LOAD_ROWS
        words = {"load_id": f"load-{first}", "first": first, "end": self.end}
        return "load", {"tier": options_of(self.config), **words}


class SinkStream(Sink):
    """Files of numbers that a stream follows."""

    helper = "python_streaming_sink_runner"

    def turn(self) -> tuple[str, dict[str, Any]]:
        (self.place / "lines").mkdir(exist_ok=True)
        for _ in range(4):
            self.grow()
        places = {name: str(self.place / name) for name in ("lines", "checkpoint")}
        return "fill", {"tier": options_of(self.config), **places}

    def grow(self) -> None:
        first, self.end = self.end, self.end + FILE_ROWS
        half = self.place / f"{first}.half"
        half.write_text("\n".join(map(str, range(first, self.end))))
        half.rename(self.place / "lines" / f"{first}")

    def check(self) -> None:
        """What came while the turn ended may be there or not, but nothing is there twice."""
        found = [text for key in QUEUES for text in self.bodies(key)]
        assert len(found) == len(set(found))


class Source(Work):
    """A tier that grows while it is read into Parquet."""

    def __init__(self, tier: WrittenTier, place: Path) -> None:
        self.tier = tier
        self.out = place / "out"
        self.checkpoint = place / "checkpoint"
        self._grown = 0

    def grow(self) -> None:
        key = QUEUES[self._grown % len(QUEUES)]
        self.tier.add(*key, 40)
        self._grown += 1

    def watched(self) -> object:
        return files_in(self.out, self.checkpoint)

    def check_all(self, driver: Driver) -> None:
        found = [(*row[:3], row[3].encode()) for row in driver.done("rows", out=str(self.out))]
        assert sorted(found) == sorted(
            (*key, offset, body_of(offset, 50))
            for key, end in self.tier.ends.items()
            for offset in range(end)
        )


class SourceBatch(Source):
    """Exports of the whole tier, each replacing the one before. A reader takes a folder that has
    the success mark, which Spark makes last."""

    helper = "plan_data_source_read"
    waits_for_orphans = True  # Spark's own commit of files does not fence orphans

    def turn(self) -> tuple[str, dict[str, Any]]:
        self.grow()
        return "export", {"tier": options_of(self.tier.config), "out": str(self.out)}


class SourceStream(Source):
    """A stream into a file sink, which itself says which of its files count."""

    helper = "python_streaming_source_runner"

    def turn(self) -> tuple[str, dict[str, Any]]:
        for _ in range(3):
            self.grow()
        places = {"out": str(self.out), "checkpoint": str(self.checkpoint)}
        return "follow", {"tier": options_of(self.tier.config), **places}


@pytest.fixture(params=["posix", pytest.param("s3", marks=pytest.mark.s3)])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[StoreConfig, Door | None]:
    """An empty tier in a directory, or in a bucket, and the door of the bucket's server."""
    if request.param == "posix":
        return posix_config(tmp_path), None
    endpoint, door = request.getfixturevalue("moto")
    named: dict[str, Any] = {
        "bucket": f"tier-{uuid.uuid4().hex}",
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key": "testing",
        "secret_key": "testing",
    }
    create_bucket(ObjectStoreSettings(**named))
    return posix_config(tmp_path, provider="s3", path="", **named), door


VICTIMS = pytest.mark.parametrize(
    "kinds", [DRIVER_KINDS, EXECUTOR_KINDS], ids=["driver", "executor"]
)


@VICTIMS
@pytest.mark.parametrize("kind", [SinkBatch, SinkStream])
def test_a_sink_has_every_message_once(
    backend: tuple[StoreConfig, Door | None],
    kind: type[Sink],
    kinds: Sequence[str],
    tmp_path: Path,
) -> None:
    config, door = backend
    kill_often(kind(config, tmp_path, door), kinds, tmp_path)


@VICTIMS
@pytest.mark.parametrize("kind", [SourceBatch, SourceStream])
def test_a_source_gives_every_message_once(
    backend: tuple[StoreConfig, Door | None],
    kind: type[Source],
    kinds: Sequence[str],
    tmp_path: Path,
) -> None:
    kill_often(kind(WrittenTier(config=backend[0]), tmp_path), kinds, tmp_path)


def kill_often(work: Work, kinds: Sequence[str], place: Path) -> None:
    print(f"\nKILLS_SEED={SEED}: {type(work).__name__}")
    Killing(work=work, place=place, dice=random.Random(SEED), kinds=kinds).run(KILLS)
