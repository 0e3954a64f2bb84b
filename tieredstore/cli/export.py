"""The verb `export`: a tier as Parquet.

What lives here: its arguments. What is done is in `jobs/export.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tieredstore.cli.failures import CommandError, ExitCode
from tieredstore.cli.jobs import JobOptions, run_verb, takes_job
from tieredstore.cli.tier_options import TierOptions, config_of, takes_bundle, takes_tier
from tieredstore.cli.times import TIME_HELP, parse_time

if TYPE_CHECKING:  # help must be fast
    from tieredstore.jobs.export_target import TargetOptions

app = typer.Typer(rich_markup_mode=None)


class OnCorruptName(StrEnum):
    """What becomes of messages that cannot be read."""

    FAIL = "fail"
    SKIP = "skip"
    REPORT = "report"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetOptions:
    """Where the files go."""

    to: Annotated[
        str,
        typer.Option("--to", metavar="URL", help="Directory, or a URL such as s3://bucket/folder."),
    ] = ""
    to_endpoint: Annotated[
        str,
        typer.Option("--to-endpoint", metavar="URL", help="Address of that store; else AWS."),
    ] = ""
    to_region: Annotated[
        str, typer.Option("--to-region", metavar="NAME", help="Its region; else the AWS chain's.")
    ] = ""

    def target(self) -> TargetOptions:
        from tieredstore.jobs.export_target import TargetOptions

        return TargetOptions(endpoint=self.to_endpoint, region=self.to_region)


def takes_target(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with the options of `ParquetOptions` in the place of its argument `parquet`."""
    return takes_bundle(verb, "parquet", ParquetOptions)


Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="PATTERN", help="Only these topics, such as 'orders-*'."),
]
Columns = Annotated[
    str | None,
    typer.Option("--columns", metavar="A,B", help="Only these; else all but body_crc_ok."),
]
Begin = Annotated[str | None, typer.Option("--begin", metavar="TIME", help=f"From: {TIME_HELP}.")]
End = Annotated[str | None, typer.Option("--end", metavar="TIME", help="Up to, and without.")]
OnCorruptOption = Annotated[
    OnCorruptName,
    typer.Option("--on-corrupt", help="What becomes of messages that cannot be read."),
]


@app.command(
    short_help="Messages as Parquet, by topic and day.",
    epilog="Example: tieredstore export --config broker.conf --to s3://lake/messages",
)
@takes_tier
@takes_target
@takes_job
def export(
    tier: TierOptions,
    options: JobOptions,
    parquet: ParquetOptions,
    topic: Topics = None,
    columns: Columns = None,
    begin: Begin = None,
    end: End = None,
    on_corrupt: OnCorruptOption = OnCorruptName.FAIL,
) -> None:
    """Write topic=…/day=…/….parquet, each message once; the next run adds only what is new.

    A run that was killed is gone on with by the next. Exit code 4: messages cannot be read, 5: not
    all was written; run it again.
    """
    from tieredstore.cli.tier import check_tier
    from tieredstore.jobs.export import DEFAULT_COLUMNS, ExportJob
    from tieredstore.jobs.scan import OnCorrupt
    from tieredstore.jobs.slices import EVER

    if not parquet.to:
        raise CommandError("where to? Name a directory or a URL with --to", ExitCode.USAGE)
    config = config_of(tier)
    named = tuple(each.strip() for each in columns.split(",")) if columns else DEFAULT_COLUMNS
    job = ExportJob(
        config=config,
        target=parquet.to,
        target_options=parquet.target(),
        columns=named,
        topics=tuple(topic or ()),
        times=(_time(begin, "--begin", EVER[0]), _time(end, "--end", EVER[1])),
        on_corrupt=OnCorrupt(on_corrupt.value),
    )
    check_tier(tier)
    run_verb(job, options)


def _time(text: str | None, option: str, default: int) -> int:
    if text is None:
        return default
    try:
        return parse_time(text)
    except ValueError as error:
        raise CommandError(f"{option}: {error}", ExitCode.USAGE) from error
