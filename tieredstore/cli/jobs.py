"""The verbs that run a job: `migrate`, `verify`, `export` and `reindex`.

They share their options, the report, the hint for the next step, and the exit code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tieredstore.cli.options import (
    DryRun,
    From,
    Json,
    TierOptions,
    Topics,
    Until,
    config_of,
    option,
    verb,
)
from tieredstore.cli.output import (
    CommandError,
    ExitCode,
    OutputFile,
    note,
    printable,
    write_json,
    write_line,
)
from tieredstore.cli.progress import command_line

if TYPE_CHECKING:  # help must be fast
    from tieredstore.driver.metrics import Metrics
    from tieredstore.jobs.job import Engine, Job, JobReport, Plan
    from tieredstore.jobs.verify import VerifyJob
    from tieredstore.jobs.verify_findings import Findings
    from tieredstore.model.config import StoreConfig
    from tieredstore.model.findings import Finding

app = typer.Typer(rich_markup_mode=None)

_PAUSE_SECONDS_MAX: Final = 365 * 86_400  # no system can wait longer than some hundred years
# Kinds of findings that a verb mends.
_STOPPED: Final = "stopped-queue"
_OF_THE_INDEX: Final = frozenset(
    {
        *("index-file", "index-slot", "index-footer", "index-items"),
        *("key-missing", "key-unfounded", "key-time"),
    }
)


class EngineName(StrEnum):
    """What runs the items of a job."""

    LOCAL = "local"
    SPARK = "spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """How a job is run; the same for all jobs."""

    engine: Annotated[
        EngineName, option("--engine", "Threads of this machine, or tasks of Spark.")
    ] = EngineName.LOCAL
    threads: Annotated[
        int, option("--threads", "Items at a time, with --engine local.", min=1, max=256)
    ] = 8
    processes: Annotated[
        int,
        option(
            "--processes",
            "Use processes, not threads: for large tiers on this disk.",
            min=0,
            max=64,
        ),
    ] = 0
    master: Annotated[
        str, option("--master URL", "Spark's master; default: that of spark-submit.")
    ] = ""
    dry_run: DryRun = False
    report: Annotated[
        str | None, option("--report FILE", "Write the JSON report here. -: stdout.")
    ] = None
    json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Where the tier goes. All but the first two override settings of that file."""

    to_config: Annotated[
        Path | None, option("--to-config FILE", "Settings of the target: .toml or broker.conf.")
    ] = None
    to_tier: Annotated[
        str | None, option("--to-tier NAME", "The tier [tier.NAME] of --to-config, else --config.")
    ] = None
    to_provider: Annotated[
        str | None, option("--to-provider NAME", "Without --to-config: posix or s3.")
    ] = None
    to_path: Annotated[str | None, option("--to-path ROOT", "Root directory, for posix.")] = None
    to_bucket: Annotated[str | None, option("--to-bucket NAME", "Bucket, for s3.")] = None
    to_prefix: Annotated[str | None, option("--to-prefix FOLDER", "Folder of the bucket.")] = None
    to_endpoint: Annotated[
        str | None, option("--to-endpoint URL", "Address of that store; default: AWS.")
    ] = None
    to_catalogue_file: Annotated[
        str | None, option("--to-catalogue-file FILE", "File for the target's new catalogue.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubOptions:
    """Options of an endless verification."""

    continuous: Annotated[
        bool, option("--continuous", "Repeat for ever, slowly, one part at a time.")
    ] = False
    rate: Annotated[
        int, option("--rate BYTES", "With --continuous: maximum bytes per second.", min=1)
    ] = 8 << 20
    pause: Annotated[
        int,
        option(
            "--pause SECONDS",
            "With --continuous: pause between passes.",
            min=1,
            max=_PAUSE_SECONDS_MAX,
        ),
    ] = 3_600
    state: Annotated[
        Path | None, option("--state FILE", "With --continuous: a restart resumes from it.")
    ] = None
    metrics_port: Annotated[
        int | None,
        option("--metrics-port PORT", "Metrics for Prometheus, on 127.0.0.1.", min=0, max=65535),
    ] = None


class OnCorruptName(StrEnum):
    """What to do with messages that cannot be read."""

    FAIL = "fail"
    SKIP = "skip"
    REPORT = "report"


class FormatName(StrEnum):
    """What an export writes: files or a table."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetOptions:
    """Where the messages go."""

    to: Annotated[str, option("--to URL", "Directory, or a URL such as s3://bucket/folder.")] = ""
    to_endpoint: Annotated[
        str, option("--to-endpoint URL", "Address of that store; default: AWS.")
    ] = ""
    to_region: Annotated[
        str, option("--to-region NAME", "Its region; default: the AWS chain's.")
    ] = ""
    format: Annotated[FormatName, option("--format", "Files, or a table.")] = FormatName.PARQUET
    table: Annotated[str, option("--table NAME", "For Iceberg: namespace.table.")] = ""
    catalog: Annotated[
        str, option("--catalog NAME", "For Iceberg: a catalog in pyiceberg's settings.")
    ] = "default"


@verb(app, "migrate --config broker.conf --to-config bucket.toml --dry-run")
def migrate(
    tier: TierOptions,
    target: TargetOptions,
    options: JobOptions,
    topic: Topics = None,
    rename_broker: Annotated[
        str | None, option("--rename-broker NAME", "The broker's new name.")
    ] = None,
    rename_cluster: Annotated[
        str | None, option("--rename-cluster NAME", "The cluster's new name.")
    ] = None,
    adopt: Annotated[
        bool, option("--adopt", "Add to an existing tier, as read-only history.")
    ] = False,
    cut_over: Annotated[
        bool, option("--cut-over", "The last run, with the broker stopped: complete the target.")
    ] = False,
) -> None:
    """Copy what the target lacks, verify each segment, and delete nothing of the source.

    Run it as often as you like while the broker runs: each run copies what is new. Then stop the
    broker and run it with --cut-over: it copies the rest, writes the target's catalogue in one step
    and prints its settings. Exit code 5: not all was copied, run it again.
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
        _run(job, options, then=_after_copies)


@verb(app, "verify --config broker.conf --report verify.json")
def verify(
    tier: TierOptions,
    options: JobOptions,
    scrub: ScrubOptions,
    topic: Topics = None,
) -> None:
    """Compare each unit with its message, each checksum with its bytes, and keys with the index.

    Also checks everything that audit checks. Changes nothing. Findings are damage, leftovers or
    notes. Exit code 4: there is damage; 5: something could not be read; 0: neither, even with
    notes. With --topic keys are not compared. Index files that the broker has not uploaded yet are
    read if --store-path has them. --continuous ends with Ctrl-C.
    """
    from tieredstore.cli.tier import check_tier
    from tieredstore.jobs.verify import VerifyJob

    plain = JobOptions(report=options.report, json=options.json)
    if scrub.continuous and options != plain:
        text = "--continuous reads one part at a time: it takes --report and --json, no --engine"
        raise CommandError(text, ExitCode.USAGE)
    if not scrub.continuous and scrub != ScrubOptions():
        text = "--rate, --pause, --state and --metrics-port are of --continuous"
        raise CommandError(text, ExitCode.USAGE)
    job = VerifyJob(config=check_tier(tier), topics=tuple(topic or ()))
    if scrub.continuous:
        _scrub(job, options, scrub)
    else:
        _run(job, options, then=after_findings)


@verb(app, "export --config broker.conf --to s3://lake/messages")
def export(
    tier: TierOptions,
    options: JobOptions,
    parquet: ParquetOptions,
    topic: Topics = None,
    columns: Annotated[
        str | None, option("--columns A,B", "Only these; default: all except body_crc_ok.")
    ] = None,
    begin: From = None,
    end: Until = None,
    on_corrupt: Annotated[
        OnCorruptName, option("--on-corrupt", "What to do with messages that cannot be read.")
    ] = OnCorruptName.FAIL,
) -> None:
    """Write each message once, to Parquet or into a Delta or Iceberg table; a later run adds new
    ones.

    The next run resumes a killed one. Exit code 4: messages cannot be read; 5: not everything was
    written, run it again.
    """
    from tieredstore.cli.tier import check_tier
    from tieredstore.jobs.export import DEFAULT_COLUMNS, ExportJob, TableFormat
    from tieredstore.jobs.export_target import TargetOptions as TargetAccess
    from tieredstore.jobs.scan import OnCorrupt
    from tieredstore.jobs.slices import EVER

    is_iceberg = parquet.format is FormatName.ICEBERG
    if is_iceberg and (parquet.to or not parquet.table):
        raise CommandError("which table? Name it with --table, without --to", ExitCode.USAGE)
    if not is_iceberg and parquet.table:
        raise CommandError("--table is of --format iceberg; name a place with --to", ExitCode.USAGE)
    if not is_iceberg and not parquet.to:
        raise CommandError("where to? Name a directory or a URL with --to", ExitCode.USAGE)
    config = config_of(tier)
    named = DEFAULT_COLUMNS if columns is None else tuple(map(str.strip, columns.split(",")))
    job = ExportJob(
        config=config,
        target=parquet.table if is_iceberg else parquet.to,
        format=TableFormat(parquet.format.value),
        catalog=parquet.catalog,
        target_options=TargetAccess(endpoint=parquet.to_endpoint, region=parquet.to_region),
        columns=named,
        topics=tuple(topic or ()),
        times=(EVER[0] if begin is None else begin, EVER[1] if end is None else end + 1),
        on_corrupt=OnCorrupt(on_corrupt.value),
    )
    check_tier(tier)
    _run(job, options, then=partial(_after_export, parquet))


@verb(app, "reindex --config broker.conf --dry-run")
def reindex(tier: TierOptions, options: JobOptions) -> None:
    """Read all messages and build all index files, for a tier that has none or lost them.

    Stop the broker first. Existing files are replaced in one step, once all new ones are built. The
    next run resumes an interrupted one. Exit code 4: messages cannot be read and are not indexed;
    5: something was not done, run it again, or another process writes the tier.
    """
    from tieredstore.cli.tier import check_tier
    from tieredstore.jobs.reindex import ReindexKeys

    config = check_tier(tier)
    with ReindexKeys(config=config).held(dry_run=options.dry_run) as job:
        _run(job, options, then=_after_reindex)


def _run(
    job: Job[Any, Any], options: JobOptions, *, then: Callable[[JobReport], Iterable[str]]
) -> None:
    """Run the job, print its plan, its report and what to do `then`, and end with its exit code.

    With --json, plan and report are one line each, and `what` tells them apart; without, they are
    plain text.
    """
    from tieredstore.cli.tier import library_at_work
    from tieredstore.driver.runtime import SystemClock
    from tieredstore.jobs.job import planned_report, run_job
    from tieredstore.jobs.worker import measured_by

    target = None if options.report is None else OutputFile("--report", options.report)
    if target is not None:
        target.check(json=options.json)
    write = note if target is not None and target.is_stdout else write_line

    def write_plan(plan: Plan[Any]) -> None:
        if options.json:
            write_json({"what": "plan", **planned_report(job.name, plan).row()})
        else:
            for line in plan.lines:
                write(printable(line))

    with ExitStack() as opened:
        work = opened.enter_context(library_at_work())
        opened.enter_context(measured_by(work))
        engine = opened.enter_context(_engine(job.name, options))
        report = run_job(
            job,
            engine,
            clock=SystemClock(),
            dry_run=options.dry_run,
            on_plan=write_plan,
            on_progress=work.of_job,
        )
    if not options.dry_run:
        _write_report(report, options, write)
        if not options.json:
            for line in then(report):
                write(printable(line))
    if target is not None:
        target.write(report.file_bytes())
    end_with(report)


def _scrub(job: VerifyJob, options: JobOptions, scrub: ScrubOptions) -> None:
    """Verify until an interrupt; print each finding when it is found, each pass when it ends."""
    from tieredstore.cli.tier import library_at_work
    from tieredstore.driver.runtime import SystemClock
    from tieredstore.jobs.scrub import Scrub
    from tieredstore.jobs.worker import measured_by

    target = None if options.report is None else OutputFile("--report", options.report)
    if target is not None:
        target.check(json=options.json)
    if scrub.state is not None:  # a run that cannot write it would go on, and not be resumed
        OutputFile("--state", str(scrub.state)).check()
    write = note if target is not None and target.is_stdout else write_line

    def told(findings: Findings) -> None:
        for finding in findings.found:
            if options.json:
                write_json({"what": "finding", **finding.row()})
            else:
                write(_finding_text(finding))

    with ExitStack() as opened:
        metrics = opened.enter_context(_shown_metrics(job.config, scrub.metrics_port))
        work = opened.enter_context(library_at_work())
        opened.enter_context(measured_by(work))
        endless = Scrub(
            job,
            clock=SystemClock(),
            rate_bytes=scrub.rate,
            pause_seconds=scrub.pause,
            state=scrub.state,
            metrics=metrics,
            told=told,
            on_progress=work.of_job,
        )
        for report in endless.passes():
            if target is not None:
                target.write(report.file_bytes())
            if options.json:
                write_json({"what": "report", **report.row()})
            else:
                for line in report.lines:
                    write(printable(line))


@contextmanager
def _shown_metrics(config: StoreConfig, port: int | None) -> Iterator[Metrics | None]:
    """Metrics, served for Prometheus at this port of this machine."""
    if port is None:
        yield None
        return
    from tieredstore.exporters.prometheus import PrometheusMetrics
    from tieredstore.model.extras import brought_by

    with brought_by("prometheus"):
        from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    names = {"cluster": config.cluster_name, "node_id": config.broker_name}
    metrics = PrometheusMetrics(names, registry=registry)
    try:
        server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise CommandError(f"--metrics-port {port}: {error.strerror}", ExitCode.USAGE) from error
    try:
        note(f"metrics: http://127.0.0.1:{server.server_port}/metrics")
        yield metrics
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _write_report(report: JobReport, options: JobOptions, write: Callable[[str], None]) -> None:
    if options.json:
        write_json({"what": "report", **report.row()})
        return
    for finding in report.findings:
        write(_finding_text(finding))
    if report.findings_left_out:
        write(f"and {report.findings_left_out} more findings")
    for line in report.lines:
        write(printable(line))


def _finding_text(finding: Finding) -> str:
    return printable(f"{finding.severity.value}: {finding.kind}: {finding.where}: {finding.detail}")


def _after_copies(report: JobReport) -> Iterator[str]:
    if report.facts.get("cut_over") == "done":
        yield (  # a comment, as it follows the settings, which may be copied as they are printed
            "# next: start the broker with these settings. Nothing of the old tier was deleted: "
            "keep it until `verify` of the new one finds nothing"
        )
    elif report.exit_code is report.exit_code.DONE and "config" not in report.facts:
        yield "next: run it again, as often as you like, to copy new messages; then stop the"
        yield "broker and cut over:"
        yield command_line().with_word("--cut-over")


def after_findings(report: JobReport) -> Iterator[str]:
    """What to do about the findings, if a verb can help."""
    kinds = {str(finding.kind) for finding in report.findings}
    if _STOPPED in kinds:
        yield "next: `resume TOPIC QUEUE` for a stopped queue, once the cause is fixed"
    if any(finding.repairable for finding in report.findings):
        yield "next: `audit --repair` repairs what loses no data, with no broker running"
    mended = {_STOPPED, *_OF_THE_INDEX}
    if any(finding.is_damage and str(finding.kind) not in mended for finding in report.findings):
        yield "next: restore the named segments from a copy, and run it again"
    if kinds & _OF_THE_INDEX:  # after a restoration, since it indexes only what is there
        yield "next: `reindex` rebuilds the key index, with no broker running"


def _after_export(parquet: ParquetOptions, report: JobReport) -> Iterator[str]:
    if report.exit_code is report.exit_code.DONE:
        place = parquet.to or parquet.table
        read = {
            FormatName.PARQUET: f"spark.read.parquet({place!r}), or pyarrow.dataset.dataset"
            f"({place!r}, partitioning='hive')",
            FormatName.DELTA: f"spark.read.format('delta').load({place!r}), or deltalake.DeltaTable"
            f"({place!r})",
            FormatName.ICEBERG: f"spark.table({place!r})",
        }[parquet.format]
        yield f"next: read it with {read}; run it again to add newer messages"


def _after_reindex(report: JobReport) -> Iterator[str]:
    if report.exit_code is report.exit_code.DONE:
        yield "next: start the broker; `verify` compares all keys with the new files"
    else:
        yield from after_findings(report)


def end_with(report: JobReport) -> None:
    """One line on stderr about what was not done, with the report's exit code."""
    code = ExitCode(int(report.exit_code))
    if code is ExitCode.DONE:
        return
    if report.failures:
        from tieredstore.jobs.job import FAILURES_MAX
        from tieredstore.model.amounts import counted

        count, first = len(report.failures), report.failures[0].text
        many = f"{count} or more items" if count >= FAILURES_MAX else counted(count, "item")
        text = f"{report.job}: {many} failed, the first: {first}"
    elif report.findings:
        finding = report.findings[0]
        text = f"{report.job}: found {finding.kind}: {finding.where}: {finding.detail}"
    else:
        text = f"{report.job}: not all was done; run it again"
    raise CommandError(printable(text), code)


@contextmanager
def _engine(name: str, options: JobOptions) -> Iterator[Engine]:
    if options.engine is EngineName.LOCAL or options.dry_run:  # a dry run needs no JVM
        from tieredstore.jobs.job import LocalEngine

        if options.processes:
            from tieredstore.driver.runtime import ProcessPool

            count = options.processes
            engine = LocalEngine(threads=count, pool=ProcessPool(processes=count))
        else:
            engine = LocalEngine(threads=options.threads)
        with engine:
            yield engine
        return
    from tieredstore.model.extras import brought_by

    with brought_by("spark"):
        from tieredstore.spark.engine import SparkEngine, spark_session
    spark = spark_session(f"tieredstore {name}", master=options.master)
    try:
        yield SparkEngine(spark)
    finally:
        spark.stop()


def _target(tier: TierOptions, target: TargetOptions) -> StoreConfig:
    given = {
        spec.name: getattr(target, spec.name)
        for spec in fields(target)
        if spec.name not in ("to_config", "to_tier")
    }
    settings = {name.removeprefix("to_"): value for name, value in given.items() if value}
    if "catalogue_file" in settings:
        settings["metadata_path"] = settings.pop("catalogue_file")
    file = target.to_config
    if target.to_tier is not None and file is None:
        file = tier.config
    named = TierOptions(config=file, tier_name=target.to_tier, **settings)
    if file is None and target.to_tier is None and target.to_provider is None:
        text = (
            "where to? Name it with --to-config FILE, --to-tier NAME, or --to-provider and what "
            "belongs to it"
        )
        raise CommandError(text, ExitCode.USAGE)
    if target.to_provider is not None and file is None and target.to_catalogue_file is None:
        text = "name the file of the target's catalogue with --to-catalogue-file FILE"
        raise CommandError(text, ExitCode.USAGE)
    config = config_of(named)
    if file is not None:
        return config
    source = config_of(tier)  # the same index files, so the same sizes
    return replace(
        config,
        index_slot_count=source.index_slot_count,
        index_item_count=source.index_item_count,
    )
