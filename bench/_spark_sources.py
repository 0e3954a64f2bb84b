"""What the scan is compared with: a source of prepared batches, and files that count their reads.

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
PARTS = 8
READ_BYTES = 8 << 20


class PreparedSource(DataSource):
    """Reads the files of a folder, each byte once, and yields the same Arrow batch repeatedly: as
    fast as a source on Spark can be."""

    @classmethod
    def name(cls) -> str:
        return "prepared"

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self.options
        return _PreparedReader(options["file"], int(options["rows"]), options["folder"])


class _PreparedReader(DataSourceReader):
    def __init__(self, file: str, rows: int, folder: str) -> None:
        self._file = file
        self._rows = rows
        self._folder = folder

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        part = partition.value
        for path in sorted(path for path in Path(self._folder).rglob("*") if path.is_file()):
            size = path.stat().st_size
            read_bytes(path, size * part // PARTS, size * (part + 1) // PARTS)
        with pa.OSFile(self._file) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
        left = self._rows * (part + 1) // PARTS - self._rows * part // PARTS
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows


def read_bytes(path: Path, start: int, end: int) -> None:
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while (left := end - file.tell()) > 0 and file.read(min(left, READ_BYTES)):
            pass


class CountedPosix(ProviderWrapper):
    """Files like those of `posix`; the length of every read, in any process, is noted beside the
    tier."""

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
