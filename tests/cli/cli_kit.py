"""Run commands, in this process or another, and take a picture of a directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.codec.golden_files import expected
from tests.disk_with_room import sitecustomize
from tieredstore.cli.main import main

Row = dict[str, Any]
ROOT = Path(__file__).parents[2]
_RUN = "import sys; from tieredstore.cli.main import main; sys.exit(main())"
SIZES: Row = {
    "commit_log_file_bytes": 32768,
    "queue_file_bytes": 400,
    "index_slot_count": 101,
    "index_item_count": 400,
}
SIZE_OPTIONS = (
    *("--commit-log-file-bytes", "32768", "--queue-file-bytes", "400"),
    *("--index-slots", "101", "--index-items", "400"),
)


class Ran(NamedTuple):
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[Row]:
        return [json.loads(line) for line in self.out.splitlines()]

    def done(self) -> Ran:
        """Check that it succeeded and wrote nothing to stderr."""
        assert (self.code, self.err) == (0, ""), self
        return self

    def refused(self, code: int, *said: str) -> None:
        """Check that it printed nothing and ended with this code and one line on stderr."""
        assert (self.code, self.out, self.err.count("\n")) == (code, "", 1), self
        assert self.err.startswith("tieredstore: ")
        for text in said:
            assert text in self.err


class Command:
    """`tieredstore`, with the sizes of the golden stores where `golden` runs it."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *words: object) -> Ran:
        self._capsys.readouterr()
        code = main([str(word) for word in words])
        return Ran(code, *self._capsys.readouterr())

    def golden(self, *words: object) -> Ran:
        verb, *rest = words
        return self.run("local", verb, *SIZE_OPTIONS, *rest)


def started(
    *words: object, stdin: int | None = None, stdout: int = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    """`tieredstore` in its own process."""
    return subprocess.Popen(
        [sys.executable, "-c", _RUN, *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(sitecustomize.FOLDER)])},
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
    )


def picture(directory: Path) -> dict[str, tuple[object, ...]]:
    """Everything that a write would change; reading may touch only access times."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted([directory, *directory.rglob("*")]):
        state = path.stat()
        content = path.read_bytes() if path.is_file() else b""
        times = state.st_mtime_ns, state.st_ctime_ns
        found[str(path)] = (state.st_ino, state.st_mode, state.st_size, *times, content)
    return found


def queries(name: str, *kinds: str) -> list[tuple[Row, Row]]:
    rows = expected(f"{name}.expect-queries.json")
    rows = rows if isinstance(rows, list) else rows["answers"]
    return [(row["query"], row["result"]) for row in rows if row["query"]["op"] in kinds]


def messages(min_log_offset: int = 0) -> list[Row]:
    return [
        row
        for row in expected("local-clean.expect-messages.json")
        if row["physicalOffset"] >= min_log_offset
    ]


def java_row(row: Row) -> Row:
    """A message as Java described it, under the command line's field names."""
    names = {
        "topic": "topic",
        "queue_id": "queueId",
        "queue_offset": "queueOffset",
        "log_offset": "physicalOffset",
        "size": "size",
        "store_timestamp": "storeTimestamp",
        "born_timestamp": "bornTimestamp",
        "tags_code": "tagsCode",
        "tags": "tags",
        "keys": "keys",
        "unique_key": "uniqKey",
        "sha256": "sha256",
        "body_sha256": "bodySha256",
    }
    return {ours: row[java] for ours, java in names.items()}
