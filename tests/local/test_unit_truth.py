"""One flipped bit, in a queue unit or elsewhere: no message is lost, none is silently wrong."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.local.bit_flips import Flips
from tests.local.store_audit import (
    EXPIRING,
    check_acks,
    check_agreement,
    crash,
    expire_one_file,
    filled,
    flip_bits,
    opened,
    parts_of,
    takes_what_java_writes,
)
from tieredstore.codec.queue_unit import EXTENSION_ADDRESS_MAX
from tieredstore.codec.record import (
    LIGHT_OFFSETS,
    LIGHT_QUEUES,
    QUEUE_OFFSET_POSITION,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from tieredstore.local.reader import LocalReader
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.testing.samples import TOPIC, a_message

FIRST, LIGHT, OTHER = "First", "%LMQ%a", "%LMQ%b"
PER_FILE, COUNT = 20, 150  # units; the queue has 75 of these messages
WHERE = {"offset": 4, "low offset": 7, "offset's sign": 0, "size": 10, "size's sign": 8}


def flip(root: Path, unit: int, at: int, bit: int = 0x88) -> Path:
    path = root / "consumequeue" / TOPIC / "0" / f"{unit // PER_FILE * PER_FILE * 20:020d}"
    flip_bits(path, unit % PER_FILE * 20 + at, bit)
    return path


def as_java_left_it(root: Path) -> None:
    shutil.rmtree(root / "config")


@pytest.mark.parametrize("abort", [False, True], ids=["clean", "crashed"])
@pytest.mark.parametrize("table", [True, False], ids=["with table", "without"])
@pytest.mark.parametrize("at", WHERE.values(), ids=WHERE)
@pytest.mark.slow
@pytest.mark.parametrize("unit", [33, 60, 74])
def test_what_the_flip_hid_is_made_again_from_the_log(
    tmp_path: Path, unit: int, at: int, table: bool, abort: bool
) -> None:
    acks = filled(tmp_path, COUNT)
    whole = {
        path: path.read_bytes()
        for path in (tmp_path / "consumequeue").rglob("0*")
        if path.is_file()
    }
    flip(tmp_path, unit, at, 0x80 if "sign" in at_name(at) else 0x08)
    if not table:
        as_java_left_it(tmp_path)
    if abort:
        (tmp_path / "abort").touch()
    store = opened(tmp_path)
    assert store.max_offset(TOPIC, 0) == COUNT // 2
    check_acks(store, acks)
    assert check_agreement(store) == COUNT
    assert {path: path.read_bytes() for path in whole} == whole
    assert store.put_message(a_message(999)).queue_offset == COUNT // 2


def at_name(at: int) -> str:
    return next(name for name, place in WHERE.items() if place == at)


@pytest.mark.parametrize("unit", [40, 55, 74])
def test_the_report_names_the_unit_that_was_wrong(
    tmp_path: Path, unit: int, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, COUNT)
    path = flip(tmp_path, unit, 4, 8)
    store = opened(tmp_path)
    assert store.recovery is not None
    (damage,) = store.recovery.damages
    assert damage.mended
    assert (damage.path, damage.position) == (str(path), unit % PER_FILE * 20)
    assert store.damages == (damage,)
    assert f"unit of message {unit} does not fit the log" in caplog.text
    store.shutdown()
    assert not opened_again(tmp_path).damages


def opened_again(root: Path) -> LocalMessageStore:
    store = opened(root)
    store.shutdown()
    return store


def test_a_repair_that_was_cut_short_is_taken_up_by_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acks = filled(tmp_path, COUNT)
    flip(tmp_path, 41, 4, 8)
    as_java_left_it(tmp_path)

    def lights_out(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tieredstore.local.dispatch.Dispatch.put", lights_out)
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path)
    store = opened(tmp_path)
    check_acks(store, acks)


@pytest.mark.parametrize("is_open", [False, True], ids=["between two lives", "in one"])
@pytest.mark.parametrize("bit", ["highest", "sign"])
def test_a_flip_lets_no_message_expire_before_its_time(
    tmp_path: Path, bit: str, is_open: bool
) -> None:
    """A unit that names a place below the log looks like one whose record has expired."""
    store = opened(tmp_path, **EXPIRING)
    for number in range(50):
        store.put_message(a_message(number, body_bytes=400))
    assert expire_one_file(store) == 1
    first = store.min_offset(TOPIC, 0) or 0
    assert 0 < first < PER_FILE
    if not is_open:
        store.shutdown()
    path = tmp_path / "consumequeue" / TOPIC / "0" / f"{0:020d}"
    named = int.from_bytes(path.read_bytes()[first * 20 :][:8])
    flipped = 63 if bit == "sign" else named.bit_length() - 1
    flip_bits(path, first * 20 + 7 - flipped // 8, 1 << flipped % 8)
    if not is_open:
        store = opened(tmp_path, **EXPIRING)
    store.put_message(a_message(50, body_bytes=400))
    parts_of(store).retention.step()
    assert store.min_offset(TOPIC, 0) == first
    assert store.read_range(TOPIC, 0, first, count_max=1, bytes_max=1).first_offset == first
    assert int.from_bytes(path.read_bytes()[first * 20 :][:8]) == named
    flip_bits(path, first * 20 + 7 - flipped // 8, 1 << flipped % 8)
    assert expire_one_file(store) == 1
    assert (store.min_offset(TOPIC, 0) or 0) > first


def test_nor_does_a_flip_of_the_first_message_of_the_log(tmp_path: Path) -> None:
    store = opened(tmp_path, queue_file_bytes=PER_FILE * 20)
    for number in range(10):
        store.put_message(a_message(number))
    path = flip(tmp_path, 0, 0, 0x80)
    parts_of(store).retention.step()
    assert store.min_offset(TOPIC, 0) == 0
    assert store.get_message(TOPIC, 0, 0).messages[0].queue_offset == 0
    assert path.read_bytes()[:8] == bytes(8)


@pytest.mark.parametrize(("unit", "at", "bit"), [(0, 10, 128), (6, 6, 16), (10, 10, 8), (12, 6, 4)])
def test_the_unit_of_an_expired_message_neither_hides_nor_damages_what_is_behind_it(
    tmp_path: Path, unit: int, at: int, bit: int
) -> None:
    """The queue ends at a unit that reaches into the next one. The units behind it are rebuilt from
    the log, except those of expired messages, which the log no longer has."""
    store = opened(tmp_path, **EXPIRING)
    for number in range(30):
        store.put_message(a_message(number, body_bytes=400))
    assert expire_one_file(store) == 1
    first = store.min_offset(TOPIC, 0) or 0
    assert unit < first < PER_FILE
    store.shutdown()
    flip(tmp_path, unit, at, bit)
    store = opened(tmp_path, **EXPIRING)
    assert (store.min_offset(TOPIC, 0), store.max_offset(TOPIC, 0)) == (first, 30)
    for offset in range(first, 30):
        assert store.get_message(TOPIC, 0, offset).messages[0].queue_offset == offset
    assert store.put_message(a_message(30)).queue_offset == 30


def test_a_unit_that_names_another_message_is_made_again_when_it_is_read(tmp_path: Path) -> None:
    store = opened(tmp_path, queue_file_bytes=4_000)
    puts = store.put_messages([a_message(0, body_bytes=41) for _ in range(8)])
    assert len({put.size for put in puts}) == 1
    parts = store._loaded()
    queue = parts.queues.queue(TOPIC, 0)
    assert queue is not None
    other = queue.unit(6)
    readers: list[Callable[[], object]] = [
        lambda: store.get_message(TOPIC, 0, 3, count_max=1).messages[0].queue_offset,
        lambda: store.read_range(TOPIC, 0, 3, count_max=1, bytes_max=9).first_offset,
        lambda: 3 if store.store_time(TOPIC, 0, 3) else None,
    ]
    for read in readers:
        queue.mend(3, other)
        assert read() == 3
        assert queue.unit(3).log_offset == puts[3].log_offset
    assert {damage.mended for damage in store.damages} == {True}


def test_other_tags_in_a_unit_than_in_its_message_are_noticed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put = store.put_message(a_message(1, properties={"TAGS": "a"}))
    queue = store._loaded().queues.queue(TOPIC, 0)
    assert queue is not None
    unit = queue.unit(0)
    queue.mend(0, unit._replace(tags_code=unit.tags_code ^ 4))
    (got,) = store.get_message(TOPIC, 0, put.queue_offset).messages
    assert got.tags_code == unit.tags_code
    assert "tags code" in store.damages[0].reason


def test_a_damaged_last_record_keeps_its_number_though_the_process_then_dies(
    tmp_path: Path,
) -> None:
    acks = filled(tmp_path, COUNT)
    last = acks[-1]
    path = tmp_path / "commitlog" / f"{last.log_offset // 32_768 * 32_768:020d}"
    flip_bits(path, last.log_offset % 32_768 + 3, 4)  # its size
    for _ in range(3):
        store = opened(tmp_path)
        assert store.recovery is not None
        assert last.log_offset in [damage.log_offset for damage in store.recovery.damages]
        with pytest.raises(SegmentCorruptError):
            store.get_message(TOPIC, 1, last.queue_offset)
        crash(store)
    store = opened(tmp_path)
    put = store.put_message(a_message(999, queue_id=1))
    assert put.queue_offset == last.queue_offset + 1
    check_acks(store, acks[:-1])
    store.shutdown()
    store = opened(tmp_path)
    assert store.get_message(TOPIC, 1, put.queue_offset).messages
    check_acks(store, acks[:-1])


@pytest.mark.parametrize("spot", [0, 3, 5, 9, 31, 87, 95])
def test_nor_does_it_in_a_store_that_java_ended(tmp_path: Path, spot: int) -> None:
    acks = filled(tmp_path, COUNT)
    last = acks[-1]
    as_java_left_it(tmp_path)
    path = tmp_path / "commitlog" / f"{last.log_offset // 32_768 * 32_768:020d}"
    flip_bits(path, last.log_offset % 32_768 + spot, 4)
    with LocalReader.open(tmp_path, **SIZES) as reader:
        facts = reader.log_facts()
        assert facts.torn is None
        assert facts.damages
    store = opened(tmp_path)
    with pytest.raises(SegmentCorruptError):
        store.get_message(TOPIC, 1, last.queue_offset)
    assert store.put_message(a_message(999, queue_id=1)).queue_offset == last.queue_offset + 1


SIZES = {
    "commit_log_file_bytes": 32_768,
    "queue_file_bytes": 400,
    "index_slot_count": 101,
    "index_item_count": 150,
}


def test_a_checkpoint_that_claims_too_much_leaves_no_hole_in_the_log(tmp_path: Path) -> None:
    acks = filled(tmp_path, COUNT)
    path = tmp_path / "checkpoint"
    flip_bits(path, 38, 0x10)  # the log offset up to which the log was on disk
    store = opened(tmp_path)
    assert not store.damages
    check_acks(store, acks)
    put = store.put_message(a_message(999))
    last = acks[-1]
    assert put.log_offset < last.log_offset + 2 * put.size


def test_a_table_that_the_log_proves_wrong_keeps_no_numbers(tmp_path: Path) -> None:
    """The log has since been cut and rewritten, as RocketMQ does it: our table is out of date."""
    filled(tmp_path, COUNT)
    kept = (tmp_path / "config" / "tieredstore-queues.json").read_bytes()
    shutil.rmtree(tmp_path)
    store = opened(tmp_path)
    for number in range(COUNT + 50):
        store.put_message(a_message(number, queue_id=0 if number < 20 else 1, body_bytes=333))
    store.shutdown()
    (tmp_path / "config" / "tieredstore-queues.json").write_bytes(kept)
    store = opened(tmp_path)
    assert (store.max_offset(TOPIC, 0), store.max_offset(TOPIC, 1)) == (20, COUNT + 30)


@pytest.mark.slow
def test_no_flipped_bit_gives_a_wrong_answer_without_a_word(tmp_path: Path) -> None:
    check(tmp_path, seed=1, count=150)


@pytest.mark.torture
def test_nor_do_two_thousand_others(tmp_path: Path) -> None:
    check(tmp_path, seed=random.SystemRandom().randrange(1 << 30), count=2_000)


def check(root: Path, *, seed: int, count: int) -> None:
    flips = Flips(root)
    wrong = {flip: told for flip in flips.some(seed, count) if (told := flips.wrong(flip))}
    assert not wrong, f"seed {seed}: {len(wrong)} of {count}"


def test_a_unit_is_not_made_again_from_a_message_of_a_deleted_topic(tmp_path: Path) -> None:
    """The topic was recreated, so the log holds two messages with this queue offset."""
    store = opened(tmp_path)
    store.put_message(a_message(1))
    store.delete_topics([TOPIC])
    put = store.put_message(a_message(2))
    assert put.queue_offset == 0
    queue = store._loaded().queues.queue(TOPIC, 0)
    assert queue is not None
    queue.mend(0, queue.unit(0)._replace(message_bytes=7))
    (got,) = store.get_message(TOPIC, 0, 0).messages
    assert got.log_offset == put.log_offset


@pytest.mark.parametrize("sys_flag", [TRANSACTION_PREPARED, TRANSACTION_ROLLBACK])
def test_a_unit_is_not_made_again_from_a_message_without_a_place_in_its_queue(
    tmp_path: Path, sys_flag: int
) -> None:
    """A prepared message has the queue offset 0 in its record, as the first of the queue has."""
    store = opened(tmp_path)
    store.put_message(replace(a_message(1), sys_flag=sys_flag))
    put = store.put_message(a_message(2))
    assert put.queue_offset == 0
    queue = store._loaded().queues.queue(TOPIC, 0)
    assert queue is not None
    queue.mend(0, queue.unit(0)._replace(message_bytes=7))
    (got,) = store.get_message(TOPIC, 0, 0).messages
    assert got.log_offset == put.log_offset


def test_a_run_ends_before_a_unit_with_other_tags_and_has_no_addresses_of_java(
    tmp_path: Path,
) -> None:
    """In a tier, an address in Java's extended queue is useless: readers would skip the message."""
    store = opened(tmp_path, queue_file_bytes=4_000)
    store.put_messages([a_message(number) for number in range(50)])
    queue = store._loaded().queues.queue(TOPIC, 0)
    assert queue is not None
    units = [queue.unit(number) for number in range(50)]
    queue.mend(10, units[10]._replace(tags_code=EXTENSION_ADDRESS_MAX))
    queue.mend(40, units[40]._replace(tags_code=units[40].tags_code ^ 4))
    run = store.read_range(TOPIC, 0, 0, count_max=99, bytes_max=10**9)
    assert (run.end_offset, run.tags_codes[10]) == (40, units[10].tags_code)
    few = store.read_range(TOPIC, 0, 9, count_max=3, bytes_max=10**9)
    assert few.tags_codes.tolist() == [unit.tags_code for unit in units[9:12]]
    run = store.read_range(TOPIC, 0, 40, count_max=99, bytes_max=10**9)
    assert (run.end_offset, run.tags_codes[0]) == (50, units[40].tags_code)
    (got,) = store.get_message(TOPIC, 0, 10, count_max=1).messages
    assert got.tags_code == EXTENSION_ADDRESS_MAX
    assert len(store.damages) == 1


