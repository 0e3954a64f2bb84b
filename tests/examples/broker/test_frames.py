"""Frames are read as they were sent, and no bytes crash the decoder or fill memory."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest

from examples.broker.frames import (
    FIELDS_MAX,
    HEADER_BYTES_MAX,
    Command,
    FrameDecoder,
    FrameError,
    encode,
)
from tests.examples.broker.remoting import binary_frame, json_frame, read_frame

FIELDS = {"topic": "заказы", "queueId": "3", "i": "KEYS\x01a b\x02TAGS\x01t\x02", "empty": ""}
FRAME_BYTES = 64 << 10
MEMORY_BYTES = 1 << 20  # for a decoder, its frames and what is made of them


def frames() -> list[bytes]:
    """Frames of both kinds, with and without fields and body."""
    return [
        make(code, opaque, flag, fields, body)
        for make in (json_frame, binary_frame)
        for code, opaque, flag in ((310, 1, 0), (105, 2**31 - 1, 2), (0, -5, 1))
        for fields in ({}, FIELDS)
        for body in (b"", bytes(range(256)))
    ]


@pytest.mark.parametrize("make", [json_frame, binary_frame])
def test_a_command_is_read_whole_however_its_bytes_are_cut(make: object) -> None:
    assert callable(make)
    data = make(310, 77, 2, FIELDS, b"body")
    for cut in range(1, len(data)):
        decoder = FrameDecoder()
        decoder.feed(data[:cut])
        assert decoder.take() is None
        decoder.feed(data[cut:] + data[:3])
        found = decoder.take()
        assert found is not None
        assert (found.code, found.opaque, found.flag) == (310, 77, 2)
        assert (found.fields, found.body, found.is_one_way) == (FIELDS, b"body", True)
        assert decoder.take() is None
        assert decoder.held_bytes == 3


@pytest.mark.parametrize("is_binary", [False, True])
def test_an_answer_is_what_a_client_reads(is_binary: bool) -> None:
    command = Command(
        code=17, opaque=9, flag=1, remark="нет", fields=FIELDS, body=b"x", is_binary=is_binary
    )
    found = read_frame(encode(command)[4:])
    assert (found.code, found.opaque, found.flag, found.remark) == (17, 9, 1, "нет")
    assert (found.fields, found.body) == (FIELDS, b"x")


def test_numbers_and_booleans_of_json_are_text_as_java_writes_it() -> None:
    decoder = FrameDecoder()
    decoder.feed(json_frame(11, 1, 0, {"a": 5, "b": True, "c": None, "d": -1}, b""))
    found = decoder.take()
    assert found is not None
    assert found.fields == {"a": "5", "b": "true", "d": "-1"}


def refused(data: bytes) -> str:
    decoder = FrameDecoder(frame_bytes_max=FRAME_BYTES)
    decoder.feed(data)
    with pytest.raises(FrameError) as error:
        decoder.take()
    return str(error.value)


def with_header(header: bytes, kind: int = 0) -> bytes:
    return struct.pack(">II", 4 + len(header), kind << 24 | len(header)) + header


def test_a_frame_that_is_too_large_is_refused_before_its_bytes_come() -> None:
    assert "more than 65536" in refused(struct.pack(">I", FRAME_BYTES + 1))
    assert "4294967295" in refused(b"\xff" * 4)
    assert "a frame of 3 bytes" in refused(struct.pack(">I", 3))
    assert "a header of 600000 bytes" in refused(struct.pack(">II", 5_000, 600_000))
    assert HEADER_BYTES_MAX < 600_000


@pytest.mark.parametrize(
    ("header", "kind", "reason"),
    [
        (b"{}", 0, "no JSON"),
        (b"[" * 10_000, 0, "no JSON"),
        (b'{"code":1,"extFields":' + b'{"a":' * 5_000, 0, "no JSON"),
        (b'{"code":1,"opaque":4294967296}', 0, "32 bits"),
        (b'{"code":1,"extFields":{"a":[]}}', 0, "no JSON"),
        (b"\xff\xfe", 0, "no JSON"),
        (b"{}", 2, "kind 2"),
        (b"\0" * 16, 1, "ends within"),
        (b"\0" * 12, 1, "too short"),
        (b"\0" * 13 + b"\x7f\xff\xff\xff", 1, "2147483647 bytes claimed"),
        (b"\0" * 13 + b"\xff\xff\xff\xff", 1, "-1 bytes claimed"),
        (b"\0" * 21 + b"more", 1, "4 bytes behind"),
    ],
)
def test_a_header_that_is_none_is_refused(header: bytes, kind: int, reason: str) -> None:
    assert reason in refused(with_header(header, kind))


@pytest.mark.parametrize("make", [json_frame, binary_frame])
def test_a_header_has_so_many_fields_at_most(make: object) -> None:
    assert callable(make)
    fields = {str(number): "" for number in range(FIELDS_MAX + 1)}
    assert f"more than {FIELDS_MAX} fields" in refused(make(1, 1, 0, fields, b""))


def mutated(dice: random.Random, whole: list[bytes]) -> bytes:
    """Some frames in a row, with some bytes changed, removed or added."""
    data = bytearray().join(dice.choices(whole, k=dice.randint(1, 3)))
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(data))
        match dice.randrange(5):
            case 0:
                data[at] ^= 1 << dice.randrange(8)
            case 1:
                data[at] = dice.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del data[at : at + dice.randint(1, 40)]
            case 3:
                data[at:at] = dice.randbytes(dice.randint(1, 40))
            case 4:
                struct.pack_into(">I", data, min(at, len(data) - 4), dice.getrandbits(32))
        if len(data) < 4:
            return bytes(data) + b"\0" * 4
    return bytes(data)


def feed_mutated(count: int) -> None:
    """The decoder never holds more than the largest allowed frame, whatever the bytes claim."""
    dice, whole = random.Random(17), frames()
    read = broken = 0
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(count):
            decoder = FrameDecoder(frame_bytes_max=FRAME_BYTES)
            data = mutated(dice, whole)
            try:
                for start in range(0, len(data), 100):
                    decoder.feed(data[start : start + 100])
                    while (found := decoder.take()) is not None:
                        read += 1
                        assert len(found.body) <= FRAME_BYTES
                    assert decoder.held_bytes <= FRAME_BYTES + 104
            except FrameError:
                broken += 1
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read > count // 4
    assert broken > count // 4
    assert most - before < MEMORY_BYTES


def test_mutated_frames_are_read_or_refused() -> None:
    feed_mutated(2_000)


@pytest.mark.fuzz
def test_many_mutated_frames_are_read_or_refused() -> None:
    feed_mutated(100_000)


@pytest.mark.parametrize("kind", [0, 1])
def test_a_header_of_nothing_but_fields_costs_little_before_it_is_refused(kind: int) -> None:
    if kind:
        fields = b"\0\1a\0\0\0\0" * 70_000
        header = b"\0" * 13 + struct.pack(">ii", 0, len(fields)) + fields
    else:
        fields = b",".join(b'"%x":1' % number for number in range(50_000))
        header = b'{"code":1,"extFields":{' + fields + b"}}"
    assert 400_000 < len(header) < HEADER_BYTES_MAX
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        decoder.feed(with_header(header, kind))
        with pytest.raises(FrameError, match="more than 256 fields"):
            decoder.take()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 20 * HEADER_BYTES_MAX
