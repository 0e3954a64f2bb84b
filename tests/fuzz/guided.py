"""The same decoders with inputs that evolve towards code that none has reached:
`python -m tests.fuzz.guided TEXT --count N` for each decoder whose name contains the text.

atheris chooses the inputs. It ends its process, so each decoder gets its own. What it finds stays
in a file called guided-NAME-….
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.fuzz.mutations import INPUT_BYTES_MAX


def fuzz_one(name: str, count: int, folder: Path) -> None:
    """Never return: the library ends the process, with a status other than 0 after a finding."""
    import atheris

    with atheris.instrument_imports(include=["tieredstore"], enable_loader_override=False):
        from tests.fuzz.decoders import targets
    target = next(each for each in targets() if each.name == name)
    for number, seed in enumerate(target.seeds):
        (folder / f"seed-{number}").write_bytes(seed)

    def one_input(data: bytes) -> None:
        with suppress(*target.expected):
            target.decode(data, Random(zlib.crc32(data)))

    options = [f"-runs={count}", f"-max_len={INPUT_BYTES_MAX}", "-seed=1", "-timeout=5"]
    options += ["-rss_limit_mb=2048", "-verbosity=0", f"-artifact_prefix=guided-{name}-"]
    atheris.Setup([sys.argv[0], *options, str(folder)], one_input)
    atheris.Fuzz()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=__doc__)
    parser.add_argument("text", nargs="?", default="")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--in", dest="folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.folder:
        fuzz_one(given.text, given.count, given.folder)
    from tests.fuzz.decoders import targets

    found = 0
    for name in [each.name for each in targets() if given.text in each.name]:
        with tempfile.TemporaryDirectory() as folder:
            words = ["-m", "tests.fuzz.guided", name, "--count", f"{given.count}", "--in", folder]
            done = subprocess.run([sys.executable, *words], stderr=subprocess.PIPE, check=False)
        sys.stdout.write(f"{name}: {'nothing' if done.returncode == 0 else 'shows something'}\n")
        if done.returncode:
            found += 1
            sys.stdout.write(done.stderr.decode(errors="replace")[-5_000:])
        sys.stdout.flush()
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
