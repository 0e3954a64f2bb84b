"""Prepares a machine to continue with a tier: shows what it has, lacks and will serve."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tieredstore.cli.options import TableShown, TierOptions, config_of, option, verb
from tieredstore.cli.output import (
    CommandError,
    ExitCode,
    Row,
    hint,
    note,
    printable,
    write_json,
    write_line,
    write_row,
)
from tieredstore.cli.progress import command_line
from tieredstore.model.amounts import counted

if TYPE_CHECKING:  # help must be fast
    from tieredstore.access.rebuild import RebuildReport
    from tieredstore.model.config import StoreConfig

app = typer.Typer(rich_markup_mode=None)


@verb(app, "recover --config broker.conf")
def recover(
    apply: Annotated[
        bool, option("--apply", "Create what is missing. No broker may run on this tier.")
    ] = False,
    *,
    tier: TierOptions,
    shown: TableShown,
) -> None:
    """Prepare an empty machine to continue with its tier, from the bucket or folder alone.

    Shows what is present, what is missing, which queues the broker will serve, and whether the tier
    keeps its topics and consumer offsets; without --apply nothing changes. In a bucket the log is
    the catalogue, so nothing is missing. For a folder the catalogue is rebuilt from its published
    copy and from the bytes. An existing catalogue or local store is never touched. When the broker
    starts, its queues continue where the tier ends.
    """
    from tieredstore.cli.care import log_of_a_bucket
    from tieredstore.cli.look import queue_rows, write_queues
    from tieredstore.cli.tier import TierDamage, awaits_cut_over, opened_tier

    state = _state_of(tier)
    lacks = [*log_of_a_bucket(config_of(tier))]
    for text in lacks:
        note(printable(text))
    report = None
    if apply and state["catalogue"] == "missing":
        report = _made(tier)
        state |= {"catalogue": "made", "source": "file"}
    damage = TierDamage()
    named = replace(tier, catalogue=None if state["source"] == "log" else str(state["source"]))
    with opened_tier(named) as opened:
        rows = queue_rows(opened, None, damage)
        groups, topics = sorted(opened.reader.consumer_offsets()), opened.reader.topic_configs()
        is_half = not rows and awaits_cut_over(opened.config)  # a note has said what to do
    if not shown.csv:
        write_row({"what": "machine", **state}, *_lines_of(state, applied=apply), json=shown.json)
    write_queues(rows, shown)
    total: Row = {
        "what": "total",
        "queue_count": len(rows),
        "message_count": sum(_count_of(row) for row in rows),
        "log_bytes": sum(int(row["log_bytes"]) for row in rows),
        "groups": groups,
        "configured_topic_count": len(topics),
    }
    if shown.json:
        write_json(total)
    elif not shown.csv:
        write_line(
            f"{counted(len(rows), 'queue')}, {counted(total['message_count'], 'message')},"
            f" {shown.size(total['log_bytes'])}; the tier keeps the configuration of"
            f" {counted(len(topics), 'topic')} and the offsets of"
            f" {counted(len(groups), 'consumer group')}"
        )
        missing = state["catalogue"] == "missing"
        then = command_line().with_word("--apply") if missing else "start the broker"
        if not is_half and not lacks:
            hint(printable(f"next: {then}"))
    if report is not None and report.problems:
        text = f"{len(report.problems)} not sound, the first: {report.problems[0]}"
        raise CommandError(printable(text), ExitCode.DAMAGE)
    damage.raise_error()


def _count_of(row: Row) -> int:
    first = row["min_offset"]
    return 0 if first is None else int(row["max_offset"]) - int(first)


def _state_of(tier: TierOptions) -> Row:
    """What this machine has, and which catalogue the queues are read from for now."""
    from tieredstore.access.wiring import (
        NoCatalogueError,
        has_file,
        keeps_catalogue,
        published_catalogue,
    )
    from tieredstore.cli.care import check_there_is_data
    from tieredstore.cli.tier import awaits_cut_over, no_catalogue, opened_provider
    from tieredstore.model.errors import MetadataError

    with ExitStack() as opened:
        there = opened.enter_context(opened_provider(tier))
        config, provider = there.config, there.provider
        check_there_is_data(config, provider)
        if keeps_catalogue(config, provider):
            catalogue, source = "in the bucket", "log"
        elif has_file(config):
            catalogue, source = "here", "file"
        else:
            catalogue, source = "missing", "rebuild"
            try:
                found = published_catalogue(config, provider)
            except MetadataError as error:  # a rebuild does without it
                note(printable(f"what is published cannot be used: {error}"))
                found = None
            if found is not None:
                opened.callback(found.close)
                source = "published"
            elif awaits_cut_over(config):  # half a tier, and a catalogue would refuse the rest
                reason = "there is no such file"
                missing = NoCatalogueError(config.catalogue_path, reason, names_file=True)
                raise no_catalogue(missing, config)
        return {
            "catalogue": catalogue,
            "source": source,
            "catalogue_path": config.catalogue_path,
            "store_path": config.store_path,
            "has_local_store": _has_local_store(config),
        }


def _has_local_store(config: StoreConfig) -> bool:
    folder = Path(config.store_path, "commitlog")
    return folder.is_dir() and any(folder.iterdir())


def _made(tier: TierOptions) -> RebuildReport:
    """Make the catalogue's file; meanwhile another broker of this name is locked out."""
    from tieredstore.cli.care import rebuilt

    config = config_of(tier)
    Path(config.catalogue_path).parent.mkdir(parents=True, exist_ok=True)
    with rebuilt(tier) as report:
        return report


def _lines_of(state: Row, *, applied: bool) -> list[str]:
    lines = {
        "in the bucket": "the catalogue is the log of the bucket: nothing has to be made",
        "here": f"the catalogue {state['catalogue_path']} is here: nothing has to be made",
        "made": f"the catalogue {state['catalogue_path']} is made",
        "missing": f"the catalogue {state['catalogue_path']} is missing; --apply makes it from "
        + ("what is published and the bytes" if state["source"] == "published" else "the bytes"),
    }
    local = (
        f"the local store in {state['store_path']} has messages: the broker holds them against"
        " the tier when it starts"
        if state["has_local_store"]
        else f"there is no local store in {state['store_path']}: every queue goes on where the"
        " tier ends"
    )
    unchanged = [] if applied or state["catalogue"] != "missing" else ["nothing was changed"]
    return [lines[str(state["catalogue"])], local, *unchanged]
