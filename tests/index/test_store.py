"""The life of the key index: files fill, roll, are uploaded, expire, and outlive restarts; files of
RocketMQ, also of older versions, are taken over, removed or made again.
"""

from __future__ import annotations

import dataclasses
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.every_step import every_step
from tests.index.index_kit import BEGIN, Row, columns_of, uploaded
from tests.index.store_kit import (
    ALL,
    BROKER,
    INDEX_PATH,
    ITEMS,
    SLOTS,
    Shop,
    open_below,
    put_again,
    running,
)
from tieredstore.codec.key_hashes import key_hashes
from tieredstore.codec.queue_unit import encode_unit
from tieredstore.codec.tiered_index import (
    BEGIN_MAGIC,
    TieredIndexHeader,
    encode_header,
    file_bytes,
)
from tieredstore.driver.metadata import DeleteQueue, DeleteSegment, DeleteTopic
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.append_file import DELETION_NOTE, mark_for_deletion
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.index import uploaded as uploaded_module
from tieredstore.index import writer as writer_module
from tieredstore.index.contract import IndexAnswer, IndexFigures, NoIndex
from tieredstore.index.footer import UNCHECKED, NearFooter, groups_of
from tieredstore.index.keys import IndexColumns, RunKeys
from tieredstore.index.local_file import IndexStoreFile
from tieredstore.index.search import ASKED_AGAIN_MAX
from tieredstore.index.uploaded import UploadedFile, UploadedIndex
from tieredstore.index.watermarks import QueueId, Watermarks
from tieredstore.index.writer import PendingKeys, still_pending
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    InvalidConfigError,
    MetadataError,
    SegmentCorruptError,
    StoreClosedError,
)
from tieredstore.model.values import SegmentRecord, SegmentType
from tieredstore.testing.disk import ForgetfulDisk
from tieredstore.testing.faults import Fault, Faults, SimulatedCrash
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_record

HOUR_MS = 3_600_000


def test_fifty_keys_make_three_files_of_twenty(tmp_path: Path) -> None:
    shop = Shop(tmp_path, items=20)
    shop.put(["k"] * 50, unique=False)
    assert len(shop.found("k")) == 50
    assert len(shop.local_files()) == 3
    begins = [int(name) for name in shop.local_files()]
    assert begins == [STORE_TIMESTAMP - 2000, STORE_TIMESTAMP - 1000, STORE_TIMESTAMP]


def test_a_folder_that_is_deleted_meanwhile_is_made_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path, items=20)
    shop.put([f"k{number}" for number in range(40)], unique=False)
    shop.index.seal()
    shutil.rmtree(shop.index._folder.path)
    shop.put(["late"] * 5)
    shop.index.seal()
    assert len(shop.found("late")) == 5
    assert len(shop.found("k7")) == 1


def test_no_file_begins_after_a_message_in_it_was_stored(tmp_path: Path) -> None:
    """RocketMQ asks only files that begin before the end of its window."""
    shop = Shop(tmp_path, items=20)
    day = 24 * HOUR_MS
    for number, ago in enumerate([2 * day, day, 3 * day, 5, 3 * day + 7, 0]):
        shop.put([f"k{number}"] * 4, times=[STORE_TIMESTAMP - ago + n for n in range(4)])
        shop.clock.advance(1000)
    shop.index._writer.drain()
    begun = {file.begin_timestamp for file in shop.index._writer.files}
    assert len(begun) == len(shop.index._writer.files) == len(shop.local_files())
    for file in shop.index._writer.files:
        assert file.times is None or file.begin_timestamp <= file.times.first
        assert all(seconds >= 0 for seconds in file.items()["seconds"].tolist())
    shop.reopen()
    shop.put(["late"], times=[STORE_TIMESTAMP - 4 * day])
    shop.index.seal()
    rows = shop.segments()
    assert len({row.begin_timestamp for row in rows}) == len(rows) > len(begun)
    # RocketMQ regards files that begin before the first one as expired.
    assert rows[0].begin_timestamp == min(row.begin_timestamp or 0 for row in rows)
    for row in rows:
        held = next(
            each
            for each in shop.index._uploaded.segments
            if each.record.base_offset == row.base_offset
        )
        assert held.times().exact
        assert row.begin_timestamp is not None
        assert row.begin_timestamp <= held.times().first
    for name in ("late", *(f"k{number}" for number in range(6))):
        assert len(shop.found(name)) == (1 if name == "late" else 4)


def test_what_was_dropped_of_the_index_is_deleted_by_the_index_alone(tmp_path: Path) -> None:
    """A new file may be uploaded to the place of a dropped one. A queue store that had seen the
    mark for deletion would delete the new file.
    """
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index.seal()
    (row,) = shop.segments()
    shop.catalogue.apply(mark_for_deletion([row]))
    queues = FlatFileStore(
        shop.config, provider=shop.provider, metadata=shop.catalogue, runtime=shop.runtime
    )
    assert queues.delete_pending(is_stopped=lambda: False) == 0
    assert shop.provider.open(row.path, row.type, 0).size() == row.size
    shop.index.step()
    assert not shop.catalogue.notes(DELETION_NOTE)
    assert not list(shop.provider.list(row.path))


def test_messages_that_come_out_of_order_again_and_again_begin_few_files(tmp_path: Path) -> None:
    shop = Shop(tmp_path, slots=500, items=4000)
    for number in range(300):  # each queue is up to half a minute behind the others
        late = 1000 * (number * 7 % 31)
        shop.put([f"k{number}"], queue_id=number % 3, times=[shop.clock.now_ms() - late])
        shop.index._writer.drain()
        shop.clock.advance(1000)
    assert len(shop.local_files()) <= 3


def test_full_files_are_uploaded_and_the_last_one_never_is(tmp_path: Path) -> None:
    shop = Shop(tmp_path, items=20)
    shop.put(["k"] * 50, unique=False)
    shop.index.step()
    assert len(shop.local_files()) == 1
    rows = shop.segments()
    assert len(rows) == 2
    assert [row.begin_timestamp for row in rows] == [STORE_TIMESTAMP - 1001, STORE_TIMESTAMP - 1000]
    assert rows[1].base_offset == rows[0].size
    assert len(shop.found("k")) == 50
    shop.index.step()
    assert len(shop.segments()) == 2


