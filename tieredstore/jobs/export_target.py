"""The directory or bucket that an export writes to, and its ledger in the folder `_tieredstore`.

    | file                | holds                                                                |
    | ------------------- | -------------------------------------------------------------------- |
    | manifest.json       | settings, and the exported ranges of each queue: the commit          |
    | commits/N.json      | the files and rows that commit N brought                             |
    | plan.json           | ranges that a run has begun, written before its first file           |
    | done/<range>.json   | a range of the plan whose files are all there, and what they are     |

A range is never cut anew once it was planned, so that its files have the same names in every run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import md5
from pathlib import Path
from tempfile import mkstemp
from typing import Any, Final, TypeAlias

import pyarrow.fs as pafs

from tieredstore.driver.durable import fsync_directory, make_directories, write_all
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    InvalidConfigError,
    MetadataError,
)
from tieredstore.model.settings import has_password
from tieredstore.model.values import Json

HALVES: Final = "_tieredstore/halves"
_LOCAL: Final = ("", "file")
FOLDER: Final = "_tieredstore"
VERSION: Final = 1
MANIFEST: Final = f"{FOLDER}/manifest.json"
PLAN: Final = f"{FOLDER}/plan.json"
DONE: Final = f"{FOLDER}/done"
Settings: TypeAlias = Mapping[str, Json]
Ranges: TypeAlias = dict[str, list[tuple[int, int]]]
"""Queue offsets [first, end) by source, `<cluster>/<broker>/<topic>/<queue id>`; in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """How to reach an object store; empty: as Arrow finds it, which is the usual AWS chain."""

    endpoint: str = ""
    region: str = ""
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if "@" in self.endpoint:
            raise InvalidConfigError("endpoint: holds credentials; give them apart")


def full_target(url: str) -> str:
    """The same for a process in whatever folder. One that holds a password is refused, unquoted."""
    if has_password(url):
        raise InvalidConfigError("target: holds credentials; keys are from the environment")
    return url if "://" in url else os.path.abspath(url)


class ExportTarget:
    """One directory, or one folder of a bucket; paths are relative to it, `/`-separated.

    * A file is there whole or not at all: on a disk it is renamed into place, in a bucket it is one
      upload. An older one of that name is replaced.
    * Errors are BackendRefusedError, or BackendUnavailableError where another try may help.
    """

    def __init__(self, url: str, options: TargetOptions) -> None:
        scheme, _, rest = url.partition("://") if "://" in url else ("", "", url)
        self.url = url
        if scheme in _LOCAL:
            self._local: Path | None = Path(rest or ".").absolute()
            self._root = str(self._local)
            self._files: Any = pafs.LocalFileSystem()
            return
        self._local = None
        if scheme == "s3":
            self._files, self._root = _s3(options), rest.strip("/")
        else:
            try:
                self._files, self._root = pafs.FileSystem.from_uri(url)
            except (ValueError, OSError) as error:
                text = f"target: {url!r} is neither a directory nor a URL that Arrow knows: {error}"
                raise InvalidConfigError(text) from error
        if not self._root:
            raise InvalidConfigError(f"target: {url!r} names no bucket")

    def read(self, path: str) -> bytes | None:
        """The whole file; None where there is none."""
        try:
            with self._files.open_input_stream(self._at(path)) as stream:
                data: bytes = stream.read()
                return data
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(error, path, "read") from error

    def put(self, path: str, data: Any) -> None:
        """The whole file in one step, durable on return; `data` is a buffer."""
        try:
            if self._local is not None:
                self._put_locally(self._local, path, data)
                return
            with self._files.open_output_stream(self._at(path)) as stream:
                stream.write(data)
        except OSError as error:
            raise self._failed(error, path, "write") from error

    def _put_locally(self, root: Path, path: str, data: Any) -> None:
        """By way of a folder that no reader looks into: half a file is never beside whole ones."""
        place, halves = root / path, root / HALVES
        make_directories(place.parent)
        make_directories(halves)
        descriptor, half = mkstemp(dir=halves)
        try:
            try:
                write_all(descriptor, memoryview(data), 0)
                os.fchmod(descriptor, 0o644)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(half, place)
        except BaseException:
            Path(half).unlink(missing_ok=True)
            raise
        fsync_directory(place.parent)

    def drop_halves(self) -> None:
        """What writers left behind that were killed."""
        if self._local is not None:
            for name in self.names(HALVES):
                self.delete(f"{HALVES}/{name}")

    def names(self, folder: str) -> list[str]:
        """The files of a folder, by name; none where there is no such folder."""
        selector = pafs.FileSelector(self._at(folder), allow_not_found=True)
        try:
            found = self._files.get_file_info(selector)
        except OSError as error:
            raise self._failed(error, folder, "list") from error
        return sorted(file.base_name for file in found if file.type is pafs.FileType.File)

    def delete(self, path: str) -> None:
        """Idempotent."""
        try:
            self._files.delete_file(self._at(path))
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failed(error, path, "delete") from error

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _failed(
        self, error: OSError, path: str, operation: str
    ) -> BackendRefusedError | BackendUnavailableError:
        text = " ".join(str(error).split())
        words = text.lower()
        again = ("timeout", "timed out", "network", "slow", "curlcode", "503", "500")
        if any(word in words for word in again):
            return BackendUnavailableError(f"{self.url}/{path}", operation, text)
        return BackendRefusedError(f"{self.url}/{path}", operation, text)


