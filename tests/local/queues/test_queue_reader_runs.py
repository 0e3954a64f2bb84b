"""Runs read many at a time, held against records read one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.local.queues.test_queue_reader import a_store
from tieredstore.local import queue_reader
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import INT32_MAX, INT64_MAX
from tieredstore.testing.samples import TOPIC, a_message

COUNT = 252
QUEUES = 3


def filled(root: Path, order: list[int]) -> LocalMessageStore:
    """Messages of several queues in this order, over many small files."""
    store = a_store(root, commit_log_file_bytes=16_384, queue_file_bytes=2_000)
    store.put_messages(
        [
            a_message(number, queue_id=queue_id, body_bytes=10 + number % 300)
            for number, queue_id in enumerate(order)
        ]
    )
    return store


def both_ways(
    store: LocalMessageStore, offset: int, count_max: int, bytes_max: int
) -> list[MessageRun | tuple[str, int | None]]:
    """What the columns say, and what the plain way says."""
    answers: list[MessageRun | tuple[str, int | None]] = []
    with pytest.MonkeyPatch.context() as patch:
        for few in (0, INT32_MAX):
            patch.setattr(queue_reader, "FEW_ROWS_MAX", few)
            try:
                answers.append(
                    store.read_range(TOPIC, 0, offset, count_max=count_max, bytes_max=bytes_max)
                )
            except SegmentCorruptError as error:
                answers.append((str(error), error.position))
    return answers


def check_same(store: LocalMessageStore, offset: int, count_max: int, bytes_max: int) -> int:
    """How many rows both ways have."""
    quick, plain = both_ways(store, offset, count_max, bytes_max)
    if isinstance(plain, tuple) or isinstance(quick, tuple):
        assert quick == plain
        return 0
    assert quick.first_offset == plain.first_offset == offset
    assert quick.records == plain.records
    for column in ("log_offsets", "message_bytes", "tags_codes", "starts"):
        ours, theirs = getattr(quick, column), getattr(plain, column)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    return len(quick)


ORDERS = [
    [0] * COUNT,
    [number % QUEUES for number in range(QUEUES * COUNT)],
    [number // 7 % QUEUES for number in range(QUEUES * COUNT)],
]


@pytest.fixture(scope="module", params=ORDERS, ids=["alone", "in turns", "in groups"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalMessageStore]:
    store = filled(tmp_path_factory.mktemp("runs") / "store", request.param)
    yield store
    store.shutdown()


@settings(max_examples=40, deadline=None)
@given(
    offset=st.integers(0, COUNT + 1),
    count_max=st.integers(-1, COUNT + 5),
    bytes_max=st.one_of(st.just(10**9), st.integers(-1, 60_000)),
)
def test_runs_are_the_same_both_ways(
    store: LocalMessageStore, offset: int, count_max: int, bytes_max: int
) -> None:
    rows = check_same(store, offset, count_max, bytes_max)
    if count_max > 0 and offset < COUNT:
        assert rows >= 1
        assert rows == min(count_max, COUNT - offset) or bytes_max < 10**9


@settings(max_examples=80, deadline=None)
@given(
    row=st.integers(0, 60),
    at=st.one_of(st.integers(0, 140), st.integers(-40, -1)),
    written=st.binary(min_size=1, max_size=8),
    from_row=st.integers(0, 60),
)
def test_bytes_that_changed_end_a_run_at_the_same_message(
    store: LocalMessageStore, row: int, at: int, written: bytes, from_row: int
) -> None:
    whole = store.read_range(TOPIC, 0, 0, count_max=COUNT, bytes_max=10**9)
    begin, size = int(whole.log_offsets[row]), int(whole.message_bytes[row])
    file = store._loaded().log.queue.find(begin)
    assert file is not None
    position = begin - file.start_offset + (min(at, size - 1) if at >= 0 else size + at)
    written = written[: file.wrote - position]
    before = file.read(position, len(written))
    queue = store._loaded().queues.queue(TOPIC, 0)
    assert queue is not None
    unit = queue.unit(row)
    file.write_at(position, written)
    try:
        check_same(store, from_row, COUNT, 10**9)
    finally:
        file.write_at(position, before)
        queue.mend(row, unit)  # other tags in the record have become those of its unit
    assert check_same(store, 0, COUNT, 10**9) == COUNT


def test_each_byte_of_a_head_counts_as_in_the_plain_way(store: LocalMessageStore) -> None:
    whole = store.read_range(TOPIC, 0, 0, count_max=64, bytes_max=10**9)
    begin = int(whole.log_offsets[40])
    file = store._loaded().log.queue.find(begin)
    assert file is not None
    for at in range(88):
        position = begin - file.start_offset + at
        before = file.read(position, 1)
        for change in (1, 0x80):
            file.write_at(position, bytes([before[0] ^ change]))
            check_same(store, 35, 10, 10**9)
        file.write_at(position, before)


WRONG_UNITS = [
    {"size": 0},
    {"size": 90},
    {"size": 91},
    {"size": INT32_MAX},
    {"log_offset": INT64_MAX},
    {"log_offset": INT64_MAX - 100},
    {"log_offset": INT64_MAX, "size": INT32_MAX},
    {"log_offset": 10**9},
    {"log_offset": 5},
    {"log_offset": 16_384 - 50},
]


@pytest.mark.parametrize("few", [0, INT32_MAX], ids=["columns", "plain"])
@pytest.mark.parametrize("row", [0, 1, 50])
def test_a_unit_that_names_no_record_ends_a_run_and_is_made_again_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: int, few: int
) -> None:
    monkeypatch.setattr(queue_reader, "FEW_ROWS_MAX", few)
    store = filled(tmp_path, ORDERS[0])
    queue = store._loaded().queues.queue(TOPIC, 0)
    assert queue is not None
    file = queue._files.find(row * 20)
    assert file is not None
    before = file.read(row * 20, 12)
    for wrong in WRONG_UNITS:
        if "log_offset" in wrong:
            file.write_at(row * 20, wrong["log_offset"].to_bytes(8, "big"))
        if "size" in wrong:
            file.write_at(row * 20 + 8, wrong["size"].to_bytes(4, "big"))
        if row:
            run = store.read_range(TOPIC, 0, 0, count_max=100, bytes_max=10**12)
            assert len(run) == row, wrong
        run = store.read_range(TOPIC, 0, row, count_max=100 - row, bytes_max=10**12)
        assert len(run) == 100 - row, wrong
        assert run.first_offset == row
        assert file.read(row * 20, 12) == before, wrong
    assert {damage.position for damage in store.damages} == {row * 20}
    assert all(damage.mended for damage in store.damages)
    store.shutdown()


def test_a_run_ends_where_the_log_lost_a_file(tmp_path: Path) -> None:
    store = filled(tmp_path, ORDERS[2])
    log = store._loaded().log
    whole = store.read_range(TOPIC, 0, 0, count_max=COUNT, bytes_max=10**9)
    second = log.queue.files[1].start_offset
    behind = int(np.searchsorted(whole.log_offsets, log.queue.files[2].start_offset))
    before = int(np.searchsorted(whole.log_offsets, second))
    log.queue.files[1].destroy()  # a reader may have found it just before
    assert check_same(store, 0, COUNT, 10**9) == before
    assert check_same(store, before, COUNT, 10**9) == 0
    assert check_same(store, behind, COUNT, 10**9) == COUNT - behind
    store.shutdown()


def test_who_reads_a_run_owns_its_bytes(tmp_path: Path) -> None:
    store = filled(tmp_path, ORDERS[0])
    for count in (1, 2, COUNT):
        run = store.read_range(TOPIC, 0, 0, count_max=count, bytes_max=10**9)
        assert isinstance(run.records, bytearray)
        before = bytes(run.records)
        run.records[:] = bytes(len(before))
        again = store.read_range(TOPIC, 0, 0, count_max=count, bytes_max=10**9)
        assert again.records == before
    store.shutdown()


def test_few_messages_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path, ORDERS[0])
    monkeypatch.setattr(queue_reader, "read_records", lambda *_, **__: pytest.fail("as columns"))
    few = queue_reader.FEW_ROWS_MAX
    assert len(store.read_range(TOPIC, 0, 0, count_max=few, bytes_max=10**9)) == few
    with pytest.raises(pytest.fail.Exception):
        store.read_range(TOPIC, 0, 0, count_max=few + 1, bytes_max=10**9)
    store.shutdown()
