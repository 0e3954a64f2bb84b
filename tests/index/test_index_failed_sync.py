"""A disk that could not write an index file: nothing is believed of it, and all else goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.index.store_kit import Shop, put_again
from tieredstore.testing.faults import Fault
from tieredstore.testing.samples import TOPIC

HALF_MINUTE_MS = 30_000


def fail_next_sync(patch: pytest.MonkeyPatch, calls: int = 1) -> None:
    real, left = os.fdatasync, [calls]

    def fdatasync(descriptor: int) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(5, "the disk is broken")
        real(descriptor)

    patch.setattr(os, "fdatasync", fdatasync)


def problem(shop: Shop) -> str:
    return shop.index.problem or ""


@pytest.mark.parametrize("catalogue_fails", [False, True])
def test_one_failed_sync_stops_neither_puts_nor_uploads_and_loses_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalogue_fails: bool
) -> None:
    shop = Shop(tmp_path, items=1000)
    shop.put(["k0", "k1"])
    shop.index.seal()
    shop.clock.advance(1000)
    shop.put(["k2", "k3"])
    shop.index._writer.drain()
    shop.clock.advance(HALF_MINUTE_MS)
    fail_next_sync(monkeypatch)
    if catalogue_fails:
        shop.faults.strike(Fault.BEFORE, after=1)  # behind the row of the queue
    shop.put(["k4"])  # does not raise
    for number in range(5, 10):
        shop.clock.advance(HALF_MINUTE_MS)
        shop.put([f"k{number}"])
    for number in range(10):
        assert shop.found(f"k{number}") == [(0, 1000 * number)]
    shop.index.step()
    assert "made again after a restart" in problem(shop)
    shop.index.seal()
    shop.index.step()
    assert len(shop.segments()) == 2  # the file that was given up is not uploaded
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 2
    shop.reopen()
    assert not problem(shop)
    assert put_again(shop) == 8
    for number in range(10):
        assert shop.found(f"k{number}") == [(0, 1000 * number)]
    shop.reopen()
    assert put_again(shop) == 0


def test_a_catalogue_that_fails_does_not_make_a_put_fail(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k0"])
    shop.clock.advance(HALF_MINUTE_MS)
    shop.faults.strike(Fault.BEFORE, after=1)
    shop.put(["k1"])
    assert problem(shop)
    shop.index.step()
    assert not problem(shop)
    shop.crash()
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 2


def test_a_torn_file_that_was_never_synced_costs_only_what_it_held(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k0"])
    shop.index.seal()
    shop.clock.advance(1000)
    shop.put(["k1"])
    shop.index._writer.drain()
    shop.crash()
    path = shop.local_path()
    data = path.read_bytes()
    path.write_bytes(b"x" * 28 + data[28:])
    shop.open()
    assert shop.index.indexed_offset(TOPIC, shop.topic_id, 0) == 1