@pytest.mark.parametrize("told", [0, 7, 9, 10, 11, 2**40])
def test_a_record_that_lies_about_its_number_is_not_found_by_its_place(
    tmp_path: Path, told: int
) -> None:
    """No checksum covers the queue offset. This is the ninth of ten messages."""
    store = opened(tmp_path)
    puts = store.put_messages([a_message(number) for number in range(10)])
    file = parts_of(store).log.queue.files[0]
    file.write_at(puts[8].log_offset + QUEUE_OFFSET_POSITION, told.to_bytes(8, "big"))
    with pytest.raises(SegmentCorruptError, match=f"says it is message {told}"):
        store.message_at(puts[8].log_offset)
    assert store.message_at(puts[7].log_offset)


def light_queues(root: Path, count: int) -> LocalMessageStore:
    """Each message is also in the light queue `LIGHT`, and all but the first one in `OTHER`."""
    store = takes_what_java_writes(opened(root, queue_file_bytes=4_000))
    for number in range(count):
        more = {LIGHT_QUEUES: f"{LIGHT},{OTHER}", LIGHT_OFFSETS: f"{number},{number + 1}"}
        if not number:
            more = {LIGHT_QUEUES: LIGHT, LIGHT_OFFSETS: "0"}
        store.put_message(a_message(number, topic=FIRST, properties=more, queue_id=3))
    store.shutdown()
    shutil.rmtree(root / "consumequeue")  # the next opening rebuilds it with the light queues
    return opened(root, queue_file_bytes=4_000)


