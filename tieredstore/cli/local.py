"""The verbs of `tieredstore local`: a RocketMQ store directory looked at, never changed.

What lives here: arguments and what is printed. What `info` tells is gathered in `local_info`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tieredstore.cli.choice import chosen
from tieredstore.cli.failures import CommandError, ExitCode
from tieredstore.cli.output import note, write_json, write_line
from tieredstore.cli.times import TIME_HELP, time_option

if TYPE_CHECKING:  # help must be fast
    from tieredstore.cli.damage import DamageCount
    from tieredstore.local.reader import LocalReader
    from tieredstore.model.values import QueueKey

_COUNT_DEFAULT = 64
_OPTIONS = ", or --commit-log-file-bytes, --queue-file-bytes, --index-slots, --index-items"
_SIZES = ("commit_log_file_bytes", "queue_file_bytes", "index_slot_count", "index_item_count")

app = typer.Typer(
    short_help="Look at the directory of a local store.",
    help="Look at the directory of a RocketMQ local store, also while a broker has it open.\n\n"
    "Example: tieredstore local cat /data/store --topic Orders --count 10",
    no_args_is_help=True,
    rich_markup_mode=None,
)


Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The store: it holds commitlog/.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
LogFileBytes = Annotated[
    int | None, typer.Option("--commit-log-file-bytes", min=1, help="mappedFileSizeCommitLog")
]
QueueFileBytes = Annotated[
    int | None, typer.Option("--queue-file-bytes", min=1, help="mappedFileSizeConsumeQueue")
]
IndexSlots = Annotated[int | None, typer.Option("--index-slots", min=1, help="maxHashSlotNum")]
IndexItems = Annotated[int | None, typer.Option("--index-items", min=1, help="maxIndexNum")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="A broker.conf with the sizes, or TOML with [local]."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, nothing else.")]
Body = Annotated[bool, typer.Option("--body", help="With the body; base64 in JSON.")]
Plain = Annotated[
    bool, typer.Option("--plain", help="With the body as its producer made it, not compressed.")
]


@app.command(epilog="Example: tieredstore local cat /data/store --topic Orders --queue 0 --json")
def cat(
    directory: Directory,
    topic: Annotated[str | None, typer.Option("--topic", help="Of this topic only.")] = None,
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="This queue only.")] = None,
    begin: Annotated[
        int, typer.Option("--from", min=0, help="Begin at this queue offset, in each queue.")
    ] = 0,
    count: Annotated[int | None, typer.Option("--count", min=0, help="Stop after so many.")] = None,
    body: Body = False,
    plain: Plain = False,
    commit_log_file_bytes: LogFileBytes = None,
    queue_file_bytes: QueueFileBytes = None,
    index_slots: IndexSlots = None,
    index_items: IndexItems = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Print what the consume queues name, in the order of the commit log."""
    from tieredstore.cli.damage import DamageCount
    from tieredstore.cli.messages import MessagePrinter
    from tieredstore.cli.walk import walk

    sizes = commit_log_file_bytes, queue_file_bytes, index_slots, index_items
    with _opened(directory, *sizes, config=config) as reader:
        keys = _chosen(reader, topic, queue)
        damage = DamageCount(reader)
        printer = MessagePrinter(json=json, body=body, plain=plain)
        found = walk(reader, keys, begin=begin, on_damage=damage.add)
        for key, message in islice(found, count):
            printer.write(key, message)
        _tell_damage(damage)
        printer.tell()


