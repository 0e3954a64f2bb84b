"""The verb that draws a tier: report.

What lives here: arguments, and writing the page. What is on it is in `report_page`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tieredstore.cli.output import OutputFile, printable, write_json, write_line
from tieredstore.cli.tier_options import TierOptions, takes_tier

if TYPE_CHECKING:  # help must be fast
    from tieredstore.model.values import QueueKey

app = typer.Typer(rich_markup_mode=None)


@app.command(
    short_help="One HTML page about the whole tier.",
    epilog="Example: tieredstore report --out tier.html --config broker.conf",
)
@takes_tier
def report(
    out: Annotated[
        str,
        typer.Option(
            "--out", metavar="FILE", help="The page; one that is there is replaced. -: stdout."
        ),
    ] = "tier.html",
    local: Annotated[
        Path | None,
        typer.Option("--local", metavar="DIR", help="The broker's local store, to compare with."),
    ] = None,
    *,
    tier: TierOptions,
    json: Annotated[bool, typer.Option("--json", help="Say where it lies as JSON.")] = False,
) -> None:
    """Write one page that needs nothing else: topics, queues, segments, index and cost.

    It is drawn from the catalogue, and needs no network to be looked at.
    """
    from tieredstore.access.survey import picture_of
    from tieredstore.cli.report_page import page
    from tieredstore.cli.tier import opened_tier
    from tieredstore.driver.runtime import SystemClock

    target = OutputFile("--out", out)
    target.check(json=json)
    with opened_tier(tier) as opened:
        picture = picture_of(
            opened.reader,
            opened.metadata,
            now_ms=SystemClock().now_ms(),
            local_offsets=None if local is None else _ends(local, tier.config),
        )
    text = "\n".join(page(picture)) + "\n"
    target.write(text.encode("utf-8", "backslashreplace"))
    if json:
        write_json({"file": out, "queues": len(picture.queues), "bytes": len(text)})
    elif not target.is_stdout:
        write_line(printable(f"{out}: {len(picture.queues)} queues; open it in any browser"))


def _ends(directory: Path, config: Path | None) -> dict[QueueKey, int]:
    from tieredstore.cli.local import opened_store

    with opened_store(directory, {}, config) as reader:
        return {key: reader.max_offset(*key) or 0 for key in reader.queues()}
