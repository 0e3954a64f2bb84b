"""Which messages wait, where they wait, and when they come out; the clock is an argument."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from examples.broker.commands import RefusedError
from examples.broker.delays import PAGE, Delays
from examples.broker.schedule import AHEAD_MS_MAX, DELIVER_MS, Schedule
from examples.broker.storage import Storage
from tests.examples.broker.broker_kit import until
from tests.local.store_audit import takes_what_java_writes
from tieredstore import (
    BackendUnavailableError,
    Host,
    InvalidConfigError,
    Message,
    PutResult,
    QueueKey,
    Runtime,
    StoreConfig,
    decode_message,
)
from tieredstore.codec.message import StoredMessage, encode_message
from tieredstore.codec.record import encode_properties
from tieredstore.local import LocalConfig, LocalMessageStore
from tieredstore.local.config import DelayLevels

NOW = 1_700_000_000_000
LEVELS = DelayLevels(LocalConfig().message_delay_levels)
HOST = Host(b"\x7f\x00\x00\x01", 1)


class Clock:
    now = NOW

    def __call__(self) -> int:
        return self.now


def made(**properties: str) -> Message:
    return Message(
        topic="T", queue_id=3, body=b"x", properties=properties, born_host=HOST, store_host=HOST
    )


def stored(message: Message) -> StoredMessage:
    record = encode_message(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=0,
        log_offset=0,
        born_timestamp=0,
        born_host=HOST,
        store_timestamp=0,
        store_host=HOST,
        body=message.body,
        property_bytes=encode_properties(message.properties),
    )
    return decode_message(record)


def test_what_need_not_wait_is_stored_as_it_is() -> None:
    schedule = Schedule(LEVELS, Clock())
    for message in (made(), made(DELAY="0"), made(TIMER_DELIVER_MS=str(NOW))):
        assert schedule.place(message) is message


@pytest.mark.parametrize(
    ("given", "level"), [("1", 1), ("18", 18), ("99", 18), (f"{2**31 - 1}", 18)]
)
def test_a_level_is_a_queue(given: str, level: int) -> None:
    schedule = Schedule(LEVELS, Clock())
    placed = schedule.place(made(DELAY=given, KEYS="k"))
    assert (placed.topic, placed.queue_id) == ("SCHEDULE_TOPIC_XXXX", level - 1)
    back = schedule.after(stored(placed))
    assert back is not None
    assert (back.topic, back.queue_id, dict(back.properties)) == ("T", 3, {"KEYS": "k"})


@pytest.mark.parametrize(
    ("setting", "given", "level"),
    [("1s " * 20, "19", 19), ("1s " * 20, "99", 20), ("1s 5s", "3", 2), ("", "3", 1)],
)
def test_there_are_as_many_levels_as_the_setting_says(setting: str, given: str, level: int) -> None:
    schedule = Schedule(DelayLevels(setting), Clock())
    assert schedule.place(made(DELAY=given)).queue_id == level - 1


@pytest.mark.parametrize("then", ["1s " * 20, "1s 5s"])
def test_all_levels_are_delivered_and_those_that_were_before(tmp_path: Path, then: str) -> None:
    tier = StoreConfig(store_path=str(tmp_path), provider="memory")

    def parts(setting: str) -> tuple[LocalConfig, Schedule]:
        config = LocalConfig(store_path=str(tmp_path), message_delay_levels=setting)
        return config, Schedule(DelayLevels(setting), Clock())

    config, schedule = parts("1s " * 20)
    with storage_of(config, tier) as storage:
        asyncio.run(storage.put([schedule.place(made(DELAY="20"))]))
    config, schedule = parts(then)
    with storage_of(config, tier) as storage:
        asyncio.run(storage.put([schedule.place(made(DELAY="20"))]))
        assert asyncio.run(come(storage, schedule, tmp_path / "config", 2)) == [b"x", b"x"]


@pytest.mark.parametrize("seconds", [0.3, 1, 7, 59, 61, 3_600, 10_000, AHEAD_MS_MAX / 1_000])
def test_a_moment_is_waited_for_level_by_level(seconds: float) -> None:
    clock = Clock()
    schedule = Schedule(LEVELS, clock)
    wanted = NOW + int(seconds * 1_000)
    message = schedule.place(made(TIMER_DELIVER_MS=str(wanted)))
    steps = 0
    while message.topic != "T":
        wait = LEVELS.delay_ms(message.topic, message.properties)
        assert wait is not None
        clock.now += wait
        steps += 1
        after = schedule.after(stored(message))
        assert after is not None
        message = after
    assert wanted <= clock.now < wanted + 1_000
    assert steps < 60
    assert (message.queue_id, dict(message.properties)) == (3, {DELIVER_MS: str(wanted)})


def test_a_delay_is_a_moment_from_now() -> None:
    schedule = Schedule(LEVELS, Clock())
    for name, text in (("TIMER_DELAY_SEC", "7"), ("TIMER_DELAY_MS", "7000")):
        placed = schedule.place(made(**{name: text}))
        assert placed.properties[DELIVER_MS] == str(NOW + 7_000)
        assert name not in placed.properties
        assert placed.queue_id == 1


@pytest.mark.parametrize(
    "properties",
    [
        {"DELAY": "soon"},
        {"DELAY": "-1"},
        {"TIMER_DELIVER_MS": "9" * 19},
        {"TIMER_DELIVER_MS": "9" * 9_999},
        {"TIMER_DELIVER_MS": str(NOW + AHEAD_MS_MAX + 1)},
        {"TIMER_DELAY_SEC": "5 s"},
        {"TIMER_DELAY_SEC": str(AHEAD_MS_MAX // 1_000 + 1)},
        {"TIMER_DELAY_MS": "٣"},
    ],
)
def test_a_time_that_is_none_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(RefusedError):
        Schedule(LEVELS, Clock()).place(made(**properties))


def test_what_was_taken_comes_out_whatever_the_clock_says_later() -> None:
    clock = Clock()
    schedule = Schedule(LEVELS, clock)
    placed = stored(schedule.place(made(TIMER_DELIVER_MS=str(NOW + AHEAD_MS_MAX))))
    clock.now -= 3_600_000
    back = schedule.after(placed)
    assert back is not None
    assert back.topic == "T"
    assert schedule.after(stored(made())) is None


def test_a_message_that_is_damaged_holds_up_no_other(tmp_path: Path) -> None:
    config = LocalConfig(store_path=str(tmp_path))
    tier = StoreConfig(store_path=str(tmp_path), provider="memory")
    schedule = Schedule(LEVELS, Clock())
    waiting = [
        replace(schedule.place(made(DELAY=level)), body=body)
        for level, body in (("1", b"damaged"), ("1", b"behind it"), ("2", b"another level"))
    ]
    with storage_of(config, tier) as storage:
        assert all(result.stored for result in asyncio.run(storage.put(waiting)))
    log = next((tmp_path / "commitlog").iterdir())
    with log.open("r+b") as file:
        at = file.read(4_096).index(b"damaged")
        file.seek(at)
        file.write(b"DAMAGED")

    with storage_of(config, tier) as storage:
        came = asyncio.run(come(storage, schedule, tmp_path / "config", 2))
    assert came == [b"behind it", b"another level"]


@pytest.mark.parametrize("name", ["INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "INNER_NUM"])
def test_a_message_that_only_java_could_store_comes_out(tmp_path: Path, name: str) -> None:
    config = LocalConfig(store_path=str(tmp_path))
    tier = StoreConfig(store_path=str(tmp_path), provider="memory")
    schedule = Schedule(LEVELS, Clock())
    with Runtime.threads() as runtime:
        java = LocalMessageStore(config, runtime)
        java.load()
        java.start()
        takes_what_java_writes(java)
        placed = schedule.place(made(DELAY="1", KEYS="k", **{name: "1"}))
        assert java.put_message(placed).stored
        java.shutdown()
    with storage_of(config, tier) as storage:
        assert asyncio.run(come(storage, schedule, tmp_path / "config", 1)) == [b"x"]


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """An empty one, whose delayed messages are looked at without a pause."""
    monkeypatch.setattr("examples.broker.delays.LOOK_SECONDS", 0)
    tier = StoreConfig(store_path=str(tmp_path), provider="memory")
    with storage_of(LocalConfig(store_path=str(tmp_path)), tier) as opened:
        yield opened


def test_a_queue_that_takes_no_puts_holds_up_no_other_and_nothing_comes_twice(
    tmp_path: Path, storage: Storage
) -> None:
    schedule = Schedule(LEVELS, Clock())
    looks: list[int] = []
    now = time.time_ns() // 1_000_000 + 60_000

    def clock() -> int:
        looks.append(now)
        return now

    async def deliver(storage: Storage) -> None:
        nonlocal now
        refusals = storage.tier._loaded().refusals
        refusals[QueueKey("T", 3)] = "two histories"
        waiting = [made(DELAY="1"), replace(made(DELAY="1"), topic="Other")]
        await storage.put([schedule.place(message) for message in waiting])
        running = asyncio.create_task(Delays(storage, schedule, tmp_path / "c", clock).run())
        await asyncio.wait_for(until(lambda: len(looks) > 10), 30)
        end = storage.store.max_offset
        assert (end("Other", 3), end("T", 3)) == (1, None)
        refusals.clear()
        now += 2 * 3_600_000
        await asyncio.wait_for(until(lambda: end("T", 3) == 1), 30)
        assert not running.done()
        running.cancel()
        (found,) = storage.store.get_message("T", 3, 0).messages
        assert decode_message(found.record).properties == {}

    asyncio.run(deliver(storage))


@pytest.mark.parametrize("order", [("Other", "T"), ("T", "Other")])
def test_what_was_stored_beside_a_message_that_must_wait_does_not_come_again(
    tmp_path: Path, storage: Storage, order: tuple[str, str]
) -> None:
    schedule = Schedule(LEVELS, Clock())
    looks: list[int] = []

    def clock() -> int:
        looks.append(1)
        return 2**62

    async def deliver(storage: Storage) -> None:
        refusals = storage.tier._loaded().refusals
        waiting = [replace(made(DELAY="1"), topic=topic) for topic in order]
        await storage.put([schedule.place(message) for message in waiting])
        for key in (QueueKey("T", 3), QueueKey("SCHEDULE_TOPIC_XXXX", 17)):
            refusals[key] = "two histories"
        running = asyncio.create_task(Delays(storage, schedule, tmp_path / "c", clock).run())
        await asyncio.wait_for(until(lambda: len(looks) > 10), 30)
        end = storage.store.max_offset
        assert (end("Other", 3), end("T", 3)) == (1, None)
        refusals.clear()
        await asyncio.wait_for(until(lambda: end("T", 3) == 1), 30)
        await asyncio.wait_for(until(lambda: "2" in text_of(tmp_path / "c/delayOffset.json")), 30)
        assert end("Other", 3) == 1
        running.cancel()

    asyncio.run(deliver(storage))


def test_what_was_stored_does_not_come_again_if_another_one_cannot_be_put_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: Storage
) -> None:
    schedule = Schedule(LEVELS, Clock())
    puts: list[str] = []

    async def deliver(storage: Storage) -> None:
        waiting = [replace(made(DELAY="1"), topic=topic) for topic in ("Other", "T")]
        await storage.put([schedule.place(message) for message in waiting])
        storage.tier._loaded().refusals[QueueKey("T", 3)] = "two histories"
        put = storage.put

        async def put_but_once(messages: Sequence[Message]) -> Sequence[PutResult]:
            puts.append(messages[0].topic)
            if len(puts) == 2:
                raise BackendUnavailableError("disk", "put", "not now")
            return await put(messages)

        monkeypatch.setattr(storage, "put", put_but_once)
        delays = Delays(storage, schedule, tmp_path / "c", lambda: 2**62)
        running = asyncio.create_task(delays.run())
        await asyncio.wait_for(until(lambda: len(puts) > 3), 30)
        delays.end()
        await asyncio.wait_for(running, 30)
        assert puts[:3] == ["Other", "SCHEDULE_TOPIC_XXXX", "T"]
        assert storage.store.max_offset("Other", 3) == 1

    asyncio.run(deliver(storage))


def test_a_broker_that_ends_in_the_middle_delivers_nothing_twice(tmp_path: Path) -> None:
    config = LocalConfig(store_path=str(tmp_path))
    tier = StoreConfig(store_path=str(tmp_path), provider="memory")
    schedule, count = Schedule(LEVELS, Clock()), 5 * PAGE
    kept = tmp_path / "config" / "delayOffset.json"

    async def deliver(storage: Storage, is_enough: Callable[[], bool]) -> int:
        delays = Delays(storage, schedule, kept.parent, lambda: 2**62)
        delays.load()
        running = asyncio.create_task(delays.run())
        await asyncio.wait_for(until(is_enough), 30)
        delays.end()
        await asyncio.wait_for(running, 30)
        return storage.store.max_offset("T", 3) or 0

    with storage_of(config, tier) as storage:
        asyncio.run(storage.put([schedule.place(made(DELAY="1")) for _ in range(count)]))
        assert asyncio.run(deliver(storage, lambda: bool(storage.store.max_offset("T", 3)))) < count
        assert asyncio.run(deliver(storage, lambda: str(count) in text_of(kept))) == count


def test_a_level_that_fails_holds_up_no_other_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: Storage
) -> None:
    schedule = Schedule(LEVELS, Clock())
    after, failures = schedule.after, [ValueError("a defect"), BackendUnavailableError("", "", "")]

    def fails(message: StoredMessage) -> Message | None:
        if message.queue_id == 0 and failures:
            raise failures.pop()
        return after(message)

    monkeypatch.setattr(schedule, "after", fails)
    for level in "12":
        message = replace(schedule.place(made(DELAY=level)), body=level.encode())
        asyncio.run(storage.put([message]))
    came = asyncio.run(come(storage, schedule, tmp_path / "config", 2))
    assert came == [b"2", b"1"]


def test_an_error_after_some_pages_brings_none_of_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: Storage
) -> None:
    schedule, count = Schedule(LEVELS, Clock()), 3 * PAGE
    kept = tmp_path / "config" / "delayOffset.json"
    pages: list[int] = []

    async def deliver(storage: Storage) -> None:
        await storage.put([schedule.place(made(DELAY="1")) for _ in range(count)])
        put = storage.put

        async def put_but_once(messages: Sequence[Message]) -> Sequence[PutResult]:
            pages.append(len(messages))
            if len(pages) == 2:
                raise BackendUnavailableError("disk", "put", "not now")
            return await put(messages)

        monkeypatch.setattr(storage, "put", put_but_once)
        delays = Delays(storage, schedule, kept.parent, lambda: 2**62)
        running = asyncio.create_task(delays.run())
        await asyncio.wait_for(until(lambda: str(count) in text_of(kept)), 30)
        delays.end()
        await asyncio.wait_for(running, 30)
        assert storage.store.max_offset("T", 3) == count

    asyncio.run(deliver(storage))


@pytest.mark.parametrize("count", [1, 2 * PAGE])
def test_a_clock_that_was_set_back_holds_up_no_message(
    tmp_path: Path, storage: Storage, count: int
) -> None:
    schedule = Schedule(LEVELS, Clock())

    async def deliver(storage: Storage) -> None:
        await storage.put([schedule.place(made(DELAY="1")) for _ in range(count)])
        began = time.monotonic()
        hour_ago = lambda: time.time_ns() // 1_000_000 - 3_600_000  # noqa: E731
        delays = Delays(storage, schedule, tmp_path / "config", hour_ago)
        running = asyncio.create_task(delays.run())
        end = storage.store.max_offset
        await asyncio.wait_for(until(lambda: end("T", 3) == count), 10)
        assert time.monotonic() - began >= 1
        await storage.put([schedule.place(made(DELAY="1"))])
        again = time.monotonic()
        await asyncio.wait_for(until(lambda: end("T", 3) == count + 1), 10)
        assert time.monotonic() - again >= 0.9
        delays.end()
        await asyncio.wait_for(running, 30)

    asyncio.run(deliver(storage))


@pytest.mark.parametrize("broken", [b"", b'{"offsetTable":{1:'])
def test_a_file_that_java_left_unfinished_is_read_from_its_backup(
    tmp_path: Path, broken: bytes
) -> None:
    config = LocalConfig(store_path=str(tmp_path))
    tier = StoreConfig(store_path=str(tmp_path), provider="memory")
    schedule = Schedule(LEVELS, Clock())
    kept = tmp_path / "config" / "delayOffset.json"
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(broken)
    waiting = [replace(schedule.place(made(DELAY="1")), body=body) for body in (b"a", b"b")]
    with storage_of(config, tier) as storage:
        asyncio.run(storage.put(waiting))
        with pytest.raises(InvalidConfigError, match="cannot be used"):
            Delays(storage, schedule, kept.parent, Clock()).load()
        kept.with_name("delayOffset.json.bak").write_bytes(b'{"offsetTable":{1:1}}')
        assert asyncio.run(come(storage, schedule, kept.parent, 1)) == [b"b"]


def test_a_backup_of_java_is_read_without_its_file_and_never_later(tmp_path: Path) -> None:
    config = LocalConfig(store_path=str(tmp_path))
    tier = StoreConfig(store_path=str(tmp_path), provider="memory")
    schedule = Schedule(LEVELS, Clock())
    kept = tmp_path / "config" / "delayOffset.json"
    kept.parent.mkdir(exist_ok=True)
    kept.with_name("delayOffset.json.bak").write_bytes(b'{"offsetTable":{1:1}}')
    waiting = [replace(schedule.place(made(DELAY="1")), body=body) for body in (b"a", b"b")]

    async def deliver(storage: Storage) -> None:
        await storage.put(waiting)
        delays = Delays(storage, schedule, kept.parent, lambda: 2**62)
        delays.load()
        running = asyncio.create_task(delays.run())
        await asyncio.wait_for(until(lambda: bool(storage.store.max_offset("T", 3))), 30)
        delays.end()
        await asyncio.wait_for(running, 30)
        assert storage.store.max_offset("T", 3) == 1  # not from the beginning

    with storage_of(config, tier) as storage:
        asyncio.run(deliver(storage))
        kept.write_bytes(b"")
        with pytest.raises(InvalidConfigError, match="cannot be used"):
            Delays(storage, schedule, kept.parent, Clock()).load()


def text_of(file: Path) -> str:
    return file.read_text(encoding="ascii") if file.exists() else ""


async def come(storage: Storage, schedule: Schedule, folder: Path, count: int) -> list[bytes]:
    """The bodies of the delayed messages once `count` have come out."""
    delays = Delays(storage, schedule, folder, lambda: 2**62)
    delays.load()
    running = asyncio.create_task(delays.run())
    await asyncio.wait_for(until(lambda: (storage.store.max_offset("T", 3) or 0) >= count), 30)
    running.cancel()
    page = storage.store.get_message("T", 3, 0)
    return [decode_message(found.record).body for found in page.messages]


@contextmanager
def storage_of(config: LocalConfig, tier: StoreConfig) -> Iterator[Storage]:
    storage = Storage(config, tier)
    storage.open()
    try:
        yield storage
    finally:
        storage.close()
