"""Implementations of `FileSegment` and `SegmentProvider`: where a tier's bytes lie.

Import it only as `tieredstore.providers`.
"""

from typing import TYPE_CHECKING

from tieredstore.model.lazy_names import lazy_names

if __name__ != "tieredstore.providers":
    raise ImportError("import it as tieredstore.providers: a second copy has classes of its own")

if TYPE_CHECKING:
    from tieredstore.providers.memory import MemoryFileSegment
    from tieredstore.providers.posix import PosixFileSegment
    from tieredstore.roundlog.segment import LogSegment as S3FileSegment

__all__ = ["MemoryFileSegment", "PosixFileSegment", "S3FileSegment"]

_HOMES = {
    "MemoryFileSegment": "memory.MemoryFileSegment",
    "PosixFileSegment": "posix.PosixFileSegment",
    "S3FileSegment": "object_provider.LogSegment",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
