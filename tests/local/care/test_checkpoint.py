"""The checkpoint: Java's bytes, its rules, and files that are not whole."""

from __future__ import annotations

import os
from pathlib import Path
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.golden_files import GOLDEN, expected
from tieredstore.local.recovery import CheckpointValues, StoreCheckpoint, decode_checkpoint


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.mark.parametrize("folder", ["local-clean", "local-expired"])
def test_a_checkpoint_of_java_is_read_and_written_byte_for_byte(folder: str, path: Path) -> None:
    golden = GOLDEN / folder / "checkpoint"
    want = expected(f"{folder}.expect-state.json")["store"]["checkpoint"]
    values = StoreCheckpoint.open(golden).values
    assert values.log_timestamp == want["physicMsgTimestamp"]
    assert values.queue_timestamp == want["logicsMsgTimestamp"]
    assert values.index_timestamp == want["indexMsgTimestamp"]
    # The answers were given after a recovery, which has set this one in memory.
    assert values.confirmed_offset in (0, want["confirmPhyOffset"])

    written = StoreCheckpoint.open(path)
    written.advance(
        log_timestamp=values.log_timestamp,
        queue_timestamp=values.queue_timestamp,
        index_timestamp=values.index_timestamp,
    )
    written.confirm(values.confirmed_offset)
    assert written.flush()
    assert path.read_bytes() == golden.read_bytes()


def test_the_five_fields_are_five_consecutive_numbers_of_64_bits(path: Path) -> None:
    path.write_bytes(pack(">5q", 0, 0, 0, 4, 0).ljust(4096, b"\x00"))
    checkpoint = StoreCheckpoint.open(path)
    checkpoint.advance(log_timestamp=1, queue_timestamp=2, index_timestamp=3)
    checkpoint.confirm(5)
    checkpoint.flush()
    assert path.read_bytes() == pack(">5q", 1, 2, 3, 4, 5).ljust(4096, b"\x00")


def test_the_minimum_is_three_seconds_below_the_older_of_log_and_queues() -> None:
    assert CheckpointValues(log_timestamp=9000, queue_timestamp=9500).min_timestamp == 6000
    assert CheckpointValues(log_timestamp=9000, queue_timestamp=8000).min_timestamp == 5000
    assert CheckpointValues(log_timestamp=9000, queue_timestamp=2999).min_timestamp == 0
    assert CheckpointValues().min_timestamp == 0


def test_values_survive_a_reopening(path: Path) -> None:
    checkpoint = StoreCheckpoint.open(path)
    checkpoint.advance(log_timestamp=1_700_000_000_000, queue_timestamp=1_700_000_000_005)
    checkpoint.flush()
    again = StoreCheckpoint.open(path)
    assert again.values == checkpoint.values
    assert again.values.min_timestamp == checkpoint.values.min_timestamp == 1_700_000_000_000 - 3000


def test_opening_writes_nothing_and_only_changes_are_written(path: Path) -> None:
    checkpoint = StoreCheckpoint.open(path)
    assert not path.exists()
    assert checkpoint.flush()
    assert not checkpoint.flush()
    assert not StoreCheckpoint.open(path).flush()
    checkpoint.advance(log_timestamp=7)
    assert checkpoint.flush()
    assert StoreCheckpoint.open(path).values.log_timestamp == 7


def test_times_move_back_only_when_the_store_is_cut(path: Path) -> None:
    checkpoint = StoreCheckpoint.open(path)
    checkpoint.advance(log_timestamp=50, queue_timestamp=40, index_timestamp=30)
    checkpoint.advance(log_timestamp=20, queue_timestamp=45)
    assert checkpoint.values == CheckpointValues(
        log_timestamp=50, queue_timestamp=45, index_timestamp=30
    )
    checkpoint.rewind(44)
    assert checkpoint.values == CheckpointValues(
        log_timestamp=44, queue_timestamp=44, index_timestamp=30
    )
    checkpoint.rewind(-1)
    assert checkpoint.values == CheckpointValues()


def test_the_confirmed_offset_moves_both_ways(path: Path) -> None:
    checkpoint = StoreCheckpoint.open(path)
    checkpoint.confirm(9)
    checkpoint.confirm(3)
    assert checkpoint.values == CheckpointValues(confirmed_offset=3)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 20, 39, 40, 4095, 4096, 5000])
def test_a_short_file_knows_less_and_is_whole_after_the_next_flush(path: Path, length: int) -> None:
    whole = pack(">5q", 1, 2, 3, 4, 5).ljust(5000, b"\x00")
    path.write_bytes(whole[:length])
    checkpoint = StoreCheckpoint.open(path)
    known = decode_checkpoint(whole)
    for read, true in zip(
        (checkpoint.values.log_timestamp, checkpoint.values.confirmed_offset),
        (known.log_timestamp, known.confirmed_offset),
        strict=True,
    ):
        assert read in (0, true)
    checkpoint.advance(log_timestamp=9)
    assert checkpoint.flush()
    assert path.stat().st_size == max(4096, length)
    assert StoreCheckpoint.open(path).values.log_timestamp == 9


@given(st.binary(max_size=64))
def test_whatever_the_bytes_are_no_value_is_negative(data: bytes) -> None:
    values = decode_checkpoint(data)
    assert min(values.log_timestamp, values.queue_timestamp, values.index_timestamp) >= 0
    assert min(values.master_flushed_offset, values.confirmed_offset) >= 0
    assert values.min_timestamp >= 0


def test_the_rest_of_the_file_is_left_as_it_was(path: Path) -> None:
    path.write_bytes(pack(">6q", 1, 2, 3, 4, 5, 0) + b"x" * 4048)
    checkpoint = StoreCheckpoint.open(path)
    checkpoint.advance(log_timestamp=9)
    checkpoint.flush()
    assert path.read_bytes()[40:] == bytes(8) + b"x" * 4048


def test_an_offset_that_a_later_version_wrote_is_not_vouched_for(path: Path) -> None:
    """RocketMQ 5.5 takes queues for whole up to it, also where we have cut the log since."""
    path.write_bytes(pack(">6q", 1, 2, 3, 4, 5, 1 << 40) + bytes(4048))
    checkpoint = StoreCheckpoint.open(path)
    checkpoint.flush()
    assert path.read_bytes() == pack(">6q", 1, 2, 3, 4, 5, 0) + bytes(4048)


def test_a_file_that_somebody_removed_is_written_anew(path: Path) -> None:
    checkpoint = StoreCheckpoint.open(path)
    checkpoint.flush()
    path.unlink()
    checkpoint.advance(log_timestamp=9)
    assert checkpoint.flush()
    assert StoreCheckpoint.open(path).values.log_timestamp == 9


def test_a_flush_that_failed_is_made_up_for_by_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = StoreCheckpoint.open(path)
    checkpoint.flush()
    checkpoint.advance(log_timestamp=9)

    def refuse(descriptor: int) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(OSError, match="no space"):
            checkpoint.flush()
    assert checkpoint.flush()
