"""Frames of RocketMQ's remoting protocol: bytes to commands and back, within bounds.

    | width  | field                                                                          |
    | ------ | ------------------------------------------------------------------------------ |
    | u32    | bytes that follow                                                              |
    | u8     | how the header is written: 0 JSON, 1 RocketMQ's own way                        |
    | u24    | bytes of the header                                                            |
    |        | header                                                                         |
    |        | body: the rest                                                                 |

The header in RocketMQ's own way:

    | width  | field                                                                          |
    | ------ | ------------------------------------------------------------------------------ |
    | i16    | code of a request or of an answer                                              |
    | u8     | language of the sender                                                         |
    | i16    | version of the sender                                                          |
    | i32    | opaque: an answer carries its request's                                        |
    | i32    | flag: 1 answer, 2 one-way                                                      |
    | i32, n | remark                                                                         |
    | i32, m | fields, repeated: i16 and name, i32 and value                                  |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from struct import error as struct_error
from typing import Final

import msgspec

FRAME_BYTES_MAX: Final = 16 << 20
HEADER_BYTES_MAX: Final = 512 << 10  # fits 32 KiB of properties with six characters for each byte
FIELDS_MAX: Final = 256

ANSWER: Final = 1
ONE_WAY: Final = 2

_JSON: Final = 0
_BINARY: Final = 1
_LENGTHS: Final = Struct(">II")
_LENGTH: Final = Struct(">I")
_FIXED: Final = Struct(">hBhii")
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_VERSION: Final = 479  # of RocketMQ 5.3.3; tells clients what a broker can do
_INT32_RANGE: Final = range(-(1 << 31), 1 << 31)
_OTHER: Final = 7  # a language without its own number


class FrameError(Exception):
    """The bytes are not a frame, or it is too large: the connection cannot continue."""


@dataclass(slots=True, kw_only=True)
class Command:
    """A request or an answer."""

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_binary: bool = False
    frame_bytes: int = 0  # of one that came: what it may cost

    @property
    def is_answer(self) -> bool:
        return bool(self.flag & ANSWER)

    @property
    def is_one_way(self) -> bool:
        return bool(self.flag & ONE_WAY)


class FrameDecoder:
    """Takes bytes as they arrive and returns the commands in them, one at a time.

    It holds what was fed and not yet taken. If its user takes every command before feeding more,
    that is at most one frame and the rest of the last piece.
    """

    def __init__(
        self, *, frame_bytes_max: int = FRAME_BYTES_MAX, header_bytes_max: int = HEADER_BYTES_MAX
    ) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._header_bytes_max = header_bytes_max
        self._held = bytearray()

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    def feed(self, data: bytes) -> None:
        self._held += data

    def take(self) -> Command | None:
        """The next command; None if more bytes are needed. Raises FrameError."""
        held = self._held
        if len(held) < _LENGTH.size:
            return None
        size: int = _LENGTH.unpack_from(held)[0]
        # Checked before waiting for the frame's bytes: a length is only a claim.
        if not _LENGTH.size <= size <= self._frame_bytes_max:
            raise FrameError(f"a frame of {size} bytes, more than {self._frame_bytes_max} or none")
        if len(held) < _LENGTHS.size:
            return None
        kind_and_size: int = _LENGTHS.unpack_from(held)[1]
        kind, header_size = kind_and_size >> 24, kind_and_size & 0xFFFFFF
        if header_size > min(size - _LENGTH.size, self._header_bytes_max):
            raise FrameError(f"a header of {header_size} bytes in a frame of {size}")
        end = _LENGTH.size + size
        if len(held) < end:
            return None
        header = bytes(held[_LENGTHS.size : _LENGTHS.size + header_size])
        body = bytes(held[_LENGTHS.size + header_size : end])
        del held[:end]
        if kind not in (_JSON, _BINARY):
            raise FrameError(f"a header of kind {kind}")
        command = _of_json(header, body) if kind == _JSON else _of_binary(header, body)
        command.frame_bytes = end
        return command


def encode(command: Command) -> bytes:
    """One frame; ValueError if a value does not fit its field of the header."""
    header = _to_binary(command) if command.is_binary else _to_json(command)
    kind = _BINARY if command.is_binary else _JSON
    size = _LENGTH.size + len(header) + len(command.body)
    return b"".join((_LENGTHS.pack(size, kind << 24 | len(header)), header, command.body))


class _JsonHeader(msgspec.Struct):
    code: int
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    extFields: dict[str, str | int | float | bool | None] | None = None  # noqa: N815 - on the wire


_json_decoder: Final = msgspec.json.Decoder(_JsonHeader)


def _of_json(header: bytes, body: bytes) -> Command:
    try:
        found = _json_decoder.decode(header)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise FrameError(f"a header that is no JSON of a command: {error!s:.200}") from error
    given = found.extFields or {}
    if len(given) > FIELDS_MAX:
        raise FrameError(f"more than {FIELDS_MAX} fields")
    if not all(number in _INT32_RANGE for number in (found.code, found.opaque, found.flag)):
        raise FrameError("a number of more than 32 bits in the header")
    fields = {name: _text(value) for name, value in given.items() if value is not None}
    return Command(
        code=found.code,
        opaque=found.opaque,
        flag=found.flag,
        remark=found.remark,
        fields=fields,
        body=body,
    )


def _text(value: str | float) -> str:
    """The text that Java would write: some clients send numbers and booleans as such."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def _to_json(command: Command) -> bytes:
    header: dict[str, object] = {
        "code": command.code,
        "language": "OTHER",
        "version": _VERSION,
        "opaque": command.opaque,
        "flag": command.flag,
        "extFields": command.fields,
        "serializeTypeCurrentRPC": "JSON",
    }
    if command.remark is not None:
        header["remark"] = command.remark
    return msgspec.json.encode(header)


