"""Many bodies checked together get the same verdicts as each body alone."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tieredstore.codec import body_checks
from tieredstore.codec.body_checks import LONG_BYTES, MANY, bodies_match

Rows = NDArray[np.int64]
SIZES = st.sampled_from(
    [(0, 300), (1, 300), (100, 100), (64, 65), (1, 8), (250, 300), (900, 1_100), (0, 2_600)]
)


class Bodies:
    """Random bodies with sizes from a range, and other bytes before, between and after them."""

    def __init__(self, sizes: tuple[int, int], count: int, *, seed: int, before: int = 88) -> None:
        random = np.random.default_rng(seed)
        self.sizes: Rows = random.integers(sizes[0], sizes[1] + 1, count)
        gaps = random.integers(0, 30, count)
        self.starts: Rows = before + np.cumsum(self.sizes + gaps) - self.sizes
        whole = int(self.starts[-1] + self.sizes[-1])
        self.data = bytearray(random.integers(0, 256, whole, np.uint8).tobytes())
        self.crcs: Rows = np.array([self.crc(row) for row in range(count)], np.int64)

    def crc(self, row: int) -> int:
        start, size = int(self.starts[row]), int(self.sizes[row])
        return zlib.crc32(self.data[start : start + size]) & 0x7FFF_FFFF

    def change(self, row: int, byte: int, bits: int) -> None:
        if self.sizes[row]:
            self.data[int(self.starts[row]) + byte % int(self.sizes[row])] ^= bits

    def matches(self) -> list[bool]:
        found: list[bool] = bodies_match(
            bytes(self.data), self.starts, self.sizes, self.crcs
        ).tolist()
        return found

    def wanted(self) -> list[bool]:
        return [self.crc(row) == crc for row, crc in enumerate(self.crcs.tolist())]


changes = st.tuples(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 255))


@given(SIZES, st.integers(1, 2_000), st.integers(0, 2**32), st.lists(changes, max_size=3))
def test_damaged_bodies_are_found_and_no_others(
    sizes: tuple[int, int], count: int, seed: int, damage: Sequence[tuple[int, int, int]]
) -> None:
    bodies = Bodies(sizes, count, seed=seed)
    for row, byte, bits in damage:
        bodies.change(row % count, byte, bits)
    assert bodies.matches() == bodies.wanted()


@given(st.integers(0, 3 * MANY - 1), st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**32))
def test_a_wrong_checksum_is_found(row: int, crc: int, seed: int) -> None:
    bodies = Bodies((100, 120), 3 * MANY, seed=seed)
    bodies.crcs[row] = crc
    assert bodies.matches() == bodies.wanted()


@pytest.mark.parametrize("bit", range(32))
def test_each_bit_that_a_record_says_counts(bit: int) -> None:
    bodies = Bodies((0, 300), 2_000, seed=bit)
    bodies.crcs[777] ^= -(2**31) if bit == 31 else 1 << bit
    assert np.flatnonzero(~np.array(bodies.matches())).tolist() == [777]


def test_the_same_damage_twice_and_bodies_changed_about_are_found() -> None:
    bodies = Bodies((200, 200), 4 * MANY, seed=1)
    for row in (5, 900):
        bodies.change(row, 7, 0x20)
    bodies.crcs[[20, 30]] = bodies.crcs[[30, 20]]
    assert np.flatnonzero(~np.array(bodies.matches())).tolist() == [5, 20, 30, 900]


def test_bodies_at_the_very_beginning_are_checked() -> None:
    for size in (0, 1, 63, 64, 300):
        bodies = Bodies((size, size), 2 * MANY, seed=size, before=0)
        assert all(bodies.matches())
        bodies.change(0, 0, 1)
        bodies.change(2 * MANY - 1, size, 1)
        assert bodies.matches() == bodies.wanted()


def test_damage_is_found_on_both_sides_of_the_end_of_a_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(body_checks, "_BLOCK_BYTES", 8 * 200)
    bodies = Bodies((200, 200), 2 * MANY, seed=4)
    assert all(bodies.matches())
    for row in (0, 7, 8, 15, 16, 2 * MANY - 1):
        bodies.change(row, row, 1)
        assert np.flatnonzero(~np.array(bodies.matches())).tolist() == [row]
        bodies.change(row, row, 1)


def test_sound_bodies_take_a_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def counted(data: bytes, value: int = 0) -> int:
        nonlocal calls
        calls += 1
        return zlib.crc32(data, value)

    bodies = Bodies((1, 300), 4_000, seed=1)
    assert all(bodies.matches())  # this builds the tables
    monkeypatch.setattr(body_checks, "crc32", counted)
    assert all(bodies.matches())
    assert calls < 200


def test_the_last_bits_of_long_bodies_count() -> None:
    bodies = Bodies((LONG_BYTES - 8, LONG_BYTES + 8), 3 * MANY, seed=3)
    for row in range(0, 3 * MANY, 50):
        bodies.change(row, 0, 1)
    assert bodies.matches() == bodies.wanted()
