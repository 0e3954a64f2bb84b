"""Damage for decoders: golden bytes, changed at random from a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

INPUT_BYTES_MAX = 1 << 16

EXTREMES = (0, 1, 2, 3, 4, 7, 8, 16, 20, 28, 32, 127, 128, 255, 256, 32767, 32768, 65535, 65536)
WIDTHS = (1, 2, 4, 8)


def extreme_number(random: Random, near: int) -> int:
    """A number that is often one too many, far too many, or negative."""
    choice = random.randrange(4)
    if choice == 0:
        return random.choice(EXTREMES) * random.choice((1, -1))
    if choice == 1:
        return near + random.randrange(-40, 41)
    if choice == 2:
        return int((1 << random.choice((7, 8, 15, 16, 31, 32, 63, 64))) + random.randrange(-2, 3))
    return random.getrandbits(64) - (1 << 63)


def _flip_bits(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    for _ in range(random.randrange(1, 9)):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _truncate(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    del data[random.randrange(len(data)) :]


def _cut_out(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    start = random.randrange(len(data))
    del data[start : start + random.randrange(1, 65)]


def _insert(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.randbytes(random.randrange(1, 65))


def _splice(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    other = random.choice(seeds)
    at, start = random.randrange(len(data)), random.randrange(len(other) + 1)
    data[at:] = other[start:]


def _overwrite(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at = random.randrange(len(data))
    size = min(len(data) - at, random.randrange(1, 65))
    data[at : at + size] = random.choice((bytes(size), b"\xff" * size, random.randbytes(size)))


def _write_number(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    """Write mostly at even places near the start, where headers hold lengths and counts."""
    width = random.choice(WIDTHS)
    if len(data) < width:
        return
    last = len(data) - width
    at = random.randrange(last + 1) if random.randrange(3) == 0 else 2 * random.randrange(60)
    number = extreme_number(random, len(data)) % (1 << 8 * width)
    at = min(at, last)
    data[at : at + width] = number.to_bytes(width)


MUTATIONS: tuple[Callable[[Random, bytearray, Sequence[bytes]], None], ...] = (
    *(_flip_bits, _truncate, _cut_out, _insert, _splice, _overwrite),
    *(_write_number, _write_number, _write_number),
)


def mutated(random: Random, seeds: Sequence[bytes]) -> bytes:
    """One input: mostly a seed with one to three mutations, sometimes pure noise."""
    if random.randrange(20) == 0:
        return random.randbytes(random.randrange(400))
    data = bytearray(random.choice(seeds))
    for _ in range(random.randrange(1, 4)):
        if data:
            random.choice(MUTATIONS)(random, data, seeds)
    return bytes(data[:INPUT_BYTES_MAX])
