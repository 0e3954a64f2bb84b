"""Light message queues that have gone: they are built anew from what the records say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from struct import Struct

import pytest

from tests.codec.golden_files import contents
from tests.local.store_audit import crash, opened, parts_of, takes_what_java_writes
from tieredstore.codec.record import tags_code
from tieredstore.local.redispatch import light_places
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.values import GetStatus, QueueKey
from tieredstore.testing.samples import TOPIC, a_message

UNIT = Struct(">qiq")
FAR = 1 << 40
A, B = "%LMQ%a", "%LMQ%b"


def light(names: str, offsets: str) -> dict[str, str]:
    return {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets}


def put(store: LocalMessageStore, number: int, more: dict[str, str], topic: str = TOPIC) -> bytes:
    """The unit that Java gives this message in every queue."""
    properties = {"UNIQ_KEY": f"U{number}", "TAGS": f"tag-{number % 3}", **more}
    takes_what_java_writes(store)
    result = store.put_message(a_message(number, topic=topic, properties=properties))
    return UNIT.pack(result.log_offset, result.size, tags_code(properties["TAGS"]))


def a_store(root: Path) -> dict[str, bytes]:
    """As Java leaves it: 90 messages, each third also in `a`, each fifth in `b`; closed."""
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
    opened(root).shutdown()  # the table of the queues' ends knows them now
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
    store.shutdown()


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
    store.shutdown()


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
    store.shutdown()


def test_of_several_names_the_legal_ones_count(tmp_path: Path) -> None:
    store = opened(tmp_path)
    unit = put(store, 0, light(f"%LMQ%x/y,{A},plain,{B},{A}", "0,0,0,no,0"))
    store.shutdown()
    store = rebuilt(tmp_path)
    assert list(store.queues()) == [QueueKey(A, 0), QueueKey(TOPIC, 0)]
    assert files_of(tmp_path)[f"{A}/0/{0:020}"] == unit.ljust(400, b"\0")
    store.shutdown()


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
    store.shutdown()


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
    store.shutdown()


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
    store.shutdown()


def test_a_deleted_light_queue_stays_deleted(tmp_path: Path) -> None:
    a_store(tmp_path)
    store = opened(tmp_path)
    assert store.delete_topics([A]) == 1
    crash(store)
    store = rebuilt(tmp_path)
    assert store.max_offset(A, 0) is None
    assert store.max_offset(B, 0) == 18
    store.shutdown()


def test_a_light_queue_keeps_the_messages_of_a_topic_that_was_deleted(tmp_path: Path) -> None:
    units = a_store(tmp_path)
    store = opened(tmp_path)
    store.delete_topics([TOPIC])
    store.shutdown()
    store = rebuilt(tmp_path)
    assert list(store.queues()) == [QueueKey(A, 0), QueueKey(B, 0)]
    assert store.max_offset(A, 0) == len(units[A]) // 20
    assert store.get_message(TOPIC, 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE
    store.shutdown()
