"""JSON as in the files of RocketMQ's brokers: written by fastjson, with tabs and bare keys.

{                                       one member per line, indented by tabs
    "commitLogFileSegmentTable":{         no space after the colon
            "broker/topic/3":{0:{               an integer key stays on the line, bare
                            "path":"broker/topic/3",
...
                    },1968:{                          and follows its comma at once
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from tieredstore.model.values import Json

NESTING_MAX: Final = 100
"""How deep a note may nest, and an unknown field that is kept as it is."""

# What can be written: like Json, but objects may have integer keys.
Document: TypeAlias = (
    "bool | int | float | str | list[Json] | Mapping[str, Document] | Mapping[int, Document] | None"
)

# A bare key, or something in a string that looks like one. It contains no quote, so it is either
# completely inside a string or completely outside.
_KEY: Final = re.compile(rb"[{,]\s*(-?[0-9]+)\s*:")
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)
# fastjson escapes these and writes everything else as it is.
_SPECIAL = re.compile('[\x00-\x1f"\\\\\x7f-\x9f\u2028\u2029]')
_SHORT_ESCAPES = {
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
    '"': '\\"',
    "\\": "\\\\",
}


def decode(data: bytes) -> dict[str, Json]:
    """The object in a file, with or without bare keys. Raises ValueError for anything else."""
    if not data.strip():
        raise ValueError("the file is empty")
    try:
        document = msgspec.json.decode(_quote_keys(data))
    except RecursionError as error:
        raise ValueError("it nests too deep") from error
    except ValueError as error:  # msgspec's errors, invalid UTF-8, numbers out of range
        raise ValueError(f"it is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError("it holds no JSON object")
    return document


def encode(document: Mapping[str, Document]) -> bytes:
    """The text that fastjson would write for the same tables, byte for byte."""
    return _object(document, "").encode()


def _quote_keys(data: bytes) -> bytes:
    plain = (
        _ESCAPE.sub(b"__", data) if b"\\" in data else data
    )  # each quote begins or ends a string
    parts: list[bytes] = []
    counted = copied = 0
    is_in_string = False
    for found in _KEY.finditer(plain):
        start, end = found.span(1)
        is_in_string ^= plain.count(b'"', counted, start) % 2 == 1
        counted = start
        if not is_in_string:
            parts += (data[copied:start], b'"', data[start:end], b'"')
            copied = end
    parts.append(data[copied:])
    return b"".join(parts)


def _object(members: Mapping[str, Document] | Mapping[int, Document], indent: str) -> str:
    if not members:
        return "{}"
    inner = indent + "\t"
    lines = [
        f"{key}:{value if type(value) is int else _value(value, inner)}"
        if isinstance(key, int)
        else f"\n{inner}{_quoted(key)}:{_value(value, inner)}"
        for key, value in members.items()
    ]
    return f"{{{','.join(lines)}\n{indent}}}"


def _array(items: list[Json], indent: str) -> str:
    if not items:
        return "[]"
    inner = indent + "\t"
    lines = [f"\n{inner}{_value(item, inner)}" for item in items]
    return f"[{','.join(lines)}\n{indent}]"


def _value(value: Document, indent: str) -> str:
    if type(value) is int:
        return str(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, Mapping):
        return _object(value, indent)
    if isinstance(value, list):
        return _array(value, indent)
    return msgspec.json.encode(value).decode()  # null, true, false and floats


def _quoted(text: str) -> str:
    if _SPECIAL.search(text) is None:
        return f'"{text}"'
    return f'"{_SPECIAL.sub(_escape, text)}"'


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return _SHORT_ESCAPES.get(character) or f"\\u{ord(character):04X}"


def refuse_deep(value: Json) -> None:
    level = [value]
    for _ in range(NESTING_MAX):
        below: list[Json] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return
        level = below
    raise ValueError(f"it nests deeper than {NESTING_MAX}")
