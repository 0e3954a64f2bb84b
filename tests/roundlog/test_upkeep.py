"""The chores of a log: few extents, few requests, nothing lost wherever they are interrupted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.every_step import every_step
from tests.providers.object_kit import StruckClient
from tests.roundlog.log_kit import BROKER, LAYOUT, Killed, KillingClient, Tier, key_of
from tieredstore.driver.runtime import InlinePool, ManualClock
from tieredstore.model.errors import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    FencedError,
    PositionMismatchError,
    SegmentCorruptError,
    TieredStoreError,
)
from tieredstore.model.values import SegmentType
from tieredstore.roundlog import upkeep as upkeep_module
from tieredstore.roundlog.draft import Draft, DraftWrite
from tieredstore.roundlog.entry import Entry, Extents, SegmentKey
from tieredstore.roundlog.frames import check_payload, crc32c, decode_tail
from tieredstore.roundlog.inspection import KINDS, damage, leftovers
from tieredstore.roundlog.layout import number_of
from tieredstore.roundlog.log import BrokerLog, _Ticket
from tieredstore.roundlog.object_calls import NONCE
from tieredstore.roundlog.state import Chunk, LogState
from tieredstore.roundlog.upkeep import (
    GRACE_MS,
    Upkeep,
    Weighed,
    seal,
    seal_stream,
    to_merge,
    weighed,
)
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.memory_objects import MemoryObjectClient

MINUTE = 60_000
HOUR = 60 * MINUTE
MIB = 1 << 20
BUSY = [key_of(f"busy-{number}") for number in range(6)]
QUIET = key_of("quiet")
QUIET_UNITS = key_of("quiet", type=SegmentType.CONSUME_QUEUE)


def requests(client: KillingClient) -> dict[str, int]:
    return dict(client.inner.requests)  # type: ignore[attr-defined]


def run(upkeep: Upkeep, steps_max: int = 1_000) -> None:
    """Do everything that is due."""
    for _ in range(steps_max):
        if not upkeep.step():
            return
    raise AssertionError("it never ends")


def write_rounds(tier: Tier, log: BrokerLog, count: int, *, size: int = 40) -> None:
    random = Random(count)
    for _ in range(count):
        keys = [QUIET, QUIET_UNITS, *random.sample(BUSY, 3)]
        tier.write(log, {key: random.randbytes(size) for key in keys})
        tier.clock.advance(MINUTE)


def levels(state: LogState) -> list[int]:
    return sorted(chunk.level for chunk in state.chunks.values())


# What is merged when


def chunk(
    sequence: int, *, live: int = 0, dead: int = 0, level: int = 0, segments: int = 1
) -> Weighed:
    """The dead bytes belong to segment 1, the live ones to `segments` others."""
    each = live // segments
    rows = [(1, 0, dead, 0, live, 0, -2, -2)]
    rows += [(2 + at, 0, each, 0, at * each, 0, -2, -2) for at in range(segments)]
    whole = Chunk(sequence, level, (f"log/{sequence}",), Extents.of([r for r in rows if r[2]]))
    (found,) = weighed([whole], np.arange(2, 2 + segments))
    assert (found.live_bytes, found.dead_bytes) == (live, dead)
    return found


def sequences(chosen: Sequence[Weighed]) -> list[int]:
    return [each.chunk.sequence for each in chosen]


def test_rounds_are_merged_when_there_are_many_or_much() -> None:
    rounds = [chunk(number, live=9) for number in range(1, 41)]
    assert to_merge(rounds[:31]) == []
    assert sequences(to_merge(rounds)) == list(range(1, 33))
    large = [chunk(number, live=20 * MIB) for number in range(1, 9)]
    assert to_merge(large[:3]) == []
    assert sequences(to_merge(large)) == [1, 2, 3]


def test_a_large_round_is_as_good_as_merged() -> None:
    large = [chunk(number, live=40 * MIB, segments=10) for number in range(1, 20)]
    assert to_merge(large[:15]) == []
    assert sequences(to_merge(large)) == list(range(1, 17))


@pytest.mark.parametrize("level", [1, 2, 5])
def test_what_was_merged_is_merged_again_while_a_segment_has_little_in_each(level: int) -> None:
    little = [chunk(number, live=70 * MIB, level=level, segments=10) for number in range(16)]
    assert to_merge(little[1:]) == []
    assert sequences(to_merge(little)) == list(range(16))
    much = [chunk(number, live=80 * MIB, level=level, segments=10) for number in range(99)]
    assert to_merge(much) == []


def test_what_is_half_dead_is_merged_for_its_dead_bytes() -> None:
    half_dead = [chunk(number, live=MIB, dead=22 * MIB, level=2) for number in range(1, 4)]
    assert to_merge(half_dead[:2]) == []
    assert sequences(to_merge(half_dead)) == [1, 2, 3]
    half_live = [chunk(number, live=22 * MIB, dead=22 * MIB, level=2) for number in range(1, 9)]
    assert to_merge(half_live) == []


def test_what_is_dead_goes_along() -> None:
    dead = chunk(1, dead=9, level=1)
    assert to_merge([dead]) == []
    rounds = [chunk(number, live=9) for number in range(2, 34)]
    assert sequences(to_merge([dead, *rounds])) == list(range(1, 34))
    assert sequences(to_merge([chunk(1, dead=64 * MIB)])) == [1]


def test_rounds_that_fill_an_object_are_merged() -> None:
    rounds = [chunk(number, live=16 * MIB) for number in range(4)]
    assert to_merge(rounds[:3]) == []
    assert sequences(to_merge(rounds)) == [0, 1, 2, 3]


def test_so_many_that_are_dead_are_one_merge() -> None:
    dead = [chunk(number, dead=9, level=1) for number in range(32)]
    assert to_merge(dead[:31]) == []
    assert sequences(to_merge(dead)) == list(range(32))


# Merging


def test_merged_bytes_lie_segment_by_segment_in_one_object_with_a_table() -> None:
    tier = Tier()
    log, _ = tier.opened()
    write_rounds(tier, log, 31)
    upkeep = Upkeep(log)
    run(upkeep)
    assert levels(log.state()) == [0] * 31
    write_rounds(tier, log, 1)
    run(upkeep)
    state = tier.check(log)
    tier.check()
    assert levels(state) == [1]
    (merged,) = state.chunks.values()
    assert len(merged.extents) == len(state.segments) == 8
    (name,) = merged.used()
    held = tier.objects.held[log.key(name)][0]
    assert told(held) == {
        (key, 0, data, merged.extents.crc[merged.extents.number == state.numbers[key]][0])
        for key, data in tier.acknowledged.items()
    }


def told(held: bytes) -> set[tuple[SegmentKey, int, bytes, int]]:
    """The table of a data object: segment, position, bytes and checksum of each extent."""
    table = decode_tail(held, len(held), name="")
    check_payload(table, held[: table.payload_bytes], name="")
    names = ("segment", "position", "length", "offset", "crc")
    rows = zip(*(table.columns[name].tolist() for name in names), strict=True)
    segments: Any = table.head["segments"]
    return {
        ((path, SegmentType(kind), base), position, held[offset : offset + length], crc)
        for segment, position, length, offset, crc in rows
        for path, kind, base in [segments[segment]]
    }


def test_a_round_that_an_entry_does_not_take_tells_what_it_is_too() -> None:
    tier = Tier()
    log, _ = tier.opened()
    content = {QUIET: bytes(9 * MIB), QUIET_UNITS: b"u" * 20, BUSY[0]: b"y" * 2 * MIB}
    tier.write(log, {QUIET: b"first"})
    tier.write(log, content)
    found: dict[SegmentKey, bytes] = {QUIET: b"first"}
    extents = set()
    for key in tier.objects.held_keys(log.key("data/")):
        extents |= told(tier.objects.held[key][0])
    for segment, position, data, crc in sorted(extents, key=lambda extent: extent[1]):
        assert position == len(found.get(segment, b""))
        assert crc32c(data) == crc
        found[segment] = found.get(segment, b"") + data
    assert found == tier.acknowledged


def test_a_merge_reads_each_object_once_and_writes_two() -> None:
    tier = Tier()
    log, client = tier.opened()
    write_rounds(tier, log, 32)
    before = requests(client)
    run(Upkeep(log))
    after = requests(client)
    assert {name: after[name] - before.get(name, 0) for name in after} == {
        "head": 1,  # for the next epoch's claim
        "get": 32,
        "put": 2,
        "list": 0,
    }


@pytest.mark.parametrize("sizes", [[300, 100, 7, 2000, 64, 64, 65], [30] * 31])
def test_long_runs_are_cut_into_extents_ranges_and_objects(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    for name in ("MERGED_BYTES", "READ_BYTES", "SPAN_BYTES", "EXTENT_BYTES", "GAP_BYTES"):
        monkeypatch.setattr(upkeep_module, name, getattr(upkeep_module, name) >> 16)
    limits = upkeep_module.EXTENT_BYTES, upkeep_module.SPAN_BYTES
    assert limits == (64, 128)
    tier = Tier()
    log, client = tier.opened()
    for size in sizes:
        write_rounds(tier, log, 1, size=size)
    lengths: list[int] = []
    get_range = client.inner.get_range

    def measured(key: str, start: int, length: int) -> bytes:
        lengths.append(length)
        return get_range(key, start, length)

    monkeypatch.setattr(client.inner, "get_range", measured)
    upkeep = Upkeep(log)
    while upkeep.step():
        tier.check(log)
    state = tier.check(log)
    tier.check()
    longest = max(int(each.extents.length.max()) for each in state.chunks.values() if each.level)
    assert longest <= max(sizes) + limits[0]
    assert max(lengths) <= max(max(sizes) + limits[0], limits[1])


def test_segments_may_be_sealed_and_deleted_while_they_are_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep_module, "MERGED_BYTES", 1000)
    tier = Tier()
    log, _ = tier.opened()
    write_rounds(tier, log, 20)
    upkeep = Upkeep(log)
    assert upkeep.step()  # an object
    assert levels(log.state()) == [0] * 20
    tier.write(log, {BUSY[0]: b"between"})
    tier.delete(log, BUSY[1])
    seal(log, [BUSY[2], QUIET], POOL)
    run(upkeep)
    assert 1 in levels(log.state())
    tier.check(log)
    tier.check()


def test_a_merge_shares_its_entry_with_nobody() -> None:
    tier = Tier()
    log, client = tier.opened()
    write_rounds(tier, log, 32)
    put = client.inner.put
    more = Draft(writes=[DraftWrite(QUIET, len(tier.acknowledged[QUIET]), b"more")])

    def put_meanwhile(key: str, *args: object, **how: object) -> object:
        if "/data/" in key:  # as if another thread began to wait
            log._waiting.append(_Ticket([more]))
        return put(key, *args, **how)  # type: ignore[arg-type]

    client.inner.put = put_meanwhile  # type: ignore[method-assign,assignment]
    run(Upkeep(log))
    assert more.error is None
    tier.acknowledged[QUIET] += b"more"
    assert levels(tier.check(log)) == [0, 1]
    tier.check()


@pytest.mark.parametrize("lands", [False, True])
def test_a_merge_without_a_reply_is_settled_before_the_next(lands: bool) -> None:
    tier = Tier()
    log, client = tier.opened()
    write_rounds(tier, log, 32)
    put = client.inner.put
    entry = log.key("log/" + f"{log.state().sequence + 1:020d}")

    def put_without_reply(key: str, *args: object, **more: object) -> object:
        if lands or key != entry:
            put(key, *args, **more)  # type: ignore[arg-type]
        raise BackendUnavailableError(key, "put", "no reply")

    upkeep = Upkeep(log)
    assert upkeep.step()
    client.inner.put = put_without_reply  # type: ignore[method-assign,assignment]
    with pytest.raises(BackendUnavailableError):
        upkeep.step()
    client.inner.put = put  # type: ignore[method-assign]
    assert levels(log.state()) == [0] * 32
    run(upkeep)
    assert levels(log.state()) == [1]
    assert len(tier.objects.held_keys(log.key("data/"))) == 1  # merged only once
    tier.check()


def test_who_is_overtaken_merges_nothing_more() -> None:
    tier = Tier()
    log, _ = tier.opened()
    write_rounds(tier, log, 32)
    upkeep = Upkeep(log)
    assert upkeep.step()
    other, _ = tier.opened()
    other.claim()
    with pytest.raises(FencedError):
        upkeep.step()
    assert not upkeep.step()
    assert not upkeep.save(entries_min=1)
    write_rounds(tier, other, 1)
    run(Upkeep(other))
    assert levels(tier.check()) == [0, 1]


def test_damaged_bytes_are_never_merged_and_hold_up_nothing_else() -> None:
    tier = Tier()
    log, _ = tier.opened()
    write_rounds(tier, log, 32)
    damaged = log.key("log/" + f"{5:020d}")
    good, facts = tier.objects.held[damaged]
    tier.objects.held[damaged] = good[:-1] + bytes([good[-1] ^ 1]), facts
    upkeep = Upkeep(log)
    with pytest.raises(SegmentCorruptError):
        run(upkeep)
    run(upkeep)
    assert levels(log.state()) == [0] * 32
    write_rounds(tier, log, 32)
    run(upkeep)
    assert levels(log.state()) == [0] * 32 + [1]
    tier.objects.held[damaged] = good, facts
    tier.check()


@pytest.mark.parametrize("error", [BackendRefusedError, BackendUnavailableError])
def test_an_object_that_cannot_be_read_holds_up_nothing_else(
    error: type[BackendError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that a rule of the bucket has moved to an archive."""
    monkeypatch.setattr(upkeep_module, "STATE_EVERY", 50)
    tier = Tier()
    log, client = tier.opened()
    write_rounds(tier, log, 32)
    archived = log.key("log/" + f"{5:020d}")
    get = client.inner.get_range

    def get_if_there(key: str, *args: int) -> bytes:
        if key == archived:
            raise error(key, "get", "it is in an archive")
        return get(key, *args)

    monkeypatch.setattr(client.inner, "get_range", get_if_there)
    upkeep = Upkeep(log)
    for _ in range(12):
        for _ in range(2):
            with suppress(error):
                run(upkeep)
        write_rounds(tier, log, 32)
        tier.clock.advance(GRACE_MS)
    assert levels(log.state()).count(1) >= 10
    assert len(tier.objects.held_keys(log.key("state/"))) == 3
    assert len(log_keys(tier, log)) < log.state().sequence - 100
    monkeypatch.setattr(client.inner, "get_range", get)
    for _ in range(2):
        run(upkeep)
    assert levels(log.state()).count(0) < 32
    tier.check()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_an_object_that_cannot_be_read_keeps_no_dead_ones(
    monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    tier = Tier()
    log, client = tier.opened()
    write_rounds(tier, log, 32)
    bad = log.key("log/" + f"{5:020d}")
    get = client.inner.get_range

    def get_others(key: str, *args: int) -> bytes:
        if key == bad and is_damaged:
            raise SegmentCorruptError(key, "damaged", position=0)
        if key == bad:
            raise BackendRefusedError(key, "get", "it is in an archive")
        return get(key, *args)

    monkeypatch.setattr(client.inner, "get_range", get_others)
    upkeep = Upkeep(log)
    for number in range(8):
        key = key_of(f"done-{number}")
        for _ in range(40):
            tier.write(log, {key: b"message"})
        seal(log, [key], InlinePool())
        if is_damaged and number == 4:
            for each in [QUIET, QUIET_UNITS, *BUSY]:
                tier.delete(log, each)  # now the damaged chunk is dead as well
        for _ in range(4):
            with suppress(BackendRefusedError, SegmentCorruptError):
                run(upkeep)
    assert len(log.state().chunks) < (40 if is_damaged else 120)
    tier.check()


# A day of a quiet queue


@pytest.mark.parametrize("every_ms", [pytest.param(30_000, marks=pytest.mark.slow), MINUTE])
def test_a_day_of_a_quiet_queue_is_few_extents_and_few_reads(every_ms: int) -> None:
    tier = Tier()
    log, client = tier.opened()
    upkeep = Upkeep(log)
    most = 0
    for _ in range(24 * HOUR // every_ms):
        tier.write(log, {QUIET: b"x" * 50, QUIET_UNITS: b"u" * 20, BUSY[0]: b"y" * 500})
        tier.clock.advance(every_ms)
        run(upkeep)
        state = log.state()
        number = state.numbers[QUIET]
        most = max(most, len(state.places(number)))
    assert most <= 64
    state = tier.check()
    assert len({place.object for place in state.places(state.numbers[QUIET])}) <= 64
    rounds = 24 * HOUR // every_ms
    merges = rounds / 32 * (1 + 1 / 16)
    counted = requests(client)
    assert counted["put"] <= rounds + 2 * merges + rounds / 240 + 10
    assert counted["head"] <= rounds + merges + 10
    assert counted["get"] <= rounds * 1.1
    assert counted["list"] <= 10
    assert counted["delete"] <= 24 * 4 + rounds / 240
    # Everything dead is deleted: left are about the newest hour, and what is live.
    tier.clock.advance(HOUR)
    run(upkeep)
    live = sum(len(data) for data in tier.acknowledged.values())
    held = sum(len(data) for data, _ in tier.objects.held.values())
    assert held < 2 * live + 3 * 256 * 3_000
    before = requests(client)
    tier.clock.advance(24 * HOUR)
    run(upkeep)
    assert requests(client) == before  # idle


# States, and what is released


def test_every_so_often_the_state_is_written_and_three_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep_module, "STATE_EVERY", 10)
    tier = Tier()
    log, _ = tier.opened()
    upkeep = Upkeep(log)
    for _ in range(65):
        write_rounds(tier, log, 1)
        run(upkeep)
    states = tier.objects.held_keys(log.key("state/"))
    assert len(states) == 3
    oldest = number_of(states[0].removeprefix(log.prefix))
    assert oldest is not None
    entries = [
        number_of(key.removeprefix(log.prefix)) for key in tier.objects.held_keys(log.key("log/"))
    ]
    needed = range(oldest + 1, log.state().sequence + 1)
    assert set(needed) <= set(entries)
    assert len(entries) < log.state().sequence  # older merged ones are deleted
    reader, client = tier.opened()
    tier.check(reader)
    newest = number_of(states[-1].removeprefix(log.prefix))
    assert newest is not None
    assert requests(client)["get"] == 1 + log.state().sequence - newest
    # A reader finds the same from each kept state.
    for state in states[:0:-1]:
        del tier.objects.held[state]
        tier.check()


def test_a_state_is_written_at_the_end_where_it_is_worth_it() -> None:
    tier = Tier()
    log, _ = tier.opened()
    write_rounds(tier, log, 20)
    upkeep = Upkeep(log)
    assert not upkeep.save(entries_min=32)
    assert upkeep.save(entries_min=16)
    assert not upkeep.save(entries_min=16)
    write_rounds(tier, log, 20)
    again, _ = tier.opened()
    again.claim()
    assert Upkeep(again).save(entries_min=16)
    assert len(tier.objects.held_keys(log.key("state/"))) == 2
    tier.check()


def test_a_state_is_written_as_soon_as_so_many_entries_lie_behind_the_last() -> None:
    tier = Tier()
    log, _ = tier.opened()
    upkeep = Upkeep(log)
    write_rounds(tier, log, 4)
    for count in (log.state().sequence, 3):
        assert not upkeep.save(entries_min=count + 1)
        assert upkeep.save(entries_min=count)
        write_rounds(tier, log, 3)


@pytest.mark.parametrize(("count", "is_released"), [(1, False), (2, False), (3, True), (4, True)])
def test_a_request_that_is_full_is_sent_before_its_time(
    count: int, is_released: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep_module, "KEYS_PER_REQUEST", 3)
    tier = Tier()
    log, _ = tier.opened()
    log.claim()
    upkeep = Upkeep(log)
    tier.clock.advance(GRACE_MS)
    now_ms = tier.clock.now_ms()
    state = log.state()
    state.dead = {"data/first": now_ms - GRACE_MS}
    assert upkeep.step()  # it is due
    state.dead = {f"data/{number}": now_ms - GRACE_MS for number in range(count)}
    assert upkeep.step() is is_released
    assert not upkeep.step()  # each only once


def test_a_job_says_of_all_that_it_has_deleted_that_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does one round, and appends nothing later."""
    monkeypatch.setattr(upkeep_module, "KEYS_PER_REQUEST", 3)
    tier = Tier()
    log, _ = tier.opened()
    log.claim()
    names = {f"data/{number}" for number in range(9)}
    log.state().dead = dict.fromkeys(names, tier.clock.now_ms())
    tier.clock.advance(GRACE_MS)
    run(Upkeep(log))
    assert not names & log.state().dead.keys()


@pytest.mark.parametrize("is_first", [False, True])
def test_dead_objects_are_deleted_when_readers_have_had_their_time(is_first: bool) -> None:
    tier = Tier()
    log, _ = tier.opened()
    upkeep = Upkeep(log)
    if not is_first:
        upkeep._released_at = tier.clock.monotonic()
    write_rounds(tier, log, 3, size=9 * MIB // 5)  # more than fits in an entry
    data = tier.objects.held_keys(log.key("data/"))
    assert data
    for key in list(tier.acknowledged):
        tier.delete(log, key)
    write_rounds(tier, log, 32)
    run(upkeep)
    assert set(data) <= set(tier.objects.held_keys(log.key("data/")))
    tier.clock.advance(GRACE_MS - 1)
    run(upkeep)
    assert set(data) <= set(tier.objects.held_keys(log.key("data/")))
    tier.clock.advance(1)
    run(upkeep)
    assert not set(data) & set(tier.objects.held_keys(log.key("data/")))
    dead = {name for name in log.state().dead if name.startswith("data/")}
    # A process that deletes for the first time says so at once: it may be a job, and end.
    assert dead == (set() if is_first else {key.removeprefix(log.prefix) for key in data})
    write_rounds(tier, log, 32)
    run(upkeep)  # the entry of the merge says so
    assert not {name for name in log.state().dead if name.startswith("data/")}
    write_rounds(tier, log, 32)
    run(upkeep)  # and no other entry says it again
    entries = [Entry.decoded(tier.objects.held[key][0], key) for key in log_keys(tier, log)]
    dropped = [name for entry in entries for name in entry.dropped if name.startswith("data/")]
    assert sorted(dropped) == [key.removeprefix(log.prefix) for key in data]
    tier.check()


def test_an_object_that_cannot_be_deleted_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep_module, "STATE_EVERY", 20)
    monkeypatch.setattr(upkeep_module, "KEYS_PER_REQUEST", 10)
    tier = Tier()
    log, client = tier.opened()
    upkeep = Upkeep(log)
    write_rounds(tier, log, 32)
    run(upkeep)
    kept = {*tier.objects.held_keys(log.key("state/")), log.key("log/" + f"{3:020d}")}
    delete = client.inner.delete_many

    def delete_most(keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        errors = dict(delete([key for key in keys if key not in kept]))
        refused = BackendRefusedError("", "delete", "it is held")
        return errors | {key: refused for key in keys if key in kept}

    monkeypatch.setattr(client.inner, "delete_many", delete_most)
    for _ in range(10):
        write_rounds(tier, log, 32)
        for _ in range(8):
            with suppress(BackendRefusedError):
                run(upkeep)
            tier.clock.advance(GRACE_MS)
    assert kept <= set(tier.objects.held)
    assert len(tier.objects.held_keys(log.key("state/"))) == 4
    assert len(log_keys(tier, log)) < 80
    assert len(log.state().dead) < 120
    monkeypatch.setattr(client.inner, "delete_many", delete)
    write_rounds(tier, log, 32)
    for _ in range(8):
        run(upkeep)
        tier.clock.advance(GRACE_MS)
    assert not kept & set(tier.objects.held)
    tier.check()


def test_many_objects_that_cannot_be_deleted_are_asked_for_only_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep_module, "STATE_EVERY", 20)
    monkeypatch.setattr(upkeep_module, "KEYS_PER_REQUEST", 10)
    tier = Tier()
    log, client = tier.opened()
    asked: list[Sequence[str]] = []

    def delete_none(keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        asked.append(keys)
        return {key: BackendRefusedError(key, "delete", "it is held") for key in keys}

    monkeypatch.setattr(client.inner, "delete_many", delete_none)
    upkeep = Upkeep(log)
    for _ in range(6):
        write_rounds(tier, log, 32)
        for _ in range(20):
            with suppress(BackendRefusedError):
                run(upkeep)
    assert len(log.state().dead) > 100
    tier.clock.advance(GRACE_MS)
    for count_max in (20, 0):
        asked.clear()
        for _ in range(20 + count_max):
            with suppress(BackendRefusedError):
                upkeep.step()
        assert len(asked) <= count_max
    tier.clock.advance(GRACE_MS)
    with pytest.raises(BackendRefusedError):
        run(upkeep)
    assert len(asked) == 1
    monkeypatch.undo()
    monkeypatch.setattr(upkeep_module, "KEYS_PER_REQUEST", 10)
    tier.clock.advance(GRACE_MS)
    held = len(tier.objects.held)
    run(upkeep)
    assert held - len(tier.objects.held) > 100  # all that are due, once one request succeeds
    tier.check()


def test_a_request_full_of_objects_that_are_held_for_ever_holds_up_none_that_was_refused_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep_module, "KEYS_PER_REQUEST", 3)
    tier = Tier()
    log, client = tier.opened()
    log.claim()
    names = [f"data/{number}" for number in range(9)]
    log.state().dead = dict.fromkeys(names, tier.clock.now_ms())
    held = {log.key(name) for name in names}
    deleted: set[str] = set()

    def delete_most(keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        deleted.update(key for key in keys if key not in held)
        return {key: BackendRefusedError(key, "delete", "held") for key in keys if key in held}

    monkeypatch.setattr(client.inner, "delete_many", delete_most)
    upkeep = Upkeep(log)
    for round_number in range(12):
        tier.clock.advance(GRACE_MS)
        for _ in range(4):
            with suppress(BackendRefusedError):
                run(upkeep)
        if not round_number:
            held = {log.key(name) for name in names[:3]}
    assert deleted == {log.key(name) for name in names[3:]}


def test_a_clock_that_is_set_back_delays_the_deletion_of_no_object_that_dies_later() -> None:
    tier = Tier()
    log, _ = tier.opened()
    upkeep = Upkeep(log)
    ahead_ms = 365 * 24 * 3_600_000
    tier.clock._start_ms += ahead_ms
    for _ in range(2):  # before the clock is set back, and after
        write_rounds(tier, log, 1, size=9 * MIB // 5)  # more than fits in an entry
        data = tier.objects.held_keys(log.key("data/"))
        for key in list(tier.acknowledged):
            tier.delete(log, key)
        write_rounds(tier, log, 32)
        run(upkeep)
        tier.clock.advance(GRACE_MS)
        run(upkeep)
        assert not set(data) & set(tier.objects.held_keys(log.key("data/")))
        tier.clock._start_ms = ManualClock()._start_ms
    tier.check()


def log_keys(tier: Tier, log: BrokerLog) -> list[str]:
    return tier.objects.held_keys(log.key("log/"))


# Sealing


POOL = InlinePool()


def sealed_key(key: SegmentKey) -> str:
    return LAYOUT.segment_key(*key)


@pytest.mark.parametrize("read_bytes", [upkeep_module.READ_BYTES, 500])
def test_sealed_segments_lie_at_rocketmqs_keys(
    monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    monkeypatch.setattr(upkeep_module, "READ_BYTES", read_bytes)
    tier = Tier()
    log, client = tier.opened()
    write_rounds(tier, log, 40)
    run(Upkeep(log))
    seal(log, [*tier.acknowledged, key_of("nobody")], POOL)
    tier.check(log)
    tier.check()
    for key, data in tier.acknowledged.items():
        assert tier.objects.held[sealed_key(key)][0] == data
    before = requests(client)
    seal(log, list(tier.acknowledged), POOL)
    assert requests(client) == before


def test_what_a_sealing_that_was_cut_off_has_put_is_found_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep_module, "READ_BYTES", 4)
    tier = Tier()
    log, _ = tier.opened()
    tier.write(log, {QUIET: b"0123456789"})
    tier.objects.put(sealed_key(QUIET), b"0123456789", {NONCE: "of another life"})
    seal(log, [QUIET], POOL)
    tier.check(log)
    assert tier.objects.held_keys(log.key("data/")) == []


def test_a_long_segment_is_sealed_as_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_module, "ONE_PUT_BYTES", 5)
    tier = Tier()
    log, _ = tier.opened()
    tier.write(log, {QUIET: b"0123456789", BUSY[0]: b"short"})
    seal(log, [QUIET, BUSY[0]], POOL)
    tier.check(log)
    tier.check()


def test_a_stream_leaves_alone_what_lies_at_its_key() -> None:
    tier = Tier()
    log, _ = tier.opened()
    tier.objects.put(sealed_key(QUIET), b"of a creation that was cut off", {})
    assert seal_stream(log, QUIET, [b"01", b"23"]) == 4
    tier.acknowledged[QUIET] = b"0123"
    tier.check(log)
    tier.check()


def test_no_more_is_sealed_together_than_memory_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_module, "MERGED_BYTES", 100)
    together: list[int] = []
    put_together = upkeep_module._put_together

    def counted(log: BrokerLog, wholes: Any, pool: Any) -> Any:
        together.append(len(wholes))
        return put_together(log, wholes, pool)

    monkeypatch.setattr(upkeep_module, "_put_together", counted)
    tier = Tier()
    log, _ = tier.opened()
    for key, size in zip(BUSY, (200, 50, 50, 1, 100, 7), strict=True):
        tier.write(log, {key: bytes(size)})
    seal(log, BUSY, POOL)
    assert together == [1, 2, 1, 1, 1]
    tier.check()


def test_many_that_were_merged_are_sealed_with_few_reads() -> None:
    tier = Tier()
    log, client = tier.opened()
    keys = [key_of(f"topic-{number}") for number in range(200)]
    for _ in range(32):
        tier.write(log, dict.fromkeys(keys, b"x" * 30))
    run(Upkeep(log))
    before = requests(client)
    seal(log, keys, POOL)
    after = requests(client)
    assert after["get"] - before["get"] == 1
    assert after["put"] - before["put"] == 200 + 1
    tier.check()


def test_what_is_sealed_is_dead_in_the_log() -> None:
    tier = Tier()
    log, _ = tier.opened()
    write_rounds(tier, log, 20, size=2000)
    seal(log, list(tier.acknowledged), POOL)
    for key in list(tier.acknowledged):
        tier.write(log, {(key[0], key[1], 1_000_000): b"next"})
    for _ in range(40):
        tier.write(log, {(QUIET[0], QUIET[1], 1_000_000): b"more"})
    upkeep = Upkeep(log)
    run(upkeep)
    state = tier.check()
    assert sum(int(each.extents.length.sum()) for each in state.chunks.values()) < 300


def test_a_segment_that_has_grown_is_not_sealed() -> None:
    tier = Tier()
    log, client = tier.opened()
    tier.write(log, {QUIET: b"some", BUSY[0]: b"other"})
    put = client.inner.put

    def put_while_growing(key: str, *args: object, **more: object) -> object:
        if key == sealed_key(QUIET):
            tier.write(log, {QUIET: b"more"})
        return put(key, *args, **more)  # type: ignore[arg-type]

    client.inner.put = put_while_growing  # type: ignore[method-assign,assignment]
    with pytest.raises(PositionMismatchError):
        seal(log, [QUIET, BUSY[0]], POOL)
    client.inner.put = put  # type: ignore[method-assign]
    state = tier.check(log)
    assert {each.key: bool(each.sealed) for each in state.segments.values()} == {
        QUIET: False,
        BUSY[0]: True,
    }
    seal(log, [QUIET], POOL)  # its key holds other bytes
    assert tier.objects.held[sealed_key(QUIET)][0] == b"some"
    sealed = log.state().segments[log.state().numbers[QUIET]].sealed
    assert sealed is not None
    assert sealed.key.startswith("data/")
    tier.check()


def test_a_key_on_which_a_delete_may_land_is_left_alone() -> None:
    tier = Tier()
    log, _ = tier.opened()
    tier.write(log, {QUIET: b"first"})
    seal(log, [QUIET], POOL)
    tier.delete(log, QUIET)
    tier.clock.advance(GRACE_MS)
    run(Upkeep(log))
    for content in (b"second", b"third"):
        assert sealed_key(QUIET) not in tier.objects.held
        tier.write(log, {QUIET: content})
        seal(log, [QUIET], POOL)
        tier.check()
        if content == b"second":
            tier.delete(log, QUIET)
    tier.delete(log, QUIET)
    log.append([Draft(dropped=[sealed_key(QUIET)])])  # its rest begins now
    tier.clock.advance(31 * 24 * HOUR)
    tier.write(log, {QUIET: b"fourth"})
    seal(log, [QUIET], POOL)
    assert tier.objects.held[sealed_key(QUIET)][0] == b"fourth"
    tier.check()


# Killed at any request


def life(tier: Tier, at: int, *, lands: bool) -> bool:
    """Write, merge, seal, save, release, until the end or the n-th request; whether it was killed.

    The request in flight counts only if it landed.
    """
    log, _ = tier.opened(at, lands=lands)
    random = Random(at)
    try:
        log.claim()
        upkeep = Upkeep(log)
        for turn in range(14):
            keys = [QUIET, *random.sample(BUSY, 2)]
            for key in keys:
                segment = log.state().segment(key)
                if segment is not None and segment.sealed is not None:
                    tier.delete(log, key)
            tier.write(log, {key: random.randbytes(50) for key in keys})
            tier.clock.advance(5 * MINUTE)
            run(upkeep)
            if turn % 5 == 4:
                seal(log, BUSY[:3], POOL)
    except Killed:
        return True
    return False


def settle(tier: Tier) -> None:
    """The last entry got no reply: the log decides whether it counts."""
    log, _ = tier.opened()
    state = log.state()
    found = {each.key: each for each in state.segments.values()}
    for key in {*tier.acknowledged, *found}:
        had = tier.acknowledged.get(key)
        if key not in found:
            assert had is not None
            assert key in tier.deleting
            del tier.acknowledged[key]
        elif had is None or found[key].size != len(had):
            tier.acknowledged[key] = (had or b"") + tier.writing[key]


def hasten(monkeypatch: pytest.MonkeyPatch, *, state_every: int) -> None:
    """Merge and save after a few rounds."""
    monkeypatch.setattr(upkeep_module, "ROUNDS_MERGED", 4)
    monkeypatch.setattr(upkeep_module, "CHUNKS_MERGED", 2)
    monkeypatch.setattr(upkeep_module, "STATE_EVERY", state_every)
    monkeypatch.setattr(upkeep_module, "MERGED_BYTES", 300)


@pytest.mark.parametrize("lands", [False, True])
def test_nothing_is_lost_wherever_the_writer_is_killed(
    monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    hasten(monkeypatch, state_every=6)
    at = 0
    while True:
        tier = Tier()
        was_killed = life(tier, at, lands=lands)
        settle(tier)
        state = tier.check()
        assert_nothing_live_is_missing(tier, state)
        assert not life(tier, -1, lands=False)
        state = tier.check()
        assert_nothing_live_is_missing(tier, state)
        if not was_killed:
            break
        at += 1
    assert at > 80


def assert_nothing_live_is_missing(tier: Tier, state: LogState) -> None:
    prefix = LAYOUT.rounds(BROKER)
    for chunk in state.chunks.values():
        for name in chunk.used():
            assert prefix + name in tier.objects.held
            assert name not in state.dead


# A request that fails, or is carried out but not answered


TROUBLED_TURNS = 10  # enough to merge twice, seal, delete what is sealed, save and release
LEFT_MAX = 3  # objects of one merge


class Troubled:
    """A writer that gets no answer to one request: it finds out what happened, and continues.

    Its life is that of a killed writer, but at the end everything dead is deleted.
    """

    def __init__(self, at: int, fault: Fault) -> None:
        self.tier, self.faults = Tier(), Faults({at: fault})
        client = StruckClient(MemoryObjectClient(self.tier.objects), self.faults)
        self.log, _ = self.tier.opened(client=client)
        self.upkeep = Upkeep(self.log)

    def live(self) -> None:
        random, tier, log = Random(1), self.tier, self.log
        for turn in range(TROUBLED_TURNS):
            keys = [QUIET, *random.sample(BUSY, 2)]
            for key in keys:
                self._delete_if_sealed(key)
            data = {key: random.randbytes(50) for key in keys}
            ends = {key: len(tier.acknowledged.get(key, b"")) + 50 for key in keys}
            self._tried(lambda data=data: tier.write(log, data), lambda ends=ends: self._ends(ends))  # type: ignore[misc]
            for key in keys:
                if len(tier.acknowledged.get(key, b"")) < ends[key]:
                    tier.acknowledged[key] = tier.acknowledged.get(key, b"") + data[key]
            tier.clock.advance(5 * MINUTE)
            self._tried(lambda: run(self.upkeep))
            if turn % 5 == 4:
                self._tried(lambda: seal(log, BUSY[:4], POOL))
        tier.clock.advance(GRACE_MS + MINUTE)
        self._tried(lambda: run(self.upkeep))

    def _delete_if_sealed(self, key: SegmentKey) -> None:
        found: list[bool] = []

        def look() -> None:
            segment = self.log.state().segment(key)
            found.append(segment is not None and segment.sealed is not None)

        self._tried(look)
        if found[-1]:
            self._tried(
                lambda: self.tier.delete(self.log, key),
                lambda: self.log.state().segment(key) is None,
            )
            self.tier.acknowledged.pop(key, None)

    def _ends(self, ends: dict[SegmentKey, int]) -> bool:
        state = self.log.state()
        found = {key: state.segment(key) for key in ends}
        return all(one is not None and one.size == ends[key] for key, one in found.items())

    def _tried(self, call: Callable[[], object], is_done: Callable[[], bool] = bool) -> None:
        for _ in range(3):  # the request may fail, and once the check of its outcome
            try:
                self.log.claim()
                self.log.settled()
                if not is_done():
                    call()
            except BackendUnavailableError:
                continue
            return
        raise AssertionError("it does not come to its end")


@pytest.mark.parametrize(
    "fault",
    [
        Fault.BEFORE,
        Fault.AFTER,
        pytest.param(Fault.HALF, marks=pytest.mark.torture),
    ],
)
def test_a_writer_that_hears_nothing_of_any_request_goes_on_and_nothing_is_lost_or_left(
    monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    hasten(monkeypatch, state_every=4)

    def live(at: int) -> Troubled:
        troubled = Troubled(at, fault)
        troubled.live()
        return troubled

    def check(troubled: Troubled, at: int) -> bool:
        tier = troubled.tier
        for log in (troubled.log, None):  # for the writer and for a new reader
            assert_nothing_live_is_missing(tier, tier.check(log))
        reader, _ = tier.opened()
        assert damage(reader) == []
        assert len(unnamed_data(tier, reader)) <= LEFT_MAX
        after, _ = tier.opened()
        after.claim()
        assert after.epoch == (reader.state().epoch or 0) + 1
        Upkeep(after).save(entries_min=1)
        assert_nothing_live_is_missing(tier, tier.check(after))
        for each in leftovers(after):
            assert each.kind in KINDS
            del tier.objects.held[each.name]
        assert unnamed_data(tier, after) == set()
        tier.check()
        return troubled.faults.steps > at

    quiet = live(-1)
    assert_all_was_done(quiet)
    assert every_step(live, check) == quiet.faults.steps


def assert_all_was_done(quiet: Troubled) -> None:
    """There are merges of two levels, sealed objects and a state, and dead objects are deleted."""
    state, held = quiet.log.state(), quiet.tier.objects
    assert max(levels(state)) >= 2
    assert any(each.sealed is not None for each in state.segments.values())
    assert held.held_keys(quiet.log.key("state/"))
    assert len(log_keys(quiet.tier, quiet.log)) < state.sequence
    assert state.rested


def unnamed_data(tier: Tier, log: BrokerLog) -> set[str]:
    named = {log.key(name) for name in log.state().names()}
    return set(tier.objects.held_keys(log.key("data/"))) - named


def test_what_was_sent_last_is_merged_without_reading_it_back() -> None:
    tier = Tier()
    log, client = tier.opened(recent_bytes=1 << 20)
    write_rounds(tier, log, upkeep_module.ROUNDS_MERGED)
    before = requests(client).get("get", 0)
    run(Upkeep(log))
    assert levels(log.state()) == [1]
    assert requests(client).get("get", 0) == before
    tier.check()


def test_what_was_merged_stays_in_memory_no_longer() -> None:
    tier = Tier()
    log, _ = tier.opened(recent_bytes=1 << 20)
    for _ in range(3):
        write_rounds(tier, log, upkeep_module.ROUNDS_MERGED)
        assert log.recent.held_bytes
        run(Upkeep(log))
        assert log.recent.held_bytes == 0
    write_rounds(tier, log, 1)
    run(Upkeep(log))
    assert log.recent.held_bytes
    tier.check()


def test_what_does_not_fit_in_memory_is_read_back() -> None:
    tier = Tier()
    log, client = tier.opened(recent_bytes=4_000)
    write_rounds(tier, log, upkeep_module.ROUNDS_MERGED)
    before = requests(client).get("get", 0)
    run(Upkeep(log))
    assert 0 < requests(client)["get"] - before < upkeep_module.ROUNDS_MERGED
    tier.check()


def test_bytes_are_joined_only_with_those_that_go_on_in_their_segment() -> None:
    rows = [(1, 0, 5), (1, 5, 5), (2, 10, 5), (2, 20, 5), (2, 25, 1)]
    number, position, length = np.array(rows, np.int64).T
    nothing = np.zeros(len(rows), np.int64)
    data = bytes(range(21))
    joined = upkeep_module._joined(
        Extents(
            number=number,
            position=position,
            length=length,
            object=nothing,
            offset=nothing,
            crc=nothing,
            begin=nothing,
            end=nothing,
        ),
        data,
        7,
    )
    found = zip(
        joined.number.tolist(), joined.position.tolist(), joined.length.tolist(), strict=True
    )
    assert list(found) == [(1, 0, 10), (2, 10, 5), (2, 20, 6)]
    assert joined.offset.tolist() == [0, 10, 15]
    assert joined.object.tolist() == [7, 7, 7]
    assert joined.crc.tolist() == [crc32c(data[:10]), crc32c(data[10:15]), crc32c(data[15:])]


@pytest.mark.parametrize(
    ("lengths", "together"),
    [([4, 6, 1], [[4, 6], [1]]), ([11, 1], [[11], [1]]), ([4, 7], [[4], [7]]), ([], [])],
)
def test_so_many_ranges_are_read_at_once_as_memory_takes(
    lengths: list[int], together: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep_module, "READ_BYTES", 10)
    spans = [upkeep_module._Span(1, 50, 50 + length, []) for length in lengths]
    found = [[each.end - each.start for each in some] for some in upkeep_module._together(spans)]
    assert found == together
