"""The verbs that read messages of a tier: cat and offset.

What lives here: arguments and what is printed. The way through the queues is in `tier_walk`.
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Final

import typer

from tieredstore.cli.failures import CommandError, ExitCode
from tieredstore.cli.output import printable, write_json, write_line
from tieredstore.cli.tier_options import TierOptions, takes_tier
from tieredstore.cli.times import TIME_HELP, time_option

# No queue has so many messages, and no message was stored so early: 2001-09-09.
_TIMES_FROM: Final = 1_000_000_000_000

app = typer.Typer(rich_markup_mode=None)

Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, nothing else.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Plain = Annotated[
    bool, typer.Option("--plain", help="With the body as its producer made it, not compressed.")
]


@app.command(
    short_help="Messages of a topic, oldest first.",
    epilog="Example: tieredstore cat Orders --from 2026-11-20T10:45Z --config broker.conf",
)
@takes_tier
def cat(
    topic: Topic,
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="This queue only.")] = None,
    begin: Annotated[
        int | None,
        typer.Option(
            "--from",
            parser=time_option,
            metavar="OFFSET|TIME",
            help="Begin at this queue offset in each queue, or at this time: epoch milliseconds "
            "of 13 digits and more, or ISO 8601.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", min=0, help="Stop after so many; else all.")
    ] = None,
    body: Annotated[bool, typer.Option("--body", help="With the body; base64 in JSON.")] = False,
    plain: Plain = False,
    *,
    tier: TierOptions,
    json: Json = False,
) -> None:
    """Print the messages of a topic in the order in which they were stored, over all its queues.

    Within a queue that is the order of its offsets. Damaged messages are left out and told of at
    the end.
    """
    from tieredstore.cli.damage_report import TierDamage
    from tieredstore.cli.messages import MessagePrinter
    from tieredstore.cli.tier import opened_tier
    from tieredstore.cli.tier_rows import keys_of, problem_of
    from tieredstore.cli.tier_walk import Start, walk_tier

    is_time = begin is not None and begin >= _TIMES_FROM
    start = Start(timestamp=begin) if is_time else Start(offset=begin or 0)
    damage = TierDamage()
    printer = MessagePrinter(json=json, body=body, plain=plain)
    with opened_tier(tier) as opened:
        keys = keys_of(opened, topic, queue)
        found = walk_tier(
            opened.reader,
            keys,
            start=start,
            count_max=count,
            checks_bodies=opened.config.checks_bulk_reads,
            on_damage=damage.add_messages,
        )
        for stored in islice(found, count):
            printer.write(stored.key, stored.message)
        for key in keys:  # what is missing behind the last one that was shown
            damage.add_queue(opened, key, problem_of(opened, key))
    damage.tell()
    printer.tell()


@app.command(
    short_help="The queue offset of a time.",
    epilog="Example: tieredstore offset Orders 0 2026-11-20T10:45Z --config broker.conf",
)
@takes_tier
def offset(
    topic: Topic,
    queue: Annotated[int, typer.Argument(metavar="QUEUE", min=0)],
    time: Annotated[int, typer.Argument(parser=time_option, metavar="TIME", help=TIME_HELP)],
    upper: Annotated[
        bool, typer.Option("--upper", help="The last of the messages stored exactly at TIME.")
    ] = False,
    *,
    tier: TierOptions,
    json: Json = False,
) -> None:
    """The queue offset of the first message stored at or after TIME; the queue's end if none."""
    from tieredstore.cli.damage_report import TierDamage
    from tieredstore.cli.tier import opened_tier
    from tieredstore.cli.tier_rows import keys_of, problem_of
    from tieredstore.model.values import Boundary

    boundary = Boundary.UPPER if upper else Boundary.LOWER
    damage = TierDamage()
    with opened_tier(tier) as opened:
        keys = keys_of(opened, topic, queue)
        found = opened.reader.offset_by_time(topic, queue, time, boundary)
        for key in keys:
            damage.add_queue(opened, key, problem_of(opened, key))
    if found is None:
        raise CommandError(
            f"nothing of {printable(topic)}/{queue} was tiered yet: it has no offsets",
            ExitCode.NOT_THERE,
        )
    if json:
        place = {"topic": topic, "queue_id": queue, "timestamp": time, "boundary": boundary.value}
        write_json({**place, "queue_offset": found})
    else:
        write_line(str(found))
    damage.tell()
