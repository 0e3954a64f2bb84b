"""The verb `verify`: every byte of a tier is read.

What lives here: its arguments. What is done is in `jobs/verify.py`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tieredstore.cli.jobs import JobOptions, run_verb, takes_job
from tieredstore.cli.tier_options import TierOptions, takes_tier

app = typer.Typer(rich_markup_mode=None)

Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="PATTERN", help="Only these topics; keys are not compared."),
]


@app.command(
    short_help="Read everything: is every message whole and found?",
    epilog="Example: tieredstore verify --config broker.conf --report verify.json",
)
@takes_tier
@takes_job
def verify(tier: TierOptions, options: JobOptions, topic: Topics = None) -> None:
    """Hold each unit against its message, each checksum against its bytes, keys against the index.

    Looks at all that audit looks at, too, and changes nothing. Findings are damage, leftovers or
    notes. Exit code 4: there is damage; 5: not all could be read; 0: neither, whatever the notes.
    Index files that the broker has not uploaded yet are read where --store-path has them.
    """
    from tieredstore.cli.tier import check_tier
    from tieredstore.jobs.verify import VerifyJob

    config = check_tier(tier)
    run_verb(VerifyJob(config=config, topics=tuple(topic or ())), options)
