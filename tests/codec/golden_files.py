"""The files of the Java broker in tests/golden, walked record by record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tieredstore.codec.message import is_blank
from tieredstore.codec.record import peek_message_bytes, tags_code

GOLDEN = Path(__file__).parents[1] / "golden"
CLUSTER = "1cfb8c9b_GoldenCluster"
BROKER = "broker-gold-a"


@cache
def expected(name: str) -> Any:
    """The content of an expectation file; callers share it and must not change it."""
    return json.loads((GOLDEN / name).read_text(encoding="ascii"))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def files_under(folder: str) -> list[Path]:
    return sorted(path for path in (GOLDEN / folder).rglob("*") if path.is_file())


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path in it."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def records(log: bytes) -> Iterator[bytes]:
    """The records of one file of a local log, up to its blank record or its unused end."""
    position = 0
    while position + 8 <= len(log) and not is_blank(log, position):
        size = peek_message_bytes(log, position)
        if size == 0:
            return
        yield log[position : position + size]
        position += size


@cache
def local_records() -> tuple[bytes, ...]:
    """Every record of local-clean, in the order of local-clean.expect-messages.json."""
    logs = files_under("local-clean/commitlog")
    return tuple(record for log in logs for record in records(log.read_bytes()))


def tiered_bytes(root: str, queue_path: str, kind: str) -> dict[int, bytes]:
    """The segments of one queue by base offset."""
    folder = GOLDEN / root / "tiered" / CLUSTER / queue_path / kind
    return {int(path.name[-20:]): path.read_bytes() for path in sorted(folder.iterdir())}


class Subscription:
    """What RocketMQ does with a subscription: it compares only the low 32 bits of the code."""

    def __init__(self, tags: list[str]) -> None:
        self._codes = {tags_code(tag) & 0xFFFFFFFF for tag in tags}

    def matches_tags_code(self, tags_code: int) -> bool:
        return tags_code & 0xFFFFFFFF in self._codes

    def matches_record(self, record: bytes) -> bool:
        return True
