"""What is left of a tier whose log was lost: the bytes of data objects, by their tables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.roundlog.log_kit import Killed, Tier, key_of
from tests.roundlog.small import everything_small
from tieredstore.driver.metadata import PutNote
from tieredstore.driver.provider import TakenIn
from tieredstore.model.errors import FencedError
from tieredstore.model.values import Json, SegmentType
from tieredstore.roundlog import inspection, salvage, taking, upkeep
from tieredstore.roundlog import log as log_module
from tieredstore.roundlog.adopted import announcement, settle
from tieredstore.roundlog.draft import Draft, DraftWrite
from tieredstore.roundlog.entry import Sealed, SegmentKey
from tieredstore.roundlog.frames import crc32c, encode_table
from tieredstore.roundlog.log import BrokerLog
from tieredstore.roundlog.salvage import LOST, _following, _Found
from tieredstore.roundlog.upkeep import GRACE_MS, Upkeep

A, B, UNITS = key_of("a"), key_of("b"), key_of("a", type=SegmentType.CONSUME_QUEUE)
KEYS = (A, B, UNITS)
LOADED = (key_of("c"), key_of("d"))


def write(tier: Tier, log: BrokerLog, rounds: int) -> None:
    for number in range(rounds):
        tier.write(log, {key: f"{key[0]}{number};".encode() * 9 for key in KEYS})


def lose_the_log(tier: Tier) -> None:
    for name in list(tier.objects.held):
        if "/log/" in name or "/state/" in name:
            del tier.objects.held[name]


def lose_the_claims(tier: Tier) -> None:
    for name in list(tier.objects.held):
        if "/epoch/" in name:
            del tier.objects.held[name]


def adopt(tier: Tier, log: BrokerLog, key: SegmentKey) -> str:
    """Adopt an object like a load; returns the name of the object beside the log that says so."""
    log.claim()
    name, data = f"load/run/{key[0][-3]}", key[0].encode()
    log.calls.put(log.key(name), data)
    note = announcement(log, [PutNote("load", name, 1)])
    log.append([Draft(taken=[(key, Sealed(0, name, len(data), crc32c(data)))], changes=[note])])
    settle(log)
    tier.acknowledged[key] = data
    assert isinstance(note.value, list)
    return str(note.value[0])


def merged(tier: Tier) -> None:
    """Write 32 rounds that are merged, what two loads have adopted, and two rounds that are not
    merged: only these are lost with the log."""
    log, _ = tier.opened()
    write(tier, log, 32)
    for key in LOADED:
        adopt(tier, log, key)
    upkeep = Upkeep(log)
    while upkeep.step():
        pass
    found = dict(tier.acknowledged)
    write(tier, log, 2)
    tier.acknowledged = found


def test_what_was_merged_is_found_when_the_log_is_lost() -> None:
    tier = Tier()
    merged(tier)
    lose_the_log(tier)
    log, _ = tier.opened()
    taken = taking.take_in(log)
    tier.check(log)
    tier.check()
    assert taken.segment_count == 5
    assert taken.size == sum(map(len, tier.acknowledged.values()))
    assert "were not merged yet are gone" in taken.losses[-1]
    assert LOST not in log.state().tables.notes
    assert log.state().tables.notes["load"] == {"load/run/c": b"1", "load/run/d": b"1"}
    again = taking.take_in(log)  # who was told of the losses may have died with them
    assert (again.segment_count, again.losses) == (0, taken.losses)
    again.told()
    assert taking.take_in(log) == TakenIn()  # it was lost only once
    tier.write(log, {A: b"it goes on"})
    tier.check()


def test_bytes_that_follow_on_nothing_are_named() -> None:
    tier = Tier()
    log, _ = tier.opened()
    write(tier, log, 1)  # in an entry
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_module, "INLINE_BYTES_MAX", 0)
        write(tier, log, 1)  # in a data object
    lose_the_log(tier)
    taken = taking.take_in(tier.opened()[0])
    assert taken.segment_count == 0
    assert any(
        "broker-a/a/0/COMMIT_LOG/0: bytes 0 and on are gone" in loss for loss in taken.losses
    )


def test_a_damaged_object_is_named_and_the_others_are_found() -> None:
    tier = Tier()
    log, _ = tier.opened()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_module, "INLINE_BYTES_MAX", 0)
        write(tier, log, 1)
        found = dict(tier.acknowledged)
        write(tier, log, 2)
    names = tier.objects.held_keys(log.key("data/"))
    data, facts = tier.objects.held[names[1]]
    tier.objects.held[names[1]] = b"?" + data[1:], facts
    data, facts = tier.objects.held[names[2]]
    tier.objects.held[names[2]] = data[:-3] + b"???", facts
    lose_the_log(tier)
    taken = taking.take_in(tier.opened()[0])
    assert any(f"{names[1]} is damaged at byte 0" in loss for loss in taken.losses)
    assert any("a data object cannot be read" in loss for loss in taken.losses)
    assert taken.size >= len(found[A])


def test_behind_damaged_bytes_a_segment_ends_and_others_go_on() -> None:
    tier = Tier()
    log, _ = tier.opened()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_module, "INLINE_BYTES_MAX", 0)
        write(tier, log, 1)
        before = tier.acknowledged[A]
        write(tier, log, 2)
    name = tier.objects.held_keys(log.key("data/"))[1]
    data, facts = tier.objects.held[name]
    tier.objects.held[name] = b"?" + data[1:], facts
    lose_the_log(tier)
    log, _ = tier.opened()
    taken = taking.take_in(log)
    assert f"{name} is damaged at byte 0" in taken.losses
    tier.acknowledged[A] = before
    tier.check(log)
    tier.check()


def test_instead_of_damaged_bytes_those_of_another_object_are_taken() -> None:
    """Objects that were merged lie there a while longer."""
    tier = Tier()
    log, _ = tier.opened()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_module, "INLINE_BYTES_MAX", 0)
        write(tier, log, 32)
    apart = set(tier.objects.held_keys(log.key("data/")))
    upkeep = Upkeep(log)
    while upkeep.step():
        pass
    together = set(tier.objects.held_keys(log.key("data/"))) - apart
    assert len(together) == 1
    for name in together:
        data, facts = tier.objects.held[name]
        tier.objects.held[name] = b"?" + data[1:], facts
    lose_the_log(tier)
    log, _ = tier.opened()
    taken = taking.take_in(log)
    assert [f"{name} is damaged at byte 0" for name in together] == list(taken.losses[:-1])
    tier.check(log)
    tier.check()


def made_again(rounds: int = 1) -> Tier:
    """A segment was deleted, and made again in data objects of its own."""
    tier = Tier()
    log, _ = tier.opened()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_module, "INLINE_BYTES_MAX", 0)
        tier.write(log, {A: b"old" * 100, B: b"other" * 100})
        tier.delete(log, A)
        for _ in range(rounds):
            tier.write(log, {A: b"new" * 10})
    return tier


@pytest.mark.parametrize("rounds", [1, 20])
def test_a_segment_that_was_deleted_does_not_replace_the_one_made_again(rounds: int) -> None:
    """The object that has its bytes stays, for the sake of others."""
    tier = made_again(rounds)
    lose_the_log(tier)
    log, _ = tier.opened()
    taken = taking.take_in(log)
    tier.check(log)
    tier.check()
    assert len(taken.losses) == 1


def cut_off_anywhere(made: Callable[[], Tier]) -> int:
    """Salvage a lost log, cut off at each request in turn, and then again; returns how often."""
    for at in range(1_000):
        tier = made()
        lose_the_log(tier)
        log, _ = tier.opened(at, lands=bool(at % 2))
        try:
            taking.take_in(log)
        except Killed:
            taking.take_in(tier.opened()[0])
            tier.check()
        else:
            return at
    raise AssertionError("it comes to no end")


def test_after_a_crash_a_segment_made_again_is_not_continued_by_the_deleted_one() -> None:
    assert 10 < cut_off_anywhere(made_again) < 99


def test_nor_is_one_of_which_all_that_was_found_is_damaged_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tier = made_again()
    *_, newest = [key for key in tier.objects.held_keys() if "/data/" in key]
    lose_the_log(tier)

    def ended(log: BrokerLog, waiting: list[DraftWrite]) -> None:
        send(log, waiting)
        raise Killed

    send = salvage._send
    with monkeypatch.context() as patch:
        patch.setattr(salvage, "_send", ended)
        with pytest.raises(Killed):
            taking.take_in(tier.opened()[0])
    data, facts = tier.objects.held[newest]
    tier.objects.held[newest] = data[:-1] + b"?", facts
    log, _ = tier.opened()
    taken = taking.take_in(log)
    assert "it does not end in a table" in taken.losses[0]
    tier.check(log)
    tier.check()


def test_of_bytes_that_lie_in_several_objects_the_newest_are_taken() -> None:
    found = [
        _Found(position, end, name, 0, 0)
        for position, end, name in [
            (0, 5, "a"),
            (0, 9, "b"),
            (3, 9, "c"),
            (5, 12, "d"),
            (9, 12, "e"),
            (13, 20, "behind a gap"),
        ]
    ]
    assert [row.key for row in _following(found, 0)] == ["a", "b", "d"]
    assert [row.key for row in _following(found[::-1], 0)] == ["b", "e"]
    assert [row.key for row in _following(found, 12)] == []
    assert [row.key for row in _following(found, 13)] == ["behind a gap"]


@pytest.mark.parametrize(
    ("number", "offset", "length"), [(0, 0, 4), (1, 0, 4), (-1, 0, 4), (0, 4, 1), (0, 3, 2)]
)
def test_a_table_that_says_what_cannot_be_tells_nothing(
    number: int, offset: int, length: int
) -> None:
    tier = Tier()
    log, _ = tier.opened()
    data = b"data"
    row = {
        "segment": number,
        "position": 0,
        "length": length,
        "offset": offset,
        "crc": crc32c(data),
    }
    columns = {name: np.array([value], np.int64) for name, value in row.items()}
    head: dict[str, Json] = {"segments": [[A[0], A[1].value, A[2]]]}
    table = encode_table(head, columns, payload_bytes=4, payload_crc=crc32c(data))
    log.calls.put(log.key("data/0000000000-of-a-lost-log-0"), data + table)
    taken = taking.take_in(tier.opened()[0])
    tells = (number, offset, length) == (0, 0, 4)
    assert taken.size == (4 if tells else 0)
    assert any("a data object cannot be read" in loss for loss in taken.losses) is not tells


def test_a_log_that_is_there_is_left_alone() -> None:
    tier = Tier()
    merged(tier)
    log, _ = tier.opened()
    before = log.state().sequence
    assert taking.take_in(log) == TakenIn()
    assert log.state().sequence == before + 1  # the claim


def test_a_segment_of_which_a_part_was_found_goes_on_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(salvage, "APPENDED_BYTES", 1)
    monkeypatch.setattr(upkeep, "EXTENT_BYTES", 2048)
    tier = Tier()
    merged(tier)
    lose_the_log(tier)
    sent = 0
    send = salvage._send

    def send_once(log: BrokerLog, waiting: list[DraftWrite]) -> None:
        nonlocal sent
        if sent:
            raise Killed
        sent += 1
        send(log, waiting)

    with monkeypatch.context() as patch:
        patch.setattr(salvage, "_send", send_once)
        with pytest.raises(Killed):
            taking.take_in(tier.opened()[0])
    taking.take_in(tier.opened()[0])
    tier.check()


def test_a_salvage_that_is_cut_off_anywhere_begins_anew() -> None:
    def made() -> Tier:
        tier = Tier()
        merged(tier)
        return tier

    assert cut_off_anywhere(made) > 10


def test_what_is_told_of_segments_that_are_all_gone_is_a_leftover() -> None:
    tier = Tier()
    log, _ = tier.opened()
    first, second = (adopt(tier, log, key) for key in LOADED)
    assert inspection.leftovers(log) == []
    tier.delete(log, LOADED[0])
    assert [each.name for each in inspection.leftovers(log)] == [log.key(first)]
    tier.delete(log, LOADED[1])
    assert [each.name for each in inspection.leftovers(log)] == [log.key(first)]
    assert log.key(second) in tier.objects.held


def test_a_lost_log_of_loads_alone_is_damage() -> None:
    tier = Tier()
    log, _ = tier.opened()
    adopt(tier, log, LOADED[0])
    assert inspection.damage(log) == []
    lose_the_log(tier)
    (found,) = inspection.damage(tier.opened()[0])
    assert "no entry is left that names them" in found.detail


def test_what_a_fenced_writer_leaves_beside_a_log_without_a_segment_is_of_no_lost_log() -> None:
    tier = Tier()
    former, _ = tier.opened()
    former.claim()
    log, _ = tier.opened()
    log.claim()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_module, "INLINE_BYTES_MAX", 0)
        with pytest.raises(FencedError):
            write(tier, former, 1)
    assert any("/data/" in name for name in tier.objects.held)
    assert inspection.damage(log) == []
    taken = taking.take_in(tier.opened()[0])
    assert (taken.segment_count, taken.losses) == (0, ())


def test_nor_when_the_entries_of_his_time_have_given_way_to_states() -> None:
    tier = Tier()
    log, _ = tier.opened()
    log.claim()
    log.calls.put(log.key("data/0000000001-of-a-fenced-writer"), b"it")
    log, _ = tier.opened()
    log.claim()
    with everything_small():
        upkeep = Upkeep(log)
        for number in range(30):
            log.append([Draft(changes=[PutNote("note", "of a log without a segment", number)])])
            while upkeep.step():
                pass
            tier.clock.advance(GRACE_MS)
    assert not any(name.endswith("/log/00000000000000000001") for name in tier.objects.held)
    assert inspection.damage(log) == []
    taken = taking.take_in(tier.opened()[0])
    assert (taken.segment_count, taken.losses) == (0, ())


def test_a_first_entry_that_is_damaged_does_not_say_when_its_log_began() -> None:
    tier = Tier()
    log, _ = tier.opened()
    write(tier, log, 2)
    first = log.key("log/00000000000000000001")
    assert salvage.begun_by(tier.opened()[0], 7) == 1
    data, facts = tier.objects.held[first]
    tier.objects.held[first] = bytes(len(data)), facts
    assert salvage.begun_by(tier.opened()[0], 7) == 1  # according to the second one


def test_an_object_that_was_deleted_or_damaged_is_not_adopted_again() -> None:
    tier = Tier()
    log, _ = tier.opened()
    names = [adopt(tier, log, key) for key in LOADED]
    data, facts = tier.objects.held[log.key(names[0])]
    tier.objects.held[log.key(names[0])] = data[:-1] + bytes([data[-1] ^ 1]), facts
    del tier.objects.held[log.key("load/run/d")]
    lose_the_log(tier)
    taken = taking.take_in(tier.opened()[0])
    assert taken.segment_count == 0
    assert any("the segments of a load are not known" in loss for loss in taken.losses)


def test_what_was_merged_is_found_when_the_claims_are_lost_as_well() -> None:
    """As in a bucket whose copy ended early: its data objects were first."""
    tier = Tier()
    merged(tier)
    lose_the_log(tier)
    lose_the_claims(tier)
    log, _ = tier.opened()
    assert "were not merged yet are gone" in taking.take_in(log).losses[-1]
    tier.check(log)
    tier.check()


def test_one_that_joins_a_log_whose_claims_are_lost_takes_no_epoch_of_theirs() -> None:
    tier = Tier()
    merged(tier)
    lose_the_log(tier)
    lose_the_claims(tier)
    logs = [tier.opened(joins=True)[0] for _ in range(2)]
    assert [log.claim() for log in logs] == [2, 2]


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("lands", [False, True])
def test_data_of_the_first_process_without_an_entry_is_of_no_lost_log(
    *, joins: bool, lands: bool
) -> None:
    """A broker that starts there was refused, as if the bucket had lost its log."""
    everything = {A: b"a" * 20_000_000}  # too much for an entry
    is_killed, at = True, 0
    while is_killed:
        tier = Tier()
        log, _ = tier.opened(at, lands=lands, joins=joins)
        try:
            tier.write(log, everything)
            is_killed = False
        except Killed:
            at += 1
        following, _ = tier.opened()
        following.claim()
        assert not inspection.damage(following), f"killed at request {at}"
    assert at > 5
