"""Power cuts: whatever became of the pages that were not flushed, every key is found once."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.local.keys.index_kit import (
    Row,
    batch_of,
    columns_of,
    found_once,
    index_bytes,
    loaded,
    made_up_rows,
    put_all,
    replay,
    service_at,
)
from tieredstore.codec.local_index import HEADER_BYTES
from tieredstore.local import index_file, index_service
from tieredstore.local.index_file import IndexCut, IndexFile, IndexSize, cut_back
from tieredstore.local.index_service import IndexService
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.testing.disk import ForgetfulDisk

STEPS = st.lists(st.one_of(st.integers(1, 12), st.just("flush")), min_size=1, max_size=12)


def clean_files(rows: list[Row]) -> list[bytes]:
    """The files of a store that never crashed."""
    with tempfile.TemporaryDirectory() as root:
        with loaded(Path(root)) as service:
            put_all(service, rows)
        return list(index_bytes(Path(root)).values()) if (Path(root) / "index").exists() else []


def run(service: IndexService, steps: list[int | str], rows: list[Row]) -> int:
    """Take the steps; how many of the rows were put."""
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
    """Also where the log lost its last messages, and others came to their places."""
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
    """The call, and then the lights go out."""

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
