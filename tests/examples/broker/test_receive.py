"""Messages are popped from a store, retried and buried, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from examples.broker.commands import RefusedError
from examples.broker.receive import Delivery, Receives, Retries, Wanted
from examples.broker.storage import Storage
from examples.broker.tables import READ, Topics, topic_of
from tests.examples.broker.broker_kit import until
from tests.local.store_audit import takes_what_java_writes
from tieredstore import Host, InvalidArgumentError, Message, StoreConfig, TagsFilter, decode_message
from tieredstore.local import LocalConfig
from tieredstore.local.encoder import NEVER_SENT

TOPIC, GROUP = "Orders", "readers"
HOST = Host(b"\x7f\x00\x00\x01", 1)
Body = Callable[["Bench"], Awaitable[None]]


class Bench:
    """A store and the consumers of one group."""

    def __init__(self, folder: Path, **settings: object) -> None:
        path = str(folder / "store")
        self.storage = Storage(
            LocalConfig(store_path=path), StoreConfig(store_path=path, provider="memory")
        )
        self.storage.open()
        self.topics = Topics(self.storage)
        self.topics.set(topic_of(TOPIC, 2))
        self.offsets = self.storage.tier.consumer_offsets
        self.retries = Retries(attempts_max=3, first_seconds=0.0)
        self.settings = settings
        self.receives = self.new_life()

    def new_life(self) -> Receives:
        self.receives = Receives(
            self.storage,
            self.topics,
            self.offsets,
            retries=self.retries,
            **self.settings,  # type: ignore[arg-type]
        )
        return self.receives

    async def put(self, *bodies: str, queue_id: int = 0, tags: str = "") -> None:
        results = await self.storage.put(
            [
                Message(
                    topic=TOPIC,
                    queue_id=queue_id,
                    body=body.encode(),
                    properties={"TAGS": tags, "UNIQ_KEY": f"id-{body}"} if tags else {},
                    born_host=HOST,
                    store_host=HOST,
                )
                for body in bodies
            ]
        )
        assert all(result.stored for result in results)

    async def take(
        self, count: int = 32, *, seconds: float = 100, queue_ids: tuple[int, ...] = (0,),
        wait_seconds: float = 0, **others: object,
    ) -> list[Delivery]:  # fmt: skip
        return await self.receives.receive(
            Wanted(
                group=GROUP,
                topic=TOPIC,
                queue_ids=queue_ids,
                count=count,
                seconds=seconds,
                wait_seconds=wait_seconds,
                **others,  # type: ignore[arg-type]
            )
        )

    def ack(self, *deliveries: Delivery) -> list[bool]:
        return [self.receives.ack(GROUP, TOPIC, delivery.handle) for delivery in deliveries]

    def at(self, queue_id: int = 0) -> int | None:
        return self.offsets.get(GROUP, TOPIC, queue_id)

    async def until_one_waits(self) -> None:
        await until(lambda: self.receives.waiting > 0)

    async def dead(self) -> list[bytes]:
        found = await self.storage.get(
            f"%DLQ%{GROUP}", 0, 0, count_max=32, message_filter=None, group=""
        )
        return [decode_message(message.record).body for message in found.messages]


def with_store(folder: Path, body: Body, **settings: object) -> None:
    async def run() -> None:
        bench = Bench(folder, **settings)
        try:
            await asyncio.wait_for(body(bench), 60)
        finally:
            await asyncio.to_thread(bench.storage.close)

    asyncio.run(run())


def texts(deliveries: list[Delivery]) -> list[str]:
    return [decode_message(each.message.record).body.decode() for each in deliveries]


def test_what_is_left_out_hides_nothing_behind_it(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        for _ in range(40):
            await bench.put(*["no"] * 500, tags="no")
        await bench.put("yes", tags="yes")
        found = await bench.take(chosen=TagsFilter("yes"))
        assert texts(found) == ["yes"]
        assert bench.ack(*found) == [True]
        assert bench.at() == 20_001

    with_store(tmp_path, body)


def test_each_message_goes_to_one_consumer_and_the_group_goes_on(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.put("a", "b", "c", "d")
        first, second = await bench.take(2), await bench.take(2)
        assert (texts(first), texts(second)) == (["a", "b"], ["c", "d"])
        assert await bench.take() == []
        assert (bench.receives.out, bench.at()) == (4, None)
        assert bench.ack(*second) == [True, True]
        assert bench.at() is None
        assert bench.ack(*first, *first) == [True, True, False, False]
        assert (bench.receives.out, bench.at()) == (0, 4)
        assert bench.receives._queues == {}

    with_store(tmp_path, body)


def test_consumers_at_once_get_different_messages(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.put(*(f"{number}" for number in range(100)))
        found = await asyncio.gather(*(bench.take(7) for _ in range(20)))
        numbers = [int(text) for each in found for text in texts(each)]
        assert sorted(numbers) == list(range(100))

    with_store(tmp_path, body)


def test_a_group_that_begins_twice_at_once_goes_on_where_the_first_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(bench: Bench) -> None:
        await bench.put("a", "b")
        call, asked, late = bench.storage.call, asyncio.Event(), asyncio.Event()

        async def call_late(*arguments: Any, **named: Any) -> Any:
            found = await call(*arguments, **named)
            asked.set()
            await late.wait()
            return found

        monkeypatch.setattr(bench.storage, "call", call_late)
        second = asyncio.create_task(bench.take())
        await asked.wait()
        monkeypatch.undo()
        assert bench.ack(*await bench.take()) == [True, True]
        late.set()
        assert texts(await second) == []
        assert bench.at() == 2

    with_store(tmp_path, body)


def test_after_a_crash_what_was_not_done_comes_again(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.put("a", "b", "c", "d")
        a, b, c, d = await bench.take()
        bench.ack(a, b, d)
        bench.new_life()
        assert bench.ack(c) == [False]
        assert texts(await bench.take()) == ["c", "d"]

    with_store(tmp_path, body)


def test_a_message_whose_time_is_over_comes_again_until_it_is_dead(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.put("good", "bad")
        for attempt in (1, 2, 3):
            found = await bench.take(seconds=0)
            assert [each.attempt for each in found] == [attempt] * len(found)
            assert "bad" in texts(found)
            bench.ack(*(each for each in found if texts([each]) == ["good"]))
        assert await bench.dead() == []
        await bench.put("later")
        assert texts(await bench.take()) == ["later"]
        assert await bench.dead() == [b"bad"]
        assert bench.at() == 2

    with_store(tmp_path, body)


def test_what_cannot_be_buried_holds_up_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(bench: Bench) -> None:
        bench.topics.set(topic_of(f"%DLQ%{GROUP}", 1, perm=READ))
        await bench.put("bad")
        for _ in range(3):
            assert texts(await bench.take(seconds=0)) == ["bad"]
        await bench.put("good")
        good = await bench.take()
        assert texts(good) == ["good"]
        assert "cannot be buried" in caplog.text
        bench.ack(*good)
        assert (bench.at(), bench.receives.out) == (None, 1)
        bench.topics.set(topic_of(f"%DLQ%{GROUP}", 1))
        assert await bench.take() == []
        assert (bench.at(), await bench.dead()) == (2, [b"bad"])

    with_store(tmp_path, body)


def test_dead_letters_without_a_queue_to_write_hold_up_no_other(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        bench.topics.set(topic_of(f"%DLQ%{GROUP}", 1, 0))
        bench.retries = Retries(attempts_max=1, first_seconds=3_600)
        bench.new_life()
        await bench.put("a", "b")
        assert texts(await bench.take(1, seconds=0)) == ["a"]
        assert texts(await bench.take()) == ["b"]

    with_store(tmp_path, body)


def test_a_consumer_buries_a_message(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.put("a", "b", tags="t")
        a, _ = await bench.take()
        assert await bench.receives.bury(GROUP, TOPIC, a.handle)
        assert not await bench.receives.bury(GROUP, TOPIC, a.handle)
        assert (await bench.dead(), bench.at()) == ([b"a"], 1)
        found = await bench.storage.get(
            f"%DLQ%{GROUP}", 0, 0, count_max=1, message_filter=None, group=""
        )
        properties = decode_message(found.messages[0].record).properties
        assert properties["DLQ_ORIGIN_TOPIC"] == TOPIC
        assert properties["DLQ_ORIGIN_MESSAGE_ID"] == properties["UNIQ_KEY"] == "id-a"

    with_store(tmp_path, body)


def test_a_message_of_a_light_queue_is_buried(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        light = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "0", "KEYS": "k"}
        takes_what_java_writes(bench.storage.tier._next)  # type: ignore[arg-type]
        await bench.storage.put([Message(topic=TOPIC, queue_id=0, body=b"a", properties=light)])
        bench.storage.tier._next._encoder.never_sent = NEVER_SENT  # type: ignore[attr-defined]
        (a,) = await bench.take()
        assert await bench.receives.bury(GROUP, TOPIC, a.handle)
        assert (await bench.dead(), bench.at()) == ([b"a"], 1)

    with_store(tmp_path, body)


def test_another_time_makes_another_handle(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.put("a")
        (a,) = await bench.take()
        handle = bench.receives.change(GROUP, TOPIC, a.handle, 0)
        assert handle not in (None, a.handle)
        assert bench.receives.change(GROUP, TOPIC, a.handle, 0) is None
        (again,) = await bench.take()
        assert again.attempt == 2
        assert bench.receives.ack(GROUP, TOPIC, handle or "") is False
        assert bench.ack(again) == [True]

    with_store(tmp_path, body)


@pytest.mark.parametrize("handle", ["", "x", f"0.0.{'0' * 32}", f"1.0.{'0' * 32}", "0.0." * 999])
def test_what_is_no_handle_does_nothing(tmp_path: Path, handle: str) -> None:
    async def body(bench: Bench) -> None:
        await bench.put("a")
        (a,) = await bench.take()
        assert not bench.receives.ack(GROUP, TOPIC, handle)
        assert not bench.receives.ack("others", TOPIC, a.handle)
        assert not bench.receives.ack(GROUP, "Other", a.handle)
        assert bench.receives.change(GROUP, TOPIC, handle, 1) is None
        assert not await bench.receives.bury(GROUP, TOPIC, handle)
        assert bench.receives.out == 1

    with_store(tmp_path, body)


def test_tags_choose_and_the_others_are_passed_by(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        for number in range(200):
            await bench.put(f"{number}", tags="odd" if number % 2 else "even")
        found = await bench.take(20, chosen=TagsFilter("odd"), wait_seconds=60)
        assert texts(found) == [f"{number}" for number in range(1, 41, 2)]
        bench.ack(*found)
        assert bench.at() == 40

    with_store(tmp_path, body)


def test_who_waits_is_woken_by_a_message_in_any_queue(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        waits = asyncio.create_task(bench.take(queue_ids=(0, 1), wait_seconds=60))
        await bench.until_one_waits()
        await bench.put("here", queue_id=1)
        assert texts(await waits) == ["here"]

    with_store(tmp_path, body)


def test_who_waits_is_woken_by_a_message_that_failed_elsewhere(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.put("a")
        (a,) = await bench.take()
        waits = asyncio.create_task(bench.take(wait_seconds=60))
        await bench.until_one_waits()
        bench.receives.change(GROUP, TOPIC, a.handle, 0)
        assert texts(await waits) == ["a"]

    with_store(tmp_path, body)


def test_who_waits_is_answered_when_the_broker_ends(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        waits = asyncio.create_task(bench.take(wait_seconds=60))
        await bench.until_one_waits()
        bench.receives.end()
        assert await waits == []
        assert await bench.take(wait_seconds=60) == []

    with_store(tmp_path, body)


def test_a_group_in_order_gets_nothing_more_before_all_is_done(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.put("a", "b", "c")
        first = await bench.take(2, attempt_id="one")
        assert await bench.take(2, attempt_id="two") == []
        again = await bench.take(2, attempt_id="one")
        assert [(each.attempt, *texts([each])) for each in again] == [(1, "a"), (1, "b")]
        assert bench.ack(*first) == [False, False]
        waits = asyncio.create_task(bench.take(wait_seconds=60))
        await bench.until_one_waits()
        assert bench.ack(*again) == [True, True]
        assert texts(await waits) == ["c"]

    with_store(tmp_path, body, is_fifo=lambda group: group == GROUP)


def test_what_did_not_arrive_is_seen_at_once(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.put("a", "b")
        found = await bench.take()
        bench.receives.take_back(GROUP, TOPIC, found)
        assert [each.attempt for each in await bench.take()] == [1, 1]

    with_store(tmp_path, body)


def test_a_consumer_that_lives_keeps_its_messages_and_a_failed_one_waits(tmp_path: Path) -> None:
    alive = {"client"}

    async def body(bench: Bench) -> None:
        bench.retries = Retries(first_seconds=1_000)
        bench.new_life()
        await bench.put("a", "b")
        a, _ = await bench.take(seconds=0, owner="client")
        assert await bench.take() == []
        assert bench.receives.change(GROUP, TOPIC, a.handle, 0) is not None
        assert await bench.take() == []

    with_store(tmp_path, body, is_alive=alive.__contains__)


def test_a_queue_that_begins_later_is_read_from_there(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await bench.put("a", "b")
        bench.offsets.commit(GROUP, TOPIC, 0, 1)
        (b,) = await bench.take()
        assert texts([b]) == ["b"]
        bench.offsets.commit("ahead", TOPIC, 0, 77)
        assert (
            await bench.receives.receive(Wanted(group="ahead", topic=TOPIC, queue_ids=(0,))) == []
        )
        await bench.put("c")
        found = await bench.receives.receive(Wanted(group="ahead", topic=TOPIC, queue_ids=(0,)))
        assert texts(found) == ["c"]

    with_store(tmp_path, body)


def test_all_that_is_out_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.broker.receive.OUT_MAX", 3)
    monkeypatch.setattr("examples.broker.receive.WAITING_MAX", 0)

    async def body(bench: Bench) -> None:
        await bench.put("a", "b", "c")
        found = await bench.take()
        with pytest.raises(RefusedError, match="3 messages of 1 queues are out"):
            await bench.take(queue_ids=(1,))
        bench.ack(*found)
        with pytest.raises(RefusedError, match="0 consumers wait already"):
            await bench.take(queue_ids=(1,), wait_seconds=60)

    with_store(tmp_path, body)


def test_progress_that_cannot_be_recorded_leaves_no_place_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(bench: Bench) -> None:
        await bench.put("a")
        (first,) = await bench.take()
        monkeypatch.setattr("tieredstore.access.tables.OFFSETS_MAX", 0)
        with pytest.raises(InvalidArgumentError, match="already"):
            bench.ack(first)
        assert not bench.receives._queues

    with_store(tmp_path, body)
