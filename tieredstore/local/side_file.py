"""Small JSON files that a store keeps next to RocketMQ's own: written whole, with a checksum."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from tieredstore.codec.checks import crc32
from tieredstore.driver.durable import make_directories, write_atomically
from tieredstore.model.values import INT64_MAX

CHECKSUM: Final = "crc32"
VERSION: Final = 1
MALFORMED: Final = (ValueError, KeyError, TypeError, AttributeError)
"""What a reader may raise for a document that is not of the form it expects."""


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write durably; after a crash the file holds either this document or the previous one."""
    make_directories(path.parent)
    whole = {**document, CHECKSUM: _checksum(document)}
    write_atomically(path, [json.dumps(whole).encode("ascii") + b"\n"])


def read_document(path: Path, *, names: Collection[str]) -> dict[str, Any]:
    """Read a document. Raises FileNotFoundError without a file, ValueError if it is damaged.

    A document without a checksum is from an earlier version. It must have exactly these `names`, so
    that a checksum with a damaged name does not count as missing.
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
    """Parse JSON. Raises ValueError for anything else, even for JSON that nests too deep."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it nests too deep") from None


def check_version(document: Any) -> None:
    if document["version"] != VERSION:
        raise ValueError(f"version {document['version']}")


def whole(value: Any) -> int:
    """A count or an offset. Raises ValueError for anything else, even for true."""
    if type(value) is not int or not 0 <= value <= INT64_MAX:
        raise ValueError(f"{value!r:.40} is no count or offset")
    return value


def _checksum(document: Mapping[str, Any]) -> str:
    plain = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return f"{crc32(plain.encode('ascii')):08x}"
