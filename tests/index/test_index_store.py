"""The life of the key index: files fill, roll, are uploaded, expire, and outlive restarts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.index.store_kit import ALL, ITEMS, Shop
from tieredstore.model.errors import (
    BackendUnavailableError,
    InvalidConfigError,
    StoreClosedError,
)
from tieredstore.testing.faults import Fault
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC

HOUR_MS = 3_600_000


def test_fifty_keys_make_three_files_of_twenty(tmp_path: Path) -> None:
    shop = Shop(tmp_path, items=20)
    shop.put(["k"] * 50, unique=False)
    assert len(shop.found("k")) == 50
    assert len(shop.local_files()) == 3
    begins = [int(name) for name in shop.local_files()]
    assert begins == [STORE_TIMESTAMP - 2000, STORE_TIMESTAMP - 1000, STORE_TIMESTAMP]


def test_no_file_begins_after_a_message_in_it_was_stored(tmp_path: Path) -> None:
    """RocketMQ asks only files that begin before the end of its question."""
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
    # RocketMQ takes files that begin before the first one for expired.
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


def test_a_message_that_fits_stays_in_one_file(tmp_path: Path) -> None:
    shop = Shop(tmp_path, items=10)
    shop.put(["a b c d", "e f g h"])
    shop.index.seal()
    assert len(shop.segments()) == 2
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
    assert shop.index.expire(first.end_timestamp + 1) == 1
    assert len(shop.segments()) == 2
    assert len(shop.found("k")) == 38
    listed = {each.base for each in shop.provider.list(first.path)}
    assert listed == {row.base_offset for row in shop.segments()}


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
    assert shop.segments()[0].base_offset > 0  # offsets are never used twice


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
    assert not any(row.size for row in shop.segments())  # not at once
    shop.clock.advance(60_000)
    shop.index.step()
    assert str(shop.index.failure) == "None"
    assert len(shop.segments()) == 2
    assert len(shop.found("k")) == 50


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


def test_a_closed_index_says_so(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    shop.index.shutdown()
    shop.index.shutdown()
    with pytest.raises(StoreClosedError):
        shop.ask("k")
    with pytest.raises(StoreClosedError):
        shop.put(["k"])


def test_destroy_leaves_nothing(tmp_path: Path) -> None:
    shop = Shop(tmp_path, items=20)
    shop.put(["k"] * 50, unique=False)
    shop.index.step()
    shop.index.shutdown()
    shop.index.destroy()
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
