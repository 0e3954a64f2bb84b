"""The catalogue of the tier that was named: what is in it, publishing it, writing it to a file,
and how long it has a topic kept.

What lives here: all of `catalogue` but its arguments. It is imported when a verb runs: help must
be fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tieredstore.access.wiring import publisher_of
from tieredstore.cli.choice import known_names
from tieredstore.cli.failures import CommandError, ExitCode
from tieredstore.cli.output import OutputFile, printable
from tieredstore.cli.tier import (
    check_broker,
    check_cluster,
    opened_backend,
    opened_provider,
)
from tieredstore.cli.tier_changing import changing, for_writing
from tieredstore.cli.tier_options import TierOptions
from tieredstore.cli.times import shown_time
from tieredstore.driver.metadata import StaleCatalogueError
from tieredstore.model.values import SegmentType

Row = dict[str, Any]


def shown(tier: TierOptions) -> Row:
    with opened_backend(tier) as backend:
        metadata = backend.catalogue()
        facts = metadata.facts
        segments = {kind.name: metadata.segments(None, kind) for kind in SegmentType}
        return {
            "source": facts.source,
            "place": facts.place,
            "generation": facts.generation,
            "epoch": facts.epoch,
            "writer": facts.writer,
            "written_ms": facts.written_ms,
            "topic_count": len(metadata.topics()),
            "queue_count": len(metadata.queues()),
            "segment_counts": {name: len(rows) for name, rows in segments.items()},
            "size": sum(row.size for rows in segments.values() for row in rows),
        }


def lines(row: Row) -> Iterator[str]:
    yield printable(f"{row['source']}: {row['place']}")
    if row["generation"] is not None:
        yield (
            f"generation {row['generation']} of {shown_time(row['written_ms'])}, by writer "
            f"{row['epoch']} ({printable(row['writer'])})"
        )
    counts = ", ".join(f"{count} {name}" for name, count in row["segment_counts"].items())
    yield f"{row['topic_count']} topics, {row['queue_count']} queues, {row['size']} bytes"
    yield f"segments: {counts}"


def written(tier: TierOptions, target: OutputFile) -> Row:
    with opened_backend(tier) as backend:
        data = backend.catalogue().snapshot_bytes()
    target.write(data)
    return {"generation": None, "place": target.name, "size": len(data)}


def published(tier: TierOptions) -> Row:
    with (
        opened_provider(tier) as there,
        for_writing(there.config, there.runtime) as metadata,
    ):
        config, provider = there.config, there.provider
        check_cluster(config, metadata)
        check_broker(config, metadata)
        publisher = publisher_of(config, provider, metadata)
        if publisher is None:
            raise CommandError(
                "catalogues of this tier are not published; see publish_interval_ms", ExitCode.USAGE
            )
        try:
            generation = publisher.publish()
        except StaleCatalogueError as error:
            raise CommandError(printable(str(error)), ExitCode.REFUSED) from error
        if generation is None:
            raise CommandError("there is nothing in the catalogue", ExitCode.NOT_THERE)
        generations = provider.generations(config.broker_name)
        place = "" if generations is None else generations.describe()
        return {"generation": generation, "place": place, "size": None}


def reserved(tier: TierOptions, topic: str, hours: int | None) -> Row:
    """The topic's row, written; `hours` None: the store's own."""
    with opened_backend(tier) as backend:
        with changing(backend) as change:
            metadata = change.metadata
            before = metadata.topic(topic)
            if before is None:
                names = sorted(record.topic for record in metadata.topics())
                raise CommandError(
                    f"no topic {printable(topic)!r} is in this tier; there are: "
                    f"{known_names(names)}",
                    ExitCode.NOT_THERE,
                )
            metadata.put(replace(before, reserve_hours=hours))
        return {
            "topic": topic,
            "reserve_hours": backend.config.reserve_hours if hours is None else hours,
            "reserve_hours_is_default": hours is None,
            "reserve_hours_before": before.reserve_hours,
            "generation": change.generation,
        }


def reserve_line(row: Row) -> str:
    default = ", as the store's settings say" if row["reserve_hours_is_default"] else ""
    told = "" if row["generation"] is None else f"; published as generation {row['generation']}"
    return printable(f"{row['topic']} is kept {row['reserve_hours']} hours{default}{told}")


def snapshot_line(row: Row) -> str:
    if row["generation"] is None:
        return printable(f"{row['place']}: {row['size']} bytes")
    return printable(f"generation {row['generation']} is in {row['place']}")
