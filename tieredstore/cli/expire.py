"""The verb that drops what is too old: expire.

What lives here: arguments, opening the tier for it, and what is printed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tieredstore.cli.failures import CommandError, ExitCode
from tieredstore.cli.output import Columns, write_json, write_line
from tieredstore.cli.tier_options import TierOptions, takes_tier

if TYPE_CHECKING:  # help must be fast
    from tieredstore.access.upkeep import ExpiredQueue

app = typer.Typer(rich_markup_mode=None)

_COLUMNS = ("topic/queue", "segments", "bytes", "first offset")
_WIDTHS = (40, 9, 16, 0)


@app.command(
    short_help="Drop what is older than its topic is kept.",
    epilog="Example: tieredstore expire --dry-run --config broker.conf",
)
@takes_tier
def expire(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    *,
    tier: TierOptions,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line, nothing else.")] = (
        False
    ),
) -> None:
    """Delete segments all of whose messages are older than the reserve hours of their topic.

    A broker does this by itself: this is for a tier without one, and refuses one that has. Files
    of the key index stay. Exit code 4: a queue could not be looked after.
    """
    from tieredstore.cli.tier_expire import expired_queues

    columns = Columns(_COLUMNS, _WIDTHS)
    segments = size = 0
    failures: list[str] = []
    for each in expired_queues(tier, dry_run=dry_run):
        if each.failure is not None:
            failures.append(f"{each.key.topic}/{each.key.queue_id}: {each.failure}")
        if each.expired is not None:
            segments += each.expired.segment_count
            size += each.expired.dropped_bytes
        if json:
            write_json(_row(each, dry_run=dry_run))
        elif each.expired is not None:
            columns.write(_cells(each))
    if not json:
        done = "would go" if dry_run else "went"
        write_line(f"{segments} segments with {size} bytes {done}")
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise CommandError(f"not looked after: {failures[0]}{more}", ExitCode.DAMAGE)


def _row(each: ExpiredQueue, *, dry_run: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"topic": each.key.topic, "queue_id": each.key.queue_id}
    if each.expired is not None:
        row |= {
            "segment_count": each.expired.segment_count,
            "bytes": each.expired.dropped_bytes,
            "min_offset": each.expired.min_offset,
            "dry_run": dry_run,
        }
    return row | {"failure": each.failure}


def _cells(each: ExpiredQueue) -> tuple[str, ...]:
    assert each.expired is not None
    place = f"{each.key.topic}/{each.key.queue_id}"
    expired = each.expired
    return place, str(expired.segment_count), str(expired.dropped_bytes), str(expired.min_offset)
