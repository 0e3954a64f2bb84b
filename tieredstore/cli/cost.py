"""The verb `cost`: an estimate of what a tier costs in a month."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tieredstore.cli.options import Json, TierOptions, config_of, option, verb
from tieredstore.cli.output import (
    CommandError,
    ExitCode,
    note,
    write_json,
    write_line,
    write_table,
)

if TYPE_CHECKING:  # help must be fast
    from tieredstore.access.survey import CostLine, Load, MonthlyCost
    from tieredstore.model.config import StoreConfig

_DAY_SECONDS: Final = 86_400.0

app = typer.Typer(rich_markup_mode=None)


def _number(text: str) -> float:
    """A finite one: an amount of anything. typer's own takes inf and nan."""
    from tieredstore.access.survey import NUMBER_MAX

    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= NUMBER_MAX:  # nor nan, which is not more and not less than anything
        raise typer.BadParameter(f"{text!r:.40} is no number from 0 to {NUMBER_MAX:.0e}")
    return value


def _at_least_one(text: str) -> float:
    value = _number(text)
    if value < 1:
        raise typer.BadParameter(f"{text!r:.40}: a message has at least one byte")
    return value


@verb(app, "cost --messages-per-second 2000 --message-bytes 1000 --queues 64")
def cost(
    messages_per_second: Annotated[
        float | None,
        option("--messages-per-second RATE", "Without a tier: of all queues.", parser=_number),
    ] = None,
    message_bytes: Annotated[
        float, option("--message-bytes BYTES", "Of one stored message.", parser=_at_least_one)
    ] = 1024,
    queues: Annotated[int, option("--queues", "That messages come to.", min=1)] = 8,
    keys: Annotated[float, option("--keys COUNT", "Of one message.", parser=_number)] = 2,
    read_bytes: Annotated[
        float, option("--read-bytes-per-second RATE", "Read from the tier.", parser=_number)
    ] = 0,
    reserve_hours: Annotated[
        float | None, option("--reserve-hours HOURS", "Else as the settings say.", parser=_number)
    ] = None,
    storage_price: Annotated[
        float | None, option("--storage-price DOLLARS", "For a GB-month.", parser=_number)
    ] = None,
    *,
    tier: TierOptions,
    json: Json = False,
) -> None:
    """Estimate what a tier costs in an object store: this one, or one of given rates and settings.

    Prices of requests are S3's list prices, or the setting request_prices. What leaves the cloud is
    not counted.
    """
    from tieredstore.access.survey import STORAGE_DOLLARS, Load, monthly_cost
    from tieredstore.model.config import StoreConfig

    if messages_per_second is None:
        config, load = _of_tier(tier, read_bytes)
    else:
        named = tier.config is not None
        config = config_of(tier) if named else StoreConfig(**tier.settings())
        load = Load(
            queue_count=queues,
            messages_per_second=messages_per_second,
            message_bytes=message_bytes,
            keys_per_message=keys,
            read_bytes_per_second=read_bytes,
            reserve_hours=reserve_hours,
        )
    dollars = STORAGE_DOLLARS if storage_price is None else storage_price
    _print(load, monthly_cost(load, config, storage_dollars=dollars), json=json)


def _of_tier(tier: TierOptions, read_bytes: float) -> tuple[StoreConfig, Load]:
    from dataclasses import replace

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


def _how_long(seconds: float) -> str:
    for name, unit in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= unit:
            return f"{seconds / unit:,.1f} {name}"
    return "a second" if seconds <= 1 else f"{seconds:,.1f} seconds"


def _print(load: Load, found: MonthlyCost, *, json: bool) -> None:
    if json:
        for line in found.lines:
            write_json(
                {
                    "what": line.what,
                    "operation": line.operation,
                    "amount": round(line.amount, 3),
                    "dollars": round(line.dollars, 4),
                }
            )
        covered = load.seconds_covered
        write_json(
            {"what": "total", "dollars": round(found.dollars, 4), "seconds_covered": covered}
        )
        return
    write_line(
        f"{load.queue_count} queues, {load.messages_per_second:,.1f} messages/s of "
        f"{load.message_bytes:,.0f} bytes"
    )
    if load.seconds_covered is not None and load.seconds_covered < _DAY_SECONDS:
        write_line(
            f"reckoned from {_how_long(load.seconds_covered)}: all messages of this tier came "
            "within that time; --messages-per-second gives another rate"
        )
    title = "in 30 days, estimated"
    write_table(title, ("", "requests", "how many", "dollars"), map(line_cells, found.lines))
    write_line(f"total: {found.dollars:,.2f} dollars")


def line_cells(line: CostLine) -> tuple[str, str, str, str]:
    amount = f"{line.amount:,.1f} GB" if line.operation == "store" else f"{line.amount:,.0f}"
    return line.what, line.operation, amount, f"{line.dollars:,.2f}"
