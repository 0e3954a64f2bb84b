"""Index files in the long run: expiry, rolling by age, and what fails while they are kept."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from tests.every_step import every_step
from tests.index.store_kit import BROKER, INDEX_PATH, SLOTS, Shop, put_again
from tieredstore.index.footer import NearFooter
from tieredstore.index.uploaded import UploadedFile
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.values import SegmentType
from tieredstore.testing.faults import Fault, SimulatedCrash
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC

HOUR_MS = 3_600_000


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
    shop.clock._passed_ms -= 1000 * HOUR_MS  # it was set right
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
    read_at = []
    for step in range(6):
        shop.provider.reads.clear()
        shop.index.step()
        if shop.provider.reads:
            read_at.append(step)
    assert read_at == ([0] if harm == "gap" else [])
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
        assert [row.base_offset for row in shop.segments()] == ends[1:]  # never used twice
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
