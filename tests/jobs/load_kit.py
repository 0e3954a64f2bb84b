"""Loads for tests: batches, attempts at partitions, and what must be in the tier afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tieredstore.access.audit import AuditReport, audit
from tieredstore.access.reader import TieredReader
from tieredstore.access.rebuild import RebuildReport, rebuild, rebuild_beside_published
from tieredstore.access.wiring import (
    open_tier,
    provider_of,
    published_catalogue,
    publisher_of,
    written_catalogue,
)
from tieredstore.codec.message import StoredMessage, decode_message
from tieredstore.driver.metrics import NoMetrics
from tieredstore.driver.runtime import Runtime, SystemClock
from tieredstore.jobs import worker
from tieredstore.jobs.load import begin_load, commit_load
from tieredstore.jobs.load_records import LoadColumns, LoadDefaults
from tieredstore.jobs.load_segments import StagedPart, Stager
from tieredstore.jobs.worker import owned_tier, worker_provider
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import QueueKey
from tieredstore.providers.fsspec import FsspecClient

LOADED_MS = 1_700_000_900_000
DEFAULTS = LoadDefaults(store_time_ms=LOADED_MS)


def rows_of(key: QueueKey, numbers: Iterable[int]) -> pa.RecordBatch:
    """A batch of messages; message n of a queue has n in its body and its keys."""
    names = [f"{key.topic}-{key.queue_id}-{number}" for number in numbers]
    return pa.record_batch(
        {
            "topic": pa.array([key.topic] * len(names), pa.string()),
            "queue_id": pa.array([key.queue_id] * len(names), pa.int32()),
            "body": [name.encode() for name in names],
            "tags": [f"tag{len(name) % 3}" for name in names],
            "keys": [[f"k-{name}", "all"] for name in names],
            "unique_key": [f"u-{name}" for name in names],
        }
    )


def joined(*batches: pa.RecordBatch) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def staged(
    config: StoreConfig,
    run_id: str,
    partition: int,
    batches: Sequence[pa.RecordBatch],
    *,
    attempt: str = "0",
    block_bytes: int = 4_000,
    defaults: LoadDefaults = DEFAULTS,
    now_ms: int | None = None,
) -> StagedPart:
    """One attempt at a partition."""
    stager = Stager(
        config,
        worker_provider(config),
        LoadColumns(batches[0].schema, defaults),
        run_id=run_id,
        partition=partition,
        attempt=attempt,
        now_ms=SystemClock().now_ms() if now_ms is None else now_ms,
        block_bytes=block_bytes,
    )
    return stager.staged(batches)


def loaded(
    config: StoreConfig,
    partitions: Sequence[Sequence[pa.RecordBatch]],
    *,
    run_id: str = "run",
    **how: Any,
) -> None:
    """A whole load, as Spark does it."""
    begin_load(config)
    parts = [staged(config, run_id, number, each) for number, each in enumerate(partitions)]
    commit_load(config, run_id, parts, **how)


def messages(config: StoreConfig, key: QueueKey) -> list[StoredMessage]:
    """All messages of a queue; check that each lies where its offsets and the units say."""
    found = []
    with TieredReader.open(config) as tier:
        for number, each in enumerate(tier.messages(*key)):
            message = decode_message(each.record)
            assert (message.topic, message.queue_id) == key
            assert message.queue_offset == each.queue_offset == number
            assert message.log_offset == each.log_offset
            assert message.tags_code == each.tags_code
            found.append(message)
    return found


def bodies(config: StoreConfig, key: QueueKey) -> list[str]:
    return [message.body.decode() for message in messages(config, key)]


def names_of(key: QueueKey, numbers: Iterable[int]) -> list[str]:
    return [f"{key.topic}-{key.queue_id}-{number}" for number in numbers]


def assert_found(
    config: StoreConfig, expected: Mapping[QueueKey, Iterable[int]], *, samples: int = 40
) -> None:
    """Check that each message is found once by its own keys, and all by the key that all share."""
    with TieredReader.open(config) as tier:
        for key, numbers in expected.items():
            wanted = list(numbers)
            for number in wanted[:: max(1, len(wanted) // samples)]:
                name = f"{key.topic}-{key.queue_id}-{number}"
                for text in (f"u-{name}", f"k-{name}"):
                    answer = tier.query_message(key.topic, text)
                    assert answer.complete
                    found = [decode_message(each.record).body.decode() for each in answer.messages]
                    assert found == [name]
        for topic in {key.topic for key in expected}:
            count = sum(len(list(ns)) for key, ns in expected.items() if key.topic == topic)
            answer = tier.query_message(topic, "all", count_max=10 * count + 10)
            assert len(answer.messages) == count


def keys_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that are read from now on, one after the other."""
    read: list[str] = []
    inner = FsspecClient.get_range

    def reading(client: FsspecClient, key: str, start: int, length: int) -> bytes:
        read.append(key)
        return inner(client, key, start, length)

    monkeypatch.setattr(FsspecClient, "get_range", reading)
    return read


def lose_the_log(config: StoreConfig) -> None:
    """Delete all that writers appended to an in-memory bucket; the next claim is the first."""
    held = MemoryFileSystem.store
    root = config.url.removeprefix("memory:/")
    for name in [name for name in held if name.startswith(f"{root}/")]:
        if any(part in name for part in ("/log/", "/state/", "/epoch/")):
            del held[name]
    worker._PARTS.providers.clear()  # they know the lost log


def rebuilt(config: StoreConfig) -> RebuildReport:
    with owned_tier(config, threads=1) as tier:
        report = rebuild(tier.metadata, tier.provider, config, tier.runtime, takes_in=True)
        report.told()
        return report


def recovered(config: StoreConfig) -> RebuildReport:
    """Lose the broker's disk, and make its catalogue again from what is published."""
    shutil.rmtree(config.store_path)
    worker._PARTS.providers.clear()
    runtime = Runtime.inline()
    with ExitStack() as opened:
        provider = opened.enter_context(closing(provider_of(config, runtime, NoMetrics())))
        catalogue, _ = opened.enter_context(written_catalogue(config, runtime, provider))
        publisher = publisher_of(config, provider, catalogue)
        assert publisher is not None
        return rebuild_beside_published(
            *(catalogue, provider, config, runtime),
            publisher=publisher,
            published=lambda: published_catalogue(config, provider),
        )


def report_of(config: StoreConfig) -> AuditReport:
    with open_tier_of(config) as parts:
        return audit(parts.metadata, parts.provider, config, parts.runtime)


@contextmanager
def open_tier_of(config: StoreConfig) -> Iterator[Any]:
    """The parts of a running broker: its catalogue is locked, its index is open."""
    parts = open_tier(config, runtime=Runtime.inline(now_ms=LOADED_MS))
    with closing(parts):
        parts.load()
        yield parts
