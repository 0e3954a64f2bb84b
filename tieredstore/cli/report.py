"""A tier at a glance: one page about it, and what it costs in a month."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tieredstore.cli.options import (
    Csv,
    Json,
    Out,
    SizeOptions,
    TableShown,
    TierOptions,
    config_of,
    given,
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
from tieredstore.cli.progress import span_text
from tieredstore.cli.table import Column, Kind, Table
from tieredstore.model.amounts import counted

if TYPE_CHECKING:  # help must be fast
    from tieredstore.access.cost import Load, MonthlyCost
    from tieredstore.model.config import StoreConfig
    from tieredstore.model.values import QueueKey

app = typer.Typer(rich_markup_mode=None)

_DAY_SECONDS: Final = 86_400.0


def _amount(text: str) -> float:
    """A finite amount: typer's own parser takes inf and nan."""
    from tieredstore.access.cost import NUMBER_MAX

    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= NUMBER_MAX:  # this refuses nan too, as comparisons with it are false
        raise typer.BadParameter(f"{text!r:.40} is no number from 0 to {NUMBER_MAX:.0e}")
    return value


def _at_least_one(text: str) -> float:
    value = _amount(text)
    if value < 1:
        raise typer.BadParameter(f"{text!r:.40}: a message has at least one byte")
    return value


@verb(app, "report --out tier.html --config broker.conf")
def report(
    out: Out = "tier.html",
    local: Annotated[
        Path | None, option("--local DIR", "The broker's local store, for comparison.")
    ] = None,
    *,
    tier: TierOptions,
    json: Json = False,
) -> None:
    """Write one self-contained page: problems, topics, queues, index and cost.

    It is made from the catalogue, and from a few entries of a bucket's log. With --local it shows
    which queues are behind. An existing page is replaced.
    """
    from tieredstore.access.survey import picture_of
    from tieredstore.cli.report_page import page
    from tieredstore.cli.tier import opened_tier
    from tieredstore.driver.runtime import SystemClock

    target = OutputFile("--out", "tier.html" if out is None else out)
    target.check(json=json)
    with opened_tier(tier) as opened:
        picture = picture_of(
            opened.reader,
            opened.metadata,
            now_ms=SystemClock().now_ms(),
            local_offsets=None if local is None else _ends(local, tier.config),
            appended=opened.provider.appended(opened.config.broker_name),
        )
    data = page(picture).encode("utf-8", "backslashreplace")
    target.write(data)
    queues, in_trouble = len(picture.queues), sum(map(bool, map(picture.troubles, picture.queues)))
    if json:
        write_json({"file": out, "queues": queues, "in_trouble": in_trouble, "bytes": len(data)})
    elif not target.is_stdout:
        troubles = f", {in_trouble:,} in trouble" if in_trouble else ""
        write_line(
            printable(f"{out}: {counted(queues, 'queue')}{troubles}; open it in any browser")
        )


@verb(app, "cost --messages-per-second 2000 --message-bytes 1000 --queues 64")
def cost(
    messages_per_second: Annotated[
        float | None,
        option("--messages-per-second RATE", "Without a tier: over all queues.", parser=_amount),
    ] = None,
    message_bytes: Annotated[
        float, option("--message-bytes BYTES", "Of one stored message.", parser=_at_least_one)
    ] = 1024,
    queues: Annotated[int, option("--queues", "That messages come to.", min=1)] = 8,
    keys: Annotated[float, option("--keys COUNT", "Of one message.", parser=_amount)] = 2,
    read_bytes: Annotated[
        float, option("--read-bytes-per-second RATE", "Read from the tier.", parser=_amount)
    ] = 0,
    reserve_hours: Annotated[
        float | None, option("--reserve-hours HOURS", "Default: from the settings.", parser=_amount)
    ] = None,
    storage_price: Annotated[
        float | None, option("--storage-price DOLLARS", "For a GB-month.", parser=_amount)
    ] = None,
    *,
    tier: TierOptions,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Estimate what a tier costs in an object store: this one, or one of given rates and settings.

    Prices of requests are S3's list prices, or the setting request_prices. Traffic out of the cloud
    is not counted.
    """
    from tieredstore.access.cost import STORAGE_DOLLARS, Load, monthly_cost
    from tieredstore.model.config import StoreConfig

    if messages_per_second is None:
        config, load = _load_of_tier(tier, read_bytes)
    else:
        named = tier.config is not None
        config = config_of(tier) if named else StoreConfig(**given(tier))
        load = Load(
            queue_count=queues,
            messages_per_second=messages_per_second,
            message_bytes=message_bytes,
            keys_per_message=keys,
            read_bytes_per_second=read_bytes,
            reserve_hours=reserve_hours,
        )
    dollars = STORAGE_DOLLARS if storage_price is None else storage_price
    found = monthly_cost(load, config, storage_dollars=dollars)
    _print_cost(load, found, TableShown(json=json, csv=csv))


def _ends(directory: Path, config: Path | None) -> dict[QueueKey, int]:
    from tieredstore.cli.local import opened_store

    with opened_store(directory, SizeOptions(config=config)) as reader:
        return {key: reader.max_offset(*key) or 0 for key in reader.queues()}


def _load_of_tier(tier: TierOptions, read_bytes: float) -> tuple[StoreConfig, Load]:
    from tieredstore.access.survey import load_of
    from tieredstore.cli.tier import opened_tier
    from tieredstore.driver.runtime import SystemClock

    if tier.config is None and tier.provider is None:
        raise CommandError("name a tier, or give rates with --messages-per-second", ExitCode.USAGE)
    with opened_tier(tier) as opened:
        load = load_of(opened.reader, SystemClock().now_ms())
        if not load.messages_per_second:
            note("the catalogue does not tell how fast messages came: only bytes are counted")
        return opened.config, replace(load, read_bytes_per_second=read_bytes)


def _print_cost(load: Load, found: MonthlyCost, shown: TableShown) -> None:
    from tieredstore.cli.report_page import cost_cells

    for_people = not (shown.json or shown.csv)
    covered = load.seconds_covered
    if for_people:
        write_line(
            f"{counted(load.queue_count, 'queue')}, {load.messages_per_second:,.1f} messages/s of "
            f"{load.message_bytes:,.0f} bytes"
        )
        if covered is not None and covered < _DAY_SECONDS:
            write_line(
                f"calculated from {span_text(covered)}: all messages of this tier came within that "
                "time; --messages-per-second gives another rate"
            )
    columns = [
        Column("", "what"),
        Column("requests", "operation"),
        Column("how many", "shown_amount", Kind.NUMBER),
        Column("dollars", "shown_dollars", Kind.NUMBER),
    ]
    with Table(columns, shown, title="in 30 days, estimated") as table:
        for line in found.lines:
            _, _, amount, dollars = cost_cells(line)
            row = {
                "what": line.what,
                "operation": line.operation,
                "amount": round(line.amount, 3),
                "dollars": round(line.dollars, 4),
            }
            table.write(row, shown_amount=amount, shown_dollars=dollars)
        if not for_people:
            total = round(found.dollars, 4)
            table.write({"what": "total", "dollars": total, "seconds_covered": covered})
    if for_people:
        write_line("")
        write_line(f"total: {found.dollars:,.2f} dollars")
