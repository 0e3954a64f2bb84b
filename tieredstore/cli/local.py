"""The verbs of `tieredstore local`, which show the directory of a RocketMQ store and never change
it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tieredstore.cli.options import (
    AnyTopic,
    Body,
    CountMax,
    FoundMax,
    From,
    FromOffset,
    Json,
    Key,
    OneQueue,
    Plain,
    Queue,
    Shown,
    SizeOptions,
    TableShown,
    Time,
    Topic,
    Until,
    Upper,
    argument,
    given,
    require_file,
    verb,
)
from tieredstore.cli.output import (
    CommandError,
    ExitCode,
    Row,
    printable,
    write_json,
    write_line,
)
from tieredstore.cli.table import Column, Kind, Table

if TYPE_CHECKING:  # help must be fast
    from tieredstore.local import LocalConfig
    from tieredstore.local.index_file import IndexFile
    from tieredstore.local.reader import LocalReader
    from tieredstore.local.record_scan import Damage
    from tieredstore.model.values import QueueKey

app = typer.Typer(rich_markup_mode=None)
local = typer.Typer(
    help="Look at the directory of a RocketMQ local store, also while a broker has it open.\n\n"
    "Example: tieredstore local cat /data/store Orders --max 10",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(local, name="local")

Directory = Annotated[Path, argument("DIR", "The store: it holds commitlog/.")]

_FOUND_MAX: Final = 64
_QUEUE_COLUMNS: Final = (
    Column("topic", "topic"),
    Column("queue", "queue_id", Kind.NUMBER),
    Column("min", "min_offset", Kind.NUMBER),
    Column("max", "max_offset", Kind.NUMBER),
    Column("files", "file_count", Kind.NUMBER),
    Column("earliest message", "earliest_timestamp", Kind.TIME),
    Column("torn", "units_behind_log_end", Kind.NUMBER),
)
_INDEX_COLUMNS: Final = (
    Column("file", "file", Kind.NAME),
    Column("size", "size", Kind.SIZE),
    Column("items", "item_count", Kind.NUMBER),
    Column("full", lambda row: "yes" if row["full"] else "no", Kind.NAME),
    Column("first", "begin_timestamp", Kind.TIME),
    Column("last", "end_timestamp", Kind.TIME),
)
_OPTIONS: Final = ", or --commit-log-file-bytes, --queue-file-bytes, --index-slots, --index-items"


@verb(local, "local cat /data/store Orders --queue 0 --json")
def cat(
    directory: Directory,
    topic: AnyTopic = None,
    queue: OneQueue = None,
    from_offset: FromOffset = None,
    count_max: CountMax = None,
    body: Body = False,
    plain: Plain = False,
    *,
    sizes: SizeOptions,
    shown: TableShown,
) -> None:
    """Print what the consume queues name, in the order of the commit log."""
    from tieredstore.cli.read import LocalPlace, MessagePrinter, print_messages

    printer = MessagePrinter(shown, body=body, plain=plain, log_offsets=True)
    with opened_store(directory, sizes, or_with=_OPTIONS) as reader:
        print_messages(
            LocalPlace(reader), printer, topic, queue, begin=from_offset or 0, count=count_max
        )


@verb(local, "local query /data/store Orders order-17 --max 5 --json")
def query(
    directory: Directory,
    topic: Topic,
    key: Key,
    begin: From = None,
    end: Until = None,
    count_max: FoundMax = _FOUND_MAX,
    body: Body = False,
    *,
    sizes: SizeOptions,
    shown: TableShown,
) -> None:
    """Find messages by key, newest first. The messages decide, not the hashes of the index."""
    from tieredstore.cli.read import LocalPlace, MessagePrinter, print_found

    printer = MessagePrinter(shown, body=body, log_offsets=True)
    with opened_store(directory, sizes, or_with=_OPTIONS) as reader:
        print_found(
            LocalPlace(reader), printer, topic, key, count_max=count_max, begin=begin, end=end
        )


@verb(local, "local offset /data/store Orders 0 2026-11-20T10:45:00Z")
def offset(
    directory: Directory,
    topic: Topic,
    queue: Queue,
    time: Time,
    upper: Upper = False,
    *,
    sizes: SizeOptions,
    json: Json = False,
) -> None:
    """The queue offset of the first message at or after TIME; --upper: the last at or before."""
    from tieredstore.cli.read import LocalPlace, print_offset

    with opened_store(directory, sizes, or_with=_OPTIONS) as reader:
        print_offset(LocalPlace(reader), topic, queue, time, upper=upper, json=json)


@verb(local, "local info /data/store --json")
def info(directory: Directory, *, sizes: SizeOptions, shown: Shown) -> None:
    """Offsets, sizes, files, queues, checkpoint, index, and what a recovery would find."""
    with opened_store(directory, sizes, or_with=_OPTIONS) as reader:
        facts = _gathered(reader)
    if shown.json:
        write_json(facts)
    else:
        _write_tables(facts, shown)


@contextmanager
def opened_store(
    directory: Path, options: SizeOptions, *, or_with: str = ""
) -> Iterator[LocalReader]:
    """Open the store in a directory, with the sizes that were given, else those of a settings file,
    else those recorded with the store."""
    from tieredstore.local.reader import LocalReader
    from tieredstore.model.errors import InvalidConfigError

    sizes = ({} if options.config is None else _sizes_of(options.config)) | given(options)
    try:
        reader = LocalReader.open(directory, **sizes)
    except InvalidConfigError as error:
        raise CommandError(
            f"{error}; give the sizes that the store was made with: --config broker.conf{or_with}",
            ExitCode.USAGE,
        ) from error
    with reader:
        yield reader


def local_settings(file: Path) -> LocalConfig:
    """The settings of a local store: those of a broker.conf, or of a table of a TOML file."""
    from tieredstore.local import LocalConfig

    if file.suffix == ".toml":
        try:
            tables = tomllib.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise CommandError(f"{file}: is no TOML: {error}", ExitCode.USAGE) from error
        if LocalConfig.TABLE not in tables:
            return LocalConfig()  # the file has only settings of a tier
    return LocalConfig.from_file(file)


def _sizes_of(config: Path) -> dict[str, int]:
    """The sizes in a settings file that differ from RocketMQ's defaults."""
    from tieredstore.local import LocalConfig
    from tieredstore.local.files import SIZE_SETTINGS

    require_file(config)
    found, plain = local_settings(config), LocalConfig()
    sizes = {name: int(getattr(found, name)) for name in SIZE_SETTINGS}
    return {name: size for name, size in sizes.items() if size != getattr(plain, name)}


