"""A writer of a tier in a bucket that is killed, stalled and overtaken, and reports what it did.

A program for test_killed_writers, without tests. Each line that it writes has happened by then:

    C                                  it has claimed the tier
    A <queue> <type> <start> <bytes> <seed>    these bytes were acknowledged
    F                                  it was fenced, and says so again
    BAD <why>                          something else was raised
"""

from __future__ import annotations

import os
import random
import sys
import traceback
from dataclasses import replace
from typing import Final

from tieredstore.driver.metadata import Put
from tieredstore.driver.provider import SegmentWrite, WritePair
from tieredstore.driver.runtime import Runtime, SystemClock
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendUnavailableError, FencedError
from tieredstore.model.values import SegmentRecord, SegmentType
from tieredstore.providers.object_provider import S3Provider
from tieredstore.roundlog import upkeep

BROKER: Final = "broker-a"
QUEUES: Final = 4
TYPES: Final = (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE)
ROUNDS_MAX: Final = 2_000
SEGMENT_BYTES: Final = 6_000
# Chores come often, so that a life of a few rounds merges, writes states and deletes.
OFTEN: Final = {"ROUNDS_MERGED": 4, "CHUNKS_MERGED": 3, "STATE_EVERY": 6}


def config(endpoint: str, bucket: str, client: str) -> StoreConfig:
    return StoreConfig(
        broker_name=BROKER,
        provider="s3",
        bucket=bucket,
        prefix="some/tier",
        endpoint=endpoint,
        object_client=client,
        certify="off",
    )


def path_of(queue: int) -> str:
    return f"{BROKER}/Topic/{queue}"


def body(seed: int, length: int) -> bytes:
    return random.Random(seed).randbytes(length)


class HastyClock(SystemClock):
    """A clock that skips the minutes for which chores wait."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


class Writer:
    """Writes rounds of all queues, each with a log's bytes and a queue's, as a broker does."""

    def __init__(self, provider: S3Provider, clock: HastyClock, dice: random.Random) -> None:
        self._provider = provider
        self._clock = clock
        self._dice = dice
        catalogue = provider.catalogue(BROKER, read_only=False)
        assert catalogue is not None
        self._catalogue = catalogue
        self._rows: dict[tuple[int, SegmentType], SegmentRecord] = {}
        for queue in range(QUEUES):
            for kind in TYPES:
                known = catalogue.segments(path_of(queue), kind)
                if known:
                    self._rows[queue, kind] = known[-1]

    def step(self) -> None:
        pairs, told = [], []
        for queue in self._dice.sample(range(QUEUES), self._dice.randint(1, QUEUES)):
            writes: list[SegmentWrite] = []
            rows: list[SegmentRecord] = []
            for kind in TYPES:
                row, seed = self._row(queue, kind), self._dice.randrange(1 << 40)
                length = self._dice.choice([20, 200, 2_000])
                segment = self._provider.open(row.path, kind, row.base_offset)
                writes.append(SegmentWrite(segment, row.size, body(seed, length)))
                rows.append(_grown(row, length))
                told.append(f"A {queue} {int(kind)} {row.end_offset} {length} {seed}")
            log, units = writes
            pairs.append((queue, WritePair(log, units, rows=tuple(rows))))
        for future in self._provider.write_many([pair for _, pair in pairs]):
            future.result()
        for queue, pair in pairs:
            for row in pair.rows:
                self._rows[queue, row.type] = row
        for line in told:
            tell(line)
        if self._dice.random() < 0.4:
            self._clock.ahead_ms += 10 * 60_000
            for _ in range(self._dice.randint(1, 4)):
                self._provider.tend(BROKER)

    def _row(self, queue: int, kind: SegmentType) -> SegmentRecord:
        """The segment to write to; a full one is sealed, and the next one begins at its end."""
        row = self._rows.get((queue, kind))
        if row is not None and row.size < SEGMENT_BYTES:
            return row
        if row is not None:
            self._provider.open(row.path, kind, row.base_offset).seal()
        base = 0 if row is None else row.end_offset
        new = SegmentRecord(path=path_of(queue), type=kind, base_offset=base, create_timestamp=1)
        self._catalogue.stage([Put(new)])
        self._rows[queue, kind] = new
        return new


def _grown(row: SegmentRecord, length: int) -> SegmentRecord:
    return replace(row, size=row.size + length, begin_timestamp=1, end_timestamp=2)


def tell(line: str) -> None:
    """Write one line in one piece: a pipe takes so few bytes whole or not at all."""
    os.write(1, f"{line}\n".encode()[:2_000])


def main(endpoint: str, bucket: str, client: str, seed: str) -> None:
    for name, number in OFTEN.items():
        setattr(upkeep, name, number)
    clock = HastyClock()
    runtime = Runtime.threads()
    runtime.clock = clock
    provider = S3Provider.from_config(config(endpoint, bucket, client), runtime)
    try:
        provider.claim(BROKER)
        tell("C")
        writer = Writer(provider, clock, random.Random(int(seed)))
        for _ in range(ROUNDS_MAX):
            writer.step()
    except FencedError:
        _says_so_again(provider)
    except BackendUnavailableError:
        pass  # the server is gone, and so is the test
    except BaseException:
        tell(f"BAD {traceback.format_exc()[-1_500:]!r}")
        raise
    finally:
        os._exit(0)


def _says_so_again(provider: S3Provider) -> None:
    try:
        provider.open(path_of(0), SegmentType.COMMIT_LOG, 1 << 40).write(0, b"late")
    except FencedError:
        if provider.fence(BROKER) is not None:
            tell("F")
            return
    tell("BAD a fenced writer writes on")


if __name__ == "__main__":
    main(*sys.argv[1:])
