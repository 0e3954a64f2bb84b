"""Small JSON files that a store keeps next to RocketMQ's own: written whole, with a checksum."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from tieredstore.codec.checks import crc32
from tieredstore.driver.durable import make_directories, write_atomically

CHECKSUM: Final = "crc32"
VERSION: Final = 1
MALFORMED: Final = (ValueError, KeyError, TypeError, AttributeError)
"""What a reader may raise for a document that is not of the form it expects."""


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Durable on return, and whole after a crash: this one, or the one before."""
    make_directories(path.parent)
    whole = {**document, CHECKSUM: _checksum(document)}
    write_atomically(path, [json.dumps(whole).encode("ascii") + b"\n"])


def read_document(path: Path, *, names: Collection[str]) -> dict[str, Any]:
    """What was written; FileNotFoundError without a file, ValueError where it is damaged.

    A document without a checksum is of an earlier version. It has the `names` that it must have and
    no other: so a checksum whose own name is damaged is not taken for one that was never there.
    """
    document = parsed(path.read_bytes())
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    wanted = document.pop(CHECKSUM, None)
    if document.keys() != set(names):
        raise ValueError(f"it has the names {sorted(document)!r:.200}")
    check_version(document)
    if wanted is not None and wanted != _checksum(document):
        raise ValueError("its checksum is another")
    return document


def parsed(data: bytes) -> Any:
    """JSON. ValueError for anything else, also for what nests too deep."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it nests too deep") from None


def check_version(document: Any) -> None:
    if document["version"] != VERSION:
        raise ValueError(f"version {document['version']}")


def whole(value: Any) -> int:
    """A count or an offset. ValueError for anything else: true is none."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count or offset")
    return value


def _checksum(document: Mapping[str, Any]) -> str:
    plain = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return f"{crc32(plain.encode('ascii')):08x}"
