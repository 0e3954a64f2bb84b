"""Plain Parquet: each commit is one folder, `commit=…/topic=…/day=…/….parquet`.

* On a disk the folder gets its name in one step, when it is complete: a reader that lists folders
  sees all of a commit or nothing. If two runs make the same commit, the rename of one is refused,
  and that run makes the next commit.
* A bucket has no rename. There files are copied into the folder, and `commit=…/_commit.json` is
  written last: a reader that uses `exported_files` sees all or nothing, but one that lists folders
  sees files before the commit. Only one run at a time may write there.
* `_commit.json` names the files of its commit, and the offsets that all commits up to it have
  exported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tieredstore.jobs.export_ledger import Ledger, StagedFile, StagedRange, TableChangedError
from tieredstore.jobs.export_target import ExportTarget, TargetOptions
from tieredstore.jobs.worker import worker_runtime
from tieredstore.model.errors import InvalidConfigError, MetadataError

NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
"""How Hive writes null: a store time that is no day, or a message that cannot be read."""
RECORD: Final = "_commit.json"
_FOLDER: Final = re.compile(r"commit=(\d{8,})")
_OLDER: Final = "_tieredstore/manifest.json"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC).date()
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{}[]^")


class ParquetTable:
    """A directory, or a folder of a bucket."""

    def __init__(self, target: ExportTarget) -> None:
        self.name = target.url
        self.target = target

    def exists(self) -> bool:
        return True

    def make(self) -> None:
        """Nothing to do: folders are made with their files."""

    def read(self) -> Ledger:
        for number in reversed(commit_numbers(self.target)):
            record = _record(self.target, number)
            if record is not None:  # else copying into a bucket did not end
                return Ledger.of(f"{self.name}/{_folder(number)}/{RECORD}", record.get("ledger"))
        if self.target.names("_delta_log"):
            raise InvalidConfigError(
                f"target: {self.name} is a Delta table, which deletes files that are not its own;"
                " export to another one"
            )
        if self.target.read(_OLDER) is not None:
            raise InvalidConfigError(
                f"target: {self.name} was exported with a layout that knows no commits; "
                "export to another one"
            )
        return Ledger()

    def append(self, ranges: Sequence[StagedRange], after: Ledger) -> None:
        named: dict[str, StagedFile] = {}
        for each in ranges:
            for file in each.files:
                name = file.path.rpartition("/")[2]
                named[f"{folder(each.topic, file.day)}/{name}"] = file
        record = {
            "ledger": after.row(),
            "files": [
                {"path": path, "rows": file.rows, "bytes": file.size}
                for path, file in sorted(named.items())
            ],
        }
        data = (json.dumps(record, indent=1) + "\n").encode()
        try:
            done = self.target.publish(
                _folder(after.commits),
                {name: file.path for name, file in named.items()},
                (RECORD, data),
            )
        except FileNotFoundError as error:  # another run has committed and removed it
            raise TableChangedError from error
        if not done:
            raise TableChangedError


def exported_files(
    target: str, options: TargetOptions | None = None, *, after: int = 0
) -> list[str]:
    """The full paths of the files of all commits after commit `after`: all of a commit or none."""
    place = ExportTarget(target, options or TargetOptions())
    numbers = [number for number in commit_numbers(place) if number > after]
    reads = [worker_runtime().fetch.submit(_record, place, number) for number in numbers]
    found = []
    for number, read in zip(numbers, reads, strict=True):
        record = read.result()
        files: Any = [] if record is None else record.get("files")
        try:
            found += [f"{place.url}/{_folder(number)}/{file['path']}" for file in files]
        except (KeyError, TypeError) as error:
            place_of = f"{place.url}/{_folder(number)}/{RECORD}"
            raise MetadataError(place_of, "it names no files") from error
    return found


def folder(topic: str, day: int | None) -> str:
    """`topic=…/day=…`; days are counted from 1970."""
    name = NO_DAY if day is None else f"{_EPOCH + timedelta(days=day)}"
    return f"topic={escaped(topic)}/day={name}"


def escaped(text: str) -> str:
    """Escape as Hive and Spark do what a path cannot have, or what means something else in it."""
    return "".join(f"%{ord(sign):02X}" if sign in _ESCAPED or sign < " " else sign for sign in text)


def _folder(number: int) -> str:
    return f"commit={number:08d}"


def commit_numbers(target: ExportTarget) -> list[int]:
    """The numbers of all commits, complete or not, in order."""
    found = (_FOLDER.fullmatch(name) for name in target.names(""))
    return sorted(int(match[1]) for match in found if match is not None)


def _record(target: ExportTarget, number: int) -> dict[str, Any] | None:
    path = f"{_folder(number)}/{RECORD}"
    data = target.read(path)
    if data is None:
        return None
    try:
        found = json.loads(data)
        if isinstance(found, dict):
            return found
        reason = "it is no JSON object"
    except (ValueError, RecursionError) as error:
        reason = str(error)
    raise MetadataError(f"{target.url}/{path}", reason)
