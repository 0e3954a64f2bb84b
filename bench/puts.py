"""Puts as a broker makes them: into the local store alone, and while a tier uploads beside them.

One by one and in batches, of one producer and of many, in threads and awaited. They are compared
with Java's own classes and the same messages, the store without a tier, and a bare append. All
kinds alternate. Prints one table, exits with 1 if a promise is missed:

    python -m bench.puts
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from bench._java import Java, java
from bench._local_puts import appends_a_second, as_columns, as_objects, put_all
from bench._messages import BATCH_MESSAGES, QUEUES, batches, properties
from bench._rows import Row, java_row, report, turns_row
from bench._s3_server import ministack
from bench._stores import ALONE, POSIX, Place, a_store, a_tier, s3
from tieredstore.aio import AsyncTieredStore
from tieredstore.codec.record import property_bytes_of
from tieredstore.model.messages import Message

TURNS: Final = 3
SHORT_TURNS: Final = 7  # for runs that end within a second, and vary by a fifth
PRODUCERS: Final = (1, 16, 1_024)
PRODUCED: Final = 8_192
WARM_UP_BATCHES: Final = 8
LONG: Final = 524_288
MEMORY: Final = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Messages of one producer: how large, how many a call, and how many in all."""

    body: int
    batch: int
    count: int
    of_wire: bool = False

    @property
    def said(self) -> str:
        size = "1 KB" if self.body == 1_000 else f"{self.body} B"
        how = "one by one" if self.batch == 1 else f"batches of {self.batch}"
        much = f", {self.count:,} messages" if self.is_long else ""
        return f"{size}, {how}" + much + (", wire properties" if self.of_wire else "")

    @property
    def is_long(self) -> bool:
        """Whether the tier uploads during most of it; shorter kinds end when the upload begins."""
        return self.count >= LONG


KINDS: Final = (
    Kind(body=1_000, batch=1, count=16_384),
    Kind(body=100, batch=1, count=16_384),
    Kind(body=1_000, batch=32, count=32_768),
    Kind(body=1_000, batch=256, count=65_536),
    Kind(body=100, batch=256, count=65_536),
    Kind(body=1_000, batch=256, count=65_536, of_wire=True),
    Kind(body=1_000, batch=256, count=LONG),
)
TIER_PROMISED: Final = 0.5
"""A floor: 0.8 is aimed for, medians vary by a fifth, and on a busy machine the tier has no core of
its own. On disk the longest row promises nothing: a disk that takes all bytes twice holds up the
writes of the store."""
APPENDED_PROMISED: Final = 0.4


def sent(kind: Kind) -> list[list[Message]]:
    """The messages of all calls, including those to warm up; each call is for one queue."""
    body = bytes(number % 256 for number in range(kind.body))
    calls = kind.count // kind.batch + WARM_UP_BATCHES
    found = []
    for call in range(calls):
        first = call * kind.batch
        messages = [
            Message(
                topic="TopicTest",
                queue_id=call % QUEUES,
                body=body,
                properties=properties(number, unique=False),
                born_timestamp=1_700_000_000_000 + number,
            )
            for number in range(first, first + kind.batch)
        ]
        found.append([as_sent(one) for one in messages] if kind.of_wire else messages)
    return found


def as_sent(message: Message) -> Message:
    """The message with its properties as one text, as in a request."""
    return replace(message, properties={}, properties_text=property_bytes_of(message))


def puts_a_second(kind: Kind, place: Place) -> float:
    messages = sent(kind)
    with a_store(place) as store:
        if kind.batch == 1:
            singles = [batch[0] for batch in messages]
            for message in singles[:WARM_UP_BATCHES]:
                assert store.put_message(message).stored
            put = store.put_message
            started = time.perf_counter()
            for message in singles[WARM_UP_BATCHES:]:
                put(message)
            return kind.count / (time.perf_counter() - started)
        for batch in messages[:WARM_UP_BATCHES]:
            assert all(result.stored for result in store.put_messages(batch))
        started = time.perf_counter()
        for batch in messages[WARM_UP_BATCHES:]:
            store.put_messages(batch)
        return kind.count / (time.perf_counter() - started)


def java_puts_a_second(asked: Java, kind: Kind) -> float | None:
    with tempfile.TemporaryDirectory() as folder:
        seconds = asked.seconds(
            "put",
            folder=f"{folder}/java",
            body=kind.body,
            batch=kind.batch,
            count=kind.count,
        )
    return None if seconds is None else kind.count / seconds


def threads_a_second(place: Place, producers: int) -> float:
    """Each thread puts one message after the other."""
    messages = [batch[0] for batch in sent(Kind(body=1_000, batch=1, count=PRODUCED))]
    share = PRODUCED // producers
    begun = threading.Barrier(producers + 1)
    with a_store(place) as store:

        def produce(first: int) -> None:
            begun.wait()
            for message in messages[first : first + share]:
                store.put_message(message)

        threads = [
            threading.Thread(target=produce, args=(number * share,)) for number in range(producers)
        ]
        for thread in threads:
            thread.start()
        begun.wait()
        started = time.perf_counter()
        for thread in threads:
            thread.join()
        return share * producers / (time.perf_counter() - started)


