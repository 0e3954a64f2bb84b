"""The jobs as a script for `spark-submit`: the same verbs and options as on the command line.

    spark-submit --py-files tieredstore.zip submit.py migrate --config old.conf --to-config new.toml

Each gets `--engine spark` before its options. On a cluster the driver needs the packages of the
extra `cli`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

JOBS = ("migrate", "verify", "reindex", "export")


def main(arguments: Sequence[str] | None = None) -> int:
    from tieredstore.cli.main import main as command

    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in JOBS:
        words[1:1] = ["--engine", "spark"]
    return command(words)


if __name__ == "__main__":
    # Python puts this folder in the path, but its modules must be imported as tieredstore's.
    sys.path = [place for place in sys.path if not __file__.startswith(f"{place}/submit")]
    sys.exit(main())
