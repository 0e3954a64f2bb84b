"""Making the key index of a tier anew, as a ratio to bare reads and writes in the same run.

The bare way reads each file of messages and queue units, and writes the bytes of the index files
from memory, synced with their names. Both sides use as many threads. The bare way does nothing with
what it reads, so a reindex cannot reach it. The tier has 150 MB of messages of 1 KB, two keys each,
in two queues, all in the page cache. Prints one table:

    python -m bench.reindex
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from bench._timing import compare, report
from bench._verified_tier import written_tier
from tieredstore.driver.durable import write_atomically
from tieredstore.driver.runtime import SystemClock
from tieredstore.jobs.job import JobState, LocalEngine
from tieredstore.jobs.reindex import reindex
from tieredstore.model.config import StoreConfig
from tieredstore.model.values import SegmentType

THREADS: Final = 2
READ_BYTES: Final = 8 << 20


def files_of(config: StoreConfig, *kinds: SegmentType) -> list[Path]:
    names = {kind.name for kind in kinds}
    found = (path for path in Path(config.path).rglob("*") if path.parent.name in names)
    return sorted(path for path in found if path.is_file())


def read(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(READ_BYTES):
            pass


def reindexed(config: StoreConfig) -> None:
    with LocalEngine(threads=THREADS) as engine:
        done = reindex(config, engine, clock=SystemClock())
    assert done.state is JobState.DONE
    assert not done.findings


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="bench-reindex-") as scratch:
        config = written_tier(Path(scratch, "tier"), megabytes=150)
        messages = files_of(config, SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE)
        index = [path.read_bytes() for path in files_of(config, SegmentType.INDEX)]
        names = [Path(scratch, str(number)) for number in range(len(index))]

        def bare() -> None:
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(read, messages))
                list(pool.map(write_atomically, names, ([data] for data in index)))

        size = sum(path.stat().st_size for path in messages)
        row = compare(
            f"reindex, of reading {size / 1e6:.0f} MB and writing the index, bare",
            plain=bare,
            ours=lambda: reindexed(config),
            repeats=2,
        )
        code = report("reindex", [row])
        print(f"{row.what}: {size / row.ours_seconds / 1e6:.0f} MB/s")
        return code


if __name__ == "__main__":
    sys.exit(main())
