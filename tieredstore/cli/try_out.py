"""The verbs to try everything by hand: put and offload.

What lives here: arguments and what is printed. The stores are opened in `try_out_store`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tieredstore.cli.output import write_json, write_line
from tieredstore.cli.tier_options import TierOptions, takes_tier

app = typer.Typer(rich_markup_mode=None)

StorePath = Annotated[
    str,
    typer.Option("--store-path", metavar="DIR", help="The local store; made where there is none."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, nothing else.")]


@app.command(
    short_help="Put messages into a local store.",
    epilog="Example: tieredstore put Orders --store-path /tmp/try --body hello --key order-1",
)
def put(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    store_path: StorePath,
    queue: Annotated[int, typer.Option("--queue", min=0)] = 0,
    body: Annotated[
        str | None, typer.Option("--body", help="Of the message; else each line of stdin is one.")
    ] = None,
    keys: Annotated[
        list[str] | None, typer.Option("--key", help="To find it by; may be said again.")
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="To filter by.")] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Put each so many times.")] = 1,
    json: Json = False,
) -> None:
    """Put messages into a local store in a folder, and sync them. For trying things out.

    The store must not be open in a broker. `tieredstore local cat` shows what is in it, `offload`
    copies it to a tier.
    """
    from tieredstore.cli.try_out_store import messages_of, put_all

    last, stored = None, 0
    for last in put_all(
        store_path,
        messages_of(topic, queue, body=body, keys=keys or [], tag=tag, count=count),
    ):
        stored += 1
        if json:
            write_json(last)
    if not json:
        where = "" if last is None else f", the last one at offset {last['queue_offset']}"
        write_line(f"{stored} messages put into {topic}/{queue}{where}")


@app.command(
    short_help="Copy a local store to its tier.",
    epilog="Example: tieredstore offload --store-path /tmp/try",
)
@takes_tier
def offload(
    tier: TierOptions,
    seal: Annotated[
        bool, typer.Option("--seal", help="Leave no segment open; upload the key index too.")
    ] = False,
    json: Json = False,
) -> None:
    """Upload what a local store has and its tier has not, as a broker with the plugin does.

    --store-path names the local store; no broker may have it open. Without --provider or --config
    the tier is the folder `tier` in it.
    """
    from tieredstore.cli.try_out_store import how_to_look, offloaded

    config, rows = offloaded(tier, seal=seal)
    for row in rows:
        if json:
            write_json(row)
        else:
            place = f"{row['topic']}/{row['queue_id']}"
            write_line(f"{place}: {row['committed_offset']} of {row['max_offset']} in the tier")
    if not json:
        write_line(f"look at it with: {how_to_look(config)}")
