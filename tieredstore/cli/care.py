"""The verbs that look after a tier: audit, rebuild and certify.

What lives here: arguments and what is printed. What is done is in `tier_care`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tieredstore.cli.output import Columns, printable, write_json, write_line
from tieredstore.cli.tier_options import TierOptions, takes_tier

app = typer.Typer(rich_markup_mode=None)

Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, nothing else.")]
Repair = Annotated[
    bool,
    typer.Option("--repair", help="Do what loses nothing. No broker may be running on this tier."),
]


@app.command(
    short_help="What is missing, damaged or left over.",
    epilog="Example: tieredstore audit --config broker.conf --json",
)
@takes_tier
def audit(tier: TierOptions, repair: Repair = False, json: Json = False) -> None:
    """Hold the catalogue of a tier against its bytes. Nothing is changed without --repair.

    A repair finishes deletes, deletes segments that nobody can miss and what broken uploads left,
    and lets the catalogue know of bytes that are sound. Exit code 4: there is damage.
    """
    from tieredstore.cli import tier_care

    report = tier_care.audited(tier, repair=repair)
    columns = Columns(tier_care.FINDING_COLUMNS, tier_care.FINDING_WIDTHS)
    for finding in report.findings:
        if json:
            write_json(tier_care.finding_row(finding))
        else:
            columns.write(tier_care.finding_cells(finding))
    if not json:
        write_line(tier_care.summary(report))
    tier_care.tell_damage(report)


@app.command(
    short_help="Let a stopped queue go on, if it can.",
    epilog="Example: tieredstore resume Orders 3 --config broker.conf",
)
@takes_tier
def resume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    queue_id: Annotated[int, typer.Argument(metavar="QUEUE", min=0, help="The queue id.")],
    *,
    tier: TierOptions,
    json: Json = False,
) -> None:
    """Have the broker, at its next start, compare a stopped queue with its own messages again.

    It goes on where both hold the same, or the broker has none left to compare; else it stays
    stopped, and the log says why. No broker may be running on this tier.
    """
    from tieredstore.cli import tier_care

    tier_care.resumed(tier, topic, queue_id)
    if json:
        write_json({"topic": topic, "queue_id": queue_id, "resume": True})
    else:
        write_line(printable(f"{topic}/{queue_id} is compared at the next start of the broker"))


@app.command(
    short_help="Restore a lost catalogue from the bytes.",
    epilog="Example: tieredstore rebuild --config broker.conf",
)
@takes_tier
def rebuild(tier: TierOptions, json: Json = False) -> None:
    """Find out topics, queues, segments, offsets and times from the bucket or folder alone.

    An empty or missing catalogue is filled, an older one brought up to date; any other is refused.
    How long topics are kept is in no segment: set it again. Exit code 4: not all was sound.
    """
    from tieredstore.cli import tier_care

    report = tier_care.rebuilt(tier)
    for row in tier_care.rebuilt_rows(report):
        if json:
            write_json(row)
        else:
            write_line(tier_care.rebuilt_line(row))
    tier_care.tell_problems(report)


@app.command(
    short_help="Can this backend be trusted with a tier?",
    epilog="Example: tieredstore certify --provider s3 --bucket tier --endpoint http://minio:9000",
)
@takes_tier
def certify(
    tier: TierOptions,
    again: Annotated[
        bool, typer.Option("--again", help="Ask a bucket anew that has failed before.")
    ] = False,
    json: Json = False,
) -> None:
    """Ask a bucket or a directory to prove what a tier relies on, in objects of its own.

    Writes, reads, lists and deletes. Exit code 5: do not write there. That a bucket failed is kept
    in it, and refuses every writer: without --again it is not asked a second time.
    """
    from tieredstore.cli import tier_care

    findings = tier_care.certified(tier, again=again)
    columns = Columns(("check", "outcome", "what"), (18, 8, 0))
    for finding in findings:
        if json:
            write_json(tier_care.check_row(finding))
        else:
            passed = "FAILED" if finding.is_damage else "passed"
            columns.write((finding.kind, passed, finding.detail))
    tier_care.tell_failures(findings)
