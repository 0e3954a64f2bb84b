"""Every record of a commit log from an offset on, file after file: what recovery walks.

What lives here: `LogScan`. What one file holds is for `records/record_scan` to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tieredstore.local.files.mapped_file import MappedFile
from tieredstore.local.records.record_columns import RecordColumns
from tieredstore.local.records.record_scan import Damage, RecordScan
from tieredstore.model.values import INT64_MAX


class LogScan:
    """Blocks of sound records; iterate it once, then ask how it ended.

    * `end` is the log offset where the log ends: behind the last sound record or, if a blank
      record closes its file, where the next file starts.
    * `damages` are the places that were passed over because sound records follow them.
    * `torn` is what stands at `end`: None if that is nothing or zeros.
    """

    def __init__(
        self,
        files: Sequence[MappedFile],
        *,
        start_offset: int,
        check_crc: bool = True,
        check_property_crc: bool = False,
        time_max: int = INT64_MAX,
    ) -> None:
        self.end = start_offset
        self.damages: list[Damage] = []
        self.torn: Damage | None = None
        self.last_store_timestamp = 0
        self._files = files
        self._start_offset = start_offset
        self._check_crc = check_crc
        self._check_property_crc = check_property_crc
        self._time_max = time_max

    def __iter__(self) -> Iterator[RecordColumns]:
        open_end: Damage | None = None  # where the last file broke off: the end, or only damage
        for file in self._files:
            base = file.start_offset
            scan = RecordScan(
                file.view(0, file.wrote),
                base_offset=base,
                path=file.path,
                position=max(0, self._start_offset - base),
                check_crc=self._check_crc,
                check_property_crc=self._check_property_crc,
                last_store_timestamp=self.last_store_timestamp,
                time_max=self._time_max,
                data_end=file.data_end,
            )
            for columns in scan:
                first = int(columns.positions[0]) + base
                if int(columns.store_timestamps[0]) < self.last_store_timestamp and open_end:
                    break  # what an earlier crash left behind, not what follows the damage
                if open_end is not None:
                    self.damages.append(open_end._replace(unused=False, resumed_at=first))
                    open_end = None
                self.end = base + scan.position
                self.last_store_timestamp = scan.last_store_timestamp
                yield columns
            if open_end is not None:
                continue
            self.damages += scan.damages
            if scan.blank:
                self.end = file.end_offset
            elif scan.rest is not None:
                open_end = scan.rest
            elif not file.full:
                return
        if open_end is not None and not open_end.unused:
            self.torn = open_end
