"""The key index over its files: what is indexed, how files follow each other, who is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.keys.index_kit import (
    FOREVER,
    NamingClock,
    Row,
    ask_like_java,
    batch_of,
    found_once,
    index_bytes,
    loaded,
    made_up_rows,
    put_all,
    replay,
    service_at,
)
from tieredstore.codec.local_index import decode_header
from tieredstore.local.index_file import next_index_name
from tieredstore.local.index_service import IndexService, key_texts
from tieredstore.model.errors import StoreClosedError

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
        assert service.replay_from == 7  # looked at, all the same


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
        assert ask(service, "k", **times) == [30, 20]  # Java reads the first key a gap too late
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


def test_names_are_local_time_and_always_rise(tmp_path: Path) -> None:
    at = NamingClock(["20261120104532885"]).now_ms()
    assert next_index_name(at, utc_offset_ms=0, newest="") == "20261120104532885"
    assert next_index_name(at, utc_offset_ms=8 * 3_600_000, newest="") == "20261120184532885"
    assert next_index_name(at, utc_offset_ms=-60_000, newest="") == "20261120104432885"
    assert next_index_name(0, utc_offset_ms=0, newest="") == "19700101000000000"
    for newest in ("20261120104532885", "20271231235959999", "3", "99999999999999998"):
        name = next_index_name(at, utc_offset_ms=0, newest=newest)
        assert name > newest
        assert len(name) == 17
    with pytest.raises(ValueError, match="follows"):
        next_index_name(at, utc_offset_ms=0, newest="9" * 17)
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