def test_a_put_that_fills_a_file_wakes_whoever_uploads_it(tmp_path: Path) -> None:
    shop = Shop(tmp_path, items=20)
    shop.index.start()
    shop.put(["k"] * 50, unique=False)
    assert not shop.segments()  # the keys wait in memory
    shop.clock.advance(1000)
    shop.put(["k"])
    assert len(shop.segments()) == 2


def test_a_shutdown_cuts_an_upload_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    monkeypatch.setattr(shop.index, "_is_closing", True)
    with pytest.raises(StoreClosedError):
        shop.index.seal()
    shop.reopen()
    assert not shop.segments()
    assert shop.found("k") == [(0, 0)]


def test_an_open_that_fails_leaves_no_file_open(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    for _ in range(2):
        shop.put(["k"])
        shop.index._writer.roll()
        shop.clock.advance(1000)
    shop.index.shutdown()
    sound, damaged = (tmp_path / "tiered_index_file" / name for name in shop.local_files())
    damaged.write_bytes(b"x" * damaged.stat().st_size)  # giving it up changes the catalogue
    with pytest.raises(MetadataError):
        shop.open(Faults({0: Fault.BEFORE}))
    assert str(sound) not in open_below(tmp_path)


def test_small_files_stay_local_over_restarts(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    for number in range(4):
        shop.put([f"k{number}"])
        shop.index.step()
        shop.reopen()
        shop.clock.advance(60_000)
    assert shop.local_files() == [str(STORE_TIMESTAMP)]
    assert not shop.segments()
    for number in range(4):
        assert shop.found(f"k{number}") == [(0, 1000 * number)]


def test_a_file_that_is_not_empty_is_uploaded_when_it_is_a_day_old(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index.step()
    shop.clock.advance(23 * HOUR_MS)
    shop.index.step()
    assert not shop.segments()
    shop.clock.advance(HOUR_MS)
    shop.index.step()
    assert len(shop.segments()) == 1
    assert not shop.local_files()
    assert shop.found("k") == [(0, 0)]
    shop.clock.advance(24 * HOUR_MS)
    shop.index.step()
    assert len(shop.segments()) == 1


def test_seal_uploads_what_there_is_and_a_reader_elsewhere_finds_it(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    reader = shop.reader()
    shop.put(["k"])
    assert not reader.query(TOPIC, shop.topic_id, "k", **ALL).hits
    shop.index.seal()
    assert not shop.local_files()
    assert len(reader.query(TOPIC, shop.topic_id, "k", **ALL).hits) == 1
    shop.index.seal()
    assert len(shop.segments()) == 1
    shop.put(["k"])
    assert shop.found("k") == [(0, 1000), (0, 0)]


def test_a_message_with_more_keys_than_a_file_holds_is_parted(tmp_path: Path) -> None:
    shop = Shop(tmp_path, items=10)
    shop.put(["before", " ".join(f"k{number}" for number in range(35)), "behind"])
    for number in range(35):
        assert shop.found(f"k{number}") == [(0, 1000)]
    assert shop.found("before") == [(0, 0)]
    assert shop.found("behind") == [(0, 2000)]
    shop.index.step()
    assert all(shop.found(f"k{number}") == [(0, 1000)] for number in range(35))


@pytest.mark.parametrize("together", [True, False])
def test_a_message_that_fits_stays_in_one_file(tmp_path: Path, together: bool) -> None:
    shop = Shop(tmp_path, items=10)
    for keys in [["a b c d", "e f g h"]] if together else [["a b c d"], ["e f g h"]]:
        shop.put(keys)
        shop.index._writer.drain()
    shop.index.seal()
    assert [each.item_count() for each in shop.index._uploaded.segments] == [5, 5]
    assert shop.found("a") == [(0, 0)]
    assert shop.found("h") == [(0, 1000)]


def test_uploaded_files_expire_when_all_of_their_messages_are_too_old(tmp_path: Path) -> None:
    shop = Shop(tmp_path, items=20)
    for _ in range(3):
        shop.put(["k"] * 19, unique=False)
        shop.index.seal()
        shop.clock.advance(60_000)
    first = shop.segments()[0]
    assert first.end_timestamp is not None
    assert shop.index.expire(first.end_timestamp) == 0
    _, *kept = shop.index._uploaded.segments
    assert shop.index.expire(first.end_timestamp + 1) == 1
    assert len(shop.segments()) == 2
    assert shop.index._uploaded.segments == tuple(kept), "with what is known of them"
    assert len(shop.found("k")) == 38
    listed = {each.base for each in shop.provider.list(first.path)}
    assert listed == {row.base_offset for row in shop.segments()}


def test_the_bytes_of_expired_files_go_when_readers_elsewhere_were_told(tmp_path: Path) -> None:
    shop = Shop(tmp_path, items=20)
    shop.index.shutdown()
    told: list[tuple[int, int]] = []

    def listed() -> int:
        return len(list(shop.provider.list()))

    def publish() -> bool:
        told.append((len(shop.segments()), listed()))
        return is_answered

    is_answered = False
    index = shop.open(publish=publish)
    for _ in range(2):
        shop.put(["k"] * 19, unique=False)
        index.seal()
        shop.clock.advance(60_000)
    assert told == [(0, 0), (1, 1)]  # before each upload, and not for a deletion
    told.clear()
    assert index.expire((shop.segments()[0].end_timestamp or 0) + 1) == 1
    assert told == [(1, 2)]
    assert listed() == 2
    assert len(shop.found("k")) == 19
    is_answered = True
    index.step()
    assert listed() == 1


def test_when_the_first_file_expires_the_next_one_begins_before_the_others(tmp_path: Path) -> None:
    """RocketMQ regards files that begin before the first one as expired."""
    shop = Shop(tmp_path)
    begins = [STORE_TIMESTAMP, STORE_TIMESTAMP + 60_000, STORE_TIMESTAMP + 30_000]
    for begin in begins:
        shop.put(["k"], times=[begin])
        shop.index.seal()
    assert shop.index.expire(begins[0] + 1) == 1
    first, second = shop.segments()
    assert second.begin_timestamp is not None
    assert first.begin_timestamp == second.begin_timestamp - 1
    assert len(shop.found("k")) == 2


@pytest.mark.parametrize("cut", [0, 1, 28])
def test_an_upload_of_rocketmq_that_was_not_noted_counts_where_it_is_whole(
    tmp_path: Path, cut: int
) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"], unique=False)
    shop.index.seal()
    shop.drop_footer(1)
    whole = bytes(shop.uploaded_bytes())
    shop.replace_uploaded(whole[: len(whole) - cut], begin_timestamp=None)
    shop.reopen()
    assert len(shop.segments()) == (cut == 0)
    assert shop.found("k") == ([] if cut else [(0, 0)])


def test_a_file_of_rocketmq_with_a_senseless_end_expires_a_day_after_its_upload(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"], unique=False)
    shop.index.seal()
    shop.drop_footer(1, end_timestamp=1 << 60)
    shop.reopen()
    day = 24 * HOUR_MS
    assert shop.index.expire(STORE_TIMESTAMP + day) == 0
    assert shop.index.expire(STORE_TIMESTAMP + day + 1) == 1


@pytest.mark.parametrize("length", [0, 1, 60, 200])
def test_a_file_that_lost_its_end_expires_by_its_row(tmp_path: Path, length: int) -> None:
    """Otherwise no file after it would expire either."""
    shop = Shop(tmp_path, items=20)
    for number in range(2):
        shop.put([f"k{number}"], times=[STORE_TIMESTAMP + number])
        shop.index.seal()
    row = shop.segments()[0]
    shop.replace_uploaded(bytes(shop.provider.open(*row.key).read(0, length)))
    shop.catalogue.put(row)
    shop.reopen()
    assert shop.index.expire(STORE_TIMESTAMP + HOUR_MS) == 2


def test_an_old_file_behind_a_younger_one_stays(tmp_path: Path) -> None:
    """The rows of files must be adjacent, so none in the middle can be deleted."""
    shop = Shop(tmp_path, items=20)
    hour_ago = STORE_TIMESTAMP - HOUR_MS
    for number, time in enumerate((STORE_TIMESTAMP, hour_ago)):
        shop.put([f"k{number}"], times=[time])
        shop.index.seal()
    assert shop.index.expire(hour_ago + 1) == 0
    assert len(shop.segments()) == 2
    assert shop.index.expire(STORE_TIMESTAMP + 1) == 2


def test_no_more_keys_wait_for_a_file_than_memory_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "PENDING_KEYS_MAX", 5)
    shop = Shop(tmp_path)
    waiting = []
    for _ in range(3):
        shop.put(["k"] * 3, unique=False)
        waiting.append(shop.index._writer._pending_keys)
    assert waiting == [3, 3, 3]
    shop.put(["k"] * 2, unique=False)
    assert shop.index._writer._pending_keys == 5
    assert len(shop.found("k")) == 11


def test_keys_that_are_in_a_file_wait_no_longer() -> None:
    runs = [
        PendingKeys(
            queue=QueueId(1, 0),
            first_offset=count,
            keys=RunKeys(
                columns=columns_of([Row("T#k", 1, 0, n, 9, BEGIN) for n in range(count)]),
                key_counts=np.ones(count, np.int64),
            ),
        )
        for count in (3, 4, 2)
    ]
    for done, left in ((0, [3, 4, 2]), (2, [1, 4, 2]), (3, [4, 2]), (5, [2, 2]), (8, [1]), (9, [])):
        found = still_pending(runs, done)
        assert [len(run.keys.columns) for run in found] == left
        assert [int(run.keys.key_counts.sum()) for run in found] == left


@pytest.mark.parametrize(("second", "end"), [(10, 12), (11, 10)])
def test_units_are_read_up_to_a_gap(
    tmp_path: Path, second: int, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploaded_module, "UNITS_AT_ONCE", 4)
    shop = Shop(tmp_path)
    path, kind = f"{BROKER}/{TOPIC}/0", SegmentType.CONSUME_QUEUE
    for first, count in ((0, 10), (second, 5)):
        data = b"".join(
            encode_unit(log_offset=100 * n, message_bytes=9, tags_code=0)
            for n in range(first, first + count)
        )
        shop.provider.open(path, kind, 20 * first).write(0, data)
        row = SegmentRecord(path=path, type=kind, base_offset=20 * first, size=len(data))
        shop.catalogue.put(row)
    units = shop.index._uploaded.queue_units(path, 3, 12)
    found = [int(each) // 100 for some in units for each in some.log_offsets]
    assert found == list(range(3, end))


def test_an_index_that_is_only_read_takes_nothing_and_destroys_nothing(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index.seal()
    with pytest.raises(BackendRefusedError, match="opened for reading"):
        shop.reader().destroy()
    assert len(shop.found("k")) == 1
    reader = shop.reader()
    assert reader.figures == IndexFigures(uploaded_count=1)
    reader.shutdown()
    with pytest.raises(StoreClosedError):
        reader.query(TOPIC, shop.topic_id, "k", **ALL)


def test_a_reader_believes_the_sizes_that_are_noted(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index._writer.drain()
    other = dataclasses.replace(shop.config, index_slot_count=7, index_item_count=ITEMS + 7)
    reader = UploadedIndex(
        other,
        provider=shop.provider,
        metadata=shop.catalogue,
        runtime=shop.runtime,
        local_folder=tmp_path / "tiered_index_file",
    )
    reader.load()
    answer = reader.query(TOPIC, shop.topic_id, "k", **ALL)
    assert (len(answer.hits), answer.complete) == (1, True)


def test_a_reader_that_finds_damage_asks_for_newer_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index.seal()
    data = shop.uploaded_bytes()
    data[28 + 8 * SLOTS] ^= 1
    shop.replace_uploaded(bytes(data))
    refreshed: list[str] = []
    monkeypatch.setattr(shop.provider, "refresh", lambda: refreshed.append("files"))
    assert not shop.reader().query(TOPIC, shop.topic_id, "k", **ALL).complete
    assert refreshed == ["files"]


def test_without_an_index_no_answer_is_complete() -> None:
    answer = NoIndex().query(TOPIC, 0, "k", count_max=1, begin=0, end=1)
    assert not answer.complete
    assert not answer.hits


def test_times_whose_keys_were_dropped_stay_dropped_where_the_clock_is_set_back(
    tmp_path: Path,
) -> None:
    """A later drop of older keys, as of messages that were loaded, must not hide the first one."""
    shop = Shop(tmp_path)
    marks = Watermarks(shop.catalogue, BROKER)
    ahead, minute = 365 * 24 * HOUR_MS, 60_000
    shop.put(["k"])
    shop.index.seal()
    assert shop.index.expire(STORE_TIMESTAMP + ahead) == 1
    shop.put(["k"], times=[STORE_TIMESTAMP - 2 * minute])
    shop.index.seal()
    assert shop.index.expire(STORE_TIMESTAMP - minute) == 1
    assert STORE_TIMESTAMP < (marks.dropped_before() or 0) <= STORE_TIMESTAMP + 24 * HOUR_MS


def test_the_longest_reserve_hours_of_a_topic_keep_the_index(tmp_path: Path) -> None:
    shop = Shop(tmp_path, reserve_hours=2)
    shop.catalogue.add_topic("Kept", reserve_hours=5)
    shop.put(["k"])
    shop.index.seal()
    shop.clock.advance(5 * HOUR_MS)
    shop.index.step()
    assert len(shop.segments()) == 1
    shop.clock.advance(1)
    shop.index.step()
    assert not shop.segments()
    shop.put(["k"])
    shop.index.seal()
    assert shop.segments()[0].base_offset > 0  # offsets are never reused


def test_nothing_expires_where_expiry_is_off(tmp_path: Path) -> None:
    shop = Shop(tmp_path, expiry_enabled=False)
    shop.put(["k"])
    shop.index.seal()
    shop.clock.advance(9_000 * HOUR_MS)
    shop.index.step()
    assert len(shop.segments()) == 1


def test_an_upload_that_fails_is_tried_again_and_hides_nothing(tmp_path: Path) -> None:
    shop = Shop(tmp_path, items=20)
    shop.put(["k"] * 50, unique=False)
    assert len(shop.found("k")) == 50
    shop.faults.always = Fault.BEFORE
    shop.index.step()
    assert "before it has an effect" in str(shop.index.failure)
    shop.faults.forgive()
    assert len(shop.found("k")) == 50
    shop.index.step()
    assert not any(row.size for row in shop.segments())  # not tried again at once
    assert "before it has an effect" in str(shop.index.problem)  # shown until the next try
    shop.clock.advance(60_000)
    shop.index.step()
    assert str(shop.index.failure) == "None"
    assert len(shop.segments()) == 2
    assert len(shop.found("k")) == 50


def test_a_clock_that_is_set_back_delays_no_upload_and_no_mark(tmp_path: Path) -> None:
    shop = Shop(tmp_path, items=20)
    shop.put(["k"] * 30, unique=False)
    shop.faults.always = Fault.BEFORE
    shop.index.step()
    assert shop.index.problem
    shop.faults.forgive()
    shop.put(["k"], unique=False)
    shop.clock._start_ms -= 24 * HOUR_MS
    shop.clock.advance(60_000)
    shop.index.step()
    assert len(shop.segments()) == 1
    assert not shop.index.problem
    shop.crash()
    assert shop.open().indexed_offset(TOPIC, shop.topic_id, 0) == 31


def test_an_upload_whose_reply_is_lost_is_not_made_twice(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    at = 0
    while True:
        shop.faults.strike(Fault.AFTER, after=at)
        try:
            shop.index.seal()
        except Exception:  # noqa: BLE001 - wherever it strikes
            assert shop.found("k") == [(0, 0)] or shop.faults.steps
            shop.faults.forgive()
            shop.index.seal()
        else:
            break
        assert len(shop.segments()) == at + 1
        shop.put(["k"])
        shop.reopen()
        at += 1
        assert len(shop.found("k")) == at + 1
    assert at >= 3


def test_other_sizes_than_those_of_the_store_are_refused(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index.shutdown()
    for config in (
        dataclasses.replace(shop.config, index_slot_count=62),
        dataclasses.replace(shop.config, index_item_count=ITEMS + 1),
    ):
        with pytest.raises(InvalidConfigError, match="must never change"):
            shop.open(config=config)
    shop.open()
    assert shop.found("k") == [(0, 0)]


def test_an_index_that_is_shut_down_holds_no_file_open(tmp_path: Path) -> None:
    shop = Shop(tmp_path, items=20)
    shop.put(["k"] * 50)
    shop.index.step()
    shop.index.seal()
    shop.put(["k"] * 5)
    shop.index.shutdown()
    assert open_below(tmp_path) == []


def test_a_closed_index_says_so(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index.shutdown()
    shop.index.shutdown()
    with pytest.raises(StoreClosedError):
        shop.ask("k")
    with pytest.raises(StoreClosedError):
        shop.put(["k"])


def test_a_question_during_a_shutdown_is_never_answered_without_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path)
    shop.upload_files(1)
    reader, index = shop.reader(), shop.index

    def then(call: Callable[[], Any], end: Callable[[], None]) -> Callable[[], Any]:
        def both() -> Any:
            result = call()
            end()
            return result

        return both

    table, writer = reader._uploaded, index._writer
    monkeypatch.setattr(table, "refresh", then(table.refresh, reader.shutdown))
    monkeypatch.setattr(writer, "has_drained", then(writer.has_drained, index.shutdown))
    for asked in (reader, index):
        with pytest.raises(StoreClosedError):
            asked.query(TOPIC, shop.topic_id, "k", **ALL)


@pytest.mark.parametrize("is_closed", [False, True])
def test_destroy_leaves_nothing(tmp_path: Path, is_closed: bool) -> None:
    shop = Shop(tmp_path, items=20)
    shop.put(["k"] * 50, unique=False)
    shop.index.step()
    if is_closed:
        shop.index.shutdown()
    shop.index.destroy()
    assert not open_below(tmp_path)
    assert not shop.segments()
    assert not list(shop.provider.list("broker-a/rmq_sys_INDEX"))
    assert not shop.local_files()
    shop.open()
    assert shop.found("k") == []
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 0


def test_a_failing_disk_of_the_backend_is_named(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.faults.always = Fault.BEFORE
    with pytest.raises(Exception, match="before it has an effect") as caught:
        shop.index.seal()
    assert not isinstance(caught.value, BackendUnavailableError) or caught.value.path


def test_questions_while_files_are_filled_and_uploaded_miss_nothing(tmp_path: Path) -> None:
    shop = Shop(tmp_path, items=200, expiry_enabled=False)
    shop.index.shutdown()
    with Runtime.threads(fetch_threads=4) as runtime:
        shop.open(runtime=runtime)
        shop.index.start()
        put = 0
        failures: list[BaseException] = []
        done = threading.Event()

        def ask() -> None:
            try:
                while not done.is_set():
                    before = put
                    answer = shop.ask("k")
                    assert answer.complete
                    assert len(answer.hits) >= before
            except BaseException as error:  # noqa: BLE001 - for the main thread
                failures.append(error)

        with running(*[ask] * 3):
            for _ in range(60):
                shop.put(["k"] * 25, unique=False)
                put += 25
            done.set()
        assert not failures
        shop.index.seal()
        assert len(shop.found("k")) == 60 * 25
        assert not shop.local_files()
        shop.index.shutdown()


def test_a_question_under_which_files_always_go_has_an_answer_that_is_not_complete(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path)
    shop.upload_files(1)
    gone = []

    def turn_over() -> None:
        shop.provider.before_read = lambda: None
        shop.upload_files(1)
        gone.append(shop.index.expire(shop.clock.now_ms() - 60_000))
        shop.provider.before_read = turn_over

    shop.provider.before_read = turn_over
    assert shop.ask("k") == IndexAnswer(complete=False)
    assert gone == [1] * ASKED_AGAIN_MAX
    shop.provider.before_read = lambda: None
    assert len(shop.found("k")) == 1


def test_a_question_asked_in_the_pool_itself_never_waits_for_the_pool(tmp_path: Path) -> None:
    shop = Shop(tmp_path, items=20, expiry_enabled=False)
    shop.put(["k"] * 190, unique=False)
    shop.index.seal()
    shop.index.shutdown()
    with Runtime.threads(fetch_threads=2) as runtime:
        shop.open(runtime=runtime)

        def ask() -> IndexAnswer:
            return shop.ask("k")

        answers = [runtime.fetch.submit(ask) for _ in range(30)]
        assert all(len(answer.result(timeout=240).hits) == 190 for answer in answers)
        shop.index.shutdown()


def test_many_threads_fill_files_side_by_side(tmp_path: Path) -> None:
    shop = Shop(tmp_path, slots=500, items=2001, expiry_enabled=False)
    shop.commit(0)
    runs = {
        queue_id: [a_record(n, properties={"KEYS": "k"}) for n in range(1000)]
        for queue_id in range(6)
    }

    def put(queue_id: int) -> None:
        for first in range(0, 1000, 50):
            shop.give(first, runs[queue_id][first : first + 50], queue_id)

    with running(*(partial(put, queue_id) for queue_id in runs)):
        pass
    assert len(shop.found("k")) == 6000
    assert len(shop.local_files()) == 3
    assert len(shop.found("k", count_max=10)) == 10
    shop.index.seal()
    assert len(shop.found("k")) == 6000


def test_a_vanished_oldest_file_does_not_keep_the_others_from_expiring(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.upload_files(3, apart_ms=HOUR_MS)
    (first, _, _) = shop.segments()
    shop.provider.open(first.path, first.type, first.base_offset).delete()
    shop.index._cache.clear()
    shop.reopen()
    assert shop.index.expire(STORE_TIMESTAMP + HOUR_MS + 1) == 2
    assert len(shop.segments()) == 1
    assert shop.found("k") == [(0, 2000)]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_file_begun_by_a_clock_that_was_ahead_is_uploaded_in_time(
    tmp_path: Path, restarted: bool
) -> None:
    shop = Shop(tmp_path)
    shop.clock.advance(1000 * HOUR_MS)
    shop.put(["k"])
    shop.index._writer.drain()
    shop.clock._passed_ms -= 1000 * HOUR_MS  # the clock is corrected
    if restarted:
        shop.reopen()
    shop.index.step()
    assert not shop.segments()
    shop.clock.advance((shop.config.index_rolling_hours + 1) * HOUR_MS)
    shop.index.step()
    assert len(shop.segments()) == 1


def test_a_file_whose_row_was_cut_is_damage_and_not_empty() -> None:
    with pytest.raises(SegmentCorruptError):
        UploadedFile.open(lambda position, length: bytes(length), 28, slot_count=61)


def test_a_copy_that_the_disk_cannot_read_costs_a_read_and_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index.seal()
    assert shop.found("k") == [(0, 0)]

    def broken(position: int, length: int) -> bytes:
        raise OSError(5, "the disk is broken")

    file = shop.index._uploaded.segments[0].file()
    near = file.near
    assert near is not None
    monkeypatch.setattr(file, "near", NearFooter(footer=near.footer, read=broken))
    assert shop.found("k") == [(0, 0)]


@pytest.mark.parametrize("near", [True, False])
def test_an_item_with_another_bit_makes_the_answer_incomplete_not_shorter(
    tmp_path: Path, near: bool
) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"] * 3, unique=False)
    shop.index.seal()
    data = shop.uploaded_bytes()
    items = 28 + 8 * SLOTS
    for position in range(items, items + 3 * 28):
        data[position] ^= 1 << position % 8
        shop.replace_uploaded(bytes(data))
        asked = shop.index if near else shop.reader()
        answer = asked.query(TOPIC, shop.topic_id, "k", **ALL)
        assert not answer.complete, position
        data[position] ^= 1 << position % 8
    shop.replace_uploaded(bytes(data))
    assert len(shop.found("k")) == 3


def test_a_file_of_an_older_version_has_no_checksums_of_items_and_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = partial(groups_of, version=UNCHECKED)
    monkeypatch.setattr("tieredstore.index.compaction.groups_of", older)
    shop = Shop(tmp_path)
    shop.put(["k", "l", "k"])
    shop.index.seal()
    footer = shop.index._uploaded.segments[0].file().footer
    assert footer is not None
    assert footer.version == UNCHECKED
    assert len(shop.found("k")) == 2
    assert len(shop.reader().query(TOPIC, shop.topic_id, "k", **ALL).hits) == 2


def steps_that_read(shop: Shop, *, then: Callable[[], bool] = lambda: True) -> Iterator[int]:
    """Which of six steps read the backend; `then` must hold after each."""
    for step in range(6):
        shop.provider.reads.clear()
        shop.index.step()
        if shop.provider.reads:
            yield step
        assert then()


@pytest.mark.parametrize("harm", ["gap", "small cache"])
def test_a_file_whose_fences_cannot_be_kept_is_not_read_at_every_step(
    tmp_path: Path, harm: str
) -> None:
    cache_bytes = 4096 if harm == "small cache" else 1 << 30
    shop = Shop(tmp_path, index_footer_cache_bytes=cache_bytes)
    shop.put(["k"] * 5, unique=False)
    shop.index.seal()
    data = shop.uploaded_bytes()[: 28 + 8 * SLOTS + 28 * 5]
    if harm == "gap":
        at = 28 + 8 * (SLOTS - 1)
        data[at : at + 8] = (28).to_bytes(4) + (28).to_bytes(4)
    shop.replace_uploaded(bytes(data))
    shop.reopen()
    for _ in range(10):
        shop.ask("k")
    assert [*steps_that_read(shop)] == ([0] if harm == "gap" else [])
    assert not shop.index.problem


@pytest.mark.parametrize("harm", ["footer", "disk", "begin"])
def test_a_copy_that_comes_to_nothing_is_not_made_at_every_step(tmp_path: Path, harm: str) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"] * 5, unique=False)
    shop.index.seal()
    if harm == "footer":
        data = shop.uploaded_bytes()
        data[-20] ^= 1
        shop.replace_uploaded(bytes(data))
    if harm == "begin":  # the file of another program says that it begins before its row does
        begin = shop.segments()[0].begin_timestamp
        assert begin is not None
        shop.drop_footer(5, begin_timestamp=begin + 1)
    folder = shop.index._cache.folder
    shutil.rmtree(folder)
    if harm == "disk":
        folder.touch()  # so that nothing can be written below it
    shop.reopen()
    for _ in range(10):
        shop.ask("k")
    read_at = [*steps_that_read(shop, then=lambda: len(shop.found("k")) == 5)]
    assert read_at == ([] if harm == "footer" else [0])
    assert not shop.index.problem


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_HALF])
def test_a_crash_at_any_step_of_an_expiry_leaves_no_bytes_behind(
    tmp_path: Path, fault: Fault
) -> None:
    before = STORE_TIMESTAMP + 60_001

    def expire(step: int) -> tuple[Shop, list[int]]:
        shop = Shop(tmp_path / f"{step}")
        shop.upload_files(3)
        ends = [row.end_offset for row in shop.segments()]
        shop.faults.strike(fault, after=step)
        with suppress(SimulatedCrash):
            assert shop.index.expire(before) == 2
        return shop, ends

    def check(left: tuple[Shop, list[int]], step: int) -> bool:
        shop, ends = left
        if not shop.faults.crashed:
            return False
        shop.crash()
        shop.open()
        assert put_again(shop) == 0
        kept = shop.found("k")
        assert kept[0] == (0, 2000)
        assert len(kept) == len(shop.segments())
        shop.index.expire(before)
        assert shop.found("k") == [(0, 2000)]
        shop.reopen()
        listed = [(each.base, each.size) for each in shop.provider.list(INDEX_PATH)]
        assert listed == [(row.base_offset, row.size) for row in shop.segments()]
        shop.put(["k"])
        shop.index.seal()
        assert [row.base_offset for row in shop.segments()] == ends[1:]  # never reused
        assert len(shop.found("k")) == 2
        return True

    assert every_step(expire, check) == 4  # rows, two files, notes


def test_what_expires_while_the_last_file_goes_is_never_at_an_old_place(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index.seal()
    end = shop.segments()[0].end_offset
    shop.faults.strike(Fault.CRASH_AFTER, after=0)
    with pytest.raises(SimulatedCrash):
        shop.index.expire(1 << 60)
    shop.crash()
    shop.open()
    shop.put(["k"])
    shop.index.seal()
    assert [row.base_offset for row in shop.segments()] == [end]
    assert shop.found("k") == [(0, 1000)]


def test_marks_of_queues_and_topics_that_are_gone_go_at_the_next_open(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    for queue_id in (0, 1):
        shop.put(["k"], queue_id=queue_id)
    shop.catalogue.put_note("index-queue", "99/0", 5)
    shop.index.shutdown()
    path = f"{BROKER}/{TOPIC}/1"
    shop.catalogue.delete_segment(path, SegmentType.CONSUME_QUEUE, 0)
    shop.catalogue.delete_queue(TOPIC, 1)
    shop.open()
    assert list(shop.catalogue.notes("index-queue")) == [f"{shop.topic_id}/0"]


INDEX = SegmentType.INDEX


def forget_notes(shop: Shop) -> None:
    for kind in ("index", "index-queue", "index-file", "index-start"):
        for key in shop.catalogue.notes(kind):
            shop.catalogue.delete_note(kind, key)


def test_java_leftovers_are_cleared_away(tmp_path: Path) -> None:
    folder = tmp_path / "tiered_index_file"
    (folder / "compacting").mkdir(parents=True)
    (folder / "compacting" / "123").write_bytes(b"half")
    size = file_bytes(slot_count=SLOTS, item_capacity=ITEMS)
    header = encode_header(TieredIndexHeader(begin_timestamp=STORE_TIMESTAMP - 77))
    (folder / "0000").write_bytes(header.ljust(size, b"\0"))
    (folder / "1111").write_bytes(bytes(size))
    (folder / "2222").write_bytes(bytes(44 + 8 * SLOTS + 32 * ITEMS))
    shop = Shop(tmp_path)
    assert shop.local_files() == [str(STORE_TIMESTAMP - 77)]
    assert not (folder / "compacting").exists()
    shop.put(["k"])
    assert shop.found("k") == [(0, 0)]


@pytest.mark.parametrize("begin", [0, -1])
def test_a_file_of_rocketmq_5_1_without_a_sensible_begin_goes(tmp_path: Path, begin: int) -> None:
    """The file never had a key, or is damaged."""
    folder = tmp_path / "tiered_index_file"
    folder.mkdir()
    header = encode_header(TieredIndexHeader(begin_timestamp=begin))
    (folder / "0000").write_bytes(header.ljust(1000, b"\0"))
    shop = Shop(tmp_path)
    assert not (folder / "0000").exists()
    assert not shop.local_files()


def test_a_local_file_of_rocketmq_5_1_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "tiered_index_file"
    folder.mkdir()
    size = 44 + 8 * SLOTS + 32 * ITEMS
    (folder / "1690000000000").write_bytes(bytes(size))
    shop = Shop(tmp_path)
    assert not shop.local_files()
    shop.put(["k1", "k2"])
    shop.index.shutdown()
    (folder / "1690000000000").write_bytes(bytes(size))
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 0
    assert put_again(shop) == 2
    assert shop.found("k2") == [(0, 1000)]


def test_a_row_without_bytes_goes_and_its_base_is_used(tmp_path: Path) -> None:
    """RocketMQ leaves such a row after a crash in an upload, and for each file without items."""
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index.seal()
    end = shop.segments()[0].size
    unset = SegmentRecord(path=INDEX_PATH, type=INDEX, base_offset=end)
    empty = dataclasses.replace(unset, begin_timestamp=STORE_TIMESTAMP, end_timestamp=0)
    for row in (unset, empty):
        shop.catalogue.put(row)
        shop.reopen()
        assert len(shop.segments()) == 1
    shop.catalogue.put(empty)
    shop.index.shutdown()
    shop.open(Faults(always=None))
    shop.put(["k"])
    shop.index.seal()
    assert [row.base_offset for row in shop.segments()] == [0, end]
    assert len(shop.found("k")) == 2


def test_a_file_that_somebody_else_began_is_searched_whole_and_not_filled(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k1"])
    shop.leave_to_rocketmq()
    shop.open()
    shop.put(["k2"])
    assert shop.found("k1") == [(0, 0)]
    assert shop.found("k2") == [(0, 1000)]
    assert len(shop.local_files()) == 2
    shop.index.step()
    assert len(shop.segments()) == 1
    assert shop.found("k1") == [(0, 0)]


def test_an_older_index_of_somebody_else_is_taken_over_and_not_made_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k1"])
    shop.leave_to_rocketmq()
    forget_notes(shop)  # the catalogue is Java's
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 1
    assert shop.found("k1") == [(0, 0)]


def test_an_index_that_was_taken_over_outlives_a_power_cut(tmp_path: Path) -> None:
    """What RocketMQ wrote last may be only in memory."""
    first, here = tmp_path / "first", tmp_path / "here"
    here.mkdir()
    shop = Shop(first)
    shop.put(["k1"])
    shop.leave_to_rocketmq()
    forget_notes(shop)
    with ForgetfulDisk(here) as disk:
        shutil.copytree(first, here, dirs_exist_ok=True)
        shop.open(config=dataclasses.replace(shop.config, store_path=str(here)))
        assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 1
        left = disk.synced(tmp_path / "left")
        shop.crash()
    shop.open(config=dataclasses.replace(shop.config, store_path=str(left)))
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 1
    assert shop.found("k1") == [(0, 0)]


def test_a_queue_made_anew_after_an_index_was_taken_over_is_indexed_from_its_begin(
    tmp_path: Path,
) -> None:
    """Its first commit passed the end that was taken over; a crash came before it was indexed."""
    shop = Shop(tmp_path)
    shop.put(["k1"])
    shop.leave_to_rocketmq()
    forget_notes(shop)
    shop.clock.advance(1000)
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 1
    shop.clock.advance(1000)
    shop.catalogue.delete_segment(f"{BROKER}/{TOPIC}/0", SegmentType.CONSUME_QUEUE, 0)
    shop.commit(9)
    shop.crash()
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 0


def upload_as_java(shop: Shop, *, items: int) -> None:
    """Upload the only local file as RocketMQ does at shutdown, if it knows this many items."""
    path = shop.local_path()
    file = IndexStoreFile.open(
        path, slot_count=SLOTS, item_capacity=ITEMS, item_count=items, read_only=False
    )
    data = uploaded(file, footer=False)
    shop.provider.open(INDEX_PATH, INDEX, 0).write(0, data)
    row = SegmentRecord(
        path=INDEX_PATH,
        type=INDEX,
        base_offset=0,
        size=len(data),
        create_timestamp=shop.clock.now_ms(),
        begin_timestamp=int(path.name),
        end_timestamp=file.end_timestamp,
    )
    shop.catalogue.put(row)
    file.close()
    path.unlink()


def test_a_file_of_ours_that_rocketmq_uploaded_is_not_put_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k1", "k2"])
    shop.index.shutdown()
    upload_as_java(shop, items=4)
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 2
    assert not shop.catalogue.notes("index-file")
    assert not shop.catalogue.notes("index-start")
    assert shop.found("k2") == [(0, 1000)]
    shop.put(["k3"])
    shop.reopen()
    for number in (1, 2, 3):
        assert shop.found(f"k{number}") == [(0, 1000 * number - 1000)]
    assert sum(file.item_count for file in shop.index._writer.files) == 2  # only those of k3


def test_a_file_of_ours_that_rocketmq_uploaded_and_left_goes_with_its_notes(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k1", "k2"])
    shop.index.shutdown()
    path = shop.local_path()
    data = path.read_bytes()
    upload_as_java(shop, items=4)
    path.write_bytes(data)
    shop.open()
    assert not path.exists()
    assert not shop.catalogue.notes("index-file")
    assert shop.found("k2") == [(0, 1000)]


@pytest.mark.parametrize("queue_id", [0, 3])
@pytest.mark.parametrize("lost", [None, 3, "units"])
def test_what_rocketmq_put_after_us_is_not_put_again(
    tmp_path: Path, lost: int | str | None, queue_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are put again from the first one that RocketMQ's files lack, and all of them if the
    queue cannot be read.
    """
    monkeypatch.setattr(uploaded_module, "COPY_BYTES", 100)
    shop = Shop(tmp_path)
    shop.catalogue.apply([DeleteTopic(TOPIC)])
    shop.topic_id = shop.catalogue.add_topic(TOPIC).topic_id  # not 0
    shop.put(["k0", "k1"], queue_id=queue_id, unique=False)
    shop.index.shutdown()
    shop.clock.advance(1000)
    file = IndexStoreFile.open(shop.local_path(), slot_count=SLOTS, item_capacity=ITEMS)
    numbers = [number for number in range(2, 6) if number != lost]
    places = np.array([1000 * number for number in numbers], np.int64)
    file.put(
        IndexColumns(
            key_hashes=key_hashes([f"{TOPIC}#k{number}" for number in numbers]),
            topic_ids=shop.topic_id,
            queue_ids=queue_id,
            log_offsets=places,
            message_bytes=np.full(len(numbers), 100, np.int64),
            store_timestamps=np.full(len(numbers), shop.clock.now_ms(), np.int64),
        )
    )
    file.close()
    upload_as_java(shop, items=2 + len(numbers))
    shop.commit(6, queue_id)
    units = [
        encode_unit(log_offset=1000 * number, message_bytes=100, tags_code=0) for number in range(6)
    ]
    if lost != "units":
        shop.provider.open(f"{BROKER}/{TOPIC}/{queue_id}", SegmentType.CONSUME_QUEUE, 0).write(
            0, b"".join(units)
        )
    sure = 2 if lost == "units" else lost or 6
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, queue_id) == sure
    shop.reopen()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, queue_id) == sure
    assert shop.found("k2") == [(queue_id, 2000)]


def test_a_file_of_ours_of_which_rocketmq_uploaded_less_is_put_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k1", "k2"])
    shop.index.shutdown()
    upload_as_java(shop, items=2)
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 0
    assert put_again(shop) == 2
    assert shop.found("k2") == [(0, 1000)]


def test_a_file_of_ours_of_which_the_backend_says_nothing_is_put_again(tmp_path: Path) -> None:
    """RocketMQ may have uploaded the file; the index opens all the same."""
    shop = Shop(tmp_path)
    shop.put(["k1", "k2"])
    shop.index.shutdown()
    upload_as_java(shop, items=4)
    shop.open(Faults({0: Fault.BEFORE}))
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 0
    assert put_again(shop) == 2
    assert shop.found("k2") == [(0, 1000)]


def test_a_damaged_file_of_somebody_else_makes_everything_be_put_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k1"])
    shop.reopen()
    path = tmp_path / "tiered_index_file" / str(STORE_TIMESTAMP + 500)
    path.write_bytes(b"x" * file_bytes(slot_count=SLOTS, item_capacity=ITEMS))
    shop.reopen()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 0
    assert not path.exists()
    assert put_again(shop) == 1
    assert shop.found("k1") == [(0, 0)]  # found twice, shown once


def test_other_slots_than_those_of_an_uploaded_file_of_java_are_refused(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"] * 3)
    shop.index.seal()
    shop.drop_footer(6)
    shop.catalogue.delete_note("index", "sizes")
    shop.index.shutdown()
    with pytest.raises(InvalidConfigError, match="another number"):
        shop.open(config=dataclasses.replace(shop.config, index_slot_count=SLOTS + 1))
    shop.open()
    assert len(shop.found("k")) == 3


@pytest.mark.parametrize("version", ["5.1", "later"])
def test_an_uploaded_file_of_rocketmq_says_by_its_length_how_many_slots_it_has(
    tmp_path: Path, version: str
) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index.seal()
    shop.drop_footer(2)
    if version == "5.1":
        magic = BEGIN_MAGIC.to_bytes(4, signed=True)
        shop.replace_uploaded(bytes(shop.uploaded_bytes()) + magic)
    shop.index.shutdown()
    forget_notes(shop)
    shop.open()
    assert len(shop.catalogue.notes("index")) > 0


@pytest.mark.parametrize("uploaded", [False, True])
@pytest.mark.parametrize("local", ["kept", "lost"])
def test_where_the_notes_of_our_own_index_are_lost_all_is_put_again(
    tmp_path: Path, uploaded: bool, local: str
) -> None:
    shop = Shop(tmp_path)
    if uploaded:
        shop.put(["k0"])
        shop.index.seal()
        shop.clock.advance(1000)
        shop.put(["k1", "k2"])
    else:
        shop.put(["k0", "k1", "k2"])
    shop.index.shutdown()
    if local == "lost":
        shutil.rmtree(tmp_path / "tiered_index_file")
    forget_notes(shop)
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 0
    assert put_again(shop) == 3
    for number in range(3):
        assert shop.found(f"k{number}") == [(0, 1000 * number)]


@pytest.mark.parametrize("file", ["local", "footer", "java"])
def test_an_open_with_wrong_sizes_leaves_no_trace(tmp_path: Path, file: str) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    if file != "local":
        shop.index.seal()
    shop.index.shutdown()
    if file == "java":
        shop.drop_footer(2)
    forget_notes(shop)
    wrong = dataclasses.replace(shop.config, index_slot_count=SLOTS + 1)
    with pytest.raises(InvalidConfigError):
        shop.open(config=wrong)
    assert not shop.catalogue.notes("index")
    shop.open()
    put_again(shop)
    assert shop.found("k") == [(0, 0)]


def test_an_index_of_java_is_not_taken_over_unseen(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index.seal()
    shop.index.shutdown()
    shop.drop_footer(2)
    forget_notes(shop)
    with pytest.raises(BackendUnavailableError):
        shop.open(Faults({0: Fault.BEFORE}))
    assert not shop.catalogue.notes("index")
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 1
    assert shop.found("k") == [(0, 0)]


@pytest.mark.parametrize("slots", [SLOTS - 7, SLOTS + 1, SLOTS + 7])
def test_a_reader_with_other_slots_never_says_that_there_is_nothing(
    tmp_path: Path, slots: int
) -> None:
    """An item takes as many bytes as 3.5 slots: a length alone does not tell them apart."""
    shop = Shop(tmp_path)
    shop.put(["k"] * 10)
    shop.index.seal()
    shop.drop_footer(20)
    shop.catalogue.delete_note("index", "sizes")
    shop.config = dataclasses.replace(shop.config, index_slot_count=slots)
    reader = shop.reader()
    answer = reader.query(TOPIC, shop.topic_id, "k", **ALL)
    assert not answer.complete
    assert not answer.hits


def test_a_file_that_somebody_else_made_with_other_sizes_is_refused_and_kept(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index.shutdown()
    path = tmp_path / "tiered_index_file" / str(STORE_TIMESTAMP + 500)
    path.write_bytes(bytes(file_bytes(slot_count=SLOTS + 1, item_capacity=ITEMS)))
    with pytest.raises(InvalidConfigError, match="must never change"):
        shop.open()
    assert path.exists()
    path.unlink()
    shop.open()
    assert shop.found("k") == [(0, 0)]


def test_nothing_is_kept_of_topics_that_are_deleted(tmp_path: Path) -> None:
    """A topic that is created again gets a new number."""
    shop = Shop(tmp_path)
    held = []
    for _ in range(20):
        shop.put(["k"])
        shop.clock.advance(HOUR_MS)
        shop.index.step()
        held.append(len(shop.catalogue.notes("index-queue")) + len(shop.index._writer._taken))
        made = shop.topic_id
        segment = DeleteSegment(f"{BROKER}/{TOPIC}/0", SegmentType.CONSUME_QUEUE, 0)
        shop.catalogue.apply([DeleteTopic(TOPIC), DeleteQueue(TOPIC, 0), segment])
        shop.ends.clear()
        shop.topic_id = shop.catalogue.add_topic(TOPIC).topic_id
        assert shop.topic_id > made
    assert max(held) <= 4
    shop.put(["k"])
    shop.clock.advance(HOUR_MS)
    shop.index.step()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 1
    assert shop.reopen().indexed_offset(TOPIC, shop.topic_id, 0) == 1
