"""A key index searched without changing it, even while a broker fills it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from tieredstore.codec.columns import RecordColumns
from tieredstore.codec.java import encode_utf8
from tieredstore.codec.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from tieredstore.driver.runtime import Clock
from tieredstore.local.commit_log import CommitLog
from tieredstore.local.config import LocalConfig
from tieredstore.local.index_file import IndexFile, index_names
from tieredstore.local.index_service import IndexService
from tieredstore.model.errors import SegmentCorruptError, SegmentNotFoundError


class IndexReader(IndexService):
    """Finds messages by key in the files as they are, and in the log where they end.

    * Nothing on disk changes; closing lets go of the files and does no more.
    * A file that cannot be an index is passed over and listed in `damages`.
    * The index may be behind the log: after a crash, while a writer runs, or because it was
      switched off. What lies behind its end is searched for in the log itself.
    """

    def __init__(self, config: LocalConfig, commit_log: CommitLog, *, clock: Clock) -> None:
        super().__init__(config, clock=clock)
        self._log = commit_log
        self.damages: list[SegmentCorruptError] = []

    def open(self) -> None:
        """Take up the files that have come, and let go of those that went."""
        known = {file.name: file for file in self._files}
        files: list[IndexFile] = []
        damages: list[SegmentCorruptError] = []
        for name in index_names(self._directory.path):
            try:
                files.append(
                    known.pop(name) if name in known else self._directory.open(name, read_only=True)
                )
            except SegmentNotFoundError:
                continue  # expired just now
            except SegmentCorruptError as error:
                damages.append(error)
        for gone in known.values():
            gone.close()
        self._files = tuple(files)
        self.damages = damages

    @property
    def files(self) -> tuple[IndexFile, ...]:
        return self._files

    def candidates(self, topic: str, key: str, *, begin: int, end: int) -> Iterator[int]:
        """As in `IndexService`; what the index does not know yet comes first."""
        self._check_open()
        self.open()
        indexed_to = self._newest_end()
        return chain(
            reversed(self._unindexed(key, indexed_to)),
            self._indexed(topic, key, begin=begin, end=end, below=indexed_to),
        )

    def _newest_end(self) -> int:
        """The offset of the newest indexed message, whose keys may not all be there."""
        ends = (file.header.end_log_offset for file in self._files if file.header.item_count)
        return max(ends, default=0)

    def _indexed(self, topic: str, key: str, *, begin: int, end: int, below: int) -> Iterator[int]:
        try:
            for log_offset in super().candidates(topic, key, begin=begin, end=end):
                if log_offset < below:
                    yield log_offset
        except SegmentNotFoundError:  # the oldest go first: what would follow has gone as well
            return

    def _unindexed(self, key: str, start: int) -> list[int]:
        """Where from `start` on a message may have the key, oldest first.

        Whole blocks are searched for the bytes of the key: most of them have none of it.
        """
        if not key:
            return []
        wanted = re.compile(re.escape(encode_utf8(key)))
        while True:
            found: list[int] = []
            try:
                for columns in self._log.scan_from(start, check_crc=False):
                    found += _rows_with(columns, wanted)
                return found
            except SegmentNotFoundError:
                if not self._log.queue.forget_gone():
                    raise
                self._log.look_again()

    def close(self) -> None:
        self._closed = True
        for file in self._files:
            file.close()


def _rows_with(columns: RecordColumns, wanted: re.Pattern[bytes]) -> list[int]:
    first = int(columns.positions[0])
    last = int(columns.positions[-1] + columns.sizes[-1])
    if wanted.search(columns.data[first:last]) is None:
        return []
    indexed = (columns.sys_flags & TRANSACTION_MASK) != TRANSACTION_ROLLBACK
    log_offsets = columns.log_offsets
    return [
        int(log_offsets[row])
        for row in range(len(columns))
        if indexed[row] and wanted.search(columns.raw_properties(row))
    ]
