"""A row for every verb of the command: its words on a tier that Java wrote.

`test_every_verb` fails if a verb has no row.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import typer

from tests.cli.cli_kit import SIZE_OPTIONS, Command, Ran, Row, messages
from tests.cli.tier_kit import CATALOGUE, TIER, named
from tests.codec.golden_files import BROKER, GOLDEN
from tieredstore.access.queue_upload import STOPPED_QUEUE
from tieredstore.cli.main import app
from tieredstore.codec.names import queue_path
from tieredstore.metadata.json_store import JsonMetadataStore

CLEAN: Final = GOLDEN / "local-clean"
TIME: Final = 1795171540000
Rows = list[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """The words after a verb, and what its rows must be on Java's tier.

    `{place}` is the test's own folder. `same` names the fields that do not depend on the tier's
    place. `without_catalogue` is the verb's exit code if there is no catalogue.
    """

    words: tuple[object, ...] = ()
    holds: Callable[[Rows], bool]
    same: tuple[str, ...] | None = None  # None: all of them
    without_catalogue: int = 3
    refused: int = 5
    topic: bool = False  # the first word names a topic
    queue: bool = False  # the second word names a queue


def report_of(rows: Rows) -> Row:
    """What a job reported at its end."""
    return rows[-1] if rows[-1]["what"] == "report" else {"state": "", "counts": {}}


def _first(**wanted: object) -> Callable[[Rows], bool]:
    return lambda rows: {name: rows[0].get(name) for name in wanted} == wanted


def _count(wanted: int) -> Callable[[Rows], bool]:
    return lambda rows: len(rows) == wanted


def _job(**counts: int) -> Callable[[Rows], bool]:
    def holds(rows: Rows) -> bool:
        report = report_of(rows)
        found = report["counts"]
        return bool(report["state"] == "done" and counts.items() <= found.items())

    return holds


def _are_of_java(rows: Rows) -> bool:
    known = {row["sha256"] for row in messages()}
    return len(rows) > 500 and all(row["sha256"] in known for row in rows)


JOB: Final = ("what", "job", "state", "counts", "findings", "exit_code")

ON_A_TIER: Final[dict[str, Verb]] = {
    "topics": Verb(holds=_count(4)),
    "queues": Verb(holds=_count(9)),
    "groups": Verb(holds=_count(0)),
    "segments": Verb(holds=_count(53)),
    "ls": Verb(holds=_count(57), same=("path", "type", "base_offset", "size", "catalogued")),
    "cat": Verb(words=("GoldAa",), holds=_count(199), topic=True),
    "offset": Verb(
        words=("GoldAa", 0, TIME), holds=_first(boundary="lower"), topic=True, queue=True
    ),
    "query": Verb(words=("GoldAa", "{key}"), holds=bool, topic=True),
    "why": Verb(
        words=("GoldAa", 0, 25), holds=_first(queue_offset=25, problem=None), topic=True, queue=True
    ),
    "audit": Verb(holds=_count(0)),
    "resume": Verb(words=("GoldAa", 0), holds=_first(resume=True), topic=True, queue=True),
    "recover": Verb(
        words=("--apply",),
        holds=_first(what="machine", catalogue="made", has_local_store=False),
        same=("what", "topic", "queue_id", "min_offset", "max_offset", "log_bytes"),
        without_catalogue=0,
    ),
    "rebuild": Verb(
        holds=_first(segment_count=57, queue_count=9, size=346_788),
        without_catalogue=0,
    ),
    "certify": Verb(
        holds=lambda rows: bool(rows) and all(row["passed"] for row in rows),
        same=(),
        without_catalogue=0,
    ),
    "expire": Verb(
        words=("--config", "{place}/hour.toml"), holds=lambda rows: rows[0]["segment_count"] > 0
    ),
    "cost": Verb(holds=lambda rows: rows[-1]["what"] == "total", same=("what",), refused=0),
    "report": Verb(
        words=("--out", "{place}/tier.html"), holds=_first(queues=9), same=("queues",), refused=0
    ),
    "migrate": Verb(
        words=(
            *("--to-provider", "posix", "--to-path", "{place}/new"),
            *("--to-catalogue-file", "{place}/new.json"),
        ),
        holds=_job(copied=57),
        same=JOB,
    ),
    "verify": Verb(holds=_job(), same=JOB),
    "export": Verb(words=("--to", "{place}/parquet"), holds=_job(), same=JOB),
    "reindex": Verb(holds=_job(), same=JOB),
    "catalogue show": Verb(
        holds=_first(topic_count=4, queue_count=9, source="file"),
        same=("topic_count", "size"),
        refused=0,
    ),
    "catalogue snapshot": Verb(holds=_first(generation=1), same=("generation",)),
    "catalogue reserve": Verb(words=("GoldAa", 720), holds=_first(reserve_hours=720), topic=True),
    "offload": Verb(
        words=("--store-path", "{place}/store"),
        holds=lambda rows: (
            {
                "topic": "GoldNew",
                "queue_id": 0,
                "max_offset": 3,
                "committed_offset": 3,
                "is_tiered": True,
            }
            in rows
        ),
    ),
}
ON_A_LOCAL_STORE: Final[dict[str, Verb]] = {
    "local cat": Verb(words=(CLEAN, *SIZE_OPTIONS), holds=_are_of_java),
    "local query": Verb(words=(CLEAN, "GoldAa", "{key}", *SIZE_OPTIONS), holds=bool),
    "local offset": Verb(
        words=(CLEAN, "GoldAa", 0, TIME, *SIZE_OPTIONS), holds=_first(boundary="lower")
    ),
    "local info": Verb(words=(CLEAN, *SIZE_OPTIONS), holds=_count(1)),
    "put": Verb(
        words=("GoldNew", "--store-path", "{place}/made", "--body", "x"),
        holds=_first(topic="GoldNew", queue_offset=0),
    ),
}
# Tested in tests/s3/test_care_verbs.py, as it needs a store with buckets.
ON_A_STORE_OF_OBJECTS: Final[dict[str, Verb]] = {
    "create-bucket": Verb(words=("--provider", "s3", "--bucket", "tiers"), holds=_count(1)),
}
EVERY: Final = {**ON_A_TIER, **ON_A_LOCAL_STORE, **ON_A_STORE_OF_OBJECTS}


def documented_codes() -> dict[str, int]:
    """The documented table: what happened, and the code of each verb that meets it."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page.partition("### Exit codes")[2].partition("\n#")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {what: int(code) for what, code in rows if code.isdigit()}