def awaited_a_second(place: Place, producers: int) -> float:
    """Each task awaits one put after the other."""
    messages = [batch[0] for batch in sent(Kind(body=1_000, batch=1, count=PRODUCED))]

    async def work() -> float:
        with a_tier(place) as store:
            face = AsyncTieredStore(store)
            rest = iter(messages)

            async def produce() -> None:
                for message in rest:
                    await face.put_message(message)

            started = time.perf_counter()
            await asyncio.gather(*(produce() for _ in range(producers)))
            return len(messages) / (time.perf_counter() - started)

    return asyncio.run(work())


Measure = Callable[[], float | None]


def turn_about(ways: Mapping[str, Measure], turns: int = TURNS) -> dict[str, list[float]]:
    """Alternate all ways, so that what slows the machine down slows each of them.

    A way that returns None, like Java's if it is not run, is left out.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, measure in ways.items():
            value = measure()
            if value is None:
                found.pop(name, None)
            else:
                found[name].append(value)
    return found


def kind_rows(kind: Kind, asked: Java, places: Sequence[Place]) -> Iterator[Row]:
    ways: dict[str, Measure] = {"alone": partial(puts_a_second, kind, ALONE)}
    for place in places:
        ways[place.name] = partial(puts_a_second, kind, place)
    if not kind.of_wire:
        ways["java"] = partial(java_puts_a_second, asked, kind)
    found = turn_about(ways, TURNS if kind.is_long else SHORT_TURNS)
    alone = found["alone"]
    if not kind.of_wire:
        yield java_row(f"{kind.said}, no tier", found.get("java"), alone)
    for place in places:
        ours = found[place.name]
        promised = TIER_PROMISED if place is POSIX and not kind.is_long else None
        what = f"{kind.said}, {place.name}"
        yield turns_row(f"{what} (the store alone)", alone, ours, promised=promised)
        if place is POSIX and not kind.of_wire:
            yield java_row(f"{what}; Java has no tier", found.get("java"), ours)


def memory_rows(kind: Kind) -> Iterator[Row]:
    """What a tier costs a producer, apart from the disk that both write to."""
    if not MEMORY.is_dir():
        return
    alone, tier = replace(ALONE, parent=MEMORY), replace(POSIX, parent=MEMORY)
    found = turn_about(
        {"alone": partial(puts_a_second, kind, alone), "tier": partial(puts_a_second, kind, tier)}
    )
    yield turns_row(
        f"{kind.said}, all in memory, {POSIX.name} (the store alone)",
        found["alone"],
        found["tier"],
        promised=TIER_PROMISED,
    )


def producer_rows(places: Sequence[Place]) -> Iterator[Row]:
    """Many producers at the same time, in threads and awaited."""
    for producers in PRODUCERS:
        ways: dict[str, Measure] = {}
        for place in (ALONE, *places):
            ways[f"threads {place.name}"] = partial(threads_a_second, place, producers)
        for place in places:
            ways[f"asyncio {place.name}"] = partial(awaited_a_second, place, producers)
        found = turn_about(ways)
        for place in places:
            threads, awaited = found[f"threads {place.name}"], found[f"asyncio {place.name}"]
            alone = found[f"threads {ALONE.name}"]
            what = f"{producers:,} producers, 1 KB, {place.name}"
            yield turns_row(f"{what}, threads (the store alone)", alone, threads)
            yield turns_row(f"{what}, asyncio (threads)", threads, awaited)


def shape_rows() -> Iterator[Row]:
    """What the shape of a batch costs, without a tier: 300 B and two keys a message."""
    plain = batches(400)
    wired = [[as_sent(one) for one in batch] for batch in plain]

    def put(make: Callable[[], Iterator[Sequence[Message]] | list[list[Message]]]) -> float:
        with a_store(ALONE) as store:
            return put_all(store, make())

    found = turn_about(
        {
            "appended": lambda: appends_a_second(plain),
            "put": lambda: put(lambda: plain),
            "objects": lambda: put(lambda: as_objects(wired)),
            "columns": lambda: put(lambda: as_columns(wired)),
            "mixed": lambda: put(lambda: batches(400, mixed=True)),
            "unique": lambda: put(lambda: batches(400, unique=True)),
        }
    )
    for what, beside, ours, promised in (
        ("put and dispatch, 2 keys (append only)", "appended", "put", APPENDED_PROMISED),
        ("made as columns and put (made as objects and put)", "objects", "columns", 1.0),
        ("put and dispatch, 4 queues mixed in a batch (one queue)", "put", "mixed", None),
        ("put and dispatch, UNIQ_KEY and 2 keys (2 keys)", "put", "unique", None),
    ):
        figures = found[ours]
        yield turns_row(
            f"{BATCH_MESSAGES} a batch, {what}", found[beside], figures, promised=promised
        )


def main() -> int:
    with java() as asked, ministack() as endpoint:
        if endpoint is None:
            print("puts: no rows of a bucket: ministack is not here (bench/_s3_server.py)")
        places = [POSIX, *([s3(endpoint)] if endpoint else [])]
        rows: list[Row] = []
        kinds = itertools.chain.from_iterable(kind_rows(kind, asked, places) for kind in KINDS)
        for row in itertools.chain(
            kinds, memory_rows(KINDS[-1]), producer_rows(places), shape_rows()
        ):
            print(f"{row.what}: {row.ratio_text}", flush=True)  # the whole takes minutes
            rows.append(row)
        return report("puts", rows)


if __name__ == "__main__":
    sys.exit(main())
