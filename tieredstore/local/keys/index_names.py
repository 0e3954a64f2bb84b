"""The names of index files: local wall-clock time, 17 digits, greater means younger.

What lives here: which names count and what the next one is. Times inside a file decide where a
query looks; its name never does.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

_DIGITS: Final = frozenset("0123456789")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NAME_DIGITS: Final = 17


def is_index_name(name: str) -> bool:
    """Java skips every other name, and so do we."""
    return bool(name) and _DIGITS.issuperset(name)


def index_names(directory: Path) -> list[str]:
    """The index files of a directory, the oldest first; none where there is no directory."""
    if not directory.is_dir():
        return []
    return sorted(path.name for path in directory.iterdir() if is_index_name(path.name))


def next_index_name(now_ms: int, *, utc_offset_ms: int, newest: str) -> str:
    """The name for this moment, or the one after the newest where that is not less.

    Java would open the same file again when two names are equal, and takes the greatest for the
    one to fill.
    """
    moment = _EPOCH + timedelta(milliseconds=now_ms + utc_offset_ms)
    name = f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}".zfill(NAME_DIGITS)
    if name > newest:
        return name
    number = int(newest.ljust(NAME_DIGITS, "0")) + 1
    name = str(number).zfill(len(newest))
    if name <= newest:
        raise ValueError(f"no name of an index file follows {newest}")
    return name
