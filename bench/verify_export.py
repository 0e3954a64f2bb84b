"""Verifying a tier, compared with reading its files with a checksum; and exporting it to Parquet,
compared with reading its files and writing the same columns from memory with bare Arrow.

Run it with `make bench BENCH=verify_export`. The tier has 150 MB of messages of 1 KB, two keys
each, in two queues, and its index file, all in the page cache.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import pyarrow.parquet as pq

from bench._timing import compare, report
from bench._verified_tier import BODY, written_tier
from tieredstore.codec.checks import crc32
from tieredstore.driver.runtime import SystemClock
from tieredstore.jobs.export import ROW_GROUP_ROWS, ExportJob
from tieredstore.jobs.job import Job, JobState, LocalEngine, run_job
from tieredstore.jobs.verify import VerifyJob

THREADS = 2
READ_BYTES = 8 << 20
FIXED_COLUMNS = ("queue_id", "queue_offset", "store_time", "body")


def read_all(root: Path) -> int:
    """Every byte once, with a checksum for each body: what a verification cannot beat."""
    total = 0
    for path in root.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                while data := file.read(READ_BYTES):
                    view = memoryview(data)
                    for start in range(0, len(data), len(BODY)):
                        crc32(view[start : start + len(BODY)])
                    total += len(data)
    return total


def run(job: Job[object, object]) -> None:
    with LocalEngine(threads=THREADS) as engine:
        done = run_job(job, engine, clock=SystemClock())
    assert done.state is JobState.DONE
    assert not done.findings


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        root, parquet = Path(folder, "tier"), Path(folder, "parquet")
        config = written_tier(root, megabytes=150)
        size = read_all(root / "tiered")

        def export(*columns: str) -> None:
            rmtree(parquet, ignore_errors=True)
            given = {"columns": columns} if columns else {}
            run(ExportJob(config=config, target=str(parquet), **given))  # type: ignore[arg-type]

        def written(*columns: str) -> Callable[[], object]:
            """Read the tier's bytes, and write the files of its export from memory."""
            export(*columns)
            paths = sorted(parquet.rglob("*.parquet"))
            tables = [pq.read_table(path, partitioning=None) for path in paths]

            def plain() -> None:
                read_all(root / "tiered")
                for number, table in enumerate(tables):
                    pq.write_table(
                        table,
                        Path(folder, f"{number}.parquet"),
                        compression="zstd",
                        row_group_size=ROW_GROUP_ROWS,
                    )

            return plain

        rows = [
            compare(
                f"verify, of reading {size / 1e6:.0f} MB with a CRC for each body",
                plain=lambda: read_all(root / "tiered"),
                ours=lambda: run(VerifyJob(config=config)),  # type: ignore[arg-type]
                repeats=2,
            ),
            compare(
                "export of four columns, of reading it and bare Arrow writing them",
                plain=written(*FIXED_COLUMNS),
                ours=lambda: export(*FIXED_COLUMNS),
                repeats=2,
            ),
            compare(
                "export of all columns, of reading it and bare Arrow writing them",
                plain=written(),
                ours=export,
                repeats=2,
            ),
        ]
        code = report("verify_export", rows)
        for row in rows:
            print(f"{row.what}: {size / row.ours_seconds / 1e6:.0f} MB/s")
        return code


if __name__ == "__main__":
    sys.exit(main())
