"""The index files that the broker has not uploaded yet, where their folder is to be seen.

What lives here: `verify_local_index`. They are read where the job was started: workers elsewhere do
not have them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.tiered_index import HEADER_BYTES, decode_header, slot_position
from tieredstore.index.file_check import examine, items_of
from tieredstore.index.item_chain import view_heads
from tieredstore.index.local_folder import LocalFolder
from tieredstore.jobs.verification.verify_findings import Findings, VerifyKind
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import SegmentError

_ITEMS_AT_ONCE: Final = 1 << 18

OnLocalItems = Callable[[NDArray[Any], NDArray[np.int64], str, int], None]
"""Items, their times, and of which file and item number the first of them is."""


def is_seen(config: StoreConfig) -> bool:
    """Whether the folder of the broker's own index files is on this machine."""
    return LocalFolder(config).path.is_dir()


def verify_local_index(
    config: StoreConfig, uploaded: Collection[int], findings: Findings, take: OnLocalItems
) -> int:
    """All items of files that no uploaded one (by begin) has replaced; how many there are.

    Nothing is changed. A file that a broker is filling may be shorter than it is a moment later.
    """
    folder = LocalFolder(config)
    count = 0
    for begin in folder.begins():
        if begin in uploaded:
            continue
        path = folder.path / str(begin)
        try:
            with path.open("rb") as file:
                # Closed with the last array over it: one may be held by an error.
                data = mmap(file.fileno(), 0, access=ACCESS_READ) if path.stat().st_size else None
            if data is not None:
                count += _of_file(data, path, config, findings, take)
        except FileNotFoundError:
            continue  # it has been uploaded meanwhile
        except SegmentError as error:
            findings.add(
                VerifyKind.INDEX_FILE,
                str(path),
                str(error),
                position=getattr(error, "position", None),
            )
    return count


def _of_file(
    data: mmap, path: Path, config: StoreConfig, findings: Findings, take: OnLocalItems
) -> int:
    slots = config.index_slot_count
    head = data[:HEADER_BYTES]
    header = decode_header(
        head,
        slot_count=slots,
        item_capacity=config.index_item_count,
        path=str(path),
    )
    begin, items_held = header.begin_timestamp, header.item_count
    if begin != int(path.name):
        findings.add(VerifyKind.INDEX_FILE, str(path), f"it begins at {begin}", position=4)
        begin = int(path.name)
    examined = examine(
        data, slot_count=slots, item_count=items_held, begin_timestamp=begin, path=str(path)
    )
    heads = np.where(view_heads(data, slots) > 0, view_heads(data, slots), 0)
    wrong = heads != examined.heads
    # A broker that is just putting has changed the header before the slots.
    if wrong.any() and data[:HEADER_BYTES] == head:
        at = int(np.flatnonzero(wrong)[0])
        text = f"slot {at} leads to item {heads[at]}, not to {examined.heads[at]}"
        findings.add(VerifyKind.INDEX_SLOT, str(path), text, position=slot_position(at))
    items = items_of(data, slot_count=slots, item_count=items_held)
    for at in range(0, items_held, _ITEMS_AT_ONCE):
        block = items[at : at + _ITEMS_AT_ONCE].copy()
        times = begin + 1000 * block["seconds"].astype(np.int64)
        take(block, times, str(path), at + 1)
    return items_held
