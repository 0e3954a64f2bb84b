"""Queues rebuilt from the log: light queues, and records that one flipped bit made untrue."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from struct import Struct

import pytest

from tests.codec.golden_files import contents
from tests.local.store_audit import (
    Ack,
    check_acks,
    crash,
    filled,
    opened,
    overwrite,
    parts_of,
    put_acked,
    takes_what_java_writes,
)
from tieredstore.codec.record import tags_code
from tieredstore.driver.runtime import Runtime
from tieredstore.local.recovery import decode_checkpoint
from tieredstore.local.redispatch import light_places
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import GetStatus, QueueKey
from tieredstore.testing.message_store_contract import NamedTagFilter, TagFilter
from tieredstore.testing.samples import TOPIC, a_message

UNIT = Struct(">qiq")
FAR = 1 << 40
A, B = "%LMQ%a", "%LMQ%b"


def light(names: str, offsets: str) -> dict[str, str]:
    return {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets}


def put(store: LocalMessageStore, number: int, more: dict[str, str], topic: str = TOPIC) -> bytes:
    """Put a message; return the unit that Java gives it in every queue."""
    properties = {"UNIQ_KEY": f"U{number}", "TAGS": f"tag-{number % 3}", **more}
    takes_what_java_writes(store)
    result = store.put_message(a_message(number, topic=topic, properties=properties))
    return UNIT.pack(result.log_offset, result.size, tags_code(properties["TAGS"]))


def a_store(root: Path) -> dict[str, bytes]:
    """A closed store of Java's: 90 messages, every third also in `a`, every fifth in `b`."""
    store = opened(root)
    units = {A: b"", B: b""}
    for number in range(90):
        queues = [name for name, each in ((A, 3), (B, 5)) if number % each == 0]
        offsets = ",".join(str(len(units[name]) // 20) for name in queues)
        unit = put(store, number, light(",".join(queues), offsets) if queues else {})
        for name in queues:
            units[name] += unit
        if number % 20 == 0:
            store.flush()
    store.shutdown()
    for name, data in units.items():
        folder = root / "consumequeue" / name / "0"
        folder.mkdir(parents=True)
        for start in range(0, len(data), 400):
            (folder / f"{start:020}").write_bytes(data[start : start + 400].ljust(400, b"\0"))
    opened(root).shutdown()  # now the table of queue ends has them
    return units


def files_of(root: Path) -> dict[str, bytes]:
    return contents(root / "consumequeue")


def gone(*names: str) -> Callable[[Path], None]:
    def remove(root: Path) -> None:
        for name in names:
            path = root / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


LOSSES: dict[str, Callable[[Path], None]] = {
    "nothing": lambda root: None,
    "one light queue": gone(f"consumequeue/{A}"),
    "all light queues": gone(f"consumequeue/{A}", f"consumequeue/{B}"),
    "all queues": gone("consumequeue"),
    "all queues and the table": gone("consumequeue", "config"),
    "one light queue and the table": gone(f"consumequeue/{B}", "config/tieredstore-queues.json"),
    "the first file": gone(f"consumequeue/{A}/0/{0:020}"),
    "the last file": gone(f"consumequeue/{A}/0/{400:020}"),
}


@pytest.mark.parametrize("abort", [False, True], ids=["clean", "crashed"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_light_queue_is_made_again_byte_for_byte(
    tmp_path: Path, loss: str, abort: bool
) -> None:
    units = a_store(tmp_path)
    before = files_of(tmp_path)
    LOSSES[loss](tmp_path)
    if abort:
        (tmp_path / "abort").write_text("1")
    store = opened(tmp_path)
    assert files_of(tmp_path) == before
    for name, data in units.items():
        assert (store.min_offset(name, 0), store.max_offset(name, 0)) == (0, len(data) // 20)
        got = store.get_message(name, 0, 2, count_max=1)
        assert got.messages[0].log_offset == UNIT.unpack_from(data, 40)[0]


@pytest.mark.parametrize("abort", [False, True], ids=["clean", "crashed"])
def test_a_plain_message_of_a_topic_with_batch_queues_goes_into_no_plain_queue(
    tmp_path: Path, abort: bool
) -> None:
    """Java does not load a store that has both kinds of queues for one topic."""
    store = opened(tmp_path)
    put(store, 0, {}, "Other")
    put(store, 1, {}, "Batches")
    store.shutdown()
    (tmp_path / "batchconsumequeue").mkdir()
    (tmp_path / "consumequeue/Batches").rename(tmp_path / "batchconsumequeue/Batches")
    (tmp_path / "config/tieredstore-queues.json").unlink()
    shutil.rmtree(tmp_path / "index")
    if abort:
        (tmp_path / "abort").write_text("1")
    store = opened(tmp_path)
    assert store.queues() == [QueueKey("Other", 0)]
    assert not (tmp_path / "consumequeue/Batches").exists()
    assert store.recovery is not None
    assert store.recovery.damages == ()
    assert len(store.query_message("Batches", "U1").messages) == 1
    store.shutdown()
    assert (tmp_path / "abort").exists() is abort  # only Java's recovery adds batch units


def test_the_checkpoint_says_no_more_of_batch_queues_than_before_the_crash(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, 0, {})
    store.shutdown()
    checkpoint = decode_checkpoint((tmp_path / "checkpoint").read_bytes())
    (tmp_path / "batchconsumequeue/Batches/0").mkdir(parents=True)
    (tmp_path / "abort").write_text("1")
    store = opened(tmp_path, Runtime.inline(now_ms=checkpoint.log_timestamp + 60_000))
    put(store, 1, {})
    store.shutdown()
    said = decode_checkpoint((tmp_path / "checkpoint").read_bytes())
    assert said.queue_timestamp == checkpoint.queue_timestamp
    assert said.log_timestamp > checkpoint.log_timestamp


def test_units_that_a_crash_left_half_written_are_made_again(tmp_path: Path) -> None:
    """The tags code of one lay on a page that did not reach the disk."""
    units = a_store(tmp_path)
    before = files_of(tmp_path)
    table = tmp_path / "config" / "tieredstore-queues.json"
    document = json.loads(table.read_bytes())
    document["logEnd"] = UNIT.unpack_from(units[A], 500)[0]  # all was on disk up to there
    table.write_text(json.dumps(document))
    (tmp_path / "checkpoint").unlink()
    file = tmp_path / "consumequeue" / A / "0" / f"{400:020}"
    data = bytearray(file.read_bytes())
    assert data[192:200] != bytes(8)
    data[192:200] = bytes(8)
    file.write_bytes(data)
    (tmp_path / "abort").write_text("1")
    opened(tmp_path).shutdown()
    assert files_of(tmp_path) == before


def test_a_light_queue_of_which_the_log_lost_the_start_begins_later(tmp_path: Path) -> None:
    units = a_store(tmp_path)
    store = opened(tmp_path)
    for number in range(90, 300):
        put(store, number, {})
    assert parts_of(store).log.queue.delete_before(32_768)
    put(store, 300, light(A, str(len(units[A]) // 20)))
    store.shutdown()
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "config" / "tieredstore-queues.json").unlink()
    store = opened(tmp_path)
    end = len(units[A]) // 20 + 1
    assert (store.min_offset(A, 0), store.max_offset(A, 0)) == (end - 1, end)


def rebuilt(root: Path) -> LocalMessageStore:
    shutil.rmtree(root / "consumequeue")
    (root / "abort").write_text("1")
    return opened(root)


@pytest.mark.parametrize(
    "properties",
    [
        *(light(A, ""), light(A, "1,2"), light(f"{A},{B}", "3"), light(A, "-1"), light(A, "x")),
        *(light(A, "1.0"), light(A, " 1"), light(A, "٣"), light(A, "9" * 30), light("a", "0")),
        *(light(A, str(FAR)), light("%LMQ%a/b", "0"), light("%LMQ%../x", "0"), light("", "0")),
        *(light("%LMQ%" + "x" * 300, "0"), {"INNER_MULTI_DISPATCH": A}, light("", "")),
        {"INNER_MULTI_QUEUE_OFFSET": "0"},
    ],
    ids=repr,
)
def test_properties_that_cannot_be_meant_are_passed_over(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    store = opened(tmp_path)
    for number in range(3):
        put(store, number, properties)
    store.shutdown()
    store = rebuilt(tmp_path)
    assert list(store.queues()) == [QueueKey(TOPIC, 0)]
    assert store.max_offset(TOPIC, 0) == 3


def test_of_several_names_the_legal_ones_count(tmp_path: Path) -> None:
    store = opened(tmp_path)
    unit = put(store, 0, light(f"%LMQ%x/y,{A},plain,{B},{A}", "0,0,0,no,0"))
    store.shutdown()
    store = rebuilt(tmp_path)
    assert list(store.queues()) == [QueueKey(A, 0), QueueKey(TOPIC, 0)]
    assert files_of(tmp_path)[f"{A}/0/{0:020}"] == unit.ljust(400, b"\0")


@pytest.mark.parametrize("names", [f"{A},", f"{A},,", f"{A},{B},"])
def test_commas_behind_the_last_name_count_for_nothing(tmp_path: Path, names: str) -> None:
    """Java writes no offsets for the empty names behind them."""
    store = opened(tmp_path)
    count = len(names.rstrip(",").split(","))
    unit = put(store, 0, light(names, ",".join("0" * count)))
    store.shutdown()
    store = rebuilt(tmp_path)
    for name in (A, B)[:count]:
        assert files_of(tmp_path)[f"{name}/0/{0:020}"] == unit.ljust(400, b"\0")
        assert store.get_message(name, 0, 0).status is GetStatus.FOUND


@pytest.mark.parametrize("topic", ["%RETRY%group", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX"])
def test_topics_of_the_system_have_no_light_queues(topic: str) -> None:
    assert light_places(topic, light(A, "0"), log_offset=0) == []
    assert light_places("Other", light(A, "0"), log_offset=0) == [(A, 0)]


def test_a_number_that_the_log_has_no_room_for_is_none() -> None:
    assert light_places(TOPIC, light(A, "10"), log_offset=910) == [(A, 10)]
    assert light_places(TOPIC, light(A, "11"), log_offset=910) == []


def test_a_number_far_ahead_of_its_queue_is_left_out(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(40):
        put(store, number, {})
    units = [put(store, 40, light(A, "0")), put(store, 41, light(A, "30"))]
    units.append(put(store, 42, light(A, "1")))
    store.shutdown()
    store = rebuilt(tmp_path)
    assert (store.min_offset(A, 0), store.max_offset(A, 0)) == (0, 2)
    assert files_of(tmp_path)[f"{A}/0/{0:020}"] == (units[0] + units[2]).ljust(400, b"\0")


def test_a_message_whose_place_is_missing_leaves_the_others_their_numbers(tmp_path: Path) -> None:
    store = opened(tmp_path)
    wanted = {
        number: UNIT.unpack(put(store, number, light(A, str(number))))[0] for number in range(30)
    }
    lost = wanted.pop(11)
    file = parts_of(store).log.queue.find(lost)
    assert file is not None
    file.write_at(lost + 100, b"XX")
    store.shutdown()
    store = rebuilt(tmp_path)
    for number, log_offset in wanted.items():
        got = store.get_message(A, 0, number, count_max=1)
        assert got.messages[0].log_offset == log_offset
    assert store.max_offset(A, 0) == 30


def test_a_damaged_record_is_no_place_for_the_many_that_lost_files_had(tmp_path: Path) -> None:
    store = opened(tmp_path)
    takes_what_java_writes(store)
    file_bytes = parts_of(store).log.queue.file_bytes
    kept = store.put_message(a_message(0, topic="many"))
    damaged = store.put_message(a_message(1))
    while store.put_message(a_message(2)).log_offset < file_bytes:
        pass
    newest = store.put_message(a_message(3, topic="many"))
    while newest.log_offset < 3 * file_bytes:
        newest = store.put_message(a_message(3, topic="many"))
    assert newest.queue_offset > damaged.size
    first, *lost, _ = parts_of(store).log.queue.files
    first.write_at(damaged.log_offset + 100, b"XX")
    store.shutdown()
    for file in lost:
        Path(file.path).unlink()
    store = rebuilt(tmp_path)
    for put in (kept, newest):
        [got] = store.get_message("many", 0, put.queue_offset, count_max=1).messages
        assert got.log_offset == put.log_offset
    assert store.max_offset("many", 0) == newest.queue_offset + 1


def test_a_light_queue_may_be_a_topic_too(tmp_path: Path) -> None:
    """Its messages of both kinds come back in the order of the log."""
    store = opened(tmp_path)
    units = b""
    for number in range(12):
        if number % 2:
            store._next_offsets[A, 0] = number
            units += put(store, number, {}, topic=A)
        else:
            unit = put(store, number, light(A, str(number)))
            parts_of(store).queues.put(A, 0, number, *([one] for one in UNIT.unpack(unit)))
            units += unit
    store.shutdown()
    assert files_of(tmp_path)[f"{A}/0/{0:020}"] == units.ljust(400, b"\0")
    store = rebuilt(tmp_path)
    assert files_of(tmp_path)[f"{A}/0/{0:020}"] == units.ljust(400, b"\0")


def test_a_deleted_light_queue_stays_deleted(tmp_path: Path) -> None:
    a_store(tmp_path)
    store = opened(tmp_path)
    assert store.delete_topics([A]) == 1
    crash(store)
    store = rebuilt(tmp_path)
    assert store.max_offset(A, 0) is None
    assert store.max_offset(B, 0) == 18


def test_a_light_queue_keeps_the_messages_of_a_topic_that_was_deleted(tmp_path: Path) -> None:
    units = a_store(tmp_path)
    store = opened(tmp_path)
    store.delete_topics([TOPIC])
    store.shutdown()
    store = rebuilt(tmp_path)
    assert list(store.queues()) == [QueueKey(A, 0), QueueKey(B, 0)]
    assert store.max_offset(A, 0) == len(units[A]) // 20
    assert store.get_message(TOPIC, 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE


QUEUE_ID, QUEUE_OFFSET, STORE_TIME = 12, 20, 56
COUNT = 300
DAY_MS = 86_400_000


def becomes(root: Path, ack: Ack, spot: int, data: bytes) -> None:
    path = root / "commitlog" / f"{ack.log_offset // 32_768 * 32_768:020d}"
    overwrite(path, ack.log_offset % 32_768 + spot, data)


def without_queues(root: Path) -> LocalMessageStore:
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    (root / "abort").touch()
    return opened(root)


def check_around(store: LocalMessageStore, acks: list[Ack], bad: int) -> None:
    ack = acks[bad]
    assert store.recovery is not None
    assert [damage.log_offset for damage in store.recovery.damages] == [ack.log_offset]
    check_acks(store, [other for number, other in enumerate(acks) if number != bad])
    assert not store.query_message(ack.topic, ack.unique_key).messages
    for queue_id in (0, 1):
        put = store.put_message(a_message(999, queue_id=queue_id))
        assert put.queue_offset == len(acks) // 2
    with pytest.raises(SegmentCorruptError):
        store.get_message(ack.topic, ack.queue_id, ack.queue_offset)


def number(value: int, width: int = 8) -> bytes:
    return value.to_bytes(width, signed=True)


SPOTS = {
    "a queue below zero": (QUEUE_ID, number(-(2**31), 4)),
    "a queue offset below zero": (QUEUE_OFFSET, number(-(2**63) + 50)),
    "a queue offset that no file has": (QUEUE_OFFSET, number(1 << 60)),
    "a queue offset that the log has no room for": (QUEUE_OFFSET, number(50 + (1 << 20))),
    "the place of the next": (QUEUE_OFFSET, number(51)),
    "a place far behind": (QUEUE_OFFSET, number(50 + 128)),
    "the place of one long before": (QUEUE_OFFSET, number(18)),
}


@pytest.mark.parametrize(("spot", "data"), SPOTS.values(), ids=SPOTS)
def test_a_message_with_an_untrue_place_costs_no_other_its_own(
    tmp_path: Path, spot: int, data: bytes
) -> None:
    acks = filled(tmp_path, COUNT)
    bad = 100  # the fiftieth of queue 0
    assert acks[bad].queue_offset == 50
    becomes(tmp_path, acks[bad], spot, data)
    store = without_queues(tmp_path)
    check_around(store, acks, bad)
    store.shutdown()
    again = opened(tmp_path)
    check_acks(again, [ack for row, ack in enumerate(acks) if row != bad])


@pytest.mark.parametrize("first", [b"/", b"\xd4"], ids=["a slash", "no UTF-8"])
def test_a_topic_that_is_no_directory_is_damage(tmp_path: Path, first: bytes) -> None:
    acks = filled(tmp_path, COUNT)
    bad = acks[100]
    store = opened(tmp_path)
    message = store.message_at(bad.log_offset)
    store.shutdown()
    assert message is not None
    at = message.record.index(TOPIC.encode())
    becomes(tmp_path, bad, at, first)
    store = without_queues(tmp_path)
    check_around(store, acks, 100)
    assert {key.topic for key in store.queues()} == {TOPIC}


@pytest.mark.parametrize("tag_filter", [TagFilter, NamedTagFilter])
@pytest.mark.parametrize("bad", [100, COUNT - 2], ids=["between others", "the last one"])
def test_no_filter_by_tags_passes_by_a_damaged_message(
    tmp_path: Path, bad: int, tag_filter: Callable[[str], TagFilter]
) -> None:
    """Nobody knows which tags it had."""
    acks = filled(tmp_path, COUNT)
    ack = acks[bad]
    store = opened(tmp_path)
    message = store.message_at(ack.log_offset)
    store.shutdown()
    assert message is not None
    becomes(tmp_path, ack, 90, bytes([message.record[90] ^ 1]))
    store = without_queues(tmp_path)
    before = store.get_message(
        TOPIC, 0, ack.queue_offset - 1, message_filter=tag_filter("no message's")
    )
    assert before.next_offset == ack.queue_offset
    with pytest.raises(SegmentCorruptError):
        store.get_message(TOPIC, 0, ack.queue_offset, message_filter=tag_filter("no message's"))
    store.shutdown()
    becomes(tmp_path, ack, 90, message.record[90:91])  # the record is whole again
    store = opened(tmp_path)
    assert store.get_message(TOPIC, 0, ack.queue_offset, count_max=1).messages
    page = store.get_message(TOPIC, 0, ack.queue_offset, message_filter=tag_filter("no message's"))
    assert not page.messages


def test_a_message_that_claims_a_place_in_another_queue_does_not_get_it(tmp_path: Path) -> None:
    acks = filled(tmp_path, COUNT)
    store = opened(tmp_path)
    for extra in range(20):  # queue 0 runs ahead of queue 1
        acks.append(put_acked(store, COUNT + extra, queue_id=0))
    for extra in range(20, 26):
        acks.append(put_acked(store, COUNT + extra, queue_id=extra % 2))
    store.shutdown()
    bad = COUNT + 20
    assert acks[bad].queue_offset == 170
    becomes(tmp_path, acks[bad], QUEUE_ID, number(1, 4))
    store = without_queues(tmp_path)
    assert store.recovery is not None
    assert [one.log_offset for one in store.recovery.damages] == [acks[bad].log_offset]
    check_acks(store, [ack for row, ack in enumerate(acks) if row != bad])
    with pytest.raises(SegmentCorruptError):
        store.get_message(TOPIC, 0, 170)


def test_the_first_message_of_a_queue_does_not_move_the_others_out_of_it(tmp_path: Path) -> None:
    acks = filled(tmp_path, COUNT)
    store = opened(tmp_path)
    late = [put_acked(store, COUNT + extra, topic="Late", queue_id=0) for extra in range(10)]
    store.shutdown()
    becomes(tmp_path, late[0], QUEUE_OFFSET, number(256))
    store = without_queues(tmp_path)
    check_acks(store, [*acks, *late[1:]])
    assert store.get_message("Late", 0, 0).status is GetStatus.OFFSET_TOO_SMALL
    assert store.put_message(a_message(999, topic="Late")).queue_offset == 10


def test_records_that_are_only_missing_are_no_reason_to_doubt_the_next(tmp_path: Path) -> None:
    acks = filled(tmp_path, COUNT)
    for bad in (100, 102, 104):
        becomes(tmp_path, acks[bad], 120, b"?")
    store = without_queues(tmp_path)
    assert store.recovery is not None
    offsets = [damage.log_offset for damage in store.recovery.damages]
    assert offsets == [acks[bad].log_offset for bad in (100, 102, 104)]
    check_acks(store, [ack for row, ack in enumerate(acks) if row not in (100, 102, 104)])


def test_a_store_time_far_ahead_is_reported_and_not_given_to_later_messages(
    tmp_path: Path,
) -> None:
    acks = filled(tmp_path, 20)
    store = opened(tmp_path)
    time = store.store_time(TOPIC, 1, 8)
    store.shutdown()
    assert time is not None
    becomes(tmp_path, acks[-1], STORE_TIME, number(time + (1 << 62)))
    for _ in range(2):
        store = opened(tmp_path)
        assert store.recovery is not None
        assert [one.log_offset for one in store.recovery.damages] == [acks[-1].log_offset]
        assert "store time" in store.recovery.damages[0].reason
        check_acks(store, acks)
        store.shutdown()
    store = opened(tmp_path)
    assert store.put_message(a_message(20)).store_timestamp - time < DAY_MS


def test_a_clock_that_is_far_behind_the_whole_log_is_no_damage(tmp_path: Path) -> None:
    acks = filled(tmp_path, 20)
    ahead = 1_700_000_000_000 + 1_000 * DAY_MS
    for ack in acks:
        becomes(tmp_path, ack, STORE_TIME, number(ahead))
    store = opened(tmp_path)
    assert store.recovery is not None
    assert store.recovery.damages == ()
    assert store.put_message(a_message(20)).store_timestamp == ahead