def _of_binary(header: bytes, body: bytes) -> Command:
    if len(header) < _FIXED.size:
        raise FrameError(f"a header of {len(header)} bytes is too short")
    code, _, _, opaque, flag = _FIXED.unpack_from(header)
    at = _FIXED.size
    remark, at = _piece(header, at, _INT32)
    packed, at = _piece(header, at, _INT32)
    if at != len(header):
        raise FrameError(f"{len(header) - at} bytes behind the fields of a header")
    fields: dict[str, str] = {}
    at = count = 0
    while at < len(packed):
        count += 1
        if count > FIELDS_MAX:
            raise FrameError(f"more than {FIELDS_MAX} fields")
        name, at = _piece(packed, at, _INT16)
        value, at = _piece(packed, at, _INT32)
        fields[_decoded(name)] = _decoded(value)
    return Command(
        code=code,
        opaque=opaque,
        flag=flag,
        remark=_decoded(remark) or None,
        fields=fields,
        body=body,
        is_binary=True,
    )


def _piece(data: bytes, at: int, layout: Struct) -> tuple[bytes, int]:
    """Bytes that follow their length, and where they end."""
    start = at + layout.size
    if start > len(data):
        raise FrameError("a header that ends within a length")
    size: int = layout.unpack_from(data, at)[0]
    if not 0 <= size <= len(data) - start:
        raise FrameError(f"{size} bytes claimed where a header has {len(data) - start}")
    return data[start : start + size], start + size


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FrameError("a header that is no UTF-8") from error


def _to_binary(command: Command) -> bytes:
    remark = (command.remark or "").encode()
    pieces = []
    for name, value in command.fields.items():
        name_bytes, value_bytes = name.encode(), value.encode()
        pieces += [_INT16.pack(len(name_bytes)), name_bytes]
        pieces += [_INT32.pack(len(value_bytes)), value_bytes]
    fields = b"".join(pieces)
    try:
        fixed = _FIXED.pack(command.code, _OTHER, _VERSION, command.opaque, command.flag)
    except struct_error as error:
        raise ValueError(f"a number does not fit a header: {error}") from error
    return b"".join(
        (fixed, _INT32.pack(len(remark)), remark, _INT32.pack(len(fields)), fields),
    )
