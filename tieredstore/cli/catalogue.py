"""The verbs about the catalogue itself: `metadata show`, `snapshot` and `reserve`.

What lives here: arguments and what is printed. What is done is in `tier_catalogue`.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from tieredstore.cli.output import OutputFile, write_json, write_line
from tieredstore.cli.tier_options import TierOptions, takes_tier

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="The catalogue of a tier.")

Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, nothing else.")]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="Write it there, as RocketMQ does; must not be there yet. -: stdout.",
    ),
]

_HOURS_MAX: Final = 1_000_000  # more than a century
_DEFAULT: Final = "default"


def _hours(text: str) -> int:
    """Hours; 0 for the word that means those of the store. To RocketMQ 0 means them too."""
    if text == _DEFAULT:
        return 0
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:10]) <= _HOURS_MAX):
        raise typer.BadParameter(f"want 1 to {_HOURS_MAX}, or {_DEFAULT}, not {text!r:.60}")
    return int(text)


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

    if output is None:
        row = tier_catalogue.published(tier)
    else:
        target = OutputFile("--output", output, must_be_new=True)
        target.check(json=json)
        row = tier_catalogue.written(tier, target)
        if target.is_stdout:
            return
    if json:
        write_json(row)
    else:
        write_line(tier_catalogue.snapshot_line(row))


@app.command(
    short_help="Say how long a topic is kept.",
    epilog="Example: tieredstore metadata reserve Orders 720 --config broker.conf",
)
@takes_tier
def reserve(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    hours: Annotated[
        int,
        typer.Argument(
            metavar="HOURS", parser=_hours, help="From 1 on; or default: as long as the store says."
        ),
    ],
    *,
    tier: TierOptions,
    json: Json = False,
) -> None:
    """Give a topic reserve hours of its own, or none. RocketMQ takes them from the topic's
    attribute reserve.time.

    The row of the catalogue is written, and what is published beside the tier is brought up to
    date: no broker may be running on this tier. What has expired already stays gone.
    """
    from tieredstore.cli import tier_catalogue

    row = tier_catalogue.reserved(tier, topic, hours or None)
    if json:
        write_json(row)
    else:
        write_line(tier_catalogue.reserve_line(row))
