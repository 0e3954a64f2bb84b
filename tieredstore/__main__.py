"""The script `tieredstore`, and `python -m tieredstore` where that is not on the path."""

from __future__ import annotations

import sys


def main() -> int:
    """The command; where what it needs is not installed, one line that says how to get it."""
    try:
        from tieredstore.cli.main import main as command
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        text = f"{error.name} is missing: pip install 'tieredstore[cli]'"
        sys.stderr.write(f"tieredstore: {text}\n")
        return 2
    except KeyboardInterrupt:  # so soon that nothing was begun
        return 130
    return command()


if __name__ == "__main__":
    sys.exit(main())
