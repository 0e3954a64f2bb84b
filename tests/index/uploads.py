"""Uploaded index files in memory, whose reads are counted.

What lives here: how a file is compacted with its footer, and how it is read. No expectations.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tieredstore.index.compaction import Compaction
from tieredstore.index.footer import NearFooter, decode_tail
from tieredstore.index.local_file import IndexStoreFile
from tieredstore.index.uploaded import UploadedFile


@dataclass(slots=True)
class Bytes:
    """A file that notes which ranges were read."""

    data: bytes
    reads: list[tuple[int, int]] = field(default_factory=list)

    def read(self, position: int, length: int) -> bytes:
        assert position >= 0
        assert length > 0
        self.reads.append((position, length))
        return self.data[position : position + length]


def uploaded(file: IndexStoreFile, *, footer: bool = True) -> bytes:
    compaction = Compaction(file)
    blocks = [bytes(block) for block in compaction.blocks()]
    if footer and file.times is not None:
        blocks += map(bytes, compaction.footer())
    return b"".join(blocks)


def cold(data: bytes, slots: int) -> tuple[UploadedFile, Bytes]:
    """As a reader without a cache opens it."""
    source = Bytes(data)
    return UploadedFile.open(source.read, len(data), slot_count=slots, path="index"), source


def warm(data: bytes) -> tuple[UploadedFile, Bytes]:
    """As a reader opens it that keeps the footer."""
    footer = decode_tail(data[-16 * 1024 :], file_bytes=len(data))
    copy = data[footer.position :]
    near = NearFooter.open(
        Bytes(copy).read, len(copy), file_bytes=len(data), path="copy of a footer"
    )
    source = Bytes(data)
    return UploadedFile.with_footer(source.read, near.footer, near=near, path="index"), source