def _s3(options: TargetOptions) -> Any:
    scheme, _, host = options.endpoint.rpartition("://")
    given: dict[str, Any] = {
        "endpoint_override": host,
        "scheme": scheme,
        "region": options.region,
        "access_key": options.access_key,
        "secret_key": options.secret_key,
        "session_token": options.session_token,
    }
    return pafs.S3FileSystem(**{name: value for name, value in given.items() if value})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The state of a target when it was read."""

    commits: int = 0
    exported: Ranges = field(default_factory=dict)
    planned: Ranges = field(default_factory=dict)
    done: Ranges = field(default_factory=dict)
    facts: tuple[Mapping[str, Json], ...] = ()  # of what is done

    @classmethod
    def read(cls, target: ExportTarget, settings: Settings, *, with_done: bool = True) -> Ledger:
        """InvalidConfigError where it was exported with other settings: one target has one shape.

        MetadataError for a file that cannot be understood.
        """
        manifest, plan = _object(target, MANIFEST), _object(target, PLAN)
        for held in (manifest, plan):
            if held is not None and held.get("settings") != dict(settings):
                other = _difference(held, settings)
                raise InvalidConfigError(
                    f"{target.url} was exported with other settings ({other}); "
                    "use the same ones, or another target"
                )
        done: Ranges = {}
        facts: list[dict[str, Json]] = []
        for name in target.names(DONE) if with_done else ():
            held = _object(target, f"{DONE}/{name}") or {}
            source, part = _parsed(target, name, held)
            done.setdefault(source, []).append(part)
            facts.append(held)
        commits = 0 if manifest is None else manifest.get("commits")
        if not isinstance(commits, int):
            raise MetadataError(f"{target.url}/{MANIFEST}", "it has no number of commits")
        return cls(
            commits=commits,
            exported=_ranges(target, MANIFEST, manifest),
            planned=_ranges(target, PLAN, plan),
            done=done,
            facts=tuple(facts),
        )

    def pending(self) -> Ranges:
        """Planned by a run that did not end, and not done."""
        left: Ranges = {}
        for source, ranges in self.planned.items():
            over = {*self.exported.get(source, ()), *self.done.get(source, ())}
            rest = [part for part in ranges if part not in over]
            rest = [part for part in rest if not _covered(part, self.exported.get(source, []))]
            if rest:
                left[source] = rest
        return left

    def taken(self, source: str) -> list[tuple[int, int]]:
        """All that is exported or planned of a queue."""
        return joined(
            part
            for ranges in (self.exported, self.planned, self.done)
            for part in ranges.get(source, ())
        )


def put_plan(target: ExportTarget, settings: Settings, ranges: Ranges) -> None:
    _put(target, PLAN, {"settings": dict(settings), "ranges": _listed(ranges)})


def range_name(source: str, first: int, end: int) -> str:
    """The name of a range; also of its Parquet files, so the source is in it, and shortly."""
    digest = md5(source.encode(), usedforsecurity=False).hexdigest()[:16]
    return f"{digest}-{source.rpartition('/')[2]}-{first:020d}-{end:020d}"


def put_done(target: ExportTarget, name: str, facts: Mapping[str, Json]) -> None:
    _put(target, f"{DONE}/{name}.json", facts)


def commit(target: ExportTarget, settings: Settings, before: Ledger) -> int:
    """Count all that is done as exported, in one step; how many commits there are then.

    Raises MetadataError where another run has committed meanwhile.
    """
    now = Ledger.read(target, settings)
    if now.commits != before.commits:
        reason = "another export has committed meanwhile; run one at a time"
        raise MetadataError(f"{target.url}/{MANIFEST}", reason)
    number = now.commits
    if now.done:
        number += 1
        _put(target, f"{FOLDER}/commits/{number:08d}.json", {"ranges": list(map(dict, now.facts))})
        exported = {
            source: joined([*now.exported.get(source, ()), *now.done.get(source, ())])
            for source in {*now.exported, *now.done}
        }
        _put(
            target,
            MANIFEST,
            {
                "version": VERSION,
                "commits": number,
                "settings": dict(settings),
                "ranges": _listed(exported),
            },
        )
    for source, parts in now.done.items():
        for part in parts:
            target.delete(f"{DONE}/{range_name(source, *part)}.json")
    if not now.pending():
        target.delete(PLAN)
    return number


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, those that touch made one."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return found


def free(first: int, end: int, taken: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of [first, end) outside of `taken`, which is in order and apart."""
    parts = []
    for start, stop in taken:
        if first < min(start, end):
            parts.append((first, min(start, end)))
        first = max(first, stop)
    if first < end:
        parts.append((first, end))
    return parts


