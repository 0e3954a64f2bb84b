"""Damaged bytes make decoders raise SegmentCorruptError and nothing else: no crash, no hang, no
large allocation. A number names the same input in every run.

The variable FUZZ_INPUTS says how many inputs each decoder gets in `make fuzz`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

import pytest

from tests.fuzz.decoders import Target, targets
from tests.fuzz.limits import TooSlow, limited_address_space, peak_bytes, time_limits
from tests.fuzz.mutations import mutated
from tieredstore.codec.message import decode_message
from tieredstore.model.errors import SegmentCorruptError

TARGETS = targets()
QUICK_INPUTS = 300
ALL_INPUTS = int(os.environ.get("FUZZ_INPUTS") or 100_000)
SAMPLED_EVERY = 50
# Texts and lists of small tuples take about ten times the room of their bytes.
PEAK_BYTES_FLOOR = 128 << 10
PEAK_BYTES_PER_BYTE = 48


def feed(target: Target, count: int) -> int:
    """Give the decoder `count` inputs; returns how many it could read after all."""
    read = 0
    with limited_address_space(), time_limits() as restart:
        for number in range(count):
            data = mutated(Random(f"{target.name} {number}"), target.seeds)
            restart()
            try:
                if number % SAMPLED_EVERY:
                    decode(target, data, number)
                else:
                    check_peak(target, data, number)
                read += 1
            except target.expected:
                pass
    return read


def decode(target: Target, data: bytes, number: int) -> object:
    kind = (bytes, bytearray, memoryview)[number % 3]
    try:
        return target.decode(kind(data), Random(number))
    except target.refusals:
        raise
    except ValueError:
        raise
    except BaseException as error:
        error.add_note(f"{target.name}, input {number}: {data[:200].hex()}")
        raise


def check_peak(target: Target, data: bytes, number: int) -> None:
    most = PEAK_BYTES_FLOOR + PEAK_BYTES_PER_BYTE * len(data)
    peak = peak_bytes(lambda: decode(target, data, number))
    assert peak <= most, f"{target.name}, input {number}: {peak} bytes for {len(data)}"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_some_damaged_inputs_raise_nothing_of_their_own(target: Target) -> None:
    feed(target, QUICK_INPUTS)


@pytest.mark.fuzz
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_many_damaged_inputs_raise_nothing_of_their_own(target: Target) -> None:
    read = feed(target, ALL_INPUTS)
    assert read > 0, "no input got through: the mutations are too rough to reach the inner checks"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_undamaged_inputs_can_be_read(target: Target) -> None:
    read = 0
    for number in range(100):
        try:
            target.decode(target.seeds[number % len(target.seeds)], Random(number))
            read += 1
        except ValueError:
            assert target.is_text_parser
        except SegmentCorruptError:
            pass  # a random position may lie anywhere
    assert read


def compute_forever(restart: Callable[[], None]) -> None:
    restart()
    while True:
        pass


def test_the_limits_would_notice() -> None:
    with time_limits() as restart, pytest.raises(TooSlow):
        compute_forever(restart)
    with pytest.raises(MemoryError), limited_address_space():
        bytearray(1 << 30)
    assert peak_bytes(lambda: bytearray(10 << 20)) >= 10 << 20
    with pytest.raises(SegmentCorruptError):
        decode_message(bytes(100))
