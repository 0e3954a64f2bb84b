"""The verbs about the catalogue itself: `metadata show` and `metadata snapshot`.

What lives here: arguments and what is printed. What is done is in `tier_catalogue`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tieredstore.cli.output import write_json, write_line
from tieredstore.cli.tier_options import TierOptions, takes_tier

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="The catalogue of a tier.")

Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, nothing else.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", metavar="FILE", help="Write it there, as RocketMQ does; must not be there yet."
    ),
]


@app.command(
    short_help="Where it comes from, and what is in it.",
    epilog="Example: tieredstore metadata show --config broker.conf --catalogue published",
)
@takes_tier
def show(tier: TierOptions, json: Json = False) -> None:
    """The catalogue that the other verbs would read: its file, or what the broker published.

    A published one has a generation: the highest is the newest. Segments younger than it are not
    in it; the messages that were added to the last segments since are found.
    """
    from tieredstore.cli import tier_catalogue

    row = tier_catalogue.shown(tier)
    if json:
        write_json(row)
        return
    for line in tier_catalogue.lines(row):
        write_line(line)


@app.command(
    short_help="Publish the catalogue now, or write it to a file.",
    epilog="Example: tieredstore metadata snapshot --config broker.conf",
)
@takes_tier
def snapshot(tier: TierOptions, output: Output = None, json: Json = False) -> None:
    """Publish the catalogue beside the tier, for readers elsewhere. A broker does so by itself:
    no broker may be running on this tier.

    With --output nothing is published: what the other verbs would read is written to a new file,
    which a broker of RocketMQ can open.
    """
    from tieredstore.cli import tier_catalogue

    if output is not None:
        row = tier_catalogue.written(tier, output)
    else:
        row = tier_catalogue.published(tier)
    if json:
        write_json(row)
    else:
        write_line(tier_catalogue.snapshot_line(row))
