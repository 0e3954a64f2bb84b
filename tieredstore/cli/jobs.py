"""What all verbs that run a job share: their options, the progress and the report.

What lives here: `JobOptions`, `takes_job` and `run_verb`. A job's own options are in its verb.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tieredstore.cli.failures import CommandError, ExitCode, advised
from tieredstore.cli.output import OutputFile, note, printable, write_json, write_line
from tieredstore.cli.tier_options import takes_bundle

if TYPE_CHECKING:  # help must be fast
    from tieredstore.jobs.job import Engine, Job, JobReport, OnProgress, Plan


class EngineName(StrEnum):
    """What runs the items."""

    LOCAL = "local"
    SPARK = "spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """How a job is run, whatever it does."""

    engine: Annotated[
        EngineName,
        typer.Option("--engine", help="Threads of this machine, or tasks of Spark."),
    ] = EngineName.LOCAL
    threads: Annotated[
        int, typer.Option("--threads", min=1, max=256, help="Items at a time, of --engine local.")
    ] = 8
    master: Annotated[
        str,
        typer.Option("--master", metavar="URL", help="Spark's master; else as spark-submit says."),
    ] = ""
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done, and what it costs.")
    ] = False
    report: Annotated[
        str | None,
        typer.Option("--report", metavar="FILE", help="Write the JSON report here. -: stdout."),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line, nothing else.")] = (
        False
    )


def takes_job(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with the options of `JobOptions` in the place of its argument `options`."""
    return takes_bundle(verb, "options", JobOptions)


def run_verb(job: Job[Any, Any], options: JobOptions) -> JobReport:
    """Run the job as it was asked for, tell of it, and end with its exit code.

    With --json the plan and the report are a line each, `what` tells them apart; without, both are
    told in plain words.
    """
    from tieredstore.cli.tier import notes_of_the_library
    from tieredstore.driver.runtime import SystemClock
    from tieredstore.jobs.job import planned_report, run_job

    target = None if options.report is None else OutputFile("--report", options.report)
    if target is not None:
        target.check(json=options.json)
    tell = note if target is not None and target.is_stdout else write_line

    def told_plan(plan: Plan[Any]) -> None:
        if options.json:
            write_json({"what": "plan", **planned_report(job.name, plan).row()})
        else:
            for line in plan.lines:
                tell(printable(line))

    with ExitStack() as opened:
        opened.enter_context(notes_of_the_library())
        engine = opened.enter_context(_engine(job.name, options))
        on_progress = opened.enter_context(progress_bar(options))
        report = run_job(
            job,
            engine,
            clock=SystemClock(),
            dry_run=options.dry_run,
            on_plan=told_plan,
            on_progress=on_progress,
        )
    if not options.dry_run:
        _tell(report, options, tell)
    if target is not None:
        target.write(report.file_bytes())
    _end(report)
    return report


def _tell(report: JobReport, options: JobOptions, tell: Callable[[str], None]) -> None:
    if options.json:
        write_json({"what": "report", **report.row()})
        return
    for finding in report.findings:
        text = f"{finding.severity.value}: {finding.kind}: {finding.where}: {finding.detail}"
        tell(printable(text))
    if report.findings_left_out:
        tell(f"and {report.findings_left_out} more findings")
    for line in report.lines:
        tell(printable(line))


def _end(report: JobReport) -> None:
    """One line on stderr for what was not done, with the report's exit code."""
    code = ExitCode(int(report.exit_code))
    if code is ExitCode.DONE:
        return
    if report.failures:
        first = report.failures[0].text
        text = f"{report.job}: {len(report.failures)} items failed, the first: {first}"
    elif report.findings:
        finding = report.findings[0]
        text = f"{report.job}: found {finding.kind}: {finding.where}: {finding.detail}"
    else:
        text = f"{report.job}: not all was done; run it again"
    raise CommandError(printable(advised(text)), code)


@contextmanager
def _engine(name: str, options: JobOptions) -> Iterator[Engine]:
    if options.engine is EngineName.LOCAL:
        from tieredstore.jobs.job import LocalEngine

        with LocalEngine(threads=options.threads) as engine:
            yield engine
        return
    if options.dry_run:  # nothing will run: no need to wait for a JVM
        from tieredstore.jobs.job import LocalEngine

        yield LocalEngine(threads=1)
        return
    try:
        from tieredstore.spark.engine import SparkEngine, spark_session
    except ImportError as error:
        text = "--engine spark needs PySpark: pip install 'tieredstore[spark]'"
        raise CommandError(text, ExitCode.USAGE) from error
    spark = spark_session(f"tieredstore {name}", master=options.master)
    try:
        yield SparkEngine(spark)
    finally:
        spark.stop()


@contextmanager
def progress_bar(options: JobOptions) -> Iterator[OnProgress]:
    """A bar on stderr; nothing where that is no terminal, or where a program reads."""
    from tieredstore.jobs.job import Progress, no_progress

    if options.json or options.dry_run or not sys.stderr.isatty():
        yield no_progress
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def shown(progress: Progress) -> None:
            by_bytes = progress.bytes_total > 0
            bar.update(
                task,
                total=progress.bytes_total if by_bytes else progress.items_total,
                completed=progress.bytes_done if by_bytes else progress.items_done,
                description=f"{progress.items_done}/{progress.items_total}",
            )

        yield shown
