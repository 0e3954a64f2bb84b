"""The key index over its files: what is indexed, opened, replayed and found after a power cut.

From Java's messages it makes Java's index files again, and it can give Java's answers.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.golden_files import GOLDEN, expected, files_under
from tests.local.index_kit import (
    FOREVER,
    GOLDEN_ITEMS,
    GOLDEN_SLOTS,
    NamingClock,
    Row,
    ask_like_java,
    batch_of,
    columns_of,
    found_once,
    golden_rows,
    index_bytes,
    loaded,
    made_up_rows,
    put_all,
    replay,
    row_of,
    service_at,
)
from tests.local.store_audit import flip_bits
from tieredstore.codec.local_index import HEADER_BYTES, decode_header
from tieredstore.driver.runtime import ManualClock
from tieredstore.local import index_file, index_service
from tieredstore.local.index_file import (
    IndexCut,
    IndexFile,
    IndexSize,
    cut_back,
    index_names,
    next_index_name,
)
from tieredstore.local.index_service import IndexService, IndexState, key_texts
from tieredstore.model.errors import BackendRefusedError, SegmentCorruptError, StoreClosedError
from tieredstore.testing.disk import ForgetfulDisk

T0 = 1_700_000_000_000


def ask(
    service: IndexService, key: str, *, top: int = 64, begin: int = 0, end: int = FOREVER
) -> list[int]:
    return ask_like_java(service, "T", key, count_max=top, begin=begin, end=end)


def every(service: IndexService, key: str, *, begin: int = 0, end: int = FOREVER) -> list[int]:
    return list(service.candidates("T", key, begin=begin, end=end))


def same_key(count: int, *, step_ms: int = 0) -> list[Row]:
    return [
        Row(log_offset=10 * n, store_timestamp=T0 + step_ms * n, texts=("T#k",))
        for n in range(count)
    ]


def test_an_empty_index_answers_anything_with_nothing(tmp_path: Path) -> None:
    with loaded(tmp_path) as service:
        for top in (2**63 - 1, 0, -1):
            for topic, key in (("", ""), ("T", ""), ("", "k"), ("T", "k")):
                assert ask_like_java(service, topic, key, count_max=top) == []
                assert list(service.candidates(topic, key, begin=5, end=1)) == []
        assert service.end_log_offset == -1
        service.put(batch_of([]))
        service.flush()
    assert not (tmp_path / "index").exists()


def test_the_unique_key_comes_first_then_each_key_as_it_stands() -> None:
    assert key_texts("T", unique_key="u", keys=("b", "a", "b")) == ["T#u", "T#b", "T#a", "T#b"]
    assert key_texts("T", unique_key=None, keys=()) == []
    assert key_texts("", unique_key="", keys=()) == ["#"]


@pytest.mark.parametrize(("flag", "found"), [(0, [7]), (4, [7]), (8, [7]), (12, []), (0x3D, [])])
def test_only_messages_that_were_rolled_back_are_not_indexed(
    tmp_path: Path, flag: int, found: list[int]
) -> None:
    with loaded(tmp_path) as service:
        row = Row(log_offset=7, store_timestamp=T0, texts=("T#k",), sys_flag=flag)
        assert service.put(batch_of([row])) == len(found)
        assert ask(service, "k") == found
        assert service.replay_from == 7  # looked at all the same


def test_a_key_twice_in_a_message_is_stored_twice_and_told_once(tmp_path: Path) -> None:
    with loaded(tmp_path) as service:
        service.put(batch_of([Row(log_offset=7, store_timestamp=T0, texts=("T#k", "T#k"))]))
        assert ask(service, "k") == [7, 7]
        assert every(service, "k") == [7]


def test_the_keys_of_a_message_may_straddle_two_files(tmp_path: Path) -> None:
    with loaded(tmp_path, items=4) as service:
        texts = tuple(f"T#{n}" for n in range(5))
        service.put(batch_of([Row(log_offset=7, store_timestamp=T0, texts=texts)]))
        assert len(service.names) == 2
        assert [ask(service, str(n)) for n in range(5)] == [[7]] * 5
        assert every(service, "2") == every(service, "4") == [7]


def test_one_message_may_fill_many_files(tmp_path: Path) -> None:
    with loaded(tmp_path, items=3) as service:
        texts = tuple(f"T#{n}" for n in range(21))
        row = Row(log_offset=0, store_timestamp=T0, texts=texts)
        assert service.put(batch_of([row])) == 21
        assert len(service.names) == 11
        assert service.put(batch_of([row])) == 0
        found_once(service, [row])


def test_messages_below_the_last_one_are_known_already(tmp_path: Path) -> None:
    rows = made_up_rows(30)
    with loaded(tmp_path) as service:
        put_all(service, rows)
        before = index_bytes(tmp_path)
        for start in (0, 1, 7, 28, 29):
            replay(service, rows, start=100 * start)
        assert index_bytes(tmp_path) == before
        found_once(service, rows)


def test_a_batch_that_repeats_or_goes_back_adds_nothing_twice(tmp_path: Path) -> None:
    rows = made_up_rows(12)
    with loaded(tmp_path) as service:
        service.put(batch_of([*rows[:5], rows[4], rows[2], rows[0], *rows[3:], rows[11]]))
        found_once(service, rows)


@pytest.mark.parametrize("known", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("items", [3, 4, 16])
def test_a_message_of_which_some_keys_are_there_gets_the_others(
    tmp_path: Path, known: int, items: int
) -> None:
    texts = ("T#a", "T#b", "T#c", "T#d")
    before = Row(log_offset=3, store_timestamp=T0, texts=("T#x",))
    part = Row(log_offset=9, store_timestamp=T0, texts=texts[:known])
    whole = Row(log_offset=9, store_timestamp=T0, texts=texts)
    after = Row(log_offset=20, store_timestamp=T0, texts=("T#a",))
    with loaded(tmp_path, items=items) as service:
        service.put(batch_of([before, part]))
        service.put(batch_of([before, whole, whole, after]))
        found_once(service, [before, whole, after])
        assert ask(service, "a") == [20, 9]


def test_the_first_message_of_a_log_lies_at_zero_and_is_indexed_once(tmp_path: Path) -> None:
    row = Row(log_offset=0, store_timestamp=T0, texts=("T#a",))
    with loaded(tmp_path) as service:
        assert service.put(batch_of([row])) == 1
        assert service.put(batch_of([row])) == 0


def test_a_new_file_inherits_begin_and_end_and_the_full_one_may_be_told_to_java(
    tmp_path: Path,
) -> None:
    with loaded(tmp_path, items=4) as service:
        put_all(service, same_key(3, step_ms=5))
        assert service.sealed_timestamp == 0
        service.put(batch_of([Row(log_offset=99, store_timestamp=T0 + 99, texts=("T#k",))]))
        assert service.sealed_timestamp == T0 + 10
        [full, new] = index_bytes(tmp_path).values()
        assert decode_header(full).end_timestamp == T0 + 10
        assert decode_header(new).begin_timestamp == T0 + 99


def test_a_query_returns_at_most_the_cap_and_candidates_know_none(tmp_path: Path) -> None:
    with service_at(tmp_path, items=50) as service:
        service.load(abnormal=False)
        put_all(service, same_key(150))
        newest_first = [10 * n for n in reversed(range(150))]
        assert ask(service, "k", top=1_000) == newest_first[:64]
        assert ask(service, "k", top=63) == newest_first[:63]
        assert ask(service, "k", top=0) == ask(service, "k", top=-9) == []
        assert every(service, "k") == newest_first


def test_a_query_goes_no_further_than_a_file_that_begins_before_it(tmp_path: Path) -> None:
    with loaded(tmp_path, items=3) as service:
        put_all(service, same_key(6, step_ms=1_000_000))
        times = {"begin": T0 + 2_500_000, "end": T0 + 3_500_000}
        assert every(service, "k", **times) == [30]
        assert ask(service, "k", **times) == [30, 20]  # Java dates a first key one gap too late
        late = {"begin": T0 + 10**10, "end": T0 + 10**11}
        assert ask(service, "k", **late) == every(service, "k", **late) == []


def test_begin_after_end_finds_nothing(tmp_path: Path) -> None:
    with loaded(tmp_path) as service:
        put_all(service, same_key(5, step_ms=1_000))
        assert ask(service, "k", begin=T0 + 3_000, end=T0) == []
        assert ask(service, "k", begin=FOREVER, end=-FOREVER) == []
        assert every(service, "k", begin=FOREVER, end=-FOREVER) == []


def test_the_order_of_files_is_their_name_and_times_come_from_headers(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    with loaded(tmp_path, items=3) as service:
        put_all(service, same_key(6, step_ms=1_000))
        names = service.names
        assert names == sorted(names)
    for number, name in enumerate(names):
        (tmp_path / "index" / name).rename(tmp_path / "index" / f"2000010100000000{number}")
    with loaded(tmp_path, items=3) as service:
        assert ask(service, "k", begin=T0, end=T0 + 10_000) == [50, 40, 30, 20, 10, 0]


@pytest.mark.parametrize(
    ("zone", "name"),
    [("UTC", "19700101000000007"), ("CST-8", "19700101080000007"), ("EST5", "19691231190000007")],
)
def test_names_are_in_the_time_zone_of_the_machine_as_those_of_rocketmq(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str, name: str
) -> None:
    service = service_at(tmp_path, clock=ManualClock(7))
    service.load(abnormal=False)
    try:
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        put_all(service, same_key(1))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert service.names == [name]


def test_names_always_rise(tmp_path: Path) -> None:
    at = NamingClock(["20261120104532885"]).now_ms()
    assert next_index_name(at, newest="") == "20261120104532885"
    for newest in ("20261120104532885", "20271231235959999", "3", "99999999999999998"):
        name = next_index_name(at, newest=newest)
        assert name > newest
        assert len(name) == 17
    with pytest.raises(ValueError, match="follows"):
        next_index_name(at, newest="9" * 17)
    with loaded(tmp_path, items=2) as service:  # a clock that stands still
        put_all(service, same_key(9))
        assert len(set(service.names)) == 9
        assert every(service, "k") == [10 * n for n in reversed(range(9))]


def test_files_with_other_names_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    for name in ("x", "20261120104532885.tmp", "٢٠٢٦", ".hidden"):
        (tmp_path / "index" / name).write_bytes(b"x")
    for abnormal in (False, True):
        service = service_at(tmp_path)
        service.load(abnormal=abnormal)
        assert service.names == []
        service.close()
    assert len(list((tmp_path / "index").iterdir())) == 4


def test_expired_files_go_the_oldest_first_and_never_the_last(tmp_path: Path) -> None:
    with loaded(tmp_path, items=3) as service:
        put_all(service, same_key(7))  # files end at 10, 30, 50 and 60
        assert service.delete_expired(10) == 0
        walk = service.candidates("T", "k", begin=0, end=FOREVER)
        assert next(walk) == 60
        assert service.delete_expired(31) == 2
        assert list(walk) == [50, 40]
        assert ask(service, "k") == [60, 50, 40]
        assert service.delete_expired(10**9) == 1
        assert len(index_bytes(tmp_path)) == 1
        assert service.delete_expired(10**9) == 0
        put_all(service, [Row(log_offset=500, store_timestamp=T0, texts=("T#k",))])
        assert ask(service, "k") == [500, 60]


def test_what_is_closed_stays_closed(tmp_path: Path) -> None:
    service = loaded(tmp_path)
    put_all(service, same_key(3))
    service.close()
    service.close()
    with pytest.raises(StoreClosedError):
        service.put(batch_of(same_key(1)))
    with pytest.raises(StoreClosedError):
        every(service, "k")


def test_a_search_beside_the_end_of_the_index_does_not_pass_for_a_whole_one(
    tmp_path: Path,
) -> None:
    service = loaded(tmp_path, items=3)
    put_all(service, same_key(7))
    walk = service.candidates("T", "k", begin=0, end=FOREVER)
    assert next(walk) == 60
    service.close()
    with pytest.raises(StoreClosedError):
        list(walk)


def test_destroy_leaves_neither_files_nor_words_about_them(tmp_path: Path) -> None:
    service = loaded(tmp_path)
    put_all(service, same_key(3))
    service.flush()
    service.destroy()
    service.destroy()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_flushing_again_writes_nothing(tmp_path: Path) -> None:
    with loaded(tmp_path) as service:
        put_all(service, made_up_rows(10))
        service.flush()
        state = tmp_path / "config" / "tieredstore-index.json"
        written = state.stat().st_ino
        service.flush()
        assert state.stat().st_ino == written
        put_all(service, made_up_rows(11))
        service.flush()
        assert state.stat().st_ino != written


@pytest.mark.parametrize("count", [5, 40])  # in one file, and in several
def test_a_failed_sync_vouches_for_no_key_that_came_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    rows = made_up_rows(count)
    service = loaded(tmp_path)
    put_all(service, rows[:3])
    service.flush()

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    put_all(service, rows[:4])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="Input/output"):
            service.flush()
    put_all(service, rows)
    with pytest.raises(BackendRefusedError, match="failed before"):
        service.flush()
    found_once(service, rows)
    service.close()
    for name in index_names(tmp_path / "index")[:1]:  # what the system may have dropped
        path = tmp_path / "index" / name
        kept = path.read_bytes()
        items = sum(len(row.texts) for row in rows[:3])
        position = IndexSize(7, 16).position(1 + items)
        path.write_bytes(kept[:position] + bytes(len(kept) - position))
    service = service_at(tmp_path)
    start = service.load(abnormal=True)
    assert start <= rows[3].log_offset
    replay(service, rows, start=start)
    found_once(service, rows)
    service.close()


def test_after_an_orderly_end_nothing_has_to_be_replayed(tmp_path: Path) -> None:
    rows = [*made_up_rows(20), Row(log_offset=9_000, store_timestamp=T0, texts=())]
    with loaded(tmp_path) as service:
        put_all(service, rows)
    before = index_bytes(tmp_path)
    service = service_at(tmp_path)
    assert service.load(abnormal=False) == 9_000
    replay(service, rows, start=9_000)
    service.close()
    assert index_bytes(tmp_path) == before


def test_without_an_index_the_whole_log_is_replayed(tmp_path: Path) -> None:
    rows = made_up_rows(20)
    with loaded(tmp_path) as service:
        put_all(service, rows)
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    for abnormal in (False, True):
        again = service_at(tmp_path)
        assert again.load(abnormal=abnormal, min_log_offset=500) == 500


def test_a_store_without_keys_is_not_looked_through_twice(tmp_path: Path) -> None:
    with loaded(tmp_path) as service:
        put_all(service, [Row(log_offset=5_000, store_timestamp=T0, texts=())])
    for abnormal in (False, True):
        assert service_at(tmp_path).load(abnormal=abnormal) == 5_000
    assert not (tmp_path / "index").exists()


def test_a_newest_file_that_is_gone_is_made_again(tmp_path: Path) -> None:
    rows = made_up_rows(40)
    with loaded(tmp_path) as service:
        put_all(service, rows)
        last = service.names[-1]
    before = index_bytes(tmp_path)
    for abnormal in (False, True):
        (tmp_path / "index" / last).unlink()
        with service_at(tmp_path) as service:
            replay(service, rows, start=service.load(abnormal=abnormal))
            found_once(service, rows)
        assert list(index_bytes(tmp_path).values()) == list(before.values())


@pytest.mark.parametrize("abnormal", [False, True], ids=["peace", "crash"])
def test_a_short_file_goes_with_what_follows_it_and_is_made_again(
    tmp_path: Path, abnormal: bool
) -> None:
    rows = made_up_rows(40)
    with loaded(tmp_path) as service:
        put_all(service, rows)
        first = service.names[0]
    whole = list(index_bytes(tmp_path).values())
    with (tmp_path / "index" / first).open("r+b") as file:
        file.truncate(50)
    with service_at(tmp_path) as service:
        assert service.load(abnormal=abnormal) == 0
        put_all(service, rows)
    assert list(index_bytes(tmp_path).values()) == whole


def test_damaged_files_do_not_keep_an_index_from_being_destroyed(tmp_path: Path) -> None:
    with loaded(tmp_path) as service:
        put_all(service, made_up_rows(40))
        first = service.names[0]
    (tmp_path / "index" / first).write_bytes(b"no index")
    service_at(tmp_path).destroy()
    assert list((tmp_path / "index").iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "7", '{"version": 2}', '{"version": 1, "files": {}}', "[" * 9_999]
    + [
        json.dumps({"version": 1, "replayFrom": start, "files": files})
        for start, files in [
            ("x", {}),
            (-1, {}),
            (True, {}),
            (5, []),
            (5, {"1": 3}),
            (5, {"1": {"items": -1, "endTimestamp": 0}}),
            (5, {"1": {"items": 1.5, "endTimestamp": 0}}),
        ]
    ],
)
def test_words_that_cannot_be_read_prove_nothing(tmp_path: Path, text: str) -> None:
    rows = made_up_rows(40)
    with loaded(tmp_path) as service:
        put_all(service, rows)
    whole = list(index_bytes(tmp_path).values())
    (tmp_path / "config" / "tieredstore-index.json").write_text(text)
    with service_at(tmp_path) as service:
        assert service.load(abnormal=True) == 0
        assert service.names == []
        put_all(service, rows)
    assert list(index_bytes(tmp_path).values()) == whole


def test_java_may_go_on_with_our_files_and_we_with_its(tmp_path: Path) -> None:
    rows = made_up_rows(40)
    state = tmp_path / "config" / "tieredstore-index.json"
    with loaded(tmp_path) as service:
        put_all(service, rows[:10])
    ours = state.read_bytes()
    with loaded(tmp_path) as service:
        put_all(service, rows[:30])
    state.write_bytes(ours)  # Java went on from 10 to 30 and does not know this file
    with service_at(tmp_path) as service:
        start = service.load(abnormal=False)
        assert start == max(row.log_offset for row in rows[:30] if row.texts)
        replay(service, rows, start=start)
        found_once(service, rows)


def test_files_that_java_began_after_a_cut_one_are_made_again_after_its_crash(
    tmp_path: Path,
) -> None:
    rows = made_up_rows(60)
    state = tmp_path / "config" / "tieredstore-index.json"
    with loaded(tmp_path) as service:
        put_all(service, rows[:4])
    ours = state.read_bytes()
    with loaded(tmp_path) as service:
        put_all(service, rows)
        proven = service.sealed_timestamp
        assert len(service.names) > 3
    state.write_bytes(ours)  # Java filled our file and more, and its checkpoint proves them
    service = service_at(tmp_path)
    start = service.load(abnormal=True, durable_timestamp=proven)
    assert start <= rows[3].log_offset
    replay(service, rows, start=start)
    found_once(service, rows)
    service.close()


def test_javas_checkpoint_speaks_for_one_file_where_two_end_at_the_same_time(
    tmp_path: Path,
) -> None:
    rows = [Row(log_offset=10 * n, store_timestamp=T0, texts=(f"T#{n}",)) for n in range(1, 9)]
    with loaded(tmp_path, items=3) as service:
        put_all(service, rows)
        first = service.names[0]
    (tmp_path / "config" / "tieredstore-index.json").unlink()
    service = service_at(tmp_path, items=3)
    assert service.load(abnormal=True, durable_timestamp=T0) == 20
    assert service.names == [first]
    replay(service, rows, start=20)
    found_once(service, rows)
    service.close()


def test_words_about_a_file_that_is_gone_are_taken_back_before_its_name_comes_again(
    tmp_path: Path,
) -> None:
    rows = made_up_rows(8)
    with loaded(tmp_path) as service:
        put_all(service, rows)
        [name] = service.names
    (tmp_path / "index" / name).unlink()
    service = service_at(tmp_path)  # its clock starts at the same time again
    service.load(abnormal=True)
    put_all(service, rows[:2])
    assert service.names == [name]
    saved = IndexState.load(tmp_path / "config" / "tieredstore-index.json")
    assert saved is not None
    assert saved.files == {}


def test_a_flush_says_nothing_about_what_was_cut_off_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = loaded(tmp_path)
    put_all(service, made_up_rows(8))
    flush, calls = IndexFile.flush, []

    def flushed(file: IndexFile) -> None:
        flush(file)
        calls.append(file)
        if len(calls) == 1:
            service.truncate(400)

    monkeypatch.setattr(IndexFile, "flush", flushed)
    service.flush()
    saved = IndexState.load(tmp_path / "config" / "tieredstore-index.json")
    assert saved is not None
    [cut] = saved.files.values()
    assert cut.item_count == service._files[-1].header.item_count < 12
    service.close()


STEPS = st.lists(st.one_of(st.integers(1, 12), st.just("flush")), min_size=1, max_size=12)


def clean_files(rows: list[Row]) -> list[bytes]:
    """The files of a store that never crashed."""
    with tempfile.TemporaryDirectory() as root:
        with loaded(Path(root)) as service:
            put_all(service, rows)
        return list(index_bytes(Path(root)).values()) if (Path(root) / "index").exists() else []


def run(service: IndexService, steps: list[int | str], rows: list[Row]) -> int:
    """Take the steps; return how many of the rows were put."""
    done = 0
    for step in steps:
        if isinstance(step, str):
            service.flush()
        else:
            service.put(batch_of(rows[done : done + step]))
            done = min(len(rows), done + step)
    return done


@given(steps=STEPS, seed=st.integers(0, 2**32), lost=st.integers(0, 20))
def test_after_a_power_cut_the_files_are_those_of_a_store_that_had_none(
    steps: list[int | str], seed: int, lost: int
) -> None:
    """Even if the log lost its last messages and others took their places."""
    rows = made_up_rows(160)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "store")
        root.mkdir()
        with ForgetfulDisk(root) as disk:
            done = run(loaded(root), steps, rows)
        after = disk.cut(Path(folder, "after"), random.Random(seed))

        left = max(0, done - lost)
        others = [
            Row(
                log_offset=row.log_offset,
                store_timestamp=row.store_timestamp,
                texts=tuple(f"{text}-other" for text in row.texts),
            )
            for row in rows[left : left + 15]
        ]
        rows = rows[:left] + others
        with service_at(after) as service:
            service.load(abnormal=True)
            start = service.truncate(100 * left)
            assert start <= 100 * left
            replay(service, rows, start=start)
            found_once(service, rows)
            assert service.end_log_offset == max(
                (row.log_offset for row in rows if row.texts and row.sys_flag == 0), default=-1
            )
        files = index_bytes(after).values() if (after / "index").exists() else ()
        assert list(files) == clean_files(rows)


@given(steps=STEPS, again=STEPS, seed=st.integers(0, 2**32))
def test_a_second_crash_during_the_replay_loses_nothing_either(
    steps: list[int | str], again: list[int | str], seed: int
) -> None:
    rows, dice = made_up_rows(160), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder, "a")
        first.mkdir()
        with ForgetfulDisk(first) as disk:
            done = run(loaded(first), steps, rows)
        second = disk.cut(Path(folder, "b"), dice)
        with ForgetfulDisk(second) as disk:
            service = service_at(second)
            start = service.load(abnormal=True)
            run(service, again, [row for row in rows[:done] if row.log_offset >= start])
        third = disk.cut(Path(folder, "c"), dice)
        with service_at(third) as service:
            start = service.load(abnormal=True)
            replay(service, rows[:done], start=min(start, service.truncate(100 * done)))
            found_once(service, rows[:done])
        files = index_bytes(third).values() if (third / "index").exists() else ()
        assert list(files) == clean_files(rows[:done])


def put_some(root: Path, count: int) -> list[Row]:
    rows = made_up_rows(count)
    with loaded(root) as service:
        put_all(service, rows)
    return rows


@pytest.mark.parametrize("damage", ["zeroed", "slots lost", "header behind", "header ahead"])
def test_a_flushed_file_needs_neither_its_slots_nor_its_header(tmp_path: Path, damage: str) -> None:
    rows = put_some(tmp_path, 8)
    before = index_bytes(tmp_path)
    [(name, data)] = before.items()
    broken = {
        "zeroed": data[:8] + bytes(60) + data[68:],
        "slots lost": data[:HEADER_BYTES] + bytes(28) + data[HEADER_BYTES + 28 :],
        "header behind": data[:8] + bytes(24) + b"\0\0\0\1\0\0\0\2" + data[40:],
        "header ahead": data[:8] + b"\x7f" * 32 + data[40:],
    }[damage]
    (tmp_path / "index" / name).write_bytes(broken)
    with service_at(tmp_path) as service:
        start = service.load(abnormal=True)
        assert start == rows[-1].log_offset
        found_once(service, rows)
    assert index_bytes(tmp_path) == before


def test_items_that_cannot_be_right_are_made_again(tmp_path: Path) -> None:
    rows = put_some(tmp_path, 8)
    before = index_bytes(tmp_path)
    [(name, data)] = before.items()
    (tmp_path / "index" / name).write_bytes(data[:88] + bytes([0xFF]) * 20 + data[108:])
    with service_at(tmp_path) as service:
        assert service.load(abnormal=True) == 0
        put_all(service, rows)
    assert index_bytes(tmp_path) == before


def test_a_cut_that_was_interrupted_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = put_some(tmp_path, 8)
    before = index_bytes(tmp_path)
    monkeypatch.setattr(index_file, "_store_slots", interrupted)
    with pytest.raises(KeyboardInterrupt):
        service_at(tmp_path).load(abnormal=True)
    monkeypatch.undo()
    monkeypatch.setattr(os, "ftruncate", once(os.ftruncate))
    with pytest.raises(KeyboardInterrupt):
        service_at(tmp_path).load(abnormal=True)
    monkeypatch.undo()
    with service_at(tmp_path) as service:
        service.load(abnormal=True)
        found_once(service, rows)
    assert index_bytes(tmp_path) == before


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def once(call: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """The same call, interrupted once it is done."""

    def and_out(descriptor: int, size: int) -> None:
        call(descriptor, size)
        raise KeyboardInterrupt

    return and_out


@pytest.mark.parametrize("moment", ["before the entry", "before the deed"])
@pytest.mark.parametrize("log_end", [0, 100, 350, 900, 1500, 2800])
def test_a_truncation_that_was_interrupted_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_end: int, moment: str
) -> None:
    rows = put_some(tmp_path, 30)
    service = service_at(tmp_path)
    service.load(abnormal=True)
    if moment == "before the entry":
        monkeypatch.setattr(index_service.IndexState, "save", interrupted)
    else:
        monkeypatch.setattr(IndexService, "_remove", interrupted)
    with pytest.raises(KeyboardInterrupt):
        service.truncate(log_end)
    monkeypatch.undo()
    rows = [row for row in rows if row.log_offset < log_end]
    with service_at(tmp_path) as service:
        service.load(abnormal=True)
        replay(service, rows, start=service.truncate(log_end))
        found_once(service, rows)
    assert list(index_bytes(tmp_path).values()) == clean_files(rows)


@pytest.mark.parametrize("log_end", [350, 900, 2800])
def test_a_file_that_is_to_be_cut_and_is_damaged_is_made_again(
    tmp_path: Path, log_end: int
) -> None:
    rows = put_some(tmp_path, 30)
    with service_at(tmp_path) as service:
        service.load(abnormal=False)
        for file in service._files:
            if file.header.begin_log_offset <= log_end <= file.header.end_log_offset:
                flip_bits(file.path, file.size.position(1), 0x80)  # no hash is below zero
        rows = [row for row in rows if row.log_offset < log_end]
        replay(service, rows, start=service.truncate(log_end))
        found_once(service, rows)
    assert list(index_bytes(tmp_path).values()) == clean_files(rows)


def test_the_index_of_a_full_file_is_durable_before_the_next_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    flush, create = IndexFile.flush, IndexFile.create

    def flushed(file: IndexFile) -> None:
        flush(file)
        seen.append(("flushed", file.name))

    def created(path: Path, size: IndexSize, **end: int) -> IndexFile:
        saved = index_service.IndexState.load(tmp_path / "config" / index_service.STATE_FILE)
        assert saved is not None
        seen.append(("created after", saved.newest))
        return create(path, size, **end)

    monkeypatch.setattr(IndexFile, "flush", flushed)
    monkeypatch.setattr(IndexFile, "create", created)
    with loaded(tmp_path, items=3) as service:
        put_all(service, made_up_rows(4))
        first, second = service.names[:2]
    assert seen[:3] == [("created after", ""), ("flushed", first), ("created after", first)]
    assert ("flushed", second) in seen


def test_a_cut_keeps_a_sparse_file_sparse(tmp_path: Path) -> None:
    size = IndexSize(5_000_000, 20_000_000)
    file = IndexFile.create(tmp_path / "20261120104532885", size)
    file.put(columns_of([(f"T#{n}", n, 1_700_000_000_000) for n in range(100)]))
    file.close()
    cut = IndexCut(item_count=50, end_timestamp=1_700_000_000_000)
    again = cut_back(file.path, cut, size)
    assert again.header.item_count == 50
    assert file.path.stat().st_blocks * 512 < 22_000_000  # all slots, but few of the items
    with pytest.raises(SegmentCorruptError):
        cut_back(file.path, IndexCut(item_count=0, end_timestamp=0), size)


JAVA = {path.name: path.read_bytes() for path in sorted((GOLDEN / "local-clean/index").iterdir())}


def golden_service(root: Path) -> IndexService:
    clock = NamingClock(JAVA)
    return service_at(root, slots=GOLDEN_SLOTS, items=GOLDEN_ITEMS, clock=clock)


def golden_copy(folder: str, root: Path) -> IndexService:
    shutil.copytree(GOLDEN / folder / "index", root / "index", copy_function=shutil.copyfile)
    (root / "index").chmod(0o755)
    return golden_service(root)


def ask_golden(service: IndexService, query: dict[str, Any]) -> list[int]:
    times = {"begin": query["begin"], "end": query["end"]}
    return ask_like_java(service, query["topic"], query["key"], count_max=query["maxNum"], **times)


@pytest.mark.parametrize("batch_size", [1, 7, 256, 10_000])
def test_javas_messages_give_javas_files(tmp_path: Path, batch_size: int) -> None:
    with golden_service(tmp_path) as service:
        assert service.load(abnormal=False) == 0
        put_all(service, list(golden_rows()), batch_size=batch_size)
        assert service.names == list(JAVA)
    assert index_bytes(tmp_path) == JAVA


def test_replaying_the_whole_log_over_javas_files_changes_no_byte(tmp_path: Path) -> None:
    with golden_copy("local-clean", tmp_path) as service:
        service.load(abnormal=False)
        put_all(service, list(golden_rows()))
    assert index_bytes(tmp_path) == JAVA


def test_java_files_without_a_word_on_them_are_made_again_after_a_crash(tmp_path: Path) -> None:
    with golden_copy("local-clean", tmp_path) as service:
        assert service.load(abnormal=True) == 0
        assert service.names == []
        put_all(service, list(golden_rows()))
    assert index_bytes(tmp_path) == JAVA


@pytest.mark.parametrize("proven", [1, 2, 3])
def test_java_files_that_its_checkpoint_covers_are_kept_after_a_crash(
    tmp_path: Path, proven: int
) -> None:
    rows = expected("local-clean.expect-state.json")["indexFiles"]
    with golden_copy("local-clean", tmp_path) as service:
        service._clock = NamingClock(list(JAVA)[proven:])
        start = service.load(abnormal=True, durable_timestamp=rows[proven - 1]["endTimestamp"])
        assert service.names == list(JAVA)[:proven]
        assert start == rows[proven - 1]["endPhyOffset"]
        put_all(service, [row for row in golden_rows() if row.log_offset >= start])
    assert index_bytes(tmp_path) == JAVA


@pytest.mark.parametrize("folder", ["local-clean", "local-expired"])
def test_every_query_is_answered_as_java_answered_it(tmp_path: Path, folder: str) -> None:
    service = golden_copy(folder, tmp_path)
    service.load(abnormal=False)
    rows = expected(f"{folder}.expect-queries.json")
    asked = 0
    for row in rows:
        query: dict[str, Any] = row["query"]
        if query["op"] != "queryOffset":
            continue
        asked += 1
        newest = service._files[-1].header
        assert {
            "phyOffsets": ask_golden(service, query),
            "indexLastUpdateTimestamp": newest.end_timestamp,
            "indexLastUpdatePhyOffset": newest.end_log_offset,
        } == row["result"], query
    assert asked >= 35
    service.close()


def test_no_message_is_missed_whatever_second_it_was_stored_in(tmp_path: Path) -> None:
    with golden_copy("local-clean", tmp_path) as service:
        service.load(abnormal=False)
        for row in golden_rows():
            if row.sys_flag & 0x0C == 0x0C:
                continue
            at = row.store_timestamp
            for text in row.texts:
                topic, _, key = text.partition("#")
                found = list(service.candidates(topic, key, begin=at, end=at))
                assert found.count(row.log_offset) == 1
                everything = list(service.candidates(topic, key, begin=0, end=FOREVER))
                assert everything == sorted(set(everything), reverse=True)


def test_expiry_leaves_the_files_that_java_left(tmp_path: Path) -> None:
    first = expected("local-expired.expect-state.json")["store"]["minPhyOffset"]
    with golden_copy("local-clean", tmp_path) as service:
        service.load(abnormal=False)
        assert service.delete_expired(first) == 2
        left = {path.name for path in (GOLDEN / "local-expired/index").iterdir()}
        assert {path.name for path in (tmp_path / "index").iterdir()} == left == set(service.names)


@pytest.mark.parametrize("variant", ["torn", "torn-and-queues-behind"])
def test_after_javas_crash_the_index_is_what_its_safe_mode_makes_of_the_log(
    tmp_path: Path, variant: str
) -> None:
    recovery = expected("local-crash.expect-recovery.json")["variants"]["torn"]
    log = b"".join(file.read_bytes() for file in files_under(f"local-crash/{variant}/commitlog"))
    spans = [(start, start + size) for start, size, *_ in recovery["messages"]]
    rows = [row_of(log[start:stop]) for start, stop in spans]
    with golden_copy(f"local-crash/{variant}", tmp_path) as service:
        assert service.load(abnormal=True) == 0
        service.truncate(recovery["recovered"]["maxPhyOffset"])
        put_all(service, rows)
        safe = recovery["withMessageIndexSafe"]
        [file], [header] = service._files, safe["indexFiles"]
        assert (file.header.next_item, file.header.used_slot_count) == (
            header["indexCount"],
            header["usedSlots"],
        )
        for row in safe["answers"]:
            query = row["query"]
            if query["op"] != "queryOffset":
                continue
            assert ask_golden(service, query) == row["result"]["phyOffsets"]
