"""The verbs that show what is in a tier: topics, queues, segments and the raw layout.

What lives here: arguments and what is printed. What the rows hold is gathered in `tier_rows`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tieredstore.cli.output import Columns, write_json, write_table
from tieredstore.cli.tier_options import TierOptions, takes_tier

app = typer.Typer(rich_markup_mode=None)

_TIER = "--provider posix --path /data/tier --metadata /data/tieredStoreMetadata.json"

Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, nothing else.")]
AnyTopic = Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Of this topic only.")]


@app.command(
    short_help="Topics: sizes, queues, reserve hours.",
    epilog=f"Example: tieredstore topics {_TIER} --broker broker-a",
)
@takes_tier
def topics(tier: TierOptions, json: Json = False) -> None:
    """The topics of a tier: their sizes, queues, and how long they are kept."""
    from tieredstore.cli import tier_rows
    from tieredstore.cli.damage_report import TierDamage
    from tieredstore.cli.tier import opened_tier

    damage = TierDamage()
    with opened_tier(tier) as opened:
        rows = tier_rows.topic_rows(opened, damage)
    if json:
        for row in rows:
            write_json(row)
    else:
        write_table("topics", tier_rows.TOPIC_COLUMNS, map(tier_rows.topic_cells, rows))
    damage.tell()


@app.command(
    short_help="Queues: offsets, sizes, times.",
    epilog="Example: tieredstore queues Orders --config broker.conf --json",
)
@takes_tier
def queues(topic: AnyTopic = None, *, tier: TierOptions, json: Json = False) -> None:
    """The queues of a tier: first offset, the offset behind the last, sizes and times.

    Times are the catalogue's; one that cannot be true has a question mark.
    """
    from tieredstore.cli import tier_rows
    from tieredstore.cli.damage_report import TierDamage
    from tieredstore.cli.tier import opened_tier

    damage = TierDamage()
    with opened_tier(tier) as opened:
        rows = tier_rows.queue_rows(opened, topic, damage)
    if json:
        for row in rows:
            write_json(row)
    else:
        write_table("queues", tier_rows.QUEUE_COLUMNS, map(tier_rows.queue_cells, rows))
    damage.tell()


@app.command(
    short_help="Segments, as the catalogue has them.",
    epilog="Example: tieredstore segments Orders 0 --config broker.conf --json",
)
@takes_tier
def segments(
    topic: AnyTopic = None,
    queue: Annotated[
        int | None, typer.Argument(metavar="[QUEUE]", min=0, help="Of this queue only.")
    ] = None,
    *,
    tier: TierOptions,
    json: Json = False,
) -> None:
    """The segments of all queues as the catalogue names them, each as long as it truly is.

    Those of the key index are shown for the topic rmq_sys_INDEX.
    """
    from tieredstore.cli import tier_rows
    from tieredstore.cli.damage_report import TierDamage
    from tieredstore.cli.tier import opened_tier

    damage = TierDamage()
    columns = Columns(tier_rows.SEGMENT_COLUMNS, tier_rows.SEGMENT_WIDTHS)
    with opened_tier(tier) as opened:
        for row in tier_rows.segment_rows(opened, topic, queue, damage):
            if json:
                write_json(row)
            else:
                columns.write(tier_rows.segment_cells(row))
    damage.tell()


@app.command(
    short_help="Segments, as they lie in the backend.",
    epilog="Example: tieredstore ls broker-a/Orders --config broker.conf",
)
@takes_tier
def ls(
    below: Annotated[
        str,
        typer.Argument(metavar="[PREFIX]", help="Only what lies at or below BROKER/TOPIC/QUEUE."),
    ] = "",
    *,
    tier: TierOptions,
    json: Json = False,
) -> None:
    """Every segment that lies in the backend, of all brokers, known to the catalogue or not.

    A missing or damaged catalogue is told of at the end.
    """
    from tieredstore.cli import tier_rows
    from tieredstore.cli.tier import opened_backend

    columns = Columns(tier_rows.LISTED_COLUMNS, tier_rows.LISTED_WIDTHS)
    with opened_backend(tier) as backend:
        for row in tier_rows.listed_rows(backend, below):
            if json:
                write_json(row)
            else:
                columns.write(tier_rows.listed_cells(row))
        if backend.failure is not None:
            raise backend.failure
