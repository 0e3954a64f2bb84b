"""One index file, made of the entries that belong into it: its bytes are the index's own.

What lives here: `made_file`, which fills a file in a folder of its own as the index fills its own
ones, and gives the compacted one with its footer, block by block.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tieredstore.codec.bounds import Buffer
from tieredstore.index.compaction import Compaction
from tieredstore.index.footer_build import footer_blocks
from tieredstore.index.rows import IndexColumns
from tieredstore.index.store_file import IndexStoreFile
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import SegmentCorruptError


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFile:
    """A compacted file; its blocks may be asked for again."""

    file: IndexStoreFile

    @property
    def end_timestamp(self) -> int:
        return self.file.end_timestamp

    def blocks(self) -> Iterator[Buffer]:
        compaction = Compaction(
            self.file.header(), self.file.items(), slot_count=self.file.slot_count
        )
        yield from compaction.blocks()
        times = self.file.times
        if times is None:
            raise SegmentCorruptError(str(self.file.path), "items without times", position=0)
        yield from footer_blocks(compaction, self.file.items(), times, self.file.notes)


@contextmanager
def made_file(
    config: StoreConfig, columns: Iterable[IndexColumns], *, begin_timestamp: int
) -> Iterator[MadeFile]:
    """Needs about 40 bytes an entry on the disk of this machine, in its folder for what is
    temporary; it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="tieredstore-index-") as folder:
        file = IndexStoreFile.create(
            Path(folder),
            begin_timestamp,
            slot_count=config.index_slot_count,
            item_capacity=config.index_item_count,
        )
        try:
            for each in columns:
                file.put(each)
            file.seal()
            yield MadeFile(file=file)
        finally:
            file.close()
