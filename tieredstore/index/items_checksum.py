"""A checksum over a local index file: what was durable must still be that.

What lives here: `ItemsChecksum`, which goes on with what has come since. Where it is noted is told
in `watermarks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from google_crc32c import extend

from tieredstore.index.store_file import IndexStoreFile
from tieredstore.model.errors import BackendRefusedError

_BLOCK_ITEMS: Final = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsChecksum:
    """CRC32C of the first items, and of the hashes beside them: they never change once put."""

    item_count: int = 0
    items: int = 0
    hashes: int = 0

    def with_more(self, file: IndexStoreFile, item_count: int) -> ItemsChecksum:
        """The same of so many items of the file, of which the first are known.

        BackendRefusedError where the hashes cannot be read.
        """
        known, items, hashes = self.item_count, self.items, self.hashes
        rows = file.items()[:item_count]
        for start in range(known, item_count, _BLOCK_ITEMS):
            items = extend(items, rows[start : start + _BLOCK_ITEMS].view(np.uint8).tobytes())
        if file.notes is not None:
            try:
                for block in file.notes.blocks(item_count, after=known):
                    hashes = extend(hashes, block.astype("<u8", copy=False).tobytes())
            except OSError as error:
                raise BackendRefusedError(str(file.notes.path), "read", str(error)) from error
        return ItemsChecksum(item_count=item_count, items=items, hashes=hashes)
