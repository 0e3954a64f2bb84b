"""How much anonymous memory the compaction of an index file takes, measured in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

from tieredstore.index.compaction import Compaction
from tieredstore.index.local_file import IndexStoreFile

SAMPLE_SECONDS = 0.005


def in_child(path: Path, *, slot_count: int, item_capacity: int) -> dict[str, float]:
    """Peaks in bytes of the whole process, including its interpreter and numpy."""
    command = [sys.executable, "-m", "bench._index_memory"]
    command += [str(path), str(slot_count), str(item_capacity)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(found.stdout)
    return figures


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


class Peak:
    """The largest value seen while the block ran."""

    def __enter__(self) -> Self:
        self.most = anonymous_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.most = max(self.most, anonymous_bytes())
            time.sleep(SAMPLE_SECONDS)

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()


def main() -> None:
    path, slot_count, item_capacity = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    before = anonymous_bytes()
    file = IndexStoreFile.open(path, slot_count=slot_count, item_capacity=item_capacity)
    with Peak() as compacting:
        compaction = Compaction.of_file(file)
        for _ in compaction.blocks():
            pass
    with Peak() as footing:
        for _ in compaction.footer():
            pass
    compaction.close()
    figures = {"before": before, "compaction": compacting.most, "footer": footing.most}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