def _covered(part: tuple[int, int], ranges: Iterable[tuple[int, int]]) -> bool:
    return any(first <= part[0] and part[1] <= end for first, end in ranges)


def _parsed(
    target: ExportTarget, name: str, held: Mapping[str, Json]
) -> tuple[str, tuple[int, int]]:
    source, first, end = held.get("source"), held.get("first"), held.get("end")
    if isinstance(source, str) and isinstance(first, int) and isinstance(end, int):
        return source, (first, end)
    raise MetadataError(f"{target.url}/{DONE}/{name}", "it names no range")


def _difference(held: Mapping[str, Json], settings: Settings) -> str:
    theirs = held.get("settings")
    known = theirs if isinstance(theirs, dict) else {}
    names = [name for name in settings if known.get(name) != settings[name]]
    return ", ".join(f"{name}: {known.get(name)!r}" for name in names) or "of another version"


def _ranges(target: ExportTarget, path: str, held: Mapping[str, Json] | None) -> Ranges:
    listed: Any = {} if held is None else held.get("ranges")
    try:
        return {
            source: [(int(first), int(end)) for first, end in ranges]
            for source, ranges in listed.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise MetadataError(f"{target.url}/{path}", "its ranges cannot be understood") from error


def _listed(ranges: Ranges) -> dict[str, Json]:
    return {source: [list(part) for part in held] for source, held in sorted(ranges.items())}


def _object(target: ExportTarget, path: str) -> dict[str, Json] | None:
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


def _put(target: ExportTarget, path: str, value: Mapping[str, Json]) -> None:
    target.put(path, (json.dumps(value, indent=1) + "\n").encode())
