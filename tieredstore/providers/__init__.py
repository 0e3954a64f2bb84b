"""Implementations of `FileSegment` and `SegmentProvider`: where a tier's bytes lie.

Imported as `tieredstore.providers` and under no other name.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if __name__ != "tieredstore.providers":
    raise ImportError("import it as tieredstore.providers: a second copy has classes of its own")

if TYPE_CHECKING:
    from tieredstore.providers.memory import MemoryFileSegment
    from tieredstore.providers.object_segment import ObjectFileSegment as S3FileSegment
    from tieredstore.providers.posix import PosixFileSegment

__all__ = ["MemoryFileSegment", "PosixFileSegment", "S3FileSegment"]

_HOMES = {
    "MemoryFileSegment": "memory",
    "PosixFileSegment": "posix",
    "S3FileSegment": "object_segment",
}

_REAL = {"S3FileSegment": "ObjectFileSegment"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), _REAL.get(name, name))
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
