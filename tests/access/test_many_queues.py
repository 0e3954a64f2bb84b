"""Thousands of queues with few messages each: the memory, threads and time of a tiered store.

bench/dispatch.py measures only the dispatcher, over a real local store. These tests run the whole
tiered store over files, with reads through its cache.
"""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.access.tiered_kit import a_config
from tieredstore.access.store import TieredMessageStore
from tieredstore.driver.runtime import DISPATCH_THREADS, FETCH_THREADS, Runtime, SystemClock
from tieredstore.model.values import QueueKey
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import a_message

KIB = 1024
BUFFER_BYTES, CACHE_BYTES = 2_048 * KIB, 2_048 * KIB
BODY_BYTES = 900
SCAN_SECONDS = 1.0
TURNS = 3


class Trickle:
    """A store whose queues get one message each in every turn."""

    def __init__(self, folder: Path, count: int) -> None:
        self.keys = [QueueKey("Trickle", queue_id) for queue_id in range(count)]
        self.runtime = Runtime.threads()
        self.local = ListMessageStore(self.runtime)
        config = a_config(
            folder,
            provider="posix",
            path=str(folder / "tier"),
            read_ahead_enabled=True,
            read_cache_bytes=CACHE_BYTES,
            dispatch_buffer_bytes=BUFFER_BYTES,
            group_commit_timeout_ms=24 * 3_600_000,  # longer than any test
            index_enabled=False,
        )
        self.store = TieredMessageStore(self.local, config, runtime=self.runtime)

    def put(self, count: int = 1) -> None:
        for _ in range(count):
            for key in self.keys:
                self.store.put_message(
                    a_message(topic=key.topic, queue_id=key.queue_id, body_bytes=BODY_BYTES)
                )

    def read_all(self) -> int:
        """Read every message from the tier, after the local store has lost all that it can."""
        self.local.trim(self.local.end)
        read = 0
        for key in self.keys:
            at = self.store.min_offset(*key) or 0
            while at < (self.store.committed_offset(*key) or 0):
                result = self.store.get_message(*key, at)
                assert result.messages
                assert result.messages[0].queue_offset == at
                read += len(result.messages)
                at = result.next_offset
        return read

    def close(self) -> None:
        self.store.shutdown(drain=False)
        self.runtime.close()


@pytest.fixture(
    params=[
        pytest.param(200, id="200 queues"),
        pytest.param(2_000, id="2000 queues", marks=pytest.mark.torture),
    ]
)
def trickle(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Trickle]:
    for name in ("fsync", "fdatasync"):  # these tests do not depend on the speed of the disk
        monkeypatch.setattr(os, name, lambda descriptor: None)
    queues = Trickle(tmp_path, request.param)
    queues.store.load()
    queues.store.start()
    queues.put()
    assert queues.store.flush()
    yield queues
    queues.close()


def test_their_memory_is_that_of_buffer_and_cache(trickle: Trickle) -> None:
    """Twice as many bytes as the buffer and the cache hold go through them."""
    rounds = max(1, 2 * (BUFFER_BYTES + CACHE_BYTES) // (BODY_BYTES * len(trickle.keys)))
    trickle.put(rounds)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        assert trickle.store.flush()
        assert trickle.read_all() == (rounds + 1) * len(trickle.keys)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak <= 1.25 * (BUFFER_BYTES + CACHE_BYTES)
    health = trickle.store.health()
    assert health.buffered_bytes == 0
    assert health.cache.held_bytes <= CACHE_BYTES


def test_none_of_them_has_a_thread_of_its_own(trickle: Trickle) -> None:
    trickle.put()
    assert trickle.store.flush()
    trickle.read_all()
    ours = [each for each in threading.enumerate() if each.name.startswith("tieredstore")]
    services = 8  # a handful: dispatch, sealing, expiry, read cache, catalogue
    assert len(ours) <= DISPATCH_THREADS + FETCH_THREADS + services


def test_a_look_at_all_of_them_takes_less_than_a_second(trickle: Trickle) -> None:
    trickle.put()  # a message waits in every queue, and none is due
    clock = SystemClock()
    spent = []
    for _ in range(TURNS):
        started = clock.monotonic()
        assert trickle.store._loaded().dispatcher.dispatch_once()
        spent.append(clock.monotonic() - started)
    assert min(spent) < SCAN_SECONDS
    assert all(trickle.store.committed_offset(*key) == 1 for key in trickle.keys)
