"""Which messages of a tier a table has, which are staged, and the one commit that adds them.

A run stages ranges of queues: files that no reader looks at, and a mark for each range, written
last, which names its files. In one step, the commit names files and records how far the queues are
exported. It is based on the table as it was read: if another run was first, the table is read
again, and ranges that the other run exported are dropped.

    | file                              | holds                                                  |
    | --------------------------------- | ------------------------------------------------------ |
    | _tieredstore/staged/<range>.json  | a range, and its files, which are all there            |
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import md5
from typing import Any, ClassVar, Final, Protocol, Self, TypeAlias

from tieredstore.jobs.export_target import ExportTarget
from tieredstore.jobs.worker import worker_runtime
from tieredstore.model.errors import (
    BackendError,
    BackendUnavailableError,
    InvalidConfigError,
    MetadataError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.values import Json

log = log_of(__name__)

STAGED: Final = "_tieredstore/staged"
COMMIT_TRIES: Final = 20
RUNS_KEPT: Final = 16  # commits of others that may follow ours before we check that it is there
PLAIN_BYTES_MAX: Final = 256 << 20  # of an unpacked ledger: enough for millions of queues
_NAMED: Final = re.compile(r"([0-9a-f]{16})-\d+-(\d{20})-(\d{20})\b")
Settings: TypeAlias = Mapping[str, Json]
Ranges: TypeAlias = dict[str, list[tuple[int, int]]]
"""Queue offsets [first, end) by source, `<cluster>/<broker>/<topic>/<queue id>`; in order."""
Newest: TypeAlias = dict[str, tuple[int, int]]
"""Offset and store time, in ms, of the newest exported message, by source."""


class TableChangedError(Exception):
    """Another commit was first, or the outcome of ours is unknown: the table must be read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """A Parquet file of one topic and day; None if its rows have no day. `path` is in the target.

    Offsets and times (in microseconds) are the least and the greatest of its rows.
    """

    path: str
    day: int | None
    rows: int
    size: int
    offsets: tuple[int, int]
    times: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRange:
    """A range of a queue whose files are all there. It has no files if nothing in it was wanted.

    `newest`: offset and store time, in ms, of the last message in the files.
    """

    source: str
    first: int
    end: int
    files: tuple[StagedFile, ...]
    topic_id: int | None = None
    newest: tuple[int, int] | None = None
    damaged: int = 0

    @property
    def name(self) -> str:
        return range_name(self.source, self.first, self.end)

    @property
    def topic(self) -> str:
        return self.source.split("/")[2]

    @property
    def part(self) -> tuple[int, int]:
        return self.first, self.end

    def row(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def of(cls, held: Any) -> Self:
        """Decode a `row`. KeyError, TypeError or ValueError if it is not one."""
        files = tuple(
            StagedFile(
                path=str(each["path"]),
                day=None if each["day"] is None else int(each["day"]),
                rows=int(each["rows"]),
                size=int(each["size"]),
                offsets=_pair(each["offsets"]),
                times=None if each["times"] is None else _pair(each["times"]),
            )
            for each in held["files"]
        )
        first, end = int(held["first"]), int(held["end"])
        number, newest = held.get("topic_id"), held.get("newest")
        return cls(
            source=str(held["source"]),
            first=first,
            end=end,
            files=files,
            topic_id=None if number is None else int(number),
            newest=None if newest is None else _pair(newest),
            damaged=int(held.get("damaged", 0)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What a table holds: settings, ranges, and the runs that made the newest commits.

    `topic_ids` has the number of each topic, `<cluster>/<broker>/<topic>`, if it is known. A
    catalogue never gives a number twice: another number means another topic of the same name.

    `newest` tells two histories of a queue apart. Another store time at the same offset means that
    the offset was given again, or that this is the queue of another tier.
    """

    VERSION: ClassVar[int] = 2
    commits: int = 0
    runs: tuple[str, ...] = ()
    settings: Settings | None = None
    exported: Ranges = field(default_factory=dict)
    topic_ids: Mapping[str, int] = field(default_factory=dict)
    newest: Newest = field(default_factory=dict)

    def after(self, run: str, settings: Settings, brought: Sequence[StagedRange]) -> Ledger:
        by_source: Ranges = {}
        for each in brought:
            by_source.setdefault(each.source, []).append(each.part)
        ranges = dict(self.exported)
        for source, parts in by_source.items():
            ranges[source] = joined([*ranges.get(source, ()), *parts])
        return Ledger(
            commits=self.commits + 1,
            runs=(*self.runs, run)[-RUNS_KEPT:],
            settings=settings,
            exported=ranges,
            topic_ids=known_topics(self, brought),
            newest=newest_known(self, brought),
        )

    def has(self, range_: StagedRange) -> bool:
        return not free(*range_.part, self.exported.get(range_.source, ()))

    def row(self) -> dict[str, Json]:
        return {
            "version": self.VERSION,
            "commits": self.commits,
            "runs": list(self.runs),
            "settings": None if self.settings is None else dict(self.settings),
            "ranges": {
                source: [list(part) for part in held]
                for source, held in sorted(self.exported.items())
            },
            "topic_ids": dict(sorted(self.topic_ids.items())),
            "newest": {source: list(known) for source, known in sorted(self.newest.items())},
        }

    @classmethod
    def of(cls, place: str, held: Any) -> Self:
        """Decode a `row`. MetadataError if it cannot be understood."""
        try:
            if held["version"] != cls.VERSION:
                raise MetadataError(place, f"it is of version {held['version']!r}")
            return cls(
                commits=int(held["commits"]),
                runs=tuple(map(str, held["runs"])),
                settings=None if held["settings"] is None else dict(held["settings"]),
                exported={
                    str(source): [_pair(part) for part in parts]
                    for source, parts in held["ranges"].items()
                },
                # Ledgers of earlier versions have neither.
                topic_ids={
                    str(topic): int(number) for topic, number in held.get("topic_ids", {}).items()
                },
                newest={
                    str(source): _pair(known) for source, known in held.get("newest", {}).items()
                },
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise MetadataError(place, "its ranges cannot be understood") from error

    def packed(self) -> str:
        """The ledger as a short text, for the properties of a table."""
        text = json.dumps(self.row(), separators=(",", ":")).encode()
        return base64.b64encode(zlib.compress(text, 9)).decode()

    @classmethod
    def unpacked(cls, place: str, text: str) -> Self:
        try:
            plain = zlib.decompressobj().decompress(
                base64.b64decode(text, validate=True), PLAIN_BYTES_MAX
            )
            held = json.loads(plain)
        except (ValueError, zlib.error, RecursionError) as error:
            raise MetadataError(place, "its ranges cannot be understood") from error
        return cls.of(place, held)

    def refuse_other(self, place: str, settings: Settings) -> None:
        """InvalidConfigError if the table was exported with other settings: it has one shape."""
        if self.settings is None or dict(self.settings) == dict(settings):
            return
        names = [name for name in settings if self.settings.get(name) != settings[name]]
        other = ", ".join(f"{name}: {self.settings.get(name)!r}" for name in names)
        raise InvalidConfigError(
            f"{place} was exported with other settings ({other or 'of another version'}); "
            "use the same ones, or another target"
        )


class ExportTable(Protocol):
    """The table that an export adds to. `target` is where its files lie."""

    name: str

    @property
    def target(self) -> ExportTarget: ...

    def exists(self) -> bool:
        """Whether there is a table to add files to."""

    def make(self) -> None:
        """Make the empty table. It is no error if somebody else makes it meanwhile."""

    def read(self) -> Ledger:
        """The current ledger. The next `append` is based on this state of the table."""

    def append(self, ranges: Sequence[StagedRange], after: Ledger) -> None:
        """Make the files and the ledger part of the table in one step.

        TableChangedError if the table has changed since `read`, or if the outcome is unknown.
        """


def commit_staged(
    table: ExportTable, settings: Settings, staged: Sequence[StagedRange], run: str
) -> tuple[list[StagedRange], Ledger]:
    """Add the staged ranges that the table lacks, in one step. Returns those that this run added,
    and the ledger afterwards."""
    added: list[StagedRange] = []
    for _ in range(COMMIT_TRIES):
        ledger = table.read()
        ledger.refuse_other(table.name, settings)
        if run in ledger.runs:
            return added, ledger
        added = addable(staged, ledger)
        if not added:
            return [], ledger
        lost = _lost(table.target, added)
        if lost is not None:
            if table.read().commits != ledger.commits:
                continue  # another run has committed it and removed the staged files
            text = f"{lost} was written, and is not there: do all workers see this folder?"
            raise MetadataError(table.target.url, text)
        after = ledger.after(run, settings, added)
        try:
            table.append(added, after)
        except TableChangedError:
            continue
        return added, after
    raise BackendUnavailableError(table.name, "commit", f"{COMMIT_TRIES} commits came in between")


@contextmanager
def cleaning_up() -> Iterator[None]:
    """Remove what a commit has made useless. A failure is only logged: everything is in the table,
    and the next run makes up for it."""
    try:
        yield
    except BackendError as error:
        log.warning("everything is exported, but the cleanup is not complete: %s", error)


def known_topics(ledger: Ledger, more: Sequence[StagedRange]) -> dict[str, int]:
    """The number of each topic that has ranges in the ledger or among `more`."""
    found = dict(ledger.topic_ids)
    for each in more:
        if each.topic_id is not None:
            found.setdefault(topic_of(each.source), each.topic_id)
    return found


def newest_known(ledger: Ledger, more: Sequence[StagedRange]) -> Newest:
    """The newest message of each queue that is there, or about to be."""
    found = dict(ledger.newest)
    for each in more:
        if each.newest is not None:
            found[each.source] = max(each.newest, found.get(each.source, each.newest))
    return found


def topic_of(source: str) -> str:
    """The name of a source's topic in a ledger."""
    return source.rpartition("/")[0]


def addable(staged: Sequence[StagedRange], ledger: Ledger) -> list[StagedRange]:
    """The ranges that overlap neither the ledger nor each other; the first one wins."""
    taken = {source: list(parts) for source, parts in ledger.exported.items()}
    found = []
    for each in staged:
        mine = taken.setdefault(each.source, [])
        if free(*each.part, mine) == [each.part]:
            taken[each.source] = joined([*mine, each.part])
            found.append(each)
    return found


def _lost(target: ExportTarget, ranges: Sequence[StagedRange]) -> str | None:
    """The first file that is missing or has another size than was written."""
    files = [file for each in ranges for file in each.files]
    sizes = target.sizes([file.path for file in files])
    wrong = (file.path for file, size in zip(files, sizes, strict=True) if size != file.size)
    return next(wrong, None)


# Marks


def put_mark(target: ExportTarget, settings: Settings, range_: StagedRange) -> None:
    row = {"settings": dict(settings), **range_.row()}
    target.put(_mark_path(range_.name), (json.dumps(row) + "\n").encode())


def drop_mark(target: ExportTarget, name: str) -> None:
    """Let nobody commit a staged range. Its files go with those of the range that replaces it."""
    target.delete(_mark_path(name))


def _mark_path(name: str) -> str:
    return f"{STAGED}/{name}.json"


def marked(target: ExportTarget, settings: Settings) -> list[StagedRange]:
    """The ranges staged with these settings that still have their marks, and all of their files."""
    names = [name for name in target.names(STAGED) if name.endswith(".json")]
    reads = [worker_runtime().fetch.submit(target.read, f"{STAGED}/{name}") for name in names]
    found = [_mark_of(read.result(), settings) for read in reads]
    ranges = [each for each in found if each is not None]
    sizes = iter(target.sizes([file.path for each in ranges for file in each.files]))
    wrong = {each.name for each in ranges for file in each.files if next(sizes) != file.size}
    return [each for each in ranges if each.name not in wrong]


def _mark_of(data: bytes | None, settings: Settings) -> StagedRange | None:
    try:
        held = json.loads(data or b"{}")
        return StagedRange.of(held) if held.get("settings") == dict(settings) else None
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None  # the range is then staged anew


def drop_marks(target: ExportTarget, ledger: Ledger) -> None:
    """Remove staged files of ranges that the table has. Others may be in use by another run."""
    digests = {_digest(source): held for source, held in ledger.exported.items()}
    for path in target.paths(STAGED):
        found = _NAMED.match(path.rpartition("/")[2])
        if found is not None:
            held = digests.get(found[1], ())
            if not free(int(found[2]), int(found[3]), held):
                target.delete(path)


# Ranges


def _pair(held: Any) -> tuple[int, int]:
    first, end = held
    return int(first), int(end)


def _digest(source: str) -> str:
    return md5(source.encode(), usedforsecurity=False).hexdigest()[:16]


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges sorted, with touching ones merged."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return found


def free(first: int, end: int, taken: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of [first, end) outside of `taken`, whose ranges are sorted and do not overlap."""
    parts = []
    for start, stop in taken:
        if first < min(start, end):
            parts.append((first, min(start, end)))
        first = max(first, stop)
    if first < end:
        parts.append((first, end))
    return parts


def range_name(source: str, first: int, end: int) -> str:
    """The name of a range, and of its Parquet files. So it has the source in it, as a digest."""
    return f"{_digest(source)}-{source.rpartition('/')[2]}-{first:020d}-{end:020d}"
