"""Questions to the key index: any text, window and limit, by its broker and by other readers."""

from __future__ import annotations

import dataclasses
import os
import struct
import threading
from functools import partial
from pathlib import Path

import pytest

from tests.access.fetch_kit import Shelf, numbered
from tests.access.tiered_kit import ListIndex
from tests.fuzz.limits import peak_bytes
from tests.index.store_kit import ALL, INDEX_PATH, SLOTS, Shop, open_below, running
from tieredstore.codec.java import tiered_probes
from tieredstore.codec.tiered_index import BEGIN_MAGIC, END_MAGIC, ITEM_BYTES, slot_position
from tieredstore.index import search
from tieredstore.index.contract import NOTHING, IndexHit
from tieredstore.index.keys import DAY_MS, Match
from tieredstore.index.search import KeyQuery
from tieredstore.index.uploaded import UploadedIndex
from tieredstore.index.writer import FOLDER
from tieredstore.model.values import INT64_MAX, SegmentRecord, SegmentType
from tieredstore.testing.faults import Fault
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC

HOUR_MS = 3_600_000


def test_a_file_that_cannot_be_read_makes_the_answer_incomplete(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k", "k"])
    shop.index.seal()
    shop.put(["k"])
    shop.faults.always = Fault.BEFORE
    answer = shop.ask("k")
    assert not answer.complete
    assert [hit.log_offset for hit in answer.hits] == [2000]
    shop.faults.forgive()
    assert len(shop.found("k")) == 3


@pytest.mark.parametrize(
    ("topic", "key", "window"),
    [
        ("", "k", {}),
        ("  ", "k", {}),
        (TOPIC, "", {}),
        (TOPIC, "k", {"begin": 2, "end": 1}),
        (TOPIC, "k", {"count_max": 0}),
        (TOPIC, "k", {"count_max": -(1 << 70)}),
    ],
)
def test_senseless_questions_have_empty_answers(
    tmp_path: Path, topic: str, key: str, window: dict[str, int]
) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    for asked in (shop.index, shop.reader()):
        assert asked.query(topic, shop.topic_id, key, **{**ALL, **window}) == NOTHING


def test_any_text_is_a_key_and_any_number_a_limit(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    keys = ["主题", "😀", "\ud800", "a\tb", "#", "\x7f" * 300]
    shop.put([each for each in keys if each.isprintable() or each != "\ud800"])
    shop.index.seal()
    huge = {"count_max": 1 << 80, "begin": -(1 << 80), "end": 1 << 80}
    for key in keys:
        assert len(shop.found(key, **huge)) == (key != "\ud800")
    assert shop.found("two words", **huge) == []
    assert shop.found("u0-0", **huge) == [(0, 0)]


def test_a_topic_made_anew_does_not_find_the_keys_of_the_old_one(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    other = shop.topic_id + 1
    assert not shop.index.query(TOPIC, other, "k", **ALL).hits
    assert shop.index.indexed_offset(TOPIC, other, 0) == 0


def test_windows_are_kept_to_the_second_on_both_sides(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    at = STORE_TIMESTAMP + 5_500
    shop.put(["k"], times=[at])
    for state in ("local", "uploaded"):
        if state == "uploaded":
            shop.index.seal()
        for begin, end in [(at, at), (at - 1, at), (at, at + 1), (0, at), (at, INT64_MAX)]:
            assert shop.found("k", begin=begin, end=end) == [(0, 0)], (state, begin, end)
        assert shop.found("k", begin=at + 2000, end=INT64_MAX) == []
        assert shop.found("k", begin=0, end=at - 2000) == []


def test_a_file_that_began_before_the_window_is_asked(tmp_path: Path) -> None:
    """RocketMQ takes only files that begin within the window (weakness 3)."""
    shop = Shop(tmp_path)
    shop.put(["k"], times=[STORE_TIMESTAMP + 60_000])
    shop.put(["k"], times=[STORE_TIMESTAMP - 60_000])  # as of a queue that lagged
    for state in ("local", "uploaded"):
        if state == "uploaded":
            shop.index.seal()
        assert shop.found("k", begin=STORE_TIMESTAMP + 1) == [(0, 0)], state
        assert shop.found("k", begin=STORE_TIMESTAMP + 60_000) == [(0, 0)], state
        assert shop.found("k", end=STORE_TIMESTAMP - 50_000) == [(0, 1000)], state


@pytest.mark.parametrize(("count_max", "wanted"), [(1, 1), (3, 3), (5, 3)])
def test_three_files_give_as_many_as_are_wanted(
    tmp_path: Path, count_max: int, wanted: int
) -> None:
    shop = Shop(tmp_path)
    for _ in range(2):
        shop.put(["k"])
        shop.index.seal()
        shop.clock.advance(10_000)
    shop.put(["k"])
    found = shop.found("k", count_max=count_max)
    assert found == [(0, 2000), (0, 1000), (0, 0)][:wanted]


def test_a_message_that_was_put_twice_is_shown_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k", "k"])
    shop.index.seal()
    for _ in range(3):
        shop.ends[0] = 0
        shop.put(["k", "k"])
    assert sorted(shop.found("k")) == [(0, 0), (0, 1000)]
    assert len(shop.found("k", count_max=1)) == 1


def test_a_message_that_was_put_twice_takes_the_place_of_no_other(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.clock.advance(1000)
    for _ in range(3):
        shop.ends[0] = 1
        shop.put(["k"])
    assert sorted(shop.found("k", count_max=2)) == [(0, 0), (0, 1000)]


@pytest.mark.parametrize("foreign", [False, True])
def test_the_newest_of_many_are_found_in_whatever_order_they_were_put(
    tmp_path: Path, foreign: bool
) -> None:
    """Messages of a queue that lagged are put after newer messages of another queue."""
    shop = Shop(tmp_path, items=10_000)
    newest = [STORE_TIMESTAMP + 100_000 + 1000 * number for number in range(5)]
    shop.put(["k"] * 5, times=newest, unique=False)
    shop.put(["k"] * 4000, times=[STORE_TIMESTAMP] * 4000, unique=False)
    if foreign:
        shop.index.shutdown()
        for path in (tmp_path / "tiered_index_file").glob("*.keys"):
            path.unlink()
        shop.open()
    wanted = [(0, 1000 * number) for number in (4, 3, 2, 1, 0)]
    for state in ("local", "uploaded", "opened anew"):
        if state == "uploaded":
            shop.index.seal()
        elif state == "opened anew":
            shop.reopen()
        assert shop.found("k", count_max=5) == wanted, state
        assert shop.found("k", count_max=7)[:5] == wanted, state
        assert len(shop.found("k", count_max=4004)) == 4004, state


def test_a_search_holds_no_more_messages_than_it_gives() -> None:
    """Even if each message is newer than all before it."""
    query = KeyQuery(TOPIC, 1, "k", 3, 0, INT64_MAX)
    held = []
    for count in (100, 10_000):
        items = [Match(1, 0, 1000 * number, 9, number) for number in range(count)]
        held.append(peak_bytes(partial(query.newest, items)))
    assert held[1] < 2 * held[0]


YEAR_MS = 365 * 86_400_000
FAR = [
    STORE_TIMESTAMP + 70 * YEAR_MS,
    STORE_TIMESTAMP - 70 * YEAR_MS,
    STORE_TIMESTAMP + 200 * YEAR_MS,
    INT64_MAX,
    -INT64_MAX - 1,
    0,
    -1,
]


@pytest.mark.parametrize("far", FAR)
def test_a_message_whose_time_no_item_can_hold_is_found_by_its_time(
    tmp_path: Path, far: int
) -> None:
    shop = Shop(tmp_path)
    shop.put(["k", "k", "k"], times=[STORE_TIMESTAMP, far, STORE_TIMESTAMP + 5000])
    shop.index._writer.sync()
    for state in ("local", "reopened", "cut", "uploaded", "opened anew"):
        if state == "reopened":
            shop.reopen()
        elif state == "cut":
            shop.put(["other"])
            shop.index._writer.drain()
            shop.crash()
            shop.open()
        elif state == "uploaded":
            shop.index.seal()
        elif state == "opened anew":
            shop.index._cache.clear()
            shop.reopen()
        near = {"begin": far - 1, "end": far + 1}
        assert (0, 1000) in shop.found("k", **near), state
        assert (0, 1000) in shop.found("k", begin=far), state
        assert (0, 1000) in shop.found("k", begin=-(1 << 70), end=far), state
        assert (0, 2000) in shop.found("k", begin=STORE_TIMESTAMP + 4000), state
        assert len(shop.found("k", begin=-(1 << 70))) == 3, state
        if state in {"local", "reopened"}:
            beside = beside_the_broker(shop)
            answer = beside.query(TOPIC, shop.topic_id, "k", **{**ALL, **near})
            assert 1000 in {hit.log_offset for hit in answer.hits}, state


def beside_the_broker(shop: Shop) -> UploadedIndex:
    """A reader in another process that sees the files that the broker fills."""
    reader = UploadedIndex(
        shop.config,
        provider=shop.provider,
        metadata=shop.catalogue,
        runtime=shop.runtime,
        local_folder=shop.folder / FOLDER,
    )
    reader.load()
    return reader


def test_a_reader_that_asks_twice_finds_a_message_whose_time_no_item_can_hold(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path)
    shop.upload_files(1)
    shop.put(["k", "k"], times=[STORE_TIMESTAMP + 1000, STORE_TIMESTAMP + 70 * YEAR_MS])
    shop.index._writer.sync()
    reader = beside_the_broker(shop)

    def expire() -> None:
        shop.provider.before_read = lambda: None
        assert shop.index.expire(shop.clock.now_ms()) == 1

    shop.provider.before_read = expire
    answer = reader.query(TOPIC, shop.topic_id, "k", **ALL)
    assert answer.complete
    assert {hit.log_offset for hit in answer.hits} == {1000, 2000}


def test_a_reader_beside_the_broker_finds_what_is_local_and_keeps_nothing_open(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path)
    shop.put(["k", "k", "k"])
    shop.index._writer.sync()
    shop.crash()
    reader, before = beside_the_broker(shop), open_below(tmp_path)
    for _ in range(2):
        answer = reader.query(TOPIC, shop.topic_id, "k", **ALL)
        assert answer.complete
        assert sorted(hit.log_offset for hit in answer.hits) == [0, 1000, 2000]
    assert open_below(tmp_path) == before
    assert reader._local is not None
    with reader._local.opened():
        for held in Path("/proc/self/fd").iterdir():
            if held.is_symlink() and str(tmp_path) in os.readlink(held):
                flags = Path(f"/proc/self/fdinfo/{held.name}").read_text().split()[3]
                assert int(flags, 8) & os.O_ACCMODE == os.O_RDONLY


def test_a_reader_beside_the_broker_counts_on_no_file_that_is_gone(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k", "k", "k"])
    shop.index.seal()
    shop.put(["k", "k"])
    shop.index._writer.sync()
    shop.crash()
    reader, elsewhere = beside_the_broker(shop), shop.reader()
    for asked in (reader, elsewhere):
        assert asked.indexed_offset(TOPIC, shop.topic_id, 0) == (5 if asked is reader else 3)
        assert asked.figures.footer_cache_bytes == 0
    shop.local_path().unlink()
    assert reader.indexed_offset(TOPIC, shop.topic_id, 0) == 3


@pytest.mark.parametrize("at", ["item", "count"])
def test_a_reader_beside_the_broker_believes_no_damaged_file(tmp_path: Path, at: str) -> None:
    shop = Shop(tmp_path)
    shop.put(["k", "k", "k"])
    shop.index._writer.sync()
    shop.crash()
    path = shop.local_path()
    data = bytearray(path.read_bytes())
    if at == "item":
        data[slot_position(SLOTS) + ITEM_BYTES + 12] ^= 1  # RocketMQ leaves the first item free
    else:
        data[24:28] = (2).to_bytes(4, "big")
    path.write_bytes(data)
    reader, before = beside_the_broker(shop), open_below(tmp_path)
    assert not reader.query(TOPIC, shop.topic_id, "k", **ALL).complete
    assert open_below(tmp_path) == before


def test_a_reader_beside_the_broker_believes_a_file_that_was_made_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.put(["k"], queue_id=1)
    shop.index._writer.sync()
    shop.crash()
    reader = beside_the_broker(shop)
    assert reader.query(TOPIC, shop.topic_id, "k", **ALL).complete
    before = shop.local_files()
    shop.local_path().unlink()
    shop.open()
    shop.reopen()
    shop.ends.clear()
    shop.put(["k"], queue_id=1)
    shop.put(["k"])
    shop.index._writer.sync()
    assert shop.local_files() == before
    answer = reader.query(TOPIC, shop.topic_id, "k", **ALL)
    assert (len(answer.hits), answer.complete) == (2, True)


@pytest.mark.parametrize("files_max", [3, 2])
def test_a_reader_beside_the_broker_opens_no_more_files_than_a_broker_has(
    tmp_path: Path, files_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "FILES_MAX", files_max)
    shop = Shop(tmp_path, items=20)
    shop.put(["k"] * 50, unique=False)
    shop.index._writer.sync()
    assert len(shop.local_files()) == 3
    reader, before = beside_the_broker(shop), open_below(tmp_path)
    answer = reader.query(TOPIC, shop.topic_id, "k", **ALL)
    assert (len(answer.hits), answer.complete) == ((50, True) if files_max == 3 else (0, False))
    assert open_below(tmp_path) == before


@pytest.mark.parametrize("foreign", [False, True])
def test_an_end_in_the_far_future_keeps_no_file_that_rocketmq_made(
    tmp_path: Path, foreign: bool
) -> None:
    """RocketMQ takes part of an IPv6 address for the store time, and thus for the file's end."""
    shop = Shop(tmp_path)
    shop.upload_files(3)
    end = STORE_TIMESTAMP + 99 * YEAR_MS
    if foreign:
        shop.drop_footer(2, end_timestamp=end)
    else:
        shop.catalogue.put(dataclasses.replace(shop.segments()[0], end_timestamp=end))
    shop.reopen()
    assert len(shop.found("k", begin=end)) == 0
    assert len(shop.found("k")) == 3
    later = STORE_TIMESTAMP + 2 * 86_400_000
    assert shop.index.expire(later) == 3
    assert shop.found("k") == []


def test_a_file_of_rocketmq_5_1_that_was_open_for_longer_than_its_milliseconds_last(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path)
    key_hash, slot = tiered_probes(f"{TOPIC}#k", SLOTS)[0]
    late = STORE_TIMESTAMP + 30 * DAY_MS
    after = (30 * DAY_MS + (1 << 31)) % (1 << 32) - (1 << 31)  # wrapped to 32 bits
    items = 28 + 8 * SLOTS
    data = struct.pack(">iqqii", END_MAGIC, STORE_TIMESTAMP, late, SLOTS, 1)
    for number in range(SLOTS):
        data += struct.pack(">ii", items + 28 * (number > slot), 28 * (number == slot))
    data += struct.pack(">iiiqii", key_hash, shop.topic_id, 0, 7000, 221, after)
    data += struct.pack(">i", BEGIN_MAGIC)
    segment = shop.provider.open(INDEX_PATH, SegmentType.INDEX, 0)
    segment.write(0, data)
    row = SegmentRecord(
        path=INDEX_PATH,
        type=SegmentType.INDEX,
        base_offset=0,
        size=len(data),
        create_timestamp=late,
        begin_timestamp=STORE_TIMESTAMP,
        end_timestamp=late,
    )
    shop.catalogue.put(row)
    shop.reopen()
    assert shop.found("k") == [(0, 7000)]
    assert shop.found("k", begin=late - 1, end=late + 1) == [(0, 7000)]
    assert shop.found("absent") == []


@pytest.mark.parametrize(
    ("age", "before", "is_stale"),
    [(5000, None, True), (0, 1, True), (0, 0, False), (0, None, False)],
)
def test_a_hit_older_than_the_segment_at_its_place_is_no_missing_message(
    age: int, before: int | None, is_stale: bool
) -> None:
    shelf = Shelf()
    file = shelf.put(numbered(0, 10))
    made = file.log.segments[0].record.create_timestamp
    hit = IndexHit(
        topic_id=file.topic_id,
        queue_id=0,
        log_offset=int(file.units(4, 1).log_offsets[0]) + 3,  # no message begins there
        message_bytes=100,
        store_timestamp=STORE_TIMESTAMP - age,
        put_before=INT64_MAX if before is None else made - before,
    )
    assert isinstance(shelf.index, ListIndex)
    shelf.index.entries.append((TOPIC, "shared", hit))
    result = shelf.fetcher.query_message(TOPIC, "shared", count_max=32)
    assert len(result.messages) == 10
    assert result.complete is is_stale


def test_hits_of_uploaded_files_tell_by_when_the_index_had_them(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    assert [hit.put_before for hit in shop.ask("k").hits] == [INT64_MAX]
    shop.clock.advance(7000)
    shop.index.seal()
    assert [hit.put_before for hit in shop.ask("k").hits] == [STORE_TIMESTAMP + 7000]
    shop.ends[0] = 0
    shop.put(["k"])  # the same message, now in a local file
    assert [hit.put_before for hit in shop.ask("k").hits] == [INT64_MAX]


def three_files(folder: Path) -> Shop:
    shop = Shop(folder)
    shop.upload_files(3)
    return shop


def test_a_file_that_expires_under_a_reader_leaves_the_answer_complete(tmp_path: Path) -> None:
    shop = three_files(tmp_path)
    reader = shop.reader()
    left = [2, 1]

    def expire() -> None:
        if left:
            left.pop()
            shop.index.expire(shop.segments()[0].end_timestamp or 0)
            shop.index.expire((shop.segments()[0].end_timestamp or 0) + 1)

    shop.provider.before_read = expire
    answer = reader.query(TOPIC, shop.topic_id, "k", **ALL)
    assert answer.complete
    assert [hit.log_offset for hit in answer.hits] == [2000]


def test_a_file_that_is_lost_makes_the_answer_incomplete_and_is_not_asked_for_ever(
    tmp_path: Path,
) -> None:
    shop = three_files(tmp_path)
    reader = shop.reader()
    row = shop.segments()[1]
    shop.provider.open(row.path, row.type, row.base_offset).delete()
    answer = reader.query(TOPIC, shop.topic_id, "k", **ALL)
    assert not answer.complete
    assert [hit.log_offset for hit in answer.hits] == [2000, 0]


def test_many_readers_see_what_is_uploaded_and_dropped_meanwhile(tmp_path: Path) -> None:
    shop = three_files(tmp_path)
    reader = shop.reader()
    failures: list[object] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            try:
                answer = reader.query(TOPIC, shop.topic_id, "k", **ALL)
            except BaseException as error:  # noqa: BLE001 - for the main thread
                failures.append(error)
                return
            times = [hit.store_timestamp for hit in answer.hits]
            if not answer.complete or times != sorted(times, reverse=True) or len(times) < 2:
                failures.append(answer)
                return

    with running(*[ask] * 3):
        for _ in range(20):
            shop.put(["k"])
            shop.index.seal()
            shop.index.expire((shop.segments()[0].end_timestamp or 0) + 1)
            shop.clock.advance(60_000)
        done.set()
    assert not failures
