"""The verb `reindex`: all index files of a tier made anew.

What lives here: its arguments. What is done is in `jobs/reindex.py`.
"""

from __future__ import annotations

import typer

from tieredstore.cli.jobs import JobOptions, run_verb, takes_job
from tieredstore.cli.tier_options import TierOptions, takes_tier

app = typer.Typer(rich_markup_mode=None)


@app.command(
    short_help="Make the key index anew, from the commit logs.",
    epilog="Example: tieredstore reindex --config broker.conf --dry-run",
)
@takes_tier
@takes_job
def reindex(tier: TierOptions, options: JobOptions) -> None:
    """Read all messages and build all index files, for a tier that has none or lost them.

    Stop the broker before. Files that are there are replaced in one step, when all new ones are
    made. A run that was cut short is gone on with by the next one. Exit code 4: messages cannot be
    read and are not indexed; 5: not all was done, run it again, or somebody writes the tier.
    """
    from tieredstore.cli.tier import check_tier
    from tieredstore.jobs.reindex import ReindexKeys

    config = check_tier(tier)
    with ReindexKeys(config=config).held(dry_run=options.dry_run) as job:
        run_verb(job, options)
