"""The verbs of `tieredstore local`: a RocketMQ store directory looked at, never changed.

What lives here: arguments and what is printed. What `info` tells is gathered in `local_info`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tieredstore.cli.failures import CommandError, ExitCode
from tieredstore.cli.output import Columns, note, printable, write_json, write_line
from tieredstore.cli.times import parse_time

if TYPE_CHECKING:  # help must be fast
    from tieredstore.cli.damage import DamageCount
    from tieredstore.local.local_reader import LocalReader
    from tieredstore.model.messages import SelectedMessage
    from tieredstore.model.values import QueueKey

_COUNT_DEFAULT = 64

app = typer.Typer(
    short_help="Look at the directory of a local store.",
    help="Look at the directory of a RocketMQ local store, also while a broker has it open.\n\n"
    "Example: tieredstore local cat /data/store --topic Orders --count 10",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _time(text: str) -> int:
    try:
        return parse_time(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


_TIME_HELP = "epoch milliseconds or ISO 8601 (UTC unless it says otherwise)"

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
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, nothing else.")]
Body = Annotated[bool, typer.Option("--body", help="With the body; base64 in JSON.")]


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
    commit_log_file_bytes: LogFileBytes = None,
    queue_file_bytes: QueueFileBytes = None,
    index_slots: IndexSlots = None,
    index_items: IndexItems = None,
    json: Json = False,
) -> None:
    """Print what the consume queues name, in the order of the commit log."""
    from tieredstore.cli.damage import DamageCount
    from tieredstore.cli.walk import walk

    sizes = commit_log_file_bytes, queue_file_bytes, index_slots, index_items
    with _opened(directory, *sizes) as reader:
        keys = _chosen(reader, topic, queue)
        damage = DamageCount(reader)
        printer = _Printer(json=json, body=body)
        found = walk(reader, keys, begin=begin, on_damage=damage.add)
        for key, message in islice(found, count):
            printer.write(key, message)
        _tell_damage(damage)


@app.command(epilog="Example: tieredstore local query /data/store Orders order-17 --max 5 --json")
def query(
    directory: Directory,
    topic: Topic,
    key: Annotated[str, typer.Argument(metavar="KEY", help="A key or the unique key.")],
    begin: Annotated[
        int | None, typer.Option("--begin", parser=_time, metavar="TIME", help=_TIME_HELP)
    ] = None,
    end: Annotated[
        int | None, typer.Option("--end", parser=_time, metavar="TIME", help="the last to count")
    ] = None,
    count_max: Annotated[int, typer.Option("--max", min=1, help="At most so many.")] = (
        _COUNT_DEFAULT
    ),
    body: Body = False,
    commit_log_file_bytes: LogFileBytes = None,
    queue_file_bytes: QueueFileBytes = None,
    index_slots: IndexSlots = None,
    index_items: IndexItems = None,
    json: Json = False,
) -> None:
    """Find messages by key, newest first. The messages decide, not the hashes of the index."""
    from tieredstore.model.values import INT64_MAX

    sizes = commit_log_file_bytes, queue_file_bytes, index_slots, index_items
    with _opened(directory, *sizes) as reader:
        found = reader.query_message(
            topic,
            key,
            count_max=count_max + 1,  # to know whether there are more
            begin=0 if begin is None else begin,
            end=INT64_MAX if end is None else end,
        )
        if not found.messages:
            _chosen(reader, topic, None)
        printer = _Printer(json=json, body=body)
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
    time: Annotated[int, typer.Argument(parser=_time, metavar="TIME", help=_TIME_HELP)],
    upper: Annotated[
        bool, typer.Option("--upper", help="The last message at or before TIME.")
    ] = False,
    commit_log_file_bytes: LogFileBytes = None,
    queue_file_bytes: QueueFileBytes = None,
    index_slots: IndexSlots = None,
    index_items: IndexItems = None,
    json: Json = False,
) -> None:
    """The queue offset of the first message at or after TIME."""
    from tieredstore.model.values import Boundary

    boundary = Boundary.UPPER if upper else Boundary.LOWER
    sizes = commit_log_file_bytes, queue_file_bytes, index_slots, index_items
    with _opened(directory, *sizes) as reader:
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
    json: Json = False,
) -> None:
    """Offsets, sizes, files, queues, checkpoint, index, and what a recovery would find."""
    from tieredstore.cli.local_info import gathered, write_tables

    sizes = commit_log_file_bytes, queue_file_bytes, index_slots, index_items
    with _opened(directory, *sizes) as reader:
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
) -> Iterator[LocalReader]:
    from tieredstore.local.local_reader import LocalReader
    from tieredstore.model.errors import InvalidConfigError

    try:
        reader = LocalReader.open(
            directory,
            commit_log_file_bytes=commit_log_file_bytes,
            queue_file_bytes=queue_file_bytes,
            index_slot_count=index_slots,
            index_item_count=index_items,
        )
    except InvalidConfigError as error:
        raise CommandError(
            f"{error}; give the sizes that the store was made with: --commit-log-file-bytes, "
            "--queue-file-bytes, --index-slots, --index-items",
            ExitCode.USAGE,
        ) from error
    with reader:
        yield reader


def _chosen(reader: LocalReader, topic: str | None, queue_id: int | None) -> list[QueueKey]:
    """The queues that are meant; naming one that is not there is an error."""
    everything = list(reader.queues())
    keys = [key for key in everything if topic in (None, key.topic)]
    if topic is not None and not keys:
        names = sorted({key.topic for key in everything})
        known = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise CommandError(
            f"no topic {printable(topic)!r} is in this store; there are: {known or 'none'}",
            ExitCode.NOT_THERE,
        )
    chosen = [key for key in keys if queue_id in (None, key.queue_id)]
    if queue_id is not None and not chosen:
        numbers = sorted({key.queue_id for key in keys})
        known = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
        raise CommandError(
            f"no queue {queue_id} is there; there are: {known or 'none'}", ExitCode.NOT_THERE
        )
    return chosen


class _Printer:
    """Messages one after the other."""

    def __init__(self, *, json: bool, body: bool) -> None:
        from tieredstore.cli import messages

        self._messages = messages
        self._json = json
        self._body = body
        self._columns = Columns(messages.COLUMNS, messages.WIDTHS)

    def write(self, key: QueueKey | None, message: SelectedMessage) -> None:
        row = self._messages.message_row(message, key=key, body=self._body)
        if self._json:
            write_json(row)
            return
        self._columns.write(self._messages.message_cells(row))
        if self._body:
            write_line("    " + printable(self._messages.body_text(row)))


def _tell_damage(damage: DamageCount) -> None:
    if damage.torn_count:
        note(f"{damage.torn_count} messages at the end of the log were torn by a crash, not shown")
    if damage.count:
        raise CommandError(
            f"{damage.count} damaged messages were not shown, the first: {damage.first}; "
            "restore the file from a replica",
            ExitCode.DAMAGE,
        )
