"""A body that its producer compressed is made plain, whole or not at all, and within a limit."""

from __future__ import annotations

import builtins
import tracemalloc
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.codec.message import decode_message, encode_message
from tieredstore.model import message_body
from tieredstore.model.errors import BodyNotPlainError, InvalidConfigError
from tieredstore.model.message_body import PLAIN_BYTES_MAX, plain_body
from tieredstore.model.messages import Message
from tieredstore.model.values import Host

ZLIB, LZ4, ZSTD, ZLIB_TOO = 0x0001, 0x0101, 0x0201, 0x0301
MEGABYTE = 1 << 20
Compress = Callable[[bytes], bytes]


def lz4_frames(body: bytes) -> bytes:
    """Compress like Java's LZ4FrameOutputStream: blocks and an end mark, without the total size."""
    made: bytes = pytest.importorskip("lz4.frame").compress(body, store_size=False)
    return made


def zstd_frames(body: bytes) -> bytes:
    """Compress like Java's ZstdOutputStream, also without the total size."""
    made: bytes = (
        pytest.importorskip("zstandard").ZstdCompressor(write_content_size=False).compress(body)
    )
    return made


WAYS = pytest.mark.parametrize(
    ("flag", "compress"),
    [(ZLIB, zlib.compress), (ZLIB_TOO, zlib.compress), (LZ4, lz4_frames), (ZSTD, zstd_frames)],
    ids=["zlib", "zlib as 3", "lz4", "zstd"],
)


@WAYS
@given(body=st.binary(max_size=2_000) | st.integers(0, 600_000).map(lambda size: b"ab" * size))
def test_what_was_compressed_comes_back(flag: int, compress: Compress, body: bytes) -> None:
    stored = compress(body)
    assert plain_body(stored, flag, limit=len(body)) == body
    assert plain_body(stored, flag & ~1) == stored  # the flag says that it is plain already
    if body:
        with pytest.raises(BodyNotPlainError, match=f"more than {len(body) - 1} bytes"):
            plain_body(stored, flag, limit=len(body) - 1)


@WAYS
@given(data=st.data())
def test_damage_is_an_error_or_the_same_body_and_never_anything_else(
    flag: int, compress: Compress, data: st.DataObject
) -> None:
    """Only a checksum, if there is one, reveals flipped bits; a cut is always noticed."""
    body = b"an order of a customer, " * 50
    stored = compress(body)
    cut = data.draw(st.integers(1, len(stored) - 1))
    with pytest.raises(BodyNotPlainError, match="damaged"):
        plain_body(stored[:cut], flag)
    at = data.draw(st.integers(0, len(stored) - 1))
    flipped = bytearray(stored)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = plain_body(bytes(flipped), flag, limit=2 * len(body))
    except BodyNotPlainError:
        return
    assert len(found) <= 2 * len(body)


@WAYS
@given(junk=st.binary(min_size=1, max_size=300))
def test_bytes_that_nobody_compressed_end_in_one_error(
    flag: int, compress: Compress, junk: bytes
) -> None:
    compress(b"")  # skips if the package is missing
    try:
        found = plain_body(junk, flag, limit=MEGABYTE)
    except BodyNotPlainError:
        return
    assert len(found) <= MEGABYTE


@WAYS
def test_a_bomb_is_refused_before_it_is_in_memory(flag: int, compress: Compress) -> None:
    stored = compress(bytes(256 * MEGABYTE))
    tracemalloc.start()
    try:
        with pytest.raises(BodyNotPlainError, match=f"more than {MEGABYTE} bytes when it is plain"):
            plain_body(stored, flag, limit=MEGABYTE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * MEGABYTE
    assert PLAIN_BYTES_MAX < 256 * MEGABYTE
    with pytest.raises(BodyNotPlainError, match=f"more than {PLAIN_BYTES_MAX} bytes"):
        plain_body(stored, flag)


@pytest.mark.parametrize(("flag", "compress"), [(LZ4, lz4_frames), (ZSTD, zstd_frames)])
def test_frames_behind_each_other_are_one_body_and_what_is_no_frame_is_damage(
    flag: int, compress: Compress
) -> None:
    stored = compress(b"one, ") + compress(b"two")
    assert plain_body(stored, flag) == b"one, two"
    with pytest.raises(BodyNotPlainError):
        plain_body(stored + b"and more", flag)


@pytest.mark.parametrize("flag", [0x0401, 0x0501, 0x0601, 0x0701])
def test_an_unknown_way_to_compress_is_an_error(flag: int) -> None:
    with pytest.raises(BodyNotPlainError, match=f"unknown way {flag >> 8}"):
        plain_body(b"x", flag)


def test_an_empty_body_is_plain_and_a_limit_is_no_negative_number() -> None:
    assert plain_body(b"", ZLIB) == b""
    assert plain_body(b"", 0x0701, limit=0) == b""
    assert plain_body(b"larger than the limit", 0, limit=3) == b"larger than the limit"
    with pytest.raises(ValueError, match="limit: -1"):
        plain_body(b"", ZLIB, limit=-1)


@pytest.mark.parametrize(
    ("flag", "package", "what"), [(LZ4, "lz4", "LZ4"), (ZSTD, "zstandard", "Zstandard")]
)
def test_a_missing_package_is_an_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, flag: int, package: str, what: str
) -> None:
    known = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.partition(".")[0] in (package, "compression"):
            raise ImportError(name)
        return known(name, *rest, **named)

    def absent(name: str) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return import_module(name)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(InvalidConfigError) as refusal:
        plain_body(b"x", flag)
    assert str(refusal.value) == (
        f"a body is compressed with {what}: pip install 'tieredstore[compression]'"
    )


def test_a_message_and_a_stored_message_have_their_plain_body() -> None:
    body = b"plain " * 100
    stored = zlib.compress(body)
    message = Message(topic="orders", queue_id=0, body=stored, sys_flag=ZLIB)
    assert message.body_decompressed() == body
    host = Host(b"\x7f\x00\x00\x01", 1)
    record = encode_message(
        topic="orders",
        queue_id=0,
        queue_offset=3,
        log_offset=0,
        born_timestamp=1,
        born_host=host,
        store_timestamp=2,
        store_host=host,
        body=stored,
        sys_flag=ZLIB,
    )
    decoded = decode_message(record)
    assert decoded.body == stored
    assert decoded.body_decompressed(limit=600) == body
    with pytest.raises(BodyNotPlainError):
        decoded.body_decompressed(limit=599)
    assert message_body.COMPRESSED & decoded.sys_flag