def test_a_run_of_a_light_queue_has_all_of_its_messages(tmp_path: Path) -> None:
    store = light_queues(tmp_path, 50)
    for offset in (0, 7):
        run = store.read_range(LIGHT, 0, offset, count_max=99, bytes_max=10**9)
        assert (run.first_offset, run.end_offset) == (offset, 50)


def test_a_unit_of_a_light_queue_that_names_another_message_is_made_again(tmp_path: Path) -> None:
    store = light_queues(tmp_path, 60)
    queue = store._loaded().queues.queue(LIGHT, 0)
    assert queue is not None
    right = queue.unit(20)
    queue.mend(20, queue.unit(30))
    assert store.read_range(LIGHT, 0, 20, count_max=99, bytes_max=10**9).log_offsets[0] == (
        right.log_offset
    )
    queue.mend(20, queue.unit(30))
    assert store.get_message(LIGHT, 0, 20).messages[0].log_offset == right.log_offset
    assert queue.unit(20) == right
    assert "not in this light queue" in store.damages[0].reason


@pytest.mark.parametrize("offset", [1, 2, 40])
def test_a_unit_is_sought_from_the_message_before_it_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """The search does not begin at the start of the log: a bound limits how much it reads."""
    monkeypatch.setattr("tieredstore.local.unit_truth.SEARCHED_BYTES_MAX", 2_000)
    store = opened(tmp_path, queue_file_bytes=4_000, commit_log_file_bytes=8_192)
    store.put_messages([a_message(number, topic="Before") for number in range(90)])
    puts = store.put_messages([a_message(number) for number in range(90)])
    queue = store._loaded().queues.queue(TOPIC, 0)
    assert queue is not None
    queue.mend(offset, queue.unit(offset)._replace(message_bytes=7))
    got = store.get_message(TOPIC, 0, offset, count_max=1)
    assert got.messages[0].log_offset == puts[offset].log_offset


def test_a_message_of_a_queue_that_cannot_be_read_is_found_by_its_place(tmp_path: Path) -> None:
    """Nothing can then show that the queue has another message in its place."""
    store = opened(tmp_path)
    puts = store.put_messages([a_message(number) for number in range(3 * PER_FILE)])
    store.shutdown()
    store = opened(tmp_path)
    (tmp_path / "consumequeue" / TOPIC / "0" / f"{PER_FILE * 20:020d}").unlink()
    found = store.message_at(puts[25].log_offset)
    assert found is not None
    assert found.queue_offset == 25
