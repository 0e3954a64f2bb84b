"""The verb `why`: where one message of a tier is, or why it is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tieredstore.cli.options import Queue, TierOptions, Topic, argument, option, verb
from tieredstore.cli.output import CommandError, ExitCode, printable, shown_time, write_row

if TYPE_CHECKING:  # help must be fast
    from tieredstore.access.survey import Whereabouts
    from tieredstore.model.values import SegmentRecord

app = typer.Typer(rich_markup_mode=None)


@verb(app, "why Orders 0 4711 --config broker.conf")
def why(
    topic: Topic,
    queue: Queue,
    offset: Annotated[int, argument("OFFSET", "Queue offset.", min=0)],
    *,
    tier: TierOptions,
    json: Annotated[bool, option("--json", "One JSON object, nothing else.")] = False,
) -> None:
    """Say in which segments a message lies, how long it stays and which keys find it; or why not.

    Exit code 4: it is there and damaged.
    """
    from tieredstore.access.survey import Place, whereabouts
    from tieredstore.cli.tier import opened_tier
    from tieredstore.driver.runtime import SystemClock

    with opened_tier(tier, asks_local_index=False) as opened:
        keys = opened.keys(topic, queue)
        if not keys:  # a topic with no queue yet
            raise CommandError(
                f"nothing of {printable(topic)}/{queue} was tiered yet", ExitCode.NOT_THERE
            )
        found = whereabouts(opened.reader, keys[0], offset, now_ms=SystemClock().now_ms())
    write_row(_row(found), *_lines(found), json=json)
    if found.place is Place.DAMAGED:
        raise CommandError(found.problem or "the message is damaged", ExitCode.DAMAGE)


def _row(found: Whereabouts) -> dict[str, Any]:
    message = found.message
    return {
        "topic": found.key.topic,
        "queue_id": found.key.queue_id,
        "queue_offset": found.queue_offset,
        "place": found.place.name,
        "min_offset": found.min_offset,
        "max_offset": found.max_offset,
        "earliest_timestamp": found.earliest_timestamp,
        "reserve_hours": found.reserve_hours,
        "store_timestamp": None if message is None else message.store_timestamp,
        "log_offset": found.log_offset,
        "log_segment": _segment_row(found.log_segment),
        "queue_segment": _segment_row(found.queue_segment),
        "expires_from": found.expires_from,
        "is_growing": found.is_growing,
        "found_by": list(found.found_by),
        "not_found_by": list(found.not_found_by),
        "problem": found.problem,
    }


def _segment_row(record: SegmentRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {"path": record.path, "base_offset": record.base_offset, "size": record.size}


def _lines(found: Whereabouts) -> list[str]:
    from tieredstore.access.survey import Place

    topic, queue_id = found.key
    lines = [f"{topic}/{queue_id}/{found.queue_offset} is {found.place.value}"]
    if found.min_offset < found.max_offset:
        lines.append(f"the tier has {found.min_offset} to {found.max_offset - 1} of this queue")
    else:
        lines.append("the tier has no message of this queue")
    kept = "for ever" if found.reserve_hours is None else f"{found.reserve_hours} hours"
    if found.place is Place.IN_TIER:
        return lines + _about_message(found, kept)
    if found.place is Place.ABOVE:
        lines.append(
            "it was not put yet, or only the broker's local store has it: a batch is uploaded when "
            "it is full or old enough, and never before the local store has it on disk"
        )
    elif found.place is Place.BELOW:
        lines.append(f"it has expired, or the upload began behind it; the topic is kept {kept}")
        if found.earliest_timestamp is not None:
            lines.append(f"the oldest message there is from {shown_time(found.earliest_timestamp)}")
    elif found.place is Place.GAP:
        lines.append("nothing was stored at this offset, or it went with its segment; read on")
    return lines


def _about_message(found: Whereabouts, kept: str) -> list[str]:
    from tieredstore.codec.queue_unit import UNIT_BYTES

    lines: list[str] = []
    if found.message is not None:
        lines.append(f"stored at {shown_time(found.message.store_timestamp)}")
    for what, record, offset in (
        ("record", found.log_segment, found.log_offset),
        ("unit", found.queue_segment, found.queue_offset * UNIT_BYTES),
    ):
        if record is not None and offset is not None:
            lines.append(
                f"{what}: {record.path}, {record.type.name} {record.base_offset}, "
                f"byte {offset - record.base_offset}"
            )
    if found.expires_from is None:
        lines.append("it is kept for ever: expiry is off")
    else:
        grows = "; its segment still grows, so rather later" if found.is_growing else ""
        lines.append(
            f"the topic is kept {kept}: it may go from {shown_time(found.expires_from)} on{grows}"
        )
    if found.found_by:
        lines.append(f"the index finds it by {', '.join(found.found_by)}")
    if found.not_found_by:
        lines.append(
            f"the uploaded index does not find it by {', '.join(found.not_found_by)}: a broker "
            "uploads its index once a day, or when a file is full; without a broker `offload "
            "--seal` does; where neither helps, see reindex"
        )
    return lines