@cache
def commands() -> dict[str, Any]:
    """The app's verbs by name, including those of its families, such as `catalogue show`."""

    def walked(command: Any, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            for name, below in command.commands.items():
                yield from walked(below, (*names, name))
        else:
            yield " ".join(names), command

    return dict(walked(typer.main.get_command(app), ()))


def key_of_golden(command: Command) -> str:
    """A key of messages of GoldAa/0 in the middle of the tier."""
    rows = command.run("cat", "GoldAa", "--queue", 0, *named(TIER), "--json").rows
    return next(str(row["unique_key"]) for row in rows if row["unique_key"])


class Bench:
    """A test's own folder, with everything that the verbs need beside the tier."""

    def __init__(self, command: Command, place: Path) -> None:
        self._command = command
        self._place = place
        self.catalogue = place / "tieredStoreMetadata.json"
        self.catalogue.write_bytes((TIER / CATALOGUE).read_bytes())
        (place / "hour.toml").write_text("reserve_hours = 1\n")

    def prepare(self, name: str) -> None:
        """Make what the golden tier lacks, such as a stopped queue or a lost catalogue."""
        if name == "resume":
            with JsonMetadataStore.open(self.catalogue) as metadata:
                path = queue_path(BROKER, "GoldAa", 0)
                metadata.put_note(STOPPED_QUEUE, path, {"reason": "the test says so"})
        if name in ("rebuild", "recover"):
            self.catalogue.unlink()
        if name == "offload":
            put = ("put", "GoldNew", "--store-path", self._place / "store", "--body", "x")
            assert self._command.run(*put, "--repeat", 3).code == 0

    def words(self, name: str) -> list[str]:
        """This verb's words, with the places and the key filled in."""
        key = key_of_golden(self._command) if name.endswith("query") else ""
        given = EVERY[name].words
        filled = [str(word).format(place=self._place, key=key) for word in given]
        return [*name.split(), *filled]

    def run(self, name: str, *others: object) -> Ran:
        return self._command.run(*self.words(name), *others)


def golden_copy(place: Path) -> Path:
    """A copy of the golden tier's folder that a test may change."""
    return Path(shutil.copytree(TIER / "tiered", place / "tiered"))


def on_posix(bench: Bench, root: Path) -> list[str]:
    return named(TIER, path=root, catalogue_file=bench.catalogue)


def told_in_one_line(ran: Ran, *, debug: bool = False) -> bool:
    """Whether the last line says it, after a traceback only with --debug."""
    *before, last = ran.err.splitlines()
    has_traceback = any("Traceback" in line for line in before)
    return last.startswith("tieredstore: ") and (has_traceback if debug else not before)


def same_rows(rows: Rows, fields: tuple[str, ...] | None) -> Rows:
    """The fields that do not depend on the tier's place."""
    if fields is None:
        return rows
    return [{name: row[name] for name in fields if name in row} for row in rows] if fields else []
