"""The verb `migrate`: a tier from one backend to another.

What lives here: its arguments. What is done is in `jobs/migrate.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tieredstore.cli.failures import CommandError, ExitCode
from tieredstore.cli.jobs import JobOptions, run_verb, takes_job
from tieredstore.cli.tier_options import TierOptions, config_of, takes_bundle, takes_tier

if TYPE_CHECKING:  # help must be fast
    from tieredstore.model.config import StoreConfig

app = typer.Typer(rich_markup_mode=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Where the tier goes. All but `to` replace settings of that file."""

    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="Settings of the target: .toml or broker.conf."),
    ] = None
    to_provider: Annotated[
        str | None, typer.Option("--to-provider", metavar="NAME", help="Without --to: posix or s3.")
    ] = None
    to_path: Annotated[
        str | None, typer.Option("--to-path", metavar="ROOT", help="Root directory, for posix.")
    ] = None
    to_bucket: Annotated[
        str | None, typer.Option("--to-bucket", metavar="NAME", help="Bucket, for s3.")
    ] = None
    to_prefix: Annotated[
        str | None, typer.Option("--to-prefix", metavar="FOLDER", help="Folder of the bucket.")
    ] = None
    to_endpoint: Annotated[
        str | None,
        typer.Option("--to-endpoint", metavar="URL", help="Address of the store; else AWS."),
    ] = None
    to_metadata: Annotated[
        str | None,
        typer.Option("--to-metadata", metavar="FILE", help="The target's catalogue, to be made."),
    ] = None


def takes_target(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with the options of `TargetOptions` in the place of its argument `target`."""
    return takes_bundle(verb, "target", TargetOptions)


Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="PATTERN", help="Only these topics, such as 'orders-*'."),
]
RenameBroker = Annotated[
    str | None, typer.Option("--rename-broker", metavar="NAME", help="The broker's new name.")
]
RenameCluster = Annotated[
    str | None, typer.Option("--rename-cluster", metavar="NAME", help="The cluster's new name.")
]
Adopt = Annotated[
    bool,
    typer.Option("--adopt", help="Into a tier that is there, as history that is only read."),
]
CutOver = Annotated[
    bool,
    typer.Option(
        "--cut-over", help="The last run: with the broker stopped, make the target whole."
    ),
]


@app.command(
    short_help="Copy a tier to another backend, and move over.",
    epilog="Example: tieredstore migrate --config broker.conf --to bucket.toml --dry-run",
)
@takes_tier
@takes_target
@takes_job
def migrate(
    tier: TierOptions,
    target: TargetOptions,
    options: JobOptions,
    topic: Topics = None,
    rename_broker: RenameBroker = None,
    rename_cluster: RenameCluster = None,
    adopt: Adopt = False,
    cut_over: CutOver = False,
) -> None:
    """Copy what the target lacks, verify each segment, and delete nothing of the source.

    Run it beside the broker as often as you like: each run copies what has come since. Then stop
    the broker and run it with --cut-over: it copies the rest, writes the target's catalogue in one
    step and prints its settings. Exit code 5: not all was copied, run it again.
    """
    from tieredstore.cli.tier import check_tier
    from tieredstore.jobs.migrate import MigrateJob
    from tieredstore.jobs.migrate_plan import with_names

    source, wanted = config_of(tier), _target(tier, target)
    check_tier(tier)
    if not adopt:
        wanted = with_names(source, wanted, broker=rename_broker, cluster=rename_cluster)
    elif rename_broker or rename_cluster:
        text = "adopted queues get the names of the tier that takes them: --rename is for a move"
        raise CommandError(text, ExitCode.USAGE)
    job = MigrateJob(
        source=source, target=wanted, topics=tuple(topic or ()), cut_over=cut_over, adopt=adopt
    )
    with job.held(dry_run=options.dry_run):
        run_verb(job, options)


def _target(tier: TierOptions, target: TargetOptions) -> StoreConfig:
    given = {spec.name: getattr(target, spec.name) for spec in fields(target) if spec.name != "to"}
    settings = {name.removeprefix("to_"): value for name, value in given.items() if value}
    if "metadata" in settings:
        settings["metadata_path"] = settings.pop("metadata")
    named = TierOptions(config=target.to, **settings)
    if target.to is None and target.to_provider is None:
        text = "where to? Name the target with --to FILE, or --to-provider and what belongs to it"
        raise CommandError(text, ExitCode.USAGE)
    if target.to is None and target.to_metadata is None:
        text = "name the file of the target's catalogue with --to-metadata FILE"
        raise CommandError(text, ExitCode.USAGE)
    config = config_of(named)
    if target.to is not None:
        return config
    source = config_of(tier)  # the same index files, so the same sizes
    return replace(
        config,
        index_slot_count=source.index_slot_count,
        index_item_count=source.index_item_count,
    )
