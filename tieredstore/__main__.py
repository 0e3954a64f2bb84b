"""`python -m tieredstore`: the command line, where the script `tieredstore` is not on the path."""

from __future__ import annotations

import sys

from tieredstore.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
