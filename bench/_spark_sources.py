"""What the scan is measured with: a source of prepared batches, and files that count their reads.

Workers import both by name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tieredstore.driver.provider import ProviderWrapper, SegmentWrapper
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.model.config import StoreConfig
from tieredstore.providers.posix import PosixProvider

READS = "reads.log"


class PreparedSource(DataSource):
    """The same Arrow batch again and again: as fast as a source on Spark can be."""

    @classmethod
    def name(cls) -> str:
        return "prepared"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _PreparedReader(self.options["file"], int(self.options["rows"]))


class _PreparedReader(DataSourceReader):
    def __init__(self, file: str, rows: int) -> None:
        self._file = file
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        parts = 8
        cuts = [self._rows * number // parts for number in range(parts + 1)]
        return [InputPartition(cuts[number + 1] - cuts[number]) for number in range(parts)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with pa.OSFile(self._file) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
        left = partition.value
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows


class CountedPosix(ProviderWrapper):
    """Files as `posix` has them; the length of every read is noted beside the tier, in whichever
    process it is made."""

    def __init__(self, inner: PosixProvider, runtime: Runtime, log: Path) -> None:
        super().__init__(inner, runtime)
        self._log = log

    @classmethod
    def from_config(cls, config: StoreConfig, runtime: Runtime) -> Self:
        inner = PosixProvider.from_config(config, runtime)
        return cls(inner, runtime, Path(config.path).parent / READS)

    def wrap(self, segment: FileSegment) -> SegmentWrapper:
        return _Counted(segment, self._log)


class _Counted(SegmentWrapper):
    def __init__(self, inner: FileSegment, log: Path) -> None:
        super().__init__(inner)
        self._log = log

    def read(self, position: int, length: int) -> bytes:
        with self._log.open("a") as out:
            out.write(f"{os.getpid()} {self.inner.path} {position} {length}\n")
        return super().read(position, length)
