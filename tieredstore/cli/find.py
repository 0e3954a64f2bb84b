"""The verb that finds messages of a tier by key: query.

What lives here: arguments and what is printed. Which messages have the key is up to the reader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tieredstore.cli.failures import CommandError, ExitCode
from tieredstore.cli.output import note, printable
from tieredstore.cli.tier_options import TierOptions, takes_tier
from tieredstore.cli.times import TIME_HELP, time_option

if TYPE_CHECKING:  # help must be fast
    from tieredstore.access.reader import TieredReader
    from tieredstore.model.values import QueueKey

_COUNT_DEFAULT: Final = 32

app = typer.Typer(rich_markup_mode=None)


@app.command(
    short_help="Messages by key, newest first.",
    epilog="Example: tieredstore query Orders order-17 --max 5 --config broker.conf",
)
@takes_tier
def query(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
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
    body: Annotated[bool, typer.Option("--body", help="With the body; base64 in JSON.")] = False,
    *,
    tier: TierOptions,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line, nothing else.")] = (
        False
    ),
) -> None:
    """Find messages by key, newest first. The messages decide, not the hashes of the index.

    On the broker's host all of the key index is asked; elsewhere what was uploaded of it, which a
    broker does once a day, or when a file is full. A note says where the index ends before a queue.
    """
    from tieredstore.cli.messages import MessagePrinter
    from tieredstore.cli.tier import check_answers, opened_tier
    from tieredstore.cli.tier_rows import keys_of
    from tieredstore.model.values import INT64_MAX

    with opened_tier(tier) as opened:
        found = opened.reader.query_message(
            topic,
            key,
            count_max=count_max + 1,  # to know whether there are more
            begin=0 if begin is None else begin,
            end=INT64_MAX if end is None else end,
        )
        if not found.messages:
            keys = keys_of(opened, topic, None)  # says so if there is no such topic
            if found.complete:
                note("the uploaded index has no such message")
            elif found.lags:
                reached = _not_reached(opened.reader, keys)
                note(f"the uploaded index has no such message, and {reached}")
        elif found.lags:
            reached = _not_reached(opened.reader, keys_of(opened, topic, None))
            note(f"more messages may have the key: the uploaded index {reached}")
        printer = MessagePrinter(json=json, body=body)
        for message in found.messages[:count_max]:
            printer.write(None, message)
        if not (found.complete or found.lags):
            check_answers(opened)
    if len(found.messages) > count_max:
        note(f"there are more than {count_max}: --max shows them")
    if not (found.complete or found.lags):
        raise CommandError(
            "a message or an index file could not be read: more may have the key",
            ExitCode.DAMAGE,
        )


def _not_reached(reader: TieredReader, keys: Iterable[QueueKey]) -> str:
    """The first queue whose end the index does not know yet, and what helps."""
    for key in keys:
        reach = reader.indexed_offset(*key)
        end = reader.max_offset(*key) or 0
        lags = reach is not None and reach < end
        if lags and any(row.size for row in reader.segments(*key)):  # else all of it has expired
            return (
                f"does not reach the end: of {printable(key.topic)}/{key.queue_id} it has "
                f"the offsets below {reach} of {end}; a broker uploads the rest once a day, or "
                "when a file is full; without a broker, `offload --seal` does"
            )
    return "does not reach the end"
