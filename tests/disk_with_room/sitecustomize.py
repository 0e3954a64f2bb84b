"""A disk with room, however full this one is: a local store refuses puts on a full one.

tests/conftest.py replaces `shutil.disk_usage` by this one. A process that a test starts has it
where this folder is in PYTHONPATH: Python imports a module of this name when it starts.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

FOLDER = Path(__file__).parent
real_disk_usage = shutil.disk_usage


def half_full(
    path: int | str | bytes | os.PathLike[str] | os.PathLike[bytes],
) -> shutil._ntuple_diskusage:
    usage = real_disk_usage(path)
    used = usage.total // 2
    return usage._replace(used=used, free=usage.total - used)


if __name__ == "sitecustomize":
    shutil.disk_usage = half_full
