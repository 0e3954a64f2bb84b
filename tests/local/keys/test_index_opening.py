"""What a key index finds when it opens, and what it asks to have replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.local.keys.index_kit import (
    Row,
    found_once,
    index_bytes,
    loaded,
    made_up_rows,
    put_all,
    replay,
    service_at,
)
from tieredstore.local.index_file import IndexFile
from tieredstore.local.index_service import IndexState

T0 = 1_700_000_000_000


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
        assert service.has_lost
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
    state.write_bytes(ours)  # Java went on from 10 to 30 and knows nothing of it
    with service_at(tmp_path) as service:
        start = service.load(abnormal=False)
        assert start == max(row.log_offset for row in rows[:30] if row.texts)
        replay(service, rows, start=start)
        found_once(service, rows)


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
    service = service_at(tmp_path)  # its clock stands where it stood
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
