"""The files of a log or queue as a directory lists them.

What lives here: `files_in`. What they are together is in mapped_file_queue.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from tieredstore.codec.names import parse_local_file_name
from tieredstore.model.errors import SegmentError


def files_in(directory: str) -> Iterator[tuple[str, int, int]]:
    """Path, start offset and size of every file; folders are not ours."""
    if not os.path.isdir(directory):
        return
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                continue
            try:
                start = parse_local_file_name(entry.name)
            except ValueError:
                raise SegmentError(
                    entry.path, "the name is no offset in 20 digits: move the file elsewhere"
                ) from None
            yield entry.path, start, entry.stat().st_size
