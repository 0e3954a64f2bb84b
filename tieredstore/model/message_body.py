"""Decompresses bodies that a producer compressed.

| bits of the system flag | what                                                    |
| ----------------------- | ------------------------------------------------------- |
| 0x0001                  | the body is compressed                                  |
| 0x0700                  | how: 0x0000 and 0x0300 zlib, 0x0100 LZ4 frames,          |
|                         | 0x0200 Zstandard; every other value is an error         |
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from tieredstore.model.errors import BodyNotPlainError, InvalidConfigError

COMPRESSED: Final = 0x0001
COMPRESSION_MASK: Final = 0x0700
PLAIN_BYTES_MAX: Final = 64 * 1024 * 1024
"""By default no broker accepts a message nearly as large."""

_EXTRA: Final = "compression"
_STEP_BYTES: Final = 1 << 18


def plain_body(body: bytes, sys_flag: int, *, limit: int = PLAIN_BYTES_MAX) -> bytes:
    """The body before its producer compressed it, of at most `limit` bytes; a body that is not
    compressed is returned as it is.

    BodyNotPlainError if it is damaged, too long or compressed in an unknown way; InvalidConfigError
    if a package is missing. Never much more than twice `limit` bytes are held, whatever size the
    body claims.
    """
    if limit < 0:
        raise ValueError(f"limit: {limit} is below 0")
    if not body or not sys_flag & COMPRESSED:
        return body
    code = (sys_flag & COMPRESSION_MASK) >> 8
    found = _WAYS.get(code)
    if found is None:
        raise BodyNotPlainError(f"the body is compressed in the unknown way {code}")
    name, steps = found
    held = bytearray()
    for step in steps(body):
        held += step
        if len(held) > limit:
            raise BodyNotPlainError(
                f"the body has more than {limit} bytes when it is plain, and {len(body)} as it is"
                f" stored ({name})"
            )
    return bytes(held)


def _from_zlib(body: bytes) -> Iterator[bytes]:
    """What follows the end of the stream is ignored, as by Java's consumers."""
    opened = zlib.decompressobj()
    rest = body
    try:
        while rest and not opened.eof:
            yield opened.decompress(rest, _STEP_BYTES)
            rest = opened.unconsumed_tail
        while not opened.eof and (step := opened.decompress(b"", _STEP_BYTES)):
            yield step
    except zlib.error as error:
        raise _damaged("zlib", str(error)) from error
    if not opened.eof:
        raise _damaged("zlib", "it ends too early")


def _from_lz4(body: bytes) -> Iterator[bytes]:
    frame = _package("lz4.frame", "LZ4")
    return _from_frames("LZ4", body, frame.LZ4FrameDecompressor, RuntimeError)


def _from_zstd(body: bytes) -> Iterator[bytes]:
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:  # before Python 3.14
        return _from_zstandard(body)
    return _from_frames("Zstandard", body, zstd.ZstdDecompressor, zstd.ZstdError)


def _from_frames(
    name: str, body: bytes, opening: Callable[[], Any], failure: type[Exception]
) -> Iterator[bytes]:
    """Frames, one after another, with the interface that `bz2` and similar modules share."""
    rest = body
    while rest:
        opened = opening()
        try:
            yield opened.decompress(rest, max_length=_STEP_BYTES)
            while not opened.eof and not opened.needs_input:
                step = opened.decompress(b"", max_length=_STEP_BYTES)
                if not step and not opened.eof:
                    break
                yield step
        except failure as error:
            raise _damaged(name, str(error)) from error
        if not opened.eof:
            raise _damaged(name, "it ends too early")
        rest = opened.unused_data or b""


def _from_zstandard(body: bytes) -> Iterator[bytes]:
    """The `zstandard` package offers either bounded steps or a check that a frame is whole. So the
    body is read in steps, then again, with nothing kept, for the check."""
    package = _package("zstandard", "Zstandard")
    try:
        with package.ZstdDecompressor().stream_reader(body, read_across_frames=True) as opened:
            while step := opened.read(_STEP_BYTES):
                yield step
        rest = body
        while rest:
            frame = package.ZstdDecompressor().decompressobj()
            frame.decompress(rest)  # the steps have shown that it is within the limit
            if not frame.eof:
                raise _damaged("Zstandard", "it ends too early")
            rest = frame.unused_data
    except package.ZstdError as error:
        raise _damaged("Zstandard", str(error)) from error


def _package(name: str, what: str) -> ModuleType:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise InvalidConfigError(
            f"a body is compressed with {what}: pip install 'tieredstore[{_EXTRA}]'"
        ) from error


def _damaged(name: str, reason: str) -> BodyNotPlainError:
    return BodyNotPlainError(f"the compressed body is damaged ({name}): {reason}")


_WAYS: Final[dict[int, tuple[str, Callable[[bytes], Iterator[bytes]]]]] = {
    0: ("zlib", _from_zlib),
    1: ("LZ4", _from_lz4),
    2: ("Zstandard", _from_zstd),
    3: ("zlib", _from_zlib),
}
