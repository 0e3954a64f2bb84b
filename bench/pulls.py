"""Pulls of 32 messages as consumers make them: hot, read ahead, cold, and beside puts.

Hot ones come from the local store and are compared with Java's of the same messages; cold ones and
those that read ahead come from a tier, in a folder or in a bucket, and are compared with hot,
undisturbed ones. Prints one table, exits with 1 if a promise is missed:

    python -m bench.pulls
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from bench._java import Java, java
from bench._rows import Row, java_row, report, turns_row
from bench._s3_server import ministack
from bench._stores import ALONE, POSIX, Place, a_store, a_tier, s3
from bench.puts import Kind, sent
from tieredstore.driver.message_store import MessageStore
from tieredstore.model.messages import Message
from tieredstore.model.values import StorageLevel

TURNS: Final = 3
PULLED: Final = 32
KIND: Final = Kind(body=1_000, batch=256, count=32_768)
QUEUES: Final = 4


def put_all(store: MessageStore) -> list[list[Message]]:
    messages = sent(KIND)
    for batch in messages:
        assert all(result.stored for result in store.put_messages(batch))
    return messages


def pulls_a_second(store: MessageStore) -> float:
    """Pull once everything that `put_all` has put; messages a second."""
    started = time.perf_counter()
    count = 0
    for queue_id in range(QUEUES):
        offset, end = 0, KIND.count // QUEUES
        while offset < end:
            found = store.get_message("TopicTest", queue_id, offset, count_max=PULLED)
            assert found.messages, found.status
            offset = found.next_offset
            count += len(found.messages)
    return count / (time.perf_counter() - started)


@contextmanager
def putting(store: MessageStore, messages: Sequence[Sequence[Message]]) -> Iterator[None]:
    """Let a thread put the same batches again until the block ends."""
    ended = threading.Event()

    def put() -> None:
        while not ended.is_set():
            for batch in messages:
                store.put_messages(batch)
                if ended.wait(0.005):  # some 50 000 a second, which leaves room for others
                    return

    thread = threading.Thread(target=put)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def hot_rows(asked: Java) -> Iterator[Row]:
    ours, java_rates, beside_puts = [], [], []
    for _ in range(TURNS):
        with a_store(ALONE) as store:
            messages = put_all(store)
            pulls_a_second(store)
            ours.append(pulls_a_second(store))
            with putting(store, messages):
                beside_puts.append(pulls_a_second(store))
        with tempfile.TemporaryDirectory() as folder:
            seconds = asked.seconds(
                "pull", folder=f"{folder}/java", body=KIND.body, batch=PULLED, count=KIND.count
            )
        java_rates += [] if seconds is None else [KIND.count / seconds]
    yield java_row("hot pulls of 32, messages; Java makes none", java_rates or None, ours)
    yield turns_row("hot pulls of 32 beside puts (without puts)", ours, beside_puts)


def tier_rows(place: Place) -> Iterator[Row]:
    """The tier has all messages; the local store has them too, for the hot pulls."""
    hot: list[float] = []
    cold: list[float] = []
    ahead: list[float] = []
    beside_puts: list[float] = []
    for _ in range(TURNS):
        with a_tier(place) as store:
            messages = put_all(store)
            assert store.flush()
            pulls_a_second(store)
            hot.append(pulls_a_second(store))
            store.level = StorageLevel.FORCE
            with putting(store, messages):
                beside_puts.append(pulls_a_second(store))
        assert place.tier is not None
        without = replace(place, tier=replace(place.tier, read_ahead_enabled=False))
        for kind, rates in ((place, ahead), (without, cold)):
            with a_tier(kind) as store:
                put_all(store)
                assert store.flush()
                store.level = StorageLevel.FORCE
                rates.append(pulls_a_second(store))
    yield turns_row(f"pulls of 32, {place.name}, read ahead (hot)", hot, ahead)
    yield turns_row(f"pulls of 32, {place.name}, each cold (hot)", hot, cold)
    what = f"pulls of 32, {place.name}, read ahead, beside puts"
    yield turns_row(f"{what} (without puts)", ahead, beside_puts)


def main() -> int:
    with java() as asked, ministack() as endpoint:
        places = [POSIX, *([s3(endpoint)] if endpoint else [])]
        rows = [*hot_rows(asked)]
        for place in places:
            rows += tier_rows(place)
        return report("pulls", rows)


if __name__ == "__main__":
    sys.exit(main())