@app.command(epilog="Example: tieredstore local query /data/store Orders order-17 --max 5 --json")
def query(
    directory: Directory,
    topic: Topic,
    key: Annotated[str, typer.Argument(metavar="KEY", help="A key or the unique key.")],
    begin: Annotated[
        int | None, typer.Option("--begin", parser=time_option, metavar="TIME", help=TIME_HELP)
    ] = None,
    end: Annotated[
        int | None,
        typer.Option("--end", parser=time_option, metavar="TIME", help="the last to count"),
    ] = None,
    count_max: Annotated[int, typer.Option("--max", min=1, help="At most so many.")] = (
        _COUNT_DEFAULT
    ),
    body: Body = False,
    commit_log_file_bytes: LogFileBytes = None,
    queue_file_bytes: QueueFileBytes = None,
    index_slots: IndexSlots = None,
    index_items: IndexItems = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Find messages by key, newest first. The messages decide, not the hashes of the index."""
    from tieredstore.cli.messages import MessagePrinter
    from tieredstore.model.values import INT64_MAX

    sizes = commit_log_file_bytes, queue_file_bytes, index_slots, index_items
    with _opened(directory, *sizes, config=config) as reader:
        found = reader.query_message(
            topic,
            key,
            count_max=count_max + 1,  # to know whether there are more
            begin=0 if begin is None else begin,
            end=INT64_MAX if end is None else end,
        )
        if not found.messages:
            _chosen(reader, topic, None)
        printer = MessagePrinter(json=json, body=body)
        for message in found.messages[:count_max]:
            printer.write(None, message)
        if len(found.messages) > count_max:
            note(f"there are more than {count_max}: --max shows them")
        if not found.complete:
            raise CommandError(
                "a damaged message or index file was passed over: more may have the key",
                ExitCode.DAMAGE,
            )


@app.command(epilog="Example: tieredstore local offset /data/store Orders 0 2026-11-20T10:45:00Z")
def offset(
    directory: Directory,
    topic: Topic,
    queue: Annotated[int, typer.Argument(metavar="QUEUE", min=0)],
    time: Annotated[int, typer.Argument(parser=time_option, metavar="TIME", help=TIME_HELP)],
    upper: Annotated[
        bool, typer.Option("--upper", help="The last message at or before TIME.")
    ] = False,
    commit_log_file_bytes: LogFileBytes = None,
    queue_file_bytes: QueueFileBytes = None,
    index_slots: IndexSlots = None,
    index_items: IndexItems = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """The queue offset of the first message at or after TIME."""
    from tieredstore.model.values import Boundary

    boundary = Boundary.UPPER if upper else Boundary.LOWER
    sizes = commit_log_file_bytes, queue_file_bytes, index_slots, index_items
    with _opened(directory, *sizes, config=config) as reader:
        _chosen(reader, topic, queue)
        found = reader.offset_by_time(topic, queue, time, boundary)
    if not json:
        write_line(str(found))
        return
    place = {"topic": topic, "queue_id": queue, "timestamp": time, "boundary": boundary.value}
    write_json({**place, "queue_offset": found})


@app.command(epilog="Example: tieredstore local info /data/store --json")
def info(
    directory: Directory,
    commit_log_file_bytes: LogFileBytes = None,
    queue_file_bytes: QueueFileBytes = None,
    index_slots: IndexSlots = None,
    index_items: IndexItems = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Offsets, sizes, files, queues, checkpoint, index, and what a recovery would find."""
    from tieredstore.cli.local_info import gathered, write_tables

    sizes = commit_log_file_bytes, queue_file_bytes, index_slots, index_items
    with _opened(directory, *sizes, config=config) as reader:
        facts = gathered(reader)
    if json:
        write_json(facts)
    else:
        write_tables(facts)


@contextmanager
def _opened(
    directory: Path,
    commit_log_file_bytes: int | None,
    queue_file_bytes: int | None,
    index_slots: int | None,
    index_items: int | None,
    *,
    config: Path | None,
) -> Iterator[LocalReader]:
    given = {
        "commit_log_file_bytes": commit_log_file_bytes,
        "queue_file_bytes": queue_file_bytes,
        "index_slot_count": index_slots,
        "index_item_count": index_items,
    }
    with opened_store(directory, given, config, or_with=_OPTIONS) as reader:
        yield reader


@contextmanager
def opened_store(
    directory: Path, given: Mapping[str, int | None], config: Path | None, *, or_with: str = ""
) -> Iterator[LocalReader]:
    """The store in a directory, with sizes that were given, then those of a file of settings, then
    those written down beside the store."""
    from tieredstore.local.reader import LocalReader
    from tieredstore.model.errors import InvalidConfigError

    sizes = {} if config is None else _sizes_of(config)
    sizes |= {name: value for name, value in given.items() if value is not None}
    try:
        reader = LocalReader.open(directory, **sizes)
    except InvalidConfigError as error:
        raise CommandError(
            f"{error}; give the sizes that the store was made with: --config broker.conf{or_with}",
            ExitCode.USAGE,
        ) from error
    with reader:
        yield reader


def _sizes_of(config: Path) -> dict[str, int]:
    """What a broker's settings say otherwise than RocketMQ's defaults: a broker.conf, or TOML with
    a table of the local store."""
    from tieredstore.local.config import LocalConfig

    if not config.exists():
        raise CommandError(f"{config}: there is no such file", ExitCode.NOT_THERE)
    if config.suffix == ".toml" and LocalConfig.TABLE not in _tables_of(config):
        return {}  # the settings of a tier alone
    found, plain = LocalConfig.from_file(config), LocalConfig()
    values = {name: getattr(found, name) for name in _SIZES}
    return {name: value for name, value in values.items() if value != getattr(plain, name)}


def _tables_of(config: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(config.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"{config}: is no TOML: {error}", ExitCode.USAGE) from error


def _chosen(reader: LocalReader, topic: str | None, queue_id: int | None) -> list[QueueKey]:
    return chosen(list(reader.queues()), topic, queue_id)


def _tell_damage(damage: DamageCount) -> None:
    if damage.torn_count:
        note(f"{damage.torn_count} messages at the end of the log were torn by a crash, not shown")
    if damage.count:
        raise CommandError(
            f"{damage.count} damaged messages were not shown, the first: {damage.first}; "
            "restore the file from a replica",
            ExitCode.DAMAGE,
        )