def _gathered(reader: LocalReader) -> Row:
    from tieredstore.local.files import SIZE_SETTINGS

    log_files = reader.log.queue.files
    facts = reader.log_facts()
    queue_rows = [_queue(reader, key, facts.log_end) for key in reader.queues()]
    queues_end = max((row["max_log_offset"] for row in queue_rows), default=0)
    return {
        "directory": str(reader.files.root),
        "sizes": {name: getattr(reader.config, name) for name in SIZE_SETTINGS},
        "sizes_written_down": reader.files.sizes.exists(),
        "min_log_offset": reader.min_log_offset(),
        "max_log_offset": facts.log_end,
        "confirmed_offset": reader.confirmed_offset(),
        "earliest_timestamp": reader.earliest_time(),
        "commit_log": {
            "file_count": len(log_files),
            "first_file": log_files[0].start_offset if log_files else None,
            "last_file": log_files[-1].start_offset if log_files else None,
            "gaps": [{"begin": gap.start, "end": gap.end} for gap in reader.log.queue.gaps],
        },
        "queues": queue_rows,
        "checkpoint": asdict(reader.checkpoint.values),
        "index_files": [_index_file(file) for file in reader.index.files],
        "recovery": {
            "abort_file": facts.abnormal,
            "checked_from": facts.checked_from,
            "torn_tail": None if facts.torn is None else _damage(facts.torn),
            "damages": [_damage(damage) for damage in facts.damages],
            "log_bytes_behind_queues": max(0, facts.log_end - queues_end),
            "units_behind_log_end": sum(row["units_behind_log_end"] for row in queue_rows),
            "damaged_index_files": [str(error) for error in reader.index.damages],
        },
    }


def _queue(reader: LocalReader, key: QueueKey, log_end: int) -> Row:
    queue = reader.queue(*key)
    assert queue is not None
    return {
        "topic": key.topic,
        "queue_id": key.queue_id,
        "min_offset": queue.min_offset,
        "max_offset": queue.max_offset,
        "max_log_offset": queue.last_log_end,
        "file_count": queue.file_count,
        "earliest_timestamp": (
            reader.earliest_time(*key) if queue.min_offset < queue.max_offset else None
        ),
        "units_behind_log_end": _units_behind(reader, key, log_end),
    }


def _units_behind(reader: LocalReader, key: QueueKey, log_end: int) -> int:
    """How many units at the end of the queue refer to messages that the log lost in a crash."""
    queue = reader.queue(*key)
    assert queue is not None
    offset = queue.max_offset
    while offset > queue.min_offset and queue.unit(offset - 1).log_offset >= log_end:
        offset -= 1
    return queue.max_offset - offset


def _index_file(file: IndexFile) -> Row:
    return {
        "file": file.name,
        "size": file.path.stat().st_size,
        **file.header._asdict(),
        "item_count": file.header.item_count,
        "full": file.is_full,
    }


def _damage(damage: Damage) -> Row:
    return {
        "path": damage.path,
        "position": damage.position,
        "log_offset": damage.log_offset,
        "reason": damage.reason,
        "resumed_at": damage.resumed_at,
    }


def _write_tables(facts: Row, shown: Shown) -> None:
    first, earliest = facts["min_log_offset"], facts["earliest_timestamp"]
    _write_facts(
        "store",
        {
            "directory": facts["directory"],
            "log offsets": "none" if first is None else f"{first:,} to {facts['max_log_offset']:,}",
            "earliest message": "-" if earliest is None else shown.time(earliest),
            "commit log files": facts["commit_log"]["file_count"],
            **{name.replace("_", " "): size for name, size in facts["sizes"].items()},
        },
    )
    for title, columns, rows in (
        ("queues", _QUEUE_COLUMNS, facts["queues"]),
        ("index files", _INDEX_COLUMNS, facts["index_files"]),
    ):
        if rows:
            write_line("")
        with Table(columns, shown, title=title) as table:
            for row in rows:
                table.write(row)
    write_line("")
    checkpoint = {
        name.replace("_", " "): shown.time(value) if value and name.endswith("timestamp") else value
        for name, value in facts["checkpoint"].items()
    }
    _write_facts("checkpoint", checkpoint)
    write_line("")
    recovery = {name.replace("_", " "): _short(value) for name, value in facts["recovery"].items()}
    _write_facts("what a recovery would find", recovery)


def _write_facts(title: str, facts: Row) -> None:
    """Facts about one thing, one per line."""
    write_line(title)
    width = max(map(len, facts))
    for name, value in facts.items():
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
        write_line(f"  {name:<{width}}  {printable(str(shown))}")


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return f"at {value['log_offset']}: {value['reason']} ({value['path']})"
    if isinstance(value, list):
        return "; ".join(map(_short, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
